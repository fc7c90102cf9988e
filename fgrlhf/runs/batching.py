"""The order of examples in a pass over them: shuffled, yet batches hold examples of like length."""

import random
from collections.abc import Sequence
from itertools import cycle, islice

from fgrlhf.utils import derive_seed

WINDOW = 50  # batches that are sorted together


def shuffled_batches(
    n: int, batch_size: int, seed: int, epoch: int, lengths: Sequence | None = None
) -> list[list[int]]:
    """Batches of indices below n: a pure function of its arguments.

    With `lengths` (one sort key per example) a shuffled pass is cut into windows of 50 batches,
    each window is sorted and cut into batches, and the batches are shuffled. A last batch that is
    not full is filled with the pass's first examples, so that any number of processes can share it.
    """
    rng = random.Random(derive_seed(seed, "order", epoch))
    places = -(-n // batch_size) * batch_size
    order = list(islice(cycle(rng.sample(range(n), n)), places))
    if lengths is None:
        return [order[i : i + batch_size] for i in range(0, places, batch_size)]
    batches = []
    for start in range(0, places, batch_size * WINDOW):
        window = sorted(order[start : start + batch_size * WINDOW], key=lengths.__getitem__)
        batches += [window[i : i + batch_size] for i in range(0, len(window), batch_size)]
    rng.shuffle(batches)
    return batches

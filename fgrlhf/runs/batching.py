"""Shuffled batches of examples, with examples of similar length in each batch."""

import math
import random
from collections.abc import Sequence
from itertools import cycle, islice

from fgrlhf.base.seeds import derive_seed

WINDOW = 50  # batches that are sorted together


def shuffled_batches(
    n: int, batch_size: int, seed: int, epoch: int, lengths: Sequence | None = None
) -> list[list[int]]:
    """Batches of indices below n: a pure function of its arguments.

    With `lengths` (one sort key per example) a shuffled pass is split into windows of `WINDOW`
    batches, each window is sorted and split into batches, and the batches are shuffled. If the last
    batch is not full, the first examples of the pass fill it, so that any number of processes can
    share it.
    """
    rng = random.Random(derive_seed(seed, "order", epoch))
    shuffled = rng.sample(range(n), n)
    n_places = math.ceil(n / batch_size) * batch_size
    order = list(islice(cycle(shuffled), n_places))
    if lengths is None:
        return _consecutive(order, batch_size)
    batches = []
    for window in _consecutive(order, batch_size * WINDOW):
        window.sort(key=lambda i: lengths[i])
        batches += _consecutive(window, batch_size)
    rng.shuffle(batches)
    return batches


def _consecutive(order: list[int], size: int) -> list[list[int]]:
    """Parts of `size` numbers; the last one may have fewer."""
    return [order[start : start + size] for start in range(0, len(order), size)]

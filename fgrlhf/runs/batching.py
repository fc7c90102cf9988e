"""The rows of each step, and of each forward pass in it: pure functions of seed and pass."""

import math
import random
from collections.abc import Sequence
from itertools import cycle, islice

import torch

from fgrlhf.base.seeds import derive_seed
from fgrlhf.data.mixture import Mixture

WINDOW = 50  # batches that are sorted together


def shuffled_batches(
    n: int,
    batch_size: int,
    seed: int,
    epoch: int,
    lengths: Sequence | None = None,
    mixture: Mixture | None = None,
) -> list[list[int]]:
    """Batches of indices below n: a pure function of its arguments.

    With `lengths` (one sort key per example) a shuffled pass is split into windows of `WINDOW`
    batches, each window is sorted and split into batches, and the batches are shuffled. If the last
    batch is not full, the first examples of the pass fill it, so that any number of processes can
    share it. In a mixture the next rows of the files fill it, and each batch is sorted alone, so
    that the shares hold at every step.
    """
    n_places = math.ceil(n / batch_size) * batch_size
    if mixture is not None:
        order = mixture.order(_sampled, seed, epoch * n_places, n_places)
        batches = _consecutive(order, batch_size)
        return batches if lengths is None else [sorted(b, key=lengths.__getitem__) for b in batches]
    rng = random.Random(derive_seed(seed, "order", epoch))
    order = list(islice(cycle(rng.sample(range(n), n)), n_places))
    if lengths is None:
        return _consecutive(order, batch_size)
    batches = []
    for window in _consecutive(order, batch_size * WINDOW):
        window.sort(key=lambda i: lengths[i])
        batches += _consecutive(window, batch_size)
    rng.shuffle(batches)
    return batches


def _sampled(n: int, seed: int, epoch: int) -> list[int]:
    return random.Random(derive_seed(seed, "order", epoch)).sample(range(n), n)


def permuted_batches(
    n: int,
    batch_size: int,
    seed: int,
    epoch: int,
    lengths: Sequence[int] | None = None,
    mixture: Mixture | None = None,
) -> list[list[int]]:
    """Batches of the indices below n in a random order; the last one may have fewer.

    In a mixture the next rows of the files fill it.

    With `lengths`, longer examples come first in a batch, so that parts of it hold examples of
    similar length. The order is that of transformers' Trainer (accelerate's
    `SeedableRandomSampler`).
    """
    if mixture is None:
        order = _permuted(n, seed, epoch)
    else:
        n_places = math.ceil(n / batch_size) * batch_size
        order = mixture.order(_permuted, seed, epoch * n_places, n_places)
    batches = _consecutive(order, batch_size)
    if lengths is None:
        return batches
    longest_first = [-length for length in lengths]
    return [sorted(batch, key=lambda i: longest_first[i]) for batch in batches]


def _permuted(n: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(n, generator=generator).tolist()


def micro_batches(
    indices: Sequence[int], size: int, rank: int, world: int
) -> list[tuple[Sequence[int], float]]:
    """The parts of a batch that one process computes, each with its weight.

    Consecutive rows form parts, which are dealt out to the processes. The weight is 1. Processes
    communicate in their passes, so all of them must make the same number: a process with fewer
    parts repeats a row with the weight 0.

    Args:
      size: the most rows of a part.
    """
    size = min(size, math.ceil(len(indices) / world))
    chunks = [indices[start : start + size] for start in range(0, len(indices), size)]
    parts = [(chunk, 1.0) for chunk in chunks[rank::world]]
    missing = math.ceil(len(chunks) / world) - len(parts)
    return parts + [(indices[:1], 0.0)] * missing


def _consecutive(order: list[int], size: int) -> list[list[int]]:
    """Parts of `size` numbers; the last one may have fewer."""
    return [order[start : start + size] for start in range(0, len(order), size)]

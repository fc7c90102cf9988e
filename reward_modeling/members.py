"""The samples of rows on which the heads of a reward model are trained (`model.members`).

Heads on one trunk that all saw the same rows would agree where they should not. So a row counts
Poisson(1) times for each member, as often as in a bootstrap sample of many rows (Oza and Russell
2001, Online bagging and boosting). Osband et al. (2016, arXiv 1602.04621) train heads of one
network in this way. The counts are a pure function of the seed and what the network reads of the
row: equal rows count equally, and neither the order of the rows nor an interruption changes them.
"""

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fgrlhf.base.seeds import derive_seed
from fgrlhf.reward_models.rm_input import RMInput

BOOTSTRAP = "bootstrap"  # of a batch: the counts


def counts_of(rows: Sequence[Sequence[RMInput]], members: int, seed: int) -> Tensor:
    """How often each row counts for each member: counts_BM.

    Args:
      rows: the inputs of each row.
    """
    seed = derive_seed(seed, BOOTSTRAP)
    counts = []
    for inputs in rows:
        generator = np.random.default_rng([seed, _fingerprint(inputs)])
        counts.append(generator.poisson(1.0, members))
    return torch.tensor(np.array(counts), dtype=torch.float32)


def _fingerprint(inputs: Sequence[RMInput]) -> int:
    number = 0
    for one in inputs:
        for ids in (one.input_ids, one.decoder_input_ids or []):
            number = zlib.crc32(np.array([len(ids), *ids], dtype=np.int64).tobytes(), number)
    return number

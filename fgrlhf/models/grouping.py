"""Runs of equal prompts in consecutive rows: where each begins, and how long it is."""

import torch
from torch import Tensor

from fgrlhf.utils import check_same_shape


def group_equal_prompts(prompt_ids_BP: Tensor, prompt_mask_BP: Tensor) -> tuple[Tensor, Tensor]:
    """Runs of equal prompts.

    Returns:
      first_G, the row where each run begins, and group_B, the run (0 .. G - 1) of each row.

    Raises:
      ValueError: ids and mask have different shapes.
    """
    check_same_shape(prompt_ids_BP=prompt_ids_BP, prompt_mask_BP=prompt_mask_BP)
    prompt_BP2 = torch.stack([prompt_ids_BP, prompt_mask_BP], -1)
    # a run begins in row 0 and wherever a row differs from the row before it
    differs = (prompt_BP2[1:] != prompt_BP2[:-1]).flatten(1).any(1)
    row_0 = torch.ones_like(prompt_BP2[:1, 0, 0], dtype=torch.bool)
    begins_B = torch.cat([row_0, differs])
    first_G = begins_B.nonzero()[:, 0]
    group_B = begins_B.cumsum(0) - 1
    return first_G, group_B


def uniform_group_size(group_B: Tensor) -> int | None:
    """K if every group has K rows, else None."""
    sizes_G = torch.bincount(group_B)
    all_equal = bool((sizes_G == sizes_G[0]).all())
    return int(sizes_G[0]) if all_equal else None

"""A prompt and its K responses in one row of a decoder-only model, which reads the prompt once.

    tokens       prompt    | response 1 | response 2 | ...
    parts        0 0 .. 0  | 1 1 1 ..   | 2 2 2 ..   | ...
    positions    0 .. p-1  | p, p+1, .. | p, p+1, .. | ...        p: the prompt's length

A response sees the prompt and itself. Its positions continue the prompt's, as if it were the only
one, so the results are those of K rows. Policies and reward models use the same mask.

Axes here: G rows, L tokens of a row.
"""

import inspect
from functools import cache

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fgrlhf.kernels.shared_cache import SHARED_CACHE
from fgrlhf.models.trunk import text_config, trunk_of
from fgrlhf.utils import check_same_shape

# Tokens of a prompt and all its responses: the mask of such a row has 64 million entries.
LONGEST_SHARED_ROW = 8192


def block_mask(part_GL: Tensor, real_GL: Tensor) -> Tensor:
    """mask_G1LL: whether a token (third axis) sees another (fourth axis).

    It sees real tokens that are not later than itself, in the prompt or in its own part. Padding is
    not seen, but sees itself, because it has to see something.

    Args:
      part_GL: the part that a token belongs to: 0 the prompt, k = 1 .. K the response k. A single
        row (1, L) stands for G equal ones.
      real_GL: False on padding.
    """
    column_L = torch.arange(part_GL.shape[1], device=part_GL.device)
    row_L1 = column_L[:, None]
    not_later_LL = column_L <= row_L1
    in_prompt_G1L = part_GL[:, None] == 0
    same_part_GLL = part_GL[:, None] == part_GL[:, :, None]
    # the prompt comes first, so "not later" also keeps prompt tokens from seeing responses
    sees_GLL = not_later_LL & (in_prompt_G1L | same_part_GLL)
    itself_LL = column_L == row_L1
    return ((sees_GLL & real_GL[:, None]) | itself_LL)[:, None]


def can_share(model: PreTrainedModel) -> bool:
    """Whether every layer uses the attention mask and the positions passed to the model.

    Layers with a sliding window or ALiBi derive their own mask or distances. Doge adds learned
    numbers to the mask.
    """
    config = text_config(model)
    layer_types = set(getattr(config, "layer_types", None) or ())
    # a window counts columns, and in a shared row responses are further away than they are
    has_window = getattr(config, "sliding_window", None) or layer_types - {"full_attention"}
    has_alibi = getattr(config, "alibi", False)
    uses_mask = model.config._attn_implementation in ("sdpa", SHARED_CACHE)
    changes_mask = config.model_type == "doge"
    if not uses_mask or has_window or has_alibi or changes_mask:
        return False
    return takes_positions(model)


def sharing_pays(P: int, T: int, K: int, D: int) -> bool:
    """Whether one row with a prompt and K responses costs less than K rows with one response each.

    Flops of a decoder layer of width D, in multiples of 4 D: its 12 D^2 weights cost 24 D^2 flops
    per token, attention costs 4 D per pair of tokens. The shared row needs a dense mask, with which
    every pair is computed. Separate rows have a causal mask, whose kernels skip half of the pairs.

        shared     6 D (P + K T) + (P + K T)^2
        separate   K (6 D (P + T) + (P + T)^2 / 2)

    The dense mask has (P + K T)^2 entries per prompt, so the length of a shared row is limited too.

    Args:
      P: prompt tokens.
      T: tokens of each response.
      K: responses per prompt.
      D: width of the model.
    """
    if K < 2:
        return False
    shared_row = P + K * T
    if shared_row > LONGEST_SHARED_ROW:
        return False
    separate_row = P + T
    shared_cost = 6 * D * shared_row + shared_row**2
    separate_cost = K * (6 * D * separate_row + separate_row**2 / 2)
    return shared_cost < separate_cost


def takes_positions(model: PreTrainedModel) -> bool:
    """Whether the model's forward pass has a `position_ids` argument.

    A model with ALiBi has none: it derives distances from the mask.
    """
    return "position_ids" in _argument_names(type(trunk_of(model)))


def position_arguments(model: PreTrainedModel, position_ids: Tensor) -> dict[str, Tensor]:
    """`position_ids` as keyword arguments of the model's forward pass; {} if it takes none."""
    return {"position_ids": position_ids} if takes_positions(model) else {}


@cache
def _argument_names(trunk: type) -> frozenset[str]:
    return frozenset(inspect.signature(trunk.forward).parameters)


# ---- runs of equal prompts in consecutive rows ---------------------------------------------------


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

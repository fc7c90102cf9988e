"""Several responses in one row, for decoders with relative positions only (T5).

The responses to one prompt differ in length. If four of them are padded to the longest, half of the
decoder's work is on padding. Here they follow one another in a row,

    y_1 y_1 y_1 | y_2 y_2 y_2 y_2 y_2 | y_3 ...

and a mask lets a token see its own response up to itself. Distances within a response do not
change, so the results do not change either. Attention computes all pairs of tokens in a row, so the
responses of a prompt are distributed over several rows if one would be too long.

Axes here: B responses of at most T tokens, R rows of L tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fgrlhf.utils import check_shape

# Tokens in a row. At this length, attention costs a tenth of the rest of a layer of T5-small.
ROW_LENGTH = 512


@dataclass(frozen=True)
class Packing:
    """The place of every response token in R rows of L tokens.

    `place_BT` is row * L + column; it is valid where `real_BT` is True. Every prompt has
    `rows_per_prompt` consecutive rows.

    Attributes:
      rows: R.
      width: L.
    """

    place_BT: Tensor
    real_BT: Tensor
    rows: int
    width: int
    rows_per_prompt: int

    def pack(self, values_BT: Tensor, fill: int = 0) -> Tensor:
        """values_RL: the values of the real tokens in their places, `fill` elsewhere.

        Raises:
          ValueError: the values do not have the shape of the packed mask.
        """
        check_shape("values_BT", values_BT, tuple(self.real_BT.shape))
        flat = values_BT.new_full((self.rows * self.width,), fill)
        flat = flat.scatter(0, self.place_BT[self.real_BT], values_BT[self.real_BT])
        return flat.view(self.rows, self.width)

    def unpack(self, packed_RLD: Tensor) -> Tensor:
        """The same numbers by response (B, T, D), 0 on padding.

        Raises:
          ValueError: the tensor has another number of rows or another width.
        """
        D = packed_RLD.shape[-1]
        check_shape("packed_RLD", packed_RLD, (self.rows, self.width, D))
        real_values = packed_RLD.flatten(0, 1)[self.place_BT[self.real_BT]]
        zeros_BTD = packed_RLD.new_zeros(*self.real_BT.shape, D)
        return zeros_BTD.masked_scatter(self.real_BT[..., None], real_values)

    def mask(self) -> Tensor:
        """mask_R1LL: whether a token (third axis) sees another (fourth axis).

        It sees the tokens of its own response up to itself.
        """
        B, T = self.real_BT.shape
        # number the responses 1 .. B; places without a token get 0
        numbers_B = torch.arange(1, B + 1, device=self.real_BT.device)
        number_BT = numbers_B[:, None].expand(B, T).contiguous()
        number_RL = self.pack(number_BT)
        # padding sees padding, because it has to see something
        same_response_RLL = number_RL[:, :, None] == number_RL[:, None, :]
        not_later_LL = torch.ones_like(same_response_RLL[0]).tril()
        return (same_response_RLL & not_later_LL)[:, None]


def pack_responses(mask_BT: Tensor, group_B: Tensor, row_length: int = ROW_LENGTH) -> Packing:
    """Distribute the responses of each prompt over its rows, the longest first.

    Each response goes to the emptiest row of its prompt. Every prompt has the same number of rows:
    as many as the prompt with the most tokens needs at `row_length` tokens per row (or at the
    length of the longest response, if that is more).

    Args:
      mask_BT: 1 on real tokens, which are at the beginning of every response.
      group_B: the prompt of each response, 0 .. G - 1.
      row_length: tokens that a row should hold at most.

    Raises:
      ValueError: the arguments have other shapes, or different numbers of responses.
    """
    check_shape("mask_BT", mask_BT, (None, None))
    check_shape("group_B", group_B, (len(mask_BT),))
    lengths = mask_BT.sum(1).tolist()
    groups = group_B.tolist()
    rows_per_prompt = _rows_per_prompt(lengths, groups, row_length)

    filled = [0] * ((max(groups) + 1) * rows_per_prompt)  # tokens in each row so far
    row_of = [0] * len(lengths)
    column_of = [0] * len(lengths)  # of each response's first token
    longest_first = sorted(range(len(lengths)), key=lambda b: -lengths[b])
    for b in longest_first:
        first_row = groups[b] * rows_per_prompt
        rows_of_prompt = range(first_row, first_row + rows_per_prompt)
        emptiest = min(rows_of_prompt, key=lambda row: filled[row])
        row_of[b] = emptiest
        column_of[b] = filled[emptiest]
        filled[emptiest] += lengths[b]

    width = max(*filled, 1)
    starts = [row * width + column for row, column in zip(row_of, column_of)]
    # tokens of a response have consecutive places, from that of its first token on
    start_B1 = torch.tensor(starts, device=mask_BT.device)[:, None]
    place_BT = start_B1 + torch.arange(mask_BT.shape[1], device=mask_BT.device)
    return Packing(place_BT, mask_BT.bool(), len(filled), width, rows_per_prompt)


def _rows_per_prompt(lengths: list[int], groups: list[int], row_length: int) -> int:
    tokens_of_prompt = [0] * (max(groups) + 1)
    for length, group in zip(lengths, groups):
        tokens_of_prompt[group] += length
    row_length = max(row_length, *lengths)
    rows = -(-max(tokens_of_prompt) // row_length)  # rounded up
    return max(rows, 1)

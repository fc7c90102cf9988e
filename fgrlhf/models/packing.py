"""Responses side by side in rows without padding, for decoders that know distances only (T5's
relative bias).

Responses to one prompt have different lengths: padded to the longest of four, half of a decoder's
work is on padding. Here they follow one another in a row of their prompt,

    y_1 y_1 y_1 | y_2 y_2 y_2 y_2 y_2 | y_3 ...

and a mask lets a token see its own response up to itself. Distances within a response are what they
were, so nothing else changes. Attention computes all pairs of a row, so a long row is dealt out to
several.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

ROW = 512  # tokens; attention among so many is a tenth of what else a T5-small's layer computes


@dataclass(frozen=True)
class Packing:
    """Where response tokens stand: `place_BT` is row * width + column, for tokens that are there
    (`real_BT`).

    Rows of one prompt stand side by side, `rows_each` of them for every prompt.
    """

    place_BT: Tensor
    real_BT: Tensor
    rows: int
    width: int
    rows_each: int

    def pack(self, values_BT: Tensor, fill: int = 0) -> Tensor:
        """values_BT of the real tokens -> (rows, width), `fill` where there is none."""
        packed = values_BT.new_full((self.rows * self.width,), fill)
        return packed.scatter(0, self.place_BT[self.real_BT], values_BT[self.real_BT]).view(
            self.rows, self.width
        )

    def unpack(self, packed_RND: Tensor) -> Tensor:
        """(rows, width, D) -> (B, T, D), 0 on padding."""
        found_SD = packed_RND.flatten(0, 1)[self.place_BT[self.real_BT]]
        empty = packed_RND.new_zeros(*self.real_BT.shape, packed_RND.shape[-1])
        return empty.masked_scatter(self.real_BT[..., None], found_SD)

    def mask(self) -> Tensor:
        """(rows, 1, width, width): whether a token (third axis) sees another: one of its response,
        not after it.
        """
        B, T = self.real_BT.shape
        response_BT = torch.arange(1, B + 1, device=self.real_BT.device)[:, None].expand(B, T)
        part_RN = self.pack(response_BT.contiguous())
        same_RNN = (
            part_RN[:, :, None] == part_RN[:, None, :]
        )  # padding, part 0, sees padding: it has to see something
        return (same_RNN & torch.ones_like(same_RNN[0]).tril())[:, None]


def packed(mask_BT: Tensor, group_B: Tensor, row: int = ROW) -> Packing:
    """Deal out the responses of each prompt, the longest first to the emptiest of its rows.

    Every prompt has as many rows as the one with the most tokens needs at `row` tokens (or the
    longest response) a row.

    Args:
      mask_BT: which tokens are there; they begin every row.
      group_B: the prompt of each response, 0 .. G - 1.
    """
    lengths, groups = mask_BT.sum(1).tolist(), group_B.tolist()
    totals = [0] * (max(groups) + 1)
    for length, group in zip(lengths, groups):
        totals[group] += length
    each = max(-(-max(totals) // max(row, *lengths)), 1)
    filled = [0] * (len(totals) * each)
    first = [0] * len(lengths)  # place of each response's first token: (row, column)
    for b in sorted(range(len(lengths)), key=lambda b: -lengths[b]):
        mine = range(groups[b] * each, (groups[b] + 1) * each)
        chosen = min(mine, key=filled.__getitem__)
        first[b] = (chosen, filled[chosen])
        filled[chosen] += lengths[b]
    width = max(*filled, 1)
    start_B1 = torch.tensor([[r * width + column] for r, column in first], device=mask_BT.device)
    return Packing(
        start_B1 + torch.arange(mask_BT.shape[1], device=mask_BT.device),
        mask_BT.bool(),
        len(filled),
        width,
        each,
    )

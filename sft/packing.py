"""Several demonstrations in one row of a decoder-only model: `train.packing`.

The examples of a batch differ in length. Padded to the longest one, a batch of B examples has B
rows of L tokens. Here examples follow one another in R < B longer rows,

    tokens       x_1 y_1 | x_2 y_2 | x_3 y_3 | padding
    example      1 1 1 1 | 2 2 2 . | 3 3 .   | 0 ...
    position     0 1 2 3 | 0 1 2 . | 0 1 .   | 0 ...

and a mask lets a token see its own example up to itself. Positions restart with every example, so
loss and gradients are those of separate rows. A step has the same examples as without packing.

Axes here: B examples, L columns of the padded batch, R packed rows, W columns of a packed row.
"""

import heapq
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fgrlhf.base.errors import UserError
from fgrlhf.models.shared_rows import LONGEST_SHARED_ROW, block_mask, can_share
from fgrlhf.policy import Policy
from fgrlhf.utils import IGNORED, check_shape
from sft.data import keeps_logits

EXAMPLES = "example_RW"  # key of a packed batch: the number of each token's example, 0: padding


def check_packing(policy: Policy) -> None:
    """Raise `UserError` if the policy's model cannot read several examples in a row."""
    model: Any = policy.model
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UserError(
            f"train.packing is true, but {name} is an encoder-decoder: its encoder reads the prompt"
            " and its decoder the response, so an example is no row that others could continue. Set"
            " train.packing=false; train.group_by_length=true reduces padding too"
        )
    if not can_share(model) or not keeps_logits(model):
        raise UserError(
            f"train.packing is true, but {name} derives attention or positions by itself (a sliding"
            " window, ALiBi), so its examples would see each other. Set train.packing=false;"
            " train.group_by_length=true reduces padding too"
        )


def fill_rows(lengths: Sequence[int], n_rows: int) -> list[list[int]]:
    """Distribute examples over rows: the longest first, each to the emptiest row."""
    rows: list[list[int]] = [[] for _ in range(n_rows)]
    emptiest_first = [(0, row) for row in range(n_rows)]  # a heap of (tokens, row)
    for b in sorted(range(len(lengths)), key=lambda b: -lengths[b]):
        tokens, row = emptiest_first[0]
        rows[row].append(b)
        heapq.heapreplace(emptiest_first, (tokens + lengths[b], row))
    return rows


def best_rows(lengths: Sequence[int], hidden_size: int) -> list[list[int]] | None:
    """The examples of each row for the cheapest number of rows; None if packing does not pay.

    Flops of a decoder layer of width D, in multiples of 4 D, as in `sharing_pays`: the weights cost
    6 D per token. Attention costs W per token of a row with a dense mask, and W / 2 with a causal
    one, which separate rows have.

        packed       R W (6 D + W)
        separate     B L (6 D + L / 2)        L: the longest example

    Padding counts as tokens, so many rows cost padding and few long rows cost attention.

    Args:
      hidden_size: D.
    """
    longest = max(lengths)
    cheapest = len(lengths) * longest * (6 * hidden_size + longest / 2)
    best = None
    for n_rows in range(1, len(lengths)):
        rows = fill_rows(lengths, n_rows)
        width = _width(lengths, rows)
        cost = n_rows * width * (6 * hidden_size + width)
        if cost < cheapest and width <= LONGEST_SHARED_ROW:
            cheapest = cost
            best = rows
    return best


def _width(lengths: Sequence[int], rows: Sequence[Sequence[int]]) -> int:
    """Tokens of the fullest row."""
    return max(sum(lengths[b] for b in row) for row in rows)


def pack(batch: dict[str, Tensor], pad_id: int, hidden_size: int) -> dict[str, Tensor]:
    """The batch with several examples in a row; the same batch if that does not pay (`best_rows`).

    Args:
      batch: `input_ids`, `attention_mask` and `labels` (B, L), padded on either side.
      hidden_size: of the model.

    Returns:
      The same tensors with shape (R, W), `position_ids` and `example_RW`.

    Raises:
      ValueError: the tensors have different shapes.
    """
    ids_BL = batch["input_ids"]
    mask_BL = batch["attention_mask"].bool()
    labels_BL = batch["labels"]
    check_shape("attention_mask", mask_BL, tuple(ids_BL.shape))
    check_shape("labels", labels_BL, tuple(ids_BL.shape))
    lengths = mask_BL.sum(1).tolist()
    rows = best_rows(lengths, hidden_size)
    if rows is None:
        return batch
    shape = (len(rows), _width(lengths, rows))
    ids_RW = ids_BL.new_full(shape, pad_id)
    labels_RW = labels_BL.new_full(shape, IGNORED)
    example_RW = ids_BL.new_zeros(shape)
    positions_RW = ids_BL.new_zeros(shape)
    for r, examples in enumerate(rows):
        column = 0
        for number, b in enumerate(examples, start=1):
            place = slice(column, column + lengths[b])
            ids_RW[r, place] = ids_BL[b, mask_BL[b]]
            labels_RW[r, place] = labels_BL[b, mask_BL[b]]
            example_RW[r, place] = number
            positions_RW[r, place] = torch.arange(lengths[b], device=ids_BL.device)
            column += lengths[b]
    return {
        "input_ids": ids_RW,
        "attention_mask": (example_RW > 0).long(),
        "labels": labels_RW,
        "position_ids": positions_RW,
        EXAMPLES: example_RW,
    }


def packed_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The mean negative log-probability of the response tokens of a packed batch.

    The output layer is computed for the columns before response tokens only. An example begins with
    its prompt, so none of its labels is predicted from the example before it.

    Args:
      model: a language model, wrapped or not.
      batch: the result of `pack`.
    """
    labels_RW = batch["labels"]
    has_label_W = (labels_RW[:, 1:] != IGNORED).any(0)
    columns_N = has_label_W.nonzero()[:, 0]
    logits_RNV = model(
        input_ids=batch["input_ids"],
        attention_mask=block_mask(batch[EXAMPLES], batch["attention_mask"].bool()),
        position_ids=batch["position_ids"],
        logits_to_keep=columns_N,
        use_cache=False,
    ).logits
    check_shape("logits", logits_RNV, (len(labels_RW), len(columns_N), None))
    targets_RN = labels_RW[:, columns_N + 1]
    return nn.functional.cross_entropy(
        logits_RNV.flatten(0, 1).float(), targets_RN.flatten(), ignore_index=IGNORED
    )

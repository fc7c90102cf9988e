"""The gradient of attention in half precision on a CPU.

PyTorch's own takes four times as long as its forward pass, a fifth of an update of a decoder with
135 M parameters. Here it consists of batched products, which oneDNN computes at full speed. With
the scores S = scale q k^T + mask, the probabilities P = exp(S - logsumexp S), the output O = P v
and its gradient dO:

    dS = P (dO v^T - delta)        delta = sum_d dO O
    dq = scale dS k        dk = scale dS^T q        dv = P^T dO

S - logsumexp S and dO v^T - delta are differences of large numbers, of which bf16 would keep too
few digits. Each is one product with two more columns, [q, -logsumexp] [k, 1]^T, so the difference
is taken in the fp32 sums of the product, and rounded afterwards. The two columns are a number of
fp32 rounded to bf16, and the rest.

Axes here: B rows, N heads of queries, H heads of keys, R = N / H, L queries, S keys, D width of a
head, E = D + 2, M = B H, Q = R L queries of a block that share a head of keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SCORES_AT_ONCE = 2**20  # so that they stay in the processor's cache
QUERIES_AT_ONCE = 128  # of a text; the keys after the last of them are left out


class HalfAttention(torch.autograd.Function):
    """PyTorch's attention of tensors in bf16, with the gradient of this file.

    A mask (1 or B, 1, L, S) has True or 0 for the keys that a query sees, and False or -inf for
    others.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query_BNLD: Tensor,
        key_BHSD: Tensor,
        value_BHSD: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        scale: float,
    ) -> Tensor:
        repeats = query_BNLD.shape[1] // key_BHSD.shape[1]
        out_BNLD, logsumexp_BNL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query_BNLD,
            key_BHSD.repeat_interleave(repeats, 1),
            value_BHSD.repeat_interleave(repeats, 1),
            0.0,
            is_causal,
            attn_mask=_added(mask, query_BNLD.dtype),
            scale=scale,
        )
        ctx.is_causal, ctx.scale = is_causal, scale
        ctx.save_for_backward(query_BNLD, key_BHSD, value_BHSD, mask, out_BNLD, logsumexp_BNL)
        return out_BNLD

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_BNLD: Tensor):
        query_BNLD, key_BHSD, value_BHSD, mask, out_BNLD, logsumexp_BNL = ctx.saved_tensors
        B, N, L, D = query_BNLD.shape
        H, S = key_BHSD.shape[1:3]
        M, R = B * H, N // H
        delta_BNL = (grad_BNLD * out_BNLD).sum(-1, dtype=torch.float32)
        # two more columns each, so that differences are taken in fp32
        q_MRLE = _with_number(query_BNLD * ctx.scale, -logsumexp_BNL).reshape(M, R, L, -1)
        do_MRLE = _with_number(grad_BNLD, -delta_BNL).reshape(M, R, L, -1)
        k_MSE = _with_ones(key_BHSD).reshape(M, S, -1)
        v_MSE = _with_ones(value_BHSD).reshape(M, S, -1)

        dq_MRLD = torch.empty_like(q_MRLE[..., :D])
        dk_MSD = torch.zeros(M, S, D)
        dv_MSD = torch.zeros(M, S, v_MSE.shape[2] - 2)
        for block in _blocks(_hidden(mask, ctx.is_causal, L, S), B, R, L, S, H):
            rows, queries, seen = block.rows, block.queries, block.seen
            q = q_MRLE[rows, :, queries].flatten(1, 2)
            do = do_MRLE[rows, :, queries].flatten(1, 2)
            k, v = k_MSE[rows, :seen], v_MSE[rows, :seen]
            p_MQS = block.hide(q @ k.mT).exp_()
            ds_MQS = (do @ v.mT).mul_(p_MQS)
            dq_MRLD[rows, :, queries] = (ds_MQS @ k[..., :D]).unflatten(1, (R, -1))
            dk_MSD[rows, :seen] += ds_MQS.mT @ q[..., :D]
            dv_MSD[rows, :seen] += p_MQS.mT @ do[..., :-2]
        dq_BNLD = dq_MRLD.view(B, N, L, D).mul_(ctx.scale)
        dk_BHSD = dk_MSD.to(key_BHSD.dtype).view(B, H, S, D)
        dv_BHSD = dv_MSD.to(value_BHSD.dtype).view(B, H, S, -1)
        return dq_BNLD, dk_BHSD, dv_BHSD, None, None, None


@dataclass(frozen=True)
class _Block:
    """Some queries of some rows.

    Attributes:
      rows, queries: of M and of L.
      seen: the keys from this one on are hidden from all of these queries.
      hidden: (1 or rows, 1, queries, keys from `first` to `seen`); None: nothing more is hidden.
    """

    rows: slice
    queries: slice
    seen: int
    first: int
    hidden: Tensor | None

    def hide(self, scores_MQS: Tensor) -> Tensor:
        """The scores, with -inf for hidden keys."""
        if self.hidden is not None:
            L = self.queries.stop - self.queries.start
            scores_MRLS = scores_MQS.unflatten(1, (-1, L))[..., self.first :]
            scores_MRLS.masked_fill_(self.hidden, -torch.inf)
        return scores_MQS


def _blocks(hidden_BLS: Tensor | None, B: int, R: int, L: int, S: int, H: int) -> Iterator[_Block]:
    """Blocks that cover all pairs of a query and a key it sees."""
    for begin in range(0, L, QUERIES_AT_ONCE):
        queries = slice(begin, min(begin + QUERIES_AT_ONCE, L))
        seen, first, hidden = S, 0, None
        if hidden_BLS is not None:
            of_block = hidden_BLS[:, queries]
            seen = int((~of_block).any(0).any(0).nonzero().max()) + 1
            places = of_block[..., :seen].any(0).any(0).nonzero()
            if len(places):
                first = int(places.min())
                hidden = of_block[:, None, :, first:seen]
        at_once = max(1, SCORES_AT_ONCE // (R * (queries.stop - begin) * seen))
        for start in range(0, B * H, at_once):
            rows = slice(start, min(start + at_once, B * H))
            of_rows = hidden
            if hidden is not None and len(hidden) > 1:
                of_rows = hidden[torch.arange(rows.start, rows.stop) // H]
            yield _Block(rows, queries, seen, first, of_rows)


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The mask as numbers that are added to scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask if mask is None else mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)


def _hidden(mask: Tensor | None, is_causal: bool, L: int, S: int) -> Tensor | None:
    """True for keys that a query does not see, (1 or B, L, S); None: it sees all."""
    if is_causal:
        return torch.ones(1, L, S, dtype=torch.bool).triu_(1)
    if mask is None:
        return None
    hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
    return hidden.expand(*hidden.shape[:-2], L, S).reshape(-1, L, S)


def _with_number(x_BNLD: Tensor, number_BNL: Tensor) -> Tensor:
    """Two more columns, whose sum is the number."""
    rounded = number_BNL.to(x_BNLD.dtype)
    rest = (number_BNL - rounded).to(x_BNLD.dtype)
    return torch.cat([x_BNLD, rounded[..., None], rest[..., None]], -1)


def _with_ones(x_BHSD: Tensor) -> Tensor:
    return torch.nn.functional.pad(x_BHSD, (0, 2), value=1.0)

"""Attention of encoder-decoders: a prompt that several responses share, T5's bias by distance,
scores that are not kept.

K responses to one prompt look at the same encoder states. An ordinary cross-attention wants those
states once per response, so keys and values are projected, stored and read K times. Here the batch
of the keys may be G prompts while that of the queries is B = G * K responses, the K of one prompt
side by side; they attend as one long query:

    query (G * K, H, T, D) -> (G, H, K * T, D)        keys, values (G, H, P, D), mask (G, 1, 1, P)

which is the same sum, since queries do not see each other and cross-attention knows no distance
between query and key. transformers calls the function by name in every encoder-decoder whose
attention it can choose (T5, mT5, BART, ...).

T5 adds a learned number to each score that depends on the distance of key and query alone.
transformers looks it up for every pair of positions, and its gradient goes back through as many
look-ups: a fifth of an update of a small model. Here it is looked up once per distance, and the
matrix is cut out of that row.
"""

from types import MethodType

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from fgrlhf.kernels.layers import kept, product

SHARED_PROMPT = "shared_prompt"
CACHED = 2**18  # scores that are worked on at a time: a megabyte


def shared_prompt_attention(
    module,
    query_BHTD: Tensor,
    key_GHPD: Tensor,
    value_GHPD: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """An attention function of transformers: returns (B, T, H, D). Self-attention is left to the
    ordinary one.
    """
    is_cross = getattr(module, "is_decoder", False) and not module.is_causal
    if not is_cross:
        return _self_attention(
            module,
            query_BHTD,
            key_GHPD,
            value_GHPD,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            **kwargs,
        )
    # T5 also gives a `position_bias` of zeros here, (1, H, T, P), which is not worth adding
    B, H, T, D = query_BHTD.shape
    G = key_GHPD.shape[0]
    K = B // G
    query = query_BHTD.view(G, K, H, T, D).transpose(1, 2).reshape(G, H, K * T, D)
    mask = (
        None if attention_mask is None else attention_mask[:, :, :1]
    )  # every query sees the whole prompt
    if dropout and _recomputes(query):
        out = _RecomputedAttention.apply(
            query,
            key_GHPD,
            value_GHPD,
            None,
            mask,
            D**-0.5 if scaling is None else scaling,
            dropout,
        )
    else:
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key_GHPD, value_GHPD, attn_mask=mask, dropout_p=dropout, scale=scaling
        )
    return out.transpose(1, 2).reshape(B, T, H, D), None


class _RecomputedAttention(torch.autograd.Function):
    """dropout(softmax(scale q k^T + bias)) v, from which nothing of size (H, L, S) is kept but the
    bias and which entries dropout kept.

    PyTorch keeps scores and probabilities of every layer where the bias has a gradient or there is
    dropout, more than all the rest of a layer at prompts of 600 tokens. Here the probabilities P
    are computed again; M is 0 where P was dropped, 1 / (1 - dropout) elsewhere:

        dS = P (M (dO v^T) - sum_d dO O)      dq = scale dS k      dk = scale dS^T q      dv = (P
        M)^T dO      dbias = sum_B dS

    One row of the batch at a time, and of its heads as many as fit into a processor's cache.
    """

    @staticmethod
    def forward(ctx, query, key, value, bias_HLS, mask, scale, dropout):
        ctx.scale, ctx.grown, kept_BHLS = scale, 1 / (1 - dropout), None
        if dropout:
            kept_BHLS = kept((*query.shape[:3], key.shape[2]), dropout)
            q, k, v = query.contiguous(), key.contiguous(), value * ctx.grown
            B, H, L, D = query.shape
            out = query.new_empty(B, L, H, D).transpose(
                1, 2
            )  # laid out as it is read next: no copy has to be kept
            for b, heads in _parts(query, key):
                p = _probabilities(
                    q[b, heads], k[b, heads], _of_heads(bias_HLS, heads), _of_row(mask, b), scale
                )
                out[b, heads] = _times(p.mul_(kept_BHLS[b, heads].to(p.dtype)), v[b, heads].mT)
        else:
            added = (
                bias_HLS
                if mask is None
                else torch.where(mask, bias_HLS, torch.finfo(bias_HLS.dtype).min)
            )
            out = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=added, scale=scale
            )
        ctx.save_for_backward(query, key, value, bias_HLS, mask, kept_BHLS, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        query, key, value, bias_HLS, mask, kept_BHLS, out = ctx.saved_tensors
        rest, grad = (grad * out).sum(-1, keepdim=True), (grad * ctx.grown).contiguous()
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        gradients, dbias = [], {}
        for b, heads in _parts(query, key):  # in place only what TRPO can differentiate again
            q, k, g = query[b, heads], key[b, heads], grad[b, heads]
            p, dp = (
                _probabilities(q, k, _of_heads(bias_HLS, heads), _of_row(mask, b), ctx.scale),
                _times(g, value[b, heads]),
            )
            seen = p
            if kept_BHLS is not None:
                kept_HLS = kept_BHLS[b, heads].to(p.dtype)
                seen, dp = p * kept_HLS, dp.mul_(kept_HLS)
            ds = p * dp.sub_(rest[b, heads])
            gradients.append(
                (
                    _times(ds, k.mT) * ctx.scale,
                    _times(q.mT, ds.mT).mT * ctx.scale,
                    _times(g.mT, seen.mT).mT,
                )
            )
            if bias_HLS is not None:
                dbias[heads.start] = ds if b == 0 else dbias[heads.start] + ds
        dq, dk, dv = (torch.cat(parts).unflatten(0, query.shape[:2]) for parts in zip(*gradients))
        return dq, dk, dv, torch.cat(list(dbias.values())) if dbias else None, None, None, None


def _parts(query: Tensor, key: Tensor) -> list[tuple[int, slice]]:
    """(row, heads) whose scores make up at most CACHED numbers."""
    (B, H, L, _), S = query.shape, key.shape[2]
    n = max(1, CACHED // (L * S))
    return [(b, slice(h, h + n)) for b in range(B) for h in range(0, H, n)]


def _times(a_HLD: Tensor, b_HSD: Tensor) -> Tensor:
    """a b^T, (H, L, S)."""
    return product(a_HLD[0], b_HSD[0])[None] if len(a_HLD) == 1 else a_HLD @ b_HSD.mT


def _probabilities(
    q_HLD: Tensor, k_HSD: Tensor, bias_HLS: Tensor | None, mask: Tensor | None, scale: float
) -> Tensor:
    """softmax(scale q k^T + bias) of one row of the batch, 0 where `mask` (1, 1 or L, S) says that
    a key is not seen.
    """
    scores = _times(q_HLD if scale == 1 else q_HLD * scale, k_HSD)
    scores = scores if bias_HLS is None else scores.add_(bias_HLS)
    scores = scores if mask is None else scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1)


def _of_heads(bias_HLS: Tensor | None, heads: slice) -> Tensor | None:
    return None if bias_HLS is None else bias_HLS[heads]


def _of_row(mask: Tensor | None, b: int) -> Tensor | None:
    return None if mask is None else mask[b % len(mask)]  # one for all of the batch, or one each


def _recomputes(query: Tensor) -> bool:
    """Whether PyTorch would keep arrays of the size of the scores: a GPU's kernels do not."""
    return torch.is_grad_enabled() and query.device.type == "cpu"


def _self_attention(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    position_bias=None,
    **kwargs,
) -> tuple[Tensor, None]:
    """The ordinary one, except that a CPU does not keep what a learned bias makes it keep."""
    if (
        position_bias is not None
        and position_bias.requires_grad
        and query.dtype == position_bias.dtype
        and _recomputes(query)
    ):
        if attention_mask is None and module.is_causal:
            attention_mask = torch.ones(
                query.shape[2], key.shape[2], dtype=torch.bool, device=query.device
            ).tril()[None, None]
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = _RecomputedAttention.apply(
            query, key, value, position_bias[0], attention_mask, scale, dropout
        )
        return out.transpose(1, 2), None
    return sdpa_attention_forward(
        module,
        query,
        key,
        value,
        attention_mask,
        dropout=dropout,
        scaling=scaling,
        position_bias=position_bias,
        **kwargs,
    )


def bias_by_distance(
    self, query_length: int, key_length: int, device=None, past_seen_tokens: int = 0
) -> Tensor:
    """`T5Attention.compute_bias`, (1, H, query, key): entry (i, j) is the number for distance j -
    (i + past_seen_tokens).
    """
    device = self.relative_attention_bias.weight.device if device is None else device
    distances = torch.arange(1 - query_length, key_length, device=device) - past_seen_tokens
    buckets = self._relative_position_bucket(
        distances,
        bidirectional=not self.is_decoder,
        num_buckets=self.relative_attention_num_buckets,
        max_distance=self.relative_attention_max_distance,
    )
    bias_HD = self.relative_attention_bias(buckets).T
    return bias_HD.unfold(1, key_length, 1).flip(1)[
        None
    ]  # window w begins at distance w + 1 - query: query query - 1 - w


def share_prompts(model: nn.Module) -> nn.Module:
    """The same encoder-decoder with both of the above."""
    model.set_attn_implementation(SHARED_PROMPT)
    for module in model.modules():
        if getattr(module, "has_relative_attention_bias", False):
            module.compute_bias = MethodType(bias_by_distance, module)
    return model


AttentionInterface.register(SHARED_PROMPT, shared_prompt_attention)
AttentionMaskInterface.register(SHARED_PROMPT, sdpa_mask)

"""Attention of encoder-decoders: a prompt that several responses share, T5's bias by distance, scores that are not kept.

K responses to one prompt look at the same encoder states. An ordinary cross-attention wants those states once per
response, so keys and values are projected, stored and read K times. Here the batch of the keys may be G prompts while
that of the queries is B = G * K responses, the K of one prompt side by side; they attend as one long query:

    query (G * K, H, T, D) -> (G, H, K * T, D)        keys, values (G, H, P, D), mask (G, 1, 1, P)

which is the same sum, since queries do not see each other and cross-attention knows no distance between query and key.
transformers calls the function by name in every encoder-decoder whose attention it can choose (T5, mT5, BART, ...).

T5 adds a learned number to each score that depends on the distance of key and query alone. transformers looks it up for
every pair of positions, and its gradient goes back through as many look-ups: a fifth of an update of a small model. Here it
is looked up once per distance, and the matrix is cut out of that row.
"""

from math import prod
from types import MethodType

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

SHARED_PROMPT = "shared_prompt"


def shared_prompt_attention(
    module, query_BHTD: Tensor, key_GHPD: Tensor, value_GHPD: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, **kwargs,
) -> tuple[Tensor, None]:
    """An attention function of transformers: returns (B, T, H, D). Self-attention is left to the ordinary one."""
    is_cross = getattr(module, "is_decoder", False) and not module.is_causal
    if not is_cross:
        return _self_attention(
            module, query_BHTD, key_GHPD, value_GHPD, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    # T5 also gives a `position_bias` of zeros here, (1, H, T, P), which is not worth adding
    B, H, T, D = query_BHTD.shape
    G = key_GHPD.shape[0]
    K = B // G
    query = query_BHTD.view(G, K, H, T, D).transpose(1, 2).reshape(G, H, K * T, D)
    mask = None if attention_mask is None else attention_mask[:, :, :1]  # every query sees the whole prompt
    if dropout and _recomputes(query):
        out = _RecomputedAttention.apply(query, key_GHPD, value_GHPD, None, mask, D**-0.5 if scaling is None else scaling, dropout)
    else:
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key_GHPD, value_GHPD, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return out.view(G, H, K, T, D).permute(0, 2, 3, 1, 4).reshape(B, T, H, D), None


class _RecomputedAttention(torch.autograd.Function):
    """dropout(softmax(scale q k^T + bias)) v, from which nothing of size (H, L, L) is kept but bias and what was dropped.

    PyTorch keeps scores and probabilities of every layer where the bias has a gradient or there is dropout, more than all the
    rest of a layer at prompts of 600 tokens. Here the probabilities P are computed again, one row of the batch at a time; M is 0
    where P was dropped, 1 / (1 - dropout) elsewhere:

        dS = P (M (dO v^T) - sum_d dO O)      dq = scale dS k      dk = scale dS^T q      dv = (P M)^T dO      dbias = sum_B dS
    """

    @staticmethod
    def forward(ctx, query, key, value, bias_HLL, mask, scale, dropout):
        ctx.scale, ctx.grown, dropped = scale, 1 / (1 - dropout), None
        if dropout:
            dropped = _bernoulli((*query.shape[:3], key.shape[2]), dropout)
            out = torch.stack([
                _probabilities(q, k, bias_HLL, _of_row(mask, b), scale).masked_fill_(dropped[b], 0) @ (v * ctx.grown)
                for b, (q, k, v) in enumerate(zip(query, key, value))])
        else:
            added = bias_HLL if mask is None else torch.where(mask, bias_HLL, torch.finfo(bias_HLL.dtype).min)
            out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=added, scale=scale)
        ctx.save_for_backward(query, key, value, bias_HLL, mask, dropped, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        query, key, value, bias_HLL, mask, dropped, out = ctx.saved_tensors
        gradients, grad_bias_HLL = [], None
        rest = (grad * out).sum(-1, keepdim=True)
        for b, (q, k, v, g) in enumerate(zip(query, key, value, grad * ctx.grown)):  # in place only what TRPO can differentiate again
            p, dp = _probabilities(q, k, bias_HLL, _of_row(mask, b), ctx.scale), g @ v.mT
            seen = p
            if dropped is not None:
                seen, dp = p.masked_fill(dropped[b], 0), dp.masked_fill_(dropped[b], 0)
            ds = p * dp.sub_(rest[b])
            gradients.append((ds @ k * ctx.scale, ds.mT @ q * ctx.scale, seen.mT @ g))
            if bias_HLL is not None:
                grad_bias_HLL = ds if grad_bias_HLL is None else grad_bias_HLL + ds
        return *(torch.stack(rows) for rows in zip(*gradients)), grad_bias_HLL, None, None, None


def _bernoulli(shape: tuple[int, ...], p: float) -> Tensor:
    """True with probability p, to a resolution of 2**-16: four of one 64-bit draw, three times as fast as `bernoulli_`."""
    n = prod(shape)
    draws = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None)  # all 64 bits
    return (draws.view(torch.int16)[:n] < round(2**16 * p) - 2**15).view(shape)


def _probabilities(q_HLD: Tensor, k_HLD: Tensor, bias_HLL: Tensor | None, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(scale q k^T + bias) of one row of the batch, 0 where `mask` (1, 1 or L, L) says that a key is not seen."""
    scores = q_HLD * scale @ k_HLD.mT if bias_HLL is None else torch.baddbmm(bias_HLL, q_HLD, k_HLD.mT, alpha=scale)
    scores = scores if mask is None else scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1)


def _of_row(mask: Tensor | None, b: int) -> Tensor | None:
    return None if mask is None else mask[b % len(mask)]  # one for all of the batch, or one each


def _recomputes(query: Tensor) -> bool:
    """Whether PyTorch would keep arrays of the size of the scores: a GPU's kernels do not."""
    return torch.is_grad_enabled() and query.device.type == "cpu"


def _self_attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, position_bias=None, **kwargs) -> tuple[Tensor, None]:
    """The ordinary one, except that a CPU does not keep what a learned bias makes it keep."""
    if position_bias is not None and position_bias.requires_grad and query.dtype == position_bias.dtype and _recomputes(query):
        if attention_mask is None and module.is_causal:
            attention_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = _RecomputedAttention.apply(query, key, value, position_bias[0], attention_mask, scale, dropout)
        return out.transpose(1, 2), None
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, position_bias=position_bias, **kwargs)


def bias_by_distance(self, query_length: int, key_length: int, device=None, past_seen_tokens: int = 0) -> Tensor:
    """`T5Attention.compute_bias`, (1, H, query, key): entry (i, j) is the number for distance j - (i + past_seen_tokens)."""
    device = self.relative_attention_bias.weight.device if device is None else device
    distances = torch.arange(1 - query_length, key_length, device=device) - past_seen_tokens
    buckets = self._relative_position_bucket(
        distances, bidirectional=not self.is_decoder, num_buckets=self.relative_attention_num_buckets,
        max_distance=self.relative_attention_max_distance)
    bias_HD = self.relative_attention_bias(buckets).T
    return bias_HD.unfold(1, key_length, 1).flip(1)[None]  # window w begins at distance w + 1 - query: query query - 1 - w


def share_prompts(model: nn.Module) -> nn.Module:
    """The same encoder-decoder with both of the above."""
    model.set_attn_implementation(SHARED_PROMPT)
    for module in model.modules():
        if getattr(module, "has_relative_attention_bias", False):
            module.compute_bias = MethodType(bias_by_distance, module)
    return model


AttentionInterface.register(SHARED_PROMPT, shared_prompt_attention)
AttentionMaskInterface.register(SHARED_PROMPT, sdpa_mask)

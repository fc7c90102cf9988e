"""Attention of encoder-decoders: a prompt that several responses share, and T5's bias by distance.

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
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key_GHPD, value_GHPD, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return out.view(G, H, K, T, D).permute(0, 2, 3, 1, 4).reshape(B, T, H, D), None


class _BiasedAttention(torch.autograd.Function):
    """softmax(scale q k^T + bias) v, from which nothing of size (H, L, L) is kept but the bias.

    PyTorch keeps scores and probabilities of every layer where the bias has a gradient, more than all the rest of a layer
    at prompts of 600 tokens. Here the probabilities P are computed again, one row of the batch at a time:

        dS = P (dO v^T - sum_d dO O)      dq = scale dS k      dk = scale dS^T q      dv = P^T dO      dbias = sum_B dS
    """

    @staticmethod
    def forward(ctx, query, key, value, bias_HLL, mask, scale):
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=_added(bias_HLL, mask), scale=scale)
        ctx.save_for_backward(query, key, value, bias_HLL, mask, out)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, grad):
        query, key, value, bias_HLL, mask, out = ctx.saved_tensors
        gradients, grad_bias_HLL = [], torch.zeros_like(bias_HLL)
        rest = (grad * out).sum(-1, keepdim=True)
        for b, (q, k, v, g) in enumerate(zip(query, key, value, grad)):  # nothing in place: TRPO differentiates it again
            bias = _added(bias_HLL, None if mask is None else mask[b % len(mask)])
            p = torch.baddbmm(bias, q, k.mT, alpha=ctx.scale).softmax(-1)
            ds = (g @ v.mT - rest[b]) * p
            gradients.append((ds @ k * ctx.scale, ds.mT @ q * ctx.scale, p.mT @ g))
            grad_bias_HLL = grad_bias_HLL + ds
        return *(torch.stack(rows) for rows in zip(*gradients)), grad_bias_HLL, None, None


def _added(bias_HLL: Tensor, mask: Tensor | None) -> Tensor:
    """The bias, and the lowest number where `mask` (..., 1 or L, L) says that a key is not seen."""
    return bias_HLL if mask is None else torch.where(mask, bias_HLL, torch.finfo(bias_HLL.dtype).min)


def _self_attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, position_bias=None, **kwargs) -> tuple[Tensor, None]:
    """The ordinary one, except that without dropout a CPU does not keep what a learned bias makes it keep."""
    learned = position_bias is not None and position_bias.requires_grad and torch.is_grad_enabled()
    if learned and query.device.type == "cpu" and query.dtype == position_bias.dtype and not dropout:
        if attention_mask is None and module.is_causal:
            attention_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = _BiasedAttention.apply(query, key, value, position_bias[0], attention_mask, scale)
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

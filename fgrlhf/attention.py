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
from torch.utils.checkpoint import checkpoint
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


def _self_attention(module, query, key, value, attention_mask, **kwargs) -> tuple[Tensor, None]:
    """The ordinary one. Where its bias has a gradient, PyTorch keeps (B, H, L, L) scores and probabilities of every layer,
    more than all the rest of a layer at prompts of 600 tokens: they are computed again in the backward pass instead.
    """
    bias = kwargs.get("position_bias")
    if torch.is_grad_enabled() and bias is not None and bias.requires_grad:
        return checkpoint(sdpa_attention_forward, module, query, key, value, attention_mask, use_reentrant=False, **kwargs)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


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

"""Attention over a prompt that several responses share.

K responses to one prompt look at the same encoder states. An ordinary cross-attention wants those states once per
response, so keys and values are projected, stored and read K times. Here the batch of the keys may be G prompts while
that of the queries is B = G * K responses, the K of one prompt side by side; they attend as one long query:

    query (G * K, H, T, D) -> (G, H, K * T, D)        keys, values (G, H, P, D), mask (G, 1, 1, P)

which is the same sum, since queries do not see each other and cross-attention knows no distance between query and key.
transformers calls the function by name in every encoder-decoder whose attention it can choose (T5, mT5, BART, ...).
"""

import torch
from torch import Tensor
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
        return sdpa_attention_forward(
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


AttentionInterface.register(SHARED_PROMPT, shared_prompt_attention)
AttentionMaskInterface.register(SHARED_PROMPT, sdpa_mask)

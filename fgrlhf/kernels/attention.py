"""Attention of encoder-decoders: shared prompts, T5's bias by distance, recomputed scores.

*Shared prompts.* K responses to one prompt attend to the same encoder states. Ordinary
cross-attention needs those states once per response, so keys and values are projected, stored and
read K times. Here the batch of the keys may be G prompts while the batch of the queries is
B = G * K responses, those of a prompt in consecutive rows. They attend as one long query:

    query (G * K, H, T, D) -> (G, H, K * T, D)        keys, values (G, H, P, D), mask (G, 1, 1, P)

The result is the same, because queries do not see each other and cross-attention does not depend on
the distance between query and key. transformers calls an attention function by name, so this works
in every encoder-decoder with selectable attention (T5, mT5, BART, ...).

*Bias by distance.* T5 adds a learned number to each score, which depends only on the distance of
key and query. transformers looks it up for every pair of positions, and its gradient goes back
through as many look-ups, which take a fifth of an update of a small model. Here it is looked up
once per distance, and the matrix is made of windows of that row. It is added to the mask once for
all layers, not in every layer.

*Recomputed scores.* On a CPU, PyTorch stores scores and probabilities of every layer if the bias
needs a gradient or there is dropout. `_RecomputedAttention` computes them again instead. Where they
are few, `_stored_attention` stores them, which is twice as fast.

Axes here: B rows, G prompts, H heads, L queries, S keys, D numbers per head.
"""

from types import MethodType

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.mt5.modeling_mt5 import MT5Attention
from transformers.models.t5.modeling_t5 import T5Attention

from fgrlhf.kernels.layers import dropout_mask, linear

SHARED_PROMPT = "shared_prompt"
BLOCK_SIZE = 2**18  # scores computed at a time: a megabyte in fp32, which fits a processor's cache
STORED_SCORES = 2**21  # the most whose probabilities are stored: 8 MB in fp32
MASKED_BIAS = "_masked_bias"  # attribute of a bias: see `_bias_of_all_layers`


# ---- shared prompts ------------------------------------------------------------------------------


def shared_prompt_attention(
    module: nn.Module,
    query_BHTD: Tensor,
    key_GHPD: Tensor,
    value_GHPD: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """The attention function for transformers: cross-attention with shared prompts.

    Self-attention goes to `_self_attention`.

    Returns:
      (outputs (B, T, H, D), None), as transformers expects it.
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
    # T5 passes a `position_bias` of zeros here, (1, H, T, P); adding it would change nothing
    B, H, T, D = query_BHTD.shape
    G = key_GHPD.shape[0]
    K = B // G
    query = query_BHTD.view(G, K, H, T, D).transpose(1, 2).reshape(G, H, K * T, D)
    mask = attention_mask
    if mask is not None:
        mask = mask[:, :, :1]  # every query sees the whole prompt, so one row is enough
    if dropout and _recomputes(query):
        scale = D**-0.5 if scaling is None else scaling
        out = _RecomputedAttention.apply(query, key_GHPD, value_GHPD, None, mask, scale, dropout)
    else:
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key_GHPD, value_GHPD, attn_mask=mask, dropout_p=dropout, scale=scaling
        )
    return out.transpose(1, 2).reshape(B, T, H, D), None


def _self_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Attention of transformers, or one of this file for a learned bias on a CPU."""
    if (
        position_bias is not None
        and position_bias.requires_grad
        and query.dtype == position_bias.dtype
        and _recomputes(query)
    ):
        if attention_mask is None and module.is_causal:
            everything_LS = torch.ones(
                query.shape[2], key.shape[2], dtype=torch.bool, device=query.device
            )
            attention_mask = everything_LS.tril()[None, None]
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        bias_HLS = position_bias[0]
        if not dropout and _can_store_scores(query, key):
            out = _stored_attention(query, key, value, bias_HLS, attention_mask, scale)
        else:
            out = _RecomputedAttention.apply(
                query, key, value, bias_HLS, attention_mask, scale, dropout
            )
        return out.transpose(1, 2), None
    if attention_mask is not None and position_bias is not None and not position_bias.requires_grad:
        attention_mask = _bias_of_all_layers(position_bias, attention_mask)
        position_bias = None
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


def _bias_of_all_layers(position_bias: Tensor, mask: Tensor) -> Tensor:
    """`_masked_bias`, computed by the first layer of a model and kept with the bias.

    The layers share bias and mask, but transformers adds them in every layer. Use it only for a
    bias without gradients: a checkpointed layer would read a sum that was kept without them.

    Args:
      position_bias: (1, H, L, S).
      mask: as in `_masked_bias`.
    """
    kept_mask, kept = getattr(position_bias, MASKED_BIAS, (None, None))
    if kept is None or kept_mask is not mask:
        kept = _masked_bias(position_bias, mask)
        setattr(position_bias, MASKED_BIAS, (mask, kept))
    return kept


def _masked_bias(bias: Tensor, mask: Tensor) -> Tensor:
    """(B, H, L, S): the bias where the query sees the key, a very low number elsewhere.

    Args:
      bias: (H, L, S) or (1, H, L, S).
      mask: (B, 1, 1 or L, S), True where the query sees the key, or a number to add.
    """
    if mask.dtype == torch.bool:
        # half of the lowest number, so that the sum stays finite
        lowest = torch.finfo(bias.dtype).min / 2
        mask = torch.where(mask, bias.new_zeros(()), lowest)
    return bias + mask  # the mask is smaller than the result, so this is faster than one `where`


def _recomputes(query: Tensor) -> bool:
    """Whether PyTorch would store arrays of the size of the scores. A GPU's kernels do not."""
    return torch.is_grad_enabled() and query.device.type == "cpu"


# ---- attention whose scores are stored -----------------------------------------------------------


def _can_store_scores(query: Tensor, key: Tensor) -> bool:
    """Whether they are few, and in a precision in which they may be rounded before the softmax."""
    B, H, L, _ = query.shape
    few = B * H * L * key.shape[2] <= STORED_SCORES
    return few and query.dtype in (torch.float32, torch.float64)


def _stored_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias_HLS: Tensor,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """(B, H, L, D): softmax(scale q k^T + bias) v.

    Args:
      mask: (B or 1, 1, L or 1, S), True where the query sees the key.
    """
    if scale != 1:
        query = query * scale
    # in place, because backpropagation needs the probabilities only
    scores = (query @ key.mT).add_(bias_HLS)
    if mask is not None:
        # a sum has a cheaper gradient than `masked_fill`, and the mask is smaller than the scores
        lowest = torch.finfo(scores.dtype).min
        scores = scores.add_(torch.where(mask, scores.new_zeros(()), lowest))
    return scores.softmax(-1) @ value


# ---- attention whose scores are computed again ---------------------------------------------------


class _RecomputedAttention(torch.autograd.Function):
    """O = (P M) v with P = softmax(scale q k^T + bias), where M is the dropout of attention.

    M is 0 for dropped entries and 1 / (1 - dropout) for others. Of the arrays of size (B, H, L, S)
    only the zeros of M are stored, one byte each. PyTorch stores scores and probabilities too,
    which at prompts of 600 tokens is more than all the rest of a layer. The backward pass computes
    P again:

        dP = M (dO v^T)
        dS = P (dP - sum_s P dP)              gradient of the softmax
           = P (dP - sum_d dO O)              because sum_s P M (dO v^T) = dO . sum_s P M v = dO . O
        dq = scale dS k        dk = scale dS^T q        dv = (P M)^T dO        dbias = sum_B dS

    It works on one row of the batch at a time, and on as many of its heads as fit into a
    processor's cache.
    """

    @staticmethod
    def forward(
        ctx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias_HLS: Tensor | None,
        mask: Tensor | None,
        scale: float,
        dropout: float,
    ) -> Tensor:
        ctx.score_scale = scale
        ctx.dropout_scale = 1 / (1 - dropout)
        if dropout:
            keep_BHLS = dropout_mask((*query.shape[:3], key.shape[2]), dropout)
            scaled_value = value * ctx.dropout_scale
            out = _attend_with_dropout(query, key, scaled_value, bias_HLS, mask, keep_BHLS, scale)
        else:
            assert bias_HLS is not None, "use PyTorch's attention if there is no bias and dropout"
            keep_BHLS = None
            added = bias_HLS
            if mask is not None:
                added = _masked_bias(bias_HLS, mask)
            out = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=added, scale=scale
            )
        ctx.save_for_backward(query, key, value, bias_HLS, mask, keep_BHLS, out)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        query, key, value, bias_HLS, mask, keep_BHLS, out = ctx.saved_tensors
        # sum_d dO O, one number per query
        sum_BHL1 = (grad * out).sum(-1, keepdim=True)
        # the factor 1 / (1 - dropout) of M moves to dO; what is left of M is 0 or 1
        grad = (grad * ctx.dropout_scale).contiguous()
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()

        dq_blocks = []
        dk_blocks = []
        dv_blocks = []
        dbias_blocks: dict[int, Tensor] = {}  # by the first head of the block, summed over the rows
        # TRPO differentiates this function again: only fresh tensors are changed in place
        for b, heads in _head_blocks(query, key):
            q, k, v = query[b, heads], key[b, heads], value[b, heads]
            do = grad[b, heads]
            # P, computed again, and dP = M (dO v^T)
            p = _probabilities(q, k, _bias_of(bias_HLS, heads), _mask_of(mask, b), ctx.score_scale)
            dp = _matmul_transposed(do, v)
            p_after_dropout = p
            if keep_BHLS is not None:
                keep_HLS = keep_BHLS[b, heads].to(p.dtype)
                p_after_dropout = p * keep_HLS
                dp = dp.mul_(keep_HLS)
            # dS = P (dP - sum_d dO O)
            ds = p * dp.sub_(sum_BHL1[b, heads])
            # dq = scale dS k, dk = scale dS^T q, dv = (P M)^T dO
            dq_blocks.append(_matmul_transposed(ds, k.mT) * ctx.score_scale)
            dk_blocks.append(_matmul_transposed(q.mT, ds.mT).mT * ctx.score_scale)
            dv_blocks.append(_matmul_transposed(do.mT, p_after_dropout.mT).mT)
            # dbias = sum_B dS: add up the rows of the batch, block of heads by block of heads
            if bias_HLS is not None:
                earlier_rows = dbias_blocks.get(heads.start)
                dbias_blocks[heads.start] = ds if earlier_rows is None else earlier_rows + ds

        B_and_H = query.shape[:2]
        dq = torch.cat(dq_blocks).unflatten(0, B_and_H)
        dk = torch.cat(dk_blocks).unflatten(0, B_and_H)
        dv = torch.cat(dv_blocks).unflatten(0, B_and_H)
        dbias_HLS = torch.cat(list(dbias_blocks.values())) if dbias_blocks else None
        return dq, dk, dv, dbias_HLS, None, None, None


def _attend_with_dropout(
    query: Tensor,
    key: Tensor,
    scaled_value: Tensor,
    bias_HLS: Tensor | None,
    mask: Tensor | None,
    keep_BHLS: Tensor,
    scale: float,
) -> Tensor:
    """(B, H, L, D): attention in which the probabilities with `keep_BHLS` = 0 are dropped."""
    query, key = query.contiguous(), key.contiguous()
    B, H, L, D = query.shape
    # stored as (B, L, H, D), the order in which it is read next, so that nothing has to be copied
    out = query.new_empty(B, L, H, D).transpose(1, 2)
    for b, heads in _head_blocks(query, key):
        p = _probabilities(
            query[b, heads], key[b, heads], _bias_of(bias_HLS, heads), _mask_of(mask, b), scale
        )
        p = p.mul_(keep_BHLS[b, heads].to(p.dtype))
        out[b, heads] = _matmul_transposed(p, scaled_value[b, heads].mT)
    return out


def _head_blocks(query: Tensor, key: Tensor) -> list[tuple[int, slice]]:
    """(row, heads) blocks of at most BLOCK_SIZE scores (or one head), which cover the batch."""
    B, H, L, _ = query.shape
    S = key.shape[2]
    heads_at_once = max(1, BLOCK_SIZE // (L * S))
    blocks = []
    for b in range(B):
        for h in range(0, H, heads_at_once):
            blocks.append((b, slice(h, h + heads_at_once)))
    return blocks


def _matmul_transposed(a_HLD: Tensor, b_HSD: Tensor) -> Tensor:
    """The product a b^T, (H, L, S)."""
    if len(a_HLD) == 1:
        return linear(a_HLD[0], b_HSD[0])[None]
    return a_HLD @ b_HSD.mT


def _probabilities(
    q_HLD: Tensor, k_HSD: Tensor, bias_HLS: Tensor | None, mask: Tensor | None, scale: float
) -> Tensor:
    """softmax(scale q k^T + bias) of some heads of one row, 0 where `mask` is False.

    Args:
      mask: (1, 1 or L, S), True where the query sees the key.
    """
    if scale != 1:
        q_HLD = q_HLD * scale
    scores_HLS = _matmul_transposed(q_HLD, k_HSD)
    if bias_HLS is not None:
        scores_HLS = scores_HLS.add_(bias_HLS)
    if mask is not None:
        scores_HLS = scores_HLS.masked_fill_(~mask, torch.finfo(scores_HLS.dtype).min)
    return scores_HLS.softmax(-1)


def _bias_of(bias_HLS: Tensor | None, heads: slice) -> Tensor | None:
    return None if bias_HLS is None else bias_HLS[heads]


def _mask_of(mask: Tensor | None, b: int) -> Tensor | None:
    """The mask of row b; a mask with one row applies to all."""
    return None if mask is None else mask[b % len(mask)]


# ---- T5's bias by distance -----------------------------------------------------------------------


def bias_by_distance(
    self,
    query_length: int,
    key_length: int,
    device: torch.device | None = None,
    past_seen_tokens: int = 0,
) -> Tensor:
    """`T5Attention.compute_bias`, (1, H, L, S).

    Entry (i, j) is the learned number for the distance j - (i + past_seen_tokens).
    """
    if device is None:
        device = self.relative_attention_bias.weight.device
    # every distance that occurs, once, from the last query's first key to the first's last key
    distances = torch.arange(1 - query_length, key_length, device=device) - past_seen_tokens
    buckets = self._relative_position_bucket(
        distances,
        bidirectional=not self.is_decoder,
        num_buckets=self.relative_attention_num_buckets,
        max_distance=self.relative_attention_max_distance,
    )
    bias_by_head = self.relative_attention_bias(buckets).T.contiguous()
    # window w holds the distances w + 1 - L, w + 2 - L, ...: it is the matrix's row L - 1 - w
    windows = bias_by_head.unfold(1, key_length, 1)
    # stored in the order of the scores, so that adding it to them is fast
    return windows.flip(1).contiguous()[None]


# ---- in a model ----------------------------------------------------------------------------------


def use_shared_attention(model: PreTrainedModel) -> PreTrainedModel:
    """The same encoder-decoder with the attention and the bias of this file.

    Two kinds stay as they are: a model that does not use PyTorch's attention (LongT5) has no
    attention function to replace, and UMT5 needs as many rows of encoder states as of queries.
    """
    if model.config._attn_implementation != "sdpa" or model.config.model_type == "umt5":
        return model
    model.set_attn_implementation(SHARED_PROMPT)
    for module in model.modules():
        if isinstance(module, T5Attention | MT5Attention) and module.has_relative_attention_bias:
            method = MethodType(bias_by_distance, module)
            module.compute_bias = method  # pyright: ignore[reportArgumentType]
    return model


AttentionInterface.register(SHARED_PROMPT, shared_prompt_attention)
AttentionMaskInterface.register(SHARED_PROMPT, sdpa_mask)

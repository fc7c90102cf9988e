"""Longformer's sliding-window attention as a few dense blocks of `scaled_dot_product_attention`.

transformers computes the window's scores chunk by chunk, copies them into rows of 2w + 1 columns
and keeps those for the backward pass. Here the queries are cut into blocks of w tokens, w being one
side of the window. A block reads the keys of itself and of its two neighbours; a bias closes the
corners more than w away (w = 4):

              keys
               block 0   block 1   block 2   block 3
    queries   +---------+---------+
    block 0   | # # # # | # . . . |                        #  read
              | # # # # | # # . . |                        .  closed by the bias
              | # # # # | # # # . |                           blank: never computed
              | # # # # | # # # # |
              +---------+---------+---------+
    block 1   | # # # # | # # # # | # . . . |
              | . # # # | # # # # | # # . . |
              | . . # # | # # # # | # # # . |
              | . . . # | # # # # | # # # # |
              +---------+---------+---------+---------+
    block 2             | # # # # | # # # # | # . . . |
                         ...

A block's keys are a slice: nothing is padded, the last block is as short as it falls, an input no
longer than w is one dense attention. torch's fused kernels keep no scores (the CPU's knows no
dropout: training with it there keeps each block's scores).

Global tokens (a sequence classifier's first token) are read by every query: their keys are put
before each block's keys, and closed within the band. What they read themselves is
`_global_outputs`.

Outputs and gradients are those of the stock model (tests/test_banded_attention.py), parameters and
saved checkpoints too.

Axes here: B rows, H heads, L tokens, D numbers per head, E = H * D, G global tokens of the row that
has most.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.longformer.modeling_longformer import (
    LongformerBaseModelOutputWithPooling,
    LongformerModel,
    LongformerSelfAttention,
)


def use_banded_attention(model: nn.Module) -> nn.Module:
    """The same model. Every Longformer in it computes its attention in blocks from now on."""
    banded = {LongformerModel: BandedLongformer, LongformerSelfAttention: BandedSelfAttention}
    for module in model.modules():
        if type(module) in banded:
            module.__class__ = banded[type(module)]  # the parameters stay where they are
    return model


def closing_bias(closed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where open, else the lowest finite number: a query with nothing to read gets no NaN."""
    bias = torch.zeros(closed.shape, dtype=dtype, device=closed.device)
    return bias.masked_fill_(closed, torch.finfo(dtype).min)


def banded_attention(
    query_BHLD: Tensor,
    key_BHLD: Tensor,
    value_BHLD: Tensor,
    window: int,
    closed_BL: Tensor,
    everywhere: tuple[Tensor, Tensor, Tensor] | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """(B, H, L, D): each query reads the keys that are at most `window` away and not closed.

    everywhere: key_BHGD, value_BHGD, closed_BG that every query reads besides.
    """
    L, dtype, device = query_BHLD.shape[2], query_BHLD.dtype, query_BHLD.device
    rows, columns = (
        torch.arange(window, device=device) + window,
        torch.arange(3 * window, device=device),
    )
    band_QK = closing_bias(
        (rows[:, None] - columns).abs() > window, dtype
    )  # a block amid its neighbours
    bias_BL = closing_bias(closed_BL, dtype)
    outputs = []
    for start in range(0, L, window):
        before = start - window  # where the block's first column would be
        stop, first, last = min(start + window, L), max(before, 0), min(start + 2 * window, L)
        bias_BQK = (
            band_QK[: stop - start, first - before : last - before] + bias_BL[:, None, first:last]
        )
        key, value = key_BHLD[:, :, first:last], value_BHLD[:, :, first:last]
        if everywhere is not None:
            key_BHGD, value_BHGD, closed_BG = everywhere
            key, value = torch.cat([key_BHGD, key], 2), torch.cat([value_BHGD, value], 2)
            bias_BG = closing_bias(closed_BG, dtype)
            bias_BQK = torch.cat([bias_BG[:, None].expand(-1, stop - start, -1), bias_BQK], 2)
        query = query_BHLD[:, :, start:stop]
        outputs.append(
            scaled_dot_product_attention(
                query, key, value, attn_mask=bias_BQK[:, None], dropout_p=dropout
            )
        )
    return torch.cat(outputs, 2)


class BandedSelfAttention(LongformerSelfAttention):
    """Longformer's self attention in blocks. `forward` takes what the stock encoder gives."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        is_index_masked: Tensor | None = None,
        is_index_global_attn: Tensor | None = None,
        is_global_attn: bool | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        if output_attentions:
            raise ValueError(
                "banded attention keeps no attention weights: leave output_attentions out"
            )
        padded_BL, global_BL, window = (
            is_index_masked,
            is_index_global_attn,
            self.one_sided_attn_window_size,
        )
        layers = (self.query, self.key, self.value)
        query, key, value = (self._heads(layer(hidden_states)) for layer in layers)
        dropout = self.dropout if self.training else 0.0
        everywhere = None
        if is_global_attn:
            most = int(global_BL.sum(1).max())
            index_BG = global_BL.int().argsort(dim=1, descending=True, stable=True)[:, :most]
            there_BG = global_BL.gather(1, index_BG)  # False where a row has fewer than `most`
            rows = torch.arange(len(index_BG), device=index_BG.device)[:, None]
            key_BHGD, value_BHGD = (
                x.transpose(1, 2)[rows, index_BG].transpose(1, 2) for x in (key, value)
            )
            everywhere = (key_BHGD, value_BHGD, ~there_BG)
        output = banded_attention(
            query, key, value, window, padded_BL | global_BL, everywhere, dropout
        )
        output_BLE = output.transpose(1, 2).flatten(2).masked_fill(padded_BL[:, :, None], 0.0)
        if is_global_attn:
            own_BGE = self._global_outputs(
                hidden_states, hidden_states[rows, index_BG], padded_BL, dropout
            )
            output_BLE[global_BL] = own_BGE[there_BG].to(output_BLE.dtype)
        return (output_BLE,)

    def _global_outputs(
        self, hidden_BLE: Tensor, global_BGE: Tensor, padded_BL: Tensor, dropout: float
    ) -> Tensor:
        """(B, G, E): what global tokens read from all tokens, through projections of their own.

        Global tokens are few, so not every token's key and value W x + b is computed, which would
        be an eighth of a sequence classifier's time: q (W x + b) = (q W) x + q b, sum p (W x + b) =
        W (sum p x) + b (sum p).
        """
        heads = (self.num_heads, self.head_dim)
        layers = (self.key_global, self.value_global)
        key_HDE, value_HDE = (layer.weight.unflatten(0, heads) for layer in layers)
        key_HD, value_HD = (layer.bias.unflatten(0, heads) for layer in layers)
        query_BHGD = self._heads(self.query_global(global_BGE)) / math.sqrt(self.head_dim)
        query_BHGE = query_BHGD @ key_HDE
        # N = H * G: as (B, 1, E, L) `hidden_BLE` would be copied for every head
        scores_BNL = query_BHGE.flatten(1, 2) @ hidden_BLE.mT
        scores_BNL = scores_BNL + (query_BHGD @ key_HD[:, :, None]).flatten(1, 2)
        scores_BNL = scores_BNL + closing_bias(padded_BL, scores_BNL.dtype)[:, None]
        shares_BNL = nn.functional.dropout(torch.softmax(scores_BNL, -1), dropout)
        mean_BHGE = (shares_BNL @ hidden_BLE).view_as(query_BHGE)
        sums_BHG1 = shares_BNL.sum(-1).view(query_BHGE.shape[:3])[..., None]
        output_BHGD = mean_BHGE @ value_HDE.mT + sums_BHG1 * value_HD[:, None]
        return output_BHGD.transpose(1, 2).flatten(2)

    def _heads(self, x_BLE: Tensor) -> Tensor:
        """(B, H, L, D)"""
        return x_BLE.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)


class BandedLongformer(LongformerModel):
    """Without stock's padding to a multiple of the window and its (B, 1, L, L) mask, of which it
    reads a row.
    """

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: bool | None,
    ) -> tuple | LongformerBaseModelOutputWithPooling:
        """options: output_attentions, output_hidden_states, return_dict; the config's where
        None.
        """
        names = ("output_attentions", "output_hidden_states", "return_dict")
        options = {
            name: getattr(self.config, name) if options.get(name) is None else options[name]
            for name in names
        }
        hidden_BLE = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        reads_BL = (
            hidden_BLE.new_ones(hidden_BLE.shape[:2]) if attention_mask is None else attention_mask
        )
        if global_attention_mask is not None:
            reads_BL = reads_BL * (global_attention_mask + 1)
        # the encoder reads the sign: padding negative, local 0, global positive
        outputs = self.encoder(hidden_BLE, attention_mask=reads_BL - 1, **options)
        pooled = None if self.pooler is None else self.pooler(outputs[0])
        if not options["return_dict"]:
            return (outputs[0], pooled, *outputs[1:])
        return LongformerBaseModelOutputWithPooling(outputs[0], pooled, outputs.hidden_states)

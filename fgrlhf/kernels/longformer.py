"""Longformer's sliding-window attention as a few dense blocks of `scaled_dot_product_attention`.

transformers computes the window's scores chunk by chunk, copies them into rows of 2w + 1 columns
and stores those for the backward pass. Here the queries are split into blocks of w tokens, where w
is one side of the window. A block reads its own keys and those of the blocks before and after it. A
mask removes the corners, which are more than w tokens away (w = 4):

              keys
               block 0   block 1   block 2   block 3
    queries   +---------+---------+
    block 0   | # # # # | # . . . |                        #  read
              | # # # # | # # . . |                        .  computed, then masked
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

The keys of a block are a slice, so nothing is padded: the last block is simply shorter, and an
input no longer than w is one dense attention. PyTorch's fused kernels store no scores, except on a
CPU with dropout: its fused kernel has no dropout, so training there stores each block's scores.

Every query also reads the global tokens (the first token in a sequence classifier). Their keys are
put before each block's keys, and masked inside the window so that they are not read twice. The
outputs of the global tokens are computed by `_global_outputs`.

Outputs and gradients equal those of the stock model (tests/test_banded_attention.py). Parameters
and saved checkpoints are the same.

Axes here: B rows, H heads, L tokens, D numbers per head, E = H * D, G global tokens of the row that
has most, Q queries of a block, K keys of a block.
"""

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.longformer.modeling_longformer import (
    LongformerBaseModelOutputWithPooling,
    LongformerModel,
    LongformerSelfAttention,
)

ModelT = TypeVar("ModelT", bound=nn.Module)


def use_banded_attention(model: ModelT) -> ModelT:
    """The same model, in which every Longformer computes its attention in blocks."""
    banded_class = {LongformerModel: BandedLongformer, LongformerSelfAttention: BandedSelfAttention}
    for module in model.modules():
        if type(module) in banded_class:
            module.__class__ = banded_class[type(module)]  # the parameters stay where they are
    return model


def mask_to_bias(masked: Tensor, dtype: torch.dtype) -> Tensor:
    """The lowest finite number where `masked` is True, else 0.

    With a finite number, a query whose keys are all masked does not become NaN.
    """
    bias = torch.zeros(masked.shape, dtype=dtype, device=masked.device)
    return bias.masked_fill_(masked, torch.finfo(dtype).min)


def banded_attention(
    query_BHLD: Tensor,
    key_BHLD: Tensor,
    value_BHLD: Tensor,
    window: int,
    masked_BL: Tensor,
    global_kv: tuple[Tensor, Tensor, Tensor] | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """(B, H, L, D): each query reads the keys that are at most `window` away and not masked.

    Args:
      window: tokens on one side.
      masked_BL: True for keys that nobody reads.
      global_kv: (key_BHGD, value_BHGD, masked_BG) that every query reads too.
      dropout: probability that an attention weight is dropped.
    """
    L = query_BHLD.shape[2]
    dtype = query_BHLD.dtype
    device = query_BHLD.device

    # Bias of a block that has a whole block before and after it: column k of the 3w columns is
    # `window` tokens before row k.
    rows_Q = torch.arange(window, device=device) + window
    columns_K = torch.arange(3 * window, device=device)
    distance_QK = (rows_Q[:, None] - columns_K).abs()
    band_QK = mask_to_bias(distance_QK > window, dtype)
    bias_BL = mask_to_bias(masked_BL, dtype)

    # Blocks of `window` queries; the last one may be shorter.
    outputs = []
    for start in range(0, L, window):
        stop = min(start + window, L)
        # the block's keys are [first, last): at the ends of the input there are fewer than 3w
        first_column = start - window
        first = max(first_column, 0)
        last = min(start + 2 * window, L)
        key = key_BHLD[:, :, first:last]
        value = value_BHLD[:, :, first:last]
        # the part of the band that these rows and columns of the input have
        block_band_QK = band_QK[: stop - start, first - first_column : last - first_column]
        bias_BQK = block_band_QK + bias_BL[:, None, first:last]
        # global keys come first, without a band: every query reads them
        if global_kv is not None:
            global_key_BHGD, global_value_BHGD, masked_BG = global_kv
            key = torch.cat([global_key_BHGD, key], 2)
            value = torch.cat([global_value_BHGD, value], 2)
            bias_BG = mask_to_bias(masked_BG, dtype)
            bias_BQG = bias_BG[:, None].expand(-1, stop - start, -1)
            bias_BQK = torch.cat([bias_BQG, bias_BQK], 2)
        output = scaled_dot_product_attention(
            query_BHLD[:, :, start:stop],
            key,
            value,
            attn_mask=bias_BQK[:, None],
            dropout_p=dropout,
        )
        outputs.append(output)
    return torch.cat(outputs, 2)


class BandedSelfAttention(LongformerSelfAttention):
    """Longformer's self-attention in blocks, with the arguments of the stock class."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        is_index_masked: Tensor,
        is_index_global_attn: Tensor,
        is_global_attn: bool,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        if output_attentions:
            raise ValueError(
                "banded attention stores no attention weights: leave output_attentions out, or"
                " load the model with model.kernels=off"
            )
        padded_BL = is_index_masked
        global_BL = is_index_global_attn
        query_BHLD = self._heads(self.query(hidden_states))
        key_BHLD = self._heads(self.key(hidden_states))
        value_BHLD = self._heads(self.value(hidden_states))
        dropout = self.dropout if self.training else 0.0
        masked_BL = padded_BL | global_BL  # global keys are read through `global_kv`
        window = self.one_sided_attn_window_size

        if not is_global_attn:
            output_BHLD = banded_attention(
                query_BHLD, key_BHLD, value_BHLD, window, masked_BL, None, dropout
            )
            return (self._joined(output_BHLD, padded_BL),)

        # positions of the global tokens, and whether they exist (a row may have fewer than G)
        G = int(global_BL.sum(1).max())
        index_BG = global_BL.int().argsort(dim=1, descending=True, stable=True)[:, :G]
        exists_BG = global_BL.gather(1, index_BG)
        rows_B1 = torch.arange(len(index_BG), device=index_BG.device)[:, None]
        global_key_BHGD = key_BHLD.transpose(1, 2)[rows_B1, index_BG].transpose(1, 2)
        global_value_BHGD = value_BHLD.transpose(1, 2)[rows_B1, index_BG].transpose(1, 2)
        global_kv = (global_key_BHGD, global_value_BHGD, ~exists_BG)
        output_BHLD = banded_attention(
            query_BHLD, key_BHLD, value_BHLD, window, masked_BL, global_kv, dropout
        )
        output_BLE = self._joined(output_BHLD, padded_BL)
        global_output_BGE = self._global_outputs(
            hidden_states, hidden_states[rows_B1, index_BG], padded_BL, dropout
        )
        # global tokens read the whole input instead of a window, with projections of their own
        output_BLE[global_BL] = global_output_BGE[exists_BG].to(output_BLE.dtype)
        return (output_BLE,)

    def _global_outputs(
        self, hidden_BLE: Tensor, global_BGE: Tensor, padded_BL: Tensor, dropout: float
    ) -> Tensor:
        """(B, G, E): outputs of the global tokens, which read all tokens by their own projections.

        There are few global tokens, so the key and the value W x + b of every token are not
        computed, which would take an eighth of a sequence classifier's time:

            scores     q (W x + b)    = (q W) x + q b
            outputs    sum p (W x + b) = W (sum p x) + b (sum p)

        Layers with adapters have more terms, and are called.
        """
        query_BHGD = self._heads(self.query_global(global_BGE)) / math.sqrt(self.head_dim)
        are_plain = all(isinstance(x, nn.Linear) for x in (self.key_global, self.value_global))
        if not are_plain:
            key_BHLD = self._heads(self.key_global(hidden_BLE))
            value_BHLD = self._heads(self.value_global(hidden_BLE))
            scores_BHGL = query_BHGD @ key_BHLD.mT
            scores_BHGL = scores_BHGL + mask_to_bias(padded_BL, scores_BHGL.dtype)[:, None, None]
            probs_BHGL = nn.functional.dropout(torch.softmax(scores_BHGL, -1), dropout)
            return (probs_BHGL @ value_BHLD).transpose(1, 2).flatten(2)

        heads = (self.num_heads, self.head_dim)
        key_HDE = self.key_global.weight.unflatten(0, heads)
        key_HD = self.key_global.bias.unflatten(0, heads)
        value_HDE = self.value_global.weight.unflatten(0, heads)
        value_HD = self.value_global.bias.unflatten(0, heads)

        # scores: (q W) x + q b. N = H * G, because with a head axis `hidden_BLE` would be copied
        # for every head.
        query_BHGE = query_BHGD @ key_HDE
        scores_BNL = query_BHGE.flatten(1, 2) @ hidden_BLE.mT
        scores_BNL = scores_BNL + (query_BHGD @ key_HD[:, :, None]).flatten(1, 2)
        scores_BNL = scores_BNL + mask_to_bias(padded_BL, scores_BNL.dtype)[:, None]
        probs_BNL = nn.functional.dropout(torch.softmax(scores_BNL, -1), dropout)

        # outputs: W (sum p x) + b (sum p)
        # with dropout, sum p is not 1, so it is computed and not assumed
        mean_BHGE = (probs_BNL @ hidden_BLE).view_as(query_BHGE)
        sum_BHG1 = probs_BNL.sum(-1).view(query_BHGE.shape[:3])[..., None]
        output_BHGD = mean_BHGE @ value_HDE.mT + sum_BHG1 * value_HD[:, None]
        return output_BHGD.transpose(1, 2).flatten(2)

    def _heads(self, x_BLE: Tensor) -> Tensor:
        """Split the last axis into heads: (B, L, E) -> (B, H, L, D)."""
        return x_BLE.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _joined(self, x_BHLD: Tensor, padded_BL: Tensor) -> Tensor:
        """Join the heads: (B, H, L, D) -> (B, L, E), 0 on padding."""
        return x_BHLD.transpose(1, 2).flatten(2).masked_fill(padded_BL[:, :, None], 0.0)


class BandedLongformer(LongformerModel):
    """The stock model without padding to a multiple of the window and without a (B, 1, L, L) mask.

    The stock encoder reads one row of that mask only.
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
        """As the stock model.

        Args:
          options: output_attentions, output_hidden_states, return_dict; None: the config's value.
        """
        encoder_options = {}
        for name in ("output_attentions", "output_hidden_states", "return_dict"):
            value = options.get(name)
            encoder_options[name] = getattr(self.config, name) if value is None else value
        hidden_BLE = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        # 0 padding, 1 local, 2 global
        kind_BL = attention_mask
        if kind_BL is None:
            kind_BL = hidden_BLE.new_ones(hidden_BLE.shape[:2])
        if global_attention_mask is not None:
            kind_BL = kind_BL * (global_attention_mask + 1)
        # the encoder looks at the sign: padding negative, local 0, global positive
        outputs = self.encoder(hidden_BLE, attention_mask=kind_BL - 1, **encoder_options)
        pooled = None if self.pooler is None else self.pooler(outputs[0])
        if not encoder_options["return_dict"]:
            return (outputs[0], pooled, *outputs[1:])
        return LongformerBaseModelOutputWithPooling(outputs[0], pooled, outputs.hidden_states)

"""Decoding of decoder-only models: K responses read one copy of their prompt's keys and values.

transformers keeps one row of keys and values per response. The prompt's are therefore copied K
times, all rows are copied again for every new token, and with grouped queries they are repeated for
every query head. At a prompt of 700 tokens these copies take most of a decoding step. Here

- the keys and values of a prompt are stored once and read once for its K responses;
- those of the responses are written into a tensor that is allocated once;
- the Q query heads that share a key-value head are Q queries of that head.

So a step attends in two parts. With N = K * Q queries per prompt and key-value head,

    scores = [scale q K_prompt^T, scale q K_response^T]          (N, P) and (Q, T) per response
    out = softmax(scores) [V_prompt; V_response]

In bf16 on a CPU, each part goes through PyTorch's attention, which copies less. It also returns the
logsumexp z of a part's scores, which joins the outputs:

    out = w out_prompt + (1 - w) out_response          w = sigmoid(z_prompt - z_response)

A cache's `update` normally returns keys and values for the attention function. That of
`SharedCache` returns two `LayerCache` objects instead, which `shared_cache_attention` understands.

Axes here: G prompts, K responses per prompt, B = G K, H key-value heads, Q query heads per
key-value head, P prompt tokens, T response tokens, D numbers per head.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from fgrlhf.kernels.shared_rows import RaggedRows, SharedRows

SHARED_CACHE = "shared_cache"
UNSEEN = -1e9  # added to the score of a key that is not seen


class Slot:
    """The position in the cache of the token being decoded, as a tensor on the device.

    With a slot, every step attends to all T places, and a mask hides those not written yet. So all
    steps run the same operations on the same shapes and can be recorded (models/recorded_steps.py).

    Args:
      T: the number of places.
      taken: how many of them are taken already.

    Attributes:
      index_1: the place of the token that is being computed.
      unwritten_T: True for the places after it.
    """

    def __init__(self, T: int, device: torch.device, taken: int = 0):
        self.places_T = torch.arange(T, device=device)
        # the first `advance` goes to the place `taken`, and brings the mask up to date
        self.index_1 = torch.full((1,), taken - 1, device=device)
        self.unwritten_T = torch.ones(T, dtype=torch.bool, device=device)

    def advance(self) -> None:
        """Go to the next place."""
        self.index_1 += 1
        torch.gt(self.places_T, self.index_1, out=self.unwritten_T)


@dataclass
class LayerCache:
    """Keys and values of one layer.

    Attributes:
      prompt_key_GHPD, prompt_value_GHPD: of the prompts.
      response_key_BHTD, response_value_BHTD: of the responses; T is the length limit.
      hidden_G11P: the prompts' padding, which is not seen; None if there is none.
      length: response tokens stored so far; not counted if there is a slot.
      slot: see `Slot`; it is shared by all layers.
    """

    prompt_key_GHPD: Tensor
    prompt_value_GHPD: Tensor
    response_key_BHTD: Tensor
    response_value_BHTD: Tensor
    hidden_G11P: Tensor | None
    length: int = 0
    slot: Slot | None = None

    def append(self, key_BH1D: Tensor, value_BH1D: Tensor) -> None:
        """Store the keys and values of one token per response."""
        if self.slot is not None:
            # `index_copy_` reads the place from a tensor, so a recorded step can be replayed;
            # unlike the assignment below, it converts no dtypes
            key_BH1D = key_BH1D.to(self.response_key_BHTD.dtype)
            value_BH1D = value_BH1D.to(self.response_value_BHTD.dtype)
            self.response_key_BHTD.index_copy_(2, self.slot.index_1, key_BH1D)
            self.response_value_BHTD.index_copy_(2, self.slot.index_1, value_BH1D)
            return
        self.response_key_BHTD[:, :, self.length] = key_BH1D[:, :, 0]
        self.response_value_BHTD[:, :, self.length] = value_BH1D[:, :, 0]
        self.length += 1

    def keep(self, groups: Tensor, rows: Tensor, hidden_G11P: Tensor | None) -> None:
        """Keep only these prompts and responses. Not with a slot, where `length` is not counted."""
        assert self.slot is None
        # drop prompts whose responses have all ended; without one, nothing is copied
        if len(groups) < len(self.prompt_key_GHPD):
            self.prompt_key_GHPD = self.prompt_key_GHPD[groups]
            self.prompt_value_GHPD = self.prompt_value_GHPD[groups]
        self.response_key_BHTD = self._kept_rows(self.response_key_BHTD, rows)
        self.response_value_BHTD = self._kept_rows(self.response_value_BHTD, rows)
        self.hidden_G11P = hidden_G11P

    def _kept_rows(self, stored_BHTD: Tensor, rows: Tensor) -> Tensor:
        kept_BHTD = stored_BHTD.new_empty(len(rows), *stored_BHTD.shape[1:])
        # what lies after `length` has not been written, so it is not copied
        kept_BHTD[:, :, : self.length] = stored_BHTD[rows, :, : self.length]
        return kept_BHTD


class SharedCache(Cache):
    """Keys and values of G prompts and their G * K responses; the K of a prompt are consecutive.

    Args:
      prompt_cache: a cache filled with the prompts.
      prompt_mask_GP: 1 on real tokens of the prompts.
      num_samples: responses per prompt, K.
      max_new_tokens: length limit of the responses.
      slot: for steps that are recorded; `keep` is not called then.
    """

    def __init__(
        self,
        prompt_cache: Cache,
        prompt_mask_GP: Tensor,
        num_samples: int,
        max_new_tokens: int,
        slot: Slot | None = None,
    ):
        super().__init__(layers=[])
        self.num_samples = num_samples
        self.prompt_mask_GP = prompt_mask_GP
        hidden_G11P = _padding(prompt_mask_GP)
        # a step with a slot multiplies unwritten values by 0, so they must be numbers
        allocate = Tensor.new_empty if slot is None else Tensor.new_zeros
        self.layer_caches = []
        layers: Any = prompt_cache.layers  # every layer is one of attention
        for layer in layers:
            key_GHPD, value_GHPD = _for_products(layer.keys), _for_products(layer.values)
            G, H, _, D_key = key_GHPD.shape
            B = G * num_samples
            self.layer_caches.append(
                LayerCache(
                    key_GHPD,
                    value_GHPD,
                    allocate(key_GHPD, (B, H, max_new_tokens, D_key)),
                    allocate(value_GHPD, (B, H, max_new_tokens, value_GHPD.shape[-1])),
                    hidden_G11P,
                    slot=slot,
                )
            )

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs):
        """Store one token per response; return the layer's cache in place of keys and values."""
        layer = self.layer_caches[layer_idx]
        layer.append(key_states, value_states)
        return layer, layer

    def keep(self, rows: Tensor) -> None:
        """Keep only these responses: the same number for each prompt that is kept."""
        # the K responses of a prompt are consecutive: row // K is its prompt
        groups = (rows // self.num_samples).unique_consecutive()
        self.num_samples = len(rows) // len(groups)
        self.prompt_mask_GP = self.prompt_mask_GP[groups]
        hidden_G11P = _padding(self.prompt_mask_GP)
        for layer in self.layer_caches:
            layer.keep(groups, rows, hidden_G11P)


def _for_products(x: Tensor) -> Tensor:
    """`x` in the dtype in which autocast would multiply it, so that no step has to convert it."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _padding(prompt_mask_GP: Tensor) -> Tensor | None:
    if bool(prompt_mask_GP.all()):
        return None
    return ~prompt_mask_GP.bool()[:, None, None]


def shared_cache_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor | LayerCache,
    value: Tensor | LayerCache,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    shared_rows: SharedRows | RaggedRows | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """The attention function for transformers: decoding with a `SharedCache`, and shared rows.

    Every other call goes to PyTorch's attention.

    Args:
      shared_rows: the layout of the rows, an argument of the model's forward pass; None: every row
        has a single text.

    Returns:
      (outputs (B, L, heads, D), None), as transformers expects it.
    """
    # the prompts' own pass, training and scoring have ordinary keys and values
    if not isinstance(key, LayerCache):
        assert isinstance(value, Tensor)
        if shared_rows is not None:
            return shared_rows.attend(query, key, value, dropout, scaling), None
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # (B, heads, 1, D) -> (B, 1, heads, D)
    return attend_to_shared_cache(query[:, :, 0] * scale, key)[:, None], None


def attend_to_shared_cache(query_BND: Tensor, cache: LayerCache) -> Tensor:
    """Attention of one query token per response: out_BND, N = H * Q query heads.

    Args:
      query_BND: scaled queries. Heads h Q .. h Q + Q - 1 read key-value head h.
      cache: keys and values, those of the query tokens included.
    """
    # once, otherwise autocast would convert queries and probabilities for each product
    query_BND = query_BND.to(cache.prompt_key_GHPD.dtype)
    if _can_attend_in_parts(query_BND, cache):
        return _attend_in_parts(query_BND, cache)
    B, N, D = query_BND.shape
    G, H, P, _ = cache.prompt_key_GHPD.shape
    K = B // G
    Q = N // H
    t = cache.length if cache.slot is None else cache.response_key_BHTD.shape[2]
    response_key = cache.response_key_BHTD[:, :, :t].flatten(0, 1)
    response_value = cache.response_value_BHTD[:, :, :t].flatten(0, 1)

    # all queries of a prompt that read the same key-value head, one below the other
    query_of_prompt = query_BND.view(G, K, H, Q, D).transpose(1, 2).reshape(G * H, K * Q, D)
    prompt_scores = query_of_prompt @ cache.prompt_key_GHPD.flatten(0, 1).mT
    if cache.hidden_G11P is not None:
        prompt_scores = prompt_scores.view(G, H, K * Q, P)
        prompt_scores = prompt_scores.masked_fill_(cache.hidden_G11P, -torch.inf).flatten(0, 1)
    # a response's keys are its own: one product per response and key-value head
    response_scores = query_BND.reshape(B * H, Q, D) @ response_key.mT
    if cache.slot is not None:
        response_scores = response_scores.masked_fill_(cache.slot.unwritten_T, -torch.inf)

    # softmax over both parts; in fp32, as PyTorch's attention does in half precision
    response_scores = _by_prompt(response_scores, G, K, H, Q)
    probs = torch.cat([prompt_scores, response_scores], -1).softmax(-1, dtype=torch.float32)
    prompt_probs, response_probs = probs.to(query_BND.dtype).split([P, t], -1)

    # the weighted sum splits like the scores: the prompt's values once, then each response's own
    prompt_out = prompt_probs @ cache.prompt_value_GHPD.flatten(0, 1)
    response_out = _by_response(response_probs, G, K, H, Q) @ response_value
    out = _by_response(prompt_out, G, K, H, Q) + response_out
    return out.view(B, N, out.shape[-1])


def _can_attend_in_parts(query_BND: Tensor, cache: LayerCache) -> bool:
    """Whether PyTorch's attention can compute the parts; in fp32 it would sum in another order."""
    on_cpu = query_BND.device.type == "cpu" and cache.slot is None
    one_width = query_BND.shape[-1] == cache.prompt_value_GHPD.shape[-1]
    return query_BND.dtype == torch.bfloat16 and on_cpu and one_width


def _attend_in_parts(query_BND: Tensor, cache: LayerCache) -> Tensor:
    """`attend_to_shared_cache` by PyTorch's attention, once for prompts and once for responses."""
    B, N, D = query_BND.shape
    G, H, P, _ = cache.prompt_key_GHPD.shape
    K, Q = B // G, N // H
    attend = partial(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, scale=1.0)
    hidden = None
    if cache.hidden_G11P is not None:
        # finite: the logsumexp of a prompt without tokens would not be -inf
        bias_G11P = query_BND.new_zeros(G, 1, 1, P).masked_fill_(cache.hidden_G11P, UNSEEN)
        hidden = bias_G11P.expand(-1, -1, K * Q, -1)
    prompt_out, prompt_z = attend(
        _by_prompt(query_BND, G, K, H, Q).view(G, H, K * Q, D),
        cache.prompt_key_GHPD,
        cache.prompt_value_GHPD,
        attn_mask=hidden,
    )
    response_out, response_z = attend(
        query_BND.view(B, H, Q, D),
        cache.response_key_BHTD[:, :, : cache.length],
        cache.response_value_BHTD[:, :, : cache.length],
    )
    # (B H, Q, D) and (B H, Q, 1), in the order of the responses
    prompt_out = _by_response(prompt_out, G, K, H, Q).float()
    prompt_z = _by_response(prompt_z, G, K, H, Q)
    response_out = response_out.flatten(0, 1).float()
    weight = torch.sigmoid(prompt_z - response_z.reshape(prompt_z.shape))
    out = torch.lerp(response_out, prompt_out, weight)
    return out.to(query_BND.dtype).view(B, N, D)


def _by_prompt(x: Tensor, G: int, K: int, H: int, Q: int) -> Tensor:
    """(G K H, Q, X) -> (G H, K Q, X)."""
    return x.view(G, K, H, Q, -1).transpose(1, 2).reshape(G * H, K * Q, -1)


def _by_response(x: Tensor, G: int, K: int, H: int, Q: int) -> Tensor:
    """(G H, K Q, X) -> (G K H, Q, X)."""
    return x.view(G, H, K, Q, -1).transpose(1, 2).reshape(G * K * H, Q, -1)


def use_shared_cache(model: PreTrainedModel) -> PreTrainedModel:
    """The same decoder-only model with an attention function that reads a `SharedCache`."""
    model.set_attn_implementation(SHARED_CACHE)
    return model


AttentionInterface.register(SHARED_CACHE, shared_cache_attention)
AttentionMaskInterface.register(SHARED_CACHE, sdpa_mask)

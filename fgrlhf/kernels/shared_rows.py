"""Attention of a row that holds a prompt and its K responses, without the pairs that are masked.

With one mask for the whole row (models/shared_rows.py), a row of P + K T tokens costs (P + K T)^2
pairs of tokens, although no response sees another. Here prompt and responses attend separately,

    prompt       its own P tokens, causally
    response k   the prompt's P tokens and its own T, causally

which takes P^2 / 2 + K T (P + T) pairs: half of them for 4 responses of 100 tokens to a prompt
of 700. The keys of the prompt are copied for each response: PyTorch's attention reads one tensor.

A GPU waits for Python to launch the operations of a small model, so `SharedRows` takes few: it
splits and joins tensors instead of slicing them, copies and repeats keys in one operation, and
converts its masks for the first layer only.

- `SharedRows`: prompts of P tokens with K responses of T tokens each, padding included. Policies.
- `RaggedRows`: every part has a length of its own, and padding is at the end of a row. Reward
  models, on a CPU.

Axes here: G rows, N query heads, H key-value heads, Q query heads per key-value head, L = P + K T
tokens, R = K T of responses, D numbers per head, B = G K.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class SharedRows:
    """Rows with a prompt of P tokens and K responses of T tokens each, padding included.

    Attributes:
      num_responses: K.
      prompt_sees_G1PP: which tokens a prompt's token sees; None: itself and all before it.
      response_sees_G1TS: which of the S = P + T tokens of the prompt and of its own response a
        response's token sees; one row (1, 1, T, S) if no prompt has padding.
      biases: dtype -> both masks as numbers that are added to scores; filled by `attend`.
    """

    num_responses: int
    prompt_sees_G1PP: Tensor | None
    response_sees_G1TS: Tensor
    biases: dict[torch.dtype, tuple[Tensor | None, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, prompt_mask_GP: Tensor, num_responses: int, T: int) -> "SharedRows":
        """The layout of rows whose prompts are padded on the left, and responses on the right.

        Args:
          prompt_mask_GP: 1 on real tokens of the prompts.
          T: tokens of each response, padding included.
        """
        G, P = prompt_mask_GP.shape
        device = prompt_mask_GP.device
        # padding of a response comes after its real tokens, which do not see it
        own_TT = torch.ones(T, T, dtype=torch.bool, device=device).tril()
        real_GP = prompt_mask_GP.bool()
        if bool(real_GP.all()):
            prompt_TP = torch.ones(T, P, dtype=torch.bool, device=device)
            return cls(num_responses, None, torch.cat([prompt_TP, own_TT], 1)[None, None])
        prompt_GTP = real_GP[:, None].expand(G, T, P)
        response_sees_GTS = torch.cat([prompt_GTP, own_TT.expand(G, T, T)], 2)
        causal_PP = torch.ones(P, P, dtype=torch.bool, device=device).tril()
        # padding is not seen, but has to see something itself
        itself_PP = torch.eye(P, dtype=torch.bool, device=device)
        prompt_sees_GPP = (causal_PP & real_GP[:, None]) | itself_PP
        return cls(num_responses, prompt_sees_GPP[:, None], response_sees_GTS[:, None])

    def attend(
        self,
        query_GNLD: Tensor,
        key_GHLD: Tensor,
        value_GHLD: Tensor,
        dropout: float,
        scale: float | None,
    ) -> Tensor:
        """out_GLND: prompt and responses of each row attend separately."""
        K = self.num_responses
        T, S = self.response_sees_G1TS.shape[2:]
        repeats = _repeats(query_GNLD, key_GHLD)
        # GPUs: copied heads with a mask are faster than grouped heads
        options = _options(query_GNLD, key_GHLD, repeats, dropout, scale)
        prompt_bias, response_bias = self._biases(query_GNLD.dtype)

        P = S - T
        query_GNPD, query_GNRD = _split(query_GNLD, P)
        key_GHPD, key_GHRD = _split(key_GHLD, P)
        value_GHPD, value_GHRD = _split(value_GHLD, P)

        # Without padding the prompt is causal, for which the kernels need no mask.
        prompt_out_GNPD = attention(
            query_GNPD,
            _repeated(key_GHPD, repeats),
            _repeated(value_GHPD, repeats),
            attn_mask=prompt_bias,
            is_causal=prompt_bias is None,
            **options,
        )
        # The K responses of a row become K rows, each with the prompt's keys before its own.
        response_out_BNTD = attention(
            query_GNRD.unflatten(2, (K, T)).transpose(1, 2).flatten(0, 1),
            _with_prompt(key_GHPD, key_GHRD, K, repeats),
            _with_prompt(value_GHPD, value_GHRD, K, repeats),
            attn_mask=response_bias,
            **options,
        )
        # back to the order of the row: the prompt, then the responses one after the other
        prompt_out_GPND = prompt_out_GNPD.transpose(1, 2)
        response_out_GKTND = response_out_BNTD.transpose(1, 2).unflatten(0, (-1, K))
        return torch.cat([prompt_out_GPND, response_out_GKTND.flatten(1, 2)], 1)

    def _biases(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor]:
        """What is added to the scores of prompts (None: they are causal) and of responses."""
        if dtype not in self.biases:
            prompt_bias = None
            if self.prompt_sees_G1PP is not None:
                prompt_bias = _bias(self.prompt_sees_G1PP, dtype)
            sees_B1TS = self.response_sees_G1TS
            if len(sees_B1TS) > 1:
                sees_B1TS = sees_B1TS.repeat_interleave(self.num_responses, 0)
            self.biases[dtype] = prompt_bias, _bias(sees_B1TS, dtype)
        return self.biases[dtype]


@dataclass(frozen=True)
class RaggedRows:
    """Rows with a prompt and responses of any lengths; padding is at the end of a row.

    Attributes:
      lengths: tokens of the prompt and of each response, for every row. A prompt may have none.
      sees_TS: of each pair of lengths (prompt, response), which of the S tokens of the prompt and
        of its own response a response's token sees.
    """

    lengths: tuple[tuple[int, ...], ...]
    sees_TS: dict[tuple[int, int], Tensor]

    @classmethod
    def of(cls, lengths: Sequence[Sequence[int]], device: torch.device) -> "RaggedRows":
        sees_TS = {}
        for prompt, *responses in lengths:
            for T in responses:
                # token t sees the prompt and its own response up to t: a triangle shifted by P
                all_TS = torch.ones(T, prompt + T, dtype=torch.bool, device=device)
                sees_TS[prompt, T] = all_TS.tril(prompt)
        return cls(tuple(tuple(parts) for parts in lengths), sees_TS)

    def attend(
        self,
        query_GNLD: Tensor,
        key_GHLD: Tensor,
        value_GHLD: Tensor,
        dropout: float,
        scale: float | None,
    ) -> Tensor:
        """out_GLND: prompt and responses of each row attend separately. Padding gets zeros."""
        options = _options(query_GNLD, key_GHLD, 1, dropout, scale)
        rows = []
        for g, lengths in enumerate(self.lengths):
            row = slice(g, g + 1)
            rows.append(
                self._attend_row(lengths, query_GNLD[row], key_GHLD[row], value_GHLD[row], options)
            )
        return torch.cat(rows).transpose(1, 2).contiguous()

    def _attend_row(
        self,
        lengths: Sequence[int],
        query_1NLD: Tensor,
        key_1HLD: Tensor,
        value_1HLD: Tensor,
        options: dict[str, Any],
    ) -> Tensor:
        """out_1NLD of one row."""
        P, *responses = lengths
        parts = []
        if P > 0:
            prompt_out_1NPD = attention(
                query_1NLD[:, :, :P],
                key_1HLD[:, :, :P],
                value_1HLD[:, :, :P],
                is_causal=True,
                **options,
            )
            parts.append(prompt_out_1NPD)
        # each response: the prompt's keys, then its own; nothing of the other responses
        begin = P
        for T in responses:
            own = slice(begin, begin + T)
            response_out_1NTD = attention(
                query_1NLD[:, :, own],
                torch.cat([key_1HLD[:, :, :P], key_1HLD[:, :, own]], 2),
                torch.cat([value_1HLD[:, :, :P], value_1HLD[:, :, own]], 2),
                attn_mask=self.sees_TS[P, T],
                **options,
            )
            parts.append(response_out_1NTD)
            begin += T
        # rows of a batch are as long as the longest one
        padding = query_1NLD.shape[2] - begin
        if padding > 0:
            N, D = query_1NLD.shape[1], value_1HLD.shape[3]
            parts.append(query_1NLD.new_zeros(1, N, padding, D))
        return torch.cat(parts, 2)


def _options(
    query_GNLD: Tensor,
    key_GHLD: Tensor,
    repeats: int,
    dropout: float,
    scale: float | None,
) -> dict[str, Any]:
    """Arguments of PyTorch's attention that are the same for prompts and responses."""
    return {
        "dropout_p": dropout,
        "scale": scale,
        "enable_gqa": key_GHLD.shape[1] * repeats != query_GNLD.shape[1],
    }


def _repeats(query_GNLD: Tensor, key_GHLD: Tensor) -> int:
    """How often keys and values are copied for the query heads that share them.

    On a GPU, a mask and grouped queries exclude fast kernels.
    """
    if query_GNLD.device.type == "cpu":
        return 1
    return query_GNLD.shape[1] // key_GHLD.shape[1]


def _bias(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `sees` is True, else -inf."""
    *rows, S = sees.shape
    # rows start at multiples of 16, otherwise a GPU's kernels would copy the bias in every layer
    aligned = torch.full((*rows, -(-S // 16) * 16), -torch.inf, dtype=dtype, device=sees.device)
    return aligned[..., :S].masked_fill_(sees, 0)


def _split(x_GHLD: Tensor, P: int) -> tuple[Tensor, Tensor]:
    """(x_GHPD, x_GHRD): the prompt's part and that of the responses."""
    # Split on the linear layer's own axes: the gradients of both parts are joined in its layout.
    x_GLHD = x_GHLD.transpose(1, 2)
    prompt_GPHD, responses_GRHD = x_GLHD.split([P, x_GLHD.shape[1] - P], 1)
    return prompt_GPHD.transpose(1, 2), responses_GRHD.transpose(1, 2)


def _repeated(x_GHPD: Tensor, repeats: int) -> Tensor:
    """(G, H * repeats, P, D): every head `repeats` times."""
    return x_GHPD.repeat_interleave(repeats, 1) if repeats > 1 else x_GHPD


def _with_prompt(prompt_GHPD: Tensor, responses_GHRD: Tensor, K: int, repeats: int) -> Tensor:
    """(B, H * repeats, P + T, D): the prompt's keys or values, then those of the response."""
    responses_GHKTD = responses_GHRD.unflatten(2, (K, -1))
    G, H, _, T, D = responses_GHKTD.shape
    P = prompt_GHPD.shape[2]
    # `expand` copies nothing, so `cat` makes the only copy
    prompt_GKHQPD = prompt_GHPD[:, None, :, None].expand(G, K, H, repeats, P, D)
    own_GKHQTD = responses_GHKTD.transpose(1, 2)[:, :, :, None].expand(G, K, H, repeats, T, D)
    both_GKHQSD = torch.cat([prompt_GKHQPD, own_GKHQTD], 4)
    return both_GKHQSD.flatten(2, 3).flatten(0, 1)


def attention(
    query_BNLD: Tensor,
    key_BHSD: Tensor,
    value_BHSD: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's attention, with the same result; on a CPU under autocast with another gradient.

    Arguments as in `torch.nn.functional.scaled_dot_product_attention`. A mask (1 or B, 1, L, S) has
    True or 0 for the keys that a query sees, and False or -inf for others.
    """
    inputs = (query_BNLD, key_BHSD, value_BHSD)
    if dropout_p or not _has_own_gradient(*inputs):
        return scaled_dot_product_attention(
            *inputs,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    from fgrlhf.kernels.half_attention import HalfAttention  # only updates in bf16 need it

    scale = query_BNLD.shape[-1] ** -0.5 if scale is None else scale
    return HalfAttention.apply(*(x.bfloat16() for x in inputs), attn_mask, is_causal, scale)


def _has_own_gradient(query_BNLD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor) -> bool:
    """Whether the gradient is that of half_attention.py, not PyTorch's."""
    if query_BNLD.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return False
    inputs = (query_BNLD, key_BHSD, value_BHSD)
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in inputs):
        return False
    # TRPO turns flash attention off, because it needs second derivatives
    has_flash = torch.backends.cuda.flash_sdp_enabled()
    is_bf16 = torch.get_autocast_dtype("cpu") == torch.bfloat16
    return has_flash and is_bf16 and query_BNLD.shape[-1] == value_BHSD.shape[-1]

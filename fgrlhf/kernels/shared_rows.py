"""Attention of a row that holds a prompt and its K responses, without the pairs that are masked.

With one mask for the whole row (models/shared_rows.py), a row of P + K T tokens costs (P + K T)^2
pairs of tokens, although no response sees another. Here prompt and responses attend separately,

    prompt       its own P tokens, causally
    response k   the prompt's P tokens and its own T, causally

which takes P^2 / 2 + K T (P + T) pairs: half of them for 4 responses of 100 tokens to a prompt
of 700. The keys of the prompt are copied for each response: PyTorch's attention reads one tensor.

- `SharedRows`: prompts of P tokens with K responses of T tokens each, padding included. Policies.
- `RaggedRows`: every part has a length of its own, and padding is at the end of a row. Reward
  models, on a CPU.

Axes here: G rows, N query heads, H key-value heads, L = P + K T tokens, D numbers per head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
    """

    num_responses: int
    prompt_sees_G1PP: Tensor | None
    response_sees_G1TS: Tensor

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
        """out_GNLD: prompt and responses of each row attend separately."""
        if query_GNLD.device.type != "cpu":  # where a mask and grouped queries exclude fast kernels
            queries_per_head = query_GNLD.shape[1] // key_GHLD.shape[1]
            key_GHLD = key_GHLD.repeat_interleave(queries_per_head, 1)
            value_GHLD = value_GHLD.repeat_interleave(queries_per_head, 1)
        K = self.num_responses
        T, S = self.response_sees_G1TS.shape[2:]
        P = S - T
        options = _options(query_GNLD, key_GHLD, dropout, scale)
        prompt_out_GNPD = scaled_dot_product_attention(
            query_GNLD[:, :, :P],
            key_GHLD[:, :, :P],
            value_GHLD[:, :, :P],
            attn_mask=self.prompt_sees_G1PP,
            is_causal=self.prompt_sees_G1PP is None,
            **options,
        )
        sees_B1TS = self.response_sees_G1TS
        if len(sees_B1TS) > 1:
            sees_B1TS = sees_B1TS.repeat_interleave(K, 0)
        response_out_BNTD = scaled_dot_product_attention(
            _responses(query_GNLD[:, :, P:], K),
            _with_prompt(key_GHLD, P, K),
            _with_prompt(value_GHLD, P, K),
            attn_mask=sees_B1TS,
            **options,
        )
        responses_GNRD = response_out_BNTD.unflatten(0, (-1, K)).transpose(1, 2).flatten(2, 3)
        return torch.cat([prompt_out_GNPD, responses_GNRD], 2)


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
        """out_GNLD: prompt and responses of each row attend separately. Padding gets zeros."""
        options = _options(query_GNLD, key_GHLD, dropout, scale)
        rows = []
        for g, lengths in enumerate(self.lengths):
            row = slice(g, g + 1)
            rows.append(
                self._attend_row(lengths, query_GNLD[row], key_GHLD[row], value_GHLD[row], options)
            )
        return torch.cat(rows)

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
            prompt_out_1NPD = scaled_dot_product_attention(
                query_1NLD[:, :, :P],
                key_1HLD[:, :, :P],
                value_1HLD[:, :, :P],
                is_causal=True,
                **options,
            )
            parts.append(prompt_out_1NPD)
        begin = P
        for T in responses:
            own = slice(begin, begin + T)
            response_out_1NTD = scaled_dot_product_attention(
                query_1NLD[:, :, own],
                torch.cat([key_1HLD[:, :, :P], key_1HLD[:, :, own]], 2),
                torch.cat([value_1HLD[:, :, :P], value_1HLD[:, :, own]], 2),
                attn_mask=self.sees_TS[P, T],
                **options,
            )
            parts.append(response_out_1NTD)
            begin += T
        padding = query_1NLD.shape[2] - begin
        if padding > 0:
            N, D = query_1NLD.shape[1], value_1HLD.shape[3]
            parts.append(query_1NLD.new_zeros(1, N, padding, D))
        return torch.cat(parts, 2)


def _options(
    query_GNLD: Tensor, key_GHLD: Tensor, dropout: float, scale: float | None
) -> dict[str, Any]:
    """Arguments of PyTorch's attention that are the same for prompts and responses."""
    return {
        "dropout_p": dropout,
        "scale": scale,
        "enable_gqa": query_GNLD.shape[1] != key_GHLD.shape[1],
    }


def _responses(x_GHRD: Tensor, K: int) -> Tensor:
    """(G, H, K T, D) -> (G K, H, T, D)."""
    return x_GHRD.unflatten(2, (K, -1)).transpose(1, 2).flatten(0, 1)


def _with_prompt(x_GHLD: Tensor, P: int, K: int) -> Tensor:
    """(G K, H, P + T, D): the prompt's part, then that of each response."""
    prompt_BHPD = x_GHLD[:, :, :P].repeat_interleave(K, 0)
    return torch.cat([prompt_BHPD, _responses(x_GHLD[:, :, P:], K)], 2)

"""Drawing responses token by token, K of them per prompt, each prompt read once."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache

from fgrlhf.types import Response


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn. `top_k=0` and `top_p=None` keep the whole vocabulary; greedy without
    `do_sample`.
    """

    max_new_tokens: int
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float | None = None
    num_beams: int = 1


def uniform_rows(row_seeds: Sequence[int], length: int) -> Tensor:
    """uniform_BT in [0, 1): row b is a pure function of `row_seeds[b]`."""
    rows = [torch.rand(length, generator=torch.Generator().manual_seed(seed)) for seed in row_seeds]
    return torch.stack(rows) if rows else torch.zeros(0, length)


def draw(logits_BV: Tensor, sampling: Sampling, uniform_B: Tensor) -> Tensor:
    """ids_B: the token, most probable first, at which the cumulated probability exceeds
    `uniform_B`.

    So a sample depends on its own number alone, not on which rows share its batch, its process or
    its device's random
    state: data-parallel runs draw what one process draws, and a resumed run what an uninterrupted
      one does.
    """
    if not sampling.do_sample:
        return logits_BV.argmax(-1)
    k = min(sampling.top_k or logits_BV.shape[-1], logits_BV.shape[-1])
    top_BK, ids_BK = torch.topk(logits_BV.float() / sampling.temperature, k, dim=-1)
    probs_BK = torch.softmax(top_BK, -1)
    cumulated_BK = probs_BK.cumsum(-1)
    if sampling.top_p is not None:  # keep the smallest set whose probability reaches top_p
        kept_BK = cumulated_BK - probs_BK < sampling.top_p
        cumulated_BK = torch.where(kept_BK, cumulated_BK, cumulated_BK.new_zeros(()))
    target_B1 = uniform_B[:, None].to(cumulated_BK) * cumulated_BK.amax(-1, keepdim=True)
    choice_B1 = (cumulated_BK > target_B1).int().argmax(-1, keepdim=True)
    return ids_BK.gather(-1, choice_B1)[:, 0]


def response_mask(response_ids_BT: Tensor, eos_ids: Sequence[int]) -> Tensor:
    """1 up to and including each row's first end-of-sequence token; all ones where there is none
    (cut at the limit).
    """
    is_eos_BT = torch.isin(
        response_ids_BT, torch.tensor(list(eos_ids), device=response_ids_BT.device)
    )
    return (is_eos_BT.int().cumsum(1) - is_eos_BT.int() == 0).long()


class EncoderDecoderSteps:
    """Hidden states of the next token, step by step. Keys and values of a prompt serve its K
    responses (attention.py).
    """

    def __init__(
        self, model: nn.Module, encoded_GPD: Tensor, prompt_mask_GP: Tensor, num_samples: int
    ):
        self.decoder, self.start = model.get_decoder(), model.config.decoder_start_token_id
        self.encoded_GPD, self.prompt_mask_GP, self.num_samples = (
            encoded_GPD,
            prompt_mask_GP,
            num_samples,
        )
        self.cache = EncoderDecoderCache(DynamicCache(), DynamicCache())

    def first(self) -> Tensor:
        """hidden_BD from which the first token is predicted."""
        return self.next(
            self.prompt_mask_GP.new_full((len(self.encoded_GPD) * self.num_samples,), self.start)
        )

    def next(self, ids_B: Tensor) -> Tensor:
        """hidden_BD from which the token after `ids_B` is predicted."""
        return self.decoder(
            input_ids=ids_B[:, None],
            encoder_hidden_states=self.encoded_GPD,
            encoder_attention_mask=self.prompt_mask_GP,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, -1]

    def keepable(self, live_B: Tensor) -> Tensor:
        """Rows that must stay: all K responses of every prompt that has a live one."""
        return (
            live_B.view(-1, self.num_samples)
            .any(1)
            .repeat_interleave(self.num_samples)
            .nonzero()[:, 0]
        )

    def keep(self, rows: Tensor) -> None:
        """Forget all other rows."""
        groups = rows[:: self.num_samples] // self.num_samples
        self.encoded_GPD, self.prompt_mask_GP = (
            self.encoded_GPD[groups],
            self.prompt_mask_GP[groups],
        )
        self.cache.self_attention_cache.batch_select_indices(rows)
        self.cache.cross_attention_cache.batch_select_indices(groups)


@cache
def _arguments(trunk: type[nn.Module]) -> frozenset[str]:
    return frozenset(inspect.signature(trunk.forward).parameters)


def takes_positions(model: nn.Module) -> bool:
    """Whether a decoder-only model is told the positions of its tokens; one with ALiBi finds
    distances in the mask.
    """
    return "position_ids" in _arguments(type(model.base_model))


def positions_of(model: nn.Module, position_ids: Tensor) -> dict[str, Tensor]:
    """The argument of the model's forward pass."""
    return {"position_ids": position_ids} if takes_positions(model) else {}


class CausalSteps:
    """The same for a decoder-only model: the prompt runs through it once, its cache is then copied
    for K responses.
    """

    def __init__(
        self, model: nn.Module, prompt_ids_GP: Tensor, prompt_mask_GP: Tensor, num_samples: int
    ):
        self.model, self.trunk, self.num_samples = model, model.base_model, num_samples
        self.prompt_ids_GP, self.mask_BL = prompt_ids_GP, prompt_mask_GP
        self.cache = DynamicCache(config=model.config)

    def first(self) -> Tensor:
        positions = (self.mask_BL.cumsum(1) - 1).clamp(min=0)  # padding does not count as distance
        hidden_GD = self.trunk(
            input_ids=self.prompt_ids_GP,
            attention_mask=self.mask_BL,
            **positions_of(self.model, positions),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        self.cache.batch_repeat_interleave(self.num_samples)
        self.mask_BL = self.mask_BL.repeat_interleave(self.num_samples, 0)
        return hidden_GD.repeat_interleave(self.num_samples, 0)

    def next(self, ids_B: Tensor) -> Tensor:
        positions = self.mask_BL.sum(1, keepdim=True)
        self.mask_BL = torch.cat([self.mask_BL, torch.ones_like(positions)], 1)
        return self.trunk(
            input_ids=ids_B[:, None],
            attention_mask=self.mask_BL,
            **positions_of(self.model, positions),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, -1]

    def keepable(self, live_B: Tensor) -> Tensor:
        return live_B.nonzero()[:, 0]

    def keep(self, rows: Tensor) -> None:
        self.mask_BL = self.mask_BL[rows]
        self.cache.batch_select_indices(rows)


@torch.no_grad()
def decode(
    steps,
    project: Callable[[Tensor], Tensor],
    sampling: Sampling,
    uniform_BT: Tensor,
    eos_ids: Sequence[int],
    pad_id: int,
    temperature: float = 1.0,
) -> Response:
    """Draw one response per row of `uniform_BT`.

    Args:
      steps: `EncoderDecoderSteps` or `CausalSteps`.
      project: hidden states -> logits.
      temperature: of the log-probabilities that come with the response (see policy.py), not of the
        sampling.
    """
    B, T = uniform_BT.shape
    hidden_BD = steps.first()
    device = hidden_BD.device
    uniform_BT, eos = uniform_BT.to(device), torch.tensor(list(eos_ids), device=device)
    ids_BT = torch.full((B, T), pad_id, device=device)
    logprobs_BT = torch.zeros(B, T, device=device)
    rows, live_B = (
        torch.arange(B, device=device),
        torch.ones(B, dtype=torch.bool, device=device),
    )  # still in the batch
    for t in range(T):
        logits_BV = project(hidden_BD).float()
        ids_B = torch.where(live_B, draw(logits_BV, sampling, uniform_BT[rows, t]), pad_id)
        scaled_BV = logits_BV / temperature
        logprobs_B = scaled_BV.gather(-1, ids_B[:, None])[:, 0] - scaled_BV.logsumexp(-1)
        ids_BT[rows, t] = ids_B
        logprobs_BT[rows, t] = torch.where(
            live_B, logprobs_B, 0.0
        )  # the padding token's may be -inf, of which 0 times is NaN
        live_B = live_B & ~torch.isin(ids_B, eos)
        stay = steps.keepable(live_B)
        if len(stay) == 0 or t + 1 == T:
            break
        if len(stay) <= 0.75 * len(rows):  # a smaller cache is worth copying
            steps.keep(stay)
            rows, live_B, ids_B = rows[stay], live_B[stay], ids_B[stay]
        hidden_BD = steps.next(ids_B)
    mask_BT = response_mask(ids_BT[:, : t + 1], eos_ids)
    longest = max(int(mask_BT.sum(1).max()), 1) if B else 1
    return Response(ids_BT[:, :longest], mask_BT[:, :longest], logprobs_BT[:, :longest])

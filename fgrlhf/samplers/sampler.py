"""`Sampler`: prompts in, responses out. `LocalSampler` samples in this process.

`make_sampler` makes the sampler that a config names.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.models.base import Policy
from fgrlhf.samplers.config import AnySampler, LocalSamplerConfig
from fgrlhf.types import Advantages, Response, Rollout

# writes the policy into a folder, in the format of transformers
SavePolicy = Callable[[Path], None]
# key -> (ids_T, logprobs_T), on the CPU: responses that are known before their step
Pending = Mapping[int, tuple[Tensor, Tensor]]


class Sampler(Protocol):
    """Samples the responses of rollouts.

    Attributes:
      has_own_weights: whether it samples from a copy of the policy. Then `publish` must be called
        after every update, and the log-probabilities of its responses are those of the copy
        (`Response.of_policy` is false).
      samples_ahead: whether it samples the next step's responses while a step trains. If so, the
        trainer calls `begin` and `wait`, and stores `pending` in checkpoints.
      pending: responses that are known and were not asked for yet.
    """

    has_own_weights: bool
    samples_ahead: bool = False
    pending: Pending = {}

    def check(self) -> None:
        """Raise `UserError` if it cannot be used, before a run loads anything large."""
        ...

    def publish(self, save: SavePolicy) -> None:
        """Give it the policy's current weights. Only the first process calls this."""
        ...

    def sample(
        self,
        policy: Policy,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        sampling: Sampling,
        row_seeds: Sequence[int],
        num_samples: int,
        temperature: float,
    ) -> Response:
        """`num_samples` responses per prompt; those of a prompt are consecutive rows.

        Args:
          policy: has the weights that were published last.
          row_seeds: one seed per response.
          temperature: of the response's log-probabilities.
        """
        ...

    # ---- hooks of samplers with their own weights; the defaults do nothing -----------------------

    def begin(
        self,
        policy: Policy,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        sampling: Sampling,
        row_seeds: Sequence[int],
        num_samples: int,
        temperature: float,
    ) -> None:
        """Start on the responses of the next step; the arguments are those of `sample`."""

    def wait(self) -> None:
        """Wait for the responses that were begun, if any; they are then pending."""

    def restore(self, pending: Pending) -> None:
        """Continue from a checkpoint, with its pending responses."""

    def gap_metrics(self, rollout: Rollout, step: int) -> dict[str, float]:
        """Metrics of how far its probabilities are from the policy's.

        Raises:
          UserError: they are too far apart. All ranks have the same rollout: all stop.
        """
        return {}

    def weighted(
        self, advantages: Advantages, old: Rollout
    ) -> tuple[Advantages, dict[str, Tensor]]:
        """Advantages corrected for this difference, and metrics of the weights per token."""
        return advantages, {}


class LocalSampler(Sampler):
    """Samples with the policy itself (`Policy.generate`)."""

    has_own_weights = False

    def check(self) -> None:
        """Do nothing: the policy can always sample."""

    def publish(self, save: SavePolicy) -> None:
        """Do nothing: the policy's weights are the sampler's."""

    def sample(
        self,
        policy: Policy,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        sampling: Sampling,
        row_seeds: Sequence[int],
        num_samples: int,
        temperature: float,
    ) -> Response:
        return policy.generate(
            prompt_ids_GP, prompt_mask_GP, sampling, row_seeds, num_samples, temperature
        )


def make_sampler(config: AnySampler, policy: Policy) -> Sampler:
    """The sampler of a config, imported if the config names it. This does not contact a server.

    Args:
      policy: the policy to sample from; its weights may not be loaded yet.
    Raises:
      UserError: the sampler cannot sample from this policy.
    """
    if isinstance(config, LocalSamplerConfig):
        return LocalSampler()
    from fgrlhf.models.causal import CausalPolicy
    from fgrlhf.samplers.one_step_behind import OneStepBehind
    from fgrlhf.samplers.vllm import VllmSampler

    if not isinstance(policy, CausalPolicy):
        raise UserError(
            f"sampler.kind is vllm, but the policy {type(policy.model).__name__} is an"
            " encoder-decoder, which vLLM does not serve: use sampler.kind=local, or a decoder-only"
            " policy"
        )
    is_tied = bool(policy.model.config.tie_word_embeddings)
    sampler = VllmSampler(config, is_tied)
    return OneStepBehind(sampler) if config.one_step_behind else sampler


def pending_tensors(parts: Iterable[Pending]) -> dict[str, Tensor]:
    """The processes' pending responses as tensors of one file; {} if there are none."""
    keys: list[int] = []
    ids: list[Tensor] = []
    logprobs: list[Tensor] = []
    for part in parts:
        for key, (ids_T, logprobs_T) in part.items():
            keys.append(key)
            ids.append(ids_T)
            logprobs.append(logprobs_T)
    if not keys:
        return {}
    return {
        "keys_B": torch.tensor(keys),
        "lengths_B": torch.tensor([len(ids_T) for ids_T in ids]),
        "ids_BT": pad_sequence(ids, batch_first=True),
        "logprobs_BT": pad_sequence(logprobs, batch_first=True),
    }


def pending_responses(tensors: Mapping[str, Tensor]) -> Pending:
    """The inverse of `pending_tensors`, for every process: each asks for its own responses."""
    if not tensors:
        return {}
    keys, lengths = tensors["keys_B"].tolist(), tensors["lengths_B"].tolist()
    rows = zip(keys, tensors["ids_BT"], tensors["logprobs_BT"], lengths)
    return {key: (ids[:length], values[:length]) for key, ids, values, length in rows}

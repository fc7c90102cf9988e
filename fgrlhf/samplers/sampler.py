"""`Sampler`: prompts in, responses out. `LocalSampler` samples in this process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from fgrlhf.models.base import Policy
from fgrlhf.models.decoding import Sampling
from fgrlhf.types import Response

# writes the policy into a folder, in the format of transformers
SavePolicy = Callable[[Path], None]


class Sampler(Protocol):
    """Samples the responses of rollouts.

    Attributes:
      has_own_weights: whether it samples from a copy of the policy. Then `publish` must be called
        after every update, and the log-probabilities of its responses are those of the copy
        (`Response.of_policy` is false).
    """

    has_own_weights: bool

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


class LocalSampler:
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

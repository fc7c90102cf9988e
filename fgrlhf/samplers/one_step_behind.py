"""A server samples the responses of the next step while this step trains.

With W_s, the weights before the update of step s:

    publish W_s
    begin    the server starts on the responses of step s + 1, from W_s
    sample   the responses of step s, which are known since the step before: they are from W_(s-1)
    update   W_s -> W_(s+1), with the responses of step s
    wait     until the responses of step s + 1 are known

The responses of step 0 are from W_0. Which weights sample which response does not depend on the
speed of either side, so a run can be repeated. Responses that are known but not trained on yet are
part of a checkpoint: the weights that sampled them are not.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fgrlhf.base.background import Background
from fgrlhf.base.errors import UserError
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.sections import Sampling
from fgrlhf.models.base import Policy
from fgrlhf.samplers.sampler import Pending, Sampler, SavePolicy
from fgrlhf.samplers.vllm import VllmSampler
from fgrlhf.types import Advantages, Response, Rollout


class OneStepBehind(Sampler):
    """A `Sampler` whose responses were sampled one step earlier.

    Attributes:
      pending: responses that are known and were not asked for yet.

    Args:
      sampler: asks the server.
    """

    has_own_weights = True
    samples_ahead = True

    def __init__(self, sampler: VllmSampler):
        self.pending: Pending = {}
        self._sampler = sampler
        self._running: tuple[list[int], Background[Response]] | None = None

    def check(self) -> None:
        self._sampler.check()

    def publish(self, save: SavePolicy) -> None:
        """`Sampler.publish`. Not between `begin` and `wait`."""
        self._sampler.publish(save)

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
        """`Sampler.begin`.

        A thread waits for the answers. It only sends requests: models, tokenisers and random
        numbers stay with the caller's thread.

        Raises:
          UserError: the server cannot be reached.
        """
        keys = response_keys(prompt_ids_GP, prompt_mask_GP, row_seeds, num_samples)
        ask = self._sampler.prepare(
            policy,
            prompt_ids_GP.cpu(),
            prompt_mask_GP.cpu(),
            sampling,
            row_seeds,
            num_samples,
            temperature,
        )
        self._running = (keys, Background(ask))

    def wait(self) -> None:
        """`Sampler.wait`.

        Raises:
          UserError: any fault of the server; the message names it.
        """
        if self._running is None:
            return
        keys, running = self._running
        self._running = None
        response = running.result()
        lengths = response.mask_BT.sum(1).tolist()
        rows = zip(keys, response.ids_BT, response.logprobs_BT, lengths)
        self.pending = {key: (ids[:length], values[:length]) for key, ids, values, length in rows}

    def restore(self, pending: Pending) -> None:
        self.pending = pending
        self._running = None

    def gap_metrics(self, rollout: Rollout, step: int) -> dict[str, float]:
        return self._sampler.gap_metrics(rollout, step)

    def weighted(
        self, advantages: Advantages, old: Rollout
    ) -> tuple[Advantages, dict[str, Tensor]]:
        return self._sampler.weighted(advantages, old)

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
        """`Sampler.sample`, of responses that were begun and waited for with the same arguments.

        Raises:
          UserError: they are not pending. They cannot be sampled now, from other weights.
        """
        keys = response_keys(prompt_ids_GP, prompt_mask_GP, row_seeds, num_samples)
        missing = [key for key in keys if key not in self.pending]
        if missing:
            raise UserError(
                f"{len(missing)} of {len(keys)} responses that were sampled one step earlier are"
                " not in the checkpoint (sampler.one_step_behind), or their prompts have changed."
                " They cannot be sampled again, since the policy has changed: restore the data"
                " that the run began with, or delete this newest checkpoint and run the same"
                " command again to continue from the one before it"
            )
        ids = [self.pending[key][0] for key in keys]
        logprobs = [self.pending[key][1] for key in keys]
        self.pending = {}
        pad_id = policy.tokenizer.pad_token_id
        mask = [torch.ones_like(ids_T) for ids_T in ids]
        device = prompt_ids_GP.device
        return Response(
            pad_sequence(ids, batch_first=True, padding_value=pad_id).to(device),
            pad_sequence(mask, batch_first=True).to(device),
            pad_sequence(logprobs, batch_first=True).to(device),
            of_policy=False,
        )


def response_keys(
    prompt_ids_GP: Tensor, prompt_mask_GP: Tensor, row_seeds: Sequence[int], num_samples: int
) -> list[int]:
    """A key per response: a 63-bit hash of its seed and of its prompt's tokens.

    It depends neither on padding nor on the number of processes.
    """
    prompts = [
        ids_P[mask_P.bool()].tolist() for ids_P, mask_P in zip(prompt_ids_GP, prompt_mask_GP)
    ]
    return [
        derive_seed(seed, "prompt", *prompts[row // num_samples])
        for row, seed in enumerate(row_seeds)
    ]

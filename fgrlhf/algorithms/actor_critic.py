"""Shared code of the algorithms with a critic (PPO, A2C, TRPO, NLPO): advantages and value loss."""

import torch
from torch import Tensor

from fgrlhf.algorithms.advantages import aspect_gae, gae, segment_start_advantages
from fgrlhf.algorithms.config import ActorCriticConfig
from fgrlhf.algorithms.losses import clipped_value_loss
from fgrlhf.algorithms.protocol import Algorithm
from fgrlhf.alignment import segment_starts
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenReward
from fgrlhf.utils import whiten


class ActorCriticAlgorithm(Algorithm):
    """GAE with a critic. Subclasses define the policy's loss."""

    needs_values = True
    config: ActorCriticConfig

    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        """Whitened advantages, and the returns that the critic learns.

        Args:
          penalized_BT: the penalised rewards, 0 on padding.
        """
        if rollout.values_BTA is not None:
            return self._per_aspect(rollout, rollout.values_BTA, rewards)
        config = self.config
        mask_BT = rollout.response_mask_BT
        assert rollout.values_BT is not None  # since needs_values is true
        divide_by = config.whiten.divides_by
        if config.whiten.rewards:
            penalized_BT = whiten(penalized_BT, mask_BT, shift_mean=False, divide_by=divide_by)
        gamma, lam = config.gamma_of(None), config.lam_of(None)
        if config.critic == "monte_carlo":
            starts_BT = segment_starts(rewards.segments.values(), rollout.char_ends, mask_BT)
            advantages_BT, returns_BT = segment_start_advantages(
                penalized_BT, rollout.values_BT, starts_BT, mask_BT, gamma
            )
        else:
            advantages_BT, returns_BT = gae(
                penalized_BT, rollout.values_BT, mask_BT, gamma, lam, config.gae.start
            )
        whitened_BT = whiten(advantages_BT, mask_BT, divide_by=divide_by)
        return Advantages(whitened_BT, returns_BT)

    def _per_aspect(self, rollout: Rollout, values_BTA: Tensor, rewards: TokenReward) -> Advantages:
        """The same with a critic that has an output per aspect.

            A = sum_k (w_k / v_k) A^k

        A^k is the GAE of aspect k with its own gamma and lambda. Rewards and values have the
        weights of the logs, v_k, which stay. The weights of the step, w_k, act on the advantages
        alone: when they change, the critic's targets do not.
        """
        config = self.config
        mask_BT = rollout.response_mask_BT
        logged = rewards.logged or rewards
        names = list(logged.by_aspect)
        by_aspect_BTA, returns_BTA = aspect_gae(
            torch.stack([logged.by_aspect[name] for name in names], -1),
            values_BTA,
            mask_BT,
            [config.gamma_of(name) for name in names],
            [config.lam_of(name) for name in names],
            config.gae.start,
        )
        factors = [rewards.weight(name) / logged.weight(name) for name in names]
        advantages_BT = (by_aspect_BTA * by_aspect_BTA.new_tensor(factors)).sum(-1)
        whitened_BT = whiten(advantages_BT, mask_BT, divide_by=config.whiten.divides_by)
        return Advantages(whitened_BT, returns_BTA.sum(-1), returns_BTA)

    def value_loss(
        self, new: PolicyOutput, old: Rollout, advantages: Advantages
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic's loss per token, and its metrics to log; 0 and none of `monte_carlo`.

        With an output per aspect, the loss is the sum of theirs, and the clipped share their mean.
        """
        if new.values_BT is None:
            return torch.zeros_like(new.logprobs_BT), {}
        assert old.values_BT is not None and advantages.returns_BT is not None
        cliprange = self.config.cliprange_value
        if new.values_BTA is None:
            value_BT, clipped_BT = clipped_value_loss(
                new.values_BT, old.values_BT, advantages.returns_BT, cliprange
            )
        else:
            assert old.values_BTA is not None and advantages.returns_BTA is not None
            value_BTA, clipped_BTA = clipped_value_loss(
                new.values_BTA, old.values_BTA, advantages.returns_BTA, cliprange
            )
            value_BT, clipped_BT = value_BTA.sum(-1), clipped_BTA.mean(-1)
        error_BT = (new.values_BT - advantages.returns_BT).abs()
        metrics = {
            "loss/value": value_BT.detach(),
            "clipfrac/value": clipped_BT.detach(),
            "value/error": error_BT.detach(),
        }
        return value_BT, metrics

"""Shared code of the algorithms with a critic (PPO, A2C, TRPO, NLPO): advantages and value loss."""

from torch import Tensor

from fgrlhf.algorithms.advantages import gae
from fgrlhf.algorithms.config import ActorCriticConfig
from fgrlhf.algorithms.losses import clipped_value_loss
from fgrlhf.algorithms.protocol import Algorithm
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
        config = self.config
        mask_BT = rollout.response_mask_BT
        assert rollout.values_BT is not None  # since needs_values is true
        if config.whiten_rewards:
            penalized_BT = whiten(
                penalized_BT, mask_BT, shift_mean=False, divide_by=config.whiten_divides_by
            )
        advantages_BT, returns_BT = gae(
            penalized_BT, rollout.values_BT, mask_BT, config.gamma, config.lam, config.gae_start
        )
        whitened_BT = whiten(advantages_BT, mask_BT, divide_by=config.whiten_divides_by)
        return Advantages(whitened_BT, returns_BT)

    def value_loss(
        self, new: PolicyOutput, old: Rollout, advantages: Advantages
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic's loss per token, and its metrics to log."""
        assert new.values_BT is not None and old.values_BT is not None
        assert advantages.returns_BT is not None
        value_BT, clipped_BT = clipped_value_loss(
            new.values_BT, old.values_BT, advantages.returns_BT, self.config.cliprange_value
        )
        error_BT = (new.values_BT - advantages.returns_BT).abs()
        metrics = {
            "loss/value": value_BT.detach(),
            "clipfrac/value": clipped_BT.detach(),
            "value/error": error_BT.detach(),
        }
        return value_BT, metrics

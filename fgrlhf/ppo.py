"""Proximal policy optimisation (Schulman et al. 2017) with dense, named rewards: the paper's
algorithm.
"""

import torch
from torch import Tensor

from fgrlhf.algorithms.advantages import gae
from fgrlhf.algorithms.config import AlgorithmConfig, PPOConfig
from fgrlhf.algorithms.losses import clipped_policy_loss, clipped_value_loss, kl_k3
from fgrlhf.trainer import OnPolicyTrainer
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss, TokenReward
from fgrlhf.utils import whiten


def policy_metrics(new: PolicyOutput, old: Rollout, policy_loss_BT: Tensor) -> dict[str, Tensor]:
    """What every algorithm logs of its policy."""
    with torch.no_grad():
        approx_kl_BT = kl_k3(old.logprobs_BT, new.logprobs_BT)
    return {
        "loss/policy": policy_loss_BT.detach(),
        "approx_kl": approx_kl_BT,
        "entropy": new.entropy_BT.detach(),
    }


class PPO:
    """GAE with a critic, then clipped policy and value losses over several epochs of the same
    rollout.
    """

    needs_values = True
    reuses_rollouts = True

    def __init__(self, config: PPOConfig, algorithm: AlgorithmConfig | None = None):
        # `algorithm`, which every algorithm is given, has no setting that PPO reads itself
        self.config = config

    def advantages(
        self, rollout: Rollout, rewards_BT: Tensor, rewards: TokenReward | None = None
    ) -> Advantages:
        """Whitened advantages and the critic's targets. `rewards_BT` is the penalised reward, 0 on
        padding.
        """
        config, mask_BT = self.config, rollout.response_mask_BT
        if config.whiten_rewards:
            rewards_BT = whiten(
                rewards_BT, mask_BT, shift_mean=False, divide_by=config.whiten_divides_by
            )
        advantages_BT, returns_BT = gae(
            rewards_BT, rollout.values_BT, mask_BT, config.gamma, config.lam, config.gae_start
        )
        return Advantages(
            whiten(advantages_BT, mask_BT, divide_by=config.whiten_divides_by), returns_BT
        )

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        """pg_coef * clipped policy loss + vf_coef * clipped value loss, per token."""
        config = self.config
        policy_BT, _, policy_clipped_BT = clipped_policy_loss(
            new.logprobs_BT, old.logprobs_BT, advantages.advantages_BT, config.cliprange
        )
        value_BT, metrics = self.value_loss(new, old, advantages)
        metrics |= policy_metrics(new, old, policy_BT) | {"clipfrac/policy": policy_clipped_BT}
        return TokenLoss(config.pg_coef * policy_BT + config.vf_coef * value_BT, metrics)

    def value_loss(
        self, new: PolicyOutput, old: Rollout, advantages: Advantages
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic's loss per token, and what to log of it."""
        value_BT, clipped_BT = clipped_value_loss(
            new.values_BT, old.values_BT, advantages.returns_BT, self.config.cliprange_value
        )
        error_BT = (new.values_BT - advantages.returns_BT).abs()
        metrics = {"loss/value": value_BT, "clipfrac/value": clipped_BT, "value/error": error_BT}
        return value_BT, {name: metric.detach() for name, metric in metrics.items()}


class PPOTrainer(OnPolicyTrainer):
    """The on-policy loop with PPO as its algorithm."""

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, PPO(config.ppo, config.algorithm), *args, **kwargs)

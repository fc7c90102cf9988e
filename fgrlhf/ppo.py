"""Proximal policy optimisation (Schulman et al. 2017) with dense, named rewards: the paper's algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fgrlhf.advantages import gae
from fgrlhf.losses import clipped_policy_loss, clipped_value_loss, kl_k3
from fgrlhf.rl_config import PPOConfig
from fgrlhf.trainer import OnPolicyTrainer
from fgrlhf.types import Advantages, PolicyOutput, Rollout
from fgrlhf.utils import whiten


@dataclass(frozen=True)
class TokenLoss:
    """A loss per token, and per-token quantities to log under the same average. Values on padding are ignored."""

    loss_BT: Tensor
    metrics: Mapping[str, Tensor]


class PPO:
    """GAE with a critic, then clipped policy and value losses over several epochs of the same rollout."""

    needs_values = True

    def __init__(self, config: PPOConfig):
        self.config = config

    def advantages(self, rollout: Rollout, rewards_BT: Tensor) -> Advantages:
        """Whitened advantages and the critic's targets. `rewards_BT` is the penalised reward, 0 on padding."""
        config, mask_BT = self.config, rollout.response_mask_BT
        if config.whiten_rewards:
            rewards_BT = whiten(rewards_BT, mask_BT, shift_mean=False, divide_by=config.whiten_divides_by)
        advantages_BT, returns_BT = gae(rewards_BT, rollout.values_BT, mask_BT, config.gamma, config.lam, config.gae_start)
        return Advantages(whiten(advantages_BT, mask_BT, divide_by=config.whiten_divides_by), returns_BT)

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        """pg_coef * clipped policy loss + vf_coef * clipped value loss, per token."""
        config = self.config
        policy_BT, _, policy_clipped_BT = clipped_policy_loss(
            new.logprobs_BT, old.logprobs_BT, advantages.advantages_BT, config.cliprange)
        value_BT, value_clipped_BT = clipped_value_loss(
            new.values_BT, old.values_BT, advantages.returns_BT, config.cliprange_value)
        loss_BT = config.pg_coef * policy_BT + config.vf_coef * value_BT
        with torch.no_grad():
            metrics = {
                "loss/policy": policy_BT, "loss/value": value_BT, "loss/total": loss_BT,
                "clipfrac/policy": policy_clipped_BT, "clipfrac/value": value_clipped_BT,
                "approx_kl": kl_k3(old.logprobs_BT, new.logprobs_BT), "entropy": new.entropy_BT,
                "value/error": (new.values_BT - advantages.returns_BT).abs(),
            }
        return TokenLoss(loss_BT, {name: metric.detach() for name, metric in metrics.items()})


class PPOTrainer(OnPolicyTrainer):
    """The on-policy loop with PPO as its algorithm."""

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, PPO(config.ppo), *args, **kwargs)

"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347): the paper's algorithm."""

from fgrlhf.algorithms.actor_critic import ActorCriticAlgorithm
from fgrlhf.algorithms.config import JointLossConfig, PPOConfig
from fgrlhf.algorithms.losses import ratio_loss
from fgrlhf.algorithms.metrics import policy_metrics
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss


class PPO(ActorCriticAlgorithm):
    """Clipped policy loss and clipped value loss, over several epochs of the same rollout."""

    config_class = PPOConfig
    reuses_rollouts = True
    config: JointLossConfig

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        """pg_coef * clipped policy loss + vf_coef * clipped value loss, per token."""
        config = self.config
        policy_BT, clipped_BT = ratio_loss(new, old, advantages, config.loss)
        value_BT, value_metrics = self.value_loss(new, old, advantages)
        metrics = value_metrics | policy_metrics(new, old, policy_BT)
        metrics["clipfrac/policy"] = clipped_BT
        return TokenLoss(config.pg_coef * policy_BT + config.vf_coef * value_BT, metrics)

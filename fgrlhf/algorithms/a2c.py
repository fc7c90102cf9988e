"""Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783), one pass over each rollout."""

from fgrlhf.algorithms.actor_critic import ActorCriticAlgorithm
from fgrlhf.algorithms.config import PPOConfig
from fgrlhf.algorithms.losses import policy_gradient_loss
from fgrlhf.algorithms.metrics import policy_metrics
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss


class A2C(ActorCriticAlgorithm):
    """The policy gradient L_t = -A_t log pi(a_t) with PPO's advantages and critic.

    Where the ratio of new to old policy is 1, its gradient is PPO's. The loss does not correct for
    any other ratio, so a rollout is used once.
    """

    config_class = PPOConfig
    reuses_rollouts = False
    config: PPOConfig

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        """pg_coef * policy gradient + vf_coef * value loss, per token."""
        policy_BT = policy_gradient_loss(new.logprobs_BT, advantages.advantages_BT)
        value_BT, metrics = self.value_loss(new, old, advantages)
        loss_BT = self.config.pg_coef * policy_BT + self.config.vf_coef * value_BT
        return TokenLoss(loss_BT, metrics | policy_metrics(new, old, policy_BT))

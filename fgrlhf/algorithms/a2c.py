"""Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783): the policy gradient with a critic,
one pass per rollout.
"""

from fgrlhf.algorithms.losses import policy_gradient_loss
from fgrlhf.ppo import PPO, policy_metrics
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss


class A2C(PPO):
    """PPO's advantages and critic; L_t = -A_t log pi(a_t). Where the ratio is 1 its gradient is
    PPO's.

    The loss knows no ratio, so a rollout is used once: later passes would be on another policy's
    samples.
    """

    reuses_rollouts = False

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        """pg_coef * policy gradient + vf_coef * value loss, per token."""
        policy_BT = policy_gradient_loss(new.logprobs_BT, advantages.advantages_BT)
        value_BT, metrics = self.value_loss(new, old, advantages)
        loss_BT = self.config.pg_coef * policy_BT + self.config.vf_coef * value_BT
        return TokenLoss(loss_BT, metrics | policy_metrics(new, old, policy_BT))

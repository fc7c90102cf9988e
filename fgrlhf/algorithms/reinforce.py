"""REINFORCE (Williams 1992): each token's reward-to-go, minus a baseline from the batch."""

from torch import Tensor

from fgrlhf.algorithms.advantages import position_mean, reward_to_go
from fgrlhf.algorithms.config import ReinforceConfig
from fgrlhf.algorithms.losses import policy_gradient_loss
from fgrlhf.algorithms.metrics import policy_metrics
from fgrlhf.algorithms.protocol import Algorithm
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss, TokenReward


def reinforce_advantages(
    rewards_BT: Tensor, mask_BT: Tensor, gamma: float, baseline: str
) -> Tensor:
    """advantages_BT: A_t = sum_{s >= t} gamma^(s-t) r_s - b_t, 0 on padding.

    Args:
      baseline: b_t is 0 ("none"), the batch's mean return ("mean"), or its mean reward-to-go at
        token t over the responses that reach t ("position"). The last two include the response
        itself: this scales the expected gradient by 1 - 1/B (by 1 - 1/n where only n responses
        reach t) and does not change its direction.
    """
    to_go_BT = reward_to_go(rewards_BT, mask_BT, gamma)
    if baseline == "mean":
        return (to_go_BT - to_go_BT[:, 0].mean()) * mask_BT
    if baseline == "position":
        return (to_go_BT - position_mean(to_go_BT, mask_BT)) * mask_BT
    return to_go_BT


class Reinforce(Algorithm):
    """The policy gradient without a critic. The loss has no ratio, so a rollout is used once."""

    config_class = ReinforceConfig
    needs_values = False
    reuses_rollouts = False
    config: ReinforceConfig

    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        advantages_BT = reinforce_advantages(
            penalized_BT, rollout.response_mask_BT, self.config.gamma, self.config.baseline
        )
        return Advantages(advantages_BT)

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        policy_BT = policy_gradient_loss(new.logprobs_BT, advantages.advantages_BT)
        return TokenLoss(policy_BT, policy_metrics(new, old, policy_BT))

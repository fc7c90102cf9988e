"""Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300): PPO's clipped ratio
without a critic.
"""

from torch import Tensor

from fgrlhf.algorithms.advantages import group_std, reward_to_go
from fgrlhf.algorithms.group import GroupRelative
from fgrlhf.algorithms.losses import clipped_policy_loss
from fgrlhf.ppo import policy_metrics
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss, TokenReward

EPS = 1e-4  # a group without spread has no advantages; as TRL has it


class GRPO(GroupRelative):
    """A_i = (R_i - mean_j R_j) / (std_j R_j + eps), or each segment's advantage by the same
    standard deviation.

    The standard deviation is that of the prompt's whole returns in both forms: within a response
    the sizes of segments' credits stay comparable.
    """

    reuses_rollouts = True

    def advantages(self, rollout: Rollout, rewards_BT: Tensor, rewards: TokenReward) -> Advantages:
        advantages_BT = self.centred(rollout, rewards_BT, rewards, leave_out=False)
        if self.own.normalize:
            returns_B = reward_to_go(rewards_BT, rollout.response_mask_BT, self.shared.gamma)[:, 0]
            advantages_BT = advantages_BT / (group_std(returns_B, rollout.group_B) + EPS)[:, None]
        return Advantages(advantages_BT)

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        policy_BT, _, clipped_BT = clipped_policy_loss(
            new.logprobs_BT,
            old.logprobs_BT,
            advantages.advantages_BT,
            self.own.clip_low,
            self.own.clip_high,
        )
        return TokenLoss(
            policy_BT, policy_metrics(new, old, policy_BT) | {"clipfrac/policy": clipped_BT}
        )

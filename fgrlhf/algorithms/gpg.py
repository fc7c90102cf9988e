"""Group policy gradient (Chu et al. 2025, arXiv 2504.02546): no critic, no ratio, no clipping."""

from torch import Tensor

from fgrlhf.algorithms.advantages import group_std, reward_to_go
from fgrlhf.algorithms.group import GroupRelative
from fgrlhf.types import Advantages, Rollout, TokenReward

SPREAD = 1e-6  # returns that differ by less are the same


def gpg_scale(returns_B: Tensor, group_B: Tensor) -> Tensor:
    """alpha = B / (B - M), M the rollouts of prompts whose samples all earned the same: they give
    no gradient but count in the mean over the batch. A scalar; 1 where no prompt is left."""
    told_apart_B = group_std(returns_B, group_B) > SPREAD
    return (
        len(returns_B) / told_apart_B.sum() if bool(told_apart_B.any()) else returns_B.new_ones(())
    )


class GPG(GroupRelative):
    """A_i = alpha (R_i - mean_j R_j), or the same for each segment."""

    def advantages(self, rollout: Rollout, rewards_BT: Tensor, rewards: TokenReward) -> Advantages:
        returns_B = reward_to_go(rewards_BT, rollout.response_mask_BT, self.shared.gamma)[:, 0]
        centred_BT = self.centred(rollout, rewards_BT, rewards, leave_out=False)
        return Advantages(gpg_scale(returns_B, rollout.group_B) * centred_BT)

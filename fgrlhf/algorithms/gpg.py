"""Group policy gradient (Chu et al. 2025, arXiv 2504.02546): no critic, no ratio, no clipping."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fgrlhf.algorithms.advantages import group_std, reward_to_go
from fgrlhf.algorithms.config import KL_IN
from fgrlhf.algorithms.group import GroupConfig, GroupRelative
from fgrlhf.types import Advantages, Rollout, TokenReward
from fgrlhf.utils import check_same_shape

EQUAL_RETURNS = 1e-6  # a prompt whose returns have a smaller standard deviation has no spread


class GPGConfig(GroupConfig):
    name: Literal["gpg"] = "gpg"
    kl_in: Literal["reward", "loss"] = Field(default="loss", description=KL_IN)


def gpg_scale(returns_B: Tensor, group_B: Tensor) -> Tensor:
    """The factor alpha = B / (B - M), a scalar; 1 if M = B.

    M is the number of rollouts whose prompt's samples all have the same return. They contribute no
    gradient but count in the mean over the batch; alpha compensates for that.
    """
    check_same_shape(returns_B=returns_B, group_B=group_B)
    has_spread_B = group_std(returns_B, group_B) > EQUAL_RETURNS
    if not bool(has_spread_B.any()):
        return returns_B.new_ones(())
    return len(returns_B) / has_spread_B.sum()


class GPG(GroupRelative):
    """A_i = alpha (R_i - mean_j R_j), or the same per segment."""

    config_class = GPGConfig
    config: GPGConfig

    def advantages(self, rollout: Rollout, rewards_BT: Tensor, rewards: TokenReward) -> Advantages:
        to_go_BT = reward_to_go(rewards_BT, rollout.response_mask_BT, self.config.gamma)
        scale = gpg_scale(to_go_BT[:, 0], rollout.group_B)
        centred_BT = self.centred(rollout, rewards_BT, rewards, leave_out=False)
        return Advantages(scale * centred_BT)

"""Group policy gradient (Chu et al. 2025, arXiv 2504.02546): no critic, no ratio, no clipping."""

from torch import Tensor

from fgrlhf.algorithms.advantages import group_spread
from fgrlhf.algorithms.config import GPGConfig
from fgrlhf.algorithms.group import GroupRelative
from fgrlhf.types import Advantages, Rollout, TokenReward


def gpg_scale(spread_B: Tensor) -> Tensor:
    """The factor alpha = B / (B - M), a scalar; 1 if M = B.

    M is the number of rollouts of prompts whose samples do not differ (`group_spread` is 0). They
    contribute no gradient but count in the mean over the batch; alpha compensates for that.
    """
    has_spread_B = spread_B > 0
    if not bool(has_spread_B.any()):
        return spread_B.new_ones(())
    return len(spread_B) / has_spread_B.sum()


class GPG(GroupRelative):
    """A_i = alpha (R_i - mean_j R_j), or the same per segment."""

    config_class = GPGConfig
    config: GPGConfig

    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        mask_BT = rollout.response_mask_BT
        centred_BT = self.centred(rollout, penalized_BT, rewards, leave_out=False)
        loss = self.config.loss
        if "equal" in loss.leave_out and loss.type in ("token", "cispo"):
            return Advantages(centred_BT)  # those without a spread do not count in the mean
        of_BT = self.summed(centred_BT, penalized_BT)
        spread_B = group_spread(centred_BT, of_BT, mask_BT, rollout.group_B)
        return Advantages(gpg_scale(spread_B) * centred_BT)

"""REINFORCE leave-one-out (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740)."""

from torch import Tensor

from fgrlhf.algorithms.config import RLOOConfig
from fgrlhf.algorithms.group import GroupRelative
from fgrlhf.types import Advantages, Rollout, TokenReward


class RLOO(GroupRelative):
    """A_i = R_i - mean_{j != i} R_j, or the same per segment (`segment_advantages`).

    Both are unbiased.
    """

    config_class = RLOOConfig
    config: RLOOConfig

    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        return Advantages(self.centred(rollout, penalized_BT, rewards, leave_out=True))

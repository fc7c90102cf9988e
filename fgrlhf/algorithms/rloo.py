"""REINFORCE leave-one-out (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740)."""

from torch import Tensor

from fgrlhf.algorithms.config import RLOOConfig
from fgrlhf.algorithms.group import ClippedGroupRelative
from fgrlhf.types import Advantages, Rollout, TokenReward


class RLOO(ClippedGroupRelative):
    """A_i = R_i - mean_{j != i} R_j, or the same per segment (`segment_advantages`).

    Both are unbiased. With `loss.importance_level`, the loss clips the ratio as GRPO's does.
    """

    config_class = RLOOConfig
    config: RLOOConfig

    def __init__(self, config: RLOOConfig):
        super().__init__(config)
        self.reuses_rollouts = config.has_ratio

    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        return Advantages(self.centred(rollout, penalized_BT, rewards, leave_out=True))

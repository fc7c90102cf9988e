"""Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300).

PPO's clipped ratio without a critic.
"""

import torch
from torch import Tensor

from fgrlhf.algorithms.advantages import group_normalized
from fgrlhf.algorithms.config import GRPOConfig
from fgrlhf.algorithms.group import ClippedGroupRelative
from fgrlhf.types import Advantages, Rollout, TokenReward


class GRPO(ClippedGroupRelative):
    """A_i = (R_i - mean_j R_j) / (std_j R_j + eps), or the same per segment (`group_normalized`).

    With `scale: batch` the divisor is the standard deviation over all responses of the batch
    (REINFORCE++, arXiv 2501.03262): a prompt with a small spread then has small advantages. With
    `normalize_aspects: group`, each reward is divided by its own spread, and the sum by that
    of the whole batch (GDPO, arXiv 2601.05242).
    """

    config_class = GRPOConfig
    reuses_rollouts = True
    config: GRPOConfig

    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        centred_BT = self.centred(rollout, penalized_BT, rewards, leave_out=False)
        if self.config.scale == "none":
            return Advantages(centred_BT)
        group_B = rollout.group_B
        # with `normalize_aspects: group`, a prompt's samples are normalised already
        if self.config.scale == "batch" or self.config.normalize_aspects == "group":
            group_B = torch.zeros_like(group_B)
        mask_BT = rollout.response_mask_BT
        of_BT = self.summed(centred_BT, penalized_BT)
        return Advantages(group_normalized(centred_BT, of_BT, mask_BT, group_B))

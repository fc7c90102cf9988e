"""Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300).

PPO's clipped ratio without a critic.
"""

import torch
from torch import Tensor

from fgrlhf.algorithms.advantages import group_normalized
from fgrlhf.algorithms.config import GRPOConfig
from fgrlhf.algorithms.group import GroupRelative
from fgrlhf.algorithms.losses import clipped_policy_loss
from fgrlhf.algorithms.metrics import policy_metrics
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss, TokenReward


class GRPO(GroupRelative):
    """A_i = (R_i - mean_j R_j) / (std_j R_j + eps), or the same per segment (`group_normalized`).

    With `normalize_aspects: group`, each reward is divided by its own spread, and the sum by that
    of the whole batch (GDPO, arXiv 2601.05242).
    """

    config_class = GRPOConfig
    reuses_rollouts = True
    config: GRPOConfig

    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        centred_BT = self.centred(rollout, penalized_BT, rewards, leave_out=False)
        if not self.config.normalize:
            return Advantages(centred_BT)
        group_B = rollout.group_B
        if self.config.normalize_aspects == "group":  # a prompt's samples are normalised already
            group_B = torch.zeros_like(group_B)
        mask_BT = rollout.response_mask_BT
        return Advantages(group_normalized(centred_BT, penalized_BT, mask_BT, group_B))

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        policy_BT, _, clipped_BT = clipped_policy_loss(
            new.logprobs_BT,
            old.logprobs_BT,
            advantages.advantages_BT,
            self.config.clip_low,
            self.config.clip_high,
        )
        metrics = policy_metrics(new, old, policy_BT)
        metrics["clipfrac/policy"] = clipped_BT
        return TokenLoss(policy_BT, metrics)

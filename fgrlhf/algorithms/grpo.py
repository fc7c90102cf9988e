"""Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300).

PPO's clipped ratio without a critic.
"""

import torch
from torch import Tensor

from fgrlhf.algorithms.advantages import group_spread, group_std
from fgrlhf.algorithms.config import GRPOConfig
from fgrlhf.algorithms.group import GroupRelative
from fgrlhf.algorithms.losses import clipped_policy_loss
from fgrlhf.algorithms.metrics import policy_metrics
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss, TokenReward

EPS = 1e-4  # as in TRL: small differences between the samples of a prompt are not magnified


class GRPO(GroupRelative):
    """A_i = (R_i - mean_j R_j) / (std_j R_j + eps), or the same per segment.

    All segments of a prompt have the same divisor, so they stay comparable. The standard deviation
    of the whole returns can be 0 although segments differ. So the divisor is `group_spread` where
    that is larger; it keeps the advantages of size 1. For whole responses the two are equal.
    """

    config_class = GRPOConfig
    reuses_rollouts = True
    config: GRPOConfig

    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        advantages_BT = self.centred(rollout, penalized_BT, rewards, leave_out=False)
        if self.config.normalize:
            # The spread of the centred returns at the first token, not of the returns themselves:
            # these count 0 for a reward that does not apply to a response.
            std_B = group_std(advantages_BT[:, 0], rollout.group_B)
            spread_B = group_spread(
                advantages_BT, penalized_BT, rollout.response_mask_BT, rollout.group_B
            )
            divisor_B = torch.maximum(std_B, spread_B) + EPS
            # without any spread the advantages are rounding errors
            factor_B = torch.where(spread_B > 0, 1 / divisor_B, torch.zeros_like(divisor_B))
            advantages_BT = advantages_BT * factor_B[:, None]
        return Advantages(advantages_BT)

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

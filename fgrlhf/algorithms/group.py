"""What the algorithms that compare the samples of one prompt have in common: credit for a response
or for its segments.
"""

import torch
from torch import Tensor

from fgrlhf.algorithms.advantages import response_advantages, segment_advantages
from fgrlhf.algorithms.config import GroupAlgorithm, PPOConfig
from fgrlhf.algorithms.losses import policy_gradient_loss
from fgrlhf.alignment import segments_before
from fgrlhf.ppo import policy_metrics
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss, TokenReward


class GroupRelative:
    """Rewards less what the other samples of the prompt got; the loss is the policy gradient, one
    pass per rollout.
    """

    needs_values = False
    reuses_rollouts = False

    def __init__(self, shared: PPOConfig, own: GroupAlgorithm):
        self.shared, self.own = shared, own

    def centred(
        self, rollout: Rollout, rewards_BT: Tensor, rewards: TokenReward, leave_out: bool
    ) -> Tensor:
        """advantages_BT against the prompt's mean, over all its samples or (`leave_out`) the
        others.
        """
        mask_BT, group_B, gamma = rollout.response_mask_BT, rollout.group_B, self.shared.gamma
        if self.own.credit == "response":
            return response_advantages(rewards_BT, mask_BT, group_B, gamma, leave_out)
        parts = [
            (aspect_BT, segments_before(rewards.segments[name], rollout.char_ends, mask_BT))
            for name, aspect_BT in rewards.by_aspect.items()
        ]
        every_token_BT = torch.arange(mask_BT.shape[1], device=mask_BT.device).expand_as(mask_BT)
        penalty_BT = rewards_BT - rewards.total_BT  # the KL penalty has a value at every token
        if bool(penalty_BT.any()):
            parts.append((penalty_BT, every_token_BT))
        return segment_advantages(parts, mask_BT, group_B, gamma, leave_out)

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        policy_BT = policy_gradient_loss(new.logprobs_BT, advantages.advantages_BT)
        return TokenLoss(policy_BT, policy_metrics(new, old, policy_BT))

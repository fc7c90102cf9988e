"""Shared code of the group-relative algorithms (RLOO, GRPO, GPG).

They compare the samples of one prompt, response by response or segment by segment.
"""

import torch
from torch import Tensor

from fgrlhf.algorithms.advantages import (
    group_normalized,
    judged_groups,
    response_advantages,
    segment_advantages,
)
from fgrlhf.algorithms.config import ClippedGroupConfig, GroupConfig
from fgrlhf.algorithms.losses import policy_gradient_loss, ratio_loss
from fgrlhf.algorithms.metrics import policy_metrics
from fgrlhf.algorithms.protocol import Algorithm
from fgrlhf.alignment import segments_before
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss, TokenReward


class GroupRelative(Algorithm):
    """Rewards relative to the prompt's other samples; the loss is the policy gradient.

    The loss has no ratio, so a rollout is used once.
    """

    needs_values = False
    reuses_rollouts = False
    config: GroupConfig

    def centred(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward, leave_out: bool
    ) -> Tensor:
        """advantages_BT relative to the mean over the prompt's samples: a sum over the aspects.

        With `normalize_aspects: group`, those of aspect k are divided by their spread over the
        samples of the prompt to which it applies, and multiplied by |w_k|.

        Args:
          leave_out: exclude the response itself from the mean.
        """
        mask_BT = rollout.response_mask_BT
        by_group = self.config.normalize_aspects == "group"
        if self.config.credit == "response" and not by_group:
            gamma = self.config.gamma
            return response_advantages(penalized_BT, mask_BT, rollout.group_B, gamma, leave_out)
        advantages_BT = torch.zeros_like(penalized_BT)
        for name, aspect_BT in rewards.by_aspect.items():
            applies_B = torch.tensor(rewards.applies(name), device=mask_BT.device)
            group_B = judged_groups(rollout.group_B, applies_B)
            judged_BT = mask_BT * applies_B[:, None]
            index_BT = segments_before(rewards.segments[name], rollout.char_ends, mask_BT)
            of_aspect_BT = self._centred(aspect_BT, index_BT, judged_BT, group_B, leave_out)
            if by_group:
                of_aspect_BT = group_normalized(of_aspect_BT, aspect_BT, judged_BT, group_B)
                of_aspect_BT *= abs(rewards.weight(name))
            advantages_BT += of_aspect_BT
        # The KL penalty is one more aspect, whose segments are single tokens.
        penalty_BT = penalized_BT - rewards.total_BT
        if bool(penalty_BT.any()):
            index_BT = torch.arange(mask_BT.shape[1], device=mask_BT.device).expand_as(mask_BT)
            group_B = rollout.group_B
            advantages_BT += self._centred(penalty_BT, index_BT, mask_BT, group_B, leave_out)
        return advantages_BT

    def summed(self, centred_BT: Tensor, penalized_BT: Tensor) -> Tensor:
        """What the centred advantages are sums of, in their unit: see `group_spread`."""
        return centred_BT if self.config.normalize_aspects == "group" else penalized_BT

    def _centred(
        self,
        rewards_BT: Tensor,
        index_BT: Tensor,
        mask_BT: Tensor,
        group_B: Tensor,
        leave_out: bool,
    ) -> Tensor:
        """The advantages from one reward; `index_BT` as in `segment_baseline`."""
        gamma = self.config.gamma
        if self.config.credit == "response":
            return response_advantages(rewards_BT, mask_BT, group_B, gamma, leave_out)
        return segment_advantages(rewards_BT, index_BT, mask_BT, group_B, gamma, leave_out)

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        policy_BT = policy_gradient_loss(new.logprobs_BT, advantages.advantages_BT)
        return TokenLoss(policy_BT, policy_metrics(new, old, policy_BT))


class ClippedGroupRelative(GroupRelative):
    """The same with a loss that clips the ratio, for several epochs over a rollout."""

    config: ClippedGroupConfig

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        config = self.config
        if not config.has_ratio:
            return super().loss(new, old, advantages)
        policy_BT, clipped_BT = ratio_loss(new, old, advantages, config.loss)
        metrics = policy_metrics(new, old, policy_BT)
        metrics["clipfrac/policy"] = clipped_BT
        return TokenLoss(policy_BT, metrics)

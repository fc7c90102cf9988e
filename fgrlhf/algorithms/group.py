"""Shared code of the group-relative algorithms (RLOO, GRPO, GPG).

They compare the samples of one prompt, response by response or segment by segment.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fgrlhf.algorithms.advantages import response_advantages, segment_advantages
from fgrlhf.algorithms.config import AlgorithmConfig, RunSettings
from fgrlhf.algorithms.losses import policy_gradient_loss
from fgrlhf.algorithms.metrics import policy_metrics
from fgrlhf.algorithms.protocol import Algorithm
from fgrlhf.alignment import segments_before
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss, TokenReward


class GroupConfig(AlgorithmConfig):
    """Settings of the group-relative algorithms."""

    credit: Literal["segment", "response"] = Field(
        default="segment",
        description=(
            "response: one advantage per response, from the summed rewards; segment: reward-to-go"
            " per aspect and segment"
        ),
    )

    def mistakes(self, run: RunSettings) -> list[str]:
        K = run.samples_per_prompt
        mistakes = []
        if K < 2:
            mistakes.append(
                f"env.train_num_samples_per_input is {K}, but `{self.name}` compares the samples of"
                " one prompt, which needs a second one: set it to 2 or more, or use"
                " algorithm.name=reinforce"
            )
        if not run.do_sample:
            mistakes.append(
                "model.train_generation_kwargs.do_sample is false, but"
                f" `{self.name}` compares the samples of one prompt, which would all be the same:"
                " set do_sample=true and num_beams=1, or use algorithm.name=reinforce"
            )
        return mistakes


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
        """advantages_BT relative to the mean over the prompt's samples.

        Args:
          leave_out: exclude the response itself from the mean.
        """
        mask_BT = rollout.response_mask_BT
        group_B = rollout.group_B
        gamma = self.config.gamma
        if self.config.credit == "response":
            return response_advantages(penalized_BT, mask_BT, group_B, gamma, leave_out)
        aspects = []
        for name, aspect_BT in rewards.by_aspect.items():
            index_BT = segments_before(rewards.segments[name], rollout.char_ends, mask_BT)
            applies_B = torch.tensor(rewards.applies(name), device=mask_BT.device)
            aspects.append((aspect_BT, index_BT, mask_BT * applies_B[:, None]))
        # The KL penalty is one more aspect, whose segments are single tokens.
        penalty_BT = penalized_BT - rewards.total_BT
        if bool(penalty_BT.any()):
            T = mask_BT.shape[1]
            token_index_BT = torch.arange(T, device=mask_BT.device).expand_as(mask_BT)
            aspects.append((penalty_BT, token_index_BT, mask_BT))
        return segment_advantages(aspects, group_B, gamma, leave_out)

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        policy_BT = policy_gradient_loss(new.logprobs_BT, advantages.advantages_BT)
        return TokenLoss(policy_BT, policy_metrics(new, old, policy_BT))

"""Online DPO (Guo et al. 2024, arXiv 2402.04792): pairs of the policy's own samples.

The rewards judge the K samples of each prompt. The best and the worst of them are a pair, and the
policy learns from it with a loss of DPO:

    h(y) = sum_t (log pi(y_t) - log pi_ref(y_t))        m = h(best) - h(worst)        L = loss(m)

The KL constraint is part of this loss, so the rewards that are compared have no KL penalty.
"""

import torch
from torch import Tensor

from fgrlhf.algorithms.config import OnlineDPOConfig
from fgrlhf.algorithms.group import GroupRelative
from fgrlhf.algorithms.metrics import policy_metrics
from fgrlhf.algorithms.preference_losses import (
    hinge_pair_loss,
    ipo_pair_loss,
    sigmoid_pair_loss,
    weighted_log_ratio,
)
from fgrlhf.algorithms.protocol import Trainer
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss, TokenReward
from fgrlhf.utils import ROUNDING, check_same_shape

PAIR_LOSSES = {"sigmoid": sigmoid_pair_loss, "ipo": ipo_pair_loss, "hinge": hinge_pair_loss}
BEST, WORST = 1.0, -1.0


def best_and_worst(scores_B: Tensor, group_B: Tensor, may_be_B: Tensor, size_B: Tensor) -> Tensor:
    """side_B: `BEST` and `WORST` for one sample of each prompt, 0 for the others and for ties.

    Of equal scores the first sample counts. A prompt has a tie if its scores do not differ by more
    than the rounding error of their sums, or if fewer than two of its samples may be in a pair.

    Args:
      group_B: the prompt of each sample.
      may_be_B: whether a sample may be in a pair.
      size_B: the sum of the absolute values that a score is the sum of.
    """
    check_same_shape(scores_B=scores_B, group_B=group_B, may_be_B=may_be_B, size_B=size_B)
    side_B = torch.zeros_like(scores_B)
    for group in group_B.unique().tolist():
        rows = ((group_B == group) & may_be_B).nonzero()[:, 0]
        if len(rows) < 2:
            continue
        best, worst = rows[scores_B[rows].argmax()], rows[scores_B[rows].argmin()]
        if scores_B[best] - scores_B[worst] > ROUNDING * size_B[rows].sum():
            side_B[best], side_B[worst] = BEST, WORST
    return side_B


def rows_of_pairs(side_B: Tensor, group_B: Tensor) -> Tensor:
    """rows_2G: two samples of each prompt, consecutive: its pair, or with a tie its first two."""
    rows = []
    for group in group_B.unique().tolist():
        of_group = (group_B == group).nonzero()[:, 0]
        order = side_B[of_group].abs().sort(descending=True, stable=True).indices
        rows.append(of_group[order[:2]])
    return torch.cat(rows)


class OnlineDPO(GroupRelative):
    """`advantages_BT` says which samples are compared: 1 for the best, -1 for the worst, else 0.

    DPO's loss is valid for samples of any policy, so a rollout can be used for several epochs.
    """

    config_class = OnlineDPOConfig
    reuses_rollouts = True
    supports_fsdp2 = True
    config: OnlineDPOConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        mask_BT = rollout.response_mask_BT
        total_BT = rewards.total_BT
        scores_B = self.centred(rollout, total_BT, rewards, leave_out=False)[:, 0]
        may_be_B = mask_BT.any(1)
        if "truncated" in self.config.loss.leave_out:
            assert rollout.finished is not None
            may_be_B = may_be_B & torch.tensor(rollout.finished, device=mask_BT.device)
        size_B = (total_BT.abs() * mask_BT).sum(1)
        if self.config.normalize_aspects == "group":  # the scores have another unit
            size_B = scores_B.abs()
        side_B = best_and_worst(scores_B, rollout.group_B, may_be_B, size_B)
        return Advantages(side_B[:, None] * mask_BT)

    def update(
        self, trainer: Trainer, rollout: Rollout, advantages: Advantages
    ) -> dict[str, float]:
        """Optimiser steps on the pairs; the other samples are left out.

        Every prompt has two rows, with a loss of 0 if it has no pair, so all steps have one size.
        """
        side_B = advantages.advantages_BT[:, 0]
        rows_B = rows_of_pairs(side_B, rollout.group_B)
        pairs = rollout.rows(rows_B)
        metrics = trainer.gradient_steps(
            pairs, advantages.rows(rows_B, pairs.response_ids_BT.shape[1])
        )
        return metrics | {"dpo/ties": 1 - float(side_B.abs().sum()) / len(rows_B)}

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        """L of the pair, the same on all tokens of both responses; 0 for a tie.

        The trainer takes the mean over the tokens of each response, then over responses.
        """
        mask_BT = old.response_mask_BT.to(new.logprobs_BT.dtype)
        side_B = advantages.advantages_BT[:, 0].sign()  # a sampler may have weighted them
        ratios_B = weighted_log_ratio(new.logprobs_BT, old.ref_logprobs_BT, mask_BT)
        # the rows of a pair are consecutive, in either order
        margins_N = (side_B * ratios_B).view(-1, 2).sum(1)
        losses_N = PAIR_LOSSES[self.config.pair_loss](margins_N, self.config.beta)

        def on_tokens(values_N: Tensor) -> Tensor:
            return (values_N.repeat_interleave(2) * side_B.abs())[:, None] * mask_BT

        loss_BT = on_tokens(losses_N)
        metrics = policy_metrics(new, old, loss_BT)
        metrics["dpo/margin"] = on_tokens(self.config.beta * margins_N).detach()
        metrics["dpo/accuracy"] = on_tokens((margins_N > 0).to(mask_BT))
        return TokenLoss(loss_BT, metrics)

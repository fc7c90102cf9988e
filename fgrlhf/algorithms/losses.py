"""Losses: pure functions that return one loss per token.

The trainer averages them over a minibatch (`response_weights` in metrics.py).
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fgrlhf.utils import check_same_shape

if TYPE_CHECKING:
    from fgrlhf.algorithms.sections import LossConfig
    from fgrlhf.types import Advantages, PolicyOutput, Rollout


# ---- the policy's loss ---------------------------------------------------------------------------


def policy_gradient_loss(new_logprobs_BT: Tensor, advantages_BT: Tensor) -> Tensor:
    """L_t = -A_t log pi(a_t).

    Its gradient is the policy gradient if a_t was sampled from pi (Williams 1992).
    """
    check_same_shape(new_logprobs_BT=new_logprobs_BT, advantages_BT=advantages_BT)
    return -advantages_BT * new_logprobs_BT


def surrogate_loss(
    new_logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor
) -> Tensor:
    """L_t = -A_t pi_new(a_t) / pi_old(a_t) (Schulman et al. 2015, eq. 14)."""
    check_same_shape(
        new_logprobs_BT=new_logprobs_BT,
        old_logprobs_BT=old_logprobs_BT,
        advantages_BT=advantages_BT,
    )
    ratio_BT = torch.exp(new_logprobs_BT - old_logprobs_BT)
    return -advantages_BT * ratio_BT


def mean_log_ratio(log_ratio_BT: Tensor, segment_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean log-ratio of a token's segment, whose gradient is that of the token's log-ratio.

        log s_t = sg(1 / |S| sum_{u in S} x_u) + x_t - sg(x_t)      x = log pi_new - log pi_old

    S has the tokens of the segment of t, and sg stops the gradient. s is the geometric mean of the
    token ratios: with one segment per response the ratio of GSPO-token (Zheng et al. 2025, arXiv
    2507.18071, eq. 13), with one token per segment the token's own.

    The mean, because the product, which is the importance weight of the segment, moves with its
    length: no clip range fits segments of two and of thirty tokens. The gradient of GSPO-token, as
    that of GSPO would give all tokens the mean of their advantages, and dense rewards would lose
    their place. If the advantages of a segment are equal, both gradients are the same.

    Args:
      segment_BT: the number of the segment of each token.
      mask_BT: 1 on real tokens.
    """
    check_same_shape(log_ratio_BT=log_ratio_BT, segment_BT=segment_BT, mask_BT=mask_BT)
    detached_BT = torch.where(mask_BT.bool(), log_ratio_BT.detach(), 0)
    S = int(segment_BT.max()) + 1
    sums_BS = detached_BT.new_zeros(len(mask_BT), S).scatter_add(1, segment_BT, detached_BT)
    counts_BS = torch.zeros_like(sums_BS).scatter_add(1, segment_BT, mask_BT.to(sums_BS))
    mean_BT = (sums_BS / counts_BS.clamp(min=1)).gather(1, segment_BT)
    return mean_BT + (log_ratio_BT - log_ratio_BT.detach())


def clipped_policy_loss(
    log_ratio_BT: Tensor,
    advantages_BT: Tensor,
    cliprange: float,
    cliprange_high: float | None = None,
    delta: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7), negated.

        rho_t = exp(x_t)
        L_t = max(-A_t min(rho_t, delta), -A_t clip(rho_t, 1 - eps, 1 + eps_high))

    Args:
      log_ratio_BT: x_t = log pi_new(a_t) - log pi_old(a_t), or that of its segment
        (`mean_log_ratio`).
      cliprange: eps.
      cliprange_high: eps_high (Yu et al. 2025, arXiv 2503.14476, eq. 10); None: the same as eps.
      delta: bounds the loss of a token that is bad and has become likely (INTELLECT-2, arXiv
        2505.07291, section 3.4); None: no bound.
    Returns:
      loss_BT, ratio_BT, and clipped_BT: 1 if the clipped term is the larger one.
    """
    check_same_shape(log_ratio_BT=log_ratio_BT, advantages_BT=advantages_BT)
    lowest = 1 - cliprange
    highest = 1 + (cliprange if cliprange_high is None else cliprange_high)
    ratio_BT = torch.exp(log_ratio_BT)
    unclipped_BT = -advantages_BT * ratio_BT.clamp(max=delta or torch.inf)
    clipped_BT = -advantages_BT * ratio_BT.clamp(lowest, highest)
    loss_BT = torch.maximum(unclipped_BT, clipped_BT)
    return loss_BT, ratio_BT, (clipped_BT > unclipped_BT).float()


def cispo_loss(
    log_ratio_BT: Tensor, new_logprobs_BT: Tensor, advantages_BT: Tensor, cliprange_high: float
) -> tuple[Tensor, Tensor]:
    """L_t = -sg(min(rho_t, 1 + eps_high)) A_t log pi_new(a_t).

    MiniMax-M1, arXiv 2506.13585, eq. 4-5, without a lower bound, as in its experiments. Clipping
    bounds the weight of a token, but no token loses its gradient.

    Returns:
      loss_BT, and bounded_BT: 1 if the ratio is above its bound.
    """
    check_same_shape(
        log_ratio_BT=log_ratio_BT, new_logprobs_BT=new_logprobs_BT, advantages_BT=advantages_BT
    )
    ratio_BT = torch.exp(log_ratio_BT.detach())
    loss_BT = -ratio_BT.clamp(max=1 + cliprange_high) * advantages_BT * new_logprobs_BT
    return loss_BT, (ratio_BT > 1 + cliprange_high).float()


def ratio_loss(
    new: "PolicyOutput",
    old: "Rollout",
    advantages: "Advantages",
    settings: "LossConfig",
) -> tuple[Tensor, Tensor]:
    """The loss of an algorithm with a ratio: clipped as in PPO, or that of CISPO.

    Returns:
      loss_BT, and clipped_BT: 1 where the ratio is clipped.
    """
    log_ratio_BT = new.logprobs_BT - old.logprobs_BT
    segment_BT = advantages.segment_BT
    if settings.importance_level == "sequence":
        segment_BT = torch.zeros_like(old.response_ids_BT)
    if settings.importance_level in ("segment", "sequence"):
        assert segment_BT is not None  # the trainer has numbered them
        log_ratio_BT = mean_log_ratio(log_ratio_BT, segment_BT, old.response_mask_BT)
    advantages_BT = advantages.advantages_BT
    low, high = settings.clip
    if settings.type == "cispo":
        return cispo_loss(log_ratio_BT, new.logprobs_BT, advantages_BT, high)
    loss_BT, _, clipped_BT = clipped_policy_loss(
        log_ratio_BT, advantages_BT, low, high, settings.delta
    )
    return loss_BT, clipped_BT


def clipped_value_loss(
    new_values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, cliprange: float | None
) -> tuple[Tensor, Tensor]:
    """Half the squared error of the critic, its step away from the old value clipped.

    Everything is element by element, so an axis of aspects may follow T.

        L_t = 1/2 max((V_t - R_t)^2, (V_old_t + clip(V_t - V_old_t, -eps, eps) - R_t)^2)

    This is the value loss of PPO2 in OpenAI's baselines.

    Args:
      cliprange: eps, in units of the return. Where returns are much larger than eps, clipping
        keeps a new critic from learning. None: no clipping.
    Returns:
      loss_BT, and clipped_BT: 1 if the clipped term is the larger one.
    """
    check_same_shape(
        new_values_BT=new_values_BT, old_values_BT=old_values_BT, returns_BT=returns_BT
    )
    if cliprange is None:
        return 0.5 * (new_values_BT - returns_BT) ** 2, torch.zeros_like(returns_BT)
    step_BT = new_values_BT - old_values_BT
    clipped_values_BT = old_values_BT + step_BT.clamp(-cliprange, cliprange)
    unclipped_BT = (new_values_BT - returns_BT) ** 2
    clipped_BT = (clipped_values_BT - returns_BT) ** 2
    # Within the range both terms are equal up to rounding, which must not count as clipping.
    is_clipped_BT = (clipped_BT > unclipped_BT) & (step_BT.abs() > cliprange)
    return 0.5 * torch.maximum(unclipped_BT, clipped_BT), is_clipped_BT.float()

"""Losses: pure functions that return one loss per token, or one per pair of responses.

The trainer averages them over a minibatch.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fgrlhf.utils import check_same_shape


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


def clipped_policy_loss(
    new_logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    cliprange: float,
    cliprange_high: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7), negated.

        rho_t = exp(log pi_new(a_t) - log pi_old(a_t))
        L_t = max(-A_t rho_t, -A_t clip(rho_t, 1 - eps, 1 + eps_high))

    Args:
      cliprange: eps.
      cliprange_high: eps_high (Yu et al. 2025, arXiv 2503.14476, eq. 10); None: the same as eps.
    Returns:
      loss_BT, ratio_BT, and clipped_BT: 1 if the clipped term is the larger one.
    """
    check_same_shape(
        new_logprobs_BT=new_logprobs_BT,
        old_logprobs_BT=old_logprobs_BT,
        advantages_BT=advantages_BT,
    )
    lowest = 1 - cliprange
    highest = 1 + (cliprange if cliprange_high is None else cliprange_high)
    ratio_BT = torch.exp(new_logprobs_BT - old_logprobs_BT)
    unclipped_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(lowest, highest)
    loss_BT = torch.maximum(unclipped_BT, clipped_BT)
    return loss_BT, ratio_BT, (clipped_BT > unclipped_BT).float()


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


# ---- pairs of responses --------------------------------------------------------------------------


def weighted_log_ratio(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """h_B = sum_t w_t (log pi(a_t) - log pi_ref(a_t)).

    Args:
      weights_BT: w_t, 0 on padding. With w_t = 1 on all tokens h is the response's log-ratio.
    """
    check_same_shape(
        logprobs_BT=logprobs_BT, ref_logprobs_BT=ref_logprobs_BT, weights_BT=weights_BT
    )
    return (weights_BT * (logprobs_BT - ref_logprobs_BT)).sum(1)


def sigmoid_pair_loss(margins_N: Tensor, beta: float) -> Tensor:
    """L = -log sigmoid(beta m), m = h(better) - h(worse).

    DPO (Rafailov et al. 2023, arXiv 2305.18290, eq. 7).
    """
    return -logsigmoid(beta * margins_N)


def hinge_pair_loss(margins_N: Tensor, beta: float) -> Tensor:
    """L = max(0, 1 - beta m).

    The loss of SLiC (Zhao et al. 2023, arXiv 2305.10425), applied to log-ratios as in Liu et al.
    2023, arXiv 2309.06657.
    """
    return (1 - beta * margins_N).clamp(min=0)


def ipo_pair_loss(margins_N: Tensor, beta: float) -> Tensor:
    """L = (m - 1 / (2 beta))^2.

    IPO (Azar et al. 2023, arXiv 2310.12036, eq. 17, where beta is called tau).
    """
    return (margins_N - 1 / (2 * beta)) ** 2


PAIR_LOSSES = {"sigmoid": sigmoid_pair_loss, "hinge": hinge_pair_loss, "ipo": ipo_pair_loss}

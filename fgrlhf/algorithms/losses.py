"""Losses: pure functions that give one loss per token, or per pair of responses. The trainer
averages them over a minibatch.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def policy_gradient_loss(new_logprobs_BT: Tensor, advantages_BT: Tensor) -> Tensor:
    """L_t = -A_t log pi(a_t): its gradient is the policy gradient where a_t was drawn from pi
    (Williams 1992).
    """
    return -advantages_BT * new_logprobs_BT


def surrogate_loss(
    new_logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor
) -> Tensor:
    """L_t = -A_t pi_new(a_t) / pi_old(a_t) (Schulman et al. 2015, eq. 14)."""
    return -advantages_BT * torch.exp(new_logprobs_BT - old_logprobs_BT)


def clipped_policy_loss(
    new_logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    cliprange: float,
    cliprange_high: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7), negated.

        rho_t = exp(log pi_new(a_t) - log pi_old(a_t))
        L_t = max(-A_t rho_t, -A_t clip(rho_t, 1 - eps, 1 + eps))

    `cliprange_high` sets the upper bound apart (Yu et al. 2025, arXiv 2503.14476, eq. 10).
    Returns:
      loss_BT, ratio_BT, clipped_BT (1 where the clipped branch is the larger one).
    """
    ratio_BT = torch.exp(new_logprobs_BT - old_logprobs_BT)
    plain_BT = -advantages_BT * ratio_BT
    bounded_BT = -advantages_BT * ratio_BT.clamp(
        1 - cliprange, 1 + (cliprange if cliprange_high is None else cliprange_high)
    )
    return torch.maximum(plain_BT, bounded_BT), ratio_BT, (bounded_BT > plain_BT).float()


def clipped_value_loss(
    new_values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, cliprange: float | None
) -> tuple[Tensor, Tensor]:
    """Squared error with the step away from the old value clipped (as in OpenAI's baselines' PPO2).

        L_t = 1/2 max((V_t - R_t)^2, (V_old_t + clip(V_t - V_old_t, -eps, eps) - R_t)^2)

    eps is in units of the return: where returns are large it keeps a fresh critic from learning;
    None does not clip.
    Returns:
      loss_BT, clipped_BT.
    """
    if cliprange is None:
        return 0.5 * (new_values_BT - returns_BT) ** 2, torch.zeros_like(returns_BT)
    step_BT = new_values_BT - old_values_BT
    clipped_values_BT = old_values_BT + step_BT.clamp(-cliprange, cliprange)
    plain_BT = (new_values_BT - returns_BT) ** 2
    bounded_BT = (clipped_values_BT - returns_BT) ** 2
    # inside the range both are equal but for a rounding, which must not count
    clipped_BT = (bounded_BT > plain_BT) & (step_BT.abs() > cliprange)
    return 0.5 * torch.maximum(plain_BT, bounded_BT), clipped_BT.float()


def kl_k1(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """The estimator log(pi / pi_ref): unbiased, may be negative (Schulman 2020,
    http://joschu.net/blog/kl-approx.html).
    """
    return logprobs_BT - ref_logprobs_BT


def kl_k3(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """The estimator (pi_ref / pi) - 1 - log(pi_ref / pi): unbiased under samples of pi and never
    negative (ibid.).
    """
    log_ratio_BT = ref_logprobs_BT - logprobs_BT
    return torch.exp(log_ratio_BT) - 1 - log_ratio_BT


# ---- pairs of responses --------------------------------------------------------------------------


def weighted_log_ratio(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """h_B = sum_t w_t (log pi(a_t) - log pi_ref(a_t)); w_t is 0 on padding. With w = 1 it is the
    response's log-ratio.
    """
    return (weights_BT * (logprobs_BT - ref_logprobs_BT)).sum(1)


def sigmoid_pair_loss(margins_N: Tensor, beta: float) -> Tensor:
    """L = -log sigmoid(beta m), m = h(better) - h(worse) (DPO, Rafailov et al. 2023, arXiv
    2305.18290, eq. 7).
    """
    return -logsigmoid(beta * margins_N)


def hinge_pair_loss(margins_N: Tensor, beta: float) -> Tensor:
    """L = max(0, 1 - beta m) (SLiC's, Zhao et al. 2023, arXiv 2305.10425, on log-ratios as in Liu
    et al. 2023, arXiv 2309.06657).
    """
    return (1 - beta * margins_N).clamp(min=0)


def ipo_pair_loss(margins_N: Tensor, beta: float) -> Tensor:
    """L = (m - 1 / (2 beta))^2 (IPO, Azar et al. 2023, arXiv 2310.12036, eq. 17, whose tau is
    beta).
    """
    return (margins_N - 1 / (2 * beta)) ** 2


PAIR_LOSSES = {"sigmoid": sigmoid_pair_loss, "hinge": hinge_pair_loss, "ipo": ipo_pair_loss}

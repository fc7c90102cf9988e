"""Losses of preferences: pure functions that return one loss per pair, answer, span or token.

    l(y) = sum_t w_t log pi(y_t)                         the log-probability of an answer
    h(y) = sum_t w_t (log pi(y_t) - log pi_ref(y_t))     its log-ratio
    m = h(better) - h(worse)                             the margin of a pair

w_t is 1, unless `dpo.span_weight` weights marked tokens. `fgrlhf/preference_terms.py` says which of
these quantities each value of `dpo.loss` compares, and over what its mean is.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fgrlhf.utils import check_same_shape


def weighted_log_ratio(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """h_B = sum_t w_t (log pi(a_t) - log pi_ref(a_t)).

    Args:
      ref_logprobs_BT: 0 for a loss without a reference, which gives l_B.
      weights_BT: w_t, 0 on padding. With w_t = 1 on all tokens h is the response's log-ratio.
    """
    check_same_shape(
        logprobs_BT=logprobs_BT, ref_logprobs_BT=ref_logprobs_BT, weights_BT=weights_BT
    )
    return (weights_BT * (logprobs_BT - ref_logprobs_BT)).sum(1)


# ---- pairs ---------------------------------------------------------------------------------------


def sigmoid_pair_loss(margins_N: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """L = -(1 - e) log sigmoid(beta m) - e log sigmoid(-beta m).

    DPO with e = 0 (Rafailov et al. 2023, arXiv 2305.18290, eq. 7). Conservative DPO with e > 0
    (Mitchell 2023, ericmitchell.ai/cdpo.pdf): the judgement is wrong with the probability e,
    so that the loss is least at a finite margin, sigmoid(beta m) = 1 - e.
    """
    agrees_N = logsigmoid(beta * margins_N)
    if label_smoothing == 0:
        return -agrees_N
    differs_N = logsigmoid(-beta * margins_N)
    return -(1 - label_smoothing) * agrees_N - label_smoothing * differs_N


def robust_pair_loss(margins_N: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """L = (-(1 - e) log sigmoid(beta m) + e log sigmoid(-beta m)) / (1 - 2 e).

    Robust DPO (Chowdhury et al. 2024, arXiv 2403.00409). If judgements are reversed with
    the probability e < 1/2, its mean is DPO's loss on the judgements without noise.
    """
    agrees_N = logsigmoid(beta * margins_N)
    differs_N = logsigmoid(-beta * margins_N)
    clean_N = -(1 - label_smoothing) * agrees_N + label_smoothing * differs_N
    return clean_N / (1 - 2 * label_smoothing)


def hinge_pair_loss(margins_N: Tensor, beta: float) -> Tensor:
    """L = max(0, 1 - beta m).

    The loss of SLiC (Zhao et al. 2023, arXiv 2305.10425), applied to log-ratios as in Liu et al.
    2023, arXiv 2309.06657.
    """
    return (1 - beta * margins_N).clamp(min=0)


def ipo_pair_loss(margins_N: Tensor, beta: float) -> Tensor:
    """L = (m - 1 / (2 beta))^2.

    IPO (Azar et al. 2023, arXiv 2310.12036, eq. 17, where beta is called tau). `ipo_norm` gives it
    the margin of h / |y|, as TRL's `ipo` does.
    """
    return (margins_N - 1 / (2 * beta)) ** 2


def apo_zero_loss(better_N: Tensor, worse_N: Tensor, beta: float) -> Tensor:
    """L = 1 - sigmoid(beta h(better)) + sigmoid(beta h(worse)).

    APO-zero (D'Oosterlinck et al. 2024, arXiv 2408.06266, eq. 7): better answers become more
    likely, worse ones less, which fits better answers that the policy should learn.
    """
    check_same_shape(better_N=better_N, worse_N=worse_N)
    return torch.sigmoid(-beta * better_N) + torch.sigmoid(beta * worse_N)


def apo_down_loss(better_N: Tensor, worse_N: Tensor, beta: float) -> Tensor:
    """L = sigmoid(beta h(better)) + 1 - sigmoid(beta m).

    APO-down (D'Oosterlinck et al. 2024, arXiv 2408.06266, eq. 8): both answers become less likely,
    the worse one more so, which fits better answers that are worse than the policy's own.
    """
    check_same_shape(better_N=better_N, worse_N=worse_N)
    return torch.sigmoid(beta * better_N) + torch.sigmoid(-beta * (better_N - worse_N))


def odds_ratio_loss(better_N: Tensor, worse_N: Tensor) -> Tensor:
    """L = -log sigmoid(log odds(better) - log odds(worse)), odds(y) = p / (1 - p).

    The second term of ORPO (Hong et al. 2024, arXiv 2403.07691, eq. 7).

    Args:
      better_N, worse_N: log p, the mean log-probability of a token: l / |y|.
    """
    check_same_shape(better_N=better_N, worse_N=worse_N)
    log_odds_N = better_N - log1mexp(better_N) - (worse_N - log1mexp(worse_N))
    return -logsigmoid(log_odds_N)


# ---- answers and spans ---------------------------------------------------------------------------


def kto_loss(
    ratios_M: Tensor,
    is_good_M: Tensor,
    kl: Tensor,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """The loss of KTO, which compares every answer with a divergence z.

        L = lambda_D (1 - sigmoid(beta (h - z)))     of a good answer
        L = lambda_U (1 - sigmoid(beta (z - h)))     of a bad one

    Ethayarajh et al. 2024, arXiv 2402.01306. It needs no pairs. z is the policy's KL divergence
    from the reference.

    Args:
      ratios_M: h of answers, or of spans.
      is_good_M: whether each is good.
      kl: z, of the shape of `ratios_M` or (), 0 or more. No gradient flows through it.
    """
    check_same_shape(ratios_M=ratios_M, is_good_M=is_good_M)
    advantage_M = beta * (ratios_M - kl.detach())
    good_M = desirable_weight * torch.sigmoid(-advantage_M)
    bad_M = undesirable_weight * torch.sigmoid(advantage_M)
    return torch.where(is_good_M, good_M, bad_M)


def unlikelihood_loss(logprobs_T: Tensor) -> Tensor:
    """L_t = -log(1 - pi(y_t)).

    Unlikelihood training (Welleck et al. 2019, arXiv 1908.04319), here of the tokens of errors.
    """
    return -log1mexp(logprobs_T)


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0, exact near 0 and far from it (Maechler 2012).

    Above -1e-6, where p rounds to 1 in float32, x counts as -1e-6: a token that is certain has a
    loss and a gradient that are finite.
    """
    x = x.clamp(max=-1e-6)
    is_near = x > -math.log(2)
    # each branch gets an argument that is harmless there, so that no gradient is NaN
    near = torch.log(-torch.expm1(torch.where(is_near, x, -1.0)))
    far = torch.log1p(-torch.exp(torch.where(is_near, -1.0, x)))
    return torch.where(is_near, near, far)

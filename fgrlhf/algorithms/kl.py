"""The KL divergence from the reference policy per token, and settings that adapt in a run."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fgrlhf.utils import check_same_shape

MIN_FACTOR = 0.5  # the coefficient never falls faster in one step
MAX_CHANGE = 2.0  # of the sampling temperature, up and down


def kl_k1(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """k1 = log(pi / pi_ref), in nats per token.

    Unbiased under samples of pi; single tokens may be negative (Schulman 2020,
    http://joschu.net/blog/kl-approx.html).
    """
    check_same_shape(logprobs_BT=logprobs_BT, ref_logprobs_BT=ref_logprobs_BT)
    return logprobs_BT - ref_logprobs_BT


def kl_k3(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """k3 = pi_ref / pi - 1 - log(pi_ref / pi), in nats per token.

    Unbiased under samples of pi and never negative (Schulman 2020, as above).
    """
    check_same_shape(logprobs_BT=logprobs_BT, ref_logprobs_BT=ref_logprobs_BT)
    log_ratio_BT = ref_logprobs_BT - logprobs_BT
    return torch.exp(log_ratio_BT) - 1 - log_ratio_BT


def token_divergence(student_logits_NV: Tensor, teacher_logits_NV: Tensor, beta: float) -> Tensor:
    """D_N(p_T, p_S) of two distributions over the vocabulary, in nats.

        beta = 0        KL(p_T || p_S), forward
        0 < beta < 1    JSD(beta) = beta KL(p_T || m) + (1 - beta) KL(p_S || m)
        beta = 1        KL(p_S || p_T), reverse

    with p = softmax(logits) and m = beta p_T + (1 - beta) p_S (Agarwal et al. 2023, arXiv
    2306.13649, eq. 1). JSD(beta) / beta tends to the forward KL as beta tends to 0, and
    JSD(beta) / (1 - beta) to the reverse KL as it tends to 1, so near both ends the divergence
    itself is small.
    """
    check_same_shape(student_logits_NV=student_logits_NV, teacher_logits_NV=teacher_logits_NV)
    student_NV = student_logits_NV.log_softmax(-1)
    teacher_NV = teacher_logits_NV.log_softmax(-1)
    if beta == 0:
        return _kl(teacher_NV, student_NV)
    if beta == 1:
        return _kl(student_NV, teacher_NV)
    mixture_NV = torch.logaddexp(teacher_NV + math.log(beta), student_NV + math.log1p(-beta))
    return beta * _kl(teacher_NV, mixture_NV) + (1 - beta) * _kl(student_NV, mixture_NV)


def _kl(logprobs_NV: Tensor, other_NV: Tensor) -> Tensor:
    """KL(p || q) of log-probabilities."""
    return (logprobs_NV.exp() * (logprobs_NV - other_NV)).sum(-1)


@dataclass
class KLController:
    """The coefficient beta of the KL penalty: fixed, or adapted to keep the KL near a target.

    With a target (Ziegler et al. 2019, section 2.2) each step changes it by

        e = clip((KL - target) / target, -0.2, 0.2)
        beta <- beta * max(1 + e * episodes / horizon, MIN_FACTOR)

    The bound is not in the paper, whose steps are much smaller than the horizon. It acts if a step
    has more than 2.5 horizons of episodes; from 5 on, beta would become 0 or negative and reward
    the KL.

    Args:
      coef: beta, or its first value.
      target: KL per response in nats (the batch mean of the summed log-ratio); None: beta is fixed.
      horizon: episodes over which a constant error e changes beta by the factor 1 + e.
    """

    coef: float
    target: float | None = None
    horizon: int = 10_000

    def update(self, kl: float, episodes: int) -> None:
        """Adapt beta to the KL measured over the last `episodes` responses."""
        if self.target is None:
            return
        error = (kl - self.target) / self.target
        error = min(max(error, -0.2), 0.2)
        self.coef *= max(1 + error * episodes / self.horizon, MIN_FACTOR)


@dataclass
class EntropyController:
    """The coefficient c of the entropy bonus: fixed, or adapted to keep the entropy near a target.

    With a target H* (Skywork-OR1, He et al. 2025, arXiv 2505.22312, section 4.2), a step whose
    update had the entropy H changes it by

        alpha <- alpha + step  if H <= H*,  else max(alpha - step, 0)
        c = alpha              if H <= H*,  else 0

    The paper does not say that alpha stays above 0; a negative one would punish entropy.

    Args:
      step: c without a target, else the change of alpha, which begins at 0.
      target: H*, the mean entropy of the next token in nats; None: c is fixed.
    """

    step: float
    target: float | None = None
    alpha: float = 0.0
    coef: float = field(init=False)

    def __post_init__(self):
        self.coef = self.step if self.target is None else 0.0

    def update(self, entropy: float) -> None:
        """Adapt c to the entropy measured in the last update."""
        if self.target is None:
            return
        is_low = entropy <= self.target
        self.alpha = max(self.alpha + (self.step if is_low else -self.step), 0.0)
        self.coef = self.alpha if is_low else 0.0


@dataclass
class TemperatureController:
    """The sampling temperature T: fixed, or adapted to the spread of the rewards.

    With a target sigma*, a step samples at

        T = T_0 clip(sigma* / sigma, 1 / MAX_CHANGE, MAX_CHANGE)

    where sigma is the standard deviation of the last step's rewards, and T = T_0 in the first step.
    So rewards that hardly differ are followed by more varied samples. The rule is minRL's
    (https://github.com/brianfitzgerald/minRL, commit 38b2c0d, which later gave it up), whose
    bounds are two temperatures, .6 and 2 for T_0 = 1.2.

    Args:
      first: T_0.
      target: sigma*, in units of the reward of a response; None: T is fixed.
    """

    first: float
    target: float | None = None
    value: float = field(init=False)

    def __post_init__(self):
        self.value = self.first

    def update(self, reward_std: float) -> None:
        """Adapt T to the standard deviation of the last step's rewards."""
        if self.target is None:
            return
        factor = self.target / reward_std if reward_std > 0 else MAX_CHANGE
        self.value = self.first * min(max(factor, 1 / MAX_CHANGE), MAX_CHANGE)

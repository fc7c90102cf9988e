"""Corrections for responses that another program sampled, with slightly other probabilities.

An engine rounds differently than the trainer, or has older weights. Its distribution mu is then not
the policy pi that the update assumes. A run bounds the gap between the two, and weights the
policy's loss.
"""

from dataclasses import replace

import torch
from torch import Tensor

from fgrlhf.algorithms.kl import kl_k3
from fgrlhf.base.errors import UserError
from fgrlhf.samplers.config import VllmSamplerConfig
from fgrlhf.types import Advantages, Rollout
from fgrlhf.utils import check_same_shape, masked_mean


def truncated_importance_weights(
    logprobs_BT: Tensor, behaviour_logprobs_BT: Tensor, cap: float
) -> Tensor:
    """weights_BT = min(pi(a_t) / mu(a_t), cap) = min(exp(logprobs - behaviour_logprobs), cap).

    The mean of w_t f(a_t) over samples of mu is the mean of f(a_t) over samples of pi as soon as no
    ratio exceeds the cap. A smaller cap bounds the variance and biases the mean. This holds for one
    token given its prefix: the prefix, and what follows the token, are still samples of mu. The
    product of the weights of a whole response would correct them too, with a far larger variance.

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training" (truncated importance sampling); Espeholt et al. 2018, IMPALA, arXiv 1802.01561,
    section 4.1 (the truncated weights of V-trace).

    Args:
      logprobs_BT: log pi(a_t), of the policy before the update; 0 on padding.
      behaviour_logprobs_BT: log mu(a_t), of the sampler; 0 on padding.
      cap: at least 1.
    Returns:
      weights_BT without a gradient; 1 on padding.
    """
    check_same_shape(logprobs_BT=logprobs_BT, behaviour_logprobs_BT=behaviour_logprobs_BT)
    log_ratio_BT = (logprobs_BT - behaviour_logprobs_BT).detach()
    return torch.exp(log_ratio_BT).clamp(max=cap)


def sampler_gap(
    logprobs_BT: Tensor, behaviour_logprobs_BT: Tensor, mask_BT: Tensor
) -> dict[str, float]:
    """How far the sampler's log-probabilities are from the recomputed ones, over real tokens.

    With d_t = logprobs - behaviour_logprobs:

        sampler/gap      mean of |d_t|
        sampler/gap_max  maximum of |d_t|
        sampler/gap_k3   mean of exp(d_t) - 1 - d_t, an estimate of KL(mu || pi) per token

    Args:
      logprobs_BT, behaviour_logprobs_BT: as above.
      mask_BT: 1 on real tokens.
    """
    difference_BT = (logprobs_BT - behaviour_logprobs_BT).abs() * mask_BT
    return {
        "sampler/gap": float(masked_mean(difference_BT, mask_BT)),
        "sampler/gap_max": float(difference_BT.max()),
        "sampler/gap_k3": float(masked_mean(kl_k3(behaviour_logprobs_BT, logprobs_BT), mask_BT)),
    }


def checked_gap(rollout: Rollout, settings: VllmSamplerConfig, step: int) -> dict[str, float]:
    """The metrics of the gap (`sampler_gap`); {} if the policy itself sampled.

    With `sampler.one_step_behind`, the gap contains the policy's own change in the last update.

    Raises:
      UserError: the gap exceeds `sampler.max_gap`. All ranks have the same rollout: all stop.
    """
    if rollout.behaviour_logprobs_BT is None:
        return {}
    gap = sampler_gap(rollout.logprobs_BT, rollout.behaviour_logprobs_BT, rollout.response_mask_BT)
    mean = gap["sampler/gap"]
    if settings.max_gap is None or mean <= settings.max_gap:
        return gap
    own_change = ""
    if settings.one_step_behind:
        own_change = (
            " With sampler.one_step_behind the gap also contains the last update: a large one is"
            " another cause (lower train.lr)."
        )
    raise UserError(
        f"at step {step} the log-probabilities of {settings.url} differ from the"
        f" policy's by {mean:.3g} per token, which exceeds sampler.max_gap="
        f"{settings.max_gap:g}. Likely causes: it did not load the last weights (does it"
        f" serve sampler.sync_dir={settings.sync_dir}?), it reports raw log-probabilities"
        " (start it with --logprobs-mode processed_logprobs), or a lower precision"
        f" (--dtype, quantization).{own_change} Correct that, or raise sampler.max_gap, then run"
        " the same command again"
    )


def importance_weighted(
    advantages: Advantages, old: Rollout, settings: VllmSamplerConfig
) -> tuple[Advantages, dict[str, Tensor]]:
    """Advantages times truncated importance weights, and metrics of the weights per token.

    The policy's loss is A_t times a function of the log-probabilities, or for PPO the larger of
    two such terms. Weights are not negative, so a weighted advantage weights that loss. The
    critic's loss reads the returns, which stay as they are.

    Without `sampler.importance_cap`, and for the policy's own samples, nothing changes.
    """
    cap = settings.importance_cap
    if cap is None or old.behaviour_logprobs_BT is None:
        return advantages, {}
    weights_BT = truncated_importance_weights(old.logprobs_BT, old.behaviour_logprobs_BT, cap)
    metrics = {
        "importance/weight": weights_BT,
        "importance/capped": (weights_BT >= cap).float(),
    }
    weighted_BT = advantages.advantages_BT * weights_BT
    return replace(advantages, advantages_BT=weighted_BT), metrics

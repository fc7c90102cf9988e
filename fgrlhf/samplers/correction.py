"""What a run does about a sampler whose probabilities are not quite the policy's.

It bounds the gap between the two, and weights the policy's loss.
"""

from dataclasses import replace

from torch import Tensor

from fgrlhf.algorithms.importance import sampler_gap, truncated_importance_weights
from fgrlhf.base.errors import UserError
from fgrlhf.samplers.config import AnySampler, VllmSamplerConfig
from fgrlhf.types import Advantages, Rollout


def checked_gap(rollout: Rollout, settings: AnySampler, step: int) -> dict[str, float]:
    """The metrics of the gap (`sampler_gap`); {} if the policy itself sampled.

    With `sampler.one_step_behind`, the gap contains the policy's own change in the last update.

    Raises:
      UserError: the gap exceeds `sampler.max_gap`. All ranks have the same rollout: all stop.
    """
    if rollout.behaviour_logprobs_BT is None or not isinstance(settings, VllmSamplerConfig):
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
    advantages: Advantages, old: Rollout, settings: AnySampler
) -> tuple[Advantages, dict[str, Tensor]]:
    """Advantages times truncated importance weights, and metrics of the weights per token.

    The policy's loss is A_t times a function of the log-probabilities, or for PPO the larger of
    two such terms. Weights are not negative, so a weighted advantage weights that loss. The
    critic's loss reads the returns, which stay as they are.

    Without `sampler.importance_cap`, and for the policy's own samples, nothing changes.
    """
    cap = settings.importance_cap if isinstance(settings, VllmSamplerConfig) else None
    if cap is None or old.behaviour_logprobs_BT is None:
        return advantages, {}
    weights_BT = truncated_importance_weights(old.logprobs_BT, old.behaviour_logprobs_BT, cap)
    metrics = {
        "importance/weight": weights_BT,
        "importance/capped": (weights_BT >= cap).float(),
    }
    weighted_BT = advantages.advantages_BT * weights_BT
    return replace(advantages, advantages_BT=weighted_BT), metrics

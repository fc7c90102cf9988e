"""Builds the rewards that a config describes."""

from collections.abc import Mapping

from fgrlhf.base.errors import UserError
from fgrlhf.reward import AspectReward, AtEnd, CombinedReward
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.scorers.base import RewardContext


def build_reward(configs: Mapping[str, RewardKind], context: RewardContext) -> CombinedReward:
    """Build the reward that a config describes and load its models. Errors: `build_aspects`."""
    aspects, weights = build_aspects(configs, context)
    return CombinedReward(aspects, weights)


def build_aspects(
    configs: Mapping[str, RewardKind], context: RewardContext
) -> tuple[dict[str, AspectReward], dict[str, float]]:
    """The rewards of a config, and their weights.

    A reward of weight 0 is skipped, and its model is not loaded.

    Raises:
      UserError: a checkpoint is missing or of the wrong kind, or no reward is left.
    """
    aspects: dict[str, AspectReward] = {}
    weights: dict[str, float] = {}
    for name, config in configs.items():
        if config.weight == 0:
            continue
        aspect = config.build(context)
        aspects[name] = AtEnd(aspect) if config.at_end else aspect
        weights[name] = config.weight
    if not aspects:
        raise UserError(
            "there is no reward, or every reward has weight 0, so there is nothing to train for."
            " Give at least one reward under `reward:`"
        )
    return aspects, weights

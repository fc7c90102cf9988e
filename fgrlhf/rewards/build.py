"""Builds the rewards that a config describes, and keeps the weights that change in training."""

from collections.abc import Mapping
from dataclasses import replace

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.reward import (
    ERROR_FREE,
    AspectReward,
    AtEnd,
    BasicReward,
    CombinedReward,
    MeasuredReward,
    SequenceScorerReward,
)
from fgrlhf.rewards.kind import Constraint, RewardKind, WeightSchedule
from fgrlhf.scorers.base import RewardContext
from fgrlhf.types import TokenReward


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
        if config.base_weight == 0:
            continue
        aspect = config.build(context)
        _check_constraint(name, config.constraint, aspect)
        aspects[name] = AtEnd(aspect) if config.at_end else aspect
        weights[name] = config.base_weight
    if not aspects:
        raise UserError(
            "there is no reward, or every reward has weight 0, so there is nothing to train for."
            " Give at least one reward under `reward:`"
        )
    return aspects, weights


def _check_constraint(name: str, constraint: Constraint | None, aspect: AspectReward) -> None:
    """Raise `UserError` if a reward never has the metric of its constraint."""
    if constraint is None or constraint.metric != "ratio":
        return
    member = getattr(aspect, "members", [aspect])[0]  # of an ensemble
    if isinstance(member, SequenceScorerReward) or not isinstance(aspect, MeasuredReward):
        raise _no_ratio(name)


def _no_ratio(name: str) -> UserError:
    return UserError(
        f"reward.{shorten(name)}.constraint.metric=ratio needs a reward that counts segments"
        " without an error, such as a segment_classifier: use metric=reward"
    )


class RewardWeights:
    """The weights of training that change: on a schedule, or to keep a bound (kind.py).

    Rewards that are logged and evaluated keep their base weight.

    Args:
      configs: the rewards' sections, of which those with a constant weight are ignored.
    """

    def __init__(self, configs: Mapping[str, RewardKind]):
        self.base = {name: config.base_weight for name, config in configs.items()}
        self.schedules = {}
        self.constraints = {}
        for name, config in configs.items():
            if isinstance(config.weight, WeightSchedule):
                self.schedules[name] = config.weight
            if config.constraint is not None:
                self.constraints[name] = config.constraint
        # constrained reward -> its weight: the multiplier of the bound
        self.multipliers = {name: self.base[name] for name in self.constraints}

    def at(self, step: int) -> dict[str, float]:
        """The weights that change, by name."""
        return {name: plan.at(step) for name, plan in self.schedules.items()} | self.multipliers

    def applied(self, rewards: TokenReward, step: int) -> TokenReward:
        """The rewards with the weights of a step in place of the base weights, which are logged."""
        now = {name: weight for name, weight in self.at(step).items() if name in rewards.by_aspect}
        values = {
            name: rewards.by_aspect[name] * (weight / self.base[name])
            for name, weight in now.items()
        }
        return replace(
            rewards,
            by_aspect={**rewards.by_aspect, **values},
            weights={**rewards.weights, **now},
            logged=rewards,
        )

    def follow(self, rewards: TokenReward, reward: BasicReward) -> dict[str, float]:
        """Move the multipliers by a batch with base weights.

        A batch to which a reward does not apply leaves its multiplier alone.

        Returns:
          the batch's value of each constraint's metric, by reward.
        """
        values = {}
        for name, constraint in self.constraints.items():
            value = _constrained_value(name, constraint.metric, rewards, reward)
            if value is not None:
                values[name] = value
                self.multipliers[name] = constraint.followed(self.multipliers[name], value)
        return values


def _constrained_value(
    name: str, metric: str, rewards: TokenReward, reward: BasicReward
) -> float | None:
    """A batch's value of a constraint's metric; None if the reward applies to nothing."""
    judged = [scores for scores in rewards.segments[name] if scores is not None]
    if metric == "reward":
        totals = [sum(score.value for score in scores) for scores in judged]
        return sum(totals) / len(totals) / rewards.weight(name) if totals else None
    counts = [reward.measures(name, scores) for scores in judged]
    if not all(ERROR_FREE in count for count in counts):
        raise _no_ratio(name)
    segments = sum(count["segments"] for count in counts)
    return sum(count[ERROR_FREE] for count in counts) / segments if segments else None

"""Weights that change during training: schedules, and multipliers of constraints."""

import json
import math

import pytest
import torch
from rl_helpers import CountWord, config, lengths_mask, metrics, trainer

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import validate
from fgrlhf.reward import CombinedReward
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.rewards.build import RewardWeights, build_reward
from fgrlhf.rewards.kind import Constraint, RewardKind, WeightSchedule
from fgrlhf.rewards.kinds import Length, Repetition
from fgrlhf.scorers.base import RewardContext
from fgrlhf.text_types import SegmentScore
from fgrlhf.types import TokenReward


def reward_kind(**settings) -> Repetition:
    return validate(Repetition, {"kind": "repetition", "value": -1.0, **settings}, "test config")


def rewards_of(values, weights=None, applies=None) -> TokenReward:
    """A batch of one-token responses; `values` of each reward, with its weight."""
    B = len(next(iter(values.values())))
    mask_BT = lengths_mask([1] * B)
    by_aspect = {name: torch.tensor(row)[:, None] for name, row in values.items()}
    segments = {name: [[SegmentScore(0, None, v)] for v in row] for name, row in values.items()}
    for name, row in (applies or {}).items():
        segments[name] = [s if is_judged else None for s, is_judged in zip(segments[name], row)]
    return TokenReward(by_aspect, segments, mask_BT, weights or {})


# ---- schedules -----------------------------------------------------------------------------------


def test_a_schedule_by_hand():
    plan = WeightSchedule.model_validate({"from": 2.0, "to": -1.0, "steps": 3})
    assert [plan.at(step) for step in range(5)] == pytest.approx([2, 1, 0, -1, -1])


def test_evaluations_have_the_weight_at_the_end():
    for start, end, base in ((0.0, 2.0, 2.0), (3.0, 0.0, 3.0), (1.0, -1.0, -1.0)):
        kind = reward_kind(weight={"from": start, "to": end, "steps": 2})
        assert kind.base_weight == base
    assert reward_kind(weight=0.5).base_weight == 0.5
    # the config that a run records can be read again
    kind = reward_kind(weight={"from": 0, "to": 2, "steps": 2})
    assert json.loads(kind.model_dump_json())["weight"] == {"from": 0, "to": 2, "steps": 2}
    assert validate(Repetition, kind.model_dump(), "test config") == kind


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": {"from": 1, "to": 1, "steps": 2}}, "write the weight as a number"),
        ({"weight": {"from": 1, "to": 2, "steps": 0}}, "steps"),
        ({"weight": {"from": 1, "to": 2}}, r"1 mistake:\n  weight\.steps: missing; add"),
        ({"weight": {"from": 1, "to": 2, "steps": 3, "end": 2}}, "known here: from, steps, to"),
        ({"weight": "much"}, r"1 mistake:\n  weight: input should be a valid number"),
        ({"weight": [1]}, r"1 mistake:\n  weight: input should be a valid number"),
        ({"weight": -1, "constraint": {"at_least": 1}}, "a number above 0"),
        ({"weight": 0, "constraint": {"at_least": 1}}, "a number above 0"),
        (
            {"weight": {"from": 1, "to": 2, "steps": 3}, "constraint": {"at_least": 1}},
            "a number above 0",
        ),
    ],
)
def test_weights_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        reward_kind(**settings)


def test_the_weights_of_a_step():
    kinds: dict[str, RewardKind] = {
        "a": reward_kind(weight={"from": 0, "to": 4, "steps": 4}),
        "b": Length(value=-1.0, max_words=1, weight=2.0),
    }
    weights = RewardWeights(kinds)
    rewards = rewards_of({"a": [4.0, 8.0], "b": [2.0, -2.0]}, {"a": 4.0, "b": 2.0})
    for step, factor in ((0, 0.0), (1, 0.25), (4, 1.0), (9, 1.0)):
        now = weights.applied(rewards, step)
        assert now.by_aspect["a"][:, 0].tolist() == [4 * factor, 8 * factor]
        assert now.by_aspect["b"][:, 0].tolist() == [2, -2]
        assert now.weights == {"a": 4 * factor, "b": 2}
        assert weights.at(step) == {"a": 4 * factor}


def test_a_run_follows_its_schedule_and_logs_rewards_in_one_unit(tmp_path):
    def run(folder, weight, until=None):
        changes = {"reward__cat": {"kind": "count", "weight": weight}}
        settings = config(tmp_path / folder, train__total_episodes=32, **changes)
        reward = CombinedReward(
            {"cat": CountWord("a")}, {"cat": settings.reward["cat"].base_weight}
        )
        trainer(settings, reward=reward).train(until)
        return metrics(tmp_path / folder)

    scheduled = {"from": 0.0, "to": 2.0, "steps": 2}
    rows = run("scheduled", scheduled)
    assert [row["weight/cat"] for row in rows] == [0, 1, 2, 2]
    # the first step has weight 0, so only the KL moves the policy: the logged reward is not 0
    assert rows[0]["reward/cat"] > 0 and rows[0]["reward/penalized"] == pytest.approx(0, abs=1e-5)
    constant = run("constant", 2.0)
    assert rows[0]["reward/cat"] == constant[0]["reward/cat"]
    assert "weight/cat" not in constant[0]
    run("resumed", scheduled, until=2)
    assert run("resumed", scheduled) == rows


# ---- constraints ---------------------------------------------------------------------------------


def test_a_multiplier_by_hand():
    bound = Constraint(at_least=0.5, lr=2.0)
    assert bound.followed(1.0, 0.25) == 1.5  # broken by 1/4
    assert bound.followed(1.0, 0.75) == 0.5
    assert bound.followed(0.1, 2.0) == 0.0  # never below


@pytest.mark.parametrize("metric", ["reward", "ratio"])
def test_the_multiplier_follows_the_batch(metric):
    class Labels:
        def segment_scores(self, prompts, texts):
            raise NotImplementedError

        def measures(self, scores):
            return {"error_free": sum(score.value > 1 for score in scores), "segments": 1.0}

    bound = {"metric": metric, "at_least": 0.5, "lr": 1.0}
    weights = RewardWeights({"a": reward_kind(weight=2.0, constraint=bound)})
    reward = CombinedReward({"a": Labels()}, {"a": 2.0})  # pyright: ignore[reportArgumentType]
    # without the weight: 2, -1 and, not judged, 8
    rewards = rewards_of({"a": [4.0, -2.0, 16.0]}, {"a": 2.0}, {"a": [True, True, False]})
    value = {"reward": 0.5, "ratio": 0.5}[metric]
    assert weights.follow(rewards, reward) == {"a": value}
    assert weights.multipliers == {"a": 2.0}
    assert weights.follow(rewards_of({"a": [-2.0]}, {"a": 2.0}), reward) == {
        "a": {"reward": -1.0, "ratio": 0.0}[metric]
    }
    assert weights.multipliers == {"a": {"reward": 3.5, "ratio": 2.5}[metric]}
    nothing = rewards_of({"a": [1.0]}, {"a": 2.0}, {"a": [False]})
    assert weights.follow(nothing, reward) == {}


def test_a_ratio_needs_segments():
    weights = RewardWeights({"a": reward_kind(constraint={"metric": "ratio", "at_least": 0.5})})
    with pytest.raises(UserError, match="use metric=reward"):
        weights.follow(rewards_of({"a": [1.0]}), CombinedReward({"a": CountWord()}))


def test_a_ratio_without_segments_is_refused_before_training():
    bound = Constraint(metric="ratio", at_least=0.5)
    length = Length(value=-0.1, max_words=3, constraint=bound)
    with pytest.raises(UserError, match=r"reward\.short\.constraint\.metric=ratio needs"):
        build_reward({"short": length}, RewardContext(text_prefix))


def test_a_bandit_with_two_arms_reaches_the_known_optimum():
    """Arm 1 earns 1, arm 2 keeps the bound P(arm 2) >= .3.

    With the KL from the uniform policy times beta, stationarity at p = P(arm 2) = .3 is
    1 - w = -beta log(p / (1 - p)), so the multiplier is w = 1 + beta log(.3 / .7).
    """
    beta = 0.5
    weights = RewardWeights({"b": reward_kind(constraint={"at_least": 0.3, "lr": 0.5})})
    logit = torch.zeros((), dtype=torch.double)  # of arm 2
    for _ in range(4000):
        p = float(torch.sigmoid(logit))
        gain = weights.at(0)["b"] - 1 - beta * math.log(p / (1 - p))
        logit += 0.2 * p * (1 - p) * gain  # the exact gradient
        weights.follow(rewards_of({"b": [p]}), CombinedReward({"b": CountWord()}))
    assert p == pytest.approx(0.3, abs=1e-6)
    assert weights.multipliers["b"] == pytest.approx(1 + beta * math.log(0.3 / 0.7), abs=1e-6)


def test_a_run_with_a_constraint_resumes_with_its_multiplier(tmp_path):
    def run(folder, until=None):
        bound = {"at_least": 3.0, "lr": 0.5}
        changes = {"reward__cat": {"kind": "count", "weight": 1.0, "constraint": bound}}
        settings = config(tmp_path / folder, train__total_episodes=32, **changes)
        trainer(settings, reward=CombinedReward({"cat": CountWord("a")})).train(until)
        return metrics(tmp_path / folder)

    rows = run("whole")
    run("resumed", until=2)
    assert run("resumed") == rows
    for row, after in zip(rows, rows[1:]):
        assert row["constraint/cat"] == pytest.approx(row["reward/cat"])
        moved = max(0.0, row["weight/cat"] + 0.5 * (3.0 - row["constraint/cat"]))
        assert after["weight/cat"] == pytest.approx(moved)
    assert rows[1]["weight/cat"] != rows[0]["weight/cat"] == 1.0

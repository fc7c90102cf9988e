"""Scores of policies by prompt, and learning curves."""

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_text
from fgrlhf.pipeline.scores import Point, learning_curve, paired_scores, read_log


def test_scores_are_of_the_prompts_that_all_have():
    rows = {
        "a": [[{"id": "x", "m": 1.0}, {"id": "y", "m": 2.0}, {"id": "x", "m": 3.0}]],
        "b": [[{"id": "y", "m": 5.0}, {"id": "x", "m": 6.0}, {"id": "z", "m": 7.0}]],
    }
    scores = paired_scores(rows, "m")
    assert scores["a"][0].tolist() == [2.0, 2.0] and scores["b"][0].tolist() == [6.0, 5.0]
    rows["b"][0][1]["m"] = None  # not applicable
    assert paired_scores(rows, "m")["a"][0].tolist() == [2.0]
    with pytest.raises(UserError, match="no prompt with `k` in common; they have m"):
        paired_scores(rows, "k")


LOG = [
    {"step": 0, "eval/oracle/gold": 0.5, "eval/kl": 0.0},
    {"step": 0, "episodes": 64, "time/rollout": 1.0, "time/update": 2.0},
    {"step": 1, "episodes": 128, "time/rollout": 1.5, "time/update": 2.5},
    {"step": 2, "eval/oracle/gold": 0.7, "eval/kl": 3.0},
    {"step": 3, "eval/oracle/gold": None},
]


@pytest.mark.parametrize("line", ["[1]", "3", '{"episodes": 8}', '{"step": "x"}'])
def test_a_damaged_log_is_named(tmp_path, line):
    write_text(tmp_path / "metrics.jsonl", f'{{"step": 0}}\n{line}\n')
    with pytest.raises(UserError, match="metrics.jsonl, line 2: not the metrics of a step"):
        read_log(tmp_path)


def test_a_curve_counts_episodes_and_the_seconds_of_training():
    assert learning_curve(LOG, "oracle/gold") == [
        Point(episodes=0.0, seconds=0.0, score=0.5, kl=0.0),
        Point(episodes=128.0, seconds=7.0, score=0.7, kl=3.0),
    ]
    # every second step has a line, and the rounded episodes of DPO
    lines = [
        {"step": 0, "eval/reward": 0.1},
        {"step": 0, "episodes": 2, "time/update": 1.0},
        {"step": 2, "episodes": 7, "time/update": 3.0},
        {"step": 3, "eval/reward": 0.2},
        {"step": 4, "episodes": 12, "time/update": 5.0},
        {"step": 6, "eval/reward": 0.3},
    ]
    assert learning_curve(lines, "reward") == [
        Point(episodes=0.0, seconds=0.0, score=0.1, kl=None),
        Point(episodes=pytest.approx(7.2), seconds=2 * 1.0 + 3.0, score=0.2, kl=None),
        Point(
            episodes=pytest.approx(14.4), seconds=2 * 1.0 + 2 * 3.0 + 2 * 5.0, score=0.3, kl=None
        ),
    ]
    # with processor seconds, of which every logged step has its own
    logged = [
        line | {"time/cpu": 2.0 * line["step"]} if "episodes" in line else line for line in lines
    ]
    of_curve = [point.cpu_seconds for point in learning_curve(logged, "reward")]
    assert of_curve == [0.0, 2 * 0.0 + 4.0, 2 * 0.0 + 2 * 4.0 + 2 * 8.0]
    assert learning_curve(logged, "reward")[1].seconds == 2 * 1.0 + 3.0
    assert learning_curve(LOG, "reward") == []
    assert learning_curve([{"step": 400, "eval/rougeLsum": 70.0}], "rougeLsum") == []

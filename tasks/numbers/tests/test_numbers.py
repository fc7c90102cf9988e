"""Increasing numbers and dates: the rewards by hand, the prompts, the config, and learning."""

from pathlib import Path

import pytest

from fgrlhf.base.files import read_json
from fgrlhf.cli import evaluate, rl, tiny_model
from fgrlhf.text_types import Prompt
from tasks.numbers.reward import Date, Increasing
from tasks.numbers.task import TASK

CONFIG = str(Path(__file__).parents[1] / "mini_rl_config.yml")
NUMBERS = Prompt("n", "", meta={"game": "increasing", "above": 3})
DATE = Prompt("d", "", meta={"game": "date"})


@pytest.mark.parametrize(
    "text, counted, words",
    [
        ("4 5 9 10", 4, 4),
        ("4 5 9 10 11 12", 6, 6),  # more words than required: each is worth less
        ("3 4 5 6", 0, 4),
        ("4 4 5 6", 1, 4),
        ("9 10 5 11", 2, 4),
        ("4 May 5 6", 1, 4),
        ("12 2001", 2, 2),
        ("", 0, 0),
    ],
)
def test_the_run_of_increasing_numbers_counts(text, counted, words):
    (scores,) = Increasing(length=4).segment_scores([NUMBERS], [text])
    assert [text[score.start : score.end] for score in scores] == text.split()[:counted]
    assert {score.value for score in scores} == ({1 / max(words, 4)} if counted else set())


@pytest.mark.parametrize(
    "text, date",
    [
        ("29 Feb 2004", "29 Feb 2004"),
        ("29 Feb 2003", None),
        ("31 Jun 2001 30 Jun 2001 1 May 2001", "30 Jun 2001"),
        ("7 7 Oct 2002", "7 Oct 2002"),
        ("30 Feb 2001 May 2002", None),
        ("Oct 7 2002", None),
        ("", None),
    ],
)
def test_the_first_date_of_the_calendar_counts(text, date):
    (scores,) = Date().segment_scores([DATE], [text])
    assert [(text[score.start : score.end], score.value) for score in scores] == (
        [] if date is None else [(date, 1.0)]
    )


def test_a_reward_does_not_apply_to_the_other_game():
    texts = ["4 5 6", "1 May 2001"]
    increasing = Increasing(length=3).segment_scores([NUMBERS, DATE], texts)
    date = Date().segment_scores([NUMBERS, DATE], texts)
    assert increasing[1] is None and sum(score.value for score in increasing[0]) == 1.0
    assert date[0] is None and sum(score.value for score in date[1]) == 1.0


def test_prompts_are_a_function_of_split_and_seed():
    assert TASK.prompts(None, "dev", 1) == TASK.prompts(None, "dev", 1)
    assert TASK.prompts(None, "dev", 1) != TASK.prompts(None, "dev", 2)
    games = [prompt.meta["game"] for prompt in TASK.prompts(None, "test")]
    assert games.count("date") == games.count("increasing") == 50


def train(folder: Path, *overrides: str) -> dict[str, dict[str, float]]:
    """The test scores of the best policy of a run, from a random model as in run.sh."""
    months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
    numbers = " ".join(map(str, [*range(1, 32), *range(2001, 2013)]))
    base = f"output_dir={folder}/base_model"
    tiny_model.main(["tasks.numbers", base, f"words={numbers} {months}"])
    rl.main(["tasks.numbers", CONFIG, *overrides])
    policy = f"policy={folder}/rl/best"
    evaluate.main(["tasks.numbers", policy, f"config={CONFIG}", f"output_dir={folder}"])
    return read_json(folder / "eval" / "rl-test" / "summary.json")


def test_every_stage_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    summary = train(tmp_path, "train.total_episodes=128", "evaluation.examples=4")
    assert {"reward", "reward/increasing", "reward/date"} <= set(summary)
    assert summary["reward/increasing"]["mean"] < 0.6  # the mean over the prompts of this game


@pytest.mark.slow
def test_a_random_model_learns_both_games(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    summary = train(tmp_path)
    assert summary["reward/increasing"]["mean"] > 0.9
    assert summary["reward/date"]["mean"] > 0.9

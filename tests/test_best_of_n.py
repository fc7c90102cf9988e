"""Best-of-n: chosen responses by hand, and the program on an evaluation's files."""

import re

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_jsonl, write_text
from fgrlhf.pipeline.best_of_n import BestOfNSettings, best_rows, choose
from fgrlhf.pipeline.comparison import compare_runs
from fgrlhf.pipeline.summary import SummarySettings, summarise
from fgrlhf.report.data import read_outputs
from fgrlhf.report.display import Display

ROWS = [
    {"id": "a", "sample": 0, "response": "x", "reward": 0.1, "gold": 1.0},
    {"id": "b", "sample": 0, "response": "y", "reward": 0.5, "gold": 0.2, "kl": 0.0},
    {"id": "a", "sample": 1, "response": "z", "reward": 0.3, "gold": 0.0},
    {"id": "b", "sample": 1, "response": "v", "reward": 0.5, "gold": 0.8},
    {"id": "c", "sample": 0, "response": "w", "reward": None, "gold": 0.5},
]


def test_the_best_response_by_hand():
    assert [row["response"] for row in best_rows(ROWS, "reward")] == ["z", "y"]
    assert [row["response"] for row in best_rows(ROWS, "gold")] == ["x", "v", "w"]


def test_a_metric_that_no_response_has():
    message = "no response has a value of `rewards`.*gold, id, kl, response"
    with pytest.raises(UserError, match=message):
        best_rows(ROWS, "rewards")


def test_the_result_is_an_evaluation(tmp_path, capsys):
    write_jsonl(tmp_path / "eval" / "sft_samples-test" / "rows.jsonl", ROWS)
    settings = BestOfNSettings(output_dir=str(tmp_path), source="sft_samples")
    folder = choose(settings)
    assert [row["response"] for row in read_jsonl(folder / "rows.jsonl")] == ["z", "y"]
    summary = read_json(folder / "summary.json")
    assert summary["reward"]["mean"] == pytest.approx(0.4)
    assert summary["gold"]["mean"] == pytest.approx(0.1)
    assert "kl" not in summary  # of the policy that sampled, not of the choice
    choose(settings)
    assert "chosen before" in capsys.readouterr().out
    (folder / "rows.jsonl").unlink()
    assert (choose(settings) / "rows.jsonl").exists()
    write_jsonl(tmp_path / "eval" / "sft_samples-test" / "rows.jsonl", ROWS[:1])
    assert len(read_jsonl(choose(settings) / "rows.jsonl")) == 1


def test_the_source_is_not_replaced(tmp_path):
    path = tmp_path / "eval" / "s-test" / "rows.jsonl"
    write_jsonl(path, ROWS)
    with pytest.raises(UserError, match="name and source are both s, .*: give another name="):
        choose(BestOfNSettings(output_dir=str(tmp_path), source="s", name="s"))
    assert read_jsonl(path) == ROWS


def test_a_mistaken_metric_keeps_the_earlier_result(tmp_path):
    write_jsonl(tmp_path / "eval" / "s-test" / "rows.jsonl", ROWS)
    folder = choose(BestOfNSettings(output_dir=str(tmp_path), source="s"))
    with pytest.raises(UserError, match="no response has a value of `rewards`"):
        choose(BestOfNSettings(output_dir=str(tmp_path), source="s", metric="rewards"))
    assert (folder / "rows.jsonl").exists() and (folder / "result.json").exists()


def test_a_missing_evaluation_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="has no rows.jsonl.*num_samples=4"):
        choose(BestOfNSettings(output_dir=str(tmp_path), source="sft"))


WITH_TEXTS = '{{"id": "{}", "prompt": "p", "response": "r", {}}}\n'


@pytest.mark.parametrize(
    "lines, problem",
    [
        ("", "has no rows"),
        ('{"id": "a", "reward": 1}\n{"id": "b", "rew', "line 2: not valid JSON"),
        (WITH_TEXTS.format("a", '"sample": 0') * 2, "line 2, `id`: the same id and sample as"),
    ],
)
def test_damaged_rows_are_a_user_error(tmp_path, lines, problem):
    folder = tmp_path / "eval" / "s-test"
    write_text(folder / "rows.jsonl", lines)
    message = f"(?s){re.escape(str(folder / 'rows.jsonl'))}.*{problem}"
    with pytest.raises(UserError, match=message):
        choose(BestOfNSettings(output_dir=str(tmp_path), source="s"))
    with pytest.raises(UserError, match=message):
        compare_runs(tmp_path, "s", [], [0], "reward", "test")
    with pytest.raises(UserError, match=message):
        read_outputs(tmp_path, Display())
    with pytest.raises(UserError, match=message):
        summarise("numbers", SummarySettings(output_dir=str(tmp_path)), Display())

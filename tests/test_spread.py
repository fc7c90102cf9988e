"""What one run leaves out: the spread of other runs, stated beside its figures."""

import re
from pathlib import Path

import pytest
from report_helpers import interval, leave_out_plots, make_outputs

from fgrlhf.base.files import read_json, write_json
from fgrlhf.pipeline import summary as pipeline_summary
from fgrlhf.report.display import Display, Spread
from fgrlhf.report.page import write_report
from fgrlhf.report.spread import ONE_RUN, known_spreads, spread_line
from tasks.experiments.summary import world_of
from tasks.experiments.summary_table import MINI_TARGETS
from tasks.qa_feedback.data import mini_world
from tasks.qa_feedback.data.language import CHINESE, ENGLISH, TOY
from tasks.qa_feedback.display import DISPLAY
from tasks.qa_feedback.feedback import load_examples

RESULTS = Path(__file__).parents[1] / "tasks" / "qa_feedback" / "RESULTS.md"
DEMO = {"scale": "mini", "data": "mini world, 400 test prompts"}
KNOWN = "5 runs over seeds and processors: mean +0.191, standard deviation 0.015"
SPREAD = Spread("a_vs_b", "solved", (0.1, 0.2, 0.6), "seeds", "notes.md", "mini", "puzzles")


@pytest.fixture(autouse=True)
def no_plots(monkeypatch):
    leave_out_plots(monkeypatch)


def report_text(folder, changes, display=DISPLAY) -> str:
    """The text of the report of a whole pipeline whose summary.json has the changes."""
    make_outputs(folder)
    path = folder / "summary.json"
    write_json(path, {**read_json(path), **changes})
    write_report(folder, folder / "r.html", display)
    html = (folder / "r.html").read_text(encoding="utf-8")
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def printed(changes, display=DISPLAY) -> str:
    """The printed summary of two policies."""
    summary = {
        "policies": {},
        "gains": {"fine_grained_vs_sft": {"gold": interval(0.16, 0.01)}},
        "reward_models": {},
        "stages": {},
    }
    return pipeline_summary.table({**summary, **changes}, display)


def test_mean_and_deviation_by_hand():
    """Mean 0.3; squares .04 + .01 + .09 = .14, over n - 1 = 2."""
    assert SPREAD.mean == pytest.approx(0.3) and SPREAD.deviation == pytest.approx(0.07**0.5)
    text = "A − B, solved: 3 runs over seeds: mean +0.300, standard deviation 0.265 (notes.md)"
    assert spread_line("A − B", SPREAD, Display()) == text


@pytest.mark.parametrize(
    "pair, metric, scale, data, is_known",
    [
        ("a_vs_b", "solved", "mini", "puzzles", True),
        ("b_vs_a", "solved", "mini", "puzzles", False),
        ("a_vs_b", "reward", "mini", "puzzles", False),
        ("a_vs_b", "solved", "small", "puzzles", False),
        ("a_vs_b", "solved", "mini", "other puzzles", False),
        ("a_vs_b", "solved", None, None, False),
    ],
)
def test_a_spread_is_of_one_difference_scale_and_data(pair, metric, scale, data, is_known):
    found = known_spreads({pair: [metric]}, Display(spreads=(SPREAD,)), scale, data)
    assert found == ({("a_vs_b", "solved"): SPREAD} if is_known else {})


def test_the_report_of_the_demo_states_the_spread_at_cards_and_differences(tmp_path):
    text = report_text(tmp_path, DEMO)
    head, _, tables = text.partition("Paired differences")
    assert f"interval excludes zero {KNOWN}" in head
    assert "5 runs over seeds and processors: mean +0.067, standard deviation 0.029" in head
    assert head.count(ONE_RUN) == 2, "below the cards and below the table of the policies"
    line = f"Fine-grained RLHF − SFT, gold score: {KNOWN} (tasks/qa_feedback/RESULTS.md)"
    assert f"Other runs with the same settings: {line}" in tables


@pytest.mark.parametrize(
    "changes, display",
    [
        ({**DEMO, "data": "mini world in Chinese, 400 test prompts"}, DISPLAY),
        ({**DEMO, "scale": "small"}, DISPLAY),
        (DEMO, Display()),
    ],
)
def test_without_a_known_spread_a_line_says_what_the_interval_covers(tmp_path, changes, display):
    text = report_text(tmp_path, changes, display)
    assert text.count(ONE_RUN) == 2
    assert "standard deviation 0" not in text and "Other runs" not in text
    assert "runs over" not in printed(changes, display)
    assert printed(changes, display).endswith(f"\n  {ONE_RUN}")


def test_the_printed_summary_states_the_spread():
    line = f"  fine grained vs sft, gold score: {KNOWN} (tasks/qa_feedback/RESULTS.md)"
    assert printed(DEMO).endswith(f"\n{line}\n  {ONE_RUN}")


def test_the_target_of_the_gain_is_below_three_standard_deviations():
    limits = {path: low for _, path, low, _ in MINI_TARGETS}
    spread = next(spread for spread in DISPLAY.spreads if spread.pair == "fine_grained_vs_sft")
    limit = limits["gains.fine_grained_vs_sft.gold.mean"]
    assert limit < spread.mean - 3 * spread.deviation


@pytest.mark.parametrize(
    "language, world",
    [(TOY, "mini world"), (CHINESE, "mini world in Chinese"), (ENGLISH, "mini world in English")],
)
def test_the_summary_names_the_language_of_the_world(tmp_path, language, world):
    rows = [mini_world.make_row(0, "test", i, language=language) for i in range(3)]
    write_json(tmp_path / "test.json", rows)
    prompts = load_examples(tmp_path / "test.json")
    assert world_of(prompts) == world
    answered = {"sft": [{"id": str(i)} for i in range(400)]}
    assert pipeline_summary.data_of(answered, world, "test") == f"{world}, 400 test prompts"

"""Parts of the report: curves, their tables, feedback, downloads, sections that do not apply."""

import csv
import io
from urllib.parse import unquote

import pytest
from report_helpers import leave_out_plots

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl, write_text
from fgrlhf.metrics.rows import Segment
from fgrlhf.pipeline.summary import evaluated_policies
from fgrlhf.report import charts, curves, plots, sections
from fgrlhf.report.data import Run, TrainingLog, read_outputs
from fgrlhf.report.display import N_SERIES, SYMBOLS, Display
from fgrlhf.report.downloads import data_link, downloads, log_file
from fgrlhf.report.feedback import (
    FeedbackRow,
    MarkedSpan,
    feedback_files,
    feedback_views,
    first_position,
    read_feedback_file,
)
from fgrlhf.report.page import write_report
from fgrlhf.report.plots import Point, Series
from fgrlhf.report.records import Rollout, RunInfo
from fgrlhf.report.samples import segment_table, token_table
from fgrlhf.report.text import csv_text
from fgrlhf.stats import Interval, too_few
from reward_modeling.error_groups import Errors, Group
from tasks.qa_feedback.display import DISPLAY, prompt_parts


@pytest.fixture(autouse=True)
def no_plots(monkeypatch):
    leave_out_plots(monkeypatch)


LINES = [
    {"step": 0, "eval/gold": 0.5, "eval_low/gold": 0.4, "eval_high/gold": 0.7, "eval/kl": -0.1},
    {"step": 0, "episodes": 8, "reward/total": 1.0, "reward/a": 1.0},
    {"step": 1, "eval/gold": None, "eval/kl": 1.0},
    {"step": 2, "eval/gold": 0.6, "eval/kl": 4.0, "eval/reward": 2.0, "eval/reward/a": 2.0},
    {"step": 3, "eval/gold": 0.7},
]


def run_of(lines, name="ppo") -> Run:
    return Run(name, lines, {}, RunInfo(), {})


def outputs_of(folder, lines=LINES, display=DISPLAY):
    write_jsonl(folder / "ppo" / "metrics.jsonl", lines)
    return read_outputs(folder, display)


def write_evaluation(folder, policy, reference, reward):
    """An evaluation of two prompts, with the settings that it records."""
    row = {"prompt": "p", "response": "r", "reward": reward}
    write_jsonl(folder / "rows.jsonl", [{"id": id, **row} for id in "ab"])
    interval = {"mean": reward, "low": reward, "high": reward}
    write_json(folder / "summary.json", {"reward": interval})
    text = f"split: test\npolicy: {policy}\n"
    text += f"resolved: {{model: {{ckpt: {reference}}}}}\n"
    write_text(folder / "config.yaml", text)


def html_of(folder) -> str:
    write_report(folder, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_untrained_policy_comes_first_whatever_its_name(tmp_path):
    """The headline compares the trained policy with the one that RL starts from."""
    for name, policy, reward in (("after", "out/rl/best", 2.0), ("before", "out/base/", 0.5)):
        write_evaluation(tmp_path / "eval" / f"{name}-test", policy, "out/base", reward)
    outputs = read_outputs(tmp_path, Display())
    assert list(outputs.policies) == list(outputs.evaluations) == ["before", "after"]
    (pair,) = sections.gains(outputs, Display()).items()
    assert pair[0] == "after_vs_before" and pair[1]["reward"].mean == 1.5
    assert evaluated_policies(tmp_path, "test", Display()) == ["before", "after"]
    ordered = read_outputs(tmp_path, Display(order=("after",)))  # a task's order counts more
    assert list(ordered.policies) == ["after", "before"]
    assert "<dt>before</dt><dd>out/base/</dd>" in html_of(tmp_path)


def test_folders_of_policies_that_the_summary_renames(tmp_path):
    write_evaluation(tmp_path / "eval" / "sft-test", "out/sft", "out/sft", 0.5)
    write_evaluation(tmp_path / "eval" / "baseline-test", "out/baseline/best", "out/sft", 2.0)
    interval = {"mean": 1.0, "low": 1.0, "high": 1.0}
    policies = {"sft": {"reward": interval}, "holistic": {"reward": interval}}
    write_json(tmp_path / "summary.json", {"split": "test", "policies": policies})
    outputs = read_outputs(tmp_path, DISPLAY)
    shown = sections.results(outputs, {}, sections.Naming(outputs, DISPLAY))
    assert shown.policies == ["sft", "holistic"]
    assert shown.folders == {"SFT": "out/sft", "Holistic RLHF": "out/baseline/best"}


def test_a_sweep_has_a_page_of_its_own(tmp_path):
    for seed in (0, 1):
        write_jsonl(tmp_path / "lr=0.1" / f"seed-{seed}" / "metrics.jsonl", LINES)
    write_json(tmp_path / "summary.json", {"best": "lr=0.1"})
    message = "is the folder of a sweep: open .*index.html, or .* fgrlhf report .*lr=0.1/seed-0$"
    with pytest.raises(UserError, match=message):
        read_outputs(tmp_path, Display())
    assert read_outputs(tmp_path / "lr=0.1" / "seed-0", Display()).runs


def test_only_shares_are_drawn_as_shares(tmp_path):
    row = {"prompt": "p", "response": "r"}
    for name, steps in (("sft", 0), ("rl", 2)):  # on average not above 1, but no share
        folder = tmp_path / "eval" / f"{name}-test"
        values = {"bleu": 0.5, "bleu/corpus": 0.5, "rouge1": 0.9, "distinct1": 0.5, "solved": 1}
        rows = [{"id": id, **row, **values, "steps": steps if id == "a" else 0} for id in "ab"]
        write_jsonl(folder / "rows.jsonl", rows)
        means = {**values, "steps": steps / 2}
        summary = {key: dict.fromkeys(("mean", "low", "high"), x) for key, x in means.items()}
        write_json(folder / "summary.json", summary)
    outputs = read_outputs(tmp_path, Display())
    part = sections.results(outputs, {}, sections.Naming(outputs, Display()))
    assert part.chart is not None
    assert {metric for metric, *_ in part.chart.table.rows} == {"distinct1", "solved"}


def test_headline_metrics_of_all_responses_together_are_compared_too(tmp_path):
    edits = {"sft": (5.0, 3.0), "ppo": (2.0, 2.0)}
    responses = {"sft": ("a b", "a b"), "ppo": ("a b", "c d")}
    for name, values in edits.items():
        rows = []
        for id, of_prompt in zip("xy", values):
            for text in responses[name]:
                row = {"id": id, "sample": len(rows) % 2, "prompt": id, "response": text}
                row |= {"ter": 1.0, "ter/ter_counts": [of_prompt, 10.0], "distinct1": 1.0}
                rows.append(row)
        write_jsonl(tmp_path / "eval" / f"{name}-test" / "rows.jsonl", rows)
    display = Display(headline=("ter/corpus", "distinct1/prompt"))
    compared = sections.gains(read_outputs(tmp_path, display), display)["ppo_vs_sft"]
    assert compared["ter/corpus"].mean == pytest.approx(20 - 40)
    assert compared["distinct1/prompt"].mean == 0.5


# ---- curves --------------------------------------------------------------------------------------


def test_points_are_over_episodes_with_logged_intervals_only():
    points = run_of(LINES).points("eval/gold")
    assert points == [Point(0, 0.5, 0.4, 0.7), Point(16, 0.6), Point(24, 0.7)]
    assert run_of(LINES).points("reward/a") == [Point(0, 1.0)]
    rounded = [{"step": 0, "episodes": 2}, {"step": 4, "episodes": 12, "dpo/accuracy": 0.5}]
    assert run_of(rounded).points("dpo/accuracy") == [Point(4 * 12 / 5, 0.5)]


def test_scores_are_drawn_over_the_root_of_the_kl():
    assert curves._drift_points(run_of(LINES), "eval/gold") == [
        Point(0.0, 0.5, 0.4, 0.7),  # an estimate below zero
        Point(2.0, 0.6),
    ]  # no score at step 1, no KL at step 3


def test_there_is_a_panel_for_every_score(tmp_path):
    lines = [*LINES, {"step": 4, "eval/oracle/gold": 0.5, "eval/kl": 1.0}]
    outputs = outputs_of(tmp_path, lines)
    (group,) = curves.drift(outputs, sections.Naming(outputs, DISPLAY))
    assert [chart.title for chart in group.charts] == [
        "gold score, over √KL",
        "reward: a, over √KL",
        "ppo: total reward, over √KL",
    ]
    assert group.charts[1].table.headings == ["line", "√ KL from SFT", "value"]
    assert group.charts[1].table.rows == [["ppo", "2", "2"]]
    assert [entry.name for entry in group.legend] == ["ppo"]


def test_without_the_truth_the_first_headline_metric_is_the_judge(tmp_path):
    display = Display(headline=("reward", "gold", "other"))
    outputs = outputs_of(tmp_path, display=display)
    (group,) = curves.drift(outputs, sections.Naming(outputs, display))
    assert group.charts[0].title == "gold, over √KL"
    # a part of the reward is no judge either, and has one panel only
    display = Display(headline=("reward/a", "gold"))
    (group,) = curves.drift(outputs, sections.Naming(outputs, display))
    titles = [chart.title for chart in group.charts]
    assert titles[:2] == ["gold, over √KL", "reward: a, over √KL"]
    assert len(set(titles)) == len(titles)


def test_runs_without_a_kl_have_no_such_section(tmp_path):
    outputs = outputs_of(tmp_path, [{"step": 0, "reward/total": 1.0, "eval/reward": 1.0}])
    assert curves.drift(outputs, sections.Naming(outputs, DISPLAY)) == []


def test_rewards_of_different_runs_are_in_different_groups(tmp_path):
    for name, reward in (("a", "one"), ("b", "two")):
        lines = [{"step": 0, "episodes": 4, "reward/total": 1.0, f"reward/{reward}": 1.0}]
        lines[0]["eval/reward"] = 1.0
        write_jsonl(tmp_path / name / "metrics.jsonl", lines)
    outputs = read_outputs(tmp_path, Display())
    groups = curves.learning_curves(outputs, sections.Naming(outputs, Display()))
    assert [(group.title, [chart.title for chart in group.charts]) for group in groups] == [
        ("Rewards in training, a", ["a: one"]),  # the order of all tables
        ("Rewards in training, b", ["b: two"]),
        ("Total reward on dev prompts", ["a: reward", "b: reward"]),
    ]
    assert all("its own unit" in group.note for group in groups)


def test_weights_bounds_and_critics_of_each_reward_have_curves(tmp_path):
    keys = ("reward/total", "value/explained_variance/kl", "weight/a", "constraint/a")
    lines = [{"step": i, "episodes": 4 * i, **dict.fromkeys(keys, 0.5)} for i in (0, 1)]
    outputs = outputs_of(tmp_path, lines)
    (group,) = curves.learning_curves(outputs, sections.Naming(outputs, Display()))
    assert [chart.title for chart in group.charts] == [
        "Explained variance of the critic: kl",
        "Weight of a",
        "a: the value that its bound is about",
    ]


def test_the_alarms_of_a_guard_are_shown(tmp_path):
    lines = [
        {"step": 0, "episodes": 1, "reward/total": 0.5},
        {"step": 0, "guard/judge": 0.0, "guard_alarms": 0},
        {"step": 2, "guard/judge": 2.0, "guard_alarms": 1, "guard_restored": 0},
        {"step": 4, "guard/judge": 3.0, "guard_alarms": 2},
    ]
    outputs = outputs_of(tmp_path, lines)
    groups = curves.learning_curves(outputs, sections.Naming(outputs, Display()))
    (group,) = [group for group in groups if group.title == "Guard"]
    assert [chart.table.rows for chart in group.charts] == [
        [["ppo", "0", "0"], ["ppo", "2", "2"], ["ppo", "4", "3"]]
    ]
    alarms = "alarm at step 2, back to the policy of step 0; alarm at step 4."
    assert group.note.endswith(alarms)


def test_curves_of_sft_and_reward_models(tmp_path):
    of_sft = [{"step": 1, "loss": 2.0, "lr": 0.1}, {"step": 2, "eval/loss": 1.0}]
    of_sft[1]["eval/rougeLsum"] = 30
    write_jsonl(tmp_path / "sft" / "metrics.jsonl", of_sft)
    of_model = [{"step": 5, "loss": 0.7}, {"step": 5, "eval/loss": 0.6, "eval/accuracy": 0.8}]
    write_jsonl(tmp_path / "rm" / "metrics.jsonl", of_model)
    write_json(tmp_path / "rm" / "reward_model.json", {"kind": "segment"})
    outputs = read_outputs(tmp_path, Display())
    groups = curves.supervised_curves(outputs, Display())
    tables = {chart.title: chart.table.rows for group in groups for chart in group.charts}
    assert [group.title for group in groups] == ["sft", "Reward model: rm"]
    assert tables == {
        "sft: loss": [["training", "1", "2"], ["dev", "2", "1"]],
        "sft: RougeLsum on dev": [["dev", "2", "30"]],
        "rm: loss": [["training", "5", "0.7"], ["dev", "5", "0.6"]],
        "rm: dev": [["accuracy on dev", "5", "0.8"]],
    }


# ---- tables --------------------------------------------------------------------------------------


def test_the_table_of_a_line_has_few_points_and_its_intervals():
    line = Series("a", [Point(i, i / 2, 0.0, 1.0) for i in range(100)], 0)
    table = charts.line_table([line], "steps")
    assert table.headings == ["line", "steps", "value", "95% interval"]
    assert table.rows[0] == ["a", "0", "0", "0 to 1"] and table.rows[-1][1] == "99"
    assert len(table.rows) == 20 and "20 points" in table.note
    assert charts.line_table([Series("a", [Point(0, 1.0)], 0)], "steps").note == ""


def test_numbers_as_text():
    values = (0.123456, -2.0, 102400.0, 1e-9)
    minus = "\N{MINUS SIGN}"
    shown = list(map(charts.number, values))
    assert shown == ["0.1235", f"{minus}2", "102400", f"1e{minus}09"]
    assert charts.bounds(0.1, 0.25) == "0.1 to 0.25" and charts.bounds(None, 0.1) == "–"
    assert charts.evenly(3, 20) == [0, 1, 2] and charts.evenly(101, 3) == [0, 50, 100]


def test_the_table_of_segments_has_labels_and_values():
    segments = {
        "fact": [
            Segment(start=0, end=3, value=-0.5, label="ERR"),
            Segment(start=3, end=7, value=0),
        ],
        "style": None,
        "whole": [Segment(start=0, end=None, value=1.5)],
    }
    assert segment_table("Bad end", segments, Display(names={"fact": "facts"})).rows == [
        ["facts", "Bad", "ERR", "\N{MINUS SIGN}0.500"],
        ["facts", "end", "–", "+0.000"],
        ["whole", "the whole response", "–", "+1.500"],
    ]


def test_the_table_of_tokens_has_all_their_values():
    tokens = {"tokens": ["a", " b", "\n"], "rewards": {"fact": [0.0, -0.5, 0.0]}, "segments": {}}
    row = Rollout(prompt="p", response="a b", reward=-0.5, kl=[0.1, 0.2], **tokens)  # kl: too short
    table = token_table(row, Display())
    assert table.headings == ["token", "fact", "KL"]
    assert table.rows == [
        ["a", "+0.00", "+0.10"],
        ["b", "\N{MINUS SIGN}0.50", "+0.20"],
        ["(blank)", "+0.00", "–"],
    ]


def test_passages_are_readable():
    prompt = "question: Q? context: wikipage: A text: One | two. | wikipage: B text: Three."
    assert prompt_parts(prompt) == [
        ("question", "Q?"),
        ("passages", "A: One | two."),
        ("passages", "B: Three."),
    ]
    assert prompt_parts("question: Q? context: wikipage: A")[1] == ("passages", "A")


def test_the_whole_pipeline_is_not_a_stage(tmp_path):
    costs = {"sft": {"seconds": 3.0, "peak_mb": 5.0}, "rl": {"seconds": 6.0, "peak_mb": 7.0}}
    write_json(tmp_path / "stages.json", {**costs, "whole": {"seconds": 60.0, "peak_mb": 9.0}})
    part = sections.stages(read_outputs(tmp_path, Display()))
    assert [(row.name, row.share) for row in part.rows] == [("sft", "50.0"), ("rl", "100.0")]
    assert part.whole is not None and part.whole.seconds == "60.0"


def test_metrics_are_defined():
    assert "F1 of its correct facts" in sections.definitions(["oracle/gold"], DISPLAY)["gold score"]
    assert sections.definitions(["a/score", "b/score", "unknown"], Display()) == {
        "a, z-score by its model; b, z-score by its model": (
            "score of the reward model, in its standard deviations from its mean"
        )
    }


# ---- sections that do not apply ------------------------------------------------------------------


@pytest.mark.parametrize(
    "reward, is_named",
    [
        ("moves: {kind: moves, illegal: -1.0}", False),
        ("facts: {kind: segment_classifier, ckpt: rm}", True),
        ("sum: {kind: any, parts: {a: {ckpt: rm}}}", True),
    ],
)
def test_reward_models_are_missing_only_if_a_run_uses_one(tmp_path, reward, is_named):
    write_text(tmp_path / "ppo" / "config.yaml", f"reward:\n  {reward}\n")
    assert ("models" in outputs_of(tmp_path).missing) == is_named


def test_a_run_without_a_config_may_use_reward_models(tmp_path):
    assert "models" in outputs_of(tmp_path).missing


# ---- feedback ------------------------------------------------------------------------------------


PUBLISHED = {
    "question": "Q?",
    "feedback": {
        "errors": [
            {"error type": "Irrelevant", "start": 2, "end": 6, "explanation": ""},
            {"error type": "Irrelevant", "start": 8, "end": 18, "explanation": ""},
        ],
        "missing-info": [{"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [1]}],
    },
    "preference": [1, 2, 0],
}
SPANS = {"spans": [{"start": 0, "end": 3, "label": "Insult"}], "annotator": "anna"}


def test_both_forms_of_feedback_rows_are_read(tmp_path):
    write_json(tmp_path / "feedback.json", [PUBLISHED, SPANS, {"preferences": [2]}])
    record = [{"order": [2, 1, 0], "seconds": {"annotation": 20, "comparison": 5.5}}, {}, {}]
    write_json(tmp_path / "record.json", record)
    file = read_feedback_file(tmp_path / "feedback.json")
    irrelevant = [MarkedSpan("Irrelevant", 4), MarkedSpan("Irrelevant", 10)]
    assert file.rows == [
        FeedbackRow(irrelevant, ["Missing-Answer"], [1, 2, 0], [2, 1, 0], 25.5, None),
        FeedbackRow([MarkedSpan("Insult", 3)], [], None, None, None, "anna"),
        FeedbackRow(None, [], [2], None, None, None),
    ]


def test_a_skipped_item_has_a_record_but_no_row(tmp_path):
    write_json(tmp_path / "feedback.json", [PUBLISHED])
    record = [{"skipped": {"reason": "unclear"}}, {"order": [2, 1, 0], "seconds": {"a": 5}}]
    write_json(tmp_path / "record.json", record)
    (row,) = read_feedback_file(tmp_path / "feedback.json").rows
    assert row.order == [2, 1, 0] and row.seconds == 5


def test_the_section_counts_rows_kinds_lengths_and_times(tmp_path):
    write_json(tmp_path / "feedback.json", [PUBLISHED, SPANS, {"spans": []}])
    write_json(tmp_path / "record.json", [{"order": [2, 1, 0], "seconds": {"a": 26}}, {}, {}])
    agreement = {"alpha": {"mean": 0.5, "low": 0.4, "high": 0.6}, "ties": "undefined: none"}
    write_json(tmp_path / "agreement.json", agreement)
    (view,) = feedback_views(feedback_files([tmp_path]))
    assert view.title == "feedback.json" and view.problem == ""
    assert view.facts == {
        "rows": "3",
        "annotated": "3, 2 of them with a marked span",
        "compared": "1 row, 3 pairs, 1 of them ties",
        # pairs (0, 1): 0 wins, shown last; (0, 2): 2 wins, shown first
        "won by the output shown first": "50.0% of 2 decided pairs (without a bias: about 50%)",
        "annotators": "anna (1)",
        "active time per row": "26 s, median of 1 row",
    }
    assert view.kinds.rows == [
        ["Irrelevant", "2", "1", "7", "4 to 10"],
        ["Insult", "1", "1", "3", "3 to 3"],
        ["missing: Missing-Answer", "1", "1", "–", "–"],
    ]
    assert view.agreement.rows == [["alpha", "0.5", "0.4 to 0.6"], ["ties", "–", "undefined: none"]]


def test_ratings_are_counted_by_scale(tmp_path):
    rated = {"ratings": [{"quality": 4, "clarity": 2}, {"quality": 1}]}
    odd = {"ratings": [{"quality": "high", "clarity": True}, 3]}
    write_json(tmp_path / "feedback.json", [rated, {"ratings": [{"quality": 5}]}, odd])
    (view,) = feedback_views(feedback_files([tmp_path]))
    assert view.facts["rated"] == "2 rows, 3 outputs"
    assert view.ratings.rows == [
        ["quality", "3", "3.333", "4", "1 to 5"],  # (4 + 1 + 5) / 3
        ["clarity", "1", "2", "2", "2 to 2"],
    ]


def test_the_share_of_the_first_position():
    def row(preference, order):
        return FeedbackRow(None, [], preference, order, None, None)

    assert first_position([row([1], [0, 1]), row([2], [0, 1]), row([0], [0, 1])]) == (1, 2)
    assert first_position([row([2], [1, 0])]) == (1, 1)
    assert first_position([row([1], None), row([1, 1], [0, 1])]) == (0, 0)


@pytest.mark.parametrize(
    "text", ["{", "3", "[1]", '[{"spans": 3, "preference": "x", "feedback": []}]', "[]"]
)
def test_feedback_of_any_form_stops_no_report(tmp_path, text):
    write_text(tmp_path / "feedback.json", text)
    (view,) = feedback_views(feedback_files([tmp_path]))
    assert bool(view.problem) == (text in ("{", "3", "[1]"))
    assert not view.kinds.rows


def test_feedback_is_found_beside_the_data_of_a_run(tmp_path):
    data = tmp_path / "elsewhere"
    write_json(data / "train_feedback.json", [SPANS])
    write_json(data / "train_feedback_record.json", [{}])
    out = tmp_path / "out"
    write_text(out / "ppo" / "config.yaml", f"data: {{train_file: {data}/train.json}}\n")
    assert [file.path for file in outputs_of(out).feedback] == [data / "train_feedback.json"]
    assert outputs_of(tmp_path / "none").feedback == []


def test_rounds_of_a_merged_file(tmp_path):
    path = tmp_path / "data" / "train_feedback.json"
    write_json(path, [SPANS, SPANS])
    first, second = {"file": "one.json", "row": 3}, {"file": "two.json", "row": 0}
    write_json(f"{path}.rounds.json", [{"spans": first, "preferences": first}, {"spans": second}])
    (file,) = feedback_files([path.parent])  # the rounds are no feedback
    assert file.rounds == {"one.json": 1, "two.json": 1}
    (view,) = feedback_views([file])
    assert view.facts["rounds"] == "one.json (1 row), two.json (1 row)"
    write_json(f"{path}.rounds.json", 3)
    assert "is not a list of rows" in feedback_views(feedback_files([path.parent]))[0].problem


# ---- downloads -----------------------------------------------------------------------------------


def content(link: str) -> list[list[str]]:
    head, _, text = link.partition(",")
    assert head == "data:text/csv;charset=utf-8"
    return list(csv.reader(io.StringIO(unquote(text))))


def test_a_difference_without_an_interval(tmp_path):
    """That of a single prompt, which summary.json writes as null."""
    gains = {"a_vs_b": {"gold": sections.Gain(mean=1.0, low=None, high=None)}}
    outputs = outputs_of(tmp_path)
    (tile,) = sections.tiles(outputs, gains, sections.Naming(outputs, Display()))
    assert (tile.difference.mean, tile.difference.verdict) == ("+1.000", "no interval")


def test_the_files_hold_all_numbers(tmp_path):
    interval = {"mean": 0.5, "low": 0.25, "high": None}
    summary = {"policies": {"sft": {"oracle": {"gold": interval}}}}
    summary["stages"] = {"sft": {"seconds": 1.5, "peak_mb": 2.0}}
    write_json(tmp_path / "summary.json", summary)
    write_json(tmp_path / "rm" / "reward_model.json", {"metrics": {"accuracy": 0.875}})
    outputs = outputs_of(tmp_path)
    gains = {"a_vs_b": {"gold": sections.Gain(mean=1.0, low=0.5, high=1.5)}}
    results, log = downloads(outputs, gains)
    assert (results.name, log.name) == ("results.csv", "ppo.csv")
    assert content(results.link) == [
        ["part", "name", "metric", "value", "low", "high"],
        ["policy", "sft", "oracle/gold", "0.5", "0.25", ""],
        ["paired difference", "a_vs_b", "gold", "1", "0.5", "1.5"],
        ["reward model on dev", "rm", "accuracy", "0.875", "", ""],
        ["stage", "sft", "seconds", "1.5", "", ""],
        ["stage", "sft", "peak_mb", "2", "", ""],
    ]
    header, first, *_ = content(log.link)
    assert dict(zip(header, first))["eval_high/gold"] == "0.7" and len(content(log.link)) == 6


def test_the_groups_of_errors_json_are_measures_of_the_reward_model(tmp_path):
    write_json(tmp_path / "rm" / "reward_model.json", {"metrics": {"accuracy": 0.875}})
    accuracies = [Interval(0.9, 0.8, 0.95), too_few(0.5, 3)]
    groups = tuple(Group("F-ERR", 40, accuracy) for accuracy in accuracies)
    errors = Errors({"by_label": groups[:1], "by_turns": groups[1:]}, ())
    write_json(tmp_path / "rm" / "errors.json", errors.as_dict())
    (card,) = sections.model_cards(read_outputs(tmp_path, Display()), Display())
    assert [(number.name, number.dev) for number in card.numbers[1:]] == [
        ("accuracy by label, F-ERR (n=40)", sections.Cell("0.900", "0.800 to 0.950")),
        ("accuracy by turns, F-ERR (n=40)", sections.Cell("0.500")),
    ]


def test_metrics_of_reward_models_keep_the_order_of_their_file(tmp_path):
    """The same outputs always give the same page."""
    names = ["best_step", "loss", "brier", "recall", "precision", "rows"]
    write_json(tmp_path / "rm" / "reward_model.json", {"kind": "segment"})
    write_json(tmp_path / "rm" / "metrics.json", dict.fromkeys(names, 0.5))
    model = read_outputs(tmp_path, Display()).reward_models["rm"]
    numbers = [name for name, value in model.metrics or () if isinstance(value, float)]
    assert numbers == names


def test_no_text_is_a_formula_and_commas_are_kept():
    text = csv_text([["=1+1", "a,b", -0.5, None, "\N{MINUS SIGN}1"]])
    assert text == '\'=1+1,"a,b",-0.5,,\N{MINUS SIGN}1\n'
    assert csv_text([[1 / 3]]) == "0.3333333333333333\n" and csv_text([[1 / 3]], 3) == "0.333\n"
    assert content(data_link('a"#%&\n')) == [['a"#%&']]


def test_a_very_long_log_is_thinned(monkeypatch):
    monkeypatch.setattr("fgrlhf.report.downloads.MOST_CHARACTERS", 400)
    lines = [{"step": step, "loss": 1.0} for step in range(100)]
    file = log_file("sft", lines)
    assert len(file.link) <= 400 and file.content == "one in 2 lines of metrics.jsonl"
    assert [row[0] for row in content(file.link)[1:4]] == ["0", "2", "4"]


def test_a_log_without_a_value_has_no_point():
    log = TrainingLog("sft", [{"step": 1, "loss": None}, {"step": 2, "loss": 0.5}], False)
    assert log.points("loss") == [Point(2, 0.5)]


def test_markers_and_symbols_are_the_same_series():
    assert len(plots.MARKERS) == len(SYMBOLS) == N_SERIES

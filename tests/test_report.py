"""The report: outputs are shown, missing files named, text is escaped, nothing is fetched."""

import json
import random
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import pytest
from report_helpers import (
    ASPECTS,
    PROMPT,
    eval_row,
    interval,
    leave_out_plots,
    make_outputs,
    write_run,
)

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_jsonl
from fgrlhf.metrics.rows import Segment
from fgrlhf.pipeline.summary import SummarySettings, summarise
from fgrlhf.report import page as report_page
from fgrlhf.report import sections
from fgrlhf.report.data import read_outputs
from fgrlhf.report.display import Display
from fgrlhf.report.page import write_report
from fgrlhf.report.records import BaselineMetrics, RecordedInterval, RewardModelMetrics
from fgrlhf.report.samples import Piece, segment_pieces, split_prompt, token_ends, token_pieces
from tasks.qa_feedback.display import DISPLAY

ROOT = Path(__file__).parents[1]


class Page(HTMLParser):
    """Collects what a browser would show: tags with attributes, and text by tag."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text.append(data)


def report(folder: Path, *display: Display) -> str:
    write_report(folder, folder / "r.html", *display)
    return (folder / "r.html").read_text(encoding="utf-8")


def text_of(html: str) -> str:
    return "".join(Page(html).text)


@pytest.fixture(autouse=True)
def no_plots(monkeypatch):
    """The report `whole` has plots: it is made before this fixture is in force."""
    leave_out_plots(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    make_outputs(folder)
    return report(folder, DISPLAY)


def test_every_section_is_there(whole):
    text = text_of(whole)
    assert "Not found" not in text
    for expected in (
        "+0.160",
        "+0.130 to +0.190 · interval excludes zero",
        "interval includes zero",
        "gold score",
        "Fine-grained RLHF",
        "Relevance",
        "0.950",  # AUC against the truth
        "pair accuracy",
        "Paired differences",
        "Fine-grained RLHF − SFT",
        "held-out feedback",
        "passages (2)",
        "Step 39, after 39 updates",
        "train_sft",
        "the mini world",
        "0123456789ab-modified",  # the commit is short, and still says that the code differed
    ):
        assert expected in text, expected
    assert whole.count("<svg") == 1 + (4 + 1) + 6 + (1 + 2) + (2 + 2) + 4, (
        "intervals, rewards of both runs, shared curves, dev curves, over KL, calibration"
    )


def test_nothing_is_fetched_and_nothing_runs(whole):
    loading = {"script", "link", "iframe", "object", "embed", "base", "form"}
    loading |= {"img", "video", "audio"}
    page = Page(whole)
    assert not loading & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        links = [attributes.get(name) for name in ("href", "xlink:href", "src")]
        link = next(filter(None, links), "#")
        is_download = tag == "a" and "download" in attributes
        assert link.startswith("data:text/csv;" if is_download else "#"), link
    assert "@import" not in whole and not re.search(r"url\((?!#)", whole)
    assert "default-src 'none'" in whole


def test_text_from_data_is_text(tmp_path):
    wild = ' <script>alert(1)</script><img src=x onerror="alert(2)"> & "q" \u202e𝔘 $x_1$'
    make_outputs(tmp_path, wild)
    summary = read_json(tmp_path / "summary.json")
    summary["gains"] = {"<b>_vs_<i>": {"<u>": interval(1.0, 0.1)}}
    summary["targets"] = [
        {"name": "<u>R1</u>", "value": 0.91, "target": "at least 0.9", "reached": True},
        {"name": "R2", "value": 0.5, "target": "at least 0.8", "reached": False},
    ]
    write_json(tmp_path / "summary.json", summary)
    page = Page(report(tmp_path))
    shown = " ".join(" ".join(page.text).split())
    assert "R2 0.500 at least 0.8 missed <u>R1</u> 0.910 at least 0.9 reached" in shown
    assert not {"script", "img", "u"} & {tag for tag, _ in page.tags}
    assert not [a for _, attributes in page.tags for a in attributes if a.startswith("on")]
    assert wild in "".join(page.text)


def test_tags_are_balanced(whole):
    void, stack = {"meta", "path", "use", "rect", "br"}, []
    for closing, tag, alone in re.findall(r"<(/?)([a-zA-Z]+)[^>]*?(/?)>", whole):
        if alone or tag in void and not closing:
            continue
        if not closing:
            stack.append(tag)
        elif tag not in void:
            assert stack.pop() == tag
    assert not stack
    ids = re.findall(r'<[a-z]+ id="([^"]+)"', re.sub(r"<defs>.*?</defs>", "", whole, flags=re.S))
    assert len(ids) == len(set(ids))


def test_missing_parts_are_named(tmp_path):
    write_run(tmp_path / "fine_grained", ASPECTS, random.Random(0))
    text = text_of(report(tmp_path))
    for name in ("summary.json", "reward_model.json", "eval/*/rows.jsonl", "stages.json"):
        assert f"Not found: {name}" in text
    assert text.count("Not found") == 4
    # the folder of one run suffices
    assert "Rewards in training" in report(tmp_path / "fine_grained")


def test_without_a_summary_the_table_comes_from_the_evaluations(tmp_path):
    for name, mean in (("fine_grained", 0.7), ("sft", 0.5)):
        evaluate_again(tmp_path, name, "dev", mean)
    outputs = read_outputs(tmp_path, Display())
    assert (list(outputs.policies), outputs.split) == (["sft", "fine_grained"], "dev")
    assert "0.690 to 0.710" in report(tmp_path)


def test_the_test_set_is_shown_where_it_was_evaluated(tmp_path):
    for split in ("dev", "test", "train"):
        rows = [eval_row(random.Random(0), 0, 0.5)]
        write_jsonl(tmp_path / "eval" / f"a-policy-{split}" / "rows.jsonl", rows)
    outputs = read_outputs(tmp_path, Display())
    assert (outputs.split, list(outputs.evaluations)) == ("test", ["a-policy"])


def evaluate_again(folder, name, split, gold):
    rows = [eval_row(random.Random(0), i, gold) for i in range(3)]
    write_jsonl(folder / "eval" / f"{name}-{split}" / "rows.jsonl", rows)
    summary = {"relevance/ratio": interval(gold, 0.01)}
    write_json(folder / "eval" / f"{name}-{split}" / "summary.json", summary)


def test_an_outdated_summary_is_left_out(tmp_path):
    for name in ("sft", "ppo"):
        evaluate_again(tmp_path, name, "test", 0.5)
        evaluate_again(tmp_path, name, "dev", 0.5)
    summarise("numbers", SummarySettings(output_dir=str(tmp_path), split="dev"), Display())
    outputs = read_outputs(tmp_path, Display())
    assert outputs.split == "dev" and not outputs.note  # the responses shown are those summarised
    assert outputs.policies == outputs.summary.policies
    evaluate_again(tmp_path, "sft", "test", 0.7)  # another split
    assert not read_outputs(tmp_path, Display()).note
    evaluate_again(tmp_path, "sft", "dev", 0.7)
    outputs = read_outputs(tmp_path, Display())
    assert outputs.note.startswith("summary.json is older than the evaluations")
    assert (outputs.split, outputs.summary.gains) == ("test", None)
    assert outputs.policies["sft"]["relevance/ratio"].mean == 0.7
    assert outputs.note in report(tmp_path)
    summarise("numbers", SummarySettings(output_dir=str(tmp_path), split="dev"), Display())
    evaluate_again(tmp_path, "new", "dev", 0.7)  # a policy that the summary lacks
    assert read_outputs(tmp_path, Display()).note


def test_stages_that_ran_after_the_summary_are_shown(tmp_path):
    write_json(tmp_path / "summary.json", {"stages": {"sft": {"seconds": 1.0, "peak_mb": 1.0}}})
    assert list(read_outputs(tmp_path, Display()).stages) == ["sft"]
    write_json(tmp_path / "stages.json", {"rl": {"seconds": 1.0, "peak_mb": 1.0}})
    assert list(read_outputs(tmp_path, Display()).stages) == ["rl"]


def test_names_and_splits_may_contain_hyphens(tmp_path):
    for name, split in (("a-policy", "test-hard"), ("sft", "test-hard")):
        folder = tmp_path / "eval" / f"{name}-{split}"
        write_jsonl(folder / "rows.jsonl", [eval_row(random.Random(0), 0, 0.5)])
        write_json(folder / "summary.json", {"relevance/ratio": interval(0.5, 0.01)})
        (folder / "config.yaml").write_text(f"name: {name}\nsplit: {split}\n")
    outputs = read_outputs(tmp_path, Display())
    assert outputs.split == "test-hard"
    assert set(outputs.evaluations) == set(outputs.policies) == {"a-policy", "sft"}


def test_an_empty_or_absent_folder_is_an_error_and_writes_nothing(tmp_path):
    with pytest.raises(UserError, match="nothing to report"):
        write_report(tmp_path, tmp_path / "r.html")
    with pytest.raises(UserError, match="is not a folder"):
        write_report(tmp_path / "none", tmp_path / "r.html")
    make_outputs(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(UserError, match="summary.json is not valid JSON"):
        write_report(tmp_path, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_empty_responses_and_prompts_of_any_form_are_shown(tmp_path):
    whole = [{"start": 0, "end": None, "value": 0.4, "label": ""}]
    said = {"prompt": "Say something.", "response": "", "reward": 0.4}
    segments = {"style": None, "completeness": whole}
    row = {**said, "id": "0", "references": [], "segments": {"relevance": [], **segments}}
    write_jsonl(tmp_path / "eval" / "sft-test" / "rows.jsonl", [row])
    rewards = {"completeness": [0.4], "style": [0.0]}
    tokens = {"tokens": ["</s>"], "rewards": rewards, "kl": [0.0], "advantages": [0.0]}
    write_jsonl(tmp_path / "grpo" / "metrics.jsonl", [{"step": 0, "reward/total": 0.4}])
    rollout = {**said, **tokens, "segments": segments, "values": None}
    write_jsonl(tmp_path / "grpo" / "samples" / "step-0.jsonl", [rollout])
    text = text_of(report(tmp_path))
    assert "empty response" in text and "Say something." in text and "+0.40" in text


def test_prompts_are_the_first_that_every_policy_answered(tmp_path):
    rng = random.Random(0)
    for name, prompts in (("sft", (3, 1, 2)), ("other", (1, 3))):
        rows = [eval_row(rng, i, 0.5) for i in prompts]
        write_jsonl(tmp_path / "eval" / f"{name}-test" / "rows.jsonl", rows)
    html = report(tmp_path, DISPLAY)
    assert re.findall(r"<summary>Who made Amber (\d)", html) == ["3", "1"]


def test_a_segment_takes_exactly_its_characters():
    segments = [
        Segment(start=0, end=2, value=0.25, label="O"),
        Segment(start=2, end=7, value=-0.5, label="ERR"),
    ]
    assert segment_pieces("ab <cd> ef", segments, top=0.5) == [
        Piece("ab", 0.25, 0.5, label="O"),
        Piece(" "),
        Piece("<cd>", -0.5, 1.0, label="ERR"),
        Piece(" ef"),
    ]


def test_a_score_of_the_whole_answer_shows_its_number_even_on_an_empty_one():
    whole = [Segment(start=0, end=None, value=0.5)]
    assert segment_pieces("ab", whole, top=0.5) == [Piece("ab", 0.5, 1.0, whole=True)]
    assert segment_pieces("", whole, top=0.5) == [Piece("", 0.5, 1.0, whole=True)]


def test_token_rewards_and_their_segments():
    segments = [Segment(start=0, end=4, value=-1.0, label="ERR")]
    tokens, rewards = ["a", " bc", " d", "</s>"], [0.0, -1.0, 0.0, 0.5]
    assert token_pieces("a bc d", tokens, rewards, 1.0, segments) == [
        Piece("a", under=-1.0, label="ERR"),
        Piece(" ", under=-1.0),
        Piece("bc", -1.0, 1.0, under=-1.0, label="ERR"),
        Piece(" "),
        Piece("d"),
        Piece("</s>", 0.5, 0.5, special=True),
    ]


def test_a_judged_segment_worth_nothing_is_underlined_unlike_text_that_nobody_judged():
    segments = [Segment(start=0, end=2, value=0.0, label="O"), Segment(start=3, end=5, value=1.0)]
    pieces = segment_pieces("ab cd ef", segments, top=1.0)
    assert [(piece.text, piece.css, piece.tip) for piece in pieces] == [
        ("ab", "under-zero", "O"),
        (" ", "", ""),
        ("cd", "pos", "+1.000"),
        (" ef", "", ""),
    ]
    pieces = token_pieces("ab cd ef", ["ab", " cd", " ef"], [0.0, 1.0, 0.0], 1.0, segments)
    assert [(piece.text, piece.css) for piece in pieces if piece.text.strip()] == [
        ("ab", "under-zero"),
        ("cd", "pos under-pos"),
        ("ef", ""),
    ]


def test_a_segment_that_starts_after_a_space_underlines_its_first_word():
    segments = [Segment(start=0, end=1, value=1.0), Segment(start=2, end=4, value=-1.0)]
    pieces = token_pieces("a bc", ["a", " bc"], [1.0, -1.0], 1.0, segments)
    assert [(piece.text, piece.under) for piece in pieces] == [("a", 1.0), (" ", 0.0), ("bc", -1.0)]


# ---- display -------------------------------------------------------------------------------------


def test_names_of_a_task_and_of_none():
    names = {
        "relevance_model": "relevance",
        "baseline_model": "preference",
        "baseline": "Holistic RLHF",
        "my_own": "my own",
    }
    for name, shown in names.items():
        assert DISPLAY.name(name) == shown and Display().name(name) == name.replace("_", " ")
    metrics = {
        "oracle/gold": "gold score",
        "kl": "KL from SFT",
        "relevance_model/ratio": "relevance, error-free share by its model",
        "reward/baseline_model": "reward: preference",
        "a/b": "a · b",
        "reward/baseline_model/not_applicable": "reward: preference, not applicable",
    }
    for metric, shown in metrics.items():
        assert DISPLAY.metric(metric) == shown
    assert Display().metric("oracle/gold") == "gold"
    assert Display().metric("kl") == "KL from the reference"


def test_order_and_colours():
    names = ["zeta", "fine_grained", "alpha", "sft"]
    assert sorted(names, key=DISPLAY.rank) == ["sft", "fine_grained", "alpha", "zeta"]
    assert sorted(names, key=Display().rank) == ["sft", "alpha", "fine_grained", "zeta"]
    numbers = {"a": 3, "sft": 0, "b": 4, "fine_grained": 2, "c": 5, "d": 3}
    assert DISPLAY.colour_numbers(list(numbers)) == numbers
    assert Display().colour_numbers(["sft", "a", "b"]) == {"sft": 0, "a": 1, "b": 2}
    everything_fixed = Display(colours={str(i): i for i in range(6)})
    assert everything_fixed.colour_numbers(["x", "y"]) == {"x": 0, "y": 1}


def write_puzzle_outputs(folder):
    """Two policies of a task without extras: `ppo` solves one puzzle more than `sft`."""
    for name, solved in (("sft", (0, 1, 0)), ("ppo", (1, 1, 0))):
        rows = [
            {"id": str(i), "prompt": f"disc {i}", "response": "a to c", "solved": value}
            for i, value in enumerate(solved)
        ]
        rows = [row | {"reward": 2.0 * row["solved"]} for row in rows]
        means = {"solved": interval(sum(solved) / 3, 0.1), "reward": interval(1.0, 0.2)}
        write_jsonl(folder / "eval" / f"{name}-test" / "rows.jsonl", rows)
        write_json(folder / "eval" / f"{name}-test" / "summary.json", means)
    lines = [
        {"step": 0, "eval/reward": 1.0, "eval/solved": 0.2, "eval/kl": 0.1, "eval/reward/a": 1},
        {"step": 0, "episodes": 8, "reward/total": 1.0},
    ]
    write_jsonl(folder / "ppo" / "metrics.jsonl", lines)


def test_a_task_that_gives_nothing_has_a_good_report(tmp_path):
    write_puzzle_outputs(tmp_path)
    html = report(tmp_path)
    text = text_of(html)
    assert "ppo over sft, reward" in text and "+0.667" in text
    assert "Metrics that are shares" in text  # the heading of the chart
    # the task's own metric is compared, although no Display names it
    paired = text[text.index("Paired differences") : text.index("Differences on the same prompts")]
    assert "solved" in paired and "+0.333" in paired
    assert "disc 0" in text and "reward 2.00" in text and "<ul>" not in html
    labels = re.findall(r'role="img" aria-label="([^"]*)"', html)
    assert labels == [
        sections.SHARES,
        "solved",
        "ppo: reward",
        "reward: a, over √KL",
        "ppo: total reward, over √KL",
    ]


def test_the_task_comes_from_the_command_line_or_from_the_outputs(tmp_path, capsys):
    def shown(*arguments) -> bool:
        report_page.main([str(tmp_path), *arguments])
        return "Fine-grained RLHF" in (tmp_path / "report.html").read_text(encoding="utf-8")

    write_run(tmp_path / "fine_grained", ASPECTS, random.Random(0))
    assert not shown() and shown("task=qa_feedback") and shown("task=tasks.qa_feedback")
    run_json = tmp_path / "fine_grained" / "run.json"
    write_json(run_json, {**json.loads(run_json.read_text()), "task": "qa_feedback"})
    assert shown()
    write_json(run_json, {"task": "tasks.gone"})
    capsys.readouterr()
    assert not shown() and "tasks.gone" in capsys.readouterr().err
    write_json(tmp_path / "summary.json", {"task": "qa_feedback"})
    assert shown()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<title>fgrlhf · qa_feedback · {tmp_path.name}</title>" in page
    (tmp_path / "summary.json").unlink()
    run_json.unlink()
    assert shown("task=tasks.qa_feedback")  # the title names it too, if only the command does
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<title>fgrlhf · qa_feedback · {tmp_path.name}</title>" in page
    with pytest.raises(UserError, match="no task `tasks.gone`"):
        report_page.main([str(tmp_path), "task=tasks.gone"])


def test_the_display_of_the_guide_runs():
    guide = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", guide, flags=re.M | re.S)
    names: dict = {}
    exec(block, names)
    view = split_prompt("Move 3 discs.\nOne at a time.", names["DISPLAY"])
    assert view.title == "Move 3 discs." and list(view.parts) == ["rules"]


def test_the_command_line(tmp_path, capsys):
    write_puzzle_outputs(tmp_path)
    report_page.main([str(tmp_path), str(tmp_path / "other.html")])
    assert (tmp_path / "other.html").exists() and "other.html" in capsys.readouterr().out
    report_page.main(["--help"])
    assert "OUTPUT_DIR" in capsys.readouterr().out
    for arguments in ([], ["a", "b", "c"]):
        with pytest.raises(UserError, match="usage"):
            report_page.main(arguments)


def test_a_run_is_named_after_its_folder_even_from_inside_of_it(tmp_path, monkeypatch):
    make_outputs(tmp_path)
    monkeypatch.chdir(tmp_path / "fine_grained")
    report_page.main(["."])
    html = (tmp_path / "fine_grained" / "report.html").read_text(encoding="utf-8")
    assert 'download="fine_grained.csv"' in html
    assert "<h3>Rewards in training, fine grained</h3>" in html


def test_unknown_keys_are_no_names_of_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_puzzle_outputs(tmp_path / "lr=1e-5")
    with pytest.raises(UserError, match="`promts` is not a key; did you mean `prompts`"):
        report_page.main(["lr=1e-5", "promts=3"])
    with pytest.raises(UserError, match="`--prompts` is not an option"):
        report_page.main(["lr=1e-5", "--prompts", "3"])
    assert [path.name for path in tmp_path.iterdir()] == ["lr=1e-5"]
    report_page.main(["lr=1e-5", "./lr=1e-5.html"])
    assert (tmp_path / "lr=1e-5.html").exists()


# ---- pieces --------------------------------------------------------------------------------------


def test_tokens_line_up_with_the_text():
    assert token_ends("a bc", ["a", " bc", "</s>"]) == [1, 4, 4]
    assert token_ends("", ["</s>"]) == [0]


def test_split_prompt():
    view = split_prompt(PROMPT, DISPLAY)
    assert view.title == "Who made Amber Harbor?"
    assert view.parts == {
        "passages": [
            "Amber Harbor (1994 film): Amber Harbor is a film. It was directed by Lena Okafor.",
            "Amber Harbor (2003 novel): Amber Harbor is a novel. It was written by Tomas Vey.",
        ]
    }
    for text, title in (("question: Why?", "Why?"), ("free text", "free text")):
        view = split_prompt(text, DISPLAY)
        assert (view.title, view.parts) == (title, {})
    view = split_prompt(PROMPT, Display())
    assert (view.title, view.parts) == (PROMPT, {})


def test_a_folder_named_like_its_task_is_in_the_title_once(tmp_path):
    outputs = mock.Mock(folder=tmp_path / "qa_feedback")
    assert report_page._title(outputs, "tasks.qa_feedback") == "fgrlhf · qa_feedback"


# ---- damaged files -------------------------------------------------------------------------------

FILES = (
    "summary.json",
    "fine_grained/metrics.jsonl",
    "fine_grained/run.json",
    "fine_grained/samples/step-39.jsonl",
    "rel_rm/reward_model.json",
    "rel_rm/metrics.json",
    "eval/sft-test/rows.jsonl",
    "stages.json",
    "eval/sft-test/summary.json",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make_outputs(folder)
    calibration = [{"predicted": 0.1, "observed": 0.2, "count": 3}]
    write_json(folder / "rel_rm" / "metrics.json", {"accuracy": 0.8, "calibration": calibration})
    write_json(folder / "stages.json", {"sft": {"seconds": 3.0, "peak_mb": 5.0}})
    write_json(folder / "eval" / "sft-test" / "summary.json", {"kl": interval(1.0, 0.1)})
    return folder


def reported(folder, name, text) -> str:
    """The report's error message, or empty if it was written."""
    path = folder / name
    before = path.read_bytes()
    path.write_bytes(text)
    if name in ("stages.json", "eval/sft-test/summary.json"):  # read if summary.json lacks it
        (folder / "summary.json").rename(folder / "away")
    try:
        write_report(folder, folder / "r.html")
        return ""
    except UserError as error:
        return str(error)
    finally:
        path.write_bytes(before)
        if (folder / "away").exists():
            (folder / "away").rename(folder / "summary.json")


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_never_a_traceback(made, name):
    messages = []
    for text in (b"", b"[]", b"{}", b"3", b'"x"', b"[[]]", b"\0\0", b"\xff", b"[" * 100_000):
        message = reported(made, name, text)
        assert not message or name.split("/")[-1] in message and len(message) < 600
        messages.append(message)
    assert any(messages)


def test_token_rewards_of_any_logged_step_are_shown(made):
    path = made / "fine_grained" / "samples" / "step-20.jsonl"
    shutil.copy(made / "fine_grained" / "samples" / "step-0.jsonl", path)

    def steps(*words):
        report_page.main([str(made), str(made / "r.html"), *words])
        return re.findall(r"<h4>Step (\d+)", (made / "r.html").read_text())

    first_and_last = steps()
    assert "20" not in first_and_last and "0" in first_and_last
    assert steps("steps=20") == ["20"]
    assert set(steps("steps=all")) > {*first_and_last, "20"}
    for wrong in ("steps=", "steps=x", "steps=1,,2"):
        with pytest.raises(UserError, match="give logged steps, e.g. steps=0,40, or steps=all"):
            steps(wrong)
    with pytest.raises(UserError, match="no run has rollouts of these steps"):
        steps("steps=7")


def test_samples_of_no_step_are_left_alone(made):
    (made / "fine_grained" / "samples" / "step-x.jsonl").write_text("not ours")
    write_report(made, made / "r.html")


@pytest.mark.parametrize(
    "accuracy, low, text",
    [
        (0.7, 0.05, "beats"),
        (0.7, -0.01, "is not distinguishable from"),
        (0.7, None, "is not distinguishable from"),
        (0.6, -0.1, "is not distinguishable from"),
        (0.5, -0.3, "is LESS accurate than"),
    ],
)
def test_a_reward_model_is_compared_with_its_baselines(accuracy, low, text):
    high = None if low is None else 0.2 if accuracy > 0.5 else -0.01
    bounds = RecordedInterval(mean=accuracy - 0.6, low=low, high=high)
    baselines = {
        "majority": BaselineMetrics(accuracy=0.5, auc=0.5),
        "features": BaselineMetrics(accuracy=0.6, auc=0.7, difference=bounds),
    }
    metrics = RewardModelMetrics(accuracy=accuracy, baselines=baselines)
    best = "linear model of ten hand-made features"
    shown = sections.against_baselines(metrics)
    assert shown is not None
    assert shown.startswith(f"{text} the best of them, the {best}, on dev, by ")
    assert (" to " in shown) == (low is not None)
    assert sections.against_baselines(RewardModelMetrics(accuracy=accuracy)) is None


def test_a_perfect_baseline_cannot_be_beaten():
    metrics = RewardModelMetrics(
        accuracy=1.0, baselines={"features": BaselineMetrics(accuracy=1.0, auc=1.0)}
    )
    assert (sections.against_baselines(metrics) or "").startswith("equals the best of them")


def test_the_number_of_prompts_shown(tmp_path):
    rows = [eval_row(random.Random(i), i, 0.5) for i in range(12)]
    write_jsonl(tmp_path / "eval" / "a-test" / "rows.jsonl", rows)

    def shown(*arguments):
        report_page.main([str(tmp_path), *arguments])
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        return text.count('<details class="sample"')

    assert [shown(), shown("prompts=8"), shown("prompts=100")] == [5, 8, 12]
    for wrong in ("0", "-1", "many", "", "9" * 5000):
        with pytest.raises(UserError, match="give the number of prompts"):
            shown(f"prompts={wrong}")


def test_only_figures_against_the_truth_are_called_truth(tmp_path):
    make_outputs(tmp_path)
    summary = read_json(tmp_path / "summary.json")
    write_json(tmp_path / "summary.json", {**summary, "reward_models_on": "dev"})
    write_report(tmp_path, tmp_path / "r.html", DISPLAY)
    assert ">0.950<" not in (tmp_path / "r.html").read_text(encoding="utf-8")

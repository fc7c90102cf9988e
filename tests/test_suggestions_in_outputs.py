"""Suggestions in every output of an item: rules, programs, gold items and the page."""

import pytest
import torch
from made_tasks import page_with, saved
from page_helpers import opened, press, state
from test_mark_outputs import KEYS, KINDS, OUTPUTS_ROW, SECOND, doc, omission, task_with, wrong

from fgrlhf.base.files import read_json, write_json, write_jsonl
from fgrlhf.reward_models.scoring import SegmentLabels, SegmentScorer
from interface_html import suggest as module
from interface_html.anchoring import Annotation, errors_in, f1_parts, suggested_sides
from interface_html.checks import uniform_item
from interface_html.suggest import SuggestSettings, suggest
from interface_html.suggestions import decision_problems, item_suggestion_problems

ANSWERS = OUTPUTS_ROW["responses"]


@pytest.fixture
def task(tmp_path):
    return task_with(tmp_path, **KEYS)


def suggestion(start: int, end: int, output: int = 0, score: float = 0.5, source="rm") -> dict:
    one = {"type": "Wrong", "start": start, "end": end, "explanation": "", "score": score}
    return {**one, "source": source, **({"output": output} if output else {})}


# "The" of the first answer, "😀 cat." of the second, "fourth" of the fourth
THREE = [suggestion(0, 3), suggestion(2, 8, 1, 0.95), suggestion(0, 6, 3, 0.9)]


def row_of(task, *suggestions) -> dict:
    row = task.format.item_row(task.schema, OUTPUTS_ROW, "")
    return {**row, "suggestions": list(suggestions)}


def origin(index: int, verdict="accepted") -> dict:
    one = THREE[index]
    return {"index": index, "source": one["source"], "score": one["score"], "verdict": verdict}


# ---- the rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "one, field",
    [
        (suggestion(2, 8, 1), None),
        (suggestion(0, 9, 2), None),
        (suggestion(0, 9, 3), "end"),  # "fourth" has six characters
        (suggestion(3, 8, 1), "start"),  # not the start of a word there
        (suggestion(0, 3, 4), "output"),
        (suggestion(0, 3) | {"output": 0}, "output"),
        (suggestion(0, 3) | {"output": "1"}, "output"),
        (suggestion(0, 3) | {"side": "source"}, "side"),
    ],
)
def test_a_suggestion_is_checked_against_the_text_of_its_output(task, one, field):
    fields = [name for name, _ in item_suggestion_problems(task.schema, row_of(task, one))]
    assert fields == ([] if field is None else [f"suggestions[0].{field}"])


def test_one_place_of_two_outputs_is_no_repetition(task):
    twice = row_of(task, suggestion(0, 5, 2), suggestion(0, 1, 1), suggestion(0, 5, 2))
    assert item_suggestion_problems(task.schema, twice) == [
        ("suggestions[2]", "repeats suggestions[0]")
    ]


def test_without_the_key_no_suggestion_has_an_output(tmp_path):
    plain = task_with(tmp_path, **KINDS)
    row = row_of(plain, suggestion(0, 1, 1))
    fields = [name for name, _ in item_suggestion_problems(plain.schema, row)]
    assert fields == ["suggestions[0].output"]


def test_an_error_is_in_the_text_of_its_suggestion(task):
    row = row_of(task, *THREE)
    right = doc(wrong(2, 8, 1, origin=origin(1)), wrong(0, 3, origin=origin(0)))
    assert decision_problems(row, right) == []
    longer = doc(wrong(0, 8, 1, origin=origin(1, "changed")))
    assert decision_problems(row, longer) == []
    for error in (wrong(2, 8, origin=origin(1)), wrong(2, 8, 2, origin=origin(1))):
        assert decision_problems(row, doc(error)) == [
            ("feedback.errors[0].origin.index", "suggestion 1 is in another text")
        ]


# ---- the programs --------------------------------------------------------------------------------


class FirstWord(SegmentScorer):
    """The first word of a text is wrong, the more so the shorter the text."""

    def __init__(self):
        self.labels = ("Wrong", "O")

    def score(self, prompts, texts):
        results = []
        for _, text in zip(prompts, texts, strict=True):
            at = text.find(" ") if " " in text else len(text)
            p_SC = torch.tensor([[1 - len(text) / 128, len(text) / 128]])
            results.append(SegmentLabels(((0, at),), p_SC, self.labels, (True,)))
        return results


@pytest.fixture
def run(task, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "feedback_of", lambda name: task)
    monkeypatch.setattr(module, "load_reward_model", lambda folder, prefix_fn: FirstWord())
    monkeypatch.setattr(module, "load_task", lambda name: type("Task", (), {"rm_prefix": None}))

    def call(**settings):
        source, out = tmp_path / "items.json", tmp_path / "out.json"
        write_json(source, [OUTPUTS_ROW])
        suggest(SuggestSettings(task="made", source=str(source), out=str(out), **settings))
        (row,) = read_json(out)
        return row["suggestions"]

    return call


def test_models_suggest_in_every_output(run):
    found = run(models="rm")
    ends = [answer.find(" ") if " " in answer else len(answer) for answer in ANSWERS]
    scores = [1 - len(answer) / 128 for answer in ANSWERS]
    assert found == [
        suggestion(0, end, output, round(score, 4))
        for output, (end, score) in enumerate(zip(ends, scores))
    ]


def test_judgements_are_matched_with_the_text_of_an_output(run, tmp_path):
    judged = {"aspect": "span", "label": "Wrong", "start": 4, "end": 7}  # "cat" of "cat."
    lines = [
        {"prompt": OUTPUTS_ROW["prompt"], "response": SECOND, "judgements": [judged]},
        {"prompt": OUTPUTS_ROW["prompt"], "response": "Another.", "judgements": []},
    ]
    write_jsonl(tmp_path / "crowd.jsonl", lines)
    expected = [suggestion(4, 8, 1, 1.0, "crowd")]
    assert run(judgements=str(tmp_path / "crowd.jsonl")) == expected
    write_jsonl(tmp_path / "crowd.jsonl", [{**lines[0], "prompt": "Another one?"}])
    assert run(judgements=str(tmp_path / "crowd.jsonl")) == expected


def test_marks_and_suggestions_match_in_the_same_output_only():
    def parts(*marks):
        return f1_parts(Annotation("anna", "a", "", True, THREE, marks, (), None))

    assert parts(wrong(0, 3), wrong(4, 8, 1)) == (4, 5)
    assert parts(wrong(2, 8), wrong(0, 6, 2)) == (2, 5)  # only "The cat sat" and "The" overlap


def test_only_texts_with_suggestions_in_some_item_count(task):
    """A study of an earlier release has suggestions in the first output only."""
    marked = doc(wrong(0, 3), wrong(2, 8, 1), wrong(0, 5, 2), omission(0, 3))
    for suggestions, counted in (([THREE[0]], [0]), (THREE, [0, 1]), ([], [])):
        sides = suggested_sides([row_of(task), row_of(task, *suggestions)])
        expected = [marked["errors"][i] for i in counted]
        assert errors_in(task.schema, marked, sides) == expected


def test_an_item_among_hidden_ones_keeps_the_output_of_its_suggestions(task):
    row = row_of(task, *THREE)
    shown = uniform_item(task.schema, 1, {**row, "more": 1})
    assert shown["suggestions"] == THREE and "more" not in shown


# ---- the page ------------------------------------------------------------------------------------


def underlined(tab, output: int) -> list[str]:
    name = f"#text-{output}" if output else "#text"
    return tab.locator(f"{name} .w.suggested").all_inner_texts()


def said(tab) -> str:
    return tab.inner_text("#message")


def with_suggestions(*suggestions) -> dict:
    return {**OUTPUTS_ROW, "suggestions": list(suggestions)}


def test_suggestions_are_decided_in_the_output_that_has_them(chromium, task):
    rows = [with_suggestions(*THREE)]
    with opened(chromium, where=page_with(task, rows)) as tab:
        assert [underlined(tab, i) for i in range(4)] == [["The"], ["😀", "cat."], [], ["fourth"]]
        cards = tab.locator("#suggestions .card").all_inner_texts()
        assert [f"in answer {n}" in card for n, card in zip((1, 2, 4), cards)] == [True] * 3
        press(tab, "y", "x")  # to the first, and reject it
        assert "Rejected: Wrong, “The”. Suggested: Wrong, 0.95 by rm: “😀 cat.”" in said(tab)
        assert tab.evaluate("document.activeElement.id") == "text-1"
        press(tab, "y")
        assert "Accepted: “😀 cat.” is error 1 (Wrong)." in said(tab)
        assert [underlined(tab, i) for i in range(4)] == [[], [], [], ["fourth"]]
        # the cursor in a suggestion of another output chooses it
        tab.locator("#text .w >> nth=1").click()
        tab.locator("#text-3 .w >> nth=0").click()
        assert "Suggested: Wrong, 0.90 by rm" in tab.text_content("#announce")
        press(tab, "1")
        expected = [wrong(2, 8, 1, origin=origin(1)), wrong(0, 6, 3, origin=origin(2))]
        assert state(tab)["doc"]["errors"] == expected
        assert "All suggestions are decided." in said(tab)
        press(tab, "Control+Enter")
        (row,) = saved(tab, "#download")
        assert row["other_spans"] == [
            [{"start": 2, "end": 8, "label": "Wrong"}],
            [],
            [{"start": 0, "end": 6, "label": "Wrong"}],
        ]
        (entry,) = saved(tab, "#record")
        verdicts = ["rejected", "accepted", "accepted"]
        assert entry["suggestions"] == {"shown": True, "verdicts": verdicts}


def test_a_changed_span_stays_in_its_output_and_sure_ones_are_accepted_together(chromium, task):
    """A mark in one output does not keep a suggestion at the same place of another from it."""
    rows = [with_suggestions(*THREE), {**with_suggestions(*THREE), "id": "s"}]
    with opened(chromium, where=page_with(task, rows)) as tab:
        tab.locator("#text-1 .w >> nth=1").click()
        press(tab, "e", "Shift+ArrowRight", "Enter")
        expected = [wrong(2, 10, 1, origin=origin(1, "changed"))]
        assert state(tab)["doc"]["errors"] == expected
        press(tab, "Escape", "]")
        tab.locator("#text .w >> nth=1").click()  # "cat", characters 4 to 7 of the first
        press(tab, "1", "Shift+Y")
        accepted = [wrong(2, 8, 1, origin=origin(1)), wrong(0, 6, 3, origin=origin(2))]
        assert state(tab)["doc"]["errors"] == [wrong(4, 7), *accepted]
        assert "Accepted: 2. Suggested: Wrong, 0.50 by rm: “The”" in said(tab)

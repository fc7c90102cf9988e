"""Suggestions: their rules in items and annotations, and `fgrlhf feedback suggest`."""

import copy

import pytest
import torch
from page_helpers import ITEM, QA, TOXICITY

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_jsonl
from fgrlhf.base.records import DataError
from fgrlhf.reward_models.scoring import SegmentLabels, SegmentScorer, SequenceScorer
from interface_html import suggest as module
from interface_html.command import main as feedback
from interface_html.format import Item
from interface_html.items import item_json, read_items
from interface_html.suggest import (
    Suggestion,
    SuggestSettings,
    distinct,
    is_shown,
    merged,
    segment_suggestions,
    snapped,
    suggest,
)
from interface_html.suggestions import (
    decision_problems,
    decisions_record,
    item_suggestion_problems,
    undecided_problems,
    verdicts,
    without_decisions,
)

TEXT = ITEM["prediction 1"]  # "The cat sat on the mat. It was 😀 red. The cat sat on it."
ONE = {"type": "Irrelevant", "start": 4, "end": 11, "explanation": "", "score": 0.9, "source": "rm"}
TWO = {**ONE, "type": "Incoherent", "start": 33, "end": 37}


def row(*suggestions, **values) -> dict:
    texts = {key: value for key, value in copy.deepcopy(ITEM).items() if key != "id"}
    return {**texts, "suggestions": list(suggestions), **values}


# ---- items ---------------------------------------------------------------------------------------


WRONG = {  # the key that is named, and its wrong values
    "type": ["Wrong", "Missing-Answer"],
    "start": [5, True],
    "end": [10, 4, 99],
    "score": [1.01, float("nan"), True],
    "source": [" "],
    "explanation": [None],
    "shown": [True],
}


@pytest.mark.parametrize(
    "suggestion, field",
    [
        (ONE, None),
        ({**ONE, "score": 1}, None),
        *(({**ONE, key: value}, f".{key}") for key, values in WRONG.items() for value in values),
        ("Irrelevant", ""),
        ({key: ONE[key] for key in ONE if key != "score"}, ".score"),
    ],
)
def test_every_rule_of_a_suggestion(suggestion, field):
    fields = [name for name, _ in item_suggestion_problems(QA.schema, row(suggestion))]
    assert fields == ([] if field is None else [f"suggestions[0]{field}"])


def test_rules_of_the_list():
    problems = lambda values: item_suggestion_problems(QA.schema, values)  # noqa: E731
    assert problems(row(ONE, TWO, {**ONE, "score": 0.1})) == [
        ("suggestions[2]", "repeats suggestions[0]")
    ]
    assert [name for name, _ in problems(row(suggestions={}))] == ["suggestions"]
    assert [name for name, _ in problems(row(suggestions_shown=0))] == ["suggestions_shown"]
    hidden_without = {"suggestions_shown": False, "prediction 1": TEXT}
    assert [name for name, _ in problems(hidden_without)] == ["suggestions_shown"]
    assert problems(row()) == [] and problems({"prediction 1": TEXT}) == []


def test_sentences_of_a_schema_with_sentences():
    text = "You fool! Go away. Now."
    values = {"prompt": "Hi.", "generation": text}
    one = {**ONE, "type": "Insult", "start": 0, "end": 18}
    assert item_suggestion_problems(TOXICITY.schema, {**values, "suggestions": [one]}) == []
    words = {**one, "start": 4, "end": 12}
    problems = item_suggestion_problems(TOXICITY.schema, {**values, "suggestions": [words]})
    assert [name for name, _ in problems] == ["suggestions[0].start", "suggestions[0].end"]


def test_a_wrong_suggestion_is_told_with_its_row_and_key(tmp_path):
    rows = [{"id": "a", **row(ONE)}, {"id": "b", **row({**ONE, "end": 9})}]
    write_json(tmp_path / "items.json", rows)
    with pytest.raises(DataError) as error:
        read_items(QA, tmp_path / "items.json")
    text = str(error.value)
    assert "row 1, `suggestions[0].end`" in text and "off a word boundary" in text


@pytest.mark.parametrize("task, texts", [(QA, None), (TOXICITY, "You fool! Bye.")])
def test_suggestions_are_in_items_and_never_in_feedback_rows(tmp_path, task, texts):
    own = {"suggestions": [ONE], "suggestions_shown": False}
    values = row() if task is QA else {"prompt": "Hi.", "response": texts}
    if task is TOXICITY:
        own["suggestions"] = [{**ONE, "type": "Insult", "start": 0, "end": 9}]
    write_json(tmp_path / "items.json", [{"id": "a", **values, **own}])
    (item,) = read_items(task, tmp_path / "items.json")
    assert {key: item_json(task, item)[key] for key in own} == own
    origin = {"index": 0, "source": "rm", "score": 0.9, "verdict": "accepted"}
    kind = own["suggestions"][0]
    error = {"error type": kind["type"], "explanation": ""}
    error |= {key: kind[key] for key in ("start", "end")}
    doc = {"errors": [error], "missing-info": [], "corrected-prediction": "x"}
    plain = Item("a", {**item.row, "feedback": doc})
    decided = {**doc, "errors": [{**error, "origin": origin}], "suggestions": [], "no-error": False}
    with_origin = Item("a", {**item.row, "feedback": decided})
    written = task.format.feedback_row(task.schema, with_origin)
    assert written == task.format.feedback_row(task.schema, plain)
    assert not set(own) & set(written)
    meta = task.format.prompt(task.schema, item).meta
    assert not set(own) & set(meta)


# ---- annotations ---------------------------------------------------------------------------------


def accepted(index=0, suggestion=ONE, **changes) -> dict:
    origin = {key: suggestion[key] for key in ("source", "score")}
    origin |= {"index": index, "verdict": "accepted", **changes}
    span = {key: suggestion[key] for key in ("start", "end")}
    return {"error type": suggestion["type"], "explanation": "", **span, "origin": origin}


def doc(*errors, rejected=(), **values) -> dict:
    rejections = [{"index": index, "verdict": "rejected"} for index in rejected]
    return {"errors": list(errors), "suggestions": rejections, **values}


@pytest.mark.parametrize(
    "annotation, field",
    [
        (doc(accepted(), rejected=[1]), None),
        (doc({**accepted(verdict="changed"), "end": 14}, rejected=[1]), None),
        (doc({**accepted(), "end": 14}), "errors[0].origin.verdict"),
        (doc(accepted(verdict="changed")), "errors[0].origin.verdict"),
        (doc(accepted(verdict="rejected")), "errors[0].origin.verdict"),
        (doc(accepted(score=0.8)), "errors[0].origin.score"),
        (doc(accepted(source="me")), "errors[0].origin.source"),
        (doc(accepted(index=2)), "errors[0].origin.index"),
        (doc(accepted(index=True)), "errors[0].origin.index"),
        (doc(accepted(more=1)), "errors[0].origin.more"),
        (doc({**accepted(), "origin": None}), "errors[0].origin"),
        (doc(accepted(), rejected=[0]), "suggestions[0].index"),
        (doc(accepted(), accepted()), "errors[1].origin.index"),
        (doc(rejected=[-1]), "suggestions[0].index"),
        (doc(suggestions=[{"index": 0, "verdict": "accepted"}]), "suggestions[0].verdict"),
        (doc(suggestions=[{"index": 0}]), "suggestions[0].verdict"),
        (doc(suggestions=[7]), "suggestions[0]"),
        (doc(suggestions=7), "suggestions"),
    ],
)
def test_every_rule_of_a_decision(annotation, field):
    fields = [name for name, _ in decision_problems(row(ONE, TWO), annotation)]
    assert fields == ([] if field is None else [f"feedback.{field}"])


def test_decisions_on_hidden_or_missing_suggestions_are_refused():
    for values in (row(ONE, suggestions_shown=False), {"prediction 1": TEXT}):
        fields = [name for name, _ in decision_problems(values, doc(accepted()))]
        assert fields == ["feedback.errors[0].origin.index"]
        assert decision_problems(values, doc()) == []


def test_every_shown_suggestion_must_be_decided():
    values = row(ONE, TWO, {**TWO, "type": "Unverifiable"})
    annotation = doc(accepted(), rejected=[2])
    assert verdicts(values, annotation) == ["accepted", None, "rejected"]
    (undecided,) = undecided_problems(values, annotation)
    assert undecided[0] == "feedback.suggestions[1]"
    assert undecided_problems(row(ONE, suggestions_shown=False), doc()) == []
    record = {"shown": True, "verdicts": ["accepted", None, "rejected"]}
    assert decisions_record(values, annotation) == record
    hidden = decisions_record(row(ONE, suggestions_shown=False), doc())
    assert hidden == {"shown": False, "verdicts": []}
    assert decisions_record({"prediction 1": TEXT}, doc()) is None
    plain = without_decisions(annotation)
    assert plain == {"errors": [{key: accepted()[key] for key in accepted() if key != "origin"}]}


# ---- spans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start, end, words",
    [
        (4, 11, "cat sat"),
        (5, 10, "cat sat"),
        (3, 12, "cat sat"),
        (22, 23, "mat."),
        (3, 4, None),
        (0, len(TEXT), TEXT),
    ],
)
def test_spans_grow_to_whole_words(start, end, words):
    span = snapped(QA.schema, TEXT, start, end)
    assert (span and TEXT[span[0] : span[1]]) == words


def test_spans_grow_to_whole_sentences_and_stay_in_scripts_without_spaces():
    text = "You fool! Go away. Now."
    assert snapped(TOXICITY.schema, text, 4, 6) == (0, 9)
    assert snapped(TOXICITY.schema, text, 8, 12) == (0, 18)
    assert snapped(QA.schema, "苹果很好吃", 2, 3) == (2, 3)


def of(kind, start, end, score=0.5, source="rm", explanation="") -> Suggestion:
    return Suggestion(kind, start, end, score, source, explanation)


def test_touching_spans_of_one_kind_and_source_are_one():
    text, both = "one two three four", [of("B", 8, 13), of("A", 14, 18)]
    found = [of("A", 4, 7, 0.6), of("A", 0, 3, 0.9, explanation="first"), *both]
    assert merged(text, found) == [of("A", 0, 7, 0.9, explanation="first"), *both]
    assert len(merged(text, [of("A", 0, 3), of("A", 4, 7, source="other")])) == 2


def test_of_the_same_span_by_two_sources_the_surer_stays():
    found = [of("A", 4, 7, 0.6), of("A", 4, 7, 0.8, "other"), of("B", 0, 3)]
    assert distinct(found) == [of("B", 0, 3), of("A", 4, 7, 0.8, "other")]


def test_segments_with_a_probable_error_are_suggested():
    p_SL = torch.tensor([[0.25, 0.5, 0.25], [0.25, 0.125, 0.625], [0.25, 0.25, 0.5], [1, 0, 0]])
    spans = ((0, 3), (3, 7), (7, 13), (13, 18))
    labels = SegmentLabels(spans, p_SL, ("X", "Y", "O"), (True, True, True, False))
    kinds = {"X": "Insult", "Y": "Threat"}
    expected = [of("Threat", 0, 3, 0.75), of("Insult", 7, 13, 0.5)]
    assert segment_suggestions(labels, kinds, 0.5, "rm") == expected


def test_the_arm_of_an_item_is_a_function_of_seed_and_id():
    ids = [f"q{i}" for i in range(2000)]
    shown = [is_shown(0, name, 0.3) for name in ids]
    assert abs(sum(shown) / 2000 - 0.3) < 0.04  # four standard errors
    assert shown == [is_shown(0, name, 0.3) for name in ids]
    assert shown != [is_shown(1, name, 0.3) for name in ids]
    assert not any(is_shown(0, name, 0) for name in ids)
    assert all(is_shown(0, name, 1) for name in ids)
    # more items with a larger share, never others
    assert all(is_shown(0, name, 0.6) for name, is_on in zip(ids, shown) if is_on)


# ---- the program ---------------------------------------------------------------------------------


class Segments(SegmentScorer):
    """The third word and what is after it up to the end of the sentence is wrong."""

    def __init__(self):
        self.labels = ("F-ERR", "O")

    def score(self, prompts, texts):
        results = []
        for _, text in zip(prompts, texts, strict=True):
            spans = ((0, 7), (8, 11), (11, 14), (14, len(text)))
            p_SL = torch.tensor([[0.1, 0.9], [0.75, 0.25], [0.5, 0.5], [0.25, 0.75]])
            results.append(SegmentLabels(spans, p_SL, self.labels, (True,) * 4))
        return results


class Pairs(SequenceScorer):
    def __init__(self):
        pass


@pytest.fixture
def run(tmp_path, monkeypatch):
    scorers = {"outputs/rel_rm": Segments(), "pairs": Pairs()}
    monkeypatch.setattr(module, "load_reward_model", lambda folder, prefix_fn: scorers[folder])

    def call(**settings):
        write_json(tmp_path / "items.json", [{**ITEM, "id": f"q{i}"} for i in range(4)])
        paths = {"source": str(tmp_path / "items.json"), "out": str(tmp_path / "out.json")}
        given = {"task": "qa_feedback", **paths, **settings}
        suggest(SuggestSettings(**given))
        rows = read_json(tmp_path / "out.json")
        assert [one["id"] for one in rows] == [item.id for item in read_items(QA, given["out"])]
        return rows

    return call


def test_models_suggest_their_segments(run, capsys):
    rows = run(models="outputs/rel_rm", kinds={"F-ERR": "Irrelevant"}, share=0.5, seed=3)
    expected = {**ONE, "start": 8, "end": 14, "score": 0.75, "source": "rel_rm"}
    assert [one["suggestions"] for one in rows] == [[expected]] * 4
    arms = [is_shown(3, f"q{i}", 0.5) for i in range(4)]
    assert [one["suggestions_shown"] for one in rows] == arms
    assert f"4 items, 4 suggestions in 4 of them; {sum(arms)} of these" in capsys.readouterr().out


def test_only_items_with_suggestions_are_counted(run, tmp_path, capsys):
    write_json(tmp_path / "more.json", [ITEM, {**ITEM, "id": "q", "prediction 1": "Another text."}])
    span = {"aspect": "span", "label": "Irrelevant", "start": 5, "end": 11}
    marked = {"prompt": "Who sat?", "response": TEXT, "judgements": [span]}
    write_jsonl(tmp_path / "crowd.jsonl", [marked])
    files = {"source": "more.json", "out": "o.json", "judgements": "crowd.jsonl"}
    paths = {key: str(tmp_path / name) for key, name in files.items()}
    rows = module.suggest(SuggestSettings(task="qa_feedback", share=1.0, **paths))
    assert [len(item.row["suggestions"]) for item in rows] == [1, 0]
    assert "2 items, 1 suggestion in 1 of them; 1 of these show" in capsys.readouterr().out


def test_judgements_are_matched_by_their_text(run, tmp_path, capsys):
    judgements = [
        {"aspect": "span", "label": "Irrelevant", "start": 5, "end": 11, "reason": "off topic"},
        {"aspect": "span", "label": "bad", "start": 33, "end": 37, "score": 0.75},
        {"aspect": "span", "label": "bad", "start": 0, "end": 3, "score": 0.25},
        {"aspect": "span", "label": "other", "start": 0, "end": 3},
        {"aspect": "span", "label": "bad", "start": 0, "end": 3, "score": 70},
        {"aspect": "all", "label": "bad", "start": None, "end": None},
    ]
    path = tmp_path / "crowd.jsonl"
    write_jsonl(path, [{"prompt": "Who sat?", "response": TEXT, "judgements": judgements}])
    rows = run(judgements=str(path), kinds={"bad": "Incoherent"})
    assert rows[0]["suggestions"] == [
        {**ONE, "explanation": "off topic", "score": 1.0, "source": "crowd"},
        {**TWO, "score": 0.75, "source": "crowd"},
    ]
    out = capsys.readouterr().out
    assert "left out 1 judgement with the label other, which `kinds` does not name" in out
    assert "left out 1 judgement with a score that is not from 0 to 1" in out
    assert "left out 1 judgement without a span in the response" in out
    write_jsonl(path, [{"prompt": "Other?", "response": TEXT, "judgements": judgements}])
    assert run(judgements=str(path), kinds={"bad": "Incoherent"}) == rows  # with another prompt
    write_jsonl(path, [{"prompt": "Who?", "response": "Another.", "judgements": []}])
    with pytest.raises(UserError, match="has no response that is an annotated text"):
        run(judgements=str(path))


def test_judgements_of_the_same_response_to_another_prompt_are_not_suggested(tmp_path):
    rows = [{"id": prompt, "prompt": prompt, "response": "You fool!"} for prompt in ("A?", "B?")]
    write_json(tmp_path / "items.json", rows)
    insult = {"aspect": "span", "label": "Insult", "start": 0, "end": 9}
    judged = [
        {"prompt": "A?", "response": "You fool!", "judgements": [insult]},
        {"prompt": "B?", "response": "You fool!", "judgements": []},
    ]
    path = tmp_path / "crowd.jsonl"
    files = {"source": "items.json", "out": "out.json", "judgements": "crowd.jsonl"}
    paths = {key: str(tmp_path / name) for key, name in files.items()}
    settings = SuggestSettings(task="detoxification", **paths)
    for lines in (judged, judged[:1]):
        write_jsonl(path, lines)
        suggest(settings)
        counts = [len(row["suggestions"]) for row in read_json(tmp_path / "out.json")]
        assert counts == [1, 0]
    write_jsonl(path, [{**line, "prompt": f"{line['prompt']}!"} for line in judged])
    with pytest.raises(UserError, match="the same response to several prompts"):
        suggest(settings)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"models": "pairs"}, "pairs: this reward model compares whole texts"),
        ({"models": "outputs/rel_rm"}, "no kind of error is known for its labels F-ERR"),
        ({"models": "outputs/rel_rm", "kinds": {"F-ERR": "No"}}, "'No' is no kind of error"),
    ],
)
def test_what_cannot_suggest(run, settings, message):
    with pytest.raises(UserError) as error:
        run(**settings)
    assert message in " ".join(str(error.value).split())


@pytest.mark.parametrize("arguments", [[], ["models=a", "judgements=b"]])
def test_one_source_of_suggestions(arguments):
    with pytest.raises(UserError, match="set either models=FOLDER or judgements=FILE"):
        feedback(["suggest", "qa_feedback", "source=a", "out=b", *arguments])


def test_suggestions_are_not_replaced(run, tmp_path):
    models = {"models": "outputs/rel_rm", "kinds": {"F-ERR": "Irrelevant"}}
    run(**models)
    with pytest.raises(UserError, match="item q0 has suggestions already"):
        run(source=str(tmp_path / "out.json"), out=str(tmp_path / "again.json"), **models)

"""The simulated annotator: marks on hand-made answers, noise rate, rows the validator accepts."""

import json
import random

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from tasks.qa_feedback.data.annotator import Habits, annotate, perturb
from tasks.qa_feedback.data.collect_feedback import CollectFeedbackSettings, collect
from tasks.qa_feedback.data.language import TOY
from tasks.qa_feedback.data.mini_world import demonstration, make_item, make_row
from tasks.qa_feedback.data.oracle import judge
from tasks.qa_feedback.feedback import read_feedback

QUESTION = "Where or by whom was Aaa Bbb created and sold?"
FILM = [f"The film was {fact}." for fact in ("created by Kal", "sold in Oku", "made in Itz")]
PASSAGES = [
    ["Aaa Bbb (film)", *FILM],
    ["Aaa Bbb (poem)", "The poem was sold in Axo.", "The poem was created by Bor."],
]
GOLD = (
    "The film was created by Kal; the film was sold in Oku. The poem was created by Bor; the poem"
    " was sold in Axo."
)
SURE = Habits(noise=0.0, temperature=1e-3, perturbed=0.0)


def annotated(first, *others, habits=SURE, seed=0):
    predictions = (first, *others, GOLD, GOLD, GOLD)[:4]
    return annotate(random.Random(seed), QUESTION, PASSAGES, GOLD, predictions, habits)


def test_every_kind_of_error_by_hand():
    parts = {
        "The film was created by Bor;": "Wrong-Grounding",
        "the film was made in Itz.": "Irrelevant",
        "The film was created by Kal.": "Redundant",
        "The film was by by in.": "Incoherent",
    }
    row = annotated(" ".join(parts))
    found = [(row.predictions[0][e.start : e.end], e.label) for e in row.errors]
    assert found == list(parts.items())
    assert row.errors[0].evidence == '{"passage_id":1,"sentence_id":[1]}'
    assert row.errors[2].evidence == "The film was created by Bor;"
    assert {m.type for m in row.missing} == {"Missing-Answer"}
    places = [(m.passage_id, m.sentence_ids) for m in row.missing]
    assert places == [(1, (2,)), (2, (2,)), (2, (1,))]
    assert judge(QUESTION, PASSAGES, row.corrected).gold == 1


def test_a_perfect_answer_is_left_alone():
    row = annotated(GOLD)
    assert not row.errors and not row.missing and row.corrected == GOLD
    assert row.preference == (0, 0, 0, 0, 0, 0)


def test_preferences_follow_the_gold_score():
    half = "The film was created by Kal; the film was sold in Oku."
    row = annotated(half, GOLD, "The film was made in Itz.", half)
    assert row.preference == (2, 1, 0, 1, 1, 2)


def samples(count):
    """Rows of the world with four imperfect answers each."""
    for i in range(count):
        item, row, rng = make_item(0, "train", i), make_row(0, "train", i), random.Random(i)
        yield row, [TOY.compose(demonstration(rng, item, TOY.rates)) for _ in range(4)]


def test_rate_of_noise_is_the_stated_one():
    flipped = total = 0
    for i, (row, texts) in enumerate(samples(300)):
        asked = (row["question"], row["passages"], row["answer"][0])
        row_of_feedback = annotate(
            random.Random(i), *asked, texts, Habits(noise=0.05, perturbed=0.0)
        )
        marked = {(e.start, e.end) for e in row_of_feedback.errors}
        for part in judge(row["question"], row["passages"], texts[0]).subsentences:
            is_right = part.label.startswith("ok") * part.supported
            flipped += ((part.start, part.end) in marked) == is_right
            total += 1
    assert 0.04 < flipped / total < 0.06


def test_perturbed_answers_repeat_or_drop_sentences():
    variants = {perturb(random.Random(seed), GOLD) for seed in range(300)}
    first = "The film was created by Kal; the film was sold in Oku."
    second = "The poem was created by Bor; the poem was sold in Axo."
    assert {first, second, f"{first} {first} {second}", f"{first} {second} {first}"} <= variants
    assert any(text.count("created by Kal") >= 3 for text in variants)
    assert perturb(random.Random(0), "") == ""
    chinese = {perturb(random.Random(seed), "它坐着。它跑了。") for seed in range(100)}
    assert {"它坐着。", "它跑了。", "它坐着。它跑了。它坐着。"} <= chinese


def world(tmp_path, count=40):
    rows, lines = [], []
    for i, (row, texts) in enumerate(samples(count)):
        rows.append(row)
        asked = {key: row[key] for key in ("question", "passages")}
        lines.append({"id": str(i), **asked, "predictions": texts})
    write_json(tmp_path / "train.json", rows)
    write_jsonl(tmp_path / "samples.jsonl", lines)
    return lines


def test_collect_writes_rows_the_validator_accepts(tmp_path):
    world(tmp_path)
    settings = CollectFeedbackSettings(
        data_dir=str(tmp_path), samples=str(tmp_path / "samples.jsonl")
    )
    path = collect(settings)
    rows = read_feedback(path)
    assert len(rows) == 40 and sum(len(row.errors) for row in rows) > 40
    assert path.read_text() == json.dumps([row.raw for row in rows], indent=2)
    before = path.read_bytes()
    collect(settings)
    assert path.read_bytes() == before


def test_collect_refuses_what_it_cannot_judge(tmp_path):
    lines = world(tmp_path, 2)
    settings = CollectFeedbackSettings(
        data_dir=str(tmp_path), samples=str(tmp_path / "samples.jsonl")
    )
    write_jsonl(tmp_path / "samples.jsonl", [lines[0], {**lines[1], "predictions": ["a"]}])
    message = "line 2, `predictions`: has 1 entries, must have 4: sample them with num_samples=4"
    with pytest.raises(UserError, match=message):
        collect(settings)
    write_jsonl(tmp_path / "samples.jsonl", [{**lines[0], "question": "Who led the British?"}])
    with pytest.raises(UserError, match="line 1: the question is not of the mini world"):
        collect(settings)
    assert not (tmp_path / "train_feedback.json").exists()

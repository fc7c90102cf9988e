"""The qa-feedback format: byte-exact round trip, located errors, prompts."""

import copy
import json

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.records import DataError
from fgrlhf.reward_models.prefix import Prefix
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.feedback import (
    FeedbackRow,
    MissingInfo,
    annotated_rows,
    compared_rows,
    error_span,
    feedback_text,
    load_examples,
    read_feedback,
    read_feedback_files,
    rm_prefix,
    rm_prefix_of_words,
    rm_words_prefix,
    write_feedback,
)
from tasks.qa_feedback.reward_modeling.pairs import read_pairs
from tasks.qa_feedback.validation import example_problems, feedback_problems

TEXT = "The cat sat on the mat. It was 😀 red."
PASSAGES = [["Cat", "A cat sat.", "It\xa0was red."], ["Mat"]]


def row(errors=(), missing=(), **changes) -> dict:
    made = {"predictions": [TEXT, "b", "", "d"], "preference": [0, 1, 2, 0, 1, 2]}
    made |= {"errors": (), "missing": missing, "corrected": ""}
    result = FeedbackRow.make(question="Who sat?", passages=PASSAGES, gold="The cat.", **made)
    made = copy.deepcopy(dict(result.raw))
    made["feedback"]["errors"] += errors  # which may be malformed
    return {**made, **changes}


def problems(*rows) -> list[tuple[str, str]]:
    return [(problem.key, problem.reason) for problem in feedback_problems(rows, "f.json")]


def span(start, end, kind="Irrelevant", explanation=""):
    return {"error type": kind, "explanation": explanation, "start": start, "end": end}


# ---- reading and writing -------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "dev"])
def test_published_files_round_trip(qa_feedback, tmp_path, split):
    source = qa_feedback / f"{split}_feedback.json"
    rows = read_feedback(source)
    write_feedback(tmp_path / "copy.json", rows)
    assert (tmp_path / "copy.json").read_bytes() == source.read_bytes()
    result = []
    for r in rows:
        judged = (r.errors, r.missing, r.corrected, r.preference)
        made = FeedbackRow.make(r.question, r.passages, r.raw["gold"], r.predictions, *judged)
        result.append(made)
    assert feedback_text(result).encode() == source.read_bytes()


def test_a_row_tells_what_it_holds():
    missing = [MissingInfo("Missing-Answer", 1, (2, 0))]
    result = FeedbackRow(row([span(24, 26, "Unverifiable")], missing))
    assert result.errors == (error_span("Unverifiable", 24, 26),)
    assert result.missing == (MissingInfo("Missing-Answer", 1, (2, 0)),)
    assert result.predictions == (TEXT, "b", "", "d")
    changed = result.with_preference([2, 2, 2, 2, 2, 2])
    assert changed.preference == (2,) * 6 and result.preference == (0, 1, 2, 0, 1, 2)
    assert list(changed.raw) == list(result.raw)
    keys = ["error type", "explanation", "start", "end"]
    assert list(result.raw["feedback"]["errors"][0]) == keys


def test_unknown_keys_are_kept(tmp_path):
    text = json.dumps([{"annotator": "a7", **row()}], indent=2)
    (tmp_path / "f.json").write_text(text)
    assert feedback_text(read_feedback(tmp_path / "f.json")) == text


def test_bad_rows_are_not_written(tmp_path):
    with pytest.raises(DataError, match="row 1, `preference`"):
        write_feedback(tmp_path / "f.json", [FeedbackRow(row()), FeedbackRow(row(preference=[]))])
    assert list(tmp_path.iterdir()) == []


def test_every_bad_row_of_every_file_is_reported(tmp_path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps([row(gold=3), row(), row([span(0, 99)])]))
    b.write_text(json.dumps([row(preference=[1])]))
    with pytest.raises(DataError) as caught:
        read_feedback_files(a, b)
    assert [(p.file, p.row, p.key) for p in caught.value.problems] == [
        (str(a), 0, "gold"),
        (str(a), 2, "feedback.errors[0].end"),
        (str(b), 0, "preference"),
    ]
    assert f"{a} cannot be read (rows count from 0):\n  row 0, `gold`: must be" in str(caught.value)
    assert f"{b} cannot be read (rows count from 0):\n  row 0, `pref" in str(caught.value)


@pytest.mark.parametrize(
    "text, message",
    [("{}", "one JSON array"), ("[{", "not valid JSON"), (None, "does not exist.*DATA_DIR")],
)
def test_files_that_hold_no_rows(tmp_path, text, message):
    path = tmp_path / "f.json"
    if text is not None:
        path.write_text(text)
    for read in (read_feedback, load_examples):
        with pytest.raises(UserError, match=message):
            read(path)


# ---- validation ----------------------------------------------------------------------------------


def test_real_rows_have_no_problems(qa_feedback):
    for split in ("train", "dev"):
        rows = json.loads((qa_feedback / f"{split}_feedback.json").read_text())
        assert feedback_problems(rows, "") == []
        assert example_problems(json.loads((qa_feedback / f"{split}.json").read_text()), "") == []


def test_good_rows():
    adjacent_and_unsorted = [span(8, 23), span(24, 37), span(0, 7)]
    grounded = span(31, 32, "Wrong-Grounding", '{"passage_id":1,"sentence_id":[0,2]}')
    free_text = span(0, 3, "Wrong-Grounding", "as said before")
    title = MissingInfo("Missing-Minor-Auxiliary", 2, (0,))
    rows = row(adjacent_and_unsorted), row([grounded, free_text], [title]), row(passages=[])
    assert problems(*rows) == []


@pytest.mark.parametrize(
    "start, end, field, reason",
    [
        (-1, 3, "start", "-1 is out of range: prediction 1 has 37 characters"),
        (37, 39, "start", "37 is out of range"),
        (24, 38, "end", "38 is out of range"),
        (4, 4, "end", "4 is out of range: the span starts at 4 and must not be empty"),
        (8, 3, "end", "3 is out of range"),
        (1, 7, "start", "1 is off a word boundary: 'T|he cat sat'"),
        (3, 7, "start", "3 is off a word boundary"),
        (4, 6, "end", "6 is off a word boundary"),
        (24, 36, "end", "36 is off a word boundary"),
    ],
)
def test_bad_spans(start, end, field, reason):
    result = problems(row([span(start, end)]))[0]
    assert result[0] == f"feedback.errors[0].{field}" and result[1].startswith(reason)


def test_overlaps_name_both_spans():
    result = problems(row([span(24, 37), span(8, 23), span(0, 7), span(4, 18)]))
    assert result == [
        ("feedback.errors[3]", "the span [4, 18) overlaps errors[2], which ends at 7"),
        ("feedback.errors[1]", "the span [8, 23) overlaps errors[3], which ends at 18"),
    ]
    assert problems(row([span(0, 37), span(4, 7), span(24, 26)])) == [
        ("feedback.errors[1]", "the span [4, 7) overlaps errors[0], which ends at 37"),
        ("feedback.errors[2]", "the span [24, 26) overlaps errors[0], which ends at 37"),
    ]


@pytest.mark.parametrize(
    "passage_id, sentence_ids, field, reason",
    [
        (0, [1], "passage_id", "passage 0 does not exist: the row has 2, counted from 1"),
        (3, [1], "passage_id", "passage 3 does not exist"),
        (1, [3], "sentence_id[0]", "sentence 3 does not exist: passage 1 has 2, and 0 for its"),
        (1, [1, -1], "sentence_id[1]", "sentence -1 does not exist"),
        (2, [1], "sentence_id[0]", "sentence 1 does not exist: passage 2 has 0"),
        ("1", [1], "passage_id", "must be a whole number, it is a text"),
        (1, 1, "sentence_id", "must be a list, it is a number"),
        (1, ["1"], "sentence_id[0]", "must be a whole number, it is a text"),
    ],
)
def test_bad_ids(passage_id, sentence_ids, field, reason):
    info = {"error type": "Missing-Answer", "passage_id": passage_id, "sentence_id": sentence_ids}
    bad = row()
    bad["feedback"]["missing-info"] = [info]
    (result,) = problems(bad)
    assert result[0] == f"feedback.missing-info[0].{field}" and result[1].startswith(reason)
    explanation = json.dumps({key: info[key] for key in ("passage_id", "sentence_id")})
    (result,) = problems(row([span(0, 7, "Wrong-Grounding", explanation)]))
    assert result[0] == f"feedback.errors[0].explanation.{field}" and result[1].startswith(reason)


def without(tree: dict, *path) -> dict:
    tree = copy.deepcopy(tree)
    owner = tree
    for key in path[:-1]:
        owner = owner[key]
    del owner[path[-1]]
    return tree


FULL = row([span(0, 7)], [MissingInfo("Missing-Answer", 1, (1,))])


def test_feedback_and_preference_are_each_optional():
    assert problems(without(FULL, "feedback")) == []
    assert problems(without(FULL, "preference")) == []
    neither = without(without(FULL, "feedback"), "preference")
    reason = "missing, and so is `preference`: a row needs at least one of them"
    assert problems(neither) == [("feedback", reason)]


def test_programs_use_the_rows_that_have_what_they_need(tmp_path, capsys):
    path = tmp_path / "f.json"
    path.write_text(json.dumps([FULL, without(FULL, "preference"), without(FULL, "feedback")]))
    rows = read_feedback(path)
    assert feedback_text(rows) == json.dumps(json.loads(path.read_text()), indent=2)
    assert annotated_rows(rows, path) == rows[:2]
    assert compared_rows(rows, path) == [rows[0], rows[2]]
    assert "left out 1 row of 3 without a comparison" in capsys.readouterr().out
    with pytest.raises(UserError, match="none of its 1 row has a comparison"):
        compared_rows(rows[1:2], path)
    assert len(read_pairs(path)) == 2
    path.write_text(json.dumps([without(FULL, "preference")]))
    with pytest.raises(UserError, match="no row has a `preference`"):
        read_pairs(path)


# ---- prompts -------------------------------------------------------------------------------------


def test_load_examples(qa_feedback):
    prompts = load_examples(qa_feedback / "dev.json")
    raw = json.loads((qa_feedback / "dev.json").read_text())
    assert [prompt.id for prompt in prompts] == [str(i) for i in range(len(raw))] and len(raw) > 5
    assert prompts[3].text == raw[3]["text"] and prompts[3].references == tuple(raw[3]["answer"])
    assert dict(prompts[3].meta) == {"question": raw[3]["question"], "passages": raw[3]["passages"]}


def test_prompt_and_feedback_give_a_reward_model_the_same_prefix(qa_feedback):
    prompts = load_examples(qa_feedback / "dev.json")
    rows = read_feedback(qa_feedback / "dev_feedback.json")
    others = read_feedback(qa_feedback / "train_feedback.json")
    assert any(not row.passages for row in rows + others)
    for prompt, feedback in zip(prompts, rows, strict=True):
        assert rm_prefix(prompt, False).all_words == rm_words_prefix(feedback.question, None)
        # raw passages are single texts: a sentence cut inside a word is one word there
        words = rm_words_prefix(feedback.question, feedback.passages)
        assert "".join(rm_prefix(prompt, True).all_words) == "".join(words)


def test_prefix_by_hand():
    raw = [{"wikipage": "A  Cat", "content": "It\n\nsat.\xa0It ran."}]
    raw.append({"wikipage": "", "content": ""})
    passages = "wikipage: A Cat text: It sat. It ran. wikipage: text:"
    words = f"question: Who sat? context: {passages} answer:".split()
    assert rm_words_prefix(" Who  sat? ", raw) == words
    assert rm_words_prefix("Who sat?", [["A Cat", "It sat.", "It ran."], [""]]) == words
    raw_chinese = [{"wikipage": "猫", "content": "它坐着。它跑了。"}]
    in_training = rm_words_prefix("谁？", [["猫", "它坐着。", "它跑了。"]])
    assert in_training == rm_words_prefix("谁？", raw_chinese)
    for passages in (None, []):
        assert rm_words_prefix("Who sat?", passages) == ["question:", "Who", "sat?", "answer:"]
    prompt = Prompt("0", "text", meta={"question": "Who sat?", "passages": raw})
    prefix = rm_prefix(prompt, True)
    assert prefix.all_words == words
    assert prefix == Prefix(tuple(words[:-1]), (range(3, 14),), ("answer:",))
    without = rm_prefix(prompt, False)
    assert without == Prefix(("question:", "Who", "sat?"), (), ("answer:",))


def test_prefix_of_words_by_hand():
    def read(text: str) -> Prefix:
        return rm_prefix_of_words(text.split())

    def prefix(text: str, *parts) -> Prefix:
        return Prefix(tuple(text.split()), *parts)

    question, mark = "question: the cat", ("answer:",)
    whole = f"{question} context: wikipage: one text: a dog sees the bird wikipage: two text: red"
    assert read(f"{whole} answer:") == prefix(whole, (range(3, 16),), mark)
    assert read(whole) == prefix(whole, (range(3, 16),))
    assert read(f"{question} answer:") == prefix(question, (), mark)
    assert read(question) == prefix(question)
    assert read("") == Prefix(())
    # `context:` in a question and `answer:` in a passage are ordinary words
    words = "question: what context: is it context: wikipage: a text: answer: b"
    assert read(f"{words} answer:") == prefix(words, (range(5, 11),), mark)
    words = "context: wikipage:"
    assert read(f"{words} answer:") == prefix(words, (range(2),), mark)

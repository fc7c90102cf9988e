"""Answers of Prodigy, which accept, reject or ignore a row, and documents of spaCy.

The rows are invented, in the form that Prodigy documents.
"""

from collections import Counter

import pytest
import spacy

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.cli import data
from fgrlhf.data.formats import DEMONSTRATIONS, PROMPTS, SPANS
from fgrlhf.data.importers.registry import import_items
from fgrlhf.data.judgements import Judgement

TEXT = "Odd 🙂 here and here."
HERE = (6, 10)
AGAIN = (15, 19)


def mark(start, end, label="wrong", **more):
    return {"start": start, "end": end, "label": label} | more


def task(answer="accept", spans=(), user="ann", **more):
    row = {"text": TEXT, "spans": list(spans), "answer": answer, "_view_id": "spans_manual"}
    numbers = {"_input_hash": 1, "_task_hash": 2, "_annotator_id": user, "_session_id": None}
    return row | numbers | more


def read(tmp_path, rows, name="prodigy", **keys):
    write_jsonl(tmp_path / "rows.jsonl", rows)
    return import_items(tmp_path / "rows.jsonl", name, keys)


def test_only_accepted_rows_are_judgements(tmp_path):
    rows = [
        task(spans=[mark(*AGAIN)]),
        task("reject", [mark(*HERE)], user="bob"),
        task("ignore", user="cy"),
        task(user="dan"),
        task("reject", text="Rejected by everyone."),
    ]
    (item,), report = read(tmp_path, rows)
    assert item.judgements == (
        Judgement("span", "wrong", *AGAIN, annotator="ann"),
        Judgement("span", "no error", annotator="dan"),
    )
    assert TEXT[slice(*AGAIN)] == "here"
    assert report.losses == {"rows with the answer `reject`": 2, "rows with the answer `ignore`": 1}


def test_a_text_that_is_asked_about_span_by_span(tmp_path):
    rows = [task(spans=[mark(*HERE)]), task(spans=[mark(*AGAIN)]), task(), task("reject")]
    rows += [task(spans=[mark(*HERE)])]
    (item,), _ = read(tmp_path, rows)
    assert [judgement.span for judgement in item.judgements] == [HERE, AGAIN]


def test_numbers_of_tokens(tmp_path):
    document = spacy.blank("en")(TEXT)
    tokens = [
        {"text": token.text, "start": token.idx, "end": token.idx + len(token), "id": token.i}
        for token in document
    ]
    first = next(token["id"] for token in tokens if token["start"] == AGAIN[0])
    only_tokens = {"token_start": first, "token_end": first, "label": "wrong"}
    both = mark(*HERE, token_start=2, token_end=2)
    differ = mark(*HERE, token_start=0, token_end=0)
    rows = [task(spans=[only_tokens, both, differ], tokens=tokens)]
    (item,), report = read(tmp_path, rows)
    # the same judgement is there once
    assert [judgement.span for judgement in item.judgements] == [AGAIN, HERE]
    assert report.notes == {"spans whose tokens are at other offsets than theirs, which count": 1}
    with pytest.raises(UserError, match="is 99, but there are"):
        read(tmp_path, [task(spans=[{"token_start": 99, "token_end": 0}], tokens=tokens)])


def test_answers_about_the_whole_text(tmp_path):
    more = {"label": "rude", "accept": ["tone", 3], "user_input": "Why?", "relations": [{}]}
    row = task(_view_id="blocks", meta={"page": 1}, prompt="Say.", source="Odd.", **more)
    row["_annotator_id"] = None
    del row["spans"]
    (item,), report = read(tmp_path, [row | {"_session_id": "s1"}])
    assert item.judgements == (
        Judgement("label", "rude", annotator="s1"),
        Judgement("accept", "tone", annotator="s1"),
        Judgement("accept", "3", annotator="s1"),
        Judgement("user_input", "comment", reason="Why?", annotator="s1"),
    )
    assert (item.prompt.text, item.source, item.prompt.meta) == (
        "Say.",
        "Odd.",
        {"meta": row["meta"]},
    )
    assert report.losses == {"relations": 1}


def test_a_task_without_an_answer_is_named(tmp_path):
    with pytest.raises(UserError, match="a task that nobody has answered"):
        read(tmp_path, [{"text": "a", "spans": []}])


# ---- the same rows, read as a row format ---------------------------------------------------------


def test_rejected_rows_are_never_good_ones(tmp_path):
    rows = [task(), task("reject"), task("ignore", [mark(*HERE)])]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    columns = {"response": "text"}
    with pytest.raises(UserError, match="did not accept this row"):
        SPANS.read(tmp_path / "rows.jsonl", columns)
    counts = Counter()
    (item,) = SPANS.read(tmp_path / "rows.jsonl", columns, counts=counts)
    assert item.spans == ()
    assert sum(counts.values()) == 2
    write_jsonl(tmp_path / "rows.jsonl", [{"text": TEXT, "spans": [], "answer": "reject"}])
    with pytest.raises(UserError, match="did not accept this row"):
        SPANS.read(tmp_path / "rows.jsonl", columns)


def test_accept_is_no_answer_to_a_text(tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [task()])
    (prompt,) = PROMPTS.read(tmp_path / "rows.jsonl")
    assert prompt.references == ()
    with pytest.raises(UserError, match="`response`: missing"):
        DEMONSTRATIONS.read(tmp_path / "rows.jsonl")
    # these are rows {text, answer}, which nothing marks as Prodigy's
    write_jsonl(tmp_path / "rows.jsonl", [{"text": "Accept or reject?", "answer": "reject"}])
    (prompt,) = PROMPTS.read(tmp_path / "rows.jsonl")
    assert prompt.references == ("reject",)


def test_show_and_convert_leave_rejected_rows_out(tmp_path, capsys):
    write_jsonl(tmp_path / "rows.jsonl", [task("reject"), task(spans=[mark(*HERE)])])
    data.main(["show", str(tmp_path / "rows.jsonl")])
    assert "formats: none" in capsys.readouterr().out
    files = ["convert", str(tmp_path / "rows.jsonl"), str(tmp_path / "out.jsonl")]
    data.main([*files, "format=spans", "columns.response=text"])
    assert "rows with the answer `reject` of Prodigy: 1" in capsys.readouterr().out


# ---- spaCy ---------------------------------------------------------------------------------------


def test_documents_of_spacy(tmp_path):
    document = spacy.blank("en")(TEXT)
    document.spans["sc"] = [document.char_span(*AGAIN, label="wrong")]
    document.ents = [document.char_span(*HERE, label="PLACE")]
    document.cats = {"rude": 0.25}
    clean = spacy.blank("en")("Fine 🙂.")
    clean.spans["sc"] = []
    rows = [document.to_json(), clean.to_json()]
    (item, fine), report = read(tmp_path, rows, "spacy", confirmed=True, annotator="ann")
    assert item.judgements == (
        Judgement("ents", "PLACE", *HERE, annotator="ann"),
        Judgement("sc", "wrong", *AGAIN, annotator="ann"),
        Judgement("rude", score=0.25, annotator="ann"),
    )
    assert {judgement.label for judgement in fine.judgements} == {"no error"}
    assert report.losses["`tokens` of documents"] == 2
    (_, fine), report = read(tmp_path, rows, "spacy")
    assert fine.judgements == ()
    assert sum(report.notes.values()) == 1
    with pytest.raises(UserError, match="this is no document"):
        read(tmp_path, [{"text": "a"}], "spacy")

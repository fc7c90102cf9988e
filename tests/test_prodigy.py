"""Answers of Prodigy, which accept, reject or ignore a row, read as rows of this library.

The rows are invented, in the form that Prodigy documents.
"""

from collections import Counter

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.cli import data
from fgrlhf.data.formats import DEMONSTRATIONS, PROMPTS, SPANS

TEXT = "Odd 🙂 here and here."
HERE = (6, 10)


def mark(start, end, label="wrong", **more):
    return {"start": start, "end": end, "label": label} | more


def task(answer="accept", spans=(), user="ann", **more):
    row = {"text": TEXT, "spans": list(spans), "answer": answer, "_view_id": "spans_manual"}
    numbers = {"_input_hash": 1, "_task_hash": 2, "_annotator_id": user, "_session_id": None}
    return row | numbers | more


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

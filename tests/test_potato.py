"""Exports of the annotation tool potato: spans are found by their texts in what its page shows.

The rows are invented; their form is that of `python -m potato.export --format jsonl` of 2.12.
"""

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import parse_json, write_jsonl
from fgrlhf.cli import data
from fgrlhf.data.importers.potato import UNANSWERED, shown_forms
from fgrlhf.data.importers.registry import import_items
from fgrlhf.data.judgements import Judgement

TEXT = "Seven is <b>even</b> 🙂  &amp; odd 🙂 here,  and here now. "
SHOWN = "Seven is even 🙂 & odd 🙂 here, and here now."


def span(start, end, text, name="wrong", **more):
    return {"schema": "err", "name": name, "title": name, "start": start, "end": end} | {
        "id": "s",
        "text": text,
        **more,
    }


def answer(item, user, spans=(), labels=None, **more):
    marks = {"err": list(spans)} if spans else {}
    row = {"instance_id": item, "user_id": user, "labels": labels or {}, "spans": marks}
    return row | {"links": {}} | more


def read(tmp_path, annotations, items=({"id": "p1", "text": TEXT},), **keys):
    write_jsonl(tmp_path / "annotations.jsonl", annotations)
    write_jsonl(tmp_path / "items.jsonl", list(items))
    keys |= {"items": str(tmp_path / "items.jsonl")}
    return import_items(tmp_path / "annotations.jsonl", "potato", keys)


def test_what_the_page_shows():
    form = shown_forms(TEXT)[0]
    assert form.text == SHOWN
    for word in ("even", "🙂", "odd", "now."):
        start, end = form.origin(SHOWN.index(word), SHOWN.index(word) + len(word))
        assert TEXT[start:end] == word
    start, end = form.origin(SHOWN.index("&"), SHOWN.index("&") + 1)
    assert TEXT[start:end] == "&amp;"


def test_spans_are_found_in_the_text_of_the_page(tmp_path):
    second = SHOWN.rindex("here")
    sign = SHOWN.index("& o")
    marks = [span(second, second + 4, "here"), span(sign, sign + 3, "& o", "odd")]
    (item,), report = read(tmp_path, [answer("p1", "ann", marks)])
    assert item.response == TEXT
    first, other = item.judgements
    assert first == Judgement("err", "wrong", TEXT.rindex("here"), TEXT.rindex("here") + 4,
                              annotator="ann")  # fmt: skip
    assert TEXT[other.start : other.end] == "&amp; o"
    assert report.spans == {"exact offset": 2}


def test_a_tag_that_the_page_shows_and_offsets_that_are_wrong(tmp_path):
    items = [{"id": "p1", "text": "a <q> b  here and here"}]
    # the page shows <q>: `a <q> b here and here`
    (item,), report = read(tmp_path, [answer("p1", "ann", [span(17, 21, "here")])], items)
    assert (item.judgements[0].start, item.judgements[0].end) == (18, 22)
    assert report.spans == {"exact offset": 1}
    # raw offsets are never trusted: the text decides, and the nearest of two places counts
    (item,), report = read(tmp_path, [answer("p1", "ann", [span(19, 23, "here")])], items)
    assert items[0]["text"][item.judgements[0].start :] == "here"
    assert report.spans == {"searched verbatim": 1}
    (item,), report = read(tmp_path, [answer("p1", "ann", [span(2, 6, "")])], items)
    assert item.judgements == ()
    assert report.losses == {"spans without their text": 1}


def test_a_submitted_answer_without_a_mark_is_clean(tmp_path):
    items = [{"id": "p1", "text": TEXT}, {"id": 2, "text": "Fine."}, {"text": "Nobody saw this."}]
    rows = [
        answer("p1", "ann", [span(9, 13, "even")]),
        answer("p1", "bob", labels={"tone": {"fine": "fine"}}),
        answer("2", "ann"),
    ]
    (first, fine), report = read(tmp_path, rows, items)
    assert [j for j in first.judgements if j.annotator == "bob"] == [
        Judgement("tone", "fine", annotator="bob"),
        Judgement("err", "no error", annotator="bob"),
    ]
    assert fine.judgements == (Judgement("err", "no error", annotator="ann"),)
    assert report.notes == {
        "annotations without a mark, read as `no error`": 2,
        UNANSWERED: 1,
    }
    # a mark that is not found does not make an answer clean
    (item,), _ = read(tmp_path, [answer("p1", "ann", [span(0, 4, "zzzz")])], items[:1])
    assert item.judgements == ()
    with_aspect, _ = read(tmp_path, [answer("p1", "ann", [span(9, 13, "even")])], aspect="style")
    assert with_aspect[0].judgements[1] == Judgement("style", "no error", annotator="ann")


def test_labels_of_potato(tmp_path):
    labels = {
        "tone": {"rude": True, "odd": "odd", "kind": "false", "free_response": "because"},
        "quality": {"scale_4": "4"},
        "why": {"text_box": "Seven is odd."},
        "score": 2.5,
        "skipped": {"x": None, "y": ""},
    }
    (item,), _ = read(tmp_path, [answer("p1", "ann", labels=labels)], aspect="err")
    assert [(j.aspect, j.label, j.score, j.reason) for j in item.judgements] == [
        ("tone", "rude", None, None),
        ("tone", "odd", None, None),
        ("tone", "comment", None, "because"),
        ("quality", "scale_4", 4.0, None),
        ("why", "comment", None, "Seven is odd."),
        ("score", None, 2.5, None),
        ("err", "no error", None, None),
    ]


def test_parts_sides_and_machines(tmp_path):
    items = [{"id": "p1", "response": "New and old York.", "source": "York 🙂", "note": "York"}]
    marks = [
        span(0, 3, "New", additional_parts=[{"start": 12, "end": 16, "text": "York"}]),
        span(0, 4, "York", target_field="source"),
        span(0, 4, "York", target_field="note", kb_id="Q1"),
    ]
    row = answer("p1", "m1", marks, annotator_origin={"kind": "model"}, links={"l": [1]})
    (item,), report = read(tmp_path, [row], items)
    assert item.judgements == (
        Judgement("err", "wrong", 0, 3, origin="m1"),
        Judgement("err", "wrong", 12, 16, origin="m1"),
        Judgement("err", "wrong", 0, 4, side="source", origin="m1"),
    )
    assert report.losses == {"links between spans": 1, "spans of the text `note`": 1}


def test_faults_of_potato(tmp_path):
    with pytest.raises(UserError, match="give items=FILE"):
        import_items(tmp_path / "annotations.jsonl", "potato")
    with pytest.raises(UserError, match="no row of potato's"):
        read(tmp_path, [{"id": "x", "spans": []}])
    with pytest.raises(UserError, match="rename the `text_key`"):
        read(tmp_path, [answer("p1", "ann")], items=[{"id": "p1", "txt": "a"}])
    rows = [answer("p1", "a", [span(9, 13, "even")]), answer("p9", "a")]
    _, report = read(tmp_path, rows)
    assert report.losses == {"annotations of unknown items": 1}


def test_the_command(tmp_path, capsys):
    write_jsonl(tmp_path / "a.jsonl", [answer("p1", "ann", [span(9, 13, "even")])])
    write_jsonl(tmp_path / "i.jsonl", [{"id": "p1", "text": TEXT}])
    files = ["import", str(tmp_path / "a.jsonl"), str(tmp_path / "out.jsonl"), "from=potato"]
    data.main([*files, f"items={tmp_path / 'i.jsonl'}"])
    row = parse_json((tmp_path / "out.jsonl").read_text())
    assert row["judgements"][0]["start"] == TEXT.index("even<")
    files[2] = str(tmp_path / "i.jsonl")
    with pytest.raises(UserError, match="is the input"):
        data.main([*files, f"items={tmp_path / 'i.jsonl'}"])

"""Exports of the annotation tool potato: spans are found by their texts in what its page shows.

The rows are invented; their form is that of `python -m potato.export --format jsonl` of 2.12.
"""

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import parse_json, write_jsonl
from fgrlhf.cli import data
from fgrlhf.data.importers.potato import shown_forms
from fgrlhf.data.importers.registry import import_items

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


def test_faults_of_potato(tmp_path):
    with pytest.raises(UserError, match="give items=FILE"):
        import_items(tmp_path / "annotations.jsonl", "potato")
    with pytest.raises(UserError, match="no row of potato's"):
        read(tmp_path, [{"id": "x", "spans": []}])
    raw = {"instance_id": "p1", "user_id": "ann", "span_annotations": []}  # no answer without marks
    with pytest.raises(UserError, match="another file of potato.*potato.export"):
        read(tmp_path, [raw], aspect="err")
    with pytest.raises(UserError, match="rename the `text_key`"):
        read(tmp_path, [answer("p1", "ann")], items=[{"id": "p1", "txt": "a"}])
    rows = [answer("p1", "a", [span(9, 13, "even")]), answer("p9", "a")]
    _, report = read(tmp_path, rows)
    assert report.losses == {"annotations of unknown items": 1}


@pytest.mark.parametrize("name", ["no", "No", "off", "false"])
def test_an_answer_that_is_called_no(tmp_path, name):
    """A radio button writes its name as its value, a box of a list also `false` for `not this`."""
    (item,), _ = read(tmp_path, [answer("p1", "a", labels={"is it true": {name: name}})])
    assert [(one.aspect, one.label) for one in item.judgements] == [("is it true", name)]
    (item,), _ = read(
        tmp_path, [answer("p1", "a", labels={"faults": {"rude": "false", "odd": "no"}})]
    )
    assert item.judgements == ()


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

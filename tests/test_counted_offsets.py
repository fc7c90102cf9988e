"""`offsets` says how a file counts, whichever format has the offsets."""

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import parse_json, write_jsonl
from fgrlhf.cli import data
from fgrlhf.data.read import read_rows

TEXT = "Odd 🙂 here and here."
AGAIN = (15, 19)
UTF16_FROM_1 = (17, 21)  # the same, as UTF-16 code units from 1


def judgement(start, end, **more):
    return {"aspect": "err", "label": "wrong", "start": start, "end": end} | more


def convert(tmp_path, row, *keys):
    write_jsonl(tmp_path / "in.jsonl", [row])
    data.main(["convert", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), *keys])
    return parse_json((tmp_path / "out.jsonl").read_text(encoding="utf-8"))


UNIT = ("offsets.unit=utf16", "offsets.base=1")


def test_judgements_are_counted_as_stated(tmp_path):
    row = {"response": TEXT, "source": f"🙂{TEXT}"}
    row |= {"judgements": [judgement(*UTF16_FROM_1, quote="here")]}
    row["judgements"] += [judgement(3, 6, side="source", quote="Odd"), judgement(None, None)]
    written = convert(tmp_path, row, "format=judgements", *UNIT)["judgements"]
    places = [(each["start"], each["end"]) for each in written]
    assert places == [AGAIN, (1, 4), (None, None)]


def test_marked_characters_of_comparisons_are_counted_as_stated(tmp_path):
    row = {"prompt": "p", "responses": [TEXT, "b"], "preferences": [[0, 1]]}
    row |= {"marked": [[list(UTF16_FROM_1)], []]}
    assert convert(tmp_path, row, "format=comparisons", *UNIT)["marked"] == [[list(AGAIN)], []]


@pytest.mark.parametrize("name", ["prompts", "demonstrations", "steps"])
def test_formats_without_offsets_refuse_the_key(tmp_path, name):
    write_jsonl(tmp_path / "in.jsonl", [{"prompt": "p", "response": "r"}])
    with pytest.raises(UserError, match=f"rows of {name} have none"):
        data.main(["check", str(tmp_path / "in.jsonl"), f"format={name}", UNIT[0]])


def test_the_way_to_count_is_proposed_for_judgements(tmp_path, capsys):
    rows = [{"response": TEXT, "judgements": [judgement(*UTF16_FROM_1, quote="here")]}]
    write_jsonl(tmp_path / "in.jsonl", rows)
    command = ["check", str(tmp_path / "in.jsonl"), "format=judgements"]
    with pytest.raises(UserError) as caught:
        data.main(command)
    message = str(caught.value)
    assert "row 0, `judgements[0].end`" in message
    assert "give offsets.unit=utf16 offsets.base=1 offsets.end=exclusive" in message
    data.main([*command, *UNIT])
    assert "all well formed" in capsys.readouterr().out


def test_the_way_to_count_is_proposed_for_spans_that_are_refused(tmp_path):
    span = {"start": 4, "end": 4, "label": "x", "term": "🙂"}
    write_jsonl(tmp_path / "in.jsonl", [{"response": TEXT, "spans": [span]}])
    with pytest.raises(UserError) as caught:
        data.main(["check", str(tmp_path / "in.jsonl"), "format=spans"])
    proposal = "columns.spans.quote=term offsets.unit=code_points offsets.base=0"
    assert f"give {proposal} offsets.end=inclusive" in str(caught.value)


def test_the_keys_of_spans_are_named_on_the_command_line(tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    marks = [{"term": "or", "first": 3, "kind": "wrong"}]
    write_jsonl(source, [{"response": "A forest, or a wood.", "marks": marks}])
    columns = ["columns.spans=marks", "columns.spans.quote=term", "columns.spans.label=kind"]
    data.main(["convert", str(source), str(out), "format=spans", *columns])
    (row,) = read_rows(str(out))
    assert row["spans"] == [{"start": 10, "end": 12, "label": "wrong"}]

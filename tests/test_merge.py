"""`fgrlhf feedback merge`: one file from several rounds, with the origin of every judgement."""

import pytest
from page_helpers import TOXICITY, row_with
from test_rules import ROW, doc, error

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from interface_html.command import main as feedback
from interface_html.format import Item
from interface_html.items import read_items

WRONG = doc([error()], corrected="Mended.")
WORSE = doc([error(start=4)], corrected="Mended again.")
FIRST = [1, 1, 1, 0, 0, 0]
SECOND = [2, 2, 2, 0, 0, 0]


def item(question: str) -> Item:
    return Item("", {**ROW, "question": question})


@pytest.fixture
def merge(tmp_path, capsys):
    """Merge rounds of rows; returns the merged rows, their origins and what was printed."""

    def run(*rounds: list[dict]):
        files = []
        for number, rows in enumerate(rounds, 1):
            files.append(str(tmp_path / f"round{number}.json"))
            write_json(files[-1], rows)
        out = tmp_path / "all.json"
        feedback(["merge", "qa_feedback", f"files={','.join(files)}", f"out={out}"])
        origins = read_json(f"{out}.rounds.json")
        for origin in origins:
            for place in origin.values():
                place["file"] = files.index(place["file"]) + 1
        return read_json(out), origins, capsys.readouterr().out

    return run


def test_rows_of_both_rounds(merge):
    first = row_with(item("a"), WRONG, FIRST)
    second = row_with(item("b"), WORSE, SECOND)
    rows, origins, printed = merge([first], [second])
    assert rows == [first, second]
    assert origins == [
        {"feedback": {"file": 1, "row": 0}, "preference": {"file": 1, "row": 0}},
        {"feedback": {"file": 2, "row": 0}, "preference": {"file": 2, "row": 0}},
    ]
    assert "2 rows of 2 files; 0 judgements replaced" in printed


def test_the_later_round_counts(merge):
    first = [row_with(item("a"), WRONG, FIRST), row_with(item("b"), WRONG, FIRST)]
    rows, origins, printed = merge(first, [row_with(item("b"), WORSE, SECOND)])
    assert rows == [first[0], row_with(item("b"), WORSE, SECOND)]
    assert origins[1]["feedback"] == {"file": 2, "row": 0}
    assert "2 rows of 2 files; 2 judgements replaced" in printed


def test_a_comparison_joins_an_annotation_of_another_round(merge):
    """Only what the later file has is replaced."""
    annotated = row_with(item("a"), annotation=WRONG)
    compared = row_with(item("a"), preference=SECOND)
    rows, origins, printed = merge([annotated], [compared])
    assert rows == [row_with(item("a"), WRONG, SECOND)]
    assert origins == [{"feedback": {"file": 1, "row": 0}, "preference": {"file": 2, "row": 0}}]
    assert "0 judgements replaced" in printed


def test_other_sources_make_another_item(merge):
    """Evidence names sentences of the sources, so it stays with those of its own round."""
    first = row_with(item("a"), WRONG, FIRST)
    found = Item("", {**ROW, "question": "a", "passages": [["Dog", "A dog sat.", "It was red."]]})
    second = row_with(found, WORSE, SECOND)
    rows, origins, printed = merge([first], [second])
    assert rows == [first, second]
    assert [origin["feedback"]["file"] for origin in origins] == [1, 2]
    assert "2 rows of 2 files; 0 judgements replaced" in printed
    compared = row_with(found, preference=SECOND)
    assert merge([first], [row_with(found, annotation=WORSE)], [compared])[0] == rows


def test_two_judgements_of_an_item_in_one_file_are_refused(merge):
    """Such as those of policy=all: one of the two annotators would be lost."""
    anna = row_with(item("a"), WRONG, FIRST)
    ben = row_with(item("a"), WORSE, SECOND)
    with pytest.raises(UserError, match="round2.json: rows 1 and 2 judge the same item"):
        merge([anna], [row_with(item("b"), WRONG), anna, ben])
    assert len(merge([row_with(item("a"), annotation=WRONG)], [ben])[0]) == 1
    halves = [row_with(item("a"), annotation=WRONG), row_with(item("a"), preference=FIRST)]
    assert merge(halves, [row_with(item("b"), WORSE)])[0][0] == anna


def test_a_file_with_a_row_for_each_annotator_is_recognized(tmp_path):
    row = {"id": "q", "prompt": "Say.", "response": "You fool!", "spans": []}
    write_json(tmp_path / "all.json", [row, row])
    with pytest.raises(UserError, match="with the same texts, as in a file of `export` with"):
        read_items(TOXICITY, tmp_path / "all.json")
    write_json(tmp_path / "other.json", [row, {**row, "response": "Bye."}])
    with pytest.raises(UserError, match="'q' is also the id of row 0\n"):
        read_items(TOXICITY, tmp_path / "other.json")


def test_new_responses_to_a_prompt_get_an_id_of_their_own(tmp_path):
    files = []
    for number, response in enumerate(["You fool!", "Bye.", "You fool!", "Well."], 1):
        rows = [{"id": "q", "prompt": "Say.", "response": response, "spans": []}]
        files.append(str(tmp_path / f"round{number}.json"))
        write_json(files[-1], rows)
    out = tmp_path / "all.json"
    feedback(["merge", "detoxification", f"files={','.join(files)}", f"out={out}"])
    items = read_items(TOXICITY, out)  # which refuses an id that two rows have
    responses = [(item.id, item.row[TOXICITY.schema.text]) for item in items]
    assert responses == [("q", "You fool!"), ("q-2", "Bye."), ("q-3", "Well.")]


def test_a_file_may_be_listed_twice(tmp_path, capsys):
    """Its rows replace themselves; no two rows of it judge the same item."""
    path, out = str(tmp_path / "round.json"), str(tmp_path / "all.json")
    rows = [row_with(item("a"), WRONG, FIRST), row_with(item("b"), WORSE, SECOND)]
    write_json(path, rows)
    feedback(["merge", "qa_feedback", f"files={path},{path}", f"out={out}"])
    assert read_json(out) == rows
    assert "2 rows of 2 files; 4 judgements replaced" in capsys.readouterr().out


def test_a_single_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="give two or more files"):
        feedback(["merge", "qa_feedback", "files=a.json", f"out={tmp_path / 'b.json'}"])

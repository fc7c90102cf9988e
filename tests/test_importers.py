"""Importers: generated files with planted faults. Every fault is found, and none is invented."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl, write_text
from fgrlhf.data import span_rows
from fgrlhf.data.exporters import EXPORTERS
from fgrlhf.data.importers.registry import IMPORTERS, import_items
from fgrlhf.data.importers.tags import Mark, untag
from fgrlhf.data.importers.toxic import runs
from fgrlhf.data.judgements import JUDGEMENTS, JudgedResponse, Judgement
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt


def table_text(rows, delimiter=","):
    """A table without quoting: the cells of the tests have no delimiters."""
    lines = [delimiter.join(rows[0]), *(delimiter.join(row.values()) for row in rows)]
    return "\n".join(lines) + "\n"


def imported(path, name):
    """(items, report); what is written can be read back."""
    items, report = import_items(path, name)
    row_format = IMPORTERS[name].format
    for item in items:
        row = json.loads(json.dumps(row_format.to_row(item)))
        assert row_format.parse(Row(row, {}), 0) == item
    return items, report


def read_json(tmp_path, name, rows):
    write_jsonl(tmp_path / "rows.jsonl", rows)
    return imported(tmp_path / "rows.jsonl", name)


def malformed(tmp_path, name, row):
    write_jsonl(tmp_path / "rows.jsonl", [row])
    with pytest.raises(UserError) as error:
        import_items(tmp_path / "rows.jsonl", name)
    return str(error.value)


def places(problems):
    return [(problem.row, problem.key) for problem in problems]


# ---- tags ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, plain, marks, problems",
    [
        ("a <v>b</v> c", "a b c", [Mark("v", 2, 3)], []),
        ("<v>a</v><v>b</v>", "ab", [Mark("v", 0, 1), Mark("v", 1, 2)], []),
        ("a <x>b</x> 1 < 2", "a <x>b</x> 1 < 2", [], []),
        ("a <v>b", "a b", [], ["<v> at 2 has no closing tag"]),
        ("a</v> b", "a b", [], ["</v> at 1 closes a tag that is not open"]),
        ("<e>a<v>b</v></e>", "ab", [Mark("e", 0, 2), Mark("v", 1, 2, 0)], []),
        (
            "<e>a<v>b</e>c</v>",
            "abc",
            [Mark("e", 0, 2)],
            ["<v> at 1 is not closed before </e>", "</v> at 3 closes a tag that is not open"],
        ),
    ],
)
def test_tags(text, plain, marks, problems):
    found = untag(text, ["v", "e"])
    assert (found.text, list(found.marks), list(found.problems)) == (plain, marks, problems)


@given(st.lists(st.sampled_from(["a", "🙂", "<v>", "</v>", "<e>", "</e>"]), max_size=12))
def test_tags_never_lose_text(pieces):
    found = untag("".join(pieces), ["v", "e"])
    assert found.text == "".join(piece for piece in pieces if not piece.startswith("<"))
    tags = sum(piece.startswith("<") for piece in pieces)
    assert 2 * len(found.marks) + len(found.problems) == tags
    for mark in found.marks:
        assert 0 <= mark.start <= mark.end <= len(found.text)
        if mark.inside is not None:
            outer = found.marks[mark.inside]
            assert outer.start <= mark.start and mark.end <= outer.end


# ---- MQM and ESA ---------------------------------------------------------------------------------

MQM_LINE = {
    **{"system": "s", "doc": "d", "doc_id": "1", "seg_id": "1", "rater": "r1"},
    **{"source": "The dog", "target": "Der Hund", "category": "No-error", "severity": "No-error"},
    "comment": "",
}


def mqm_file(tmp_path, *changes):
    path = tmp_path / "mqm.tsv"
    write_text(path, table_text([MQM_LINE | change for change in changes], "\t"))
    return path


def test_mqm(tmp_path):
    path = mqm_file(
        tmp_path,
        {"target": "Der <v>Hund</v>", "category": "Fluency/Grammar", "severity": "Minor"},
        {"target": "<v>Der</v> Hund", "category": "Other", "severity": "Major", "comment": "?"},
        {"rater": "r2", "seg_id": "2", "target": 'Der "Hund"'},
        {"rater": "r2"},
        {"source": "The <v>dog</v>", "category": "Accuracy/Omission", "severity": "Major"},
        {"category": "Non-translation!", "severity": "Major", "rater": "r3"},
    )
    items, report = imported(path, "mqm")
    assert [item.response for item in items] == ["Der Hund", 'Der "Hund"']
    assert [item.prompt.id for item in items] == ["s/d/1/1", "s/d/1/2"]
    assert [item.source for item in items] == ["The dog", "The dog"]
    assert items[0].judgements == (
        Judgement("Fluency", "Grammar", 4, 8, "Minor", annotator="r1"),
        Judgement("Other", "Other", 0, 3, "Major", annotator="r1", reason="?"),
        Judgement("MQM", "no error", annotator="r2"),
        Judgement("Accuracy", "Omission", 4, 7, "Major", side="source", annotator="r1"),
        Judgement("Non-translation!", "Non-translation!", severity="Major", annotator="r3"),
    )
    assert items[1].judgements == (Judgement("MQM", "no error", annotator="r2"),)
    assert report.spans == {"marked by tags": 3} and report.rows == 6
    assert not report.losses and not report.problems


def test_tests_of_attention_in_mqm_are_no_errors(tmp_path):
    tokens = {"target_tokens": ["Der", " Hund"]}
    path = mqm_file(
        tmp_path,
        {
            **{"category": "Missed", "severity": "HOTW-test", "target": "Hund der"},
            "metadata": json.dumps({"segment": tokens, "hotw_error": "Hund der"}),
        },
        {"category": "Found", "severity": "HOTW-test", "metadata": ""},
        {"metadata": ""},
        {
            **{"category": "Other", "severity": "Minor", "rater": "r2"},
            "metadata": json.dumps({"target_spans": [[0, 0]]}),
        },
    )
    (item,), report = imported(path, "mqm")
    assert item.response == "Der Hund"
    assert item.judgements == (
        Judgement("MQM", "no error", annotator="r1"),
        Judgement("Other", "Other", 0, 3, "Minor", annotator="r2"),
    )
    assert report.losses == {"rows that test the rater's attention (HOTW-test)": 2}


def test_texts_that_raters_of_mqm_changed(tmp_path):
    """As in newstest2020: the text of most lines is the response."""
    error = {"category": "Style/Awkward", "severity": "Minor"}
    path = mqm_file(
        tmp_path,
        {"target": "Der <v>gute </v>Hund bellt"} | error,  # the words are not in the response
        {"target": "Der Hund <v>bellt</v>", "rater": "r2"} | error,
        {"target": "Der alte Hund <v>bellt</v>", "rater": "r3"} | error,
        {"target": "Der Hund bellt", "rater": "r4"},
        {"target": "Der Hunde bellt", "rater": "r5"},
    )
    (item,), report = imported(path, "mqm")
    assert item.response == "Der Hund bellt"
    assert item.judgements == (
        Judgement("Style", "Awkward", severity="Minor", annotator="r1"),
        Judgement("Style", "Awkward", 9, 14, "Minor", annotator="r2"),
        Judgement("Style", "Awkward", 9, 14, "Minor", annotator="r3"),
        Judgement("MQM", "no error", annotator="r4"),
        Judgement("MQM", "no error", annotator="r5"),
    )
    assert report.spans == {"not found": 1, "marked by tags": 1, "searched verbatim": 1}
    assert report.losses == {"lines whose text differs from that of their translation": 3}
    assert places(report.problems) == [(0, "target")]


def test_without_numbers_of_segments_every_text_of_mqm_is_a_translation(tmp_path):
    columns = {key: value for key, value in MQM_LINE.items() if key not in ("doc_id", "seg_id")}
    rows = [columns, columns | {"target": "Ein Hund"}]
    write_text(tmp_path / "mqm.tsv", table_text(rows, "\t"))
    items, report = imported(tmp_path / "mqm.tsv", "mqm")
    assert [item.response for item in items] == ["Der Hund", "Ein Hund"] and not report.losses


def test_faults_of_mqm(tmp_path):
    error = {"category": "Other", "severity": "Minor"}
    path = mqm_file(
        tmp_path,
        {"target": "Der <v>Hund"} | error,
        {"target": "Der Hund</v>"} | error,
        {"target": "Der <v></v>Hund"} | error,
        {"target": "<v>Der</v> <v>Hund</v>"} | error,
        {"rater": ""},
        {"target": " "},
        {"category": "", "severity": "Major"},
    )
    items, report = imported(path, "mqm")
    spans = [judgement.span for judgement in items[0].judgements]
    assert spans == [None, None, None, (0, 3), (4, 8)]
    note = "errors whose mark is not found, kept as errors of the whole text"
    assert report.notes == {note: 3}
    assert report.spans == {"broken tags": 3, "marked by tags": 2}
    assert places(report.problems) == [(0, "target"), (1, "target"), (2, "target"), (5, "target")]
    assert report.losses == {
        "errors with several spans, which became one judgement each": 1,
        "rows without a rater": 1,
        "rows with a blank response": 1,
        "errors without a category": 1,
    }


def test_a_blank_that_a_rater_added_and_marked_is_an_error(tmp_path):
    """Raters add a blank behind the end where something is missing there."""
    error = {"category": "Fluency/Punctuation", "severity": "Major"}
    path = mqm_file(
        tmp_path,
        {"target": "Der Hund<v> </v>"} | error,
        {"rater": "r2"},
        {"rater": "r3"},
        {"seg_id": "2", "source": "The dog <v>barks"} | error,
        {"seg_id": "3", "source": "<v> </v>"} | error,
    )
    items, report = imported(path, "mqm")
    blank = Judgement("Fluency", "Punctuation", severity="Major", annotator="r1")
    clean = [Judgement("MQM", "no error", annotator=name) for name in ("r2", "r3")]
    assert items[0].judgements == (blank, *clean)
    assert items[1].judgements == (replace(blank, side="source"),)
    assert items[2].judgements == (blank,) and items[2].source is None
    assert report.spans == {"empty": 1, "broken tags": 2}
    # rows of spans cannot tell the second from a right one; the majority found the first right
    rows, losses = EXPORTERS["spans"].write(items)
    assert [row["id"] for row in rows] == ["s/d/1/1"] and rows[0]["spans"] == []
    assert losses["responses whose only errors have no place"] == 2
    assert "spans" not in span_rows.to_row(items[1])[0]


@pytest.mark.parametrize("is_quoted", [True, False])
def test_mqm_whose_cells_are_quoted(tmp_path, is_quoted):
    """A file is read as CSV if all its cells with quotation marks are quoted."""
    lines = [
        {"target": '"The ""red"" car <v>are</v> here."', "category": "A/B", "severity": "Minor"},
        {"target": '"""Yes"""', "seg_id": "2"},
        {"target": "It is " + ("so." if is_quoted else 'so".'), "seg_id": "3"},
    ]
    items, report = imported(mqm_file(tmp_path, *lines), "mqm")
    texts = [item.response for item in items]
    marked = items[0].response[slice(*items[0].judgements[0].span)]
    assert marked == "are" and report.spans == {"marked by tags": 1}
    if is_quoted:
        assert texts == ['The "red" car are here.', '"Yes"', "It is so."]
        assert report.notes == {"cells in quotation marks, read as in CSV": 2}
    else:
        assert texts == ['"The ""red"" car are here."', '"""Yes"""', 'It is so".']
        assert not report.notes


def test_quotation_marks_of_mqm_are_those_of_the_text_unless_some_are_doubled(tmp_path):
    (item,), report = imported(mqm_file(tmp_path, {"target": '"Der Hund"'}), "mqm")
    assert item.response == '"Der Hund"' and not report.notes


def test_mqm_with_numbers_of_tokens(tmp_path):
    segment = {"target_tokens": ["Der", " ", "🙂", " ", "Hund"], "source_tokens": ["The", " dog"]}
    error = {"target": "Der 🙂 Hund", "category": "Other", "severity": "Minor"}

    def metadata(**values):
        return {"metadata": json.dumps(values)}

    path = mqm_file(
        tmp_path,
        error | metadata(segment=segment, target_spans=[[2, 4]], marked_text="🙂 Hund"),
        error | metadata(target_spans=[[0, 0]], note="n"),
        error | metadata(source_spans=[[1, 1]], marked_text=" dog"),
        error | metadata(target_spans=[[0, 2]], marked_text="Hund"),
        error | metadata(target_spans=[[0, 2]], marked_text="Katze"),
        error | metadata(target_spans=[[0, 0]], source_spans=[[0, 0]], marked_text="TheDer"),
    )
    (item,), report = imported(path, "mqm")
    assert [(judgement.side, judgement.span) for judgement in item.judgements] == [
        ("response", (4, 10)),
        ("response", (0, 3)),
        ("source", (3, 7)),
        ("response", (6, 10)),
        ("response", None),
        ("response", (0, 3)),
        ("source", (0, 3)),
    ]
    assert item.judgements[1].reason == "n"
    assert report.spans == {"exact offset": 5, "searched verbatim": 1, "not found": 1}
    assert places(report.problems) == [(4, "metadata.target_spans")]


def test_what_metadata_of_mqm_holds_is_kept_or_counted(tmp_path):
    """The keys are those of the documentation of MQM Viewer."""

    def metadata(**values):
        return {"metadata": json.dumps(values)}

    segment = {
        "references": {"B": "Ein Hund", "A": "Der Köter", "C": " "},
        "primary_reference": "A",
        "metrics": {"Bleurt": 0.5},
        "target_tokens": ["Der", " Hund"],
        "target_sentence_tokens": [2],
    }
    style = {"category": "Style", "severity": "Minor", "target": "<v>Der</v> Hund"}
    path = mqm_file(
        tmp_path,
        metadata(segment=segment, timestamp=1, corrected_translation="Ein Köter"),
        style | metadata(timestamp=2, note="n", source_not_seen=True) | {"comment": "c"},
        metadata(corrected_translation="Ein Köter", feedback={"thumbs": "up"}),
        metadata(corrected_translation="Ein Tier"),
        {"rater": "r2"} | metadata(corrected_translation="", evaluation={"template": "MQM"}),
        {"rater": "r3"} | metadata(corrected_translation="Der Hund", note="n", unknown=0),
        {"system": "t"} | metadata(segment={"metrics": {"Bleurt": 0.4}}),
    )
    items, report = imported(path, "mqm")
    assert [item.prompt.references for item in items] == [("Der Köter", "Ein Hund")] * 2
    metas = [item.prompt.meta for item in items]
    assert metas[0]["corrections"] == {"r1": "Ein Köter", "r3": "Der Hund"}
    assert [meta["segment"] for meta in metas] == [
        {"metrics": {"Bleurt": 0.5}},
        {"metrics": {"Bleurt": 0.4}},
    ]
    assert "corrections" not in metas[1]
    assert items[0].judgements[1].reason == "n"
    assert report.losses == {
        "values of `metadata.timestamp`": 2,
        "values of `metadata.source_not_seen`": 1,
        "values of `metadata.feedback`": 1,
        "values of `metadata.evaluation`": 1,
        "values of `metadata.unknown`": 1,
        "values of `metadata.segment.target_sentence_tokens`": 1,
        "further corrected translations of one rater": 1,
        "further notes on a line": 1,
    }


@pytest.mark.parametrize(
    "change, message",
    [
        ({"metadata": "{"}, "row 0, `metadata`: is not JSON"),
        (
            {"metadata": '{"corrected_translation": 5}'},
            "`metadata.corrected_translation`: must be a text, it is a number",
        ),
        (
            {"metadata": '{"segment": {"references": {"A": 5}}}'},
            "`metadata.segment.references.A`: must be a text, it is a number",
        ),
        ({"metadata": '{"target_spans": [[0, 1]]}'}, "`segment.target_tokens`: must be a list"),
        (
            {"metadata": '{"target_spans": [[0, 9]], "segment": {"target_tokens": ["a"]}}'},
            "is 9, but there are 1 tokens",
        ),
        (
            {
                "metadata": '{"target_spans": [[0, 0]], "source_spans": 5,'
                ' "segment": {"target_tokens": ["a"]}}'
            },
            "`metadata.source_spans`: must be a list, it is a number",
        ),
        (
            {
                "metadata": '{"target_spans": [[0, 0]], "marked_text": 5,'
                ' "segment": {"target_tokens": ["a"]}}'
            },
            "`metadata.marked_text`: must be a text, it is a number",
        ),
    ],
)
def test_malformed_mqm(tmp_path, change, message):
    with pytest.raises(UserError) as error:
        import_items(mqm_file(tmp_path, {"category": "Other", "severity": "x"} | change), "mqm")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "category, aspect, label",
    [("/Grammar", "MQM", "Grammar"), ("Fluency/ ", "Fluency", "Fluency"), (" / ", None, None)],
)
def test_half_a_category_of_mqm(tmp_path, category, aspect, label):
    path = mqm_file(tmp_path, {"category": category, "severity": "Minor"})
    (item,), report = imported(path, "mqm")
    kinds = [(judgement.aspect, judgement.label) for judgement in item.judgements]
    assert kinds == ([(aspect, label)] if aspect else [])
    assert report.losses == ({} if aspect else {"errors without a category": 1})


def test_a_column_that_a_table_has_twice(tmp_path):
    write_text(tmp_path / "a.csv", "spans,text,text\n[0],abc,def\n")
    with pytest.raises(UserError, match=r"a\.csv has the column text twice"):
        import_items(tmp_path / "a.csv", "toxic_spans")


def test_a_table_of_another_kind(tmp_path):
    write_text(tmp_path / "a.tsv", "system\trater\na\tb\n")
    with pytest.raises(UserError, match="has no column source, target, category, severity"):
        import_items(tmp_path / "a.tsv", "mqm")
    write_text(tmp_path / "b.csv", "spans,text\n[],a,b\n")
    with pytest.raises(UserError, match="row 0: has another number of cells than the header's 2"):
        import_items(tmp_path / "b.csv", "toxic_spans")


@pytest.mark.parametrize("cell", ['"b', '"b" c', '"b ""c""'])
def test_a_quote_without_its_partner_is_an_error(tmp_path, cell):
    """The csv module would read the rows up to the next quote as one cell."""
    write_text(tmp_path / "a.csv", f"spans,text\n[],a\n[],{cell}\n[0],c\n")
    with pytest.raises(UserError, match=r"a\.csv, row 1: is not a row of a table"):
        import_items(tmp_path / "a.csv", "toxic_spans")


def test_blank_and_missing_last_cells(tmp_path):
    rows = "\n".join(["[],a,,", "[],b, "])
    write_text(tmp_path / "a.csv", f"\ufeffspans,text\n{rows}\n")
    items, _ = import_items(tmp_path / "a.csv", "toxic_spans")
    assert [item.response for item in items] == ["a", "b"]
    text = table_text([MQM_LINE, MQM_LINE], "\t")  # its last column is `comment`
    write_text(tmp_path / "b.tsv", text.removesuffix("\t\n") + "\n")
    (item,), _ = import_items(tmp_path / "b.tsv", "mqm")
    assert len(item.judgements) == 2
    write_text(tmp_path / "c.csv", "spans,text\n[]\n")  # a column that is needed
    with pytest.raises(UserError, match="row 0: has another number of cells than the header's 2"):
        import_items(tmp_path / "c.csv", "toxic_spans")


NOTHING_FOUND = {
    "mqm_json": ("MQM", {"src": "s", "mt": "abc"}, "annotations", {"severity": "x"}),
    "esa": ("ESA", {"src": "s", "tgt": "abc"}, "esa_spans", {"severity": "x"}),
    "ragtruth": ("hallucination", {"response": "abc"}, "labels", {"label_type": "x"}),
}


def test_a_blank_prompt_of_ragtruth_is_none(tmp_path):
    """Rows of judgements do not have blank prompts."""
    row = {"source_id": "1", "labels": [], "response": "The sun."}
    write_jsonl(tmp_path / "source_info.jsonl", [{"source_id": "1", "prompt": " "}])
    (item,), report = read_json(tmp_path, "ragtruth", [row])
    assert item.prompt.text == "" and not report.losses


@pytest.mark.parametrize("name", NOTHING_FOUND)
def test_an_empty_list_says_that_nothing_was_found(tmp_path, name):
    """A list of spans that were all dropped does not."""
    aspect, row, key, mark = NOTHING_FOUND[name]
    outside = mark | dict.fromkeys(("start", "start_i"), 7) | dict.fromkeys(("end", "end_i"), 9)
    items, report = read_json(tmp_path, name, [row | {key: []}, row | {key: [outside]}])
    assert items[0].judgements == (Judgement(aspect, "no error"),)
    kept = () if name == "ragtruth" else (Judgement(aspect, "x", severity="x"),)
    assert items[1].judgements == kept and report.dropped_spans == 1
    assert span_rows.to_row(items[0])[0]["spans"] == []
    assert "spans" not in span_rows.to_row(items[1])[0]


def test_mqm_json(tmp_path):
    annotations = [
        {"start": 4, "end": 8, "severity": "major", "text": "Hund"},
        {"start": 5, "end": 9, "severity": "minor", "text": "Hund"},
        {"start": 4, "end": 8, "severity": "minor", "text": "Katze"},
        {"start": 4, "end": 80, "severity": "minor"},
    ]
    row = {"src": "The dog", "mt": "Der Hund", "ref": "Ein Hund", "lp": "en-de"}
    (item,), report = read_json(tmp_path, "mqm_json", [row | {"annotations": annotations}])
    assert [judgement.span for judgement in item.judgements] == [(4, 8), (4, 8), None, None]
    assert item.prompt.references == ("Ein Hund",) and item.prompt.meta == {"lp": "en-de"}
    assert report.spans == {
        **{"exact offset": 1, "searched verbatim": 1, "not found": 1, "outside the text": 1},
    }
    assert places(report.problems) == [(0, "annotations[2]"), (0, "annotations[3]")]
    assert "`annotations`: must be a list, it is null or missing" in malformed(
        tmp_path, "mqm_json", row
    )


def test_esa(tmp_path):
    spans = [
        {"start_i": 0, "end_i": 2, "severity": "minor"},
        {"start_i": "missing", "end_i": "missing", "severity": "major"},
        {"start_i": 4, "end_i": 40, "severity": "major"},
        {"start_i": 4, "end_i": 4, "severity": "major"},
        {"start_i": 5, "end_i": 4, "severity": "major"},
        {"start_i": 5, "end_i": 6, "severity": "undecided"},
    ]
    row = {"src": "The dog", "tgt": "Der Hund", "esa_spans": spans, "esa_score": 85}
    (item,), report = read_json(tmp_path, "esa", [row | {"annotator": "a", "system": "s"}])
    assert item.judgements == (
        Judgement("ESA", "minor", 0, 3, "minor", annotator="a"),
        Judgement("ESA", "missing", severity="major", annotator="a"),
        Judgement("ESA", "major", severity="major", annotator="a"),  # outside the text
        Judgement("ESA", "major", 4, 5, "major", annotator="a"),
        Judgement("ESA", "major", severity="major", annotator="a"),
        Judgement("ESA", score=85.0, annotator="a"),
    )
    reading = "offset without a quote (UTF-16 code units, last one included)"
    assert report.spans == {reading: 2, "outside the text": 2}
    assert places(report.problems) == [(0, "esa_spans[2]"), (0, "esa_spans[4]")]
    assert report.losses == {"spans of an undecided severity": 1}
    for number in ("x", "1_0", "\u0661"):
        wrong = row | {"esa_spans": [{"start_i": number, "end_i": 3, "severity": "minor"}]}
        message = malformed(tmp_path, "esa", wrong)
        assert "`esa_spans[0].start_i`: must be a whole number" in message


@pytest.mark.parametrize(
    "target, start, end, marked",
    [
        ("バイデン政権は企業犯罪者を釈放している", 13, 18, "釈放している"),  # a row of WMT 2024
        ("a🙂b c", 1, 2, "🙂"),
        ("a🙂b c", 3, 3, "b"),
        ("  Der Hund \n", 4, 7, "Hund"),
        ("  Der Hund \n", 4, 8, None),  # the blank after it was not on the page
        ("Der Hund", -1, 2, None),
    ],
)
def test_offsets_of_esa(tmp_path, target, start, end, marked):
    spans = [{"start_i": start, "end_i": end, "severity": "minor"}]
    row = {"src": "s", "tgt": target, "esa_spans": spans}
    (item,), _ = read_json(tmp_path, "esa", [row])
    (span,) = [judgement.span for judgement in item.judgements]
    assert (span and target[slice(*span)]) == marked


@pytest.mark.parametrize("score, number", [("85", 85.0), ("7.5", 7.5), (0, 0.0)])
def test_a_score_of_esa_may_be_a_text(tmp_path, score, number):
    row = {"src": "s", "tgt": "t", "esa_spans": [], "esa_score": score}
    (item,), _ = read_json(tmp_path, "esa", [row])
    assert item.judgements[-1].score == number
    for wrong in ("good", "nan"):
        message = malformed(tmp_path, "esa", row | {"esa_score": wrong})
        assert "`esa_score`: must be a " in message


# ---- hallucinations ------------------------------------------------------------------------------


def test_rows_that_share_a_document_name_it_as_their_cluster(tmp_path):
    row = {"id": "7", "source_id": 12, "model": "m", "labels": [], "response": "The sun."}
    rows = [row, row | {"id": "8", "cluster": "own"}, row | {"id": "9", "source_id": None}]
    items, _ = read_json(tmp_path, "ragtruth", rows)
    assert [item.prompt.meta.get("cluster") for item in items] == ["12", "own", None]
    row = {"source": "a b", "hypothesis": "c d", "errors": [], "rater_id": "r"}
    of_document = row | {"document_id": "news-3", "segment_id": 4}
    (item, other), _ = read_json(tmp_path, "mtme", [of_document, row])
    assert item.prompt.meta["cluster"] == "news-3" and "cluster" not in other.prompt.meta
    # a reward model's files have it too
    spans, _ = EXPORTERS["spans"].write([item])
    assert spans[0]["cluster"] == "news-3"


def test_ragtruth(tmp_path):
    label = {"start": 4, "end": 7, "text": "sun", "label_type": "Evident Conflict", "meta": "why"}
    labels = [
        label,
        label | {"start": 5, "end": 8},
        label | {"text": "moon"},
        label | {"implicit_true": True, "due_to_null": True},
    ]
    row = {"id": "7", "source_id": "1", "model": "m", "labels": labels, "response": "The sun."}
    _, report = read_json(tmp_path, "ragtruth", [row])
    assert report.losses["prompts that are not in a source_info.jsonl beside the file"] == 1
    write_jsonl(tmp_path / "source_info.jsonl", [{"source_id": "1", "prompt": "Sum up."}])
    (item,), report = read_json(tmp_path, "ragtruth", [row])
    assert (item.prompt.id, item.prompt.text) == ("7", "Sum up.")
    write_jsonl(tmp_path / "source_info.jsonl", [{"prompt": "Whose prompt is this?"}])
    message = malformed(tmp_path, "ragtruth", row)
    assert "`source_id`: in source_info.jsonl: must not be null" in message
    twice = [{"source_id": 1, "prompt": text} for text in ("Sum up.", "Sum up.", "Translate.")]
    write_jsonl(tmp_path / "source_info.jsonl", twice)
    message = malformed(tmp_path, "ragtruth", row)
    assert "row 2, `source_id`: in source_info.jsonl: is that of row 0 too, with another" in message
    kind = "Evident Conflict"
    assert item.judgements == (
        Judgement("hallucination", kind, 4, 7, reason="why"),
        Judgement("hallucination", kind, 4, 7, reason="why"),
        Judgement("hallucination", kind, 4, 7, "implicit true", reason="why"),
    )
    assert report.spans == {"exact offset": 2, "searched verbatim": 1, "not found": 1}
    assert places(report.problems) == [(0, "labels[2]")]
    assert report.losses == {"due_to_null": 1}


XSUM = "bbcid,system,summary,hallucination_type,hallucinated_span,hallucinated_span_start,"
XSUM += "hallucinated_span_end,worker_id\n"


def test_xsum(tmp_path):
    text = r"italy\'s fabio won and andy won"
    lines = [
        ("extrinsic", "fabio", 9, 14),  # from 1, counted without the escape
        ("extrinsic", "fabio", 8, 13),  # from 0
        ("intrinsic", "fabio", 8, 12),  # from 0, last character included
        ("intrinsic", r"italy\'s", 1, 7),  # from 1, last character included
        ("extrinsic", r"\nandy", 40, 44),
        ("extrinsic", "won", 16, 19),  # one too many: the first `won` is nearer
        ("extrinsic", "peter", 1, 6),
        ("NULL", "NULL", -1, -1),
    ]
    rows = [f"1,s,{text},{k},{q},{a},{b},w{i}" for i, (k, q, a, b) in enumerate(lines)]
    write_text(tmp_path / "x.csv", XSUM + "\n".join(rows) + "\n")
    (item,), report = imported(tmp_path / "x.csv", "xsum_hallucinations")
    assert item.response == "italy's fabio won and andy won"
    marks = [
        (j.annotator, item.response[slice(*j.span)] if j.span else j.label) for j in item.judgements
    ]
    assert marks == [
        *(("w0", "fabio"), ("w1", "fabio"), ("w2", "fabio"), ("w3", "italy's")),
        *(("w4", "andy"), ("w5", "won"), ("w7", "no error")),
    ]
    assert item.judgements[5].span == (14, 17)
    assert report.spans == {
        "exact offset (from 1)": 1,
        "exact offset": 1,
        "exact offset (from 0, last character included)": 1,
        "exact offset (from 1, last character included)": 1,
        "searched folded": 1,
        "searched verbatim": 1,
        "not found": 1,
    }
    assert places(report.problems) == [(6, "hallucinated_span")]


def test_defacto(tmp_path):
    feedback = {
        "summary": "Two dogs.",
        "evidence": "Two dogs barked.\n\nA third one slept.",
        "explanation": "There were two.",
        "instruction_list": ["Replace three by two."],
    }
    row = {
        **{"article": "Two dogs barked. It was night.", "abstract": "Dogs bark.", "doc_id": 5},
        **{"candidate": "Three dogs.", "has_error": True, "intrinsic_error": True},
        **{"extrinsic_error": False, "feedback": feedback},
    }
    (item,), report = read_json(tmp_path, "defacto", [row])
    first, second = item.judgements
    assert (first.label, first.reason, first.span) == ("intrinsic", "There were two.", None)
    assert second == Judgement("evidence", "evidence", 0, 16, side="source")
    instructions = ["Replace three by two."]
    assert item.prompt.meta == {"correction": "Two dogs.", "instructions": instructions}
    assert item.prompt.references == ("Dogs bark.",)
    assert report.spans == {"searched verbatim": 1, "not found": 1}
    (item,), _ = read_json(tmp_path, "defacto", [row | {"annotator": "w7", "system": "s"}])
    assert (item.prompt.meta["annotator"], item.prompt.meta["system"]) == ("w7", "s")
    clean = row | {"has_error": False, "intrinsic_error": False}
    (item,), _ = read_json(tmp_path, "defacto", [clean])
    assert item.judgements[0].label == "no error"
    unclear = row | {"intrinsic_error": False}
    (item,), _ = read_json(tmp_path, "defacto", [unclear])
    assert item.judgements[0].label == "error"


def test_fava(tmp_path):
    row = {
        "prompt": "Who is Messi?",
        "output": "An American player. He sings.",
        "annotated": "An <entity><delete>American</delete><mark>Argentine</mark></entity> player."
        " <invented>He sings.</invented>",
    }
    (item,), report = read_json(tmp_path, "fava", [row])
    assert item.response == row["output"]
    assert item.judgements == (
        Judgement("hallucination", "entity", 3, 11, evidence="Argentine"),
        Judgement("hallucination", "invented", 20, 29),
    )
    assert report.spans == {"marked by tags": 2} and not report.losses


def test_fava_with_generated_errors_and_faults(tmp_path):
    generated = "<entity><delete>Argentine</delete><mark>American</mark></entity> player"
    rows = [
        {"errored_passage": generated},
        {"annotated": "a <entity>b <relation>c</entity> d</relation>", "output": "a b c"},
        {"annotated": "a <relation>b"},
        {"annotated": "a <relation><mark>b</mark></relation>"},
    ]
    items, report = read_json(tmp_path, "fava", rows)
    assert items[0].response == "American player"
    assert items[0].judgements[0].span == (0, 8)
    assert items[0].judgements[0].evidence == "Argentine"
    assert items[1].response == "a b c d"
    assert [judgement.span for judgement in items[1].judgements] == [(2, 5)]
    assert [item.response for item in items[2:]] == ["a b", "a "]
    assert places(report.problems) == [(1, "annotated")] * 2 + [(2, "annotated"), (3, "annotated")]
    assert report.spans == {"marked by tags": 2, "broken tags": 4}
    assert len(report.losses) == 1
    assert "the tagged text is in one of annotated" in malformed(tmp_path, "fava", {"a": "b"})


def test_a_correction_of_fava_inside_a_correction(tmp_path):
    text = "<mark>a<delete>b<mark>c</mark></delete></mark><entity>x</entity> y"
    (item,), _ = read_json(tmp_path, "fava", [{"annotated": text}])
    assert item.response == "x y"
    assert item.judgements == (Judgement("hallucination", "entity", 0, 1),)


def test_fava_as_its_own_code_writes_it(tmp_path):
    rows = [
        {
            "annotated": "A <contradictory><delete>B</delete><contradictory> C</s>\n",
            "output": "A B C",
        },
        {"annotated": "A <mark>x</mark>y <delete>z</delete>"},
        {"annotated": "No error."},
    ]
    items, report = read_json(tmp_path, "fava", rows)
    assert [item.response for item in items] == ["A B C", "A y z", "No error."]
    assert items[0].judgements == (Judgement("hallucination", "contradictory", 2, 3),)
    assert items[1].judgements == ()
    assert items[2].judgements == (Judgement("hallucination", "no error"),)
    assert report.spans == {"marked by tags": 1} and not report.problems
    assert report.losses == {
        "<mark> outside the tag of an error": 1,
        "<delete> outside the tag of an error": 1,
    }


HALU = {
    **{"annotator": "w", "question_text": "Why is the sky red?", "ans_preference": "Answer 2"},
    **{
        "ans1_text": "It is “blue”. It’s  air.",
        "ans2_text": "Air. Air.",
        "ans_preference_reason": "",
    },
}
for prefix in (
    "factuality",
    "irrelevance",
    "incomplete_ans",
    "reference_example",
    "ques_misconception",
):
    for part in ("span", "reason", "label"):
        HALU[f"{prefix}_{part}"] = ""


def test_haluquestqa(tmp_path):
    row = HALU | {
        "factuality_span": r"""['It is', "it's air", 'green', 'Air.']""",
        "factuality_reason": "['a', 'b', 'c', '']",
        "factuality_label": "['answer1', 'answer1', 'answer1', 'answer2']",
        "ques_misconception_span": "['the sky red']",
        "ques_misconception_reason": "['d']",
        "ques_misconception_label": "['question1']",
    }
    write_text(tmp_path / "h.tsv", table_text([row], "\t"))
    (first, second), report = imported(tmp_path / "h.tsv", "haluquestqa")
    misconception = Judgement(
        "misconception", "misconception", 7, 18, side="source", annotator="w", reason="d"
    )
    assert first.judgements == (
        Judgement("factuality", "factuality", 0, 5, annotator="w", reason="a"),
        Judgement("factuality", "factuality", 14, 23, annotator="w", reason="b"),
        misconception,
        Judgement("preference", "worse", annotator="w"),
    )
    assert second.judgements == (misconception, Judgement("preference", "better", annotator="w"))
    assert first.source == HALU["question_text"] == first.prompt.text
    assert report.spans == {
        **{"searched verbatim": 2, "searched folded": 1, "not found": 1, "ambiguous": 1},
    }
    assert places(report.problems) == [(0, "factuality_span[2]"), (0, "factuality_span[3]")]


def test_a_heading_of_haluquestqa_is_the_whole_answer(tmp_path):
    """Only of the answer that the label names: any other quote is searched."""
    row = HALU | {
        "incomplete_ans_span": "['ANSWER1', 'ANSWER2:', 'ANSWER2']",
        "incomplete_ans_reason": "['a', 'b', 'c']",
        "incomplete_ans_label": "['answer1', 'answer2', 'answer1']",
    }
    write_text(tmp_path / "h.tsv", table_text([row], "\t"))
    (first, second), report = imported(tmp_path / "h.tsv", "haluquestqa")
    whole = Judgement("incomplete answer", "incomplete answer", annotator="w", reason="a")
    assert first.judgements == (whole, Judgement("preference", "worse", annotator="w"))
    assert second.judgements[0] == replace(whole, reason="b")
    assert report.spans == {"heading of the whole text": 2, "not found": 1}
    assert report.dropped_spans == 1


def test_a_preference_of_haluquestqa_for_neither_answer(tmp_path):
    rows = [HALU | {"ans_preference": value} for value in ("Tie", "Answer 1", "")]
    write_text(tmp_path / "h.tsv", table_text(rows, "\t"))
    items, report = imported(tmp_path / "h.tsv", "haluquestqa")
    labels = [[judgement.label for judgement in item.judgements] for item in items]
    none = "no error"  # the annotator marked nothing
    assert labels == [[none], [none], [none, "better"], [none, "worse"], [], []]
    assert report.losses == {"preferences other than Answer 1 and Answer 2": 1}


def test_an_answer_of_haluquestqa_without_a_mark_has_no_error(tmp_path):
    """Not if a mark was dropped, or is in the prompt."""

    def marked(prefix, quote, target):
        parts = {"span": quote, "reason": "r", "label": target}
        return HALU | {f"{prefix}_{part}": f"['{value}']" for part, value in parts.items()}

    rows = [
        marked("factuality", "blue", "answer1"),
        marked("factuality", "green", "answer1"),
        marked("ques_misconception", "sky", "question1"),
    ]
    write_text(tmp_path / "h.tsv", table_text(rows, "\t"))
    items, report = imported(tmp_path / "h.tsv", "haluquestqa")
    nothing = Judgement("span", "no error", annotator="w")
    labels = []
    for item in items:
        labels.append([each.label for each in item.judgements if each.aspect != "preference"])
    assert labels == [["factuality"], ["no error"], [], ["no error"], *[["misconception"]] * 2]
    assert nothing in items[1].judgements and report.dropped_spans == 1


@pytest.mark.parametrize(
    "change, message",
    [
        ({"factuality_span": "['a'"}, "`factuality_span`: is not a list"),
        ({"factuality_span": "['a']"}, "has 1 spans, 0 labels and 0 reasons"),
        ({"factuality_span": "7"}, "`factuality_span`: must be a list, it is a number"),
    ],
)
def test_malformed_haluquestqa(tmp_path, change, message):
    write_text(tmp_path / "h.tsv", table_text([HALU | change], "\t"))
    with pytest.raises(UserError, match="cannot be read as haluquestqa") as error:
        import_items(tmp_path / "h.tsv", "haluquestqa")
    assert message in str(error.value)


# ---- Toxic Spans ---------------------------------------------------------------------------------


def test_runs():
    assert runs([]) == []
    assert runs([7, 3, 4, 4]) == [(3, 5), (7, 8)]


def test_toxic_spans(tmp_path):
    text = 'spans,text\n"[0, 1, 2, 4]",you idiot\n[],fine\n"[3, 99]",abcd\n'
    write_text(tmp_path / "t.csv", text)
    items, report = imported(tmp_path / "t.csv", "toxic_spans")
    assert [[j.span for j in item.judgements] for item in items] == [
        *([(0, 3), (4, 5)], [None], [(3, 4)]),
    ]
    assert report.spans == {"offset without a quote": 3, "outside the text": 1}
    assert places(report.problems) == [(2, "spans")]
    write_text(tmp_path / "t.csv", "spans,text\n[a],b\n")
    with pytest.raises(UserError, match="`spans`: is not a list"):
        import_items(tmp_path / "t.csv", "toxic_spans")
    write_text(tmp_path / "t.csv", "spans,text\n[{[]: 1}],b\n")  # Python cannot build it
    with pytest.raises(UserError, match="`spans`: is not a list"):
        import_items(tmp_path / "t.csv", "toxic_spans")


def test_a_place_too_large_to_print(tmp_path):
    write_text(tmp_path / "t.csv", f"spans,text\n[0x{'f' * 4000}],abc\n")
    _, report = import_items(tmp_path / "t.csv", "toxic_spans")
    assert report.spans == {"outside the text": 1}
    assert "too large to show" in report.problems[0].reason


def test_raw_toxic_spans(tmp_path):
    write_text(tmp_path / "comments.csv", "comment_id,comment_text\n1,you idiot\n2,fine\n")
    head = "annotation,comment_id,worker,country,all toxic,not toxic\n"
    boxes = ["0,1,a,x,False,False", "1,1,b,x,True,False", "2,2,c,x,True,True", "3,9,d,x,True,False"]
    boxes += ["4,2,e,,False,False"]
    write_text(tmp_path / "annotations.csv", head + "\n".join(boxes) + "\n")
    spans = ["0,Insult,4,9", "0,,0,3", "1,Insult,4,10", "8,Insult,0,1", "3,Insult,0,1"]
    write_text(tmp_path / "spans.csv", "annotation,type,start,end\n" + "\n".join(spans) + "\n")
    items, report = imported(tmp_path, "toxic_spans_raw")
    assert items[0].judgements == (
        Judgement("toxic", "all toxic", annotator="b"),
        Judgement("toxic", "Insult", 4, 9, annotator="a"),
        Judgement("toxic", "toxic", 0, 3, annotator="a"),
    )
    assert items[1].judgements == ()
    assert report.spans == {"offset without a quote": 2, "outside the text": 1}
    assert report.losses == {
        "cells of columns that are not read (country)": 4,
        "annotations with both boxes ticked": 1,
        "annotations with neither a box nor a span": 1,
        "annotations without a post": 1,
        "spans without an annotation": 1,
        "spans without a post": 1,
    }
    with pytest.raises(UserError, match="is not a folder"):
        import_items(tmp_path / "spans.csv", "toxic_spans_raw")


def test_raw_toxic_spans_with_a_repeated_id_or_an_unknown_box(tmp_path):
    write_text(tmp_path / "comments.csv", "comment_id,comment_text\n1,you fool\n1,nice\n2,ok\n")
    head = "annotation,comment_id,worker,all toxic,not toxic\n"
    boxes = ["a,1,w1,false,TRUE", "a,2,w2,,true", "b,1,w3,yes,False"]
    write_text(tmp_path / "annotations.csv", head + "\n".join(boxes) + "\n")
    write_text(tmp_path / "spans.csv", "annotation,type,start,end\na,Insult,4,8\n")
    with pytest.raises(UserError) as raised:
        import_items(tmp_path, "toxic_spans_raw")
    assert str(raised.value).splitlines()[1:] == [
        "  row 1, `comments.csv: comment_id`: is that of row 0 too",
        "  row 1, `annotations.csv: annotation`: is that of row 0 too",
        "  row 2, `annotations.csv: all toxic`: must be True, False or blank, it is 'yes'",
    ]
    write_text(tmp_path / "comments.csv", "comment_id,comment_text\n1,you fool\n2,ok\n")
    write_text(tmp_path / "annotations.csv", f"{head}a,1,w1,false,TRUE\nb,2,w2,,true\n")
    items, report = import_items(tmp_path, "toxic_spans_raw")
    assert items[1].judgements == (Judgement("toxic", "not toxic", annotator="w2"),)
    assert not report.losses


# ---- steps and HelpSteer3 ------------------------------------------------------------------------


PRM_STEP = {
    "completions": [{"text": "2 + 2 = 5", "rating": -1}, {"text": "2 + 2 = 6", "rating": -1}],
    "chosen_completion": None,
    "human_completion": None,
}


def test_steps(tmp_path):
    rated = [{"text": "2 + 2 = 4", "rating": 1}, {"text": "2 + 2 = 5", "rating": -1}]
    steps = [{"completions": rated, "chosen_completion": 0, "human_completion": None}]
    prm = {"question": {"problem": "p"}, "label": {"steps": steps}}
    (item,), report = read_json(tmp_path, "prm800k", [prm])
    assert item.response == "2 + 2 = 4" and item.judgements[0].score == 1.0
    assert report.losses == {"completions that the solution does not go on from": 1}
    by_human = prm | {"label": {"steps": [PRM_STEP | {"human_completion": {"text": "So."}}]}}
    (item,), report = read_json(tmp_path, "prm800k", [by_human])
    assert item.response == "So." and item.judgements[0].score == 1.0
    assert report.losses == {"completions that the solution does not go on from": 2}
    unrated = PRM_STEP | {"completions": [{"text": "a", "rating": None}], "chosen_completion": 0}
    cut = prm | {"label": {"steps": [*steps, unrated, *steps]}}
    ended = prm | {"label": {"steps": [PRM_STEP, *steps]}}
    items, report = read_json(tmp_path, "prm800k", [cut, ended])
    assert [item.response for item in items] == ["2 + 2 = 4", "2 + 2 = 5"]
    assert report.losses == {
        "completions that the solution does not go on from": 2,
        "completions from the first step without a rating on": 3,
        "completions after the last step": 2,
    }
    trl = {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]}
    items, report = read_json(
        tmp_path, "trl_stepwise", [trl, trl | {"completions": [], "labels": []}]
    )
    assert items[0].judgements == (
        Judgement("step", None, 0, 1, score=1.0),
        Judgement("step", None, 2, 3, score=0.0),
    )
    assert places(report.problems) == [(1, "steps")] and len(items) == 1
    shepherd = {"input": "p Step 1: a ки\nStep 2: b ки", "label": "p Step 1: a +\nStep 2: b -"}
    (item,), report = read_json(tmp_path, "math_shepherd", [shepherd])
    assert item.response == "Step 1: a\nStep 2: b" and not report.losses
    unfinished = {key: f"{text}\nStep 3: c" for key, text in shepherd.items()}
    (item,), report = read_json(tmp_path, "math_shepherd", [unfinished])
    assert item.response == "Step 1: a\nStep 2: b"
    assert report.losses == {"texts after the last mark of a solution": 1}
    assert "`labels`: has 1 values for 2 steps" in malformed(
        tmp_path, "trl_stepwise", trl | {"labels": [True]}
    )


TALK = {"domain": "code", "language": "en", "context": [{"role": "user", "content": "Hi"}]}


def test_helpsteer_preferences(tmp_path):
    row = TALK | {"response1": "a", "response2": "b", "individual_preference": [{"score": -2}]}
    rows = [row | {"overall_preference": value} for value in (-2, 1, 0)]
    items, _ = read_json(tmp_path, "helpsteer3_preference", rows)
    assert [item.pairs for item in items] == [((0, 1),), ((1, 0),), ()]
    assert [item.margins for item in items] == [(2.0,), (1.0,), ()]
    assert items[0].prompt.meta["individual_preference"] == [{"score": -2}]
    (whole,), _ = read_json(tmp_path, "helpsteer3_preference", [row | {"overall_preference": 3.0}])
    assert (whole.pairs, whole.margins) == (((1, 0),), (3.0,))
    half = malformed(tmp_path, "helpsteer3_preference", row | {"overall_preference": 1.5})
    assert "must be a whole number, it is 1.5" in half
    message = malformed(tmp_path, "helpsteer3_preference", row | {"overall_preference": 4})
    assert "must be from -3 to 3, it is 4" in message


def test_helpsteer_comments_and_edits(tmp_path):
    texts = {"response1": "a", "response2": "b", "feedback1": ["x", ""], "feedback2": []}
    items, _ = read_json(tmp_path, "helpsteer3_feedback", [TALK | texts])
    assert [item.response for item in items] == ["a", "b"]
    assert items[0].judgements == (Judgement("comment", "comment", reason="x"),)
    edit = {"original_response": "a", "edited_response": "c", "feedback": ["x"]}
    (item,), _ = read_json(tmp_path, "helpsteer3_edit", [TALK | edit | {"change_summary": "y"}])
    assert (item.response, item.prompt.text) == ("a", "Hi")
    assert item.prompt.meta == {
        **{"domain": "code", "language": "en", "change_summary": "y", "correction": "c"},
    }


# ---- annotation tools ----------------------------------------------------------------------------


def region(start, end, text=None, **others):
    value = {"start": start, "end": end, "labels": ["bad"]}
    if text is not None:
        value["text"] = text
    result = {"type": "labels", "from_name": "label", "to_name": "text", "value": value}
    return result | others


def test_label_studio_marks_of_other_texts_are_counted(tmp_path):
    marks = [region(0, 3, id="1", to_name="prompt"), region(0, 3, id="2")]
    data = {"prompt": "Who sat?", "response": "The cat."}
    task = {"id": 1, "data": data, "annotations": [{"result": marks}]}
    (item,), report = read_json(tmp_path, "label_studio", [task])
    assert [one.span for one in item.judgements] == [(0, 3)]
    assert report.losses == {"regions of the text `prompt`": 1}
    # an object may be named `source` although the task has a single text
    named = [region(0, 3, id="1", to_name="source")]
    task = {"id": 1, "data": {"text": "The cat."}, "annotations": [{"result": named}]}
    (item,), report = read_json(tmp_path, "label_studio", [task])
    assert [(one.side, one.span) for one in item.judgements] == [("response", (0, 3))]


def test_label_studio(tmp_path):
    results = [
        region(3, 4, "b", id="1"),  # UTF-16
        region(2, 3, "b", id="2"),  # code points
        region(2, 3, id="3"),
        region(7, 8, "b", id="4"),
        region(0, 1, "x", id="5"),
        {"type": "choices", "from_name": "severity", "id": "1", "value": {"choices": ["minor"]}},
        {"type": "choices", "from_name": "tone", "id": "6", "value": {"choices": ["rude", "odd"]}},
        {"type": "rating", "from_name": "stars", "id": "7", "value": {"rating": 4}},
        {"type": "textarea", "from_name": "why", "id": "8", "value": {"text": ["so"]}},
        {"type": "brush", "from_name": "x", "id": "9", "value": {}},
    ]
    annotations = [
        {"completed_by": 4, "result": results},
        {"completed_by": {"id": 5, "email": "e"}, "was_cancelled": True, "result": results},
    ]
    predictions = [{"model_version": "m", "result": [region(0, 1, "a", id="1")]}]
    task = {"id": 1, "data": {"text": "a🙂b", "n": 2}, "annotations": annotations}
    (item,), report = read_json(tmp_path, "label_studio", [task | {"predictions": predictions}])
    assert item.judgements == (
        Judgement("label", "bad", 2, 3, "minor", annotator="4"),
        Judgement("label", "bad", 2, 3, annotator="4"),
        Judgement("tone", "rude", annotator="4"),
        Judgement("tone", "odd", annotator="4"),
        Judgement("stars", score=4.0, annotator="4"),
        Judgement("why", "comment", annotator="4", reason="so"),
        Judgement("label", "bad", 0, 1, origin="m"),
    )
    assert report.notes == {"judgements that a person gave twice, or took back": 2}
    assert report.spans == {
        "exact offset": 2,
        "exact offset (UTF-16 code units)": 1,
        "offset without a quote": 1,
        "searched verbatim": 1,
        "not found": 1,
    }
    assert places(report.problems) == [(0, "annotations[0].result[4]")]
    assert report.losses == {"cancelled annotations": 1, "results of the type brush": 1}
    message = malformed(tmp_path, "label_studio", task | {"data": {"image": "x"}})
    assert "`data`: has no text under response or text" in message


@pytest.mark.parametrize(
    "extra, loss",
    [
        (
            {"type": "choices", "from_name": "certainty", "value": {"choices": ["low"]}},
            "choices of a further control on a region",
        ),
        (
            {"type": "taxonomy", "from_name": "kind", "value": {"taxonomy": [["a", "b"]]}},
            "results of the type taxonomy",
        ),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_further_control_of_label_studio_leaves_the_mark_as_it_is(tmp_path, extra, loss, first):
    value = {"start": 0, "end": 7, "text": "A wrong", "labels": ["Error"]}
    results = [region(0, 7, id="1", value=value), extra | {"id": "1", "to_name": "text"}]
    results = results[::-1] if first else results
    task = {"data": {"text": "A wrong word"}, "annotations": [{"result": results}]}
    (item,), report = read_json(tmp_path, "label_studio", [task])
    assert item.judgements == (Judgement("label", "Error", 0, 7),)
    assert report.losses == {loss: 1}


def test_argilla(tmp_path):
    spans = [{"label": "bad", "start": 0, "end": 2}, {"label": "bad", "start": 1, "end": 9}]
    record = {
        "id": "7",
        "fields": {"text": "abc"},
        "metadata": {"n": 1},
        "responses": {
            "errors": [{"value": spans, "user_id": "u"}],
            "tone": [{"value": "rude", "user_id": "u"}, {"value": ["odd", "long"], "user_id": "v"}],
            "stars": [{"value": 4, "user_id": "u"}],
            "order": [{"value": [{"value": "a", "rank": 1}], "user_id": "u"}],
        },
        "suggestions": {"errors": {"value": spans[:1], "agent": "m", "score": None}},
    }
    (item,), report = read_json(tmp_path, "argilla", [record])
    assert item.judgements == (
        Judgement("errors", "bad", 0, 2, annotator="u"),
        Judgement("tone", "rude", annotator="u"),
        Judgement("tone", "odd", annotator="v"),
        Judgement("tone", "long", annotator="v"),
        Judgement("stars", score=4.0, annotator="u"),
        Judgement("errors", "bad", 0, 2, origin="m"),
    )
    assert item.prompt.id == "7" and item.prompt.meta == {"n": 1}
    assert report.spans == {"offset without a quote": 2, "outside the text": 1}
    assert places(report.problems) == [(0, "responses.errors[0].value[1]")]
    assert report.losses == {
        "answers that are rankings": 1,
        "lists of texts, which may be rankings": 1,
    }
    message = malformed(tmp_path, "argilla", {"fields": {"a": "b", "c": "d"}})
    assert "`fields`: has no text under response or text" in message


def test_argilla_counts_utf16_code_units(tmp_path):
    """The page of Argilla counts them. Only spans behind an emoji depend on it."""
    text = "see 🙂 bad word"
    offsets = [(0, 3), (7, 10), (11, 15), (5, 10)]
    spans = [{"label": "bad", "start": start, "end": end} for start, end in offsets]
    record = {
        "fields": {"text": text},
        "responses": {"errors": [{"value": spans, "user_id": "u"}]},
        "suggestions": {"errors": {"value": spans[2:3], "agent": "m"}},
    }
    (item,), report = read_json(tmp_path, "argilla", [record])
    marked = [text[slice(*judgement.span)] for judgement in item.judgements]
    assert marked == ["see", "bad", "word", "word"]
    assert report.spans == {
        "offset without a quote": 1,
        "offset without a quote (UTF-16 code units)": 3,
        "outside the text": 1,  # it would begin inside the emoji
    }
    assert places(report.problems) == [(0, "responses.errors[0].value[3]")]


def test_answers_of_argilla_without_a_value(tmp_path):
    answers = [{"value": value, "user_id": "u"} for value in (None, "", "good", ["one"])]
    record = {"fields": {"text": "abc"}, "responses": {"q": answers}}
    record["suggestions"] = {"q": {"value": None, "agent": "m"}}
    (item,), report = read_json(tmp_path, "argilla", [record])
    assert [judgement.label for judgement in item.judgements] == ["good", "one"]
    assert report.losses == {"answers without a value": 3}


def test_what_judgements_do_not_hold_of_label_studio_is_counted(tmp_path):
    task = {
        **{"id": 5, "inner_id": 3, "project": 9, "meta": {"batch": "b1"}, "data": {"text": "cat"}},
        "annotations": [{"ground_truth": True, "lead_time": 4.2, "result": [region(0, 3)]}],
        "predictions": [{"score": 0.7, "result": [region(0, 1, score=0.4)]}],
    }
    (item,), report = read_json(tmp_path, "label_studio", [task])
    assert [judgement.score for judgement in item.judgements] == [None, None]
    assert report.losses == {
        "`meta` of tasks": 1,
        "`ground_truth` of annotations": 1,
        "scores of predictions": 1,
        "scores of predicted results": 1,
    }


def test_what_judgements_do_not_hold_of_argilla_is_counted(tmp_path):
    answers = [{"value": "good", "user_id": name, "status": name} for name in ("u", "discarded")]
    record = {
        **{"fields": {"text": "abc"}, "vectors": {"v": [0.1]}, "responses": {"q": answers}},
        "suggestions": {"q": {"value": "good", "score": 0.3, "agent": "m"}},
    }
    (item,), report = read_json(tmp_path, "argilla", [record])
    assert item.judgements == (
        Judgement("q", "good", annotator="u"),
        Judgement("q", "good", origin="m"),
    )
    assert report.losses == {
        **{"discarded answers": 1, "scores of suggestions": 1, "vectors of records": 1},
    }


def test_records_of_argilla_1(tmp_path):
    """The same record, nested and as a data set on the hub has it."""
    answers = [("u", "submitted", "good"), ("v", "discarded", "bad")]
    made = [
        {"user_id": user, "status": status, "values": {"q": {"value": value}}}
        for user, status, value in answers
    ]
    suggestion = {"question_name": "q", "value": "good", "agent": "m", "score": 0.3}
    own = {"fields": {"answer": "abc"}, "external_id": "7", "metadata": {"site": "x"}}
    nested = {**own, "responses": made, "suggestions": [suggestion]}
    column = [
        {"user_id": user, "value": value, "status": status} for user, status, value in answers
    ]
    hub = {"answer": "abc", "q": column, "q-suggestion": "good", "external_id": "7"}
    hub["q-suggestion-metadata"] = {"type": None, "score": 0.3, "agent": "m"}
    hub["metadata"] = '{"site": "x"}'
    as_lists = {key: [answer[key] for answer in column] for key in column[0]}
    judged = []
    for record in (nested, hub, {**hub, "q": as_lists}):
        (item,), report = read_json(tmp_path, "argilla", [record])
        assert report.losses == {"discarded answers": 1, "scores of suggestions": 1}
        judged.append(item)
    assert judged[0] == judged[1] == judged[2]
    assert judged[0].prompt == Prompt("7", "", meta={"site": "x"})
    good = Judgement("q", "good")
    assert judged[0].judgements == (replace(good, annotator="u"), replace(good, origin="m"))


@pytest.mark.parametrize(
    "record, message",
    [
        ({"text": "abc", "annotation": "good", "annotation_agent": "u"}, "Migrate the data set"),
        ({"text": "abc", "label": "good"}, "this is no record of Argilla"),
        ({"a": "b", "c": "d", "q.responses": None}, "Rename the field of the judged text"),
    ],
)
def test_rows_that_are_no_record_of_argilla_are_refused(tmp_path, record, message):
    assert message in malformed(tmp_path, "argilla", record)


@pytest.mark.parametrize("tool", ["argilla", "label_studio"])
def test_a_prompt_of_a_tool_can_be_a_conversation(tmp_path, tool):
    talk = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    shown = {"prompt": talk, "completion": "abc"}
    row = {"data": shown} if tool == "label_studio" else {"fields": shown, "responses": {}}
    (item,), _ = read_json(tmp_path, tool, [row])
    assert item.response == "abc"
    assert item.prompt.messages == (("system", "Be short."), ("user", "Hi"))


def test_rows_of_another_tool_lack_the_key_of_label_studio(tmp_path):
    message = malformed(tmp_path, "label_studio", {"id": 1, "text": "abc", "label": [[0, 1, "A"]]})
    assert "`data`: must be an object, it is null or missing" in message


def test_label_studio_without_results_or_labels(tmp_path):
    empty = region(0, 1, "a", id="1")
    del empty["value"]["labels"]
    annotations = [
        {"completed_by": 4, "result": None},
        {"completed_by": 6, "result": []},
        {"completed_by": 5, "result": [empty, region(1, 2, "b", id="2")]},
    ]
    task = {"data": {"text": "abc"}, "annotations": annotations, "predictions": [12, 13]}
    (item,), report = read_json(tmp_path, "label_studio", [task])
    assert item.judgements == (
        Judgement("label", "no error", annotator="6"),
        Judgement("label", "bad", 1, 2, annotator="5"),
    )
    assert report.notes == {"annotations without a mark, read as `no error`": 1}
    assert report.losses == {
        "annotations and predictions without results": 1,
        "regions without a label": 1,
        "predictions of which the export has only the number": 2,
    }
    assert report.spans == {"exact offset": 1}
    message = malformed(tmp_path, "label_studio", task | {"annotations": [{"id": 1}]})
    assert "`annotations[0].result`: must be a list" in message


def test_notes_of_label_studio_are_reasons(tmp_path):
    note = {"meta": {"text": ["so", "it is"]}}
    severity = {"type": "choices", "from_name": "severity", "value": {"choices": ["minor"]}}
    reason = {"type": "textarea", "from_name": "reason", "value": {"text": ["because"]}}
    results = [
        *(region(0, 1, "a", id="1", **note), severity | {"id": "1"} | note),
        *(region(1, 2, "b", id="2", **note), reason | {"id": "2"}),
    ]
    task = {"data": {"text": "abc"}, "annotations": [{"completed_by": 4, "result": results}]}
    (item,), report = read_json(tmp_path, "label_studio", [task])
    assert item.judgements == (
        Judgement("label", "bad", 0, 1, "minor", annotator="4", reason="so\nit is"),
        Judgement("label", "bad", 1, 2, annotator="4", reason="because"),
    )
    assert report.losses == {"notes of regions that have a reason": 1}


def test_doccano_with_several_lists(tmp_path):
    row = {"text": "abc", "cats": ["book", ""], "entities": [[0, 1, "X"]], "labels": [[1, 2, "Y"]]}
    (item,), report = read_json(tmp_path, "doccano", [row])
    assert item.judgements == (
        Judgement("labels", "Y", 1, 2),
        Judgement("entities", "X", 0, 1),
        Judgement("cats", "book"),
    )
    assert report.losses == {"blank labels": 1}


def test_doccano(tmp_path):
    rows = [
        {"id": 3, "text": "abc", "label": [[0, 2, "X"], [2, 9, "X"]], "Comments": []},
        {"text": "abc", "entities": [{"start_offset": 1, "end_offset": 2, "label": "Y"}]},
        {"text": "abc", "label": ["good"]},
        {"text": "abc", "entities": [], "relations": [{"id": 1}]},
    ]
    items, report = read_json(tmp_path, "doccano", rows)
    assert [item.judgements for item in items] == [
        (Judgement("label", "X", 0, 2),),
        (Judgement("entities", "Y", 1, 2),),
        (Judgement("label", "good"),),
        (),
    ]
    assert report.spans == {"offset without a quote": 2, "outside the text": 1}
    assert places(report.problems) == [(0, "label[1]")] and report.losses == {"relations": 1}
    assert "must be [start, end, label]" in malformed(
        tmp_path, "doccano", {"text": "abc", "label": [[0, 2]]}
    )


def test_results_of_label_studio_without_an_id_are_regions_of_their_own(tmp_path):
    results = [region(0, 3, "abc", id=None), region(4, 7, "def", id=None), region(8, 9, "g")]
    task = {"data": {"text": "abc def g"}, "annotations": [{"result": results}]}
    (item,), _ = read_json(tmp_path, "label_studio", [task])
    assert [judgement.span for judgement in item.judgements] == [(0, 3), (4, 7), (8, 9)]


def test_further_values_of_a_region_of_label_studio_are_counted(tmp_path):
    """A judgement has one severity, one score and one reason: the first."""
    details = [
        {"type": "choices", "from_name": "severity", "value": {"choices": ["minor", "major"]}},
        {"type": "rating", "from_name": "stars", "value": {"rating": 4}},
        {"type": "number", "from_name": "points", "value": {"number": 70}},
        {"type": "textarea", "from_name": "empty", "value": {"text": []}},
        {"type": "textarea", "from_name": "why", "value": {"text": ["so"]}},
        {"type": "textarea", "from_name": "remark", "value": {"text": ["or so"]}},
    ]
    results = [region(0, 1, "a", id="1"), *(detail | {"id": "1"} for detail in details)]
    task = {"data": {"text": "abc"}, "annotations": [{"result": results}]}
    (item,), report = read_json(tmp_path, "label_studio", [task])
    assert item.judgements == (Judgement("label", "bad", 0, 1, "minor", 4.0, reason="so"),)
    assert report.losses == {"further values of a region's severity, score or text": 3}


# ---- all importers -------------------------------------------------------------------------------


def test_an_end_behind_the_text_does_not_make_a_span_behind_it(tmp_path):
    """A slice of Python ends with the text, so the quote would seem to be at the wrong offsets."""
    row = {"src": "s", "mt": "Der Hund"}
    marks = [{"start": 4, "end": end, "text": "Hund", "severity": "x"} for end in (8, 9)]
    (item,), report = read_json(tmp_path, "mqm_json", [row | {"annotations": marks}])
    assert [judgement.span for judgement in item.judgements] == [(4, 8), (4, 8)]
    assert report.spans == {"exact offset": 1, "searched verbatim": 1}


@pytest.mark.parametrize("value", [None, "", " "])
def test_a_blank_id_is_the_number_of_the_row(tmp_path, value):
    rows = [{"id": value, "text": "abc", "label": []}, {"id": "7", "text": "abc", "label": []}]
    items, _ = read_json(tmp_path, "doccano", rows)
    assert [item.prompt.id for item in items] == ["0", "7"]
    task = {"id": 5, "data": {"id": value, "text": "abc"}}
    items, _ = read_json(tmp_path, "label_studio", [task])
    assert items[0].prompt.id == ("5" if value is None else "0")


@pytest.mark.parametrize(
    "name, row",
    [
        ("mqm_json", {"src": "s", "mt": "abc", "annotations": []}),
        ("esa", {"src": "s", "tgt": "abc", "esa_spans": []}),
        ("fava", {"annotated": "abc"}),
        ("helpsteer3_edit", {"context": "Hi", "original_response": "a", "edited_response": "b"}),
        ("helpsteer3_preference", {"context": "Hi", "response1": "a", "response2": "b"}),
    ],
)
def test_the_id_of_a_row_is_kept(tmp_path, name, row):
    row = {"id": "x7", "feedback": [], "overall_preference": 1} | row
    items, report = read_json(tmp_path, name, [row])
    assert items[0].prompt.id == "x7" and not report.losses


def test_keys_that_mean_something_else_in_the_written_rows_are_counted(tmp_path):
    """`source` would be the text from which the response was made."""
    row = {"text": "abc", "label": [], "source": 7, "references": 3, "note": "n"}
    (item,), report = read_json(tmp_path, "doccano", [row | {"judgements": None}])
    assert item.source is None and item.prompt.meta == {"note": "n"}
    loss = "values of the key `{}`, which means something else in rows of judgements"
    assert report.losses == {loss.format("source"): 1, loss.format("references"): 1}
    steps = {"prompt": "p", "completions": ["a"], "labels": [True], "source": "gsm8k"}
    (item,), report = read_json(tmp_path, "trl_stepwise", [steps])
    assert item.source is None and report.losses == {loss.format("source"): 1}
    talk = TALK | {"response1": "a", "response2": "b", "overall_preference": 1, "marked": 1}
    (item,), report = read_json(tmp_path, "helpsteer3_preference", [talk])
    assert "marked" not in item.prompt.meta and len(report.losses) == 1


def test_a_blank_annotator_is_none(tmp_path):
    write_text(tmp_path / "x.csv", XSUM + "1,s,abc def,NULL,,-1,-1, \n1,s,abc def,in,abc,1,4, \n")
    (item,), _ = imported(tmp_path / "x.csv", "xsum_hallucinations")
    write_text(tmp_path / "h.tsv", table_text([HALU | {"annotator": " "}], "\t"))
    (answer, _), _ = imported(tmp_path / "h.tsv", "haluquestqa")
    record = {"fields": {"text": "abc"}, "responses": {"q": [{"value": "good", "user_id": " "}]}}
    (rated,), _ = read_json(tmp_path, "argilla", [record])
    judgements = [*item.judgements, *answer.judgements, *rated.judgements]
    assert [judgement.annotator for judgement in judgements] == [None] * 5


JSON_IMPORTERS = [
    name for name in IMPORTERS if name not in ("mqm", "haluquestqa", "toxic_spans_raw")
    and name not in ("toxic_spans", "xsum_hallucinations")
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.text("ab<>/v ", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "start", "end", "label", "value", "result", "data", "steps"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        *("src", "mt", "tgt", "annotations", "esa_spans", "labels", "response", "fields", "text"),
        *("candidate", "article", "feedback", "annotated", "context", "response1", "label", "data"),
        *("responses", "completions", "prompt", "input", "original_response", "predictions"),
    ]
)


@pytest.mark.parametrize("name", JSON_IMPORTERS)
def test_no_file_breaks_an_importer(name, tmp_path_factory):
    path = tmp_path_factory.mktemp(name) / "rows.jsonl"

    @given(st.lists(VALUES | st.dictionaries(KEYS, VALUES, max_size=6), min_size=1, max_size=2))
    def check(rows):
        write_jsonl(path, rows)
        try:
            import_items(path, name)
        except UserError as error:
            assert len(str(error)) < 3000

    check()


def test_a_report_counts_everything(tmp_path):
    _, report = read_json(
        tmp_path, "doccano", [{"text": "abc", "label": [[0, 2, "X"], [0, 9, "X"]]}]
    )
    assert report.as_json() == {
        "rows": 1,
        "spans": {"offset without a quote": 1, "outside the text": 1},
        "dropped_spans": 1,
        "losses": {},
        "notes": {},
        "problems": [
            {
                "row": 0,
                "key": "label[1]",
                "reason": "the span at [0, 9) is outside the text; the text has 3 characters",
            }
        ],
    }


def test_nothing_left_is_an_error(tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [{"text": " ", "label": []}])
    with pytest.raises(UserError, match="no row of doccano .* lost, rows with a blank response: 1"):
        import_items(tmp_path / "rows.jsonl", "doccano")


# ---- real files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, file, found",
    [
        ("mqm", "wmt_mqm/mqm_ted_ende.tsv", {"marked by tags": 4030, "broken tags": 1}),
        (
            "xsum_hallucinations",
            "xsum_hallucination/hallucination_annotations_xsum_summaries.csv",
            {
                "exact offset (from 1)": 10358,
                "searched folded": 38,
                "searched folded, cutting a word": 1,
            },
        ),
        (
            "defacto",
            "defacto/train.jsonl",
            {"searched verbatim": 975, "searched verbatim, cutting a word": 1, "not found": 24},
        ),
        ("toxic_spans", "toxic_spans/tsd_train.csv", {"offset without a quote": 10298}),
        (
            "toxic_spans_raw",
            "toxic_spans",
            {"offset without a quote": 46690, "outside the text": 94},
        ),
        (
            "haluquestqa",
            "haluquestqa/part.tsv",
            {
                "searched verbatim": 901,
                "searched folded": 442,
                "searched verbatim, cutting a word": 5,
                "searched folded, cutting a word": 12,
                "heading of the whole text": 69,
                "not found": 28,
                "ambiguous": 6,
            },
        ),
    ],
)
def test_real_files(name, file, found):
    folder = os.environ.get("FGRLHF_QA_FEEDBACK")
    path = Path(folder or "").parent / file
    if not folder or not path.exists():
        pytest.skip(f"{file} is not beside the folder that FGRLHF_QA_FEEDBACK names")
    items, report = import_items(path, name)
    assert report.spans == Counter(found)
    assert all(isinstance(item, JudgedResponse) for item in items)
    assert JUDGEMENTS.to_row(items[0])


@pytest.mark.parametrize(
    "name, way_out",
    [
        ("esa", "have no texts.*import its wmt24_esa.jsonl"),
        ("label_studio", "Export the project as JSON"),
        ("argilla", "records.to_json"),
        ("doccano", "Export the project as JSONL"),
        ("fava", "another from=..., or download the JSON form"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_tables_of_formats_that_are_none(tmp_path, name, way_out, suffix):
    write_text(tmp_path / f"a.{suffix}", "text,label\nA,b\n")
    with pytest.raises(UserError, match=rf"a\.{suffix} is a table, and {name} is.*{way_out}"):
        import_items(tmp_path / f"a.{suffix}", name)


def test_blanks_around_names_are_no_part_of_them(tmp_path):
    error = {"start": 4, "end": 8, "severity": "Major ", "text": "Hund", "category": " A b "}
    row = {"src": "s", "mt": "Der Hund", "annotations": [error]}
    (item,), report = read_json(tmp_path, "mqm_json", [row])
    assert item.judgements == (Judgement("MQM", "A b", 4, 8, "Major"),)
    assert report.notes == {
        "blanks around the name of a label, removed": 1,
        "blanks around the name of a severity, removed": 1,
    }


def test_unpaired_preferences(tmp_path):
    rows = [
        {"prompt": "a", "completion": "good", "label": True, "topic": "x"},
        {"prompt": "b", "completion": "alone", "label": True},
        {"prompt": "a", "completion": "bad", "label": False, "topic": "x"},
        {"prompt": "a", "completion": "both", "label": False, "topic": "y"},
        {"prompt": "a", "completion": "both", "label": True, "topic": "x"},
        {"prompt": "a", "completion": "worse", "label": False, "topic": "x"},
    ]
    (comparison,), report = read_json(tmp_path, "unpaired", rows)
    assert [answer.text for answer in comparison.answers] == ["good", "bad", "worse"]
    assert comparison.pairs == ((0, 1), (0, 2))
    assert comparison.prompt.text == "a" and comparison.prompt.meta == {"topic": "x"}
    assert report.losses == {
        "completions of prompts without a good or without a bad one": 1,
        "completions with both labels": 1,
        "other keys of rows that are not the first of their prompt": 1,
    }
    message = malformed(tmp_path, "unpaired", {"prompt": "a", "completion": "b", "label": 1})
    assert "`label`: must be true for a good completion" in message


def test_the_labeler_of_prm800k_is_the_annotator(tmp_path):
    completion = {"completions": [{"text": "It is 7.", "rating": 1}], "chosen_completion": 0}
    row = {"labeler": "u1", "question": {"problem": "a"}, "label": {"steps": [completion]}}
    (judged,), _ = read_json(tmp_path, "prm800k", [row])
    assert [judgement.annotator for judgement in judged.judgements] == ["u1"]

"""Importers: what files of their formats become, with planted faults. Every fault is found."""

import os
from collections import Counter
from pathlib import Path

import importer_cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl, write_text
from fgrlhf.cli.data import main
from fgrlhf.data import span_rows
from fgrlhf.data.exporters import EXPORTERS
from fgrlhf.data.importers.registry import IMPORTERS, import_items
from fgrlhf.data.importers.tags import Mark, untag
from fgrlhf.data.importers.toxic import runs
from fgrlhf.data.judgements import JUDGEMENTS, JudgedResponse
from fgrlhf.data.read import read_rows

CASES = importer_cases.read_cases()


@pytest.mark.parametrize("row_format, name", CASES)
def test_a_file_becomes_its_rows_and_report(tmp_path, row_format, name):
    case = CASES[row_format, name]
    result = importer_cases.result_of(tmp_path, row_format, case)
    assert result == {key: case[key] for key in result}


def test_every_format_has_cases():
    in_other_tests = {"uima"} | {"processbench", "big_bench_mistake", "mr_gsm8k"}
    assert {row_format for row_format, _ in CASES} == IMPORTERS.keys() - in_other_tests


def items_of(tmp_path, row_format, name):
    return importer_cases.items_of(tmp_path, row_format, CASES[row_format, name])[0]


def test_rows_of_spans_do_not_take_an_error_without_a_place_for_none(tmp_path):
    """The majority found the first response right, and nobody the second."""
    items = items_of(tmp_path, "mqm", "a blank that a rater added and marked is an error")
    rows, losses = EXPORTERS["spans"].write(items)
    assert [row["id"] for row in rows] == ["s/d/1/1"] and rows[0]["spans"] == []
    assert losses["responses whose only errors have no place"] == 2
    assert "spans" not in span_rows.to_row(items[1])[0]


@pytest.mark.parametrize("row_format", ["mqm_json", "esa", "ragtruth"])
def test_rows_of_spans_tell_an_empty_list_from_spans_that_were_dropped(tmp_path, row_format):
    items = items_of(tmp_path, row_format, "an empty list says that nothing was found")
    assert span_rows.to_row(items[0])[0]["spans"] == []
    assert "spans" not in span_rows.to_row(items[1])[0]


def test_rows_of_spans_keep_the_cluster(tmp_path):
    items = items_of(tmp_path, "mtme", "rows that share a document name it as their cluster")
    rows, _ = EXPORTERS["spans"].write(items[:1])
    assert rows[0]["cluster"] == "news-3"


# ---- tags ----------------------------------------------------------------------------------------


CROSSED = ["<v> at 1 is not closed before </e>", "</v> at 3 closes a tag that is not open"]


@pytest.mark.parametrize(
    "text, plain, marks, problems",
    [
        ("a <v>b</v> c", "a b c", [Mark("v", 2, 3)], []),
        ("<v>a</v><v>b</v>", "ab", [Mark("v", 0, 1), Mark("v", 1, 2)], []),
        ("a <x>b</x> 1 < 2", "a <x>b</x> 1 < 2", [], []),
        ("a <v>b", "a b", [], ["<v> at 2 has no closing tag"]),
        ("a</v> b", "a b", [], ["</v> at 1 closes a tag that is not open"]),
        ("<e>a<v>b</v></e>", "ab", [Mark("e", 0, 2), Mark("v", 1, 2, 0)], []),
        ("<e>a<v>b</e>c</v>", "abc", [Mark("e", 0, 2)], CROSSED),
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


def test_runs():
    assert runs([]) == []
    assert runs([7, 3, 4, 4]) == [(3, 5), (7, 8)]


def test_a_place_too_large_to_print(tmp_path):
    write_text(tmp_path / "t.csv", f"spans,text\n[0x{'f' * 4000}],abc\n")
    _, report = import_items(tmp_path / "t.csv", "toxic_spans")
    assert report.spans == {"outside the text": 1}
    assert "too large to show" in report.problems[0].reason


# ---- all importers -------------------------------------------------------------------------------


JSON_IMPORTERS = [
    name for name in IMPORTERS if name not in ("mqm", "haluquestqa", "toxic_spans_raw")
    and name not in ("toxic_spans", "xsum_hallucinations")
]  # fmt: skip
NAMES = st.sampled_from(["text", "start", "end", "label", "value", "result", "data", "steps"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.text("ab<>/v ", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
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


def test_tools_without_an_importer_are_named(tmp_path):
    tsv = tmp_path / "a.tsv"
    write_text(tsv, "#FORMAT=WebAnno TSV 3.3\n\n\n#Text=A\n1-1\t0-1\tA\t_\n")
    with pytest.raises(UserError, match="WebAnno TSV has no import.*UIMA CAS.*from=uima"):
        import_items(tsv, "mqm")
    for name, way_out in (
        ("kto", "data.pairs=unpaired, and.*format=unpaired to=joined"),
        ("lighttag", "spans.quote: value"),
    ):
        with pytest.raises(UserError, match=way_out):
            main(["import", str(tsv), str(tmp_path / "o.jsonl"), f"from={name}"])


def test_files_that_are_no_rows_name_the_way_out(tmp_path):
    write_json(tmp_path / "a.json", {"rows": [{"prompt": "p"}], "relations": {}})
    with pytest.raises(UserError, match=r"those under its key `rows`.*jq '\.\[\"rows\"\]' a.json"):
        read_rows(tmp_path / "a.json")
    with pytest.raises(UserError, match="from=brat` reads such files"):
        read_rows(tmp_path / "a.ann")

"""Ratings of mt-metrics-eval in invented rows of their form."""

import json

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.data.formats import SPANS
from fgrlhf.data.importers.registry import import_items
from fgrlhf.data.judgements import Judgement

SOURCE = "Der Mond 🙂 ist klein, klein."
TARGET = "The moon 🙂 is big, big."


def error(start, end, category="Accuracy/Mistranslation", severity="major", **more):
    return {"start": start, "end": end, "category": category, "severity": severity,
            "score": 5.0, "is_source_error": False, **more}  # fmt: skip


def rating(*errors, rater="r1", **more):
    ids = {"document_id": "d", "segment_id": 0, "system_id": "s", "rater_id": rater}
    languages = {"src_lang": "de", "tgt_lang": None}
    row = {"source": SOURCE, "hypothesis": TARGET, "errors": list(errors)}
    return row | ids | languages | more


def read(tmp_path, rows, name="mtme"):
    write_jsonl(tmp_path / "rows.jsonl", rows)
    return import_items(tmp_path / "rows.jsonl", name)


def evaluation_set(tmp_path, lines):
    for folder in ("sources", "human-scores", "system-outputs/de-en"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sources/de-en.txt").write_text(f"Eins.\n{SOURCE}\n", encoding="utf-8")
    (tmp_path / "system-outputs/de-en/s.txt").write_text(f"One.\n{TARGET}\n", encoding="utf-8")
    path = tmp_path / "human-scores" / "de-en.mqm.rater2.seg.rating"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_ratings_of_an_evaluation_set(tmp_path):
    marked = json.dumps({"errors": [error(14, 17)]})
    path = evaluation_set(tmp_path, ["s\tNone", f"s\t{marked}\tr7"])
    (item,), _ = import_items(path, "mtme")
    assert (item.response, item.source) == (TARGET, SOURCE)
    assert item.judgements == (
        Judgement("Accuracy", "Mistranslation", 14, 17, "major", 5.0, annotator="r7"),
    )
    path.write_text('s\t{"errors": []}\n', encoding="utf-8")
    (item,), _ = import_items(path, "mtme")
    assert item.judgements == (Judgement("MQM", "no error", annotator="mqm.rater2"),)
    assert item.prompt.meta == {"segment_id": 0, "system_id": "s"}


@pytest.mark.parametrize(
    "line, message",
    [
        ("s", "2 or 3 cells"),
        ("s\t{", "is not JSON"),
        ('t\t{"errors": []}', "which should have them, does not exist"),
        ('../s\t{"errors": []}', "is not the name of a file"),
        ('s\t{"errors": []}\ns\tNone\ns\tNone', "segment 2 of s, which has no text"),
    ],
)
def test_faults_of_ratings(tmp_path, line, message):
    with pytest.raises(UserError) as caught:
        import_items(evaluation_set(tmp_path, [line]), "mtme")
    assert message in " ".join(str(caught.value).split())


def test_columns_name_the_side(tmp_path):
    columns = {"response": "hypothesis", "spans": "errors", "spans.label": "category"}
    columns["spans.side"] = "is_source_error"
    row = rating(
        error(14, 17), error(4, 8, is_source_error=True), error(0, 3, is_source_error=None)
    )
    write_jsonl(tmp_path / "rows.jsonl", [row])
    (item,) = SPANS.read(tmp_path / "rows.jsonl", columns)
    assert [(span.side, span.start) for span in item.spans] == [
        ("response", 14), ("source", 4), ("response", 0)
    ]  # fmt: skip
    assert item.source == SOURCE
    write_jsonl(tmp_path / "rows.jsonl", [rating(error(1, 2, is_source_error="yes"))])
    with pytest.raises(UserError, match="response, source, or true for the source"):
        SPANS.read(tmp_path / "rows.jsonl", columns)

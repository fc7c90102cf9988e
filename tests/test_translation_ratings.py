"""Ratings of mt-metrics-eval, and Mu-SHROOM's annotations, in invented rows of their forms."""

import json

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.data.formats import SPANS
from fgrlhf.data.importers.registry import import_items
from fgrlhf.data.judgements import Judgement, to_spans
from fgrlhf.data.votes import MAJORITY, combined

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


def test_standalone_ratings(tmp_path):
    rows = [
        rating(error(14, 17), error(9, 10, "Other", None, score=None)),
        rating(rater="r2"),
        rating(error(4, 8, "Accuracy/Omission", is_source_error=True), rater="r3"),
        rating(error(0, 3, None, "minor"), segment_id=1, system_id="t"),
    ]
    (item, other), report = read(tmp_path, rows)
    assert item.source == SOURCE
    assert item.judgements == (
        Judgement("Accuracy", "Mistranslation", 14, 17, "major", 5.0, annotator="r1"),
        Judgement("Other", "Other", 9, 10, annotator="r1"),
        Judgement("MQM", "no error", annotator="r2"),
        Judgement("Accuracy", "Omission", 4, 8, "major", 5.0, side="source", annotator="r3"),
    )
    assert (TARGET[14:17], SOURCE[4:8]) == ("big", "Mond")
    assert (item.prompt.id, other.prompt.id) == ("d/0/s/de", "d/1/t/de")
    assert other.judgements[0].label == "minor"
    assert report.spans == {"offset without a quote": 4}


def test_an_error_without_a_place_is_still_an_error(tmp_path):
    rows = [rating(error(5, 5), error(0, 99), error(1, 2, "No-error", "no-error"))]
    (item,), report = read(tmp_path, rows)
    assert [(j.label, j.span) for j in item.judgements] == [
        ("Mistranslation", None),
        ("Mistranslation", None),
        ("no error", None),
    ]
    assert report.spans == {"empty": 1, "outside the text": 1}
    assert sum(report.notes.values()) == 2


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


# ---- Mu-SHROOM -----------------------------------------------------------------------------------

ANSWER = " Big 🙂 moon, big moon."


def shroom(**more):
    row = {"id": "tst-1", "lang": "EN", "model_input": "How big?", "model_output_text": ANSWER}
    return row | {"hard_labels": [[1, 4]], "soft_labels": [{"start": 1, "prob": 0.6, "end": 4}],
                  "model_id": "m"} | more  # fmt: skip


def test_annotators_of_mushroom(tmp_path):
    marks = {"a1": [[1, 4], [13, 16]], "a2": [], "a3": [[5, 5]], "a4": [[13, 16]]}
    (item,), report = read(tmp_path, [shroom(annotations=marks)], "mushroom")
    kind = "hallucination"
    assert item.judgements == (
        Judgement(kind, kind, 1, 4, annotator="a1"),
        Judgement(kind, kind, 13, 16, annotator="a1"),
        Judgement(kind, "no error", annotator="a2"),
        Judgement(kind, kind, 13, 16, annotator="a4"),
    )
    assert ANSWER[13:16] == "big"
    assert report.spans == {"offset without a quote": 3, "empty": 1}
    assert (item.prompt.text, item.prompt.meta["lang"]) == ("How big?", "EN")
    assert item.prompt.meta["hard_labels"] == [[1, 4]]  # computed from the annotators' marks
    (voted,), _ = combined([item], MAJORITY)
    assert [span.start for span in to_spans(voted)[0].spans] == [13]


def test_labels_of_mushroom_without_annotators(tmp_path):
    rows = [shroom(), shroom(hard_labels=[], soft_labels=[])]
    (item, clean), _ = read(tmp_path, rows, "mushroom")
    assert item.judgements == (
        Judgement("hallucination", "hallucination", 1, 4),
        Judgement("share of annotators", None, 1, 4, score=0.6),
    )
    assert clean.judgements == (Judgement("hallucination", "no error"),)
    assert "hard_labels" not in item.prompt.meta
    with pytest.raises(UserError, match="has none of annotations, hard_labels, soft_labels"):
        read(tmp_path, [{"model_output_text": "a"}], "mushroom")
    with pytest.raises(UserError, match="must be .start, end."):
        read(tmp_path, [shroom(hard_labels=[[1, 2, 3]])], "mushroom")


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

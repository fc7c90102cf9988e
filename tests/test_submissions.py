"""Export of a server's database: rows of one page, no rows, and all submissions."""

import json
import random
from pathlib import Path

import pytest
from made_tasks import ROW, WRONG, task_with
from page_helpers import ITEM
from rating_tasks import QUALITY
from server_helpers import write_export

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.cli.data import main
from fgrlhf.data import span_rows
from fgrlhf.data.agreement.errors import SPAN_F1
from fgrlhf.data.agreement.responses import by_response
from fgrlhf.data.judgements import JUDGEMENTS, Judgement
from interface_html import agreement, export
from interface_html.agreement import FeedbackAgreementSettings, write_report
from interface_html.agreement_figures import report
from interface_html.annotator_pairs import pair_agreements
from interface_html.assignments import Receipt
from interface_html.database import Database
from interface_html.format import Item
from interface_html.items import read_items
from interface_html.judged import judged_item, write_judgements
from interface_html.judged_items import judged_in_database
from interface_html.stored import read_database
from interface_html.submissions import SubmissionsSettings, write_submissions
from tasks.qa_feedback import judgements as qa_judgements


@pytest.fixture
def annotated(tmp_path):
    """A database of two items: one annotated twice by anna and once by ben, none compared."""
    database = Database(tmp_path / "f.sqlite", "qa_feedback", per_item=2, clock=lambda: 1000.5)
    row = {key: value for key, value in ITEM.items() if key != "id"}
    database.add_items([Item("0", row), Item("1", row)])
    doc = {"errors": [], "missing-info": [], "corrected-prediction": row["prediction 1"]}
    receipt = Receipt(2.5, "1", wall=9.0, guideline_sha256="abc")
    for name in ("anna", "ben"):
        given = database.next(name, "annotation", 4)
        first = doc | {"no-error": True, "flag": True}
        assert database.submit(given, f"{name}-1", first, receipt)
    anna = database.assignment(1, "anna")
    assert database.submit(anna, "anna-2", doc | {"no-error": True}, receipt, seen=1)
    database.close()
    return tmp_path / "f.sqlite"


def export_of(annotated, **changes) -> int:
    out = annotated.with_name("out.json")
    values = {"task": "qa_feedback", "db": str(annotated), "out": str(out)} | changes
    return export.export(export.FeedbackExportSettings(**values))


def test_annotations_alone_are_exported_on_request_and_no_row_is_an_error(annotated):
    with pytest.raises(UserError) as refused:
        export_of(annotated)
    text = str(refused.value)
    assert "no row to export: 2 items lack an annotation or a comparison" in text
    assert "pages=annotation would export 1 row" in text
    assert not annotated.with_name("out.json").exists()
    for policy, rows in (("latest", 1), ("first", 1), ("majority", 1), ("all", 2)):
        assert export_of(annotated, pages="annotation", policy=policy) == rows
    exported = json.loads(annotated.with_name("out.json").read_text())
    assert all("preference" not in row and "feedback" in row for row in exported)
    with pytest.raises(UserError, match="has no page `comparison`: set pages=annotation"):
        write_export(annotated, "x", "detoxification", pages="comparison")


def test_what_a_policy_drops_is_counted(annotated, capsys):
    for policy, which in (("latest", "last"), ("first", "first")):
        export_of(annotated, pages="annotation", policy=policy)
        assert (
            f"1 row; left out 1 item without an annotation; 2 judgements of 1 item by 2 annotators:"
            f" policy={policy} kept the {which} of each, policy=majority counts all"
        ) in capsys.readouterr().out
    export_of(annotated, pages="annotation", policy="majority")
    assert "kept" not in capsys.readouterr().out


def test_dev_has_a_share_of_the_prompts_and_the_rest_is_for_training(tmp_path, capsys):
    database = Database(tmp_path / "f.sqlite", "qa_feedback", per_item=2, clock=lambda: 1000.5)
    row = {key: value for key, value in ITEM.items() if key != "id"}
    # two items about each prompt, and two prompts in one cluster
    rows = [{**row, "question": f"Who sat? {number // 2}"} for number in range(8)]
    for number in (4, 5, 6, 7):
        rows[number]["cluster"] = "page"
    database.add_items([Item(str(number), one) for number, one in enumerate(rows)])
    doc = {"errors": [], "missing-info": [], "corrected-prediction": "", "no-error": True}
    for name in ("anna", "ben"):
        for number in range(8 if name == "anna" else 3):
            doc["corrected-prediction"] = f"{row['prediction 1']} {name}"
            given = database.next(name, "annotation", 4)
            assert database.submit(given, f"{name}-{number}", doc, Receipt(2.5, "1"))
    database.close()
    dev = tmp_path / "dev.json"
    given = {"pages": "annotation", "policy": "majority", "dev_file": str(dev)}
    assert export_of(tmp_path / "f.sqlite", **given, dev_share=0.34) == 8
    parts = [json.loads((tmp_path / name).read_text()) for name in ("out.json", "dev.json")]
    questions = [{one["question"][-1] for one in part} for part in parts]
    assert not questions[0] & questions[1] and sorted(map(len, parts)) in ([2, 6], [4, 4])
    assert {"2", "3"} in (questions[0] & {"2", "3"}, questions[1] & {"2", "3"})
    printed = capsys.readouterr().out.splitlines()
    assert "; in 3 items, annotations differ: policy=majority kept the one" in printed[0]
    assert printed[1] == "annotators of a row: 1 (5 rows), 2 (3 rows)"
    for changes, message in [
        ({"dev_file": None, "dev_share": 0.1}, "give dev_file"),
        ({"dev_file": str(tmp_path / "other"), "out": str(tmp_path / "other")}, "same file"),
    ]:
        with pytest.raises(UserError, match=message):
            export_of(tmp_path / "f.sqlite", **{**given, **changes})
    with pytest.raises(UserError, match="is a database"):
        export_of(tmp_path / "f.sqlite", **{**given, "dev_file": str(tmp_path / "f.sqlite")})


def test_rows_of_annotators_who_judged_one_page_only_are_counted(annotated, capsys):
    database = Database(annotated, "qa_feedback")
    given = database.next("anna", "comparison", 4)
    database.submit(given, "one", {"preference": [0] * 6}, Receipt(1.0, "1"))
    database.close()
    assert export_of(annotated, policy="all") == 1
    text = capsys.readouterr().out
    assert "left out 1 row of annotators without an annotation or a comparison of the item" in text
    assert export_of(annotated, policy="all", pages="annotation") == 2
    assert "left out 1 row" not in capsys.readouterr().out


def test_all_submissions_as_json_lines(annotated, tmp_path):
    out = tmp_path / "all.jsonl"
    settings = SubmissionsSettings(task="qa_feedback", db=str(annotated), out=str(out))
    assert write_submissions(settings) == 3
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["annotator"], line["revision"]) for line in lines] == [
        ("anna", 1),
        ("ben", 1),
        ("anna", 2),
    ]
    assert lines[0]["seconds"] == {"active": 2.5, "wall": 9.0}
    assert lines[0]["created"] == "1970-01-01T00:16:40.500+00:00"
    assert (lines[0]["guideline"], lines[0]["guideline_sha256"]) == ("1", "abc")
    assert sorted(lines[0]["order"]) == [0, 1, 2, 3] and lines[0]["doc"]["errors"] == []


# ---- as judgements -------------------------------------------------------------------------------

SEVERITIES = [
    {"name": "minor", "label": "Minor", "letter": "m", "key": "M"},
    {"name": "major", "label": "Major", "letter": "j", "key": "Shift+M"},
]


def error(start, end, severity, kind="Irrelevant", **parts):
    span = {"error type": kind, "explanation": "", "start": start, "end": end}
    return {**span, "severity": severity, **parts}


def annotation(*errors, missing=(), **parts):
    doc = {"errors": list(errors), "missing-info": list(missing), "no-error": not errors}
    return {**doc, "corrected-prediction": "Mended.", **parts}


@pytest.fixture
def severe(tmp_path):
    """A task in the default format with severities, and two items annotated by anna and ben."""
    task = task_with(tmp_path, severities=SEVERITIES, comment="optional")
    write_json(tmp_path / "items.json", [ROW, {**ROW, "id": "s", "prompt": "Who stood?"}])
    items = read_items(task, tmp_path / "items.json")
    database = Database(tmp_path / "f.sqlite", "made", per_item=2)
    database.add_items(items)
    origin = {"index": 0, "source": "rel_rm", "score": 0.9, "verdict": "accepted"}
    missing = {"error type": "Missing-Answer", "passage_id": 0, "sentence_id": [1]}
    docs = {
        ("r", "anna"): annotation(error(4, 11, "minor", origin=origin), comment="hard"),
        ("r", "ben"): annotation(error(4, 11, "major", reason="off topic"), missing=[missing]),
        ("s", "anna"): annotation(error(4, 11, "major")),
        ("s", "ben"): annotation(),
    }
    for annotator in ("anna", "ben"):
        for _ in items:
            given = database.next(annotator, "annotation", 4)
            doc = docs[given.item.id, annotator]
            uuid = f"{given.item.id}-{annotator}"
            assert database.submit(given, uuid, doc, Receipt(1.0, "1"))
    given = database.next("anna", "comparison", 4)
    assert database.submit(given, "c", {"preference": [0] * 6}, Receipt(1.0, "1"))
    database.close()
    return task, tmp_path / "f.sqlite"


def test_submissions_as_judgements(severe, tmp_path, capsys):
    task, db = severe
    out = tmp_path / "judgements.jsonl"
    assert write_judgements(task, read_database(db, "made"), str(out)) == 2
    assert capsys.readouterr().out.splitlines() == [
        f"{out}: 2 rows of judgements",
        "  left out, submissions of the comparison page: 1",
    ]
    first, second = JUDGEMENTS.read(out)
    assert first.judgements == (
        Judgement("span", "Irrelevant", 4, 11, "minor", annotator="anna", origin="rel_rm"),
        Judgement("span", "Irrelevant", 4, 11, "major", annotator="ben", reason="off topic"),
        Judgement(
            "missing",
            "Missing-Answer",
            annotator="ben",
            evidence='{"passage_id":0,"sentence_id":[1]}',
        ),
    )
    assert first.prompt.id == "r" and first.prompt.meta["comments"] == {"anna": "hard"}
    assert first.prompt.meta["corrections"] == {"anna": "Mended.", "ben": "Mended."}
    assert first.prompt.meta["responses"] == ROW["responses"]
    assert second.judgements[-1] == Judgement("span", "no error", annotator="ben")


def test_feedback_that_the_schema_no_longer_allows_is_told(severe, tmp_path, monkeypatch):
    older, db = severe
    kinds = older.schema.model_dump(mode="json")["errors"]
    kinds = [kind for kind in kinds if kind["name"] != "Irrelevant"]
    newer = task_with(tmp_path, severities=SEVERITIES, comment="optional", errors=kinds)
    monkeypatch.setattr("interface_html.export.feedback_of", lambda name: newer)
    with pytest.raises(UserError, match="does not fit schema.js, .*\n  item r, ") as refused:
        write_export(db, tmp_path / "o.json", "made", pages="annotation")
    assert "item r, spans[0].label: 'Irrelevant' is none of" in str(refused.value)
    assert "Restore the schema" in str(refused.value) and not (tmp_path / "o.json").exists()


def test_agreement_of_a_study_with_severities(severe, tmp_path, capsys):
    task, db = severe
    out = tmp_path / "judgements.jsonl"
    write_judgements(task, read_database(db, "made"), str(out))
    main(["agreement", str(out), "severities=[minor,major]", f"out={tmp_path / 'figures.json'}"])
    figures = json.loads((tmp_path / "figures.json").read_text())
    # item r: one shared span of two marks; item s: ben found nothing
    assert figures["span F1, exact, positions"]["mean"] == pytest.approx(2 / 3)
    # the only pair is (minor, major): n = 2, o = 2 d^2, e = 2 d^2, alpha = 1 - 1
    assert figures["alpha, severities of matched spans (ordinal)"]["mean"] == 0
    assert "alpha, verdicts of span" not in figures


STUDIES = {
    "several outputs": {
        "missing": [],
        "correction": False,
        "mark_outputs": True,
        "severities": SEVERITIES,
        "overlap": True,
        "ratings": [QUALITY],
        "errors": [
            WRONG,
            {**WRONG, "name": "Style", "label": "Style", "letter": "T", "key": "2"},
            {**WRONG, "name": "Good", "label": "Good", "letter": "H", "key": "3", "positive": True},
            {**WRONG, "name": "Lost", "label": "Lost", "letter": "L", "key": "4", "side": "source"},
        ],
    },
    "missing information": {"overlap": True, "comment": "optional"},
}
OUTPUTS = ("One cat sat.", "The dog sat on it.", "A bird.", "Nothing at all sat here.")


def random_annotation(rng, task, texts) -> dict:
    """A few marks of any kind in any text of an item, and missing information."""
    errors = []
    schema = task.schema
    for kind in rng.choices(schema.errors, k=rng.randrange(4)):
        output = rng.randrange(len(schema.marked_outputs)) if kind.side == "response" else 0
        text = texts[output] if kind.side == "response" else texts[-1]
        start = rng.randrange(len(text) - 3)
        mark = {"error type": kind.name, "explanation": "", "start": start}
        mark["end"] = rng.randrange(start + 1, len(text))
        if kind.side == "source":
            mark["side"] = "source"
        if output:
            mark["output"] = output
        if schema.severities and not kind.positive and rng.random() < 0.7:
            mark["severity"] = rng.choice(schema.severities).name
        errors.append(mark)
    doc = {"errors": errors, "missing-info": [], "no-error": not errors}
    for kind in schema.missing if rng.random() < 0.5 else ():
        doc["missing-info"].append(
            {"error type": kind.name, "passage_id": 1, "sentence_id": [rng.choice([1, 2])]}
        )
    return doc | {"corrected-prediction": "Mended." if schema.correction else ""}


def study_of(task, path, seed=0) -> None:
    """A study of 24 items with 8 prompts, each judged by two to four of four annotators."""
    rng = random.Random(seed)
    database = Database(path, "made", per_item=4)
    items = []
    for number in range(24):
        texts = [f"{text} ({number})" for text in OUTPUTS]
        row = {**ROW, "prompt": f"Who sat {number % 8}?", "response": texts[0], "responses": texts}
        items.append(Item(str(number), task.format.item_row(task.schema, row, "")))
    database.add_items(items)
    scores = [scale.name for scale in task.schema.ratings]
    for page in ("annotation", "rating") if scores else ("annotation",):
        for name in ("anna", "ben", "carla", "dora"):
            while (given := database.next(name, page, 4)) is not None:
                item = given.item
                keys = task.schema.fields
                texts = [item.row[key] for key in (*keys.outputs, keys.title)]
                if page == "annotation":
                    doc = random_annotation(rng, task, texts)
                else:
                    values = {
                        key: {one: rng.randint(1, 5) for one in scores} for key in keys.outputs
                    }
                    doc = {"ratings": values, "order": [0, 1, 2, 3]}
                if name == "dora" and rng.random() < 0.5:
                    database.skip(given, "other", "no")
                else:
                    database.submit(given, f"{page}-{name}-{item.id}", doc, Receipt(1.0, "1"))
    database.close()


@pytest.mark.parametrize("keys", STUDIES.values(), ids=list(STUDIES))
def test_both_commands_give_the_same_figures_of_the_same_judgements(keys, tmp_path, capsys):
    task = task_with(tmp_path, **keys)
    db, rows, out = tmp_path / "f.sqlite", tmp_path / "rows.jsonl", tmp_path / "figures.json"
    study_of(task, db)
    of_study = report(task, judged_in_database(task, str(db)))
    write_judgements(task, read_database(db, "made"), str(rows))
    main(["agreement", str(rows), "severities=[minor,major]", f"out={out}"])
    of_rows = json.loads(out.read_text())
    del of_rows["definitions"]
    assert len(of_rows) > 8 and set(of_rows) <= set(of_study)
    for name, figure in of_rows.items():
        one = of_study[name]
        assert figure == (one if isinstance(one, str) else one.as_dict()), name
        assert not isinstance(one, str)
        assert one.has_bounds or "of at least 10 units" in one.reason or "ICC" in name
    further = [name for name in of_study if name not in of_rows]
    assert all(
        "seconds" in name or "sentences" in name or "undefined" in str(of_study[name])
        for name in further
    )


def test_a_long_mark_matches_one_of_two_in_it_by_both_doors(tmp_path, capsys, monkeypatch):
    """Anna marks [0, 3) and [4, 7), Ben [0, 7): by hand, and the text says what was computed."""
    task = task_with(tmp_path, severities=SEVERITIES, overlap=True)
    monkeypatch.setattr("interface_html.agreement.feedback_of", lambda name: task)
    db = tmp_path / "f.sqlite"
    database = Database(db, "made", per_item=2)
    row = {**ROW, "response": "aaa bbb ccc", "responses": ["aaa bbb ccc", *OUTPUTS[1:]]}
    database.add_items([Item("0", task.format.item_row(task.schema, row, ""))])
    marks = {"anna": [error(0, 3, "minor"), error(4, 7, "minor")], "ben": [error(0, 7, "major")]}
    for name, errors in marks.items():
        given = database.next(name, "annotation", 4)
        database.submit(given, name, annotation(*errors), Receipt(1.0, "1"))
    database.close()
    rows = tmp_path / "rows.jsonl"
    write_judgements(task, read_database(db, "made"), str(rows))
    capsys.readouterr()
    outs = [tmp_path / "study.json", tmp_path / "file.json"]
    write_report(FeedbackAgreementSettings(task="made", db=str(db), out=str(outs[0])))
    of_study = capsys.readouterr().out
    main(["agreement", str(rows), "severities=[minor,major]", f"out={outs[1]}"])
    of_file = capsys.readouterr().out
    study, file = (json.loads(out.read_text()) for out in outs)
    # two of three spans; Ben's mark and one of Anna's share 3 characters of 7 and 3
    by_hand = {"exact": 0, "one-to-one overlap": 2 / 3}
    by_hand = {f"span F1, {name}": value for name, value in by_hand.items()}
    for name, value in (by_hand | {"span F, MPP": (1 + 3 / 7) / 3}).items():
        for which in ("positions", "positions and types"):
            assert file[f"{name}, {which}"]["mean"] == pytest.approx(value)
    # both marked the same words; the one matched pair of severities differs, as by chance
    assert file["alpha, words marked or not"]["mean"] == 1
    assert file["alpha, severities of matched spans (ordinal)"]["mean"] == 0
    assert pair_agreements(task.schema, judged_in_database(task, str(db)))[0].span_f1 == 2 / 3
    for name, figure in file.items():
        if name != "definitions":
            assert study[name] == figure and name in of_study and name in of_file
    assert "Hripcsak & Rothschild 2005" in file["definitions"][SPAN_F1]
    for name, text in file["definitions"].items():
        assert study["definitions"][name] == text
        assert f"{name}: {text}" in of_study and f"{name}: {text}" in of_file
    page = (Path(agreement.__file__).parent / "templates" / "lead.js").read_text(encoding="utf-8")
    assert SPAN_F1.replace("span", "Span") in page


def test_marks_of_the_source_and_rows_of_the_server(severe, tmp_path):
    """A row with a mark of the source matches a row of a file without one."""
    task, _ = severe
    item = Item("r", task.format.item_row(task.schema, ROW, ""))
    marked = error(0, 3, "minor", side="source", reason="left out")
    judged = judged_item(task, span_rows.ROWS, item, {"anna": annotation(marked)}, {})
    assert judged.source == "Who sat?" and judged.judgements[0].side == "source"
    other = judged_item(task, span_rows.ROWS, item, {"ben": annotation()}, {})
    assert other.source is None
    (shared,) = by_response({"a": [judged], "b": [other]})
    assert set(shared.by_annotator) == {"anna", "ben"}


def test_qa_submissions_are_judgements_of_the_published_rows(annotated, tmp_path):
    """They have the aspects of `fgrlhf data import from=qa_feedback`, and become its rows again."""
    out = tmp_path / "judgements.jsonl"
    settings = SubmissionsSettings(
        task="qa_feedback", db=str(annotated), out=str(out), format="judgements"
    )
    assert write_submissions(settings) == 1
    rows = JUDGEMENTS.read(out)
    assert rows[0].judgements == (
        Judgement("errors", "no error", annotator="anna"),
        Judgement("errors", "no error", annotator="ben"),
    )
    row, losses = qa_judgements.to_row(rows[0])
    assert row["feedback"] == {"errors": [], "missing-info": []}
    assert losses == {"annotator": 2}


def test_a_study_without_annotations_has_no_judgements(tmp_path):
    database = Database(tmp_path / "f.sqlite", "qa_feedback", per_item=1)
    database.close()
    settings = SubmissionsSettings(
        task="qa_feedback", db=str(tmp_path / "f.sqlite"), out="x", format="judgements"
    )
    with pytest.raises(UserError, match="no item of the study was annotated"):
        write_submissions(settings)

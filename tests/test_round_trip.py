"""Round trip: published rows and pages -> items -> feedback -> reward-model training files."""

import html
import json
from pathlib import Path

import pytest
from page_helpers import ITEM, QA, downloaded, identify, opened, press, reload, row_with, wait_until
from server_helpers import write_export
from test_comparison_page import EXPECTED, judge

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.reward_utils import BLANK
from interface_html import judged_items
from interface_html.assignments import Receipt
from interface_html.database import Database
from interface_html.items import read_items, rows_text
from tasks.qa_feedback.reward_modeling import create_rm_files
from tasks.qa_feedback.reward_modeling.create_rm_files import FOLDERS

ROOT = Path(__file__).parents[1]
SCHEMA = QA.schema


def submitted(rows: Path, db: Path) -> None:
    """A server's database in which one annotator has repeated the published feedback."""
    database = Database(db, SCHEMA.task)
    items = read_items(QA, rows)
    database.add_items(items)
    for page in ("annotation", "comparison"):
        for number, item in enumerate(items):
            given = database.next("anna", page, 4)
            assert given.item.id == item.id
            doc = (
                item.row["feedback"]
                if page == "annotation"
                else {"preference": item.row["preference"], "order": given.shown}
            )
            assert database.submit(given, f"{page}-{number}", doc, Receipt(1.0, "1"))
    database.close()


def test_an_export_makes_the_published_training_files(qa_feedback, golden, tmp_path):
    published = qa_feedback / "dev_feedback.json"
    submitted(published, tmp_path / "f.sqlite")
    count = len(json.loads(published.read_text()))
    data = tmp_path / "data"
    for split in ("train", "dev"):
        assert write_export(tmp_path / "f.sqlite", data / f"{split}_feedback.json") == count
    rows = json.loads((data / "dev_feedback.json").read_text())
    assert all(set(row.pop("decided").values()) == {"single"} for row in rows)
    assert rows_text(rows).encode() == published.read_bytes()
    create_rm_files.create_rm_files(
        create_rm_files.RMFileSettings(data_dir=str(data), output_dir=str(data), segmenter=BLANK)
    )
    for name in FOLDERS[:2]:
        assert (data / name / "dev.json").read_text().splitlines() == (
            golden / name / "dev.json"
        ).read_text().splitlines()
    ours = [
        row["preference"] for row in json.loads((data / "COMP_sequence" / "dev.json").read_text())
    ]
    theirs = json.loads((golden / "COMP_sequence" / "dev_preferences.json").read_text())
    assert ours == [row["preference"] for row in theirs]


# ---- the published pages' own payload ------------------------------------------------------------


def payload(row: dict) -> dict:
    """The part of a row that a published page embeds."""
    passages = [{"wikipage": title, "content": sentences} for title, *sentences in row["passages"]]
    inner = {
        "question": row["question"],
        "passages": passages,
        "predicted answer": row["prediction 1"],
        "gold answer": row["gold"],
    }
    inner |= {f"predicted answer {i}": row[f"prediction {min(i, 4)}"] for i in range(2, 6)}
    return {"id": "600", "question": json.dumps(inner)}


def published_page(row: dict) -> str:
    value = html.escape(json.dumps(payload(row)), quote=False).replace("'", "&#39;")
    return (
        '<!DOCTYPE html><html><body><p id="prompt" style="display: none"'
        f" value='{value}'></p><div></div></body></html>"
    )


def test_a_published_page_comes_back_from_its_payload(qa_feedback, tmp_path):
    for number, row in enumerate(json.loads((qa_feedback / "dev_feedback.json").read_text())):
        page, plain = tmp_path / f"{number}.html", tmp_path / f"{number}.json"
        page.write_text(published_page(row), encoding="utf-8")
        write_json(plain, payload(row))
        for path in (page, plain):
            (item,) = read_items(QA, path)
            assert item.id == "600" and payload(item.row) == payload(row)
            made = row_with(item, row["feedback"], row["preference"])
            assert rows_text([made]) == rows_text([row])


def test_the_file_picker_takes_the_payload_too(chromium, tmp_path):
    row = {key: ITEM[key] for key in SCHEMA.row} | {"gold": 'It\'s <b>"one"</b> &amp; two.'}
    (tmp_path / "page.html").write_text(published_page(row), encoding="utf-8")
    write_json(tmp_path / "page.json", payload(row))
    with opened(chromium, items=None) as tab:
        for name in ("page.html", "page.json"):
            tab.evaluate("localStorage.clear()")
            tab.reload()
            identify(tab)
            tab.set_input_files("#file", tmp_path / name)
            tab.wait_for_selector("#work:not([hidden])")
            reload(tab)
            press(tab, "n", "Control+Enter")
            none = {"errors": [], "missing-info": [], "corrected-prediction": row["prediction 1"]}
            assert downloaded(tab).decode() == rows_text([{**row, "feedback": none}])
        (tmp_path / "empty.html").write_text("<p>nothing</p>")
        tab.set_input_files("#file", tmp_path / "empty.html")
        wait_until(
            tab,
            "() => document.querySelector('#notice').textContent.includes('not a published page')",
        )


def test_a_page_without_an_item_is_refused(tmp_path):
    for text in ("<p>nothing</p>", "<p id=prompt value='{'>", "<p id=prompt>"):
        (tmp_path / "page.html").write_text(text)
        with pytest.raises(UserError, match="not a published page"):
            read_items(QA, tmp_path / "page.html")
    write_json(tmp_path / "page.json", {"id": "1", "question": "{}"})
    with pytest.raises(UserError, match="passages"):
        read_items(QA, tmp_path / "page.json")


# ---- the order shown -----------------------------------------------------------------------------


def test_the_order_shown_is_saved_beside_the_feedback_and_read_again(chromium, tmp_path):
    items = [{**ITEM, "id": str(i), "question": f"Q{i}"} for i in range(4)]
    with opened(chromium, "comparison", items=items, tmp_path=tmp_path) as tab:
        orders = []
        for _ in range(3):
            texts = [ITEM[f"prediction {i}"] for i in range(1, 5)]
            orders.append(
                [texts.index(text) for text in tab.locator(".candidate .output").all_inner_texts()]
            )
            press(tab, *map(str, judge(tab)), "Control+Enter")
        (tmp_path / "anna.json").write_bytes(downloaded(tab))
        with tab.expect_download() as event:
            tab.click("#record")
        assert event.value.suggested_filename == "record.json"
        record = json.loads(Path(event.value.path()).read_text())
        assert [judgement["order"] for judgement in record] == orders and [
            judgement["id"] for judgement in record
        ] == ["0", "1", "2"]
        # a script may judge an item faster than the .1 s to which times are rounded
        assert all(
            judgement["seconds"]["comparison"] >= 0 and judgement["seconds"]["annotation"] is None
            for judgement in record
        )
    write_json(tmp_path / "record.json", record)
    judged = judged_items.judged_in_files(
        QA, [str(tmp_path / "anna.json")], [str(tmp_path / "record.json")]
    )
    assert [entry.comparisons[str(tmp_path / "anna.json")] for entry in judged] == [
        judged_items.GivenPreference(EXPECTED, order) for order in orders
    ]
    assert [judgement.seconds for judgement in judged] == [
        {"comparison": [entry["seconds"]["comparison"]]} for entry in record
    ]
    for wrong in (
        record[:2],
        [{**judgement, "order": [0, 0, 1, 2]} for judgement in record],
        [{**judgement, "seconds": {"a": "b"}} for judgement in record],
        [1, 2, 3],
    ):
        write_json(tmp_path / "record.json", wrong)
        with pytest.raises(UserError, match="record.json"):
            judged_items.judged_in_files(
                QA, [str(tmp_path / "anna.json")], [str(tmp_path / "record.json")]
            )

"""Tasks with a schema made in a test, in the default row format, and their pages from disk."""

import json
from pathlib import Path

import pytest
from page_helpers import TEXT
from test_schema import changed

from fgrlhf.files import write_json
from interface_html.items import read_items
from interface_html.languages import ENGLISH, Language
from interface_html.pages import self_contained
from interface_html.row_format import RowFormat
from interface_html.schema import PageName, load_schema
from interface_html.tasks import FeedbackTask

ROW = {
    "id": "r",
    "prompt": "Who sat?",
    "context": [["Cat", "A cat sat.", "It was blue."]],
    "references": ["A cat."],
    "response": TEXT,
    "responses": [TEXT, "second", "third", "fourth"],
}


def task_with(folder: Path, **keys) -> FeedbackTask:
    """A task with the texts and kinds of qa-feedback and other keys in its schema."""
    path = changed(folder, lambda tree: tree.update(task="made", **keys))
    return FeedbackTask(load_schema(path), RowFormat(), folder)


def page_with(
    task: FeedbackTask, rows, page: PageName = "annotation", language: Language = ENGLISH
) -> Path:
    """A page with these rows inside."""
    write_json(task.folder / "rows.json", list(rows))
    path = task.folder / f"{page}.html"
    items = read_items(task, task.folder / "rows.json")
    path.write_text(self_contained(task, page, items, language), encoding="utf-8")
    return path


def saved(tab, button: str):
    """The JSON that a button of the bar downloads."""
    with tab.expect_download() as event:
        tab.click(button)
    return json.loads(Path(event.value.path()).read_bytes())


def violations(tab) -> list[tuple[str, str]]:
    """What axe finds on the page. Skips the test if axe is not installed."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    ).Axe()
    tab.wait_for_timeout(200)  # colours are animated
    found = axe.run(tab, options={"preload": False}).response["violations"]
    return [(entry["id"], entry["nodes"][0]["html"][:150]) for entry in found]

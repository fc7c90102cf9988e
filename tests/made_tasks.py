"""Tasks with a schema made in a test, in the default row format, and their pages from disk."""

import json
from pathlib import Path

from page_helpers import TEXT, opened
from test_schema import changed

from fgrlhf.base.files import write_json
from interface_html.items import read_items
from interface_html.languages import ENGLISH, Language
from interface_html.pages import self_contained
from interface_html.row_format import RowFormat
from interface_html.rules import annotation_problems
from interface_html.schema import PageName, load_schema
from interface_html.tasks import FeedbackTask

WRONG = {
    "name": "Wrong",
    "label": "Wrong",
    "letter": "W",
    "key": "1",
    "color": "#E7040F",
    "needs": "nothing",
    "help": "it is wrong",
}
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
    path = changed(folder, lambda tree: tree.update(task="made", **{"page_guidelines": {}, **keys}))
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


def check_rules_in_browser(chromium, task: FeedbackTask, source_row, docs) -> None:
    """Check that the page and Python find the same wrong fields in annotations of one item.

    More than ten of the annotations must be right, so that both outcomes are tried.

    Args:
      source_row: the item's row, as its file has it.
      docs: annotations of the item, right ones and wrong ones.
    """
    row = task.format.item_row(task.schema, source_row, "")
    with opened(chromium, where=page_with(task, [source_row])) as tab:
        found = tab.evaluate(
            "([row, docs]) => docs.map((doc) =>"
            " FG.annotationProblems(FG_SCHEMA, row, doc).map(({ field }) => field))",
            [row, docs],
        )
    for document, in_browser in zip(docs, found, strict=True):
        expected = [field for field, _ in annotation_problems(task.schema, row, document)]
        assert sorted(in_browser) == sorted(expected), document
    assert sum(not one for one in found) > 10


def saved(tab, button: str):
    """The JSON that a button of the bar downloads."""
    with tab.expect_download() as event:
        tab.click(button)
    return json.loads(Path(event.value.path()).read_bytes())

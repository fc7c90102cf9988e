"""Tasks with a schema made in a test, in the default row format, and their pages from disk."""

import json
from pathlib import Path

from page_helpers import QA, TEXT
from rating_tasks import CLARITY, QUALITY
from test_schema import changed

from fgrlhf.base.files import write_json
from interface_html.items import read_items
from interface_html.languages import ENGLISH, Language
from interface_html.pages import self_contained
from interface_html.row_format import RowFormat
from interface_html.rules import annotation_problems
from interface_html.schema import ASSIGNMENT, PageName, load_schema
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
# other kinds: a liked one, one of the source, and one with evidence in the text before it
FLUENT = {**WRONG, "name": "Fluent", "label": "Fluent", "letter": "F", "key": "2"}
FLUENT |= {"color": "#00449E", "positive": True, "help": "it reads well"}
OMISSION = {**WRONG, "name": "Omission", "label": "Omission", "letter": "O", "key": "3"}
OMISSION |= {"color": "#00449E", "side": "source", "help": "it is left out"}
REPEATS = {**WRONG, "name": "Repeats", "label": "Repeats", "letter": "R", "key": "2"}
REPEATS |= {"color": "#AA6C39", "needs": "earlier text"}
SEVERITIES = [
    {"name": "minor", "label": "Minor", "letter": "m", "key": "M"},
    {"name": "major", "label": "Major", "letter": "j", "key": "Shift+M"},
]
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


def annotation(*errors, corrected: str = "", no_error: bool | None = None) -> dict:
    """An annotation. By default, "No error" is ticked if there is none."""
    return {
        "errors": list(errors),
        "missing-info": [],
        "corrected-prediction": corrected,
        "no-error": not errors if no_error is None else no_error,
    }


def wrong_fields(task: FeedbackTask, document: dict, row: dict | None = None) -> list[str]:
    """The fields of an annotation of a row that break a rule; by default of ROW."""
    item = task.format.item_row(task.schema, row or ROW, "")
    return [field for field, _ in annotation_problems(task.schema, item, document)]


def page_with(
    task: FeedbackTask, rows, page: PageName = "annotation", language: Language = ENGLISH
) -> Path:
    """A page with these rows inside."""
    write_json(task.folder / "rows.json", list(rows))
    path = task.folder / f"{page}.html"
    items = read_items(task, task.folder / "rows.json")
    path.write_text(self_contained(task, page, items, language), encoding="utf-8")
    return path


def full_task(folder: Path, **keys) -> FeedbackTask:
    """A task with all that pages can ask for, except marks in several outputs."""
    kinds = schema_json(QA)
    liked = {**FLUENT, "letter": "V", "key": "7", "reason": "optional"}
    omitted = {**OMISSION, "key": "8", "reason": "required"}
    full = {
        "errors": [*kinds["errors"], liked, omitted],
        "missing": kinds["missing"][:1],
        "severities": SEVERITIES,
        "comment": "optional",
        "ratings": [QUALITY, CLARITY],
        "examples": [{"text": "The longer one.", "applies": False, "why": "Length is no merit."}],
        "faq": [{"case": "May I stop?", "answer": "Yes."}],
    }
    return task_with(folder, **{**full, **keys})


def schema_json(task: FeedbackTask) -> dict:
    """The schema of a task as its pages have it."""
    text = (task.folder / "schema.js").read_text(encoding="utf-8")
    return json.loads(text.partition(ASSIGNMENT)[2].strip().removesuffix(";"))


def suggested(kind: str, start: int, end: int, score=0.93, explanation="", source="rel_rm") -> dict:
    values = {"explanation": explanation, "score": score, "source": source}
    return {"type": kind, "start": start, "end": end, **values}


# of TEXT: "cat sat", "red." and "The cat" of the third sentence
THREE_SUGGESTED = [
    suggested("Irrelevant", 4, 11),
    suggested("Unverifiable", 33, 37, 0.6, "nothing says so", "fact_rm"),
    suggested("Incoherent", 38, 45, 0.95),
]


def saved(tab, button: str):
    """The JSON that a button of the bar downloads."""
    with tab.expect_download() as event:
        tab.click(button)
    return json.loads(Path(event.value.path()).read_bytes())

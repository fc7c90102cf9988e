"""Tasks with a rating page, for tests: two Likert and percent scales, on two outputs or on one."""

import json
from pathlib import Path

from fgrlhf.base.files import write_json
from interface_html.items import read_items
from interface_html.languages import ENGLISH, Language
from interface_html.pages import self_contained
from interface_html.row_format import RowFormat
from interface_html.schema import ASSIGNMENT, PageName, load_schema
from interface_html.tasks import FeedbackTask

LIKERT = {"scale": "likert", "anchors": {"1": "bad", "5": "good"}}
PERCENT = {"scale": "percent", "anchors": {"0": "not at all", "100": "fully"}}
QUALITY = {"name": "quality", "label": "Quality", "help": "How good is it?", **LIKERT}
CLARITY = {"name": "clarity", "label": "Clarity", "help": "How clear is it?", **PERCENT}
OUTPUTS = ("first", "second")


def schema_tree(outputs=OUTPUTS, ratings=(QUALITY, CLARITY), comparison=None) -> dict:
    fields = {"title": "prompt", "context": None, "reference": None, "noun": "text"}
    return {
        "task": "rated",
        "title": "Rated texts",
        "guideline_version": "1",
        "guideline": ["Rate the texts."],
        "unit": "word",
        "fields": {**fields, "outputs": list(outputs)},
        "row": ["prompt", *outputs],
        "errors": [],
        "missing": [],
        "correction": False,
        "comparison": comparison,
        "ratings": list(ratings),
    }


def write_schema(folder: Path, **changes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "schema.js"
    path.write_text(f"{ASSIGNMENT} {json.dumps(schema_tree(**changes))};", encoding="utf-8")
    return path


def rating_task(folder: Path, **changes) -> FeedbackTask:
    return FeedbackTask(load_schema(write_schema(folder, **changes)), RowFormat(), folder)


def row(number: int = 0, outputs=OUTPUTS, **changes) -> dict:
    texts = changes.get("responses") or [f"The {output} text of {number}." for output in outputs]
    row = {"id": str(number), "prompt": f"Say {number}", "response": texts[0]}
    return {**row, **({"responses": texts} if len(texts) > 1 else {}), **changes}


def write_page(
    task: FeedbackTask, rows: list, page: PageName = "rating", language: Language = ENGLISH
) -> Path:
    """A self-contained page with these rows; it can be opened from disk."""
    write_json(task.folder / "items.json", rows)
    path = task.folder / f"{page}.html"
    items = read_items(task, task.folder / "items.json")
    text = self_contained(task, page, items, language)
    path.write_text(text, encoding="utf-8", newline="")
    return path

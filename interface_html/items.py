"""Rows and samples to items, feedback to rows.

    python -m interface_html.items source=samples.jsonl questions=train.json out=items.json

An item is a row of the task with an `id`: the texts to judge and, where it was annotated before,
what was said. The sources: feedback files, `samples.jsonl` of generate.sh, and the published pages
or the JSON in them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, run_main
from fgrlhf.files import read_json, read_jsonl, write_text
from fgrlhf.reward_utils import load_segmenter
from interface_html.schema import QA_SCHEMA, Schema, load_schema
from tasks.qa_feedback.feedback import DataError, load_examples
from tasks.qa_feedback.validation import (
    Complaint,
    Problem,
    all_sentences_passages,
    feedback_problems,
    not_a,
    text_problems,
)

FEEDBACK_KEYS = ("errors", "missing-info", "corrected-prediction")


@dataclass(frozen=True)
class Item:
    """`row`: the texts under the schema's keys; then `feedback` and `preference` where there are
    any.
    """

    id: str
    row: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, **self.row}


def read_items(schema: Schema, path: str | Path, questions: str | Path | None = None) -> list[Item]:
    """The items of a file. `questions`: the split that samples are of, for their reference answers.

    Raises `DataError` with every mistake in them, `UserError` where the file cannot be read.
    """
    if str(path).endswith((".html", ".htm")):
        rows = _embedded(path)
    else:
        rows = read_jsonl(path) if str(path).endswith(".jsonl") else read_json(path)
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list):
        raise UserError(f"{path} must hold an array of rows")
    references = {p.id: p.references[0] for p in load_examples(questions)} if questions else {}
    items, problems = [], []
    for number, row in enumerate(rows):
        made, wrong = _item(schema, row, number, references)
        problems += [Problem(str(path), number, *complaint) for complaint in wrong]
        items += [made] if made else []
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        twice = next(i for i, name in enumerate(ids) if name in ids[:i])
        problems.append(
            Problem(str(path), twice, "id", f"{ids[twice]!r} is the id of an earlier row too")
        )
    if problems:
        raise DataError(problems)
    return items


def _item(
    schema: Schema, row: Any, number: int, references: Mapping[str, str]
) -> tuple[Item | None, list[Complaint]]:
    if not isinstance(row, dict):
        return None, [("row", not_a(dict, row))]
    row = dict(row)
    name = row.pop("id", str(number))
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        return None, [("id", "must be a string of 1 to 200 characters")]
    try:
        row = _published_page(row)
    except (ValueError, RecursionError) as error:
        return None, [("question", f"is not what the published page embeds: {error}")]
    if "predictions" in row:
        row = _sample(schema, row, references.get(name, ""))
    wrong = row_problems(schema, row)
    return (None, wrong) if wrong else (Item(name, row), [])


class _Prompt(HTMLParser):
    """The `value` of the element with the id `prompt`."""

    value: str | None = None

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if found.get("id") == "prompt" and self.value is None:
            self.value = found.get("value")


def _embedded(path: str | Path) -> Any:
    """The item inside a page as published: `<p id="prompt" value='{"id": ..., "question":
    ...}'>`.
    """
    page = _Prompt()
    try:
        page.feed(Path(path).read_text(encoding="utf-8"))
        return json.loads(page.value or "")
    except (OSError, ValueError, RecursionError) as error:
        why = error if page.value else f"it has no element `prompt` with a value ({error})"
        raise UserError(f"{path} is not a page as published, with an item inside: {why}") from None


def _published_page(row: dict) -> dict:
    """The published page embeds `{id, question: "{JSON of the texts}"}`; other rows are returned as
    they are.

    It embeds five answers, the fifth the same as the fourth, and shows four.
    """
    question = row.get("question")
    if set(row) != {"question"} or not isinstance(question, str) or not question.startswith("{"):
        return row
    inner = json.loads(question)
    if not isinstance(inner, dict):
        raise ValueError("an object is expected")
    keys = {"gold answer": "gold", "predicted answer": "prediction 1"}
    keys |= {f"predicted answer {i}": f"prediction {i}" for i in range(2, 5)}
    made = {"question": inner.get("question"), "passages": _passages(inner.get("passages"))}
    return made | {new: inner[old] for old, new in keys.items() if old in inner}


def _sample(schema: Schema, row: Mapping[str, Any], reference: str) -> dict:
    fields, texts = schema.fields, row["predictions"]
    if isinstance(texts, list):  # a policy may answer nothing, and that is to be judged too
        texts = [
            "No answer." if isinstance(text, str) and not text.strip() else text for text in texts
        ]
    made = {**row, **(dict(zip(fields.answers, texts)) if isinstance(texts, list) else {})}
    if fields.reference:
        made.setdefault(fields.reference, reference)
    if fields.passages in made:
        made[fields.passages] = _passages(made[fields.passages])
    return {key: made[key] for key in schema.row if key in made}


def _passages(passages: Any) -> Any:
    """Passages as `[title, sentence, ...]`; `{wikipage, content}` is cut into sentences."""
    if not isinstance(passages, list):
        return passages
    return [_passage(passage) if isinstance(passage, dict) else passage for passage in passages]


def _passage(passage: Mapping[str, Any]) -> Any:
    title, content = passage.get("wikipage"), passage.get("content")
    if isinstance(content, str):
        content = [content[start:end] for start, end in load_segmenter().sentences(content)]
    return [title, *content] if isinstance(title, str) and isinstance(content, list) else passage


def row_problems(schema: Schema, row: Mapping[str, Any]) -> list[Complaint]:
    """Whether the texts are there. What was said of them is only checked to be of the right
    shape.
    """
    passages = schema.fields.passages
    complaints = list(text_problems(row, "", *(key for key in schema.row if key != passages)))
    if passages:
        complaints += all_sentences_passages(row, passages)
    for answer in schema.fields.answers:
        if isinstance(row.get(answer), str) and not row[answer].strip():
            complaints.append((answer, "is empty: there is nothing to judge"))
    if complaints or schema.task != "qa_feedback" or not {"feedback", "preference"} <= set(row):
        return complaints
    return [(problem.field, problem.reason) for problem in feedback_problems([row], "")]


def row_with(
    schema: Schema,
    item: Item,
    annotation: Mapping[str, Any] | None = None,
    comparison: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The item's row with what was said of it, keys as the published files order them."""
    row = dict(item.row)
    if annotation is not None:
        row["feedback"] = {
            "errors": [
                {key: error[key] for key in ("error type", "explanation", "start", "end")}
                for error in annotation["errors"]
            ],
            "missing-info": [
                {key: info[key] for key in ("error type", "passage_id", "sentence_id")}
                for info in annotation["missing-info"]
            ],
            "corrected-prediction": annotation["corrected-prediction"],
        }
    if comparison is not None:
        row["preference"] = list(comparison["preference"])
    last = ("feedback", "preference")
    return {
        **{k: v for k, v in row.items() if k not in last},
        **{k: row[k] for k in last if k in row},
    }


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """A feedback file's text, as the published files are written."""
    return json.dumps(list(rows), indent=2)


class Settings(StrictModel):
    """What is turned into items."""

    source: str = Field(
        description=(
            "a feedback file, samples.jsonl of generate.sh, or a published page (.html, or the JSON"
            " in it)"
        )
    )
    out: str = Field(description="the file of items to write")
    questions: str | None = Field(
        None, description="the split the samples are of, for their reference answers"
    )
    schema_file: str = Field(str(QA_SCHEMA), description="the task's schema")


def main() -> None:
    settings = settings_from(Settings)
    items = read_items(load_schema(settings.schema_file), settings.source, settings.questions)
    write_text(settings.out, rows_text(item.to_json() for item in items))
    print(f"{settings.out}: {len(items)} items")


if __name__ == "__main__":
    run_main(main)

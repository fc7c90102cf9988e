"""The `FeedbackFormat` of qa-feedback.

Items come from feedback files, from samples of generate.sh, and from the published annotation pages
(.html, or the JSON inside one). interface_html/format.js of this task is the same for the browser.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError
from fgrlhf.base.records import Complaint
from fgrlhf.reward_utils import default_segmenter
from fgrlhf.text_types import Prompt
from interface_html.format import (
    FEEDBACK_KEYS,
    ITEM_KEYS,
    FeedbackFormat,
    Item,
    ItemError,
    PromptReferences,
    read_rows,
)
from interface_html.rules import ERROR_KEYS, errors_only
from interface_html.schema import Schema
from interface_html.suggestions import without_decisions
from tasks.qa_feedback.feedback import FeedbackRow, load_examples
from tasks.qa_feedback.reward_modeling.create_rm_files import factuality_tags, relevance_tags
from tasks.qa_feedback.validation import feedback_problems

ANNOTATION_KEYS = ("errors", "missing-info", "corrected-prediction")
MISSING_KEYS = ("error type", "passage_id", "sentence_id")
OTHER_KEYS = {"prompt", "response", "responses"}  # of rows in the default format
OTHER_TASK = (
    "looks like a sample of another task: qa_feedback's samples have id, question, passages and"
    " predictions (four answers), as `fgrlhf generate qa_feedback` writes them"
)
NO_ANSWER = "No answer."  # the text to judge if a policy's response is blank


class QAFeedbackFormat:
    """Rows of the published feedback files: an item's row is the file's row."""

    def read(self, path: str | Path) -> list[Any]:
        if str(path).endswith((".html", ".htm")):
            return [_row_of_page(path)]
        return read_rows(path)

    def references(self, path: str | Path) -> Sequence[PromptReferences]:
        references = []
        for prompt in load_examples(path):  # their ids are their places, which samples have too
            text = self.prompt_text(prompt.meta)
            references.append(PromptReferences(prompt.id, text, prompt.references))
        return references

    def prompt_text(self, row: Mapping[str, Any]) -> str:
        question = row.get("question")
        return question if isinstance(question, str) else ""

    def item_row(
        self, schema: Schema, row: Mapping[str, Any], references: Sequence[str]
    ) -> dict[str, Any]:
        try:
            row = _row_of_payload(row)
        except (ValueError, RecursionError) as error:
            reason = f"is not the content of a published page: {error}"
            raise ItemError([("question", reason)]) from None
        if "question" not in row and OTHER_KEYS & set(row):
            raise ItemError([("row", OTHER_TASK)])
        if "predictions" not in row:
            return dict(row)
        gold = references[0] if references else ""  # a published row has one
        return _row_of_sample(schema, row, gold)

    def feedback_problems(self, schema: Schema, row: Mapping[str, Any]) -> Iterable[Complaint]:
        """Problems of the judgements in a row; an item has none yet."""
        if not set(FEEDBACK_KEYS) & set(row):
            return []
        return [(problem.key, problem.reason) for problem in feedback_problems([row], "")]

    def feedback_row(self, schema: Schema, item: Item) -> dict[str, Any]:
        """A row with its keys in the order of the published files."""
        left_out = (*FEEDBACK_KEYS, *ITEM_KEYS)
        row = {key: value for key, value in item.row.items() if key not in left_out}
        if item.feedback is not None:
            row["feedback"] = _published(item.feedback)
        if item.preference is not None:
            row["preference"] = list(item.preference)
        return row

    def prompt(self, schema: Schema, item: Item) -> Prompt:
        question = item.row[schema.fields.title]
        return Prompt(
            item.id, question, meta={"question": question, "passages": item.row["passages"]}
        )

    def segment_labels(
        self, schema: Schema, item: Item, annotations: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Sequence[Sequence[str]]]:
        """The tags that reward models are trained on, for sub-sentences and for sentences."""
        errors = [errors_only(schema, doc) for doc in annotations]
        rows = [FeedbackRow({**item.row, "feedback": doc}) for doc in errors]
        segmenter = default_segmenter(row.predictions[0] for row in rows)
        relevance = [relevance_tags(row, segmenter) for row in rows]
        factuality = [factuality_tags(row, segmenter) for row in rows]
        return {
            "sub-sentences (relevance)": list(zip(*relevance)),
            "sentences (factuality)": list(zip(*factuality)),
        }


FORMAT: FeedbackFormat = QAFeedbackFormat()


def _published(annotation: Mapping[str, Any]) -> dict[str, Any]:
    """An annotation without the keys that the published files do not have."""
    annotation = without_decisions(annotation)
    own_keys = ("no-error", "comment", "flag", "decisions")
    feedback = _ordered(annotation, ANNOTATION_KEYS, leave_out=own_keys)
    feedback["errors"] = [
        _ordered(error, ERROR_KEYS, leave_out=("quote",)) for error in annotation["errors"]
    ]
    feedback["missing-info"] = [_ordered(info, MISSING_KEYS) for info in annotation["missing-info"]]
    return feedback


def _ordered(
    values: Mapping[str, Any], first: Sequence[str], leave_out: Sequence[str] = ()
) -> dict[str, Any]:
    """The same values with some keys first and others left out."""
    keys = [*first, *(key for key in values if key not in first and key not in leave_out)]
    return {key: values[key] for key in keys}


# ---- the published annotation pages --------------------------------------------------------------


class _PromptElement(HTMLParser):
    """The `value` of the element whose id is `prompt`."""

    value: str | None = None

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if attributes.get("id") == "prompt" and self.value is None:
            self.value = attributes.get("value")


def _row_of_page(path: str | Path) -> Any:
    """The payload of a published page: `<p id="prompt" value='{"id": ..., "question": ...}'>`."""
    page = _PromptElement()
    try:
        page.feed(Path(path).read_text(encoding="utf-8"))
        return json.loads(page.value or "")
    except (OSError, ValueError, RecursionError) as error:
        reason = error if page.value else f"it has no element `prompt` with a value ({error})"
        raise UserError(f"{path} is not a published page with an item in it: {reason}") from None


def _row_of_payload(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row of a published page's payload, `{question: "{JSON of the texts}"}`.

    Other rows are returned unchanged. A payload has five answers, of which the page shows four; the
    fifth repeats the fourth.
    """
    question = row.get("question")
    if set(row) != {"question"} or not isinstance(question, str) or not question.startswith("{"):
        return row
    texts = json.loads(question)
    if not isinstance(texts, dict):
        raise ValueError("an object is expected")
    names = {"gold answer": "gold", "predicted answer": "prediction 1"}
    names |= {f"predicted answer {i}": f"prediction {i}" for i in range(2, 5)}
    renamed = {name: texts[key] for key, name in names.items() if key in texts}
    passages = _passages(texts.get("passages"))
    return {"question": texts.get("question"), "passages": passages, **renamed}


# ---- samples -------------------------------------------------------------------------------------


def _row_of_sample(schema: Schema, sample: Mapping[str, Any], gold: str) -> dict[str, Any]:
    """The row of a line of samples.jsonl: {question, passages, predictions}."""
    row = dict(sample)
    predictions = row["predictions"]
    if isinstance(predictions, list):
        for key, text in zip(schema.fields.outputs, predictions):
            is_blank = isinstance(text, str) and not text.strip()
            row[key] = NO_ANSWER if is_blank else text
    row.setdefault("gold", gold)
    if "passages" in row:
        row["passages"] = _passages(row["passages"])
    return {key: row[key] for key in schema.row if key in row}


def _passages(passages: Any) -> Any:
    """Passages as `[title, sentence, ...]`; `{wikipage, content}` is split into sentences."""
    if not isinstance(passages, list):
        return passages
    return [_passage(passage) if isinstance(passage, dict) else passage for passage in passages]


def _passage(passage: Mapping[str, Any]) -> Any:
    title, content = passage.get("wikipage"), passage.get("content")
    if isinstance(content, str):
        content = [
            content[start:end] for start, end in default_segmenter([content]).sentences(content)
        ]
    if isinstance(title, str) and isinstance(content, list):
        return [title, *content]
    return passage

"""Items whose title is a conversation. templates/conversations.js is the same for the browser.

`fgrlhf.data` reads a prompt that is a list `[{role, content}, ...]` as a conversation. An item has
its text under the title's key, and the list under `messages`. A text in the form of HH-RLHF is a
conversation too (fgrlhf/models/dialogs.py); the pages find its turns.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fgrlhf.base.records import Complaint, RowError
from fgrlhf.data.judgements import SOURCE
from fgrlhf.data.shapes import conversation_prompt, messages_of
from fgrlhf.models.dialogs import messages_in
from interface_html.schema import Schema

MESSAGES = "messages"


def conversation_problems(row: Mapping[str, Any]) -> Iterator[Complaint]:
    """Whether the `prompt` of a row, a list, is a conversation."""
    try:
        _conversation_text(row["prompt"])
    except RowError as error:
        yield error.key, error.reason
    if MESSAGES in row:
        reason = "must not be there if `prompt` is a conversation: remove it, or rename it"
        yield MESSAGES, reason


def title_of(prompt: Any) -> tuple[str, dict[str, Any]]:
    """The title's text, and `{messages}` if the prompt is a conversation, else {}."""
    if isinstance(prompt, list):
        return _conversation_text(prompt), {MESSAGES: prompt}
    return prompt, {}


def title_messages(schema: Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """`{messages}` of an `Item.row` whose title is their text; {} for any other row."""
    messages = row.get(MESSAGES)
    if not isinstance(messages, list) or MESSAGES in schema.row:
        return {}
    try:
        text = _conversation_text(messages)
    except RowError:
        return {}
    return {MESSAGES: messages} if text == row[schema.fields.title] else {}


def prompt_value(schema: Schema, row: Mapping[str, Any]) -> Any:
    """The `prompt` of the file's row: the conversation or the text.

    It is the text if something is marked in it, as in items of earlier versions: the offsets count
    in the text.
    """
    feedback = row.get("feedback")
    errors = feedback["errors"] if feedback else []
    if any(error.get("side") == SOURCE for error in errors):
        return row[schema.fields.title]
    return title_messages(schema, row).get(MESSAGES, row[schema.fields.title])


def source_mark_problems(schema: Schema, row: Mapping[str, Any]) -> Iterator[Complaint]:
    """An item with several turns must not be in a task whose kinds are marked in the source.

    Their offsets would count in a text that neither the pages show nor the row has.
    """
    if not schema.marks_source or len(title_messages(schema, row).get(MESSAGES, ())) < 2:
        return
    kinds = ", ".join(kind.name for kind in schema.errors if kind.side == SOURCE)
    yield (
        "prompt",
        f"is a conversation, in whose turns nothing can be marked, and {kinds} of this task are"
        ' marked in the source: give the prompt as one text, or leave out `"side": "source"` in'
        " schema.js",
    )


def shown_turns(schema: Schema, row: Mapping[str, Any]) -> list[dict[str, str]]:
    """The turns in which the pages show the title of an `Item.row`; [] if they show its text."""
    messages = title_messages(schema, row).get(MESSAGES, [])
    if len(messages) > 1:
        return messages
    turns = messages_in(row[schema.fields.title])
    return [{"role": role, "content": content} for role, content in turns]


def _conversation_text(prompt: list[Any]) -> str:
    return conversation_prompt("prompt", messages_of("prompt", prompt)).text

"""Readers of conversations and rated steps in the formats of published data sets.

A prompt is a text. A conversation of one user message becomes that message. A conversation with
more turns, or with a system message, becomes a dialog (fgrlhf/models/dialogs.py), and so does a
text in the form of HH-RLHF.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Literal

from pydantic import model_validator

from fgrlhf.base.errors import shorten
from fgrlhf.base.records import (
    AnyText,
    Number,
    Record,
    RowError,
    Text,
    check_list,
    check_place,
    check_text,
    read,
)
from fgrlhf.models.dialogs import NEXT_TURN, dialog_text, messages_in
from fgrlhf.text_types import ASSISTANT, SYSTEM, USER, Message
from fgrlhf.words import word_starts

STEP_MARK = "ки"  # after each step of a Math-Shepherd row
FIRST_STEPS = ("Step 1:", "step 1:")  # beginnings of the first step
END_OF_PROBLEM = "?"  # where no step has a number
GOOD_STEP, BAD_STEP = "+", "-"
_THOUGHTS = "write it there in the form of the model's chat template, such as <think>...</think>"
_CALLS = "write it there as the model does, or leave out the row"
# keys of a message that templates write besides its content -> what to do
NOT_IN_CONTENT = {
    **dict.fromkeys(["reasoning_content", "reasoning", "thinking"], _THOUGHTS),
    **dict.fromkeys(["tool_calls", "function_call"], _CALLS),
}
# ShareGPT's names of who speaks, under `from`; the text of a message is under `value`
SPEAKERS = {
    "system": SYSTEM,
    **dict.fromkeys(["human", "user"], USER),
    **dict.fromkeys(["gpt", "assistant", "chatgpt", "bing", "bard"], ASSISTANT),
}
AFTER_MARKS = "texts after the last mark of a solution, not read"  # in counts of what is lost


@dataclass(frozen=True)
class PromptText:
    """A prompt, and its messages if it is a dialog."""

    text: str
    messages: tuple[Message, ...] = ()

    @classmethod
    def of(cls, text: str) -> "PromptText":
        """The prompt in a text, which may be a dialog."""
        return cls(text, messages_in(text))


# ---- conversations -------------------------------------------------------------------------------


class _Message(Record):
    role: Literal["system", "user", "assistant"]
    content: AnyText

    @model_validator(mode="before")
    @classmethod
    def _with_role(cls, message: Any) -> Any:
        """A message of ShareGPT, `{from, value}`, with the keys of the others."""
        if not isinstance(message, Mapping) or "from" not in message or "role" in message:
            return message
        speaker = message["from"]
        if not isinstance(speaker, str) or speaker not in SPEAKERS:
            raise RowError(
                "from",
                f"is {shorten(repr(speaker), 40)}, which is neither the user's nor the model's text"
                f" (known: {', '.join(SPEAKERS)}). Write calls of tools and their results into the"
                " messages as the model reads them, or leave out the row",
            )
        text = check_text("value", message.get("value"), may_be_blank=True)
        return {**message, "role": SPEAKERS[speaker], "content": text}

    @model_validator(mode="before")
    @classmethod
    def _is_all_in_its_content(cls, message: Any) -> Any:
        for name, way_out in NOT_IN_CONTENT.items():
            if isinstance(message, Mapping) and message.get(name):
                raise RowError(name, f"is no part of `content`, so it would be lost: {way_out}")
        return message


def messages_of(key: str, value: Any) -> list[Message]:
    """A conversation `[{role, content}, ...]` or `[{from, value}, ...]` as (role, text) pairs.

    Raises:
      RowError: it is not a conversation, or it is empty.
    """
    messages = read(list[_Message], check_list(key, value), key)
    if not messages:
        raise RowError(key, "must be a conversation of at least one message")
    return [(message.role, message.content) for message in messages]


def split_answer(key: str, messages: Sequence[Message]) -> tuple[list[Message], str]:
    """The messages before the last one, and the text of the last one.

    Raises:
      RowError: the last message is not the assistant's.
    """
    role, answer = messages[-1]
    if role != ASSISTANT:
        raise RowError(
            f"{key}[{len(messages) - 1}].role", "the last message must be the assistant's"
        )
    return list(messages[:-1]), answer


def conversation_prompt(key: str, messages: Sequence[Message]) -> PromptText:
    """A conversation as a prompt; see the module's docstring.

    Raises:
      RowError: there is no message, or the prompt is blank.
    """
    if not messages:
        raise RowError(key, "has no message before the answer")
    if len(messages) == 1 and messages[0][0] == USER:
        return PromptText(check_text(key, messages[0][1]))
    return PromptText(dialog_text(messages), tuple(messages))


# ---- pairs without a prompt ----------------------------------------------------------------------


def split_pair(chosen: str, rejected: str) -> tuple[PromptText, str, str, bool]:
    """The prompt and both answers of two texts with the same beginning, and whether it is a dialog.

    The prompt of two dialogs, as in HH-RLHF, is the common beginning up to its last `NEXT_TURN`.
    That of other texts, as in TRL's rows with an implicit prompt, is the common beginning up to the
    last word that is whole in both. (TRL 1.16 cuts words: findings/trl_prompt_ends_in_a_word.sh.)
    White space around the answers is removed.

    Raises:
      RowError: they share no such beginning.
    """
    shared = commonprefix([chosen, rejected])
    place = shared.rfind(NEXT_TURN)
    if place >= 0:
        end = place + len(NEXT_TURN)
        return PromptText.of(shared[:end]), chosen[end:].strip(), rejected[end:].strip(), True
    starts = set(word_starts(chosen)) & set(word_starts(rejected))
    end = max((start for start in starts if start <= len(shared)), default=0)
    if not shared[:end].strip():
        raise RowError(
            "prompt",
            "missing, and `chosen` and `rejected` do not begin with the same dialog up to"
            " `Assistant:`, or with the same words",
            missing=("prompt",),
        )
    return (
        PromptText.of(shared[:end].rstrip(" ")),
        chosen[end:].strip(),
        rejected[end:].strip(),
        False,
    )


# ---- rated steps ---------------------------------------------------------------------------------


class _Completion(Record):
    text: Text
    rating: Number | None = None


@dataclass(frozen=True)
class RatedCompletion:
    """A candidate for a step of a solution, with its rating."""

    text: str
    rating: float
    goes_on: bool  # whether the solution continues from this completion


def chosen_completion(key: str, step: Mapping[str, Any]) -> RatedCompletion | None:
    """The completion that represents a step with several of them, as in PRM800K.

    A step is `{completions: [{text, rating}, ...], human_completion, chosen_completion}`. The
    solution continues from the chosen completion, or from the one that a human wrote, which counts
    as good (1). If it does not continue, the first completion represents the step. None if the step
    has no completion, or its completion has no rating.

    Raises:
      RowError: the step has another structure.
    """
    chosen = step.get("chosen_completion")
    human = step.get("human_completion")
    completions = check_list(f"{key}.completions", step.get("completions") or [])
    if chosen is None and human is not None:
        name = f"{key}.human_completion"
        text = human if isinstance(human, str) else read(_Completion, human, name).text
        return RatedCompletion(check_text(name, text), 1.0, goes_on=True)
    if not completions:
        return None
    place = check_place(
        f"{key}.chosen_completion",
        0 if chosen is None else chosen,
        len(completions),
        f"there are {len(completions)} completions, counted from 0",
    )
    name = f"{key}.completions[{place}]"
    completion = read(_Completion, completions[place], name)
    if completion.rating is None:
        return None
    return RatedCompletion(completion.text, completion.rating, chosen is not None)


def split_marked_steps(text: str, labels: str) -> tuple[str, list[tuple[str, bool]]]:
    """The prompt of a Math-Shepherd row, and its steps, each with whether it is good.

    `text` has `ки` after every step; `labels` is the same text with + or - in its place. The
    published file has a few marks inside problems, before the first step: they judge nothing, and
    are removed. Text after the last mark is not judged either (`text_after_marks`).

    Raises:
      RowError: the two texts do not match, or there is no step.
    """
    pieces = text.split(STEP_MARK)
    place = 0
    marks = []
    for piece in pieces[:-1]:
        start = place
        place += len(piece)
        mark = labels[place : place + 1]
        if mark not in (GOOD_STEP, BAD_STEP):
            raise RowError(
                "label", f"character {place} must be + or -, as `input` has a mark `{STEP_MARK}`"
            )
        _check_same_text(piece, labels, start, place)
        marks.append(mark == GOOD_STEP)
        place += 1
    found = _first_step(pieces[:-1])
    if found is None:
        raise RowError(
            "input",
            f"must contain `{FIRST_STEPS[0]}`, or a problem that ends with `{END_OF_PROBLEM}`, and"
            f" a mark `{STEP_MARK}` after each step",
        )
    _check_same_text(pieces[-1], labels, place, len(labels))
    first, start = found
    problem = "".join(pieces[:first]) + pieces[first][:start]
    prompt = check_text("input", problem).strip()
    texts = [pieces[first][start:], *pieces[first + 1 : -1]]
    steps = [check_text("input", step).strip() for step in texts]
    return prompt, list(zip(steps, marks[first:]))


def _check_same_text(piece: str, labels: str, start: int, end: int) -> None:
    """Raise `RowError` if the labels do not repeat a piece of the text, apart from white space."""
    if piece.split() != labels[start:end].split():
        raise RowError(
            "label",
            f"characters {start} to {end} are another text than in `input`: both must be the same"
            f" solution, with + or - in `label` for every mark `{STEP_MARK}`",
        )


def text_after_marks(text: str) -> str:
    """What follows the last mark of a Math-Shepherd solution: text that nobody judged, or ""."""
    return text.rpartition(STEP_MARK)[2].strip()


def _first_step(pieces: Sequence[str]) -> tuple[int, int] | None:
    """The number of the piece in which the first step begins, and its place there.

    A step without a number begins after the first `?`. None: there is no step.
    """
    for number, piece in enumerate(pieces):
        for beginning in FIRST_STEPS:
            start = piece.rfind(beginning)
            if start >= 0:
                return number, start
    if pieces and END_OF_PROBLEM in pieces[0]:
        return 0, pieces[0].find(END_OF_PROBLEM) + 1
    return None

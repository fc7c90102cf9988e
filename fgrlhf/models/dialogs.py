"""Dialogs of several turns: as plain text, and without their oldest turns.

The plain text of a dialog has the form of HH-RLHF. The assistant speaks next:

    \\n\\nSystem: ...\\n\\nHuman: ...\\n\\nAssistant: ...\\n\\nHuman: ...\\n\\nAssistant:
"""

import re
from collections.abc import Callable, Iterator, Sequence

from fgrlhf.text_types import ASSISTANT, SYSTEM, USER, Message

SPEAKERS = {SYSTEM: "System", USER: "Human", ASSISTANT: "Assistant"}
ROLES = {speaker: role for role, speaker in SPEAKERS.items()}
NEXT_TURN = f"\n\n{SPEAKERS[ASSISTANT]}:"  # the end of a dialog that the assistant continues

TURN = re.compile(rf"\n\n({'|'.join(ROLES)}):")  # the beginning of a turn


def dialog_text(messages: Sequence[Message]) -> str:
    """The plain text of a dialog; see the module's docstring."""
    turns = [f"\n\n{SPEAKERS[role]}: {text}" for role, text in messages]
    return "".join(turns) + NEXT_TURN


def messages_in(text: str) -> tuple[Message, ...]:
    """The messages of a dialog in plain text; () if the text is not such a dialog.

    White space around a message is removed. Successive messages of one speaker are joined, because
    chat templates demand that speakers alternate.
    """
    turns = list(TURN.finditer(text))
    if not turns or text[: turns[0].start()].strip() or not text.rstrip().endswith(NEXT_TURN):
        return ()
    messages: list[Message] = []
    for turn, following in zip(turns, turns[1:]):  # the last turn is the one to be written
        role = ROLES[turn[1]]
        content = text[turn.end() : following.start()].strip()
        if messages and messages[-1][0] == role:
            content = f"{messages.pop()[1]}\n\n{content}"
        messages.append((role, content))
    roles = [role for role, _ in messages if role != SYSTEM]
    return tuple(messages) if roles and roles[0] == USER else ()


def fit_dialog(
    messages: Sequence[Message],
    write: Callable[[Sequence[Message]], str],
    tokens: Callable[[str], int],
    without_last_tokens: Callable[[str, int], str],
    limit: int,
) -> str:
    """A dialog as text of at most `limit` tokens.

    A long dialog loses its oldest turns, but not its system message. If the last message is still
    too long, it loses its end; if nothing of it would be left, the system message is left out.

    Args:
      write: the text of messages.
      tokens: the length of a text.
      without_last_tokens: (text, n) -> the text without its last n tokens, shorter by at least one
        character.
    """
    for kept in _without_oldest(messages):
        written = write(kept)
        if tokens(written) <= limit:
            return written
    *before, (role, content) = kept
    while content:
        # a shorter message may be split into other tokens, so the length is checked again
        content = without_last_tokens(content, tokens(written) - limit)
        written = write([*before, (role, content)])
        if tokens(written) <= limit:
            break
    if before and not content:
        return fit_dialog(messages[-1:], write, tokens, without_last_tokens, limit)
    return written


def _without_oldest(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """The dialog, then without its first turns, at last with the last user's message only."""
    yield list(messages)
    system = [messages[0]] if messages[0][0] == SYSTEM else []
    starts = [place for place, (role, _) in enumerate(messages) if role == USER]
    for start in starts[1:]:
        yield [*system, *messages[start:]]

"""Prompts and scores of texts; `fgrlhf.types` has the data with tensors.

Importing this module loads no torch, so the feedback server starts in a second.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"  # roles in a dialog
TOOL = "tool"  # the role of a tool, in a conversation with an environment
Message = tuple[str, str]  # role and text
ConversationForm = Literal["chat", "text_eos", "text"]  # fgrlhf/reward_models/conversation.py
SegmentValue = Literal["hard", "expected", "log_odds"]  # `segment_value` in fgrlhf/reward.py


@dataclass(frozen=True)
class Prompt:
    """One input.

    The messages of a dialog are its turns so far. A policy with a chat template reads the messages
    if there are any; every other policy and all reward models read the text.

    Raises:
      ValueError: the references are one text instead of a tuple.
    """

    id: str
    text: str
    references: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)  # the row of the task's data
    messages: tuple[Message, ...] = ()

    def __post_init__(self):
        if isinstance(self.references, str):  # each of its characters would be a reference
            raise ValueError(f"references must be a tuple of texts, not {self.references!r:.60}")


@dataclass(frozen=True)
class SegmentScore:
    """A reward for characters [start, end) of a response's text, in reward units.

    `end=None` means the end of the whole response, including its end-of-sequence token: a score of
    the whole response also rates the decision to stop. `label` names the judgement in reports, and
    `std` is the standard deviation over the members of an ensemble, without the reward's weight.

    Raises:
      ValueError: start and end do not form a span.
    """

    start: int
    end: int | None
    value: float
    label: str = ""
    std: float | None = None

    def __post_init__(self):
        if self.start < 0 or (self.end is not None and self.end < self.start):
            raise ValueError(f"not a span: [{self.start}, {self.end})")


# A metric of a task: (prompt, response) -> {column: number}. None means "not applicable".
MetricFunction = Callable[[Prompt, str], Mapping[str, float | None]]


@dataclass(frozen=True)
class Reply:
    """What an environment answers to a turn of the policy.

    Args:
      text: what the policy reads before its next turn.
      reward: of the turn, in reward units.
      done: whether the conversation ends here; the policy then never reads the text.
      role: who speaks, the user or a tool; chat templates write them differently.

    Raises:
      ValueError: another role.
    """

    text: str
    reward: float = 0.0
    done: bool = False
    role: str = USER

    def __post_init__(self):
        if self.role not in (USER, TOOL):
            raise ValueError(f"role is {self.role!r:.60}, not {USER!r} or {TOOL!r}")


@dataclass(frozen=True)
class Turn:
    """A turn of the policy in a conversation with an environment, and the reply to it.

    Args:
      n_tokens: tokens of the turn, its end-of-sequence token included.
    """

    text: str
    n_tokens: int
    reply: Reply


def turns_text(turns: Sequence[Turn]) -> str:
    """The policy's part of a conversation: a response has a line for each of its turns.

    The token that ends a turn completes the line break after it (`fgrlhf.alignment.decode`), so a
    segment that ends there is credited at the turn's last token.
    """
    return "\n".join(turn.text for turn in turns)


def turn_spans(turns: Sequence[Turn]) -> list[tuple[int, int | None]]:
    """The characters of each turn in `turns_text`, with the line break after it.

    The last turn ends with the response (`SegmentScore.end`).
    """
    spans: list[tuple[int, int | None]] = []
    start = 0
    for turn in turns:
        end = start + len(turn.text) + 1
        spans.append((start, end))
        start = end
    return spans[:-1] + [(start, None) for start, _ in spans[-1:]]


@dataclass(frozen=True)
class ResponseTokens:
    """How a response was sampled, for rewards that depend on its tokens.

    Args:
      char_ends: number of characters of the text that are complete after each token.
      finished: whether it ended with an end-of-sequence token, not at the length limit.
      turns: those of a conversation with an environment.
    """

    char_ends: tuple[int, ...]
    finished: bool
    turns: tuple[Turn, ...] = ()


def segment_rows(scores: Sequence[SegmentScore] | None) -> list[dict[str, Any]] | None:
    """Scored segments as JSON-compatible rows; None if the reward does not apply."""
    if scores is None:
        return None
    rows = []
    for score in scores:
        row = {"start": score.start, "end": score.end, "value": score.value, "label": score.label}
        rows.append(row if score.std is None else row | {"std": score.std})
    return rows

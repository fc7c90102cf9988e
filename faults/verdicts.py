"""Judges the refusals of readers that run in this process."""

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fgrlhf.base.errors import UserError
from fgrlhf.base.program import why_refused

MOST_LINES = 25
MOST_CHARACTERS = 4_000
MOST_SECONDS = 1.0  # CPU time

GOOD = ("refused", "accepted")
BAD = ("traceback", "over a second", "long text", "unnamed")


@dataclass(frozen=True)
class Called:
    """The result of a reader: its value, the text of its refusal, or its traceback."""

    verdict: str
    value: Any = None
    text: str = ""

    @property
    def note(self) -> str:
        return self.text[-2_000:] if self.verdict == "traceback" else self.text[:2_000]


def call(reader: Callable[[], Any], names: Sequence[str] = (), folder: str = "") -> Called:
    """Call a reader of a user's file or setting.

    A refusal is a `UserError` of at most a few lines that contains one of `names` (empty:
    anything). The length of the name of `folder` does not count. CPU time is measured, so a busy
    machine makes no difference.
    """
    started = time.process_time()
    called = _outcome(reader)
    seconds = time.process_time() - started
    if called.verdict == "traceback":
        return called
    text = called.text
    if seconds > MOST_SECONDS:
        return Called("over a second", called.value, f"{seconds:.1f} s: {text}")
    if called.verdict == "accepted":
        return called
    length = len(text.replace(folder, "") if folder else text)
    lines = text.count("\n") + 1
    if length >= MOST_CHARACTERS or lines > MOST_LINES:
        return Called("long text", None, f"{length} characters, {lines} lines: {text}")
    if names and not any(_plain(name) in _plain(text) for name in names):
        return Called("unnamed", None, f"none of {list(names)} is in: {text}")
    return called


def _outcome(reader: Callable[[], Any]) -> Called:
    """Accepted, refused or traceback."""
    try:
        return Called("accepted", reader())
    except UserError as error:
        return Called("refused", None, str(error))
    except SystemExit as end:
        return Called("refused", None, f"exit {end.code}")
    except MemoryError:
        return Called("traceback", None, "MemoryError")
    except BaseException as error:  # panics of tokenizers are no `Exception`s
        # the text that `run_main` prints; None: an error of the program
        reason = why_refused(error) if isinstance(error, Exception) else None
        if reason is None:
            return Called("traceback", None, traceback.format_exc(limit=-6))
        return Called("refused", None, reason)


def _plain(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())

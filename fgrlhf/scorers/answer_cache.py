"""Answers of services in a file, so that nothing is asked twice."""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def content_hash(*facts: Any) -> str:
    """SHA-256 of JSON values: everything that an answer depends on."""
    text = json.dumps(facts, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class AnswerCache:
    """Answers in a file of JSON lines {"key": ..., NAME: answer}, which several processes share.

    The file only grows, by one line per answer. It has digests in place of the texts. A line that
    is not complete, because a process was killed while it wrote, is ignored.

    Args:
      name: the key of the answer in a line, such as "score".
      accepts: whether a JSON value is an answer; other lines are ignored.
    Attributes:
      answers: by key.
    """

    def __init__(self, path: str | Path, name: str, accepts: Callable[[Any], bool]):
        self.path = Path(path)
        self.answers: dict[str, Any] = {}
        self._name = name
        self._accepts = accepts
        self._read_bytes = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab"):
            pass  # an error now, not after the first query
        self.refresh()

    def refresh(self) -> None:
        """Read the lines that were added since the last call, also by other processes."""
        with open(self.path, "rb") as file:
            file.seek(self._read_bytes)
            added = file.read()
        complete = added[: added.rfind(b"\n") + 1]
        self._read_bytes += len(complete)
        for line in complete.split(b"\n"):
            self._read_line(line)

    def add(self, key: str, answer: Any) -> None:
        line = json.dumps({"key": key, self._name: answer}).encode("ascii") + b"\n"
        with open(self.path, "a+b") as file:
            with suppress(OSError):  # some network disks have no locks
                fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            if _ends_within_line(file):
                line = b"\n" + line
            file.write(line)
        self.answers[key] = answer

    def _read_line(self, line: bytes) -> None:
        """Keep the answer of a line, if it has one."""
        try:
            row = json.loads(line)
            key, answer = row["key"], row[self._name]
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if isinstance(key, str) and self._accepts(answer):
            self.answers[key] = answer


def _ends_within_line(file: Any) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"

"""Compares the files of two runs: bytes, except for parts that differ between any two runs."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The commit is excluded too: the code may be edited while the campaign runs.
TIMINGS = re.compile(r"(^|/)(time|seconds|peak_mb|resumed_at|resumed_with|runtime|git_commit)(/|$)")
LOCKS = re.compile(r"lock")  # a lock may stay; it contains a process id
PLACES = {"metrics.jsonl", "run.json", "stages.json", "pipeline.json"}


@dataclass(frozen=True)
class Difference:
    """Names of the files that differ from those of the uninterrupted run."""

    lost: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lost or self.stray or self.other)

    @property
    def verdict(self) -> str:
        """The worst kind of difference."""
        if self.other:
            return "other content"
        return "lost files" if self.lost else "stray files"

    def __str__(self) -> str:
        parts = []
        for kind, files in (("lost", self.lost), ("stray", self.stray), ("other", self.other)):
            if files:
                parts.append(f"{kind}: {', '.join(files[:5])}")
        return "; ".join(parts) or "equal"


def snapshot(folder: Path) -> dict[str, str]:
    """Relative path -> digest of every file below a folder.

    Empty folders count as files whose name ends in `/`.
    """
    taken = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                taken[name + "/"] = ""
        else:
            taken[name] = "" if LOCKS.search(path.name) else digest(path)
    return taken


def digest(path: Path) -> str:
    """Digest of a file; timings in logs are excluded."""
    content = path.read_bytes()
    if path.name in PLACES:
        try:
            text = content.decode("utf-8")
            lines = text.split("\n") if path.suffix == ".jsonl" else [text]
            rows = [_without_timings(json.loads(line)) for line in lines if line.strip()]
            content = json.dumps(rows).encode()
        except ValueError:
            pass  # damaged, so compare its bytes
    return hashlib.sha256(content).hexdigest()


def _without_timings(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_timings(item) for key, item in value.items() if not TIMINGS.search(key)
        }
    if isinstance(value, list):
        return [_without_timings(item) for item in value]
    return value


def compare(expected: dict[str, str], taken: dict[str, str]) -> Difference:
    """The files that are lost, stray or different in `taken`."""
    return Difference(
        lost=tuple(name for name in expected if name not in taken),
        stray=tuple(name for name in taken if name not in expected),
        other=tuple(name for name in expected if name in taken and taken[name] != expected[name]),
    )


def rows_in(path: Path) -> int:
    """Number of lines in a JSON-lines file; 0 if there is no file."""
    return path.read_bytes().count(b"\n") if path.exists() else 0

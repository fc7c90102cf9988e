"""Unpaired preferences: single responses, each judged good or bad."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fgrlhf.base.records import RowError
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.format import prompt_of, prompt_text, references_of, response_text
from fgrlhf.data.importers.files import read_objects
from fgrlhf.data.importers.report import Report
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt


@dataclass
class _Judged:
    """A prompt with its completions, which are not repeated, in the order of the file."""

    prompt: Prompt
    good: dict[str, None] = field(default_factory=dict)
    bad: dict[str, None] = field(default_factory=dict)


def unpaired(path: str | Path, report: Report) -> list[Comparison]:
    """Rows `{prompt, completion, label}`, as the trainer KTO of TRL reads, as comparisons.

    Every completion with `label: true` is better than every one of the same prompt with
    `label: false`. Prompts with completions of one kind give no comparison, and a completion that
    has both labels decides nothing. Documented in huggingface.co/docs/trl/dataset_formats.
    """

    def read(number: int, values: Mapping[str, Any], report: Report) -> tuple[Prompt, str, bool]:
        row = Row(values, {})
        text = prompt_text(row, "prompt")
        completion = response_text(row, "completion")
        label = row.get("label")
        if not isinstance(label, int) or label not in (0, 1):
            raise RowError("label", "must be true for a good completion or false for a bad one")
        return (
            prompt_of(row, number, text, references_of(row, "references")),
            completion,
            bool(label),
        )

    by_prompt: dict[str, _Judged] = {}
    for prompt, completion, is_good in read_objects(path, read, report):
        judged = by_prompt.setdefault(prompt.text, _Judged(prompt))
        if prompt.meta != judged.prompt.meta:
            report.losses["other keys of rows that are not the first of their prompt"] += 1
        completions = judged.good if is_good else judged.bad
        if completion in completions:
            report.losses["repeated rows"] += 1
        completions[completion] = None
    comparisons = [_comparison(judged, report) for judged in by_prompt.values()]
    return [comparison for comparison in comparisons if comparison is not None]


def _comparison(judged: _Judged, report: Report) -> Comparison | None:
    """The comparison of the completions of a prompt; None if no pair is decided."""
    both = judged.good.keys() & judged.bad.keys()
    if both:
        report.losses["completions with both labels"] += len(both)
    good = [text for text in judged.good if text not in both]
    bad = [text for text in judged.bad if text not in both]
    if not good or not bad:
        report.losses["completions of prompts without a good or without a bad one"] += len(
            good + bad
        )
        return None
    pairs = tuple((i, len(good) + k) for i in range(len(good)) for k in range(len(bad)))
    return Comparison(judged.prompt, tuple(Answer(text) for text in (*good, *bad)), pairs)

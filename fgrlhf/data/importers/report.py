"""What happened to every claim of a data set on its way in."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fgrlhf.data.locate import CODE_POINTS, FOUND, MARKED, Reading, locate
from fgrlhf.errors import shorten


@dataclass(frozen=True)
class Problem:
    """A part of a row that could not be imported.

    Args:
      row: its number, from 0.
    """

    row: int
    key: str
    reason: str

    def __str__(self) -> str:
        return f"row {self.row}, `{shorten(self.key, 80)}`: {self.reason}"


@dataclass
class Report:
    """Counts of an import, and everything that was lost.

    Args:
      rows: rows of the source that were read.
      spans: how the spans were found, with counts.
      losses: what the source states and the rows do not hold, with counts.
      problems: spans and texts that were dropped, one by one.
      malformed: rows without the structure of the format. They stop the import.
    """

    rows: int = 0
    spans: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    malformed: list[Problem] = field(default_factory=list)

    def locate(
        self,
        row: int,
        key: str,
        text: str,
        quote: str | None = None,
        start: int | None = None,
        end: int | None = None,
        readings: Sequence[Reading] = (CODE_POINTS,),
    ) -> tuple[int, int] | None:
        """`fgrlhf.data.locate.locate`, counted; a span that is not found becomes a problem."""
        located = locate(text, quote, start, end, readings)
        self.spans[located.outcome] += 1
        if located.span is None:
            self.problems.append(Problem(row, key, _why(located.how, quote, start, end, len(text))))
        return located.span

    def marked(self, row: int, key: str, problem: str | None) -> None:
        """Count a span that tags mark in the text, or report why the tags mark none."""
        self.spans[MARKED if problem is None else "broken tags"] += 1
        if problem is not None:
            self.problems.append(Problem(row, key, problem))

    def has_response(self, row: int, key: str, text: str) -> bool:
        """Whether a response can be judged; a blank one is dropped with its judgements."""
        if text.strip():
            return True
        self.drop(row, key, "the response is blank", "rows with a blank response")
        return False

    def drop(self, row: int, key: str, reason: str, what: str) -> None:
        """Report a part that is left out; `what` names its kind in the counts."""
        self.losses[what] += 1
        self.problems.append(Problem(row, key, reason))

    @property
    def dropped_spans(self) -> int:
        """The number of spans that were not found."""
        kept = sum(
            count for outcome, count in self.spans.items() if outcome.startswith(tuple(FOUND))
        )
        return self.spans.total() - kept

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "spans": dict(self.spans.most_common()),
            "dropped_spans": self.dropped_spans,
            "losses": dict(self.losses.most_common()),
            "problems": [vars(problem) for problem in self.problems],
        }

    def lines(self) -> list[str]:
        """The counts, for people."""
        lines = [f"spans, {outcome}: {count:,}" for outcome, count in self.spans.most_common()]
        return [*lines, *(f"lost, {what}: {n:,}" for what, n in self.losses.most_common())]


def _why(how: str, quote: str | None, start: int | None, end: int | None, length: int) -> str:
    claim = "the span"
    if quote is not None:
        claim = f"the quote {shorten(repr(quote), 80)}"
    if start is not None and end is not None:
        claim += f" at [{shorten(start, 20)}, {shorten(end, 20)})"
    return f"{claim} is {how}; the text has {length} characters"

"""The report of an import: how spans were found, and everything that was lost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fgrlhf.base.errors import shorten
from fgrlhf.base.records import Problem, shown
from fgrlhf.data.locate import CODE_POINTS, FOUND, MARKED, Reading, locate
from fgrlhf.data.offsets import cuts_grapheme

CUTS_A_CHARACTER = (
    "spans that begin or end inside a character of several code points: are they counted in another"
    " unit?"
)


@dataclass
class Report:
    """Counts of an import, and everything that was lost.

    Args:
      rows: rows of the source that were read.
      spans: how a span was found, or why not -> number of spans (fgrlhf/data/locate.py).
      losses: what the source states and the written rows do not hold -> how often.
      notes: how doubtful parts of the source were read -> how often.
      problems: spans and texts that were dropped, one by one.
      malformed: rows without the structure of the format. They stop the import.
    """

    rows: int = 0
    spans: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
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
        """Find a span, count the outcome, and report a span that is not found.

        Args:
          row, key: where the span is claimed, for the report.
          text, quote, start, end, readings: as in `fgrlhf.data.locate.locate`.

        Returns:
          [start, end) in code points of `text`; None if the span is not found.
        """
        located = locate(text, quote, start, end, readings)
        self.spans[located.outcome] += 1
        if located.span is None:
            self.problems.append(Problem(row, key, _why(located.how, quote, start, end, len(text))))
        return located.span

    def locate_by_unit(
        self, row: int, key: str, text: str, start: int, end: int, reading: Reading
    ) -> tuple[int, int] | None:
        """`locate` of a span without a quote. Spans that depend on the unit are counted apart.

        People mark whole characters, so a span that cuts one may be counted in another unit.
        """
        if reading.span(text, start, end) == (start, end):
            reading = CODE_POINTS
        span = self.locate(row, key, text, None, start, end, (reading,))
        if span is not None and cuts_grapheme(text, *span):
            self.notes[CUTS_A_CHARACTER] += 1
        return span

    def count_marked(self) -> None:
        """Count a span that tags mark inside the text."""
        self.spans[MARKED] += 1

    def drop_tags(self, row: int, key: str, reason: str) -> None:
        """Report tags inside the text that mark no span."""
        self.spans["broken tags"] += 1
        self.problems.append(Problem(row, key, reason))

    def has_response(self, row: int, key: str, text: str) -> bool:
        """Whether a response can be judged. A blank one is reported: drop its judgements."""
        if text.strip():
            return True
        self.drop(row, key, "the response is blank", "rows with a blank response")
        return False

    def drop(self, row: int, key: str, reason: str, what: str) -> None:
        """Report a part that is left out.

        Args:
          what: the name of such parts in `losses`, in the plural.
        """
        self.losses[what] += 1
        self.problems.append(Problem(row, key, reason))

    @property
    def dropped_spans(self) -> int:
        """The number of spans that were not found."""
        dropped = 0
        for outcome, count in self.spans.items():
            # the way to count offsets may follow: `exact offset (from 1)`
            if not outcome.startswith(FOUND):
                dropped += count
        return dropped

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "spans": dict(self.spans.most_common()),
            "dropped_spans": self.dropped_spans,
            "losses": dict(self.losses.most_common()),
            "notes": dict(self.notes.most_common()),
            "problems": [
                {"row": problem.row, "key": problem.key, "reason": problem.reason}
                for problem in self.problems
            ],
        }

    def lines(self) -> list[str]:
        """The counts as lines to print."""
        spans = [f"spans, {outcome}: {count:,}" for outcome, count in self.spans.most_common()]
        losses = [f"lost, {what}: {count:,}" for what, count in self.losses.most_common()]
        notes = [f"note, {what}: {count:,}" for what, count in self.notes.most_common()]
        return spans + losses + notes


def _why(how: str, quote: str | None, start: int | None, end: int | None, length: int) -> str:
    """The reason for dropping a span that was claimed in a text of this length."""
    claim = "the span"
    if quote is not None:
        claim = f"the quote {shorten(repr(quote), 80)}"
    if start is not None and end is not None:
        claim += f" at [{shown(start)}, {shown(end)})"
    return f"{claim} is {how}; the text has {length} characters"

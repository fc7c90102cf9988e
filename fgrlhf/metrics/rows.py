"""A row of an evaluation; reads `rows.jsonl` and `summary.json`, and refuses damaged ones."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, model_validator

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import numbered_jsonl
from fgrlhf.base.records import (
    ABSENT,
    Number,
    Problem,
    Record,
    RowError,
    complaints,
    not_a,
    read,
    read_each,
    read_record,
    refuse_rows,
)
from fgrlhf.metrics.pooled import CORPUS_LEVEL

ROWS = "rows.jsonl"
SUMMARY = "summary.json"
USE = "read as the results of an evaluation"


def _id(value: Any) -> str | int:
    if not isinstance(value, str | int):
        raise ValueError(not_a(str, value))
    return value


class ScoredRow(Record, extra="allow"):
    """A row of an evaluation. Its other keys are its metrics, or columns of the task."""

    id: Annotated[Any, AfterValidator(_id)]
    sample: int = ABSENT

    @model_validator(mode="after")
    def _counts_are_lists(self):
        for name, value in (self.model_extra or {}).items():
            if is_pooled(name) and complaints(list[Number], value):
                raise RowError(name, "must be a list of numbers")
        return self


def is_pooled(name: str) -> bool:
    """Whether a column has the counts of a corpus-level metric."""
    return name.rpartition("/")[2] in CORPUS_LEVEL


class ScoredText(ScoredRow):
    """A row that may have its prompt and its response."""

    prompt: str = ABSENT
    response: str = ABSENT


class Segment(Record, extra="allow"):
    """A judged span, in characters of the response; `end` is None for the whole response."""

    start: int
    end: int | None
    value: float
    label: str = ""
    std: float | None = None  # of an ensemble's members

    @property
    def judgement(self) -> str:
        """The label, with the disagreement of an ensemble."""
        return self.label if self.std is None else f"{self.label} ± {self.std:.3g}".strip()


# by reward; None if the reward does not apply to the response
Segments = dict[str, list[Segment] | None]


class EvaluationRow(ScoredRow):
    """A response with its scores.

    Columns of rewards and metrics are further fields: `reward/<name>`, `length` (in words),
    `rougeLsum` (0-100, if there are references), `kl`, and those of the metrics. None means "not
    applicable".

    Attributes:
      cluster: of the prompt, if it has one.
      sample: the number of the response among those to its prompt.
      reward: the sum over the rewards; one that does not apply to the response adds 0.
      segments: what each reward judged; a reward that does not apply is missing.
    """

    cluster: str | None = None
    prompt: str
    response: str
    references: list[str] = []
    reward: float | None = None
    segments: Segments = {}

    def as_json(self) -> dict[str, Any]:
        """The row of the file: the fields that were set, in their order, then the columns."""
        return self.model_dump(exclude_unset=True)

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics of the response."""
        metrics = {}
        for name, value in self:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and name not in ("id", "sample"):
                metrics[name] = value
        return metrics

    @property
    def counts(self) -> dict[str, list[float]]:
        """The counts for corpus-level metrics."""
        counts = {}
        for name, value in (self.model_extra or {}).items():
            if is_pooled(name):
                counts[name] = value
        return counts


class MetricInterval(Record, extra="allow"):
    """A mean with its interval; the bounds are null if there is none."""

    mean: Number
    low: Number | None = None
    high: Number | None = None

    @model_validator(mode="after")
    def _has_both_bounds(self):
        if (self.low is None) != (self.high is None):
            raise RowError("", "`low` and `high` must both be numbers, or both null")
        return self


Row = TypeVar("Row", bound=ScoredRow)


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of an evaluation: an object with an id for each response, with its metrics.

    Raises:
      UserError: the file is missing, has no rows, or has a row that no evaluation writes. The
        message names file, line and key.
    """
    lines = numbered_jsonl(path)
    _records(path, lines, ScoredText)
    return [row for _, row in lines]


def read_records(path: str | Path, kind: type[Row]) -> list[Row]:
    """As `read_rows`, as records of a kind."""
    return _records(path, numbered_jsonl(path), kind)


def read_summary(path: str | Path) -> dict[str, dict[str, float | None]]:
    """The summary of an evaluation: {metric: {mean, low, high}}.

    Raises:
      UserError: the file is missing, or is not such a summary. The message names it.
    """
    summary = read_record(path, dict[str, MetricInterval], USE, _way_out(path))
    if not summary:
        raise UserError(f"{path} has no metrics. {_way_out(path)}")
    return {name: interval.model_dump() for name, interval in summary.items()}


def _records(path: str | Path, lines: Sequence[tuple[int, Any]], kind: type[Row]) -> list[Row]:
    if not lines:
        raise UserError(f"{path} has no rows. {_way_out(path)}")
    rows, problems = read_each(lines, lambda _, row: read(kind, row), path, place="line")
    if not problems:
        for number, key, reason in _contradictions(lines):
            problems.append(Problem(number, key, reason, str(path), "line"))
    refuse_rows(problems, USE, _way_out(path))
    return rows


def _contradictions(
    lines: Sequence[tuple[int, Mapping[str, Any]]],
) -> Iterator[tuple[int, str, str]]:
    """Responses that are there twice, and values of a numeric column that are no numbers."""
    seen: dict[tuple, int] = {}
    numeric: dict[str, int] = {}  # column -> the first line in which it is a number
    for number, row in lines:
        response = (row["id"], row.get("sample", number))
        if response in seen:
            yield number, "id", f"the same id and sample as line {seen[response]}"
        seen[response] = number
        for name, value in row.items():
            if _is_number(value):
                numeric.setdefault(name, number)
    for number, row in lines:
        for name in sorted(numeric.keys() & row.keys() - {"id"}):
            if row[name] is not None and not _is_number(row[name]):
                yield number, name, f"{not_a(float, row[name])}; line {numeric[name]} has one"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _way_out(path: str | Path) -> str:
    folder = Path(path).parent
    return (
        f"The evaluation is damaged: remove {folder} and run the command that evaluated the policy"
        " again"
    )

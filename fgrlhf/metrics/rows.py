"""A row of an evaluation; reads `rows.jsonl` and `summary.json`, and refuses damaged ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import numbered_jsonl, read_json
from fgrlhf.metrics.pooled import CORPUS_LEVEL

ROWS = "rows.jsonl"
SUMMARY = "summary.json"
TEXTS = ("prompt", "response")


class Record(BaseModel):
    """A record of a file that a stage has written. Additional keys are allowed."""

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=(), frozen=True
    )


class Segment(Record):
    """A judged span, in characters of the response; `end` is None for the whole response."""

    start: int
    end: int | None
    value: float
    label: str = ""


# by reward; None if the reward does not apply to the response
Segments = dict[str, list[Segment] | None]


class EvaluationRow(Record):
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

    id: str | int
    cluster: str | None = None
    sample: int = 0
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
            if is_number and name != "id":
                metrics[name] = value
        return metrics

    @property
    def counts(self) -> dict[str, list[float]]:
        """The counts for corpus-level metrics."""
        counts = {}
        for name, value in (self.model_extra or {}).items():
            if name.rpartition("/")[2] in CORPUS_LEVEL:
                counts[name] = value
        return counts


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of an evaluation: an object with an id for each response, with its metrics.

    Raises:
      UserError: the file is missing, has no rows, or has a row that no evaluation writes. The
        message names file and line.
    """
    rows = []
    seen: dict[tuple, int] = {}
    numeric: dict[str, int] = {}  # column -> the first line in which it is a number
    lines = []
    for number, row in numbered_jsonl(path):
        problem = _problem(row)
        if problem is not None:
            raise _damaged(path, number, problem)
        response = (row["id"], row.get("sample", number))
        if response in seen:
            problem = f"the same id and sample as line {seen[response]}"
            raise _damaged(path, number, problem)
        seen[response] = number
        for name, value in row.items():
            if _is_number(value):
                numeric.setdefault(name, number)
        rows.append(row)
        lines.append(number)
    if not rows:
        raise UserError(f"{path} has no rows. {_way_out(path)}")
    for number, row in zip(lines, rows):
        for name in numeric.keys() & row.keys() - {"id"}:
            if row[name] is not None and not _is_number(row[name]):
                problem = f"`{name}` is not a number, as in line {numeric[name]}"
                raise _damaged(path, number, problem)
    return rows


def read_summary(path: str | Path) -> dict[str, dict[str, float | None]]:
    """The summary of an evaluation: {metric: {mean, low, high}}.

    Raises:
      UserError: the file is missing, or is not such a summary. The message names it.
    """
    summary = read_json(path)
    is_valid = isinstance(summary, dict) and bool(summary)
    if not is_valid or not all(map(_is_interval, summary.values())):
        raise UserError(f"{path} is not the summary of an evaluation. {_way_out(path)}")
    return summary


def _problem(row: Any) -> str | None:
    """Why a row cannot be from an evaluation; None if it can."""
    if not isinstance(row, Mapping):
        return f"not an object, but {shorten(row, 60)}"
    if "id" not in row:
        return "`id` is missing"
    if not isinstance(row["id"], str | int):
        return f"`id` is {shorten(row['id'], 60)}, not text"
    for name in TEXTS:
        if name in row and not isinstance(row[name], str):
            return f"`{name}` is {shorten(row[name], 60)}, not text"
    for name, value in row.items():
        if name.rpartition("/")[2] in CORPUS_LEVEL and not _is_list_of_numbers(value):
            return f"`{name}` is not a list of numbers"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_interval(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    bounds = [value.get("low"), value.get("high")]  # null if there is no interval
    return _is_number(value.get("mean")) and (
        bounds == [None, None] or all(map(_is_number, bounds))
    )


def _damaged(path: str | Path, line: int, problem: str) -> UserError:
    return UserError(f"{path}, line {line}: {problem}. {_way_out(path)}")


def _way_out(path: str | Path) -> str:
    folder = Path(path).parent
    return (
        f"The evaluation is damaged: remove {folder} and run the command that evaluated the policy"
        " again"
    )

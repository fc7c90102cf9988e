"""The files that a report reads, as validated records. Additional keys are allowed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import NonNegativeInt

from fgrlhf.base import records
from fgrlhf.metrics.rows import EvaluationRow, Segments
from fgrlhf.metrics.rows import read_records as read_evaluation_rows

Kind = TypeVar("Kind")
DAMAGED = "The file is damaged: delete it, or run its stage again"


class Record(records.Record, extra="allow"):
    """A record that may have more keys than the report shows."""


class ReplyRow(Record):
    """What an environment said after a number of the policy's tokens."""

    after: NonNegativeInt
    role: str
    text: str


class Rollout(Record):
    """A row of `samples/step-*.jsonl`: a rollout with its token rewards."""

    prompt: str
    response: str
    tokens: list[str]
    rewards: dict[str, list[float]]
    segments: Segments
    reward: float
    kl: list[float] | None = None
    values: list[float] | None = None
    advantages: list[float] | None = None
    replies: list[ReplyRow] = []


class MetricsLine(Record):
    """A line of an RL run's `metrics.jsonl`."""

    step: NonNegativeInt
    episodes: float = 0
    __pydantic_extra__: dict[str, float | None]


def episodes_per_step(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """The responses that each step of a run trains on; None if its log does not count them (SFT).

    DPO logs its episodes as whole numbers, although a step need not train on a whole number of
    them. The rounding matters the least in the last line, so the number is computed from that one.

    Args:
      lines: of metrics.jsonl, in the order of the file.
    """
    for line in reversed(lines):
        if "episodes" in line:
            return line["episodes"] / (line["step"] + 1)
    return None


class RunInfo(Record):
    """A run's `run.json`.

    Attributes:
      models: folder of a pretrained model -> where its weights come from.
    """

    command: str | None = None
    git_commit: str | None = None
    versions: dict[str, str] = {}
    task: str | None = None
    seed: Any = None
    models: dict[str, str] = {}


class CalibrationBin(Record):
    predicted: float
    observed: float
    count: int


class RecordedInterval(Record):
    """A mean with its 95% interval; the bounds are None if there is none, as of one prompt."""

    mean: float | None
    low: float | None
    high: float | None


class BaselineMetrics(Record):
    """A linear baseline of a reward model, on the same dev rows.

    Attributes:
      difference: the model's accuracy minus the baseline's.
    """

    accuracy: float | None = None
    auc: float | None = None
    difference: RecordedInterval | None = None


class RewardModelMetrics(Record):
    """A reward model's `metrics.json`."""

    accuracy: float | None = None
    auc: float | None = None
    error_f1: float | None = None
    ok_f1: float | None = None
    all_error_accuracy: float | None = None
    all_ok_accuracy: float | None = None
    first_accuracy: float | None = None
    calibration: list[CalibrationBin] | None = None
    baselines: dict[str, BaselineMetrics] | None = None
    intervals: dict[str, RecordedInterval] = {}
    reasons: dict[str, str] = {}
    notes: list[str] = []


class ErrorGroup(Record):
    """The accuracy of a reward model on a group of its dev cases."""

    name: str
    cases: int
    accuracy: RecordedInterval


class RewardModelErrors(Record):
    """A reward model's `errors.json`."""

    by_label: list[ErrorGroup] = []
    by_length: list[ErrorGroup] = []
    by_place: list[ErrorGroup] = []
    by_turns: list[ErrorGroup] = []


class RewardModel(Record):
    """A `reward_model.json`, with what is in `metrics.json` and `errors.json` beside it."""

    kind: str | None = None
    shape: str | None = None
    level: str | None = None
    labels: list[str] | None = None
    with_context: bool | None = None
    segmenter: dict[str, Any] | None = None
    mean: float | None = None
    std: float | None = None
    metrics: RewardModelMetrics | None = None
    errors: RewardModelErrors = RewardModelErrors()


class StageCost(Record):
    """A stage's entry in `stages.json`."""

    seconds: float
    peak_mb: float


class Gain(Record):
    """A paired difference with its 95% interval; the bounds are None if there is none."""

    mean: float
    low: float | None
    high: float | None


class Target(Record):
    """A figure that a pipeline must reach, such as `at least 0.85`."""

    name: str
    value: float
    target: str
    reached: bool


class Summary(Record):
    """A pipeline's `summary.json`.

    Attributes:
      targets: the figures that the pipeline checks; none if it has no targets.
      split: of the evaluations that it summarises.
      evaluations: name -> SHA-256 of its rows; None: without a summary.
    """

    split: str | None = None
    evaluations: dict[str, str] | None = None
    policies: dict[str, dict[str, RecordedInterval | dict[str, RecordedInterval]]] | None = None
    gains: dict[str, dict[str, Gain]] | None = None
    reward_models: dict[str, dict[str, float | None] | None] | None = None
    reward_models_on: str | None = None  # "truth": measured against the true labels
    stages: dict[str, StageCost] | None = None
    versions: dict[str, str] | None = None
    task: str | None = None
    seed: Any = None
    scale: Any = None
    data: Any = None
    targets: list[Target] = []


def read_record(path: Path, kind: type[Kind]) -> Kind:
    """A JSON file as a record of this kind; an empty record if there is no file.

    Raises:
      UserError: the file is broken, or is not such a record. The message names the location.
    """
    if not path.exists():
        return records.read(kind, {})
    return records.read_record(path, kind, "reported", DAMAGED)


def read_records(path: Path, kind: type[Kind]) -> list[Kind]:
    """The rows of a JSONL file as records. Raises `UserError` as `read_record` does."""
    return records.read_records(path, kind, "reported", DAMAGED)


def read_evaluation(path: Path) -> list[EvaluationRow]:
    """The rows of an evaluation. Raises `UserError` as `read_record` does, or if it has none."""
    return read_evaluation_rows(path, EvaluationRow)

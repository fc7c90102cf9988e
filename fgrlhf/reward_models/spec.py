"""`reward_model.json`, the description of a reward model in its folder.

Reading it checks every field, since a model folder may come from anywhere.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from fgrlhf.base.errors import UserError, first_problems, shorten
from fgrlhf.base.files import read_json, write_json
from fgrlhf.reward_utils import (
    DIVIDED_LEVELS,
    LEVEL_HELP,
    PUBLISHED,
    is_level,
    is_segmenter_name,
    load_segmenter,
    segmenter_input,
)

Shape = Literal["encoder", "seq2seq", "causal"]  # fgrlhf/reward_models/rm_input.py
Kind = Literal["segment", "sequence"]

SPEC_FILE = "reward_model.json"
NOT_ERRORS = ("O", "Ignore")  # labels that do not mark an error
MOST_TOKENS = 2**20  # longer than any network reads
REQUIRED = ("kind", "shape", "level", "with_context", "max_length")
OLD_NAMES = {"with_passages": "with_context"}  # a task's word: the key of earlier releases


@dataclass(frozen=True)
class RewardModelSpec:
    """Description of a reward model: `reward_model.json` in the model's folder.

    Attributes:
      kind: "segment" (a label per segment) or "sequence" (one score per response).
      shape: "encoder", "seq2seq" or "causal", see fgrlhf/reward_models/rm_input.py.
      level: of the segments that are judged; "sequence" for a sequence scorer.
      with_context: whether the prefix includes the prompt's context.
      max_length: most tokens that the network reads.
      labels: names of the network's outputs, in order (segment).
      error_label: the label of a segment with an error. None if the model distinguishes several
        kinds of error: then all labels except `ok_label` are errors.
      ok_label: the label of a segment without an error.
      segmenter: name and version of the segmenter that split the training responses; None: the
        published one, as in folders of earlier releases and in published ones.
      mean, std: of a sequence scorer's raw scores over its training data.
      line_breaks: whether the network reads prompts and responses with their line breaks and
        indentation, or as words joined by single spaces, as in folders of earlier releases and
        published ones.
      metrics: on its dev data at the end of training.

    Raises:
      UserError: the labels are inconsistent, or mean and std are missing.
    """

    kind: Kind
    shape: Shape
    level: str
    with_context: bool
    max_length: int
    labels: tuple[str, ...] = ()
    error_label: str | None = None
    ok_label: str | None = None
    segmenter: Mapping[str, str] | None = None
    mean: float | None = None
    std: float | None = None
    line_breaks: bool = False
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.kind == "segment":
            self._check_labels()
        else:
            self._check_moments()

    def _check_labels(self) -> None:
        # a model with more than two labels may distinguish several errors, so none is the label
        may_lack_error_label = self.error_label is None and len(self.labels) > 2
        needed = [self.ok_label] if may_lack_error_label else [self.error_label, self.ok_label]
        absent = [str(name) for name in needed if name not in self.labels]
        if absent:
            raise UserError(
                f"the reward model has the labels {', '.join(self.labels)}, not"
                f" {', '.join(absent)}: give its error label with error_label=..."
            )
        if self.error_label == self.ok_label:
            raise UserError(
                "the error label and the label of segments without the error are both"
                f" `{self.ok_label}`: name the error with error_label=..."
            )

    def _check_moments(self) -> None:
        mean_is_number = is_finite_number(self.mean)
        std_is_positive = is_finite_number(self.std) and self.std is not None and self.std > 0
        if not (mean_is_number and std_is_positive):
            raise UserError(
                f"a sequence scorer needs the mean and std of its scores (here {self.mean} and"
                f" {self.std}): give a finite mean=... and a finite std=... above 0 with the"
                " checkpoint"
            )

    @property
    def judged_labels(self) -> tuple[str, ...]:
        """The labels that are compared: error labels, then `ok_label`; () for a sequence scorer."""
        if self.ok_label is None:
            return ()
        if self.error_label is not None:
            return (self.error_label, self.ok_label)
        errors = [name for name in self.labels if name not in (*NOT_ERRORS, self.ok_label)]
        return (*errors, self.ok_label)

    def save(self, folder: str | Path) -> None:
        write_json(Path(folder) / SPEC_FILE, asdict(self))

    @classmethod
    def read(cls, folder: str | Path) -> "RewardModelSpec":
        """Read the file. Raises `UserError`, which lists every mistake, if it is not valid."""
        path = Path(folder) / SPEC_FILE
        row = with_current_names(read_json(path))
        problems = spec_problems(row)
        if problems:
            head = f"{path} does not describe a reward model:"
            lines = "\n  ".join([head, *first_problems(problems)])
            raise UserError(f"{lines}\nTrain the model again, or restore the file")
        return cls(**{**row, "labels": tuple(row.get("labels", ()))})


def with_current_names(row: Any) -> Any:
    """The JSON value of a spec, with the keys of earlier releases replaced by the current ones."""
    if not isinstance(row, dict):
        return row
    renamed = {OLD_NAMES.get(key, key): value for key, value in row.items()}
    return renamed if len(renamed) == len(row) else row


def spec_problems(row: Any) -> list[str]:
    """Every mistake in the JSON value of a spec, as `key: reason`; [] if it is valid."""
    if not isinstance(row, dict):
        return [f"it must be a JSON object, it is a {type(row).__name__}"]
    problems = [f"{shorten(key, 60)}: unknown key" for key in row if key not in _CHECKS]
    problems += [f"{key}: missing" for key in REQUIRED if key not in row]
    for key, check in _CHECKS.items():
        if key not in row:
            continue
        reason = check(row[key])
        if reason is not None:
            problems.append(f"{key}: {reason} (it is {shorten(repr(row[key]), 80)})")
    return problems or _contradictions(row)


def described_segmenter(facts: Mapping[str, Any]) -> dict[str, str] | None:
    """The segmenter of a folder without reward_model.json; None if its segments need none.

    Args:
      facts: its level and, if it is not the published one, its segmenter.
    """
    if facts["level"] not in DIVIDED_LEVELS:
        return None
    return load_segmenter(facts.get("segmenter", PUBLISHED)).describe()


def segmenters_of(
    folder: str, level: str | None = None, name: str | None = None
) -> tuple[str, ...]:
    """The segmenter of a segment reward model as an input; () if its segments need none.

    Args:
      level, name: for a folder without reward_model.json.
    """
    if (Path(folder) / SPEC_FILE).exists():
        try:
            spec = RewardModelSpec.read(folder)
        except UserError:  # which loading the model shows
            return ()
        level, name = spec.level, (spec.segmenter or {}).get("name")
    return (segmenter_input(name or PUBLISHED),) if level in DIVIDED_LEVELS else ()


def is_finite_number(value: Any) -> bool:
    """Whether a JSON value is a number other than NaN and infinity; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def _contradictions(row: Mapping[str, Any]) -> list[str]:
    """Fields that are valid individually but not together."""
    if row["kind"] == "segment":
        return [shorten(problem) for problem in _label_problems(row)]
    problems = []
    for key in ("mean", "std"):
        if row.get(key) is None:
            problems.append(f"{key}: missing, and a sequence scorer needs it")
    if row["level"] != "sequence":
        problems.append(f"level: a sequence scorer has the level sequence, not {row['level']}")
    return problems


def _label_problems(row: Mapping[str, Any]) -> list[str]:
    labels = row.get("labels", [])
    error = row.get("error_label")
    ok = row.get("ok_label")
    may_lack_error_label = error is None and len(labels) > 2  # as in `RewardModelSpec`
    problems = []
    if error not in labels and not may_lack_error_label:
        problems.append(f"error_label: {error} is not among the labels")
    if ok not in labels:
        problems.append(f"ok_label: {ok} is not among the labels")
    if not problems and error == ok:
        problems.append(f"error_label, ok_label: both are {ok}")
    return problems


def _among(choices: tuple[str, ...]) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if isinstance(value, str) and value in choices:
            return None
        return f"must be one of {', '.join(choices)}"

    return check


def _level(value: Any) -> str | None:
    if value == "token":
        return "a reward model reads words, so it cannot judge the policy's tokens"
    return None if is_level(value) or value == "sequence" else LEVEL_HELP


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _length(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_TOKENS:
        return None
    return f"must be a whole number of tokens from 1 to {MOST_TOKENS}"


def _labels(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        return "must be a list of names"
    return None if len(set(value)) == len(value) else "has a name twice"


def _name(value: Any) -> str | None:
    return None if value is None or isinstance(value, str) else "must be a label's name"


def _segmenter(value: Any) -> str | None:
    if value is None:
        return None
    texts = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    if not texts or value.keys() != {"name", "version"}:
        return "must name a segmenter by the texts `name` and `version`"
    return None if is_segmenter_name(value["name"]) else "does not name a segmenter"


def _mean(value: Any) -> str | None:
    return None if value is None or is_finite_number(value) else "must be a finite number"


def _std(value: Any) -> str | None:
    if value is None or (is_finite_number(value) and value > 0):
        return None
    return "must be a finite number above 0"


def _metrics(value: Any) -> str | None:
    return None if isinstance(value, dict) else "must be a mapping"


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "kind": _among(get_args(Kind)),
    "shape": _among(get_args(Shape)),
    "level": _level,
    "with_context": _flag,
    "max_length": _length,
    "labels": _labels,
    "error_label": _name,
    "ok_label": _name,
    "segmenter": _segmenter,
    "mean": _mean,
    "std": _std,
    "line_breaks": _flag,
    "metrics": _metrics,
}

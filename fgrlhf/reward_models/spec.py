"""`reward_model.json`, the description of a reward model in its folder.

Reading it checks every field, since a model folder may come from anywhere.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.base.records import DataError, Listed, Problem, Record, RowError, read
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


class SpecError(UserError):
    """Values of a spec that are valid, but not together. `key` is one of them."""

    def __init__(self, key: str, reason: str):
        self.key = key
        super().__init__(reason)


def _level(value: str) -> str:
    if value == "token":
        raise ValueError("a reward model reads words, so it cannot judge the policy's tokens")
    if value != "sequence" and not is_level(value):
        raise ValueError(LEVEL_HELP)
    return value


def _different(labels: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(labels)) < len(labels):
        raise ValueError("has a name twice")
    return labels


class Segmenter(Record, extra="forbid"):
    """The name and the version of a segmenter."""

    name: str
    version: str


def _segmenter(value: Any) -> dict[str, str]:
    segmenter = read(Segmenter, value)
    if not is_segmenter_name(segmenter.name):
        raise RowError("name", "names no segmenter of the library or of the task")
    return value


Label = Annotated[str, Field(min_length=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


# infinite numbers have a message of their own, below
@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
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
        published one, as in published folders.
      temperature: divides the logits, so that probabilities fit the dev data.
      error_threshold: the probability of an error above which as many dev segments have one as
        truly do.
      mean, std: of a sequence scorer's raw scores over its training data.
      member_means, member_stds: the same of each head's, if it has several.
      line_breaks: whether the network reads prompts and responses with their line breaks and
        indentation, or as words joined by single spaces, as in published folders.
      metrics: on its dev data at the end of training.

    Raises:
      UserError: the labels are inconsistent, or mean and std are missing.
    """

    kind: Kind
    shape: Shape
    level: Annotated[str, AfterValidator(_level)]
    with_context: bool
    max_length: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    labels: Annotated[Listed[Label], AfterValidator(_different)] = ()
    error_label: str | None = None
    ok_label: str | None = None
    segmenter: Annotated[dict[str, str], AfterValidator(_segmenter)] | None = None
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    error_threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    mean: float | None = None
    std: float | None = None
    member_means: Listed[Finite] = ()
    member_stds: Listed[Finite] = ()
    line_breaks: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)

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
            key = "error_label" if str(self.error_label) in absent else "ok_label"
            raise SpecError(
                key,
                f"the reward model has the labels {', '.join(self.labels)}, not"
                f" {', '.join(absent)}: give its error label with error_label=...",
            )
        if self.error_label == self.ok_label:
            raise SpecError(
                "ok_label",
                "the error label and the label of segments without the error are both"
                f" `{self.ok_label}`: name the error with error_label=...",
            )

    def _check_moments(self) -> None:
        mean, std = (math.nan if value is None else value for value in (self.mean, self.std))
        if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
            raise SpecError(
                "std" if math.isfinite(mean) else "mean",
                f"a sequence scorer needs the mean and std of its scores (here {self.mean} and"
                f" {self.std}): give a finite mean=... and a finite std=... above 0 with the"
                " checkpoint",
            )
        if self.level != "sequence":
            raise SpecError(
                "level", f"a sequence scorer has the level sequence, not level={self.level}"
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
        try:
            return read(cls, read_json(path))
        except RowError as error:
            problems = [Problem(None, *complaint, str(path)) for complaint in error.complaints]
        except SpecError as error:
            problems = [Problem(None, error.key, str(error), str(path))]
        way_out = "Train the model again, or restore the file"
        raise DataError(problems, "used as a reward model", way_out)


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

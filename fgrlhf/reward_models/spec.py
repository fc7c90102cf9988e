"""Checks every field of `reward_model.json`, since a model folder may come from anywhere."""

import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

from fgrlhf.errors import shorten
from fgrlhf.reward_models.rm_input import Kind, Shape
from fgrlhf.reward_utils import LEVEL_HELP, is_level, is_pipeline_name

MOST_TOKENS = 2**20  # longer than any network reads
REQUIRED = ("kind", "shape", "level", "with_context", "max_length")
OLD_NAMES = {"with_passages": "with_context"}  # a task's word: the key of earlier releases


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


def is_finite_number(value: Any) -> bool:
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
    problems = []
    if not (error in labels or (error is None and len(labels) > 2)):
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
    return None if is_pipeline_name(value["name"]) else "does not name a spaCy pipeline"


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
    "metrics": _metrics,
}

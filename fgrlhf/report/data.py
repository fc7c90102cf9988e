"""What a report is made of: everything found in an outputs folder, whatever stages have run so
far.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from fgrlhf.errors import UserError, shorten
from fgrlhf.files import read_json, read_jsonl

SAMPLES_SHOWN = 4  # prompts of a training step, one rollout of each
QUESTIONS_SHOWN = 5  # evaluation questions, the first ones of the set
SOURCES = {  # section of the report -> the files it is made from
    "results": "summary.json or eval/*/summary.json (training/evaluate.sh makes them)",
    "curves": "metrics.jsonl of an RL run (training/train_finegrained.sh, train_baseline.sh)",
    "models": "reward_model.json of a reward model (reward_modeling/train_*_rm.sh)",
    "answers": "eval/*/rows.jsonl (training/evaluate.sh)",
    "rollouts": "samples/step-*.jsonl of an RL run",
    "stages": "stages.json (`make demo`)",
}


# ---- what a file must hold, as far as the report reads it; more is welcome -----------------------


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class _Segment(_Part):
    start: int
    end: int | None
    value: float
    label: str = ""


class _Sample(_Part):
    prompt: str
    response: str
    tokens: list[str]
    rewards: dict[str, list[float]]
    segments: dict[str, list[_Segment]]
    reward: float
    kl: list[float] | None = None
    values: list[float] | None = None
    advantages: list[float] | None = None


class _Answer(_Part):
    id: str | int
    prompt: str
    response: str
    references: list[str] = []
    segments: dict[str, list[_Segment]] = {}


class _MetricsLine(_Part):
    step: NonNegativeInt
    episodes: float = 0
    __pydantic_extra__: dict[str, float | None]


class _Info(_Part):
    command: str | None = None
    git_commit: str | None = None
    versions: dict[str, str] = {}


class _Bin(_Part):
    predicted: float
    observed: float
    count: int


class _Measured(_Part):
    accuracy: float | None = None
    auc: float | None = None
    error_f1: float | None = None
    ok_f1: float | None = None
    all_error_accuracy: float | None = None
    all_ok_accuracy: float | None = None
    first_accuracy: float | None = None
    calibration: list[_Bin] | None = None


class _RewardModel(_Part):
    kind: str | None = None
    shape: str | None = None
    level: str | None = None
    labels: list[str] | None = None
    with_passages: bool | None = None
    segmenter: dict[str, Any] | None = None
    mean: float | None = None
    std: float | None = None
    metrics: _Measured | None = None


class _Stage(_Part):
    seconds: float
    peak_mb: float


class _Interval(_Part):
    mean: float | None
    low: float | None
    high: float | None


class _SureInterval(_Part):
    mean: float
    low: float
    high: float


class _Summary(_Part):
    policies: dict[str, dict[str, _Interval | dict[str, _Interval]]] | None = None
    gains: dict[str, dict[str, _SureInterval]] | None = None
    reward_models: dict[str, dict[str, float | None] | None] | None = None
    stages: dict[str, _Stage] | None = None
    versions: dict[str, str] | None = None


def _checked(path: Path, value: Any, kind: Any) -> Any:
    """`value`, which was read from `path`. Raises `UserError` naming the place at which it is not
    what the file must hold.
    """
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = [str(part) for part in first["loc"] if isinstance(part, int | str)]
        row = f", row {int(place.pop(0)) + 1}" if isinstance(value, list) and place else ""
        where = f" `{shorten('.'.join(place))}`:" if place else ""
        raise UserError(
            f"{path}{row}:{where} {first['msg'][:1].lower()}{first['msg'][1:]}. The file is"
            " damaged: delete it, or run its stage again"
        ) from None
    return value


@dataclass(frozen=True)
class Run:
    """One RL run: its metrics lines, the samples of its first and last logged step, its
    run.json.
    """

    name: str
    metrics: list[dict]
    samples: dict[int, list[dict]]
    info: dict

    def series(self, key: str) -> tuple[list[float], list[float | None]]:
        """x (episodes so far) and y of a metric, over the lines that have it."""
        per_step = self.episodes_per_step
        rows = [row for row in self.metrics if key in row]
        return [row["step"] * per_step for row in rows], [row[key] for row in rows]

    @property
    def episodes_per_step(self) -> float:
        ends = [row["episodes"] / (row["step"] + 1) for row in self.metrics if "episodes" in row]
        return ends[0] if ends else 1

    @property
    def keys(self) -> list[str]:
        """Names of everything logged, in the order it first appeared."""
        return list(dict.fromkeys(key for row in self.metrics for key in row))


@dataclass(frozen=True)
class Outputs:
    """Everything found. `missing` says, a line each, what was not found and what would make it."""

    folder: Path
    summary: dict
    runs: list[Run]
    reward_models: dict[
        str, dict
    ]  # folder name -> reward_model.json, its `metrics` joined with metrics.json
    evaluations: dict[str, list[dict]]  # policy name -> rows of the split shown
    split: str
    stages: dict[str, dict]
    missing: dict[str, str]  # section -> line, empty where the section has something to show


def read_outputs(folder: str | Path) -> Outputs:
    """Read an outputs folder, or the folder of a single RL run.

    Raises:
      UserError: the folder does not exist or holds nothing a report could show; or a file in it is
        broken.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder: give the folder the stages wrote to (OUTPUT_DIR)"
        )
    summary = _read(folder / "summary.json", _Summary)
    runs = _runs(folder)
    models = [path.parent for path in sorted(folder.glob("*/reward_model.json"))]
    reward_models = {path.name: _reward_model(path) for path in models}
    evaluations, split = _evaluations(folder)
    stages = summary.get("stages") or _stages(folder)
    if not summary.get("policies"):
        summary = {**summary, "policies": _policies(folder, split)}
    found = {
        "results": summary["policies"],
        "curves": runs,
        "models": reward_models,
        "answers": evaluations,
        "rollouts": any(run.samples for run in runs),
        "stages": stages,
    }
    if not any(found.values()):
        raise UserError(
            f"{folder} holds nothing to report on; looked for {'; '.join(SOURCES.values())}"
        )
    missing = {name: "" if found[name] else source for name, source in SOURCES.items()}
    return Outputs(folder, summary, runs, reward_models, evaluations, split, stages, missing)


def aspect_name(name: str) -> str:
    """What a config calls `relevance_model` is relevance; the holistic `baseline_model` is a
    preference.
    """
    return {"baseline_model": "preference"}.get(name, name.removesuffix("_model").replace("_", " "))


def order(name: str) -> tuple[int, str]:
    """Sort key of policies: the baseline policy first, then holistic, fine-grained, and others by
    name.
    """
    known = ("sft", "sft_full", "holistic", "baseline", "fine_grained")
    return (known.index(name) if name in known else len(known), name)


def _runs(folder: Path) -> list[Run]:
    runs = []
    for path in [folder / "metrics.jsonl", *folder.glob("*/metrics.jsonl")]:
        metrics = read_jsonl(path) if path.exists() else []
        # other stages have one too
        if any(
            {"reward/total", "dpo/margin"} & row.keys() for row in metrics if isinstance(row, dict)
        ):
            _checked(path, metrics, list[_MetricsLine])
            info = _read(path.with_name("run.json"), _Info)
            runs.append(
                Run(
                    path.parent.name,
                    metrics,
                    _first_and_last_samples(path.parent / "samples"),
                    info,
                )
            )
    return sorted(runs, key=lambda run: order(run.name))


def _first_and_last_samples(folder: Path) -> dict[int, list[dict]]:
    names = [path.stem.removeprefix("step-") for path in folder.glob("step-*.jsonl")]
    steps = sorted(int(name) for name in names if name.isdecimal())
    paths = {step: folder / f"step-{step}.jsonl" for step in [*steps[:1], *steps[-1:]]}
    return {
        step: _one_per_prompt(_checked(path, read_jsonl(path), list[_Sample]))
        for step, path in paths.items()
    }


def _one_per_prompt(rows: list[dict]) -> list[dict]:
    first = {row["prompt"]: row for row in reversed(rows)}
    return [row for row in rows if first[row["prompt"]] is row][:SAMPLES_SHOWN]


def _reward_model(folder: Path) -> dict:
    spec = _read(folder / "reward_model.json", _RewardModel)
    metrics = _read(folder / "metrics.json", _Measured)
    return {**spec, "metrics": {**(spec.get("metrics") or {}), **metrics}}


def _evaluations(folder: Path) -> tuple[dict[str, list[dict]], str]:
    """Rows by policy, all of one split: test where there is one."""
    found: dict[str, dict[str, list[dict]]] = {}
    for path in sorted(folder.glob("eval/*/rows.jsonl")):
        match = re.fullmatch(r"(.+)-([^-]+)", path.parent.name)
        if match:
            found.setdefault(match[2], {})[match[1]] = _checked(
                path, read_jsonl(path), list[_Answer]
            )
    split = "test" if "test" in found else next(iter(found), "")
    rows = found.get(split, {})
    return {name: rows[name] for name in sorted(rows, key=order)}, split


def _policies(folder: Path, split: str) -> dict[str, Mapping]:
    paths = folder.glob(f"eval/*-{split}/summary.json") if split else []
    policies = {
        path.parent.name.removesuffix(f"-{split}"): _read(path, dict[str, _Interval])
        for path in paths
    }
    return {name: policies[name] for name in sorted(policies, key=order)}


def _stages(folder: Path) -> dict:
    return _read(folder / "stages.json", dict[str, _Stage])


def _read(path: Path, kind: Any) -> dict:
    """A JSON object of this kind; empty where there is no file."""
    return _checked(path, read_json(path), kind) if path.exists() else {}

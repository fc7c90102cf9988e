"""What a report is made of: everything found in an outputs folder, whatever stages have run so far."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fgrlhf.utils import UserError, read_json, read_jsonl

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


@dataclass(frozen=True)
class Run:
    """One RL run: its metrics lines, the samples of its first and last logged step, its run.json."""

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
    reward_models: dict[str, dict]  # folder name -> reward_model.json, its `metrics` joined with metrics.json
    evaluations: dict[str, list[dict]]  # policy name -> rows of the split shown
    split: str
    stages: dict[str, dict]
    missing: dict[str, str]  # section -> line, empty where the section has something to show


def read_outputs(folder: str | Path) -> Outputs:
    """Read an outputs folder, or the folder of a single RL run.

    Raises:
      UserError: the folder does not exist or holds nothing a report could show; or a file in it is broken.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder the stages wrote to (OUTPUT_DIR)")
    summary = read_json(folder / "summary.json") if (folder / "summary.json").exists() else {}
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
        raise UserError(f"{folder} holds nothing to report on; looked for {'; '.join(SOURCES.values())}")
    missing = {name: "" if found[name] else source for name, source in SOURCES.items()}
    return Outputs(folder, summary, runs, reward_models, evaluations, split, stages, missing)


def aspect_name(name: str) -> str:
    """What a config calls `relevance_model` is relevance; the holistic `baseline_model` is a preference."""
    return {"baseline_model": "preference"}.get(name, name.removesuffix("_model").replace("_", " "))


def order(name: str) -> tuple[int, str]:
    """Sort key of policies: the baseline policy first, then holistic, fine-grained, and others by name."""
    known = ("sft", "sft_full", "holistic", "baseline", "fine_grained")
    return (known.index(name) if name in known else len(known), name)


def _runs(folder: Path) -> list[Run]:
    runs = []
    for path in [folder / "metrics.jsonl", *folder.glob("*/metrics.jsonl")]:
        metrics = read_jsonl(path) if path.exists() else []
        if any({"reward/total", "dpo/margin"} & row.keys() for row in metrics):  # other stages have one too
            info = read_json(path.with_name("run.json")) if path.with_name("run.json").exists() else {}
            runs.append(
                Run(path.parent.name, metrics, _first_and_last_samples(path.parent / "samples"), info)
            )
    return sorted(runs, key=lambda run: order(run.name))


def _first_and_last_samples(folder: Path) -> dict[int, list[dict]]:
    steps = sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.jsonl"))
    shown = dict.fromkeys([*steps[:1], *steps[-1:]])
    return {step: _one_per_prompt(read_jsonl(folder / f"step-{step}.jsonl")) for step in shown}


def _one_per_prompt(rows: list[dict]) -> list[dict]:
    first = {row["prompt"]: row for row in reversed(rows)}
    return [row for row in rows if first[row["prompt"]] is row][:SAMPLES_SHOWN]


def _reward_model(folder: Path) -> dict:
    spec = read_json(folder / "reward_model.json")
    path = folder / "metrics.json"
    metrics = read_json(path) if path.exists() else {}
    return {**spec, "metrics": {**(spec.get("metrics") or {}), **metrics}}


def _evaluations(folder: Path) -> tuple[dict[str, list[dict]], str]:
    """Rows by policy, all of one split: test where there is one."""
    found: dict[str, dict[str, list[dict]]] = {}
    for path in sorted(folder.glob("eval/*/rows.jsonl")):
        match = re.fullmatch(r"(.+)-([^-]+)", path.parent.name)
        if match:
            found.setdefault(match[2], {})[match[1]] = read_jsonl(path)
    split = "test" if "test" in found else next(iter(found), "")
    rows = found.get(split, {})
    return {name: rows[name] for name in sorted(rows, key=order)}, split


def _policies(folder: Path, split: str) -> dict[str, Mapping]:
    paths = folder.glob(f"eval/*-{split}/summary.json") if split else []
    policies = {path.parent.name.removesuffix(f"-{split}"): read_json(path) for path in paths}
    return {name: policies[name] for name in sorted(policies, key=order)}


def _stages(folder: Path) -> dict:
    path = folder / "stages.json"
    return read_json(path) if path.exists() else {}

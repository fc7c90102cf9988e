"""Reads an outputs folder for the report, with the results of all stages so far."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_jsonl, sha256
from fgrlhf.configs.yaml_files import read_yaml
from fgrlhf.metrics.rows import EvaluationRow
from fgrlhf.report.display import Display
from fgrlhf.report.evaluations import in_order, policy_of, split_of
from fgrlhf.report.feedback import FeedbackFile, feedback_files
from fgrlhf.report.plots import Point
from fgrlhf.report.records import (
    MetricsLine,
    RecordedInterval,
    RewardModel,
    RewardModelErrors,
    RewardModelMetrics,
    Rollout,
    RunInfo,
    StageCost,
    Summary,
    episodes_per_step,
    read_evaluation,
    read_record,
    read_records,
)

ROLLOUTS_SHOWN = 4  # prompts of a training step, one rollout of each
SOURCES = {  # section of the report -> its source files
    "results": "summary.json or eval/*/summary.json (from `fgrlhf evaluate`)",
    "curves": "metrics.jsonl of a training run (from `fgrlhf rl` or `fgrlhf dpo`)",
    "models": "reward_model.json of a reward model (from `fgrlhf rm`)",
    "responses": "eval/*/rows.jsonl (from `fgrlhf evaluate`)",
    "rollouts": "samples/step-*.jsonl of a training run (from `fgrlhf rl`)",
    "stages": "stages.json (from a pipeline such as `make demo`)",
}
# keys of metrics.jsonl that only this kind of training logs
POLICY_KEYS = {"reward/total", "loss/total"}
SUPERVISED_KEYS = {"loss", "eval/loss"}
ALL = "all"
Steps = Collection[int] | Literal["all"] | None  # whose rollouts are shown; None: first and last
Policies = dict[str, dict[str, RecordedInterval | dict[str, RecordedInterval]]]


@dataclass(frozen=True)
class Run:
    """A training run."""

    name: str
    metrics: list[dict]  # lines of metrics.jsonl
    samples: dict[int, list[Rollout]]  # by step
    info: RunInfo
    config: dict  # its config.yaml; {} if there is none

    def points(self, key: str) -> list[Point]:
        """A metric over the episodes so far; values that were not finite are left out."""
        return list(self.points_by_step(key).values())

    def points_by_step(self, key: str) -> dict[int, Point]:
        """The points of `points` by step. Dev metrics have intervals if the run logged them.

        In a run that does not count episodes, x is the step.
        """
        per_step = episodes_per_step(self.metrics)
        if per_step is None:
            per_step = 1
        section, _, metric = key.partition("/")
        points = {}
        for line in self.metrics:
            if line.get(key) is not None:
                # only dev metrics have bounds
                low, high = (
                    line.get(f"{section}_low/{metric}"),
                    line.get(f"{section}_high/{metric}"),
                )
                points[line["step"]] = Point(line["step"] * per_step, line[key], low, high)
        return points

    @property
    def keys(self) -> list[str]:
        """Names of all logged metrics, in order of their first appearance."""
        return list(dict.fromkeys(key for row in self.metrics for key in row))


@dataclass(frozen=True)
class TrainingLog:
    """The metrics of SFT or of a reward model."""

    name: str
    metrics: list[dict]
    is_reward_model: bool

    def points(self, key: str) -> list[Point]:
        """A metric over the steps; values that were not finite are left out."""
        lines = [line for line in self.metrics if line.get(key) is not None]
        return [Point(line["step"], line[key]) for line in lines]


@dataclass(frozen=True)
class Outputs:
    """The content of an outputs folder.

    Attributes:
      policies: metrics of each policy, from summary.json or else from its evaluation.
      evaluations: the rows of each policy on `split`.
      evaluated: folder or hub name of each of these policies; "" if it is not recorded.
      training: the logs of SFT and of the reward models.
      feedback: the feedback files in the folders of the data.
      pretrained: where the pretrained weights of all stages come from.
      note: why figures of summary.json are left out; "" if they are not.
      missing: section -> its missing source files; sections that can be shown, or that do not
        apply to the task, are not in it.
    """

    folder: Path
    summary: Summary
    policies: Policies
    runs: list[Run]
    training: list[TrainingLog]
    reward_models: dict[str, RewardModel]
    evaluations: dict[str, list[EvaluationRow]]
    evaluated: dict[str, str]
    split: str
    stages: dict[str, StageCost]
    feedback: list[FeedbackFile]
    pretrained: list[str]
    note: str
    missing: dict[str, str]


def recorded_task(folder: str | Path) -> str | None:
    """The task of the outputs, if summary.json or a run.json names it."""
    folder = Path(folder)
    summary = read_record(folder / "summary.json", Summary)
    if summary.task:
        return summary.task
    for path in _files_of_stages(folder, "run.json"):
        info = read_record(path, RunInfo)
        if info.task:
            return info.task
    return None


def read_outputs(folder: str | Path, display: Display, steps: Steps = None) -> Outputs:
    """Read an outputs folder, or the folder of a single RL run.

    Raises:
      UserError: the folder does not exist, has nothing to report, or has a broken file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder: give the folder that the stages wrote to (OUTPUT_DIR)"
        )
    _refuse_sweep(folder)
    summary = read_record(folder / "summary.json", Summary)
    runs = training_runs(folder, display, steps)
    if steps is not None and runs and not any(run.samples for run in runs):
        raise UserError(f"{folder}: no run has rollouts of these steps (samples/step-*.jsonl)")
    reward_models = _reward_models(folder, display)
    by_split = evaluations_by_split(folder)
    note = _why_outdated(summary, by_split)
    if note:
        outdated = ("policies", "gains", "reward_models", "data")
        summary = summary.model_copy(update=dict.fromkeys(outdated))
    split = _shown_split(summary, by_split)
    paths = by_split.get(split, {})
    names = in_order({name: path.parent for name, path in paths.items()}, display)
    evaluations = {name: read_evaluation(paths[name]) for name in names}
    # stages may have run since the summary
    stages = read_record(folder / "stages.json", dict[str, StageCost]) or summary.stages or {}
    policies = summary.policies or _policies(folder, split, display)
    training = _training_logs(folder, display)
    feedback = feedback_files(_data_folders(folder))
    contents = {
        "results": policies,
        "curves": runs,
        "models": reward_models,
        "responses": evaluations,
        "rollouts": any(run.samples for run in runs),
        "stages": stages,
    }
    if not any((*contents.values(), training, feedback)):
        raise UserError(f"{folder} has nothing to report; looked for {'; '.join(SOURCES.values())}")
    missing = {name: source for name, source in SOURCES.items() if not contents[name]}
    if runs and all(_uses_no_reward_model(run) for run in runs):
        missing.pop("models", None)
    return Outputs(
        folder=folder,
        summary=summary,
        policies=policies,
        runs=runs,
        training=training,
        reward_models=reward_models,
        evaluations=evaluations,
        evaluated={name: policy_of(paths[name].parent) or "" for name in names},
        split=split,
        stages=stages,
        feedback=feedback,
        pretrained=_pretrained(folder),
        note=note,
        missing=missing,
    )


def _refuse_sweep(folder: Path) -> None:
    """Raise `UserError` if the folder has only the runs of a sweep.

    These are in `<run>/seed-<seed>`, and have a page of their own.
    """
    runs = sorted(folder.glob("*/seed-*/metrics.jsonl"))
    if not runs or _files_of_stages(folder, "metrics.jsonl") or any(folder.glob("eval/*")):
        return
    raise UserError(
        f"{folder} is the folder of a sweep: open {folder / 'index.html'}, or report on one of its"
        f" runs: fgrlhf report {runs[0].parent}"
    )


def _files_of_stages(folder: Path, name: str) -> list[Path]:
    """The files of this name in the folder itself and in the folders of its stages, sorted."""
    paths = [folder / name, *sorted(folder.glob(f"*/{name}"))]
    return [path for path in paths if path.exists()]


def _stage_name(path: Path) -> str:
    """The name of the folder of a stage's file, even if the folder was given as `.` or `..`."""
    return os.path.basename(os.path.dirname(os.path.abspath(path)))


def _pretrained(folder: Path) -> list[str]:
    """Where the pretrained weights come from, according to the run.json of every stage."""
    sources: dict[str, None] = {}
    for path in _files_of_stages(folder, "run.json"):
        sources |= dict.fromkeys(read_record(path, RunInfo).models.values())
    return list(sources)


def training_runs(folder: Path, display: Display, steps: Steps = ()) -> list[Run]:
    """The RL and DPO runs of an outputs folder, with the rollouts of some steps."""
    runs = []
    for path in _files_of_stages(folder, "metrics.jsonl"):
        lines = read_jsonl(path)
        if not _have_any_key(lines, POLICY_KEYS):
            continue  # a metrics.jsonl of SFT or of a reward model
        read_records(path, MetricsLine)  # raises an error if the log is damaged
        info = read_record(path.with_name("run.json"), RunInfo)
        samples = _samples(path.parent / "samples", steps)
        runs.append(Run(_stage_name(path), lines, samples, info, _config(path.parent)))
    return sorted(runs, key=lambda run: display.rank(run.name))


def _have_any_key(lines: list, keys: set[str]) -> bool:
    """Whether a line has one of the keys. In a damaged file, a line may not be a dict."""
    return any(isinstance(line, dict) and bool(keys & line.keys()) for line in lines)


def _config(folder: Path) -> dict:
    path = folder / "config.yaml"
    return read_yaml(path) if path.exists() else {}


def _uses_no_reward_model(run: Run) -> bool:
    """Whether the run's config is known and none of its rewards has a checkpoint."""
    return bool(run.config) and not _has_key(run.config.get("reward"), "ckpt")


def _has_key(tree: Any, key: str) -> bool:
    if not isinstance(tree, dict):
        return False
    return key in tree or any(_has_key(value, key) for value in tree.values())


def _data_folders(folder: Path) -> list[Path]:
    """The folders of the files that the stages read, and `data` in the outputs folder."""
    folders = [folder / "data"]
    for path in _files_of_stages(folder, "config.yaml"):
        data = read_yaml(path).get("data")
        files = data.values() if isinstance(data, dict) else ()
        for file in files:
            if isinstance(file, str) and file.endswith((".json", ".jsonl")):
                folders.append(Path(file).parent)
    return list(dict.fromkeys(path.absolute() for path in folders))


def _training_logs(folder: Path, display: Display) -> list[TrainingLog]:
    """The logs of SFT stages, then of reward models."""
    logs = []
    for path in _files_of_stages(folder, "metrics.jsonl"):
        lines = read_jsonl(path)
        if _have_any_key(lines, SUPERVISED_KEYS):
            read_records(path, MetricsLine)  # raises an error if the log is damaged
            is_reward_model = path.with_name("reward_model.json").exists()
            logs.append(TrainingLog(_stage_name(path), lines, is_reward_model))
    return sorted(logs, key=lambda log: (log.is_reward_model, display.rank(log.name)))


def _samples(folder: Path, steps: Steps) -> dict[int, list[Rollout]]:
    names = [path.stem.removeprefix("step-") for path in folder.glob("step-*.jsonl")]
    logged = sorted(int(name) for name in names if name.isdecimal())
    if steps is None:
        logged = list(dict.fromkeys([*logged[:1], *logged[-1:]]))
    samples = {}
    for step in logged:
        if steps in (None, ALL) or step in steps:
            rows = read_records(folder / f"step-{step}.jsonl", Rollout)
            samples[step] = _one_per_prompt(rows)
    return samples


def _one_per_prompt(rows: list[Rollout]) -> list[Rollout]:
    first_of_prompt: dict[str, Rollout] = {}
    for row in rows:
        first_of_prompt.setdefault(row.prompt, row)
    return list(first_of_prompt.values())[:ROLLOUTS_SHOWN]


def _reward_models(folder: Path, display: Display) -> dict[str, RewardModel]:
    paths = {path.parent.name: path for path in folder.glob("*/reward_model.json")}
    return {name: _reward_model(paths[name]) for name in sorted(paths, key=display.rank)}


def _reward_model(path: Path) -> RewardModel:
    """The spec of a reward model, with additional metrics and its errors from other files."""
    model = read_record(path, RewardModel)
    metrics = model.metrics or RewardModelMetrics()
    additional = read_record(path.with_name("metrics.json"), RewardModelMetrics)
    update = {}
    for name, value in additional:  # in the order of the file, unlike the set below
        if name in additional.model_fields_set:
            update[name] = value
    errors = read_record(path.with_name("errors.json"), RewardModelErrors)
    whole = {"metrics": metrics.model_copy(update=update), "errors": errors}
    return model.model_copy(update=whole)


def evaluations_by_split(folder: Path) -> dict[str, dict[str, Path]]:
    """Split -> policy -> the rows of its evaluation."""
    by_split: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.glob("eval/*/rows.jsonl")):
        split = split_of(path.parent)
        if split:
            name = path.parent.name.removesuffix(f"-{split}")
            by_split.setdefault(split, {})[name] = path
    return by_split


def _why_outdated(summary: Summary, by_split: Mapping[str, Mapping[str, Path]]) -> str:
    """Why the figures of a summary are not those of the evaluations; "" if they are.

    Without any evaluation, there are no other figures beside those of the summary.
    """
    if summary.evaluations is None or not by_split:
        return ""
    now = {name: sha256(path) for name, path in by_split.get(summary.split or "", {}).items()}
    if now == summary.evaluations:
        return ""
    return (
        "summary.json is older than the evaluations, so its figures are left out. Run the command"
        " that wrote it (fgrlhf summary) and the report again."
    )


def _shown_split(summary: Summary, by_split: Mapping[str, Mapping[str, Path]]) -> str:
    """The split of the summary; else test if available, else the first one."""
    if summary.policies and summary.split and summary.split in by_split:
        return summary.split
    return "test" if "test" in by_split else next(iter(by_split), "")


def _policies(folder: Path, split: str, display: Display) -> Policies:
    evaluations = {}
    for path in folder.glob("eval/*/summary.json"):
        if split and split_of(path.parent) == split:
            evaluations[path.parent.name.removesuffix(f"-{split}")] = path.parent
    policies: Policies = {}
    for name in in_order(evaluations, display):
        path = evaluations[name] / "summary.json"
        policies[name] = dict(read_record(path, dict[str, RecordedInterval]))
    return policies

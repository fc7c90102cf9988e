"""Scores of training runs: of their final policies by prompt, and on dev during training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import numbered_jsonl
from fgrlhf.metrics.clusters import CLUSTER, clusters_by_prompt, clusters_of
from fgrlhf.metrics.config import MetricConfig, is_higher_better
from fgrlhf.metrics.paired import by_prompt
from fgrlhf.metrics.rows import ROWS, read_rows
from fgrlhf.report.records import episodes_per_step
from fgrlhf.runs.runlog import CPU
from fgrlhf.stats import Clusters

# ---- scores of policies --------------------------------------------------------------------------


def evaluation_rows(out: Path, name: str, split: str) -> list[dict]:
    """The rows of an evaluation. Raises `UserError` if the file is missing or damaged."""
    return read_rows(out / "eval" / f"{name}-{split}" / ROWS)


def paired_scores(
    rows: Mapping[str, Sequence[Sequence[Mapping]]], metric: str
) -> dict[str, list[np.ndarray]]:
    """Scores of several policies on the same prompts.

    Args:
      rows: name -> for each seed, its evaluation rows.
      metric: a column of the rows.

    Returns:
      name -> for each seed, the mean over the responses to each prompt. All arrays have the prompts
      for which every evaluation has a value, in the same order.

    Raises:
      UserError: there is no such prompt.
    """
    scores, prompts = _shared_scores(rows, metric)
    arrays: dict[str, list[np.ndarray]] = {}
    for name, seeds in scores.items():
        arrays[name] = [np.array([values[prompt] for prompt in prompts]) for values in seeds]
    return arrays


def shared_clusters(rows: Mapping[str, Sequence[Sequence[Mapping]]], metric: str) -> Clusters:
    """The clusters of the prompts of `paired_scores`, in their order; None if they have none."""
    _, prompts = _shared_scores(rows, metric)
    every_row = [row for seeds in rows.values() for seed_rows in seeds for row in seed_rows]
    return clusters_of(prompts, clusters_by_prompt(every_row))


def _shared_scores(
    rows: Mapping[str, Sequence[Sequence[Mapping]]], metric: str
) -> tuple[dict[str, list[dict[str, float]]], list[str]]:
    """Name -> for each seed, a score by prompt; and the prompts that all of them have."""
    known = _metrics(rows)
    scores: dict[str, list[dict[str, float]]] = {}
    if metric in known:
        for name, seeds in rows.items():
            scores[name] = [by_prompt(seed_rows, metric) for seed_rows in seeds]
    prompt_sets = [set(values) for seeds in scores.values() for values in seeds]
    shared = set.intersection(*prompt_sets) if prompt_sets else set()
    if not shared:
        raise UserError(
            f"the evaluations have no prompt with `{shorten(metric)}` in common; they have"
            f" {', '.join(known) or 'no metrics'}. Choose another metric=..."
        )
    return scores, sorted(shared)


def _metrics(rows: Mapping[str, Sequence[Sequence[Mapping]]]) -> list[str]:
    """Numeric columns of the evaluations."""
    names: dict[str, None] = {}  # a set that keeps the order
    for seeds in rows.values():
        for row in chain.from_iterable(seeds):
            for name, value in row.items():
                if isinstance(value, int | float) and name not in ("id", "sample", CLUSTER):
                    names[name] = None
    return list(names)


def lower_is_better(metric: str, metrics: Sequence[MetricConfig]) -> bool:
    """Whether lower values of a dev metric are better.

    Nothing is known about a task's own metric, such as `oracle/gold`: higher counts as better.

    Args:
      metrics: the `evaluation_metrics` of the config.
    """
    return is_higher_better(metric, metrics) is False or metric.endswith("loss")


# ---- learning curves -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """An evaluation on dev during training."""

    episodes: float  # responses used for training so far
    seconds: float  # time of rollouts and updates so far
    score: float
    kl: float | None
    cpu_seconds: float | None = None  # of processors in that time; None: the log does not say


def read_log(run: Path) -> list[dict]:
    """The lines of a run's metrics.jsonl. Raises `UserError` if it is missing or damaged."""
    path = run / "metrics.jsonl"
    lines = []
    for number, line in numbered_jsonl(path):
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise UserError(
                f"{path}, line {number}: not the metrics of a step. The log is damaged: remove"
                f" {run} and run the same command again, to train it again"
            )
        lines.append(line)
    return lines


def learning_curve(lines: Sequence[Mapping], metric: str) -> list[Point]:
    """The dev scores in a run's metrics.jsonl; [] if the run does not count episodes (SFT).

    With `logging.log_interval` above 1, some steps have no line. Each of them is assumed to take as
    long as the last step that has one.
    """
    per_step = episodes_per_step(lines)
    if per_step is None:
        return []
    points = []
    seconds = cpu_seconds = 0.0
    seconds_of_step = cpu_of_step = 0.0
    step = 0
    has_cpu = any(CPU in line for line in lines)
    for line in lines:
        seconds += (line["step"] - step) * seconds_of_step
        cpu_seconds += (line["step"] - step) * cpu_of_step
        step = line["step"]
        score = line.get(f"eval/{metric}")
        if score is not None:
            cpu = cpu_seconds if has_cpu else None
            points.append(Point(step * per_step, seconds, score, line.get("eval/kl"), cpu))
        times = {name: value for name, value in line.items() if name.startswith("time/")}
        cpu_of_step = times.pop(CPU, cpu_of_step)
        if times:
            seconds_of_step = sum(times.values())
    return points

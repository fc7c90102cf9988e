"""The result of a comparison: scores of several runs and seeds, and their paired differences."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np

from fgrlhf.base.errors import counted
from fgrlhf.base.files import read_json
from fgrlhf.configs.yaml_files import read_yaml
from fgrlhf.metrics.config import MetricConfig
from fgrlhf.pipeline.efficiency import Efficiency, efficiency
from fgrlhf.pipeline.experiments import Run
from fgrlhf.pipeline.scores import (
    Point,
    evaluation_rows,
    learning_curve,
    lower_is_better,
    paired_scores,
    read_log,
    shared_clusters,
)
from fgrlhf.runs.runlog import BEST_FILE
from fgrlhf.seed_stats import holm, seed_interval, seed_p_value
from fgrlhf.stats import LEVEL, Clusters


@dataclass(frozen=True)
class SeedResult:
    """A run with one seed: its test score, and the state at the end of its training.

    Attributes:
      score: of the policy in best/, if the run has one, else of the final policy.
      episodes, seconds: until the last evaluation on dev; seconds without evaluation. Of a run that
        counts no episodes: 0, and the seconds of its stage.
      kl: on dev, at the end of training; None if that is not known.
      curve: the evaluations on dev.
      best_kl: on dev, of the policy in best/; None if that is not known.
    """

    score: float
    episodes: float
    seconds: float
    kl: float | None
    curve: list[Point]
    best_kl: float | None = None


@dataclass(frozen=True)
class RunResult:
    """A run with all seeds. `config` is its YAML file, and `overrides` change it."""

    group: str
    algorithm: str
    overrides: list[str]
    seeds: dict[int, SeedResult]
    config: str = ""


@dataclass(frozen=True)
class RunDifference:
    """A paired difference between two runs with its 95% interval over prompts and seeds.

    Attributes:
      low, high: None if there is no interval: few prompts, or all have this difference.
      excludes_zero: whether the interval excludes zero, without correction. Among 91 pairs without
        any difference, about five exclude zero by chance.
      p: p-value of no difference.
      p_corrected: after Holm's correction over all pairs of the comparison.
      real: `p_corrected` is below 0.05. At most one comparison in twenty then reports a difference
        that does not exist.
    """

    mean: float
    low: float | None
    high: float | None
    excludes_zero: bool
    p: float
    p_corrected: float
    real: bool


@dataclass(frozen=True)
class RunComparison:
    """Everything in summary.json and index.html of a comparison.

    Attributes:
      metric: of the responses to the prompts of `split`.
      reference, reference_score: the policy that all runs are compared with, by default the one
        that they start from, and its score.
      differences: `a_vs_b` -> a minus b, for all pairs.
      efficiency: run -> when it reached the final dev score of the first run; {} if there is a
        single run, if the first run counts no episodes (SFT), or without `same_on_dev`.
      lower_is_better: whether `efficiency` takes lower dev scores for better ones.
      same_on_dev: whether the metric on dev is the same for all runs. With different rewards, each
        run's dev reward is its own; with different dev files, so is every metric.
      clusters: of the prompts, which are then the units of all intervals; None: they have none.
      left_out: prompts for which an evaluation has no value, so that no score includes them.
    """

    metric: str
    split: str
    seeds: list[int]
    reference: str
    reference_score: float
    runs: dict[str, RunResult]
    differences: dict[str, RunDifference]
    efficiency: dict[str, Efficiency] = field(default_factory=dict)
    lower_is_better: bool = False
    same_on_dev: bool = True
    clusters: int | None = None
    left_out: int = 0

    @property
    def first(self) -> str:
        """The run that the others are compared with."""
        return next(iter(self.runs))

    @property
    def prompts(self) -> str:
        """The prompts of the scores, as `the test prompts`."""
        prompts = f"the {self.split} prompts"
        if self.left_out:
            without = counted(self.left_out, "prompt")
            prompts += f" (without {without} for which an evaluation has no value)"
        if self.clusters is not None:
            prompts += f", in {counted(self.clusters, 'cluster')}, which are the units of intervals"
        return prompts

    @property
    def interval_over(self) -> str:
        """What the intervals cover."""
        if len(self.seeds) == 1:
            return "prompts only"
        return "prompts and seeds"

    def difference(self, a: str, b: str) -> RunDifference | None:
        return self.differences.get(f"{a}_vs_{b}")

    def others(self) -> dict[str, RunDifference]:
        """Pairs other than those with the reference or the first run.

        These are pairs from different groups with the same algorithm, and pairs within a group
        whose interval excludes zero.
        """
        shown = set()
        for a, b in combinations(reversed(self.runs), 2):
            if self._is_shown(a, b):
                shown.add(f"{a}_vs_{b}")
        return {pair: self.differences[pair] for pair in self.differences if pair in shown}

    def _is_shown(self, a: str, b: str) -> bool:
        """Whether `others` has the difference of two runs."""
        if b == self.first:
            return False
        run_a, run_b = self.runs[a], self.runs[b]
        if run_a.group != run_b.group:
            return run_a.algorithm == run_b.algorithm
        return self.differences[f"{a}_vs_{b}"].excludes_zero

    def as_dict(self) -> dict:
        return asdict(self)


def compare_runs(
    out: Path,
    reference: str,
    runs: Sequence[Run],
    seeds: Sequence[int],
    metric: str,
    split: str,
    metrics: Sequence[MetricConfig] = (),
) -> RunComparison:
    """Read the evaluations and logs of finished runs.

    Args:
      metrics: the `evaluation_metrics` of the first run, which may give a metric another key.

    Raises:
      UserError: no prompt has the metric in every evaluation, or a file is missing or broken.
    """
    # the reference was evaluated once: its rows count for every seed
    rows = {reference: [evaluation_rows(out, reference, split)] * len(seeds)}
    for run in runs:
        rows[run.name] = [evaluation_rows(out, run.evaluation(seed), split) for seed in seeds]
    scores = paired_scores(rows, metric)
    clusters = shared_clusters(rows, metric)
    prompts = set()
    for rows_of_seeds in rows.values():
        for row in chain.from_iterable(rows_of_seeds):
            prompts.add(row["id"])
    results = {}
    for run in runs:
        by_seed = {}
        for seed, values in zip(seeds, scores[run.name]):
            by_seed[seed] = _seed_result(out, run, seed, float(np.mean(values)), metric)
        results[run.name] = RunResult(
            run.group, run.algorithm, list(run.overrides), by_seed, run.config
        )
    same_on_dev = _is_same_on_dev(out, runs, seeds[0], metric)
    is_lower_better = lower_is_better(metric, metrics)
    reached = efficiencies(results, not is_lower_better) if same_on_dev else {}
    return RunComparison(
        metric=metric,
        split=split,
        seeds=list(seeds),
        reference=reference,
        reference_score=float(np.mean(scores[reference][0])),
        runs=results,
        differences=differences(scores, clusters),
        efficiency=reached,
        lower_is_better=is_lower_better,
        same_on_dev=same_on_dev,
        left_out=len(prompts) - len(scores[reference][0]),
        clusters=None if clusters is None else len(set(clusters)),
    )


def efficiencies(runs: Mapping[str, RunResult], higher_is_better: bool) -> dict[str, Efficiency]:
    """When each run reached the final dev score of the first one.

    Runs that count no episodes with one of the seeds (SFT) are left out. Without the first run, or
    with only that one, the result is {}.
    """
    curves = {}
    for name, run in runs.items():
        by_seed = [seed.curve for seed in run.seeds.values()]
        if all(by_seed):
            curves[name] = by_seed
    first = next(iter(runs))
    if first not in curves or len(curves) == 1:
        return {}
    return {
        name: efficiency(by_seed, curves[first], higher_is_better)
        for name, by_seed in curves.items()
    }


def _is_same_on_dev(out: Path, runs: Sequence[Run], seed: int, metric: str) -> bool:
    """Whether the metric on dev is the same for all RL runs: one measure, of the same prompts."""
    measures = []
    for run in runs:
        if run.program == "rl":  # the dev scores of other programs have no reward
            config = read_yaml(out / run.folder(seed) / "config.yaml")
            measures.append(measure_on_dev(config, metric))
    return all(measure == measures[0] for measure in measures)


def measure_on_dev(config: Mapping[str, Any], metric: str) -> tuple:
    """The parts of a run's config that determine what a metric on dev means.

    These are the dev prompts, and the settings of the reward or of the evaluation metric that
    computes it: `politeness/score` comes from the reward `politeness`. The `place` of a reward's
    values does not change their sum.
    """
    prompts = [
        config.get("data", {}).get("dev_file"),
        config.get("evaluation", {}).get("examples"),
    ]
    rewards = {
        name: {key: value for key, value in section.items() if key != "place"}
        for name, section in config.get("reward", {}).items()
    }
    first, _, rest = metric.partition("/")
    if metric == "reward":
        return (*prompts, rewards)
    if first == "reward":
        return (*prompts, rewards.get(rest))
    metrics = []
    for settings in config.get("evaluation_metrics", []):
        if first in (settings["name"], settings.get("key")):
            metrics.append(settings)
    return (*prompts, rewards.get(first), metrics)


def why_dev_differs(metric: str) -> str:
    """Why dev scores cannot be compared whose `measure_on_dev` differs, and what to do."""
    return (
        f"on dev, {metric} is not the same for all of them. Their configs differ in the reward or"
        " metric that computes it, or in the dev prompts. Choose another metric=... that is the"
        " same on dev."
    )


def _seed_result(out: Path, run: Run, seed: int, score: float, metric: str) -> SeedResult:
    folder = run.folder(seed)
    lines = read_log(out / folder)
    curve = learning_curve(lines, metric)
    if not curve:
        stage = read_json(out / "stages.json")[folder]
        return SeedResult(score, episodes=0, seconds=stage["seconds"], kl=None, curve=[])
    last = curve[-1]
    return SeedResult(
        score,
        episodes=last.episodes,
        seconds=last.seconds,
        kl=last.kl,
        curve=curve,
        best_kl=_best_kl(out / folder, lines),
    )


def _best_kl(folder: Path, lines: Sequence[Mapping]) -> float | None:
    """The KL on dev of the policy in best/; None if its evaluation is not recorded."""
    path = folder / "best" / BEST_FILE
    best = read_json(path) if path.exists() else None
    if not isinstance(best, dict):
        return None
    for line in lines:
        if line["step"] == best.get("step") and "eval/kl" in line:
            return line["eval/kl"]
    return None


def differences(
    scores: Mapping[str, Sequence[np.ndarray]], clusters: Clusters = None
) -> dict[str, RunDifference]:
    """The differences of all pairs, later minus earlier.

    Args:
      scores: name -> for each seed, a score per prompt.
      clusters: of each prompt.
    """
    intervals = {}
    p_values = []
    for b, a in combinations(scores, 2):
        by_seed = [x - y for x, y in zip(scores[a], scores[b], strict=True)]
        intervals[f"{a}_vs_{b}"] = seed_interval(by_seed, clusters)
        p_values.append(seed_p_value(by_seed, clusters))
    pairs = {}
    for (pair, interval), p, corrected in zip(intervals.items(), p_values, holm(p_values)):
        pairs[pair] = RunDifference(
            mean=interval.mean,
            low=interval.low if interval.has_bounds else None,
            high=interval.high if interval.has_bounds else None,
            excludes_zero=interval.excludes_zero,
            p=p,
            p_corrected=corrected,
            real=corrected < 1 - LEVEL,
        )
    return pairs

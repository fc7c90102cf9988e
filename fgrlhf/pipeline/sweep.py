"""Train one config with several values of any of its keys, and compare the dev scores.

    fgrlhf sweep [TASK] CONFIG train.lr=1e-5,3e-5 output_dir=DIR [seeds=0,1,2] [key=value ...]

A key with several values, separated by commas, is swept; several such keys give all combinations.
The score of a run is its best dev score within `train.kl_threshold`, as for its best checkpoint. If
a swept key changes what that score measures, such as the weight of a reward, no run is the best.
Writes <output_dir>/summary.json and index.html, and prints the table. Run it again to continue, or
to add values and seeds.
"""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from pydantic import Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import write_json, write_text
from fgrlhf.cli.command_line import describe, settings_from
from fgrlhf.load import task_or_none
from fgrlhf.pipeline.comparison import measure_on_dev, why_dev_differs
from fgrlhf.pipeline.comparison_page import band, titled
from fgrlhf.pipeline.experiment_settings import (
    SubmittedSettings,
    check_settings,
    seeds_text,
    split_arguments,
)
from fgrlhf.pipeline.experiments import Experiment, Run, check_overrides, parse_config
from fgrlhf.pipeline.scores import Point, learning_curve, lower_is_better, read_log
from fgrlhf.pipeline.stages import stop_with_signals
from fgrlhf.report.display import Display
from fgrlhf.report.page import page_template, stylesheet
from fgrlhf.report.plots import intervals, panels
from fgrlhf.task_config import rl_config

USAGE = """usage: fgrlhf sweep [TASK] CONFIG key=value,value ... output_dir=DIR [key=value ...]
  CONFIG: YAML of an RL run, or dpo:FILE, sft:FILE
  keys with a dot are overrides of the config; several values, separated by commas, are swept"""
COLOUR = 2  # series colour of the plot's marks


class SweepSettings(SubmittedSettings):
    """Settings of a sweep."""

    metric: str | None = Field(
        default=None,
        description="dev metric; null: the metric that selects the config's best checkpoint",
    )


@dataclass(frozen=True)
class SweptSeed:
    """A run with one seed: its best dev score, with the episodes and the KL at that point."""

    score: float
    episodes: float | None
    kl: float | None
    curve: list[Point]


@dataclass(frozen=True)
class SweptValue:
    """A combination of values, `settings`, with all seeds."""

    settings: dict[str, str]
    seeds: dict[int, SweptSeed]

    @property
    def scores(self) -> list[float]:
        return [seed.score for seed in self.seeds.values()]

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))


@dataclass(frozen=True)
class Sweep:
    """Everything in summary.json and index.html of a sweep.

    Attributes:
      same_on_dev: whether the metric on dev is the same for all runs, as it is not with different
        rewards or dev prompts.
    """

    metric: str
    lower_is_better: bool
    seeds: list[int]
    runs: dict[str, SweptValue]
    same_on_dev: bool

    @property
    def best(self) -> str | None:
        """The name of the run with the best mean; None if the scores cannot be compared."""
        if not self.same_on_dev:
            return None
        choose = min if self.lower_is_better else max
        return choose(self.runs, key=lambda name: self.runs[name].mean)

    @property
    def direction(self) -> str:
        """Which values count as the best."""
        return "lowest" if self.lower_is_better else "highest"

    @property
    def warning(self) -> str | None:
        """Why the scores cannot be compared; None if they can."""
        if self.same_on_dev:
            return None
        return _not_comparable(self.metric)

    @property
    def has_several_seeds(self) -> bool:
        """Whether the best run is marked: one seed does not show the noise of training."""
        return len(self.seeds) > 1


# ---- runs ----------------------------------------------------------------------------------------


def split_values(text: str) -> list[str]:
    """The values in `1e-5,3e-5`; commas inside brackets and quotes are part of a value."""
    values = [""]
    depth = 0
    quote = ""
    for character in text:
        if quote:
            if character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += character
    return values


def combinations_of(overrides: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of the values of the swept keys, as {key: value}.

    Raises:
      UserError: no key has several values, or a key has the same value twice.
    """
    swept = {}
    for override in overrides:
        key, _, text = override.partition("=")
        values = split_values(text)
        if len(values) == 1:
            continue
        if len(set(values)) < len(values):
            raise UserError(f"{shorten(override)} has a value twice: leave one of them out")
        swept[key] = values
    if not swept:
        raise UserError(f"no key has several values: give one as train.lr=1e-5,3e-5\n{USAGE}")
    return [dict(zip(swept, values)) for values in product(*swept.values())]


def name_of(values: Mapping[str, str]) -> str:
    """`train.lr=1e-5` -> `lr=1e-5`: a name for a folder and for tables."""
    last_parts = [key.rpartition(".")[2] for key in values]
    are_different = len(set(last_parts)) == len(last_parts)
    keys = last_parts if are_different else list(values)
    pairs = [f"{key}={value}" for key, value in zip(keys, values.values())]
    return re.sub(r"[^\w.=,+-]+", "_", ",".join(pairs))


def runs_of(config: str, overrides: Sequence[str]) -> dict[str, tuple[Run, dict[str, str]]]:
    """Run and swept values by the run's name.

    Raises:
      UserError: as `combinations_of` does, or an override is of a key that the sweep sets.
    """
    program, path = parse_config(config)
    check_overrides(overrides, {"logging.run_name": "runs are named after their values"})
    combinations = combinations_of(overrides)
    fixed = []
    for override in overrides:
        if override.partition("=")[0] not in combinations[0]:
            fixed.append(override)
    runs = {}
    for number, values in enumerate(combinations, 1):
        name = name_of(values)
        if name in runs:  # values that differ only in characters that folder names cannot have
            name = f"{name}-{number}"
        chosen = [f"{key}={value}" for key, value in values.items()]
        runs[name] = (Run(name, program, path, (*fixed, *chosen)), values)
    return runs


def kl_threshold_of(config: Any) -> float:
    """The KL beyond which a policy is never the best; infinite for DPO and SFT.

    Args:
      config: the validated config of the run, whose class depends on its program.
    """
    return getattr(config.train, "kl_threshold", math.inf)


def metric_of(experiment: Experiment, config: str, overrides: Sequence[str]) -> str:
    """The dev metric that selects the config's best checkpoint."""
    program, path = parse_config(config)
    default = "reward" if program == "rl" else "rougeLsum"
    return experiment.config_value(path, overrides, "evaluation.metric") or default


# ---- results -------------------------------------------------------------------------------------


def sweep(
    experiment: Experiment,
    config: str,
    overrides: Sequence[str],
    seeds: Sequence[int],
    metric: str,
    display: Display,
    lanes: int,
) -> Sweep:
    """Run the missing stages, write summary.json and index.html, and print the table.

    Raises:
      UserError: a stage failed, or a run has no dev score; mistakes in configs are found before
        the first stage.
    """
    runs = runs_of(config, overrides)
    configs = [experiment.config_of(run, seeds[0]) for run, _ in runs.values()]
    is_lower_better = lower_is_better(metric, configs[0].evaluation_metrics)
    measures = [measure_on_dev(config.model_dump(mode="json"), metric) for config in configs]
    same_on_dev = all(measure == measures[0] for measure in measures)
    if not same_on_dev:  # the table repeats it after the training
        print(f"note: {_not_comparable(metric)}", flush=True)
    experiment.announce(len(runs), seeds, lanes)
    stages = [experiment.training_stage(run, seed) for run, _ in runs.values() for seed in seeds]
    experiment.run(stages, lanes)
    results = {}
    for (name, (run, values)), trained in zip(runs.items(), configs, strict=True):
        threshold = kl_threshold_of(trained)
        by_seed = {}
        for seed in seeds:
            folder = experiment.out / run.folder(seed)
            by_seed[seed] = swept_seed(folder, metric, threshold, is_lower_better)
        results[name] = SweptValue(values, by_seed)
    result = Sweep(metric, is_lower_better, list(seeds), results, same_on_dev)
    write_json(experiment.out / "summary.json", asdict(result) | {"best": result.best})
    write_text(experiment.out / "index.html", page(result, display, experiment.origin))
    print(f"\n{table(result, display)}\npage: {experiment.out / 'index.html'}")
    return result


def swept_seed(
    folder: Path, metric: str, kl_threshold: float = math.inf, is_lower_better: bool = False
) -> SweptSeed:
    """The best dev evaluation of a run among those with a KL within the threshold.

    If there are none, it is the best of all evaluations.

    Raises:
      UserError: the run's log has no such metric.
    """
    lines = read_log(folder)
    evaluated = [line for line in lines if line.get(f"eval/{metric}") is not None]
    if not evaluated:
        names = dict.fromkeys(key for line in lines for key in line if key.startswith("eval/"))
        metrics = ", ".join(name.removeprefix("eval/") for name in names) or "no dev metrics"
        raise UserError(
            f"{folder / 'metrics.jsonl'} has no dev metric `{metric}`; it has {metrics}. Choose"
            " another metric=..."
        )
    # a run without a KL (SFT) has no evaluation beyond the threshold
    within = [line for line in evaluated if (line.get("eval/kl") or 0.0) <= kl_threshold]
    choose = min if is_lower_better else max
    best = choose(within or evaluated, key=lambda line: line[f"eval/{metric}"])
    curve = learning_curve(lines, metric)
    episodes = None
    if curve:
        episodes = curve[evaluated.index(best)].episodes
    return SweptSeed(best[f"eval/{metric}"], episodes, best.get("eval/kl"), curve)


def page(result: Sweep, display: Display, origin: Mapping[str, str]) -> str:
    """index.html: the table, the scores by value, and the dev score during training.

    Args:
      origin: see `Experiment.origin`.
    """
    metric = display.metric(result.metric)
    marks = []
    for name, run in result.runs.items():
        marks.append((name, [(run.mean, min(run.scores), max(run.scores), COLOUR)]))
    bands = {}
    for name, run in result.runs.items():
        by_seed = [seed.curve for seed in run.seeds.values()]
        if all(by_seed):
            bands[name] = band(by_seed, "episodes")
    scores = None
    curves = None
    if result.same_on_dev:
        scores = Markup(intervals(f"Best {metric} on dev", marks))
        curves = Markup(panels(f"{metric} on dev", bands, "episodes")) if bands else None
    return page_template(Path(__file__).parent, "sweep.html.j2").render(
        title=titled(f"Sweep of {', '.join(_keys(result))}", origin),
        origin=origin,
        style=stylesheet(),
        sweep=result,
        metric=metric,
        seeds=seeds_text(result.seeds),
        keys=_keys(result),
        scores=scores,
        curves=curves,
    )


def table(result: Sweep, display: Display) -> str:
    """The results in Markdown; the best value of several seeds is bold."""
    metric = display.metric(result.metric)
    keys = _keys(result)
    lines = [
        f"{seeds_text(result.seeds)}, best ({result.direction}) {metric} on dev in training.",
        "",
        f"| {' | '.join(keys)} | {metric} | by seed | KL |",
        "|---" * (len(keys) + 3) + "|",
    ]
    for name, run in result.runs.items():
        mean = f"{run.mean:.3f}"
        kls = [seed.kl for seed in run.seeds.values() if seed.kl is not None]
        cells = [
            *run.settings.values(),
            f"**{mean}**" if name == result.best and result.has_several_seeds else mean,
            " ".join(f"{score:.3f}" for score in run.scores),
            f"{np.mean(kls):.1f}" if kls else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if result.warning is not None:
        lines += ["", result.warning]
    return "\n".join(lines) + "\n"


def _not_comparable(metric: str) -> str:
    return f"The runs' scores cannot be compared: {why_dev_differs(metric)}"


def _keys(result: Sweep) -> list[str]:
    return list(next(iter(result.runs.values())).settings)


def main(argv: Sequence[str] | None = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print("\n".join([USAGE, "keys:", *describe(SweepSettings)]))
        return
    arguments = split_arguments(argv, USAGE)
    if len(arguments.configs) != 1:
        raise UserError(
            f"a sweep takes one config, but {len(arguments.configs)} are given\n{USAGE}"
        )
    check_settings(SweepSettings, arguments, rl_config(task_or_none(arguments.task)))
    settings = settings_from(SweepSettings, arguments.settings)
    stop_with_signals()
    experiment = Experiment(arguments.task, settings.folder, submit=settings.submit)
    config = arguments.configs[0]
    metric = settings.metric or metric_of(experiment, config, arguments.overrides)
    sweep(
        experiment,
        config,
        arguments.overrides,
        settings.seed_list,
        metric,
        task_or_none(arguments.task).display,
        settings.lane_count,
    )

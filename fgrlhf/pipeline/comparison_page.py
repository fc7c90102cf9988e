"""A comparison as a self-contained HTML page and as a Markdown table.

Axes here: S seeds, N evaluations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from fgrlhf.models.provenance import ModelSource
from fgrlhf.pipeline.comparison import (
    RunComparison,
    RunDifference,
    RunResult,
    why_dev_differs,
)
from fgrlhf.pipeline.experiment_settings import seeds_text
from fgrlhf.pipeline.scores import Point
from fgrlhf.report.display import Display
from fgrlhf.report.page import page_template, short_name, stylesheet
from fgrlhf.report.plots import Band, panels
from fgrlhf.report.spread import ONE_RUN
from fgrlhf.report.text import signed


@dataclass(frozen=True)
class RunRow:
    """A run in the table: means over its seeds.

    Attributes:
      best_kl: of the best policy on dev, which has the score.
      kl: at the end of training.
      settings: the name of its config, if it is not that of the first run, and the overrides that
        not all runs have.
    """

    name: str
    score: float
    by_seed: list[float]
    seconds: float
    best_kl: float | None
    kl: float | None
    over_reference: RunDifference | None
    over_first: RunDifference | None
    settings: list[str]


def rows(comparison: RunComparison) -> list[RunRow]:
    """A row for every run, in the order of the comparison."""
    shared = shared_overrides(comparison)
    table = []
    for name, run in comparison.runs.items():
        seeds = list(run.seeds.values())
        table.append(
            RunRow(
                name=name,
                score=float(np.mean([seed.score for seed in seeds])),
                by_seed=[seed.score for seed in seeds],
                seconds=float(np.mean([seed.seconds for seed in seeds])),
                best_kl=_mean([seed.best_kl for seed in seeds]),
                kl=_mean([seed.kl for seed in seeds]),
                over_reference=comparison.difference(name, comparison.reference),
                over_first=comparison.difference(name, comparison.first),
                settings=own_config(run, comparison)
                + [pair for pair in run.overrides if pair not in shared],
            )
        )
    return table


def own_config(run: RunResult, comparison: RunComparison) -> list[str]:
    """The name (its path, if the names are equal) of a config that is not the first run's."""
    of_first = comparison.runs[comparison.first].config
    if run.config == of_first:
        return []
    name = Path(run.config).name
    return [run.config if name == Path(of_first).name else name]


def shared_overrides(comparison: RunComparison) -> list[str]:
    """The overrides that all runs have, in the order of the first run."""
    first, *others = comparison.runs.values()
    return [pair for pair in first.overrides if all(pair in run.overrides for run in others)]


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean over the seeds; None if it is not known for all of them."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return float(np.mean(known))


def explained(comparison: RunComparison) -> str:
    """The meaning of bold and italic, with the number of differences."""
    count = len(comparison.differences)
    if count == 1:
        return "Bold: significant (p < 0.05). Italic: only the interval excludes zero."
    return (
        f"Bold: significant after Holm's correction over all {count} differences. Italic: only the"
        " interval excludes zero, which happens by chance for some of so many differences."
    )


def seeds_left_out(comparison: RunComparison) -> str | None:
    """What the intervals leave out if the comparison has one seed; None if it has several."""
    return ONE_RUN if len(comparison.seeds) == 1 else None


def efficiency_line(comparison: RunComparison) -> str | None:
    """The episodes that every run needed for the final dev score of the first one.

    If the dev scores cannot be compared, it is the reason.
    """
    if not comparison.same_on_dev:
        why = why_dev_differs(comparison.metric)
        return f"The runs' learning curves cannot be compared: {why}"
    if not comparison.efficiency:
        return None
    has_one_seed = len(comparison.seeds) == 1
    runs = []
    for name, reached in comparison.efficiency.items():
        text = f"{name} {_episodes(reached.episodes)}"
        if not has_one_seed and reached.low is not None:
            text += f" [{_episodes(reached.low)}, {_episodes(reached.high)}]"
        runs.append(text)
    if has_one_seed:
        score = "the dev score"
        explanation = ""
    else:
        score = "the mean dev score of the seeds"
        explanation = " (95% interval over seeds)"
    direction = "lower" if comparison.lower_is_better else "higher"
    return (
        f"Episodes until {score} ({direction} is better) first reaches the final one of"
        f" {comparison.first}{explanation}: {', '.join(runs)}."
    )


def processor_line(comparison: RunComparison) -> str | None:
    """What each run's training cost, and its dev score at the cost of the cheapest one.

    None if fewer than two runs logged it.
    """
    curves = {}
    for name, run in comparison.runs.items():
        by_seed = [seed.curve for seed in run.seeds.values()]
        if all(by_seed) and all(curve[-1].cpu_seconds is not None for curve in by_seed):
            curves[name] = by_seed
    if len(curves) < 2:
        return None
    costs = {}
    for name, by_seed in curves.items():
        costs[name] = float(np.mean([_cpu_seconds(curve)[-1] for curve in by_seed]))
    least = min(costs.values())
    line = f"Processor seconds of training, without evaluation: {_listed(costs, '.0f')}."
    if comparison.same_on_dev:
        scores = {name: score_at(by_seed, least) for name, by_seed in curves.items()}
        line += f" Dev score after {least:.0f} of them: {_listed(scores, '.3f')}."
    without = [name for name in comparison.runs if name not in curves]
    if without:
        line += f" Not logged by {', '.join(without)}."
    return line


def score_at(curves: Sequence[Sequence[Point]], cpu_seconds: float) -> float:
    """The mean dev score of the seeds at a time, on the lines between their evaluations."""
    scores = []
    for curve in curves:
        score_N = [point.score for point in curve]
        scores.append(np.interp(cpu_seconds, _cpu_seconds(curve), score_N))
    return float(np.mean(scores))


def _cpu_seconds(curve: Sequence[Point]) -> np.ndarray:
    return np.array([point.cpu_seconds for point in curve], dtype=float)


def _listed(values: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())


def _episodes(value: float | None) -> str:
    return "not reached" if value is None else f"{value:.0f}"


# ---- page ----------------------------------------------------------------------------------------


def titled(what: str, origin: Mapping[str, str]) -> str:
    """The title of a page: what it shows and, if there is one, the task."""
    return " · ".join([what, *([short_name(origin["task"])] if "task" in origin else [])])


def page(
    comparison: RunComparison,
    display: Display,
    source: ModelSource | None,
    origin: Mapping[str, str],
) -> str:
    """index.html: the table, then the dev score over episodes, time and KL.

    Args:
      source: where the pretrained weights of the reference come from, if that is known.
      origin: see `Experiment.origin`.
    """
    metric = display.metric(comparison.metric)
    reference = display.name(comparison.reference)
    return page_template(Path(__file__).parent, "comparison.html.j2").render(
        title=titled("Comparison", origin),
        origin=origin,
        style=stylesheet(),
        comparison=comparison,
        metric=metric,
        reference=reference,
        seeds=seeds_text(comparison.seeds),
        rows=rows(comparison),
        shared_overrides=shared_overrides(comparison),
        others=comparison.others(),
        explained=explained(comparison),
        seeds_left_out=seeds_left_out(comparison),
        efficiency=efficiency_line(comparison),
        processors=processor_line(comparison),
        plots=_plots(comparison, metric),
        source=source,
        signed=signed,
    )


def _plots(comparison: RunComparison, metric: str) -> dict[str, Markup]:
    """The dev scores along each axis, by the axis's title."""
    if not comparison.same_on_dev:
        return {}
    axes = {
        "episodes": "episodes",
        "seconds": "seconds of training, without evaluation",
        "cpu_seconds": "processor seconds of training, without evaluation",
        "kl": "KL from a run's initial policy, per response",
    }
    plots = {}
    for axis, title in axes.items():
        bands = _bands(comparison, axis)
        if bands:
            plots[title] = Markup(panels(f"{metric} on dev", bands, title))
    return plots


def _bands(comparison: RunComparison, axis: str) -> dict[str, Band]:
    """The band of each run that has a curve with every seed, and x at every point."""
    bands = {}
    for name, run in comparison.runs.items():
        curves = [seed.curve for seed in run.seeds.values()]
        x_values = [getattr(point, axis) for curve in curves for point in curve]
        if all(curves) and None not in x_values:
            bands[name] = band(curves, axis)
    return bands


def band(curves: Sequence[Sequence[Point]], axis: str) -> Band:
    """The mean score along `axis`, between the worst and the best seed.

    A seed that stopped early keeps its last score, since its policy no longer changes.

    KL may decrease in training, which would fold the band over itself, so along KL there is only
    the mean of each evaluation.

    Args:
      curves: for each seed its evaluations on dev.
      axis: an attribute of `Point`: episodes, seconds, cpu_seconds or kl.
    """
    if axis == "kl":
        return _line_over_kl(curves)
    x_of_seed = [[getattr(point, axis) for point in curve] for curve in curves]
    start = max(x[0] for x in x_of_seed)  # from here on, every seed has a score
    x_N = np.unique(np.concatenate(x_of_seed))
    x_N = x_N[x_N >= start]
    scores = []
    for x, curve in zip(x_of_seed, curves):
        # beyond the end of a curve, `interp` gives its last score
        scores.append(np.interp(x_N, x, [point.score for point in curve]))
    score_SN = np.stack(scores)
    return Band(x_N, score_SN.mean(0), score_SN.min(0), score_SN.max(0))


def _line_over_kl(curves: Sequence[Sequence[Point]]) -> Band:
    """The mean score of each evaluation over its mean KL; both bounds are the mean."""
    longest = max(len(curve) for curve in curves)
    kl = []
    scores = []
    for curve in curves:
        n_missing = longest - len(curve)  # evaluations after this seed has stopped
        held = [*curve, *[curve[-1]] * n_missing]
        kl.append([point.kl for point in held])
        scores.append([point.score for point in held])
    kl_N = np.array(kl, dtype=float).mean(0)
    score_N = np.array(scores).mean(0)
    return Band(kl_N, score_N, score_N, score_N)


# ---- table ---------------------------------------------------------------------------------------


def table(comparison: RunComparison, display: Display) -> str:
    """The results in Markdown."""
    metric = display.metric(comparison.metric)
    reference = display.name(comparison.reference)
    lines = [
        f"{seeds_text(comparison.seeds)}, {metric} on {comparison.prompts}; {reference}"
        f" {comparison.reference_score:.3f}. 95% intervals over {comparison.interval_over}."
        f" {explained(comparison)} KL: from the run's initial policy on dev, of the policy with the"
        " score.",
        "",
        f"| run | {metric} | by seed | - {reference} | - {comparison.first} | KL | KL at the end"
        " | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows(comparison):
        cells = [
            row.name,
            f"{row.score:.3f}",
            " ".join(f"{value:.3f}" for value in row.by_seed),
            _marked(row.over_reference),
            _marked(row.over_first),
            "" if row.best_kl is None else f"{row.best_kl:.1f}",
            "" if row.kl is None else f"{row.kl:.1f}",
            f"{row.seconds:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    others = comparison.others()
    if others:
        lines += ["", "| other differences | |", "|---|---|"]
        for pair, difference in others.items():
            lines.append(f"| {pair.replace('_vs_', ' - ')} | {_marked(difference)} |")
    below = (seeds_left_out(comparison), efficiency_line(comparison), processor_line(comparison))
    for line in below:
        if line:
            lines += ["", line]
    return "\n".join(lines) + "\n"


def _marked(difference: RunDifference | None) -> str:
    """A difference with its interval, bold or italic as `explained` defines it."""
    if difference is None:
        return ""
    # `z` writes a rounded -0.0004 as +0.000
    text = f"{difference.mean:+z.3f}"
    if difference.low is not None and difference.high is not None:
        text += f" [{difference.low:+z.3f}, {difference.high:+z.3f}]"
    if difference.real:
        return f"**{text}**"
    if difference.excludes_zero:
        return f"*{text}*"
    return text

"""The pictures of a paper's folder, drawn as those of the report, each a file of its own.

Learning curves come from the summary.json of a comparison, with 95% intervals over seeds, or from
the metrics.jsonl of single runs, with those over dev prompts that the runs logged. The other
pictures have the means and intervals of summary.json of evaluations and of pareto.json.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fgrlhf.base.errors import counted
from fgrlhf.base.files import read_json
from fgrlhf.base.records import Record
from fgrlhf.report.data import training_runs
from fgrlhf.report.display import Display
from fgrlhf.report.page import stylesheet
from fgrlhf.report.plots import Band, Point, intervals, panels, scatter
from fgrlhf.report.records import read_record
from fgrlhf.seed_stats import mean_over_seeds
from fgrlhf.stats import Interval, no_interval


@dataclass(frozen=True)
class Picture:
    """A picture and the files that it is drawn from, relative to the outputs folder."""

    name: str
    title: str
    svg: str
    files: tuple[str, ...]


class _CurvePoint(Record, extra="allow"):
    episodes: float
    score: float


class _Seed(Record, extra="allow"):
    curve: list[_CurvePoint] = []


class CurvesOfRun(Record, extra="allow"):
    """A run of a comparison: seed -> its evaluations on dev."""

    seeds: dict[str, _Seed]


class _ComparedCurves(Record, extra="allow"):
    """The curves in the summary.json of a comparison."""

    metric: str = ""
    runs: dict[str, CurvesOfRun] = {}
    same_on_dev: bool = True


class _Value(Record):
    mean: float
    low: float | None
    high: float | None

    @property
    def interval(self) -> Interval:
        return recorded_interval(self.mean, self.low, self.high)


class _ParetoPolicy(Record, extra="allow"):
    values: dict[str, _Value]
    on_front: bool


class _Pareto(Record, extra="allow"):
    policies: dict[str, _ParetoPolicy]


def recorded_interval(mean: float, low: float | None, high: float | None) -> Interval:
    """The interval that a file has; without bounds if it has none."""
    if low is None or high is None:
        return no_interval(mean, "the file has none")
    return Interval(mean, low, high)


def standalone(svg: str) -> str:
    """A plot of the report as a file: in the colours of the light page, with a size."""
    colours: dict[str, str] = {}
    for name, colour in re.findall(r"--([\w-]+): (#[0-9a-f]{6})", stylesheet()):
        colours.setdefault(name, colour)  # the first is that of the light page
    svg = re.sub(r"var\(--([\w-]+)\)", lambda match: colours[match[1]], svg)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size is not None  # matplotlib writes it
    svg = svg.replace("<svg", f'<svg width="{size[1]}pt" height="{size[2]}pt"', 1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg}\n'


# ---- learning curves -----------------------------------------------------------------------------


def learning_curves(folder: Path, display: Display) -> Iterator[Picture]:
    """The headline metrics on dev over training; of a comparison, its own metric."""
    summary = folder / "summary.json"
    given = read_json(summary) if summary.is_file() else {}
    if isinstance(given, Mapping) and {"runs", "differences"} <= given.keys():
        compared = read_record(summary, _ComparedCurves)
        bands = {name: band for name, run in compared.runs.items() if (band := over_seeds(run))}
        if bands and compared.same_on_dev:
            seeds = counted(len(next(iter(compared.runs.values())).seeds), "seed")
            title = f"{compared.metric} on dev: mean and 95% interval over {seeds}"
            name = f"learning-{compared.metric}"
            yield _panels(name, title, bands, ("summary.json",))
        return
    runs = training_runs(folder, display)
    for metric in display.headline:
        bands = {}
        files = []
        for run in runs:
            points = run.points(f"eval/{metric}")
            if len(points) > 1:
                bands[display.name(run.name)] = over_prompts(points)
                own = (folder / "metrics.jsonl").exists()
                files.append("metrics.jsonl" if own else f"{run.name}/metrics.jsonl")
        # rewards of different runs have different units
        if bands and (metric != "reward" or len(bands) == 1):
            title = f"{display.metric(metric)} on dev: 95% intervals over prompts"
            yield _panels(f"learning-{metric}", title, bands, tuple(files))


def _panels(name: str, title: str, bands: Mapping[str, Band], files: tuple[str, ...]) -> Picture:
    return Picture(name, title, panels(title, bands, "episodes"), files)


def over_seeds(run: CurvesOfRun) -> Band | None:
    """The mean over seeds with its interval, where every seed has a score; None without one."""
    by_seed = [{point.episodes: point.score for point in seed.curve} for seed in run.seeds.values()]
    shared = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    found = [mean_over_seeds([scores[x] for scores in by_seed]) for x in shared]
    return _band(shared, found) if found else None


def over_prompts(points: Sequence[Point]) -> Band:
    """The points of a run with the intervals that it logged."""
    found = [recorded_interval(point.y, point.low, point.high) for point in points]
    return _band([point.x for point in points], found)


def _band(x: Sequence[float], found: Sequence[Interval]) -> Band:
    """A line through the means, with a band."""
    mean_N, low_N, high_N = np.array([_drawn(one) for one in found]).T
    return Band(np.array(x), mean_N, low_N, high_N)


def _drawn(one: Interval) -> tuple[float, float, float]:
    """Mean and bounds, which are the mean where there is no interval."""
    return (one.mean, one.low, one.high) if one.has_bounds else (one.mean, one.mean, one.mean)


# ---- final scores --------------------------------------------------------------------------------


def bars(name: str, title: str, scores: Mapping[str, Interval], files: Sequence[str]) -> Picture:
    """A metric of several policies with its intervals."""
    rows = [(policy, [(*_drawn(score), 2)]) for policy, score in scores.items()]
    return Picture(name, title, intervals(title, rows), tuple(dict.fromkeys(files)))


def pareto_fronts(folder: Path, files: Sequence[str]) -> Iterator[Picture]:
    """The policies of each pareto.json by its first two metrics; those on the front stand out."""
    for file in files:
        policies = read_record(folder / file, _Pareto).policies
        first = next(iter(policies.values()), None)
        if first is None or len(first.values) < 2:
            continue
        x, y = list(first.values)[:2]
        shown = {name: one for name, one in policies.items() if {x, y} <= one.values.keys()}
        points = [(one.values[x].interval, one.values[y].interval) for one in shown.values()]
        on_front = [one.on_front for one in shown.values()]
        title = f"Front of {x} and {y}"
        svg = scatter(title, x, y, list(shown), points, on_front)
        yield Picture(f"front-{Path(file).parent.name or x}", title, svg, (file,))

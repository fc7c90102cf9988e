"""Plots as inline SVG. Colours are CSS variables and follow the page's light or dark theme."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fgrlhf.report.display import N_SERIES
from fgrlhf.stats import Interval

# matplotlib needs actual colours: each placeholder below becomes var(--name) in the SVG.
_NAMES = ("fg", "muted", "grid", *(f"series-{i}" for i in range(N_SERIES)))
_PLACEHOLDERS = {name: f"#0000{i + 1:02x}" for i, name in enumerate(_NAMES)}
_FG, _MUTED, _GRID = (_PLACEHOLDERS[name] for name in ("fg", "muted", "grid"))
MOST_COLUMNS = 4  # of `panels`
LARGEST = 1e30  # a larger value is drawn there: matplotlib cannot divide an axis of 1e308
MARKERS = ("o", "s", "^", "D", "v", "P")  # display.SYMBOLS in matplotlib's names
_STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fgrlhf",
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "text.color": _FG,
    "axes.labelcolor": _MUTED,
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "axes.edgecolor": _GRID,
    "xtick.color": _GRID,
    "ytick.color": _GRID,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


@dataclass(frozen=True)
class Point:
    """A point of a line, with the bounds of its 95% interval if they are known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """One line of a plot."""

    name: str
    points: Sequence[Point]
    colour: int  # number of a series colour of the page
    marks: bool = False  # whether to draw every point, else a smoothed line over a faint raw one


def curves(title: str, series: Sequence[Series], xlabel: str, whole_x: bool = True) -> str:
    """Lines in one plot, through their points in the given order.

    Args:
      whole_x: the ticks of the x axis are whole numbers, such as steps.
    """
    with rc_context(_STYLE):
        figure, axes = _axes(3.7, 2.15)
        axes.set_title(title)
        for line in series:
            _draw(axes, line)
        values = [point.y for line in series for point in line.points]
        axes.set_xlabel("; ".join([xlabel, *_cut_note(values)]))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=whole_x))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        return _svg(figure, title)


def _draw(axes: Axes, line: Series) -> None:
    colour = _series_colour(line.colour)
    marker = _marker(line.colour)
    x = np.array([point.x for point in line.points], dtype=float)
    y = _cut([point.y for point in line.points])
    if not line.marks:
        axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.28)
        # about six markers, which tell lines apart without colours
        distance = max(len(x) // 6, 1)
        style: dict[str, Any] = {"marker": marker, "markersize": 4, "markevery": distance}
        axes.plot(x, smooth(y), color=colour, linewidth=1.8, **style)
        return
    axes.plot(x, y, color=colour, linewidth=1.6, marker=marker, markersize=4)
    for point in line.points:
        if point.low is not None and point.high is not None:
            bounds = _cut([point.low, point.high])
            axes.plot([point.x, point.x], bounds, color=colour, linewidth=1.6, alpha=0.45)


def smooth(y: np.ndarray) -> np.ndarray:
    """Centred moving average over a tenth of the points, over fewer at the ends."""
    half = max(len(y) // 20, 1)
    # the sum of y[low:high] is the difference of two cumulative sums
    sums = np.concatenate([[0.0], np.cumsum(y)])
    low = np.clip(np.arange(len(y)) - half, 0, None)
    high = np.clip(np.arange(len(y)) + half + 1, None, len(y))
    return (sums[high] - sums[low]) / (high - low)


Mark = tuple[float, float, float, int]  # mean, low, high, colour


def intervals(title: str, rows: Sequence[tuple[str, Sequence[Mark]]], xlabel: str = "") -> str:
    """One row per name, with a marker and its interval for each mark.

    Args:
      xlabel: text below the axis. If the axis does not begin at zero, the label says where.
    """
    with rc_context(_STYLE):
        figure, axes = _axes(7.6, 0.75 + 0.5 * len(rows))
        axes.set_title(title)
        for row, (_, marks) in enumerate(rows):
            middle = (len(marks) - 1) / 2
            for i, (mean, low, high, colour) in enumerate(marks):
                y = row + (i - middle) * 0.2
                style: dict[str, Any] = {
                    "color": _series_colour(colour),
                    "solid_capstyle": "round",
                }
                axes.plot(_cut([low, high]), [y, y], linewidth=2.4, alpha=0.45, **style)
                axes.plot(_cut([mean]), [y], _marker(colour), markersize=5.5, **style)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.tick_params(axis="y", labelcolor=_FG)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        start = axes.get_xlim()[0]
        notes = [xlabel] if xlabel else []
        if start > 0:
            begin = f"{start:.2f}" if start >= 0.01 else f"{start:.1g}"  # never "0.00"
            notes.append(f"the axis begins at {begin}, not at 0")
        notes += _cut_note([value for _, marks in rows for mark in marks for value in mark[:3]])
        axes.set_xlabel("; ".join(notes))
        return _svg(figure, title)


@dataclass(frozen=True)
class Band:
    """A line between a lower and an upper bound."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


def panels(title: str, bands: Mapping[str, Band], xlabel: str) -> str:
    """A small plot for each band, with shared axes. Each repeats the first band's line in grey."""
    rows = math.ceil(len(bands) / MOST_COLUMNS)
    columns = min(MOST_COLUMNS, len(bands))
    with rc_context(_STYLE):
        figure = Figure(figsize=(10, 0.5 + 1.9 * rows), layout="constrained")
        figure.patch.set_visible(False)
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        reference = next(iter(bands.values()))
        for place, (axes, (name, band)) in enumerate(zip(grid, bands.items())):
            axes.patch.set_visible(False)
            colour = _series_colour(2 if place == 0 else 1)
            axes.plot(reference.x, _cut(reference.y), color=_MUTED, linewidth=1.2)
            axes.fill_between(
                band.x, _cut(band.low), _cut(band.high), color=colour, alpha=0.2, linewidth=0
            )
            axes.plot(band.x, _cut(band.y), color=colour, linewidth=1.8)
            axes.set_title(name)
            axes.xaxis.set_major_locator(MaxNLocator(4))
            is_lowest = place + columns >= len(bands)  # of its column
            axes.tick_params(labelbottom=is_lowest)
        for axes in grid[len(bands) :]:
            axes.set_visible(False)
        figure.supxlabel(xlabel, fontsize=9, color=_MUTED)
        return _svg(figure, f"{title} against {xlabel}")


def histograms(title: str, values: Mapping[str, Sequence[float]], xlabel: str) -> str:
    """Distributions as outlines over the same bins. The last bin also holds the largest 1%."""
    samples = {name: _cut(sample) for name, sample in values.items()}
    together = np.concatenate(list(samples.values()))
    lowest = float(together.min())
    highest = max(float(np.percentile(together, 99)), lowest + 1)
    bins = np.linspace(lowest, highest, 31)
    with rc_context(_STYLE):
        figure, axes = _axes(3.7, 2.15)
        axes.set_title(title)
        for colour, (name, sample) in enumerate(samples.items(), 1):
            counts, _ = np.histogram(np.clip(sample, None, highest), bins)
            style: dict[str, Any] = {"color": _series_colour(colour), "label": name}
            axes.stairs(counts / max(len(sample), 1), bins, linewidth=1.6, **style)
        if len(samples) > 1:
            axes.legend(frameon=False, fontsize=8)
        axes.set(xlabel=xlabel, ylabel="share")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        return _svg(figure, title)


def calibration(title: str, bins: Sequence[tuple[float, float, int]], colour: int) -> str:
    """Observed frequency over predicted probability; a dot's area shows the cases in its bin."""
    with rc_context(_STYLE):
        figure, axes = _axes(2.9, 2.3)
        axes.plot([0, 1], [0, 1], color=_MUTED, linewidth=1, linestyle=(0, (3, 3)))
        predicted, observed, count = np.array(bins, dtype=float).reshape(-1, 3).T
        area = 12 + 110 * count / max(count.max(initial=1), 1)
        axes.plot(predicted, observed, color=_series_colour(colour), linewidth=1.4, alpha=0.6)
        axes.scatter(
            predicted, observed, s=area, color=_series_colour(colour), alpha=0.85, linewidths=0
        )
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="predicted", ylabel="observed")
        axes.set_xticks([0, 0.5, 1])
        axes.set_yticks([0, 0.5, 1])
        return _svg(figure, title)


def scatter(
    title: str,
    xlabel: str,
    ylabel: str,
    names: Sequence[str],
    points: Sequence[tuple[Interval, Interval]],
    highlighted: Sequence[bool],
) -> str:
    """A named point with the intervals of both coordinates for each name.

    Args:
      highlighted: points in the colour of the first series; the others are grey.
    """
    with rc_context(_STYLE):
        figure, axes = _axes(5.2, 3.6)
        axes.set_title(title)
        for name, (x, y), is_first in zip(names, points, highlighted):
            colour = _series_colour(1) if is_first else _MUTED
            if x.has_bounds:
                axes.plot([x.low, x.high], [y.mean] * 2, color=colour, linewidth=1.6, alpha=0.45)
            if y.has_bounds:
                axes.plot([x.mean] * 2, [y.low, y.high], color=colour, linewidth=1.6, alpha=0.45)
            axes.plot([x.mean], [y.mean], color=colour, marker="o", markersize=5)
            place = {"xytext": (5, 4), "textcoords": "offset points"}
            axes.annotate(name, (x.mean, y.mean), color=_FG, fontsize=8, **place)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        return _svg(figure, title)


def _cut(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The values, those beyond `LARGEST` moved there."""
    return np.clip(np.asarray(values, dtype=float), -LARGEST, LARGEST)


def _cut_note(values: Sequence[float]) -> list[str]:
    """A note if values are not drawn where they are; [] if all are."""
    is_cut = any(abs(value) > LARGEST for value in values)
    return [f"values beyond {LARGEST:.0e} are drawn there"] if is_cut else []


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.subplots()
    axes.patch.set_visible(False)
    return figure, axes


def _marker(number: int) -> str:
    return MARKERS[number % N_SERIES]


def _series_colour(number: int) -> str:
    return _PLACEHOLDERS[f"series-{number % N_SERIES}"]


def _svg(figure: Figure, title: str) -> str:
    buffer = StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    # `savefig` would draw the figure twice: the first time only for its layout
    FigureCanvasSVG(figure).print_svg(buffer, metadata=no_metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[\d.]+pt"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[\d.]+pt"', r"\1", svg, count=1)
    # remove styles, which would apply to the whole page, and ids, which must be unique in it
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    names = {colour: f"var(--{name})" for name, colour in _PLACEHOLDERS.items()}
    svg = re.sub(r"#0000[0-9a-f]{2}", lambda match: names.get(match[0], match[0]), svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1).strip()

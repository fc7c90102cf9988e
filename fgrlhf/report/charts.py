"""Plots with their numbers as a table, for readers who cannot see a plot or want its values."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from fgrlhf.report import plots
from fgrlhf.report.plots import Mark, Series
from fgrlhf.report.text import minus

MOST_POINTS = 20  # of a line in a table; the downloads have all of them


@dataclass(frozen=True)
class Table:
    """Numbers as text; the first column names the rows."""

    headings: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A plot and its numbers."""

    title: str
    svg: Markup
    table: Table


@dataclass(frozen=True)
class Legend:
    """The meaning of a line or marker: the number of its series colour, and its name."""

    colour: int
    name: str


@dataclass(frozen=True)
class Group:
    """Charts with a common legend."""

    title: str
    note: str
    legend: list[Legend]
    charts: list[Chart]


def line_chart(title: str, series: Sequence[Series], xlabel: str, whole_x: bool = True) -> Chart:
    """Lines, and at most `MOST_POINTS` points of each in the table."""
    table = line_table(series, xlabel)
    return Chart(title, Markup(plots.curves(title, series, xlabel, whole_x)), table)


def line_table(series: Sequence[Series], xlabel: str) -> Table:
    has_intervals = any(point.low is not None for line in series for point in line.points)
    headings = ["line", xlabel, "value"]
    if has_intervals:
        headings.append("95% interval")
    rows = []
    for line in series:
        for i in evenly(len(line.points), MOST_POINTS):
            point = line.points[i]
            row = [line.name, number(point.x), number(point.y)]
            if has_intervals:
                row.append(bounds(point.low, point.high))
            rows.append(row)
    is_cut = any(len(line.points) > MOST_POINTS for line in series)
    note = f"{MOST_POINTS} points of each line; the downloads have all of them." if is_cut else ""
    return Table(headings, rows, note)


def interval_chart(
    title: str,
    rows: Sequence[tuple[str, Sequence[Mark]]],
    names: Sequence[Sequence[str]],
    xlabel: str,
) -> Chart:
    """The means and intervals of policies, in a row for each metric.

    Args:
      rows: the metric and the marks of each row.
      names: for each row the policies of its marks.
    """
    cells = []
    for (metric, marks), policies in zip(rows, names, strict=True):
        for (mean, low, high, _), policy in zip(marks, policies, strict=True):
            cells.append([metric, policy, number(mean), bounds(low, high)])
    table = Table(["metric", "policy", "mean", "95% interval"], cells)
    return Chart(title, Markup(plots.intervals(title, rows, xlabel)), table)


def calibration_chart(title: str, bins: Sequence[tuple[float, float, int]], colour: int) -> Chart:
    """A calibration plot and its bins."""
    rows = [[number(x), number(y), str(count)] for x, y, count in bins]
    table = Table(["predicted", "observed", "cases"], rows)
    return Chart(title, Markup(plots.calibration(title, bins, colour)), table)


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of the indices 0..count-1, at even distances, with the first and the last."""
    if count <= most:
        return list(range(count))
    return [round(i) for i in np.linspace(0, count - 1, most).tolist()]


def number(value: float) -> str:
    """Four significant digits; a whole number from 1000 on, such as 12800 episodes."""
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return minus(text)


def bounds(low: float | None, high: float | None) -> str:
    """`low to high`; a dash if a bound is not known."""
    if low is None or high is None:
        return "–"
    return f"{number(low)} to {number(high)}"

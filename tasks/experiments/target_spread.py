"""The spread of the demo's figures over several runs, next to its targets.

    for seed in 0 1 2 3 4; do make demo ARGS="seed=$seed"; done
    cd outputs/qa_feedback && python -m tasks.experiments.target_spread folders=mini,mini-seed-1

A target with a lower limit should lie below the mean minus three standard deviations of the runs,
so that a correct pipeline misses it on no seed and no processor; one with an upper limit, above the
mean plus three. Runs on other processors, or with their instructions emulated (the variables of
scripts/processors.py), count like other seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel
from fgrlhf.pipeline.summary import grid
from tasks.experiments.summary_table import TARGETS, target_text, targets

DEVIATIONS = 3


class TargetSpreadSettings(StrictModel):
    """The runs."""

    folders: str = Field(description="output folders of `make demo`, separated by commas")
    scale: Literal["mini", "small"] = Field(default="mini", description="of the runs")


@dataclass(frozen=True)
class TargetSpread:
    """The values of a figure in several runs, next to its target.

    Attributes:
      low, high: the limits of the target; None without one.
    """

    name: str
    values: tuple[float, ...]
    low: float | None
    high: float | None

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def sd(self) -> float:
        """The standard deviation, with n - 1."""
        return stdev(self.values)

    @property
    def below(self) -> float:
        return self.mean - DEVIATIONS * self.sd

    @property
    def above(self) -> float:
        return self.mean + DEVIATIONS * self.sd

    @property
    def is_safe(self) -> bool:
        """Whether no limit lies between `below` and `above`."""
        low_is_safe = self.low is None or self.low <= self.below
        return low_is_safe and (self.high is None or self.above <= self.high)


def spread_of(summaries: Sequence[Mapping[str, Any]], scale: str) -> list[TargetSpread]:
    """The spread of every figure that has a target.

    Args:
      summaries: the contents of each run's summary.json.

    Raises:
      UserError: there are fewer than two runs, or a run lacks a figure.
    """
    if len(summaries) < 2:
        raise UserError("a spread needs at least two runs: give more folders, separated by commas")
    values: dict[str, list[float]] = {}
    for summary in summaries:
        for name, value, _, _ in targets(summary):
            values.setdefault(name, []).append(value)
    spreads = []
    for name, _, low, high in TARGETS[scale]:
        found = values.get(name, [])
        if len(found) != len(summaries):
            raise UserError(f"{len(summaries) - len(found)} of the runs have no figure of `{name}`")
        spreads.append(TargetSpread(name, tuple(found), low, high))
    return spreads


def table(spreads: Sequence[TargetSpread]) -> str:
    """A line for each figure."""
    cells = [["figure", "values", "mean", "sd", "3 sd below, above", "target", ""]]
    for spread in spreads:
        values = " ".join(f"{value:.3f}" for value in spread.values)
        moments = (f"{spread.mean:.3f}", f"{spread.sd:.3f}")
        limits = (f"{spread.below:.3f}, {spread.above:.3f}", target_text(spread.low, spread.high))
        warning = "" if spread.is_safe else "WITHIN 3 SD"
        cells.append([spread.name, values, *moments, *limits, warning])
    return "\n".join(grid(cells))


def main(argv: Sequence[str] | None = None) -> None:
    settings = settings_from(TargetSpreadSettings, argv)
    folders = settings.folders.split(",")
    summaries = [read_json(Path(folder) / "summary.json") for folder in folders]
    print(table(spread_of(summaries, settings.scale)))


if __name__ == "__main__":
    run_main(main)

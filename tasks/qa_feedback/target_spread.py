"""The spread of the demo's figures over several runs, next to its targets.

    for seed in 0 1 2 3 4; do make demo ARGS="seed=$seed"; done
    cd outputs/qa_feedback && python -m tasks.qa_feedback.target_spread folders=mini,mini-seed-1

A target with a lower limit should lie below the mean minus three standard deviations of the runs,
so that a correct pipeline misses it on no seed and no processor; one with an upper limit, above the
mean plus three. Runs on other processors, or with their instructions emulated (the variables of
scripts/processors.sh), count like other seeds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel
from fgrlhf.pipeline.summary import grid
from tasks.qa_feedback.summary_table import ABOVE_ZERO, TARGETS, targets

DEVIATIONS = 3


class Settings(StrictModel):
    """The runs."""

    folders: str = Field(description="output folders of `make demo`, separated by commas")
    scale: str = Field(default="mini", description="of the runs: mini or small")


def spread_of(summaries: Sequence[Mapping[str, Any]], scale: str) -> list[dict[str, Any]]:
    """For each target: its values, their mean and standard deviation, and whether it is safe.

    Returns:
      Rows {name, values, mean, sd, below, above, low, high, safe}: `below` and `above` are the mean
      minus and plus `DEVIATIONS` standard deviations (with n - 1), `low` and `high` the limits of
      the target (or None). It is safe if neither limit lies between them.

    Raises:
      UserError: there are fewer than two runs, or a run lacks a figure.
    """
    if len(summaries) < 2:
        raise UserError("a spread needs at least two runs: give more folders, separated by commas")
    values: dict[str, list[float]] = {}
    for summary in summaries:
        for name, value, _, _ in targets(summary):
            values.setdefault(name, []).append(value)
    rows = []
    for name, _, low, high in TARGETS[scale]:
        found = values.get(name, [])
        if len(found) != len(summaries):
            raise UserError(f"{len(summaries) - len(found)} of the runs have no figure of `{name}`")
        mean, sd = float(np.mean(found)), float(np.std(found, ddof=1))
        below, above = mean - DEVIATIONS * sd, mean + DEVIATIONS * sd
        rows.append(
            {
                "name": name,
                "values": found,
                "mean": mean,
                "sd": sd,
                "below": below,
                "above": above,
                "low": low,
                "high": high,
                "safe": (low is None or low <= below) and (high is None or above <= high),
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `spread_of` as text."""
    cells = [["figure", "values", "mean", "sd", "3 sd below, above", "target", ""]]
    for row in rows:
        limits = []
        if row["low"] is not None:
            limits.append("above 0" if row["low"] == ABOVE_ZERO else f"at least {row['low']}")
        if row["high"] is not None:
            limits.append(f"at most {row['high']}")
        cells.append(
            [
                row["name"],
                " ".join(f"{value:.3f}" for value in row["values"]),
                f"{row['mean']:.3f}",
                f"{row['sd']:.3f}",
                f"{row['below']:.3f}, {row['above']:.3f}",
                ", ".join(limits),
                "" if row["safe"] else "WITHIN 3 SD",
            ]
        )
    return "\n".join(grid(cells))


def main(argv: Sequence[str] | None = None) -> None:
    settings = settings_from(Settings, argv)
    summaries = []
    for folder in settings.folders.split(","):
        summaries.append(read_json(Path(folder) / "summary.json"))
    print(table(spread_of(summaries, settings.scale)))


if __name__ == "__main__":
    run_main(main)

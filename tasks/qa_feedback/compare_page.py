"""The page and the table of compare.py: what several algorithms and seeds reached, from its
summary.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import fgrlhf
from fgrlhf.report.plots import Band, panels

HOLISTIC = "-holistic"
CSS = Path(fgrlhf.__path__[0]) / "report.css"
AXES = {
    "episodes": "episodes",
    "seconds": "seconds of training, without evaluation",
    "kl": "KL from SFT, per answer",
}


def page(found: Mapping) -> str:
    """index.html, self-contained: the table, then the true score over episodes, time and KL."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("compare.html.j2").render(
        style=Markup(CSS.read_text(encoding="utf-8")),
        found=found,
        rows=rows(found),
        others=others(found),
        first=first(found),
        explained=explained(found),
        pictures={title: Markup(picture(found, axis, title)) for axis, title in AXES.items()},
    )


def first(found: Mapping) -> str:
    return next(iter(found["runs"]))


def rows(found: Mapping) -> list[dict]:
    """One row per algorithm: mean and seeds' figures, and its differences from SFT and from the
    first algorithm.
    """
    made = []
    for name, by_seed in found["runs"].items():
        runs = list(by_seed.values())
        made.append(
            {
                "name": name,
                "gold": np.mean([run["gold"] for run in runs]),
                "by_seed": [run["gold"] for run in runs],
                "seconds": np.mean([run["seconds"] for run in runs]),
                "kl": None if runs[0]["kl"] is None else np.mean([run["kl"] for run in runs]),
                "over_sft": found["differences"][f"{name}_vs_sft"],
                "over_first": found["differences"].get(f"{name}_vs_{first(found)}"),
                "settings": found["settings"][name],
            }
        )
    return made


def others(found: Mapping) -> dict[str, dict]:
    """Every algorithm beside itself with holistic rewards, and the remaining pairs, rewards alike,
    whose interval excludes zero.
    """

    def shown(pair: str) -> bool:
        a, b = pair.split("_vs_")
        if HOLISTIC in a or HOLISTIC in b:
            return a.removesuffix(HOLISTIC) == b.removesuffix(HOLISTIC)
        return b not in ("sft", first(found)) and found["differences"][pair]["excludes_zero"]

    return {pair: difference for pair, difference in found["differences"].items() if shown(pair)}


def picture(found: Mapping, axis: str, xlabel: str) -> str:
    """The true score on dev over `axis`: a panel for each algorithm, the first one in grey in all
    of them.
    """
    bands = {}
    for name, by_seed in found["runs"].items():
        curves = [run["curve"] for run in by_seed.values()]
        if not all(curves):
            continue
        length = min(map(len, curves))  # a run that stopped early is shorter
        x, gold = (
            np.array([[point[key] for point in curve[:length]] for curve in curves])
            for key in (axis, "gold")
        )
        mean = gold.mean(0)
        low, high = (
            (mean, mean) if axis == "kl" else (gold.min(0), gold.max(0))
        )  # KL may fall: a band would fold
        bands[name] = Band(x.mean(0), mean, low, high)
    return panels("True score on dev", bands, xlabel)


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def interval(difference: Mapping | None) -> str:
    return (
        f"{difference['mean']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]"
        if difference
        else ""
    )


def table(found: Mapping) -> str:
    """The results in Markdown. Bold: real after correction; italic: only the uncorrected interval
    excludes zero.
    """
    lines = [
        (
            f"{len(found['seeds'])} seeds, {found['steps']} steps, gold score on the test"
            f" questions; SFT {found['sft']['gold']:.3f}. 95% intervals over questions and seeds."
            f" {explained(found)}"
        ),
        "",
        f"| algorithm | gold | by seed | - SFT | - {first(found)} | KL | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows(found):
        cells = [_marked(row["over_sft"]), _marked(row["over_first"])]
        seeds = " ".join(f"{value:.3f}" for value in row["by_seed"])
        lines.append(
            f"| {row['name']} | {row['gold']:.3f} | {seeds} | {cells[0]} | {cells[1]} |"
            f" {number(row['kl'])} | {row['seconds']:.0f} |"
        )
    more = [
        f"| {pair.replace('_vs_', ' - ')} | {_marked(difference)} |"
        for pair, difference in others(found).items()
    ]
    return (
        "\n".join([*lines, *(["", "| other differences | |", "|---|---|", *more] if more else [])])
        + "\n"
    )


def explained(found: Mapping) -> str:
    """What bold and italic mean, with the number of comparisons."""
    return (
        f"Bold: real after Holm's correction over all {len(found['differences'])} differences."
        " Italic: the interval by itself excludes zero, which among so many some do by chance."
    )


def _marked(difference: Mapping | None) -> str:
    text = interval(difference)
    if not difference:
        return text
    if difference["real"]:
        return f"**{text}**"
    return f"*{text}*" if difference["excludes_zero"] else text

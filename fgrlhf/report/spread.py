"""What the intervals of one run leave out: other seeds and processors.

A run with another seed, or on a processor that rounds differently, trains another model. The
interval of one run covers the choice of its prompts only, so a report states beside its figures how
far other runs spread, if the task has measured that (`Display.spreads`), or that it is not known.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fgrlhf.report.display import Display, Spread
from fgrlhf.report.text import signed

ONE_RUN = (
    "One run: the interval covers the choice of prompts only, not seeds or processors; compare"
    " seeds with `fgrlhf compare ... seeds=0,1,2`."
)

Pair = tuple[str, str]  # (`a_vs_b`, name of a metric in evaluation rows)


def known_spreads(
    compared: Mapping[str, Iterable[str]], display: Display, scale: Any, data: Any
) -> dict[Pair, Spread]:
    """The measured spreads of paired differences, in the order of the differences.

    Args:
      compared: `a_vs_b` -> metrics, as in the `gains` of summary.json.
      scale, data: of the run, as in summary.json; None: not known, so no spread is.
    """
    measured = {}
    for spread in display.spreads:
        if (spread.scale, spread.data) == (scale, data):
            measured[spread.pair, spread.metric] = spread
    keys = []
    for pair, metrics in compared.items():
        keys += [(pair, display.metric_of_gain(metric)) for metric in metrics]
    return {key: measured[key] for key in keys if key in measured}


def spread_text(spread: Spread) -> str:
    """`9 runs over seeds and processors: mean +0.137, standard deviation 0.039`."""
    return (
        f"{len(spread.gains)} runs over {spread.over}: mean {signed(spread.mean, 3)}, standard"
        f" deviation {spread.deviation:.3f}"
    )


def spread_line(name: str, spread: Spread, display: Display) -> str:
    """The spread of a difference as a line, with its source.

    Args:
      name: of the two policies.
    """
    metric = display.metric(spread.metric)
    return f"{name}, {metric}: {spread_text(spread)} ({spread.source})"

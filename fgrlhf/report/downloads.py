"""The numbers of a report as CSV files, inside the page as `data:` links.

A link with a `download` attribute fetches nothing and runs nothing, so it works offline and under
the page's content policy, and the numbers stay with the page if it is sent to someone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fgrlhf.report.data import Outputs
from fgrlhf.report.records import Gain, RecordedInterval
from fgrlhf.report.sections import flat_metrics
from fgrlhf.report.text import csv_text

# browsers refuse longer links
MOST_CHARACTERS = 1_500_000
COLUMNS = ("part", "name", "metric", "value", "low", "high")
DIGITS = 7


@dataclass(frozen=True)
class Download:
    """A file: its name, its `data:` link, and what it holds."""

    name: str
    link: str
    content: str


def downloads(outputs: Outputs, compared: Mapping[str, Mapping[str, Gain]]) -> list[Download]:
    """`results.csv`, and a file for every training run with a line per logged step."""
    rows = list(_results(outputs, compared))
    files = []
    if rows:
        text = csv_text([COLUMNS, *rows], DIGITS)
        files.append(Download("results.csv", data_link(text), "results, reward models, stages"))
    for log in [*outputs.runs, *outputs.training]:
        files.append(log_file(log.name, log.metrics))
    return files


def _results(
    outputs: Outputs, compared: Mapping[str, Mapping[str, Gain]]
) -> Iterable[Sequence[Any]]:
    """The rows of `results.csv`, with the columns `COLUMNS`."""
    for name, metrics in outputs.policies.items():
        for metric, value in flat_metrics(metrics).items():
            yield "policy", name, metric, *_interval(value)
    for name, gains in compared.items():
        for metric, gain in gains.items():
            yield "paired difference", name, metric, *_interval(gain)
    for name, model in outputs.reward_models.items():
        for metric, value in model.metrics or ():
            if isinstance(value, int | float):
                yield "reward model on dev", name, metric, value, "", ""
    for name, metrics in (outputs.summary.reward_models or {}).items():
        part = f"reward model on {outputs.summary.reward_models_on or 'dev'}, summary"
        for metric, value in (metrics or {}).items():
            yield part, name, metric, value, "", ""
    for name, stage in outputs.stages.items():
        yield "stage", name, "seconds", stage.seconds, "", ""
        yield "stage", name, "peak_mb", stage.peak_mb, "", ""


def _interval(value: RecordedInterval | Gain) -> tuple[float | None, float | None, float | None]:
    return value.mean, value.low, value.high


def log_file(name: str, metrics: Sequence[Mapping[str, Any]]) -> Download:
    """A log as a table; of a very long log only every second, third, ... line.

    Args:
      metrics: the lines of metrics.jsonl.
    """
    columns = list(dict.fromkeys(key for line in metrics for key in line))
    distance = 1  # between the lines that are kept
    link = _log_link(columns, metrics)
    while len(link) > MOST_CHARACTERS:
        distance += 1
        link = _log_link(columns, metrics[::distance])
    content = "every logged step"
    if distance > 1:
        content = f"one in {distance} lines of metrics.jsonl"
    return Download(f"{name}.csv", link, content)


def _log_link(columns: Sequence[str], metrics: Iterable[Mapping[str, Any]]) -> str:
    rows: list[Sequence[Any]] = [columns]
    for line in metrics:
        rows.append([line.get(key) for key in columns])
    return data_link(csv_text(rows, DIGITS))


def data_link(text: str) -> str:
    """A `data:` link to a CSV file."""
    return f"data:text/csv;charset=utf-8,{quote(text, safe=',:/')}"

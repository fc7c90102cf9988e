"""Trains a linear text scorer for every label of a file (fgrlhf/scorers/linear.py).

    fgrlhf rm linear texts=labelled.json output_dir=outputs/scorers

The rows of the file are {text, label}. The scorer in <output_dir>/<label> gives the probability of
its label, against all others.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from fgrlhf.base.program import run_main
from fgrlhf.base.records import Record, Text, read_all
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.read import read_rows
from fgrlhf.scorers.linear import LinearScorer, fit_linear_scorer

USAGE = "usage: fgrlhf rm linear texts=... output_dir=..."


def _folder_name(label: str) -> str:
    if "/" in label or label.startswith("."):
        raise ValueError("names a folder, so it must have no slash and not begin with a full stop")
    return label


class LabelledText(Record):
    """A row of the file."""

    text: Text
    label: Annotated[Text, AfterValidator(_folder_name)]


class LinearScorerSettings(StrictModel):
    """The labelled texts, and where to save the scorers."""

    texts: FilePath = Field(description="rows {text, label}")
    output_dir: FilePath = Field(description="folder of the scorers, one for each label")


def read_labelled(path: str) -> tuple[list[str], list[str]]:
    """The texts of a file and their labels.

    Raises:
      UserError: rows are malformed; the message lists the first of them.
    """
    rows = read_all(LabelledText, read_rows(path), path, "trained on")
    return [row.text for row in rows], [row.label for row in rows]


def train_scorers(settings: LinearScorerSettings) -> dict[str, LinearScorer]:
    """Train and save a scorer for every label.

    Raises:
      UserError: rows are malformed, or there is nothing to learn from them.
    """
    texts, labels = read_labelled(settings.texts)
    scorers = {}
    for label in dict.fromkeys(labels):
        scorer = fit_linear_scorer(texts, [other == label for other in labels], label)
        scorer.save(Path(settings.output_dir) / label)
        print(f"{Path(settings.output_dir) / label}: {labels.count(label):,} of {len(texts):,}")
        scorers[label] = scorer
    return scorers


def main(argv: Sequence[str] | None = None) -> None:
    train_scorers(settings_from(LinearScorerSettings, argv, USAGE))


if __name__ == "__main__":
    run_main(main)

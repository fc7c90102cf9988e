"""Trains a linear text scorer for every label of a file (fgrlhf/scorers/linear.py).

    fgrlhf rm linear texts=labelled.json output_dir=outputs/scorers

The rows of the file are {text, label}. The scorer in <output_dir>/<label> gives the probability of
its label, against all others.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.checks import refuse_rows, text_problem, type_name
from fgrlhf.data.read import read_rows
from fgrlhf.scorers.linear import LinearScorer, fit_linear_scorer

USAGE = "usage: fgrlhf rm linear texts=... output_dir=..."


class Settings(StrictModel):
    """The labelled texts, and where to save the scorers."""

    texts: FilePath = Field(description="rows {text, label}")
    output_dir: FilePath = Field(description="folder of the scorers, one for each label")


def read_labelled(path: str) -> tuple[list[str], list[str]]:
    """The texts of a file and their labels.

    Raises:
      UserError: rows are malformed; the message lists the first of them.
    """
    texts = []
    labels = []
    problems = []
    for number, row in enumerate(read_rows(path)):
        problem = _row_problem(row)
        if problem is not None:
            problems.append(f"row {number}: {problem}")
            continue
        texts.append(row["text"])
        labels.append(row["label"])
    refuse_rows(path, problems)
    return texts, labels


def _row_problem(row: object) -> str | None:
    if not isinstance(row, dict):
        return f"must be an object, it is {type_name(row)}"
    for key in ("text", "label"):
        problem = text_problem(row.get(key))
        if problem is not None:
            return f"`{key}`: {problem}"
    if "/" in row["label"] or row["label"].startswith("."):
        return "`label`: names a folder, so it must have no slash and not begin with a full stop"
    return None


def train_scorers(settings: Settings) -> dict[str, LinearScorer]:
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
    train_scorers(settings_from(Settings, argv, USAGE))


if __name__ == "__main__":
    run_main(main)

"""Train the two linear scorers: the one that rewards and the judge that is never rewarded.

    python -m tasks.detoxification.scorers data_dir=FOLDER output_dir=FOLDER

Writes <output_dir>/reward_scorer and <output_dir>/judge (fgrlhf/scorers/linear.py), and
prints the area under the ROC curve of both, each on held-out texts of both kinds of labels.
"""

from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.scorers.linear import LinearScorer, area_under_roc, fit_linear_scorer

# scorer -> its labelled texts, written by data/prepare.py
EXAMPLES = {"reward_scorer": "span_sentences.json", "judge": "rated_texts.json"}

Labelled = tuple[list[str], list[bool]]


class ScorersSettings(StrictModel):
    """Folders of the scorers."""

    data_dir: FilePath = Field(description="folder of the prepared data")
    output_dir: FilePath = Field(description="folder of the results")


def read_examples(path: Path) -> tuple[Labelled, Labelled]:
    """The examples to train on, and the held-out ones.

    Raises:
      UserError: the file is missing or malformed.
    """
    rows = read_json(path)
    parts: dict[bool, Labelled] = {False: ([], []), True: ([], [])}
    try:
        for row in rows:
            texts, toxic = parts[row["held_out"]]
            texts.append(row["text"])
            toxic.append(row["toxic"])
    except (KeyError, TypeError):
        raise UserError(f"{path} is damaged: prepare the data again") from None
    return parts[False], parts[True]


def train_scorers(config: ScorersSettings) -> dict[str, LinearScorer]:
    """Train and save both scorers, and print how well they do."""
    examples: dict[str, Any] = {}
    for name, file in EXAMPLES.items():
        examples[name] = read_examples(Path(config.data_dir) / file)
    scorers = {}
    for name, (training, held_out) in examples.items():
        scorer = fit_linear_scorer(*training, label="toxic", held_out=held_out)
        scorer.save(Path(config.output_dir) / name)
        scorers[name] = scorer
    for name, scorer in scorers.items():
        for other, (_, held_out) in examples.items():
            auc = area_under_roc(scorer, *held_out)
            shown = "undefined" if auc is None else f"{auc:.3f}"
            print(
                f"{name}: AUC {shown} on {len(held_out[0]):,} held-out texts of {EXAMPLES[other]}"
            )
    return scorers


if __name__ == "__main__":
    run_program(train_scorers, ScorersSettings)

"""Sampled answers of the mini world -> {train,dev}_feedback.json, by the simulated annotator.

python -m tasks.qa_feedback.data.collect_feedback data_dir=... samples=.../samples.jsonl split=train
"""

import random
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.seeds import derive_seed
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.data.annotator import Habits, annotate
from tasks.qa_feedback.data.oracle import Facts
from tasks.qa_feedback.feedback import (
    FeedbackRow,
    SplitName,
    load_examples,
    read_samples,
    write_feedback,
)


class CollectFeedbackSettings(StrictModel):
    """The answers to annotate, and how reliable the annotator is."""

    data_dir: FilePath = Field(description="folder of the rows")
    samples: str = Field(description="samples.jsonl from generate.sh, four predictions per row")
    split: SplitName = Field(
        default="train",
        description="split of the questions; the output is <data_dir>/<split>_feedback.json",
    )
    noise: float = Field(
        default=0.05, ge=0, le=1, description="probability that a judgement is flipped"
    )
    temperature: float = Field(
        default=0.05, gt=0, description="of preferences, in units of the gold score"
    )
    perturbed: float = Field(
        default=0.25, ge=0, le=1, description="share of answers perturbed before they are annotated"
    )
    seed: int = Field(default=0, description="of everything random")


def collect(settings: CollectFeedbackSettings) -> Path:
    """Write the feedback file, whole or not at all.

    Raises:
      DataError: a line of the samples is malformed.
      UserError: a file is missing, or a sample does not belong to a question of this world's split.
    """
    folder = Path(settings.data_dir)
    prompts = {prompt.id: prompt for prompt in load_examples(folder / f"{settings.split}.json")}
    samples = read_samples(settings.samples)
    for line, sample in enumerate(samples, 1):
        place = f"{settings.samples}, line {line}"
        _check_world(sample, prompts.get(sample["id"]), place, settings.split)
    rows = [_annotated(sample, prompts[sample["id"]], settings) for sample in samples]
    path = folder / f"{settings.split}_feedback.json"
    write_feedback(path, rows)
    n_errors = sum(len(row.errors) for row in rows)
    n_missing = sum(len(row.missing) for row in rows)
    print(
        f"{path}: {len(rows)} rows, {n_errors} error spans, {n_missing} missing facts", flush=True
    )
    return path


def _check_world(sample: dict[str, Any], prompt: Prompt | None, place: str, split: str) -> None:
    """Raise `UserError` unless the sample answers `prompt`, a question of the mini world."""
    if not Facts.read(sample["question"], sample["passages"]).needed:
        raise UserError(
            f"{place}: the question is not of the mini world, the only one that the simulated"
            " annotator can judge. Other answers need human annotators: see"
            " interface_html/README.md"
        )
    if prompt is None or prompt.meta["question"] != sample["question"]:
        name = shorten(sample["id"], 80)
        problem = "has no such row" if prompt is None else "has another question in that row"
        raise UserError(
            f"{place}: the sample's id is {name}, but {split}.json {problem}. "
            "Set split=... to the split that the answers were sampled for"
        )


def _annotated(
    sample: dict[str, Any], prompt: Prompt, settings: CollectFeedbackSettings
) -> FeedbackRow:
    habits = Habits(settings.noise, settings.temperature, settings.perturbed)
    rng = random.Random(derive_seed(settings.seed, "annotate", sample["id"]))
    predictions = [text.strip() or "No answer." for text in sample["predictions"]]
    return annotate(
        rng, sample["question"], sample["passages"], prompt.references[0], predictions, habits
    )


if __name__ == "__main__":
    run_program(collect, CollectFeedbackSettings)

"""Sampled answers of the mini world -> {train,dev}_feedback.json, by the simulated annotator.

    python -m tasks.qa_feedback.data.collect_feedback data_dir=... samples=.../samples.jsonl split=train
"""

import random
from pathlib import Path

from pydantic import Field

from fgrlhf.config import StrictModel
from fgrlhf.utils import UserError, derive_seed, read_jsonl, run_main
from tasks.qa_feedback.data.annotator import Habits, annotate
from tasks.qa_feedback.data.command_line import settings_from
from tasks.qa_feedback.data.oracle import Facts
from tasks.qa_feedback.feedback import load_examples, write_feedback


class Settings(StrictModel):
    """Which answers are annotated, and how reliably."""

    data_dir: str
    samples: str = Field(description="samples.jsonl of generate.sh, four predictions a row")
    split: str = Field("train", description="the split the questions are of; writes <data_dir>/<split>_feedback.json")
    noise: float = Field(0.05, ge=0, le=1, description="chance that a judgement is flipped")
    temperature: float = Field(0.05, gt=0, description="of preferences, in units of the gold score")
    perturbed: float = Field(0.25, ge=0, le=1, description="share of answers spoilt before they are annotated")
    seed: int = 0


def collect(settings: Settings) -> Path:
    """Write the feedback file. Raises `UserError` where the samples are not of this world or not four per question."""
    habits = Habits(settings.noise, settings.temperature, settings.perturbed)
    references = {prompt.id: prompt.references[0] for prompt in load_examples(Path(settings.data_dir) / f"{settings.split}.json")}
    rows = []
    for number, sample in enumerate(read_jsonl(settings.samples), 1):
        question, passages = sample["question"], sample["passages"]
        if sample["id"] not in references or not Facts.read(question, passages).needed:
            raise UserError(
                f"{settings.samples}, line {number}: the simulated annotator judges questions of the mini world's {settings.split}.json only. "
                "Real answers are annotated by people, with tasks/qa_feedback/interface_html.")
        if len(sample["predictions"]) != 4:
            raise UserError(f"{settings.samples}, line {number}: {len(sample['predictions'])} predictions, the format has 4: sample with num_samples=4")
        rng = random.Random(derive_seed(settings.seed, "annotate", sample["id"]))
        predictions = [text.strip() or "No answer." for text in sample["predictions"]]
        rows.append(annotate(rng, question, passages, references[sample["id"]], predictions, habits))
    path = Path(settings.data_dir) / f"{settings.split}_feedback.json"
    write_feedback(path, rows)
    marked = sum(len(row.errors) for row in rows)
    print(f"{path}: {len(rows)} rows, {marked} error spans, {sum(len(row.missing) for row in rows)} missing facts", flush=True)
    return path


if __name__ == "__main__":
    run_main(lambda: collect(settings_from(Settings)))

"""One arm of the experiment in noisy_annotators.py: judge, combine, train and measure, with a seed.

    python -m tasks.experiments.noisy_annotators_arm arm=weighted seed=0 data_dir=... output_dir=...

Of three simulated annotators, `per_item` judge each row, in random order. `clean`: all have the
same low noise. `noisy`: one has more, and the export takes the majority. `weighted`: as `noisy`,
but the votes have the weights that `fgrlhf feedback reliability` measures on the first rows, the
gold rows, which all three judge and no arm is trained on.

With per_item=3, weights change little: two annotators with a noise of .05 have votes of about
log(.95 / .05) = 2.9 each and one with .30 has log(.7 / .3) = 0.8, so no weighted majority of two
classes differs from the plain one. With per_item=2, they decide wherever the two disagree.

Writes <output_dir>/train_feedback.json, and result.json with the share of wrong sub-sentences and
the AUC of the factuality model against the oracle.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, PositiveInt

from fgrlhf.base.files import write_json
from fgrlhf.base.seeds import derive_seed
from fgrlhf.cli.command_line import run_program
from interface_html.format import FEEDBACK_KEYS, Item
from interface_html.reliability import report
from interface_html.stored import Submission
from interface_html.tasks import feedback_of
from interface_html.votes import judged_items
from interface_html.weighting import NO_WEIGHTS, Weights
from tasks.experiments.factuality_arm import ArmSettings, oracle_auc, train
from tasks.qa_feedback.data.annotator import Habits, annotate
from tasks.qa_feedback.data.oracle import judge

Arm = Literal["clean", "noisy", "weighted"]
Row = Mapping[str, Any]
NOISE = 0.05


class NoisyAnnotatorsArmSettings(ArmSettings):
    """An arm of the experiment."""

    arm: Arm = Field(description="how the rows are judged and combined")
    noise: float = Field(default=0.3, ge=0, le=1, description="of the noisy annotator")
    gold: PositiveInt = Field(default=50, description="number of gold rows")
    rows: PositiveInt = Field(default=500, description="number of rows to train on")
    per_item: int = Field(default=2, ge=1, le=3, description="number of annotators for each row")


def noises(arm: Arm, noise: float) -> dict[str, float]:
    """The noise of each annotator."""
    return {"anna": NOISE, "ben": NOISE, "cleo": NOISE if arm == "clean" else noise}


def judged_by(row: Row, noise: float, seed: int) -> Row:
    """A row with the judgements of a simulated annotator in place of its own."""
    predictions = [row[f"prediction {i}"] for i in range(1, 5)]
    habits = Habits(noise=noise, perturbed=0.0)
    rng = random.Random(seed)
    return annotate(rng, row["question"], row["passages"], row["gold"], predictions, habits).raw


def submissions_of(
    rows: Sequence[Row], noise_of: Mapping[str, float], n_gold: int, per_item: int, seed: int
) -> list[Submission]:
    """The submissions for every row, by time; the number of a row is its id."""
    submissions = []
    for number, row in enumerate(rows):
        names = list(noise_of)
        random.Random(derive_seed(seed, "names", str(number))).shuffle(names)
        for name in names if number < n_gold else names[:per_item]:
            judge_seed = derive_seed(seed, "judge", name, str(number))
            judged = judged_by(row, noise_of[name], judge_seed)
            documents = {
                "annotation": judged["feedback"],
                "comparison": {"preference": judged["preference"]},
            }
            for page, doc in documents.items():
                submissions.append(_submission(number, name, page, doc))
    return submissions


def _submission(number: int, annotator: str, page: str, doc: dict) -> Submission:
    return Submission(
        item=str(number),
        annotator=annotator,
        page=page,
        doc=doc,
        shown=[0, 1, 2, 3],
        seconds=0.0,
        guideline="",
        created=float(number),
        revision=1,
        wall=None,
        guideline_sha256=None,
    )


def combined_rows(
    rows: Sequence[Row], arm: Arm, noise: float, n_gold: int, per_item: int, seed: int
) -> list[dict[str, Any]]:
    """The rows after the gold rows, with the combined judgements of an arm."""
    task = feedback_of("qa_feedback")
    items = []
    for number, row in enumerate(rows):
        texts = {key: value for key, value in row.items() if key not in FEEDBACK_KEYS}
        items.append(Item(str(number), texts))
    submissions = submissions_of(rows, noises(arm, noise), n_gold, per_item, seed)
    weights = NO_WEIGHTS
    if arm == "weighted":
        gold = []
        for number, row in enumerate(rows[:n_gold]):
            right = judged_by(row, 0.0, derive_seed(seed, "gold", str(number)))
            gold.append(Item(str(number), dict(right)))
        measured = report(task, items, submissions, gold, {})
        weights = Weights({page: measured.weights(page) for page in task.schema.pages})
    judged, _ = judged_items(
        task.schema, items[n_gold:], submissions, "majority", task.schema.pages, weights
    )
    return [task.format.feedback_row(task.schema, item) for item in judged]


def wrong_share(rows: Sequence[Row]) -> float:
    """The share of sub-sentences that are marked although right, or unmarked although wrong."""
    wrong = 0
    total = 0
    for row in rows:
        marked = {(error["start"], error["end"]) for error in row["feedback"]["errors"]}
        truth = judge(row["question"], row["passages"], row["prediction 1"])
        for part in truth.subsentences:
            is_error = part.label != "ok" or not part.supported
            wrong += ((part.start, part.end) in marked) != is_error
            total += 1
    return wrong / total


def run_arm(settings: NoisyAnnotatorsArmSettings) -> dict[str, float]:
    """Judge, combine, train and measure; write train_feedback.json and result.json.

    Raises:
      UserError: a file is missing, there are too few rows, or training failed.
    """
    out = settings.out
    wanted = settings.gold + settings.rows
    combined = combined_rows(
        settings.pool(wanted)[:wanted],
        settings.arm,
        settings.noise,
        settings.gold,
        settings.per_item,
        settings.seed,
    )
    write_json(out / "train_feedback.json", combined)
    model = train(settings, out, combined)
    result = {"wrong": wrong_share(combined), "auc": oracle_auc(settings, model)}
    write_json(out / "result.json", result)
    print(f"{settings.arm}: wrong {result['wrong']:.4f}, AUC {result['auc']:.4f}", flush=True)
    return result


if __name__ == "__main__":
    run_program(run_arm, NoisyAnnotatorsArmSettings)

"""Train a reward model that scores whole answers from comparisons of four answers to a question.

    python -m reward_modeling.run_pref_rm config.yml key=value ...

The loss is -log sigmoid(s_w - s_l), averaged over all decided pairs of a batch of questions (Ouyang
et al. 2022, eq. 1); the best checkpoint is that of highest accuracy on the dev pairs. Afterwards
the mean and standard deviation of the scores of all training answers are measured and written with
the model into `reward_model.json`. The folder, resuming and reuse are as in run_fg_rm.py.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import EvalPrediction, PreTrainedModel
from transformers.utils import logging as transformers_logging

from fgrlhf.config import StrictModel, parse_cli
from fgrlhf.errors import UserError, run_main
from fgrlhf.reward_models.inputs import IGNORED, RMInputs, RMText
from fgrlhf.reward_models.scoring import RewardModelSpec, SequenceScorer, decoder_start, shape_of
from fgrlhf.runs.distributed import share_of
from fgrlhf.runs.hf_trainer import StageTrainer
from fgrlhf.runs.runlog import say
from fgrlhf.runs.stage import finished, hold
from fgrlhf.utils import seeded
from reward_modeling.data import (
    OUTPUTS,
    PAIRS,
    TIE,
    PairCollator,
    PairRow,
    first_position_share,
    pair_prefix,
    read_pair_rows,
)
from reward_modeling.training import (
    RMConfig,
    calibration,
    load_metric,
    load_network,
    reuse,
    run_training,
    sigmoid,
)

FIRST_BETTER = 0  # a pair's label


class DataSection(StrictModel):
    train_file: str
    dev_file: str
    with_passages: bool = True


class PreferenceRMConfig(RMConfig):
    """A whole run. `train.batch_size` counts questions: each gives up to six pairs."""

    data: DataSection


def encode(inputs: RMInputs, rows: list[PairRow], with_passages: bool) -> list[tuple]:
    """(four RMInputs, preference) of every row with a decided pair."""
    rows = [row for row in rows if any(p != TIE for p in row.preference)]
    texts = [
        RMText(tuple(pair_prefix(row.prompt, with_passages)), (tuple(output.split()),))
        for row in rows
        for output in row.outputs
    ]
    read = inputs.encode(texts)
    return [(read[OUTPUTS * i : OUTPUTS * (i + 1)], row.preference) for i, row in enumerate(rows)]


def margins(scores_QK: Tensor | np.ndarray) -> Tensor | np.ndarray:
    """Score of the first less score of the second, for each of the six `PAIRS`: (questions, 6)."""
    first, second = (list(side) for side in zip(*PAIRS))
    return scores_QK[:, first] - scores_QK[:, second]


def pair_loss(outputs, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """-sum log sigmoid(s_w - s_l) over decided pairs / their number in the whole batch (None: in
    this part of it).

    outputs.logits: (questions * 4, 1); labels: (questions, 6), 0 first better, 1 second better,
      IGNORED tie.
    """
    margin = margins(outputs.logits.float().view(-1, OUTPUTS))
    decided = labels != IGNORED
    signed = torch.where(labels == FIRST_BETTER, margin, -margin)[decided]
    return -torch.nn.functional.logsigmoid(signed).sum() / (
        num_items_in_batch if num_items_in_batch is not None else decided.sum().clamp(min=1)
    )


class PairTrainer(StageTrainer):
    """Gives `compute_metrics` scores by question, so that processes' shares are gathered in one
    piece.
    """

    def prediction_step(self, *args, **kwargs):
        loss, logits, labels = super().prediction_step(*args, **kwargs)
        return loss, logits.reshape(-1, OUTPUTS), labels


def decided_pairs(scores_QK: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(margin, whether the first is better) of every decided pair."""
    decided = labels != IGNORED
    return margins(scores_QK)[decided].astype(np.float64), labels[decided] == FIRST_BETTER


class Metrics:
    """The Trainer's `compute_metrics`: reward_modeling/metrics/pair_accuracy.py over the decided
    pairs.
    """

    def __init__(self):
        self.metric = load_metric("pair_accuracy")

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        margin, first = decided_pairs(prediction.predictions, prediction.label_ids)
        return self.metric.compute(predictions=margin, references=first.astype(int))


def pair_calibration(scores_QK: np.ndarray, labels: np.ndarray) -> list[dict[str, float]]:
    """sigmoid(s_1 - s_2) against how often the first answer is better."""
    margin, first = decided_pairs(scores_QK, labels)
    return calibration(sigmoid(margin), first)


def score_moments(
    network: PreTrainedModel,
    tokenizer,
    spec: RewardModelSpec,
    rows: list[PairRow],
    rank: int,
    world: int,
) -> dict[str, float]:
    """Mean and population standard deviation of the scores of all training answers, scored as in
    use.
    """
    mine = share_of(rows, rank, world)
    scorer = SequenceScorer(network, tokenizer, spec, pair_prefix)
    scores = scorer.score(
        [row.prompt for row in mine for _ in row.outputs],
        [output for row in mine for output in row.outputs],
    )
    scores = np.array(gather_object(scores.tolist()) if world > 1 else scores.tolist())
    if not np.isfinite(scores).all():
        raise UserError(
            f"the trained model gives {int((~np.isfinite(scores)).sum())} of {len(scores)} training"
            " answers a score that is NaN or infinite: training diverged. Lower train.lr"
        )
    if not scores.std() > 0:
        raise UserError(
            "the trained model gives every answer the same score: it has learned nothing. Lower"
            " train.lr or train longer"
        )
    return {"mean": float(scores.mean()), "std": float(scores.std())}


def train(config: PreferenceRMConfig) -> Path:
    """Run the stage and return the model's folder. See the module's docstring."""
    with hold(config.logging.save_dir):
        return _train(config)


def _train(config: PreferenceRMConfig) -> Path:
    rows, dev_rows = read_pair_rows(config.data.train_file), read_pair_rows(config.data.dev_file)
    folder = Path(config.logging.save_dir)
    if (
        finished(folder, config, [config.data.train_file, config.data.dev_file, config.model.ckpt])
        is not None
    ):
        reuse(config)
        return folder
    with seeded(config.train.seed, "head"):
        network, tokenizer = load_network(config.model, "sequence")
    # mean and std are measured when training is done; until then scores are raw
    spec = RewardModelSpec(
        "sequence",
        shape_of(network),
        "sequence",
        config.data.with_passages,
        config.model.max_length,
        mean=0.0,
        std=1.0,
    )
    inputs = RMInputs(tokenizer, spec.shape, spec.kind, spec.max_length, decoder_start(network))
    examples, dev = (encode(inputs, part, config.data.with_passages) for part in (rows, dev_rows))
    if not examples or not dev:
        raise UserError(
            f"{config.data.train_file if not examples else config.data.dev_file} holds no decided"
            " pair: nothing to learn from"
        )

    def trainer(arguments):
        return PairTrainer(
            network,
            arguments,
            data_collator=PairCollator(inputs),
            train_dataset=examples,
            eval_dataset=dev,
            processing_class=tokenizer,
            compute_loss_func=pair_loss,
            compute_metrics=Metrics(),
        )

    def measure(run):
        return score_moments(
            run.model, tokenizer, spec, rows, run.args.process_index, run.args.world_size
        )

    won, decided = first_position_share(rows)
    opening = [
        (
            f"{len(examples)} training questions with {decided} decided pairs, {len(dev)} dev"
            f" questions, {network.num_parameters(only_trainable=True):,} trained parameters"
        ),
        (
            f"the first-listed answer wins {won / decided:.1%} of the decided pairs (order alone"
            " should give 50%)"
        ),
        inputs.cuts.describe(spec.max_length),
    ]
    spec = replace(spec, metrics={"cuts": asdict(inputs.cuts)})
    return run_training(config, trainer, spec, pair_calibration, measure, opening)


def main(argv: Sequence[str] | None = None) -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    config = parse_cli(
        PreferenceRMConfig, argv, "usage: fgrlhf rm sequence config.yml [section.key=value ...]"
    )
    say(f"the reward model is in {train(config)}")


if __name__ == "__main__":
    run_main(main)

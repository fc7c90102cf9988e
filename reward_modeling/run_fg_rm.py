"""Train a reward model that says of every segment whether it has an error.

    python -m reward_modeling.run_fg_rm config.yml key=value ...

Data: JSON lines {id, text, feedback_tags}, see reward_modeling/data.py. The loss is cross-entropy
  of the two
labels over the judged segments, the best checkpoint that of highest dev accuracy. The folder
`logging.save_dir` then holds the model, `reward_model.json` (what use needs) and `metrics.json`
(dev metrics, calibration). An interrupted run continues from its last complete checkpoint; a
finished one is reused.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor, nn
from transformers import EvalPrediction
from transformers.utils import logging as transformers_logging

from fgrlhf.config import StrictModel, parse_cli
from fgrlhf.errors import UserError, run_main
from fgrlhf.files import read_json
from fgrlhf.reward_models.inputs import CONTEXT_MARK, IGNORED, RMInputs
from fgrlhf.reward_models.scoring import RewardModelSpec, decoder_start, shape_of
from fgrlhf.reward_utils import Level, load_segmenter
from fgrlhf.runs.hf_trainer import StageTrainer
from fgrlhf.runs.runlog import say
from fgrlhf.runs.stage import finished, hold
from fgrlhf.utils import seeded
from reward_modeling.data import SegmentCollator, SegmentRow, label_positions, read_segment_rows
from reward_modeling.training import (
    RMConfig,
    calibration,
    load_metric,
    load_network,
    reuse,
    run_training,
    sigmoid,
)

ERROR, OK = 0, 1  # the network's outputs


class LabelSection(StrictModel):
    error: str = Field(description="tag of a segment with an error, e.g. NF-ERR")
    ok: str = "O"
    ignore: str = Field("Ignore", description="tag of what is not judged")


class DataSection(StrictModel):
    train_file: str
    dev_file: str
    level: Level = Field(description="of the segments in the files: subsentence or sentence")
    with_passages: bool = Field(description="whether the files' inputs hold the passages")


class SegmentRMConfig(RMConfig):
    """A whole run."""

    data: DataSection
    labels: LabelSection

    @model_validator(mode="after")
    def _labels_differ(self):
        if len({self.labels.error, self.labels.ok, self.labels.ignore}) < 3:
            raise ValueError(
                "labels.error, labels.ok and labels.ignore must be three different tags"
            )
        return self


def encode(inputs: RMInputs, rows: list[SegmentRow]) -> list[tuple]:
    """(RMInput, labels per token) of every row that has a labelled segment left after cutting."""
    examples = [
        (read, label_positions(read, row.labels))
        for read, row in zip(inputs.encode([row.text for row in rows]), rows)
    ]
    return [
        (read, labels) for read, labels in examples if any(label != IGNORED for label in labels)
    ]


def segment_loss(
    outputs, labels_BT: Tensor, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """-sum log p(label) over judged segments / their number in the whole batch (None: in this part
    of it).
    """
    logits_BTL = outputs.logits.float()
    total = nn.functional.cross_entropy(
        logits_BTL.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / (
        num_items_in_batch
        if num_items_in_batch is not None
        else (labels_BT != IGNORED).sum().clamp(min=1)
    )


def judged(logits_BTL: np.ndarray, labels_BT: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(probability of an error, whether there is one) of each judged segment."""
    mask_BT = labels_BT != IGNORED
    margins = (logits_BTL[..., ERROR] - logits_BTL[..., OK])[mask_BT].astype(np.float64)
    return sigmoid(margins), labels_BT[mask_BT] == ERROR


class Metrics:
    """The Trainer's `compute_metrics`: reward_modeling/metrics/span_errors.py over the judged
    segments.
    """

    def __init__(self):
        self.metric = load_metric("span_errors")

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        probabilities, wrong = judged(prediction.predictions, prediction.label_ids)
        return self.metric.compute(predictions=probabilities, references=wrong.astype(int))


def check_passages(rows: list[SegmentRow], config: SegmentRMConfig) -> None:
    """Refuse files whose inputs are not what scoring would build."""
    held = any(CONTEXT_MARK in row.text.prefix for row in rows)
    if held != config.data.with_passages:
        raise UserError(
            f"data.with_passages={str(config.data.with_passages).lower()}, but the inputs in"
            f" {config.data.train_file} {'hold' if held else 'hold no'} passages"
            f" (`{CONTEXT_MARK}`): scoring would read something else than training; set it to"
            f" {str(held).lower()}"
        )


def segmenter_of(config: SegmentRMConfig) -> dict[str, str]:
    """What cut the training file's answers: `segmenter.json` beside it says so, else this machine's
    own.
    """
    path = Path(config.data.train_file).parent / "segmenter.json"
    return load_segmenter(read_json(path) if path.exists() else "auto").describe()


def train(config: SegmentRMConfig) -> Path:
    """Run the stage and return the model's folder. See the module's docstring."""
    with hold(config.logging.save_dir):
        return _train(config)


def _train(config: SegmentRMConfig) -> Path:
    names = (config.labels.error, config.labels.ok)
    rows, dev_rows = (
        read_segment_rows(path, names, config.labels.ignore, config.data.level)
        for path in (config.data.train_file, config.data.dev_file)
    )
    check_passages(rows, config)
    folder = Path(config.logging.save_dir)
    if (
        finished(folder, config, [config.data.train_file, config.data.dev_file, config.model.ckpt])
        is not None
    ):
        reuse(config)
        return folder
    with seeded(config.train.seed, "head"):
        network, tokenizer = load_network(config.model, "segment", dict(enumerate(names)))
    spec = RewardModelSpec(
        "segment",
        shape_of(network),
        config.data.level,
        config.data.with_passages,
        config.model.max_length,
        labels=names,
        error_label=names[ERROR],
        ok_label=names[OK],
        segmenter=segmenter_of(config),
    )
    inputs = RMInputs(tokenizer, spec.shape, spec.kind, spec.max_length, decoder_start(network))
    examples, dev = encode(inputs, rows), encode(inputs, dev_rows)
    if not examples or not dev:
        raise UserError(
            "no labelled segment of"
            f" {config.data.train_file if not examples else config.data.dev_file} fits into"
            f" model.max_length={spec.max_length} tokens; raise it"
        )

    def trainer(arguments):
        return StageTrainer(
            network,
            arguments,
            data_collator=SegmentCollator(inputs),
            train_dataset=examples,
            eval_dataset=dev,
            processing_class=tokenizer,
            compute_loss_func=segment_loss,
            compute_metrics=Metrics(),
        )

    wrong = np.mean(
        [label == ERROR for _, labels in examples for label in labels if label != IGNORED]
    )
    opening = [
        (
            f"{len(examples)} training answers ({wrong:.1%} of their segments {names[ERROR]}),"
            f" {len(dev)} dev answers, {network.num_parameters(only_trainable=True):,} trained"
            " parameters"
        ),
        inputs.cuts.describe(spec.max_length),
    ]
    spec = replace(spec, metrics={"cuts": asdict(inputs.cuts)})
    return run_training(
        config, trainer, spec, lambda p, labels: calibration(*judged(p, labels)), opening=opening
    )


def main(argv: Sequence[str] | None = None) -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    config = parse_cli(
        SegmentRMConfig, argv, "usage: fgrlhf rm segment config.yml [section.key=value ...]"
    )
    say(f"the reward model is in {train(config)}")


if __name__ == "__main__":
    run_main(main)

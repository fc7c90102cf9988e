"""Train a reward model that labels every segment of a response: an error, or none.

    python -m reward_modeling.run_fg_rm [TASK] config.yml key=value ...

Data: JSON lines {id, text, feedback_tags}, see reward_modeling/data.py. The loss is cross-entropy
of the labels over the judged segments. The best checkpoint has the highest dev accuracy in
detecting errors. Writes the model, `reward_model.json` (all that is needed to use it),
`metrics.json` (dev metrics, calibration) and `errors.json` (error_groups.py) to
`logging.save_dir`. An interrupted run continues from its last complete checkpoint; a finished one
is reused.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor, nn
from transformers import PreTrainedModel

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.training_program import run_program
from fgrlhf.configs.sections import files_of, names_of
from fgrlhf.configs.strict import StrictModel
from fgrlhf.data.mixture import of_each, read_files
from fgrlhf.data.stream import Lazy, chosen, mapped, spread
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.prefix import Prefix
from fgrlhf.reward_models.rm_input import RMInput
from fgrlhf.reward_models.scoring import inputs_of, shape_of
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.reward_utils import (
    MULTILINGUAL,
    SEGMENTER_HELP,
    Level,
    SegmenterName,
    load_segmenter,
)
from fgrlhf.runs.stage import hold
from fgrlhf.stats import Figure, ratio_interval
from fgrlhf.supervised_trainer import reuse
from fgrlhf.task import NO_TASK, Task
from fgrlhf.utils import IGNORED, seeded
from reward_modeling import training
from reward_modeling.baselines import LINEAR_ROWS, Baselines, segment_baselines
from reward_modeling.calibration import calibrate, error_probabilities
from reward_modeling.config import RMConfig, RMDataConfig
from reward_modeling.data import SegmentCollator, SegmentRow, label_positions, read_segment_rows
from reward_modeling.error_groups import Errors
from reward_modeling.judged import LabelledText, Predictions, detection, prompts_of
from reward_modeling.linear_start import start_with_segments
from reward_modeling.metrics import precision_recall_f1, span_errors
from reward_modeling.network import load_network, reads_line_breaks
from reward_modeling.precompute import precompute
from reward_modeling.segment_errors import segment_errors
from reward_modeling.training import RewardTrainer, place, start

# an input, and a label for each of its tokens
Example = tuple[RMInput, list[int]]


class LabelsConfig(StrictModel):
    """The section `labels`: the tags of a segment."""

    error: str | tuple[str, ...] = Field(
        description="tag of a segment with an error, such as ERROR; a list for several kinds"
    )
    ok: str = Field(default="O", description="tag of a segment without an error")
    ignore: str = Field(default="Ignore", description="tag of words that are not judged")

    @property
    def errors(self) -> tuple[str, ...]:
        return (self.error,) if isinstance(self.error, str) else self.error

    @property
    def names(self) -> tuple[str, ...]:
        """The network's outputs: errors first, `ok` last."""
        return (*self.errors, self.ok)


class SegmentDataConfig(RMDataConfig):
    """The section `data` of segment reward models."""

    level: Level = Field(
        description="segments in the files, such as sentence: docs/rewards.md, Levels"
    )
    with_context: bool = Field(description="whether the files' inputs have the prompt's context")
    segmenter: SegmenterName | None = Field(
        default=None,
        description="what divided the files' responses; null: as segmenter.json beside the training"
        f" file says, or {MULTILINGUAL} without it. {SEGMENTER_HELP}",
    )


class SegmentRMConfig(RMConfig):
    """The config of a whole run."""

    data: SegmentDataConfig
    labels: LabelsConfig

    @model_validator(mode="after")
    def _labels_differ(self):
        tags = (*self.labels.names, self.labels.ignore)
        if not self.labels.errors:
            raise ValueError("labels.error is empty: name the tag of an error")
        if len(set(tags)) < len(tags):
            raise ValueError(
                "labels.error, labels.ok and labels.ignore must be different tags, not"
                f" {', '.join(tags)}"
            )
        return self

    @model_validator(mode="after")
    def _segments_of_texts(self):
        if self.data.level == "token":
            raise ValueError(
                "data.level=token: a reward model reads words, so it cannot judge the policy's"
                " tokens; choose a coarser level such as word"
            )
        return self


@dataclass(frozen=True)
class EncodedRow:
    """A row, what the network reads of it, and a label for each of the input's tokens."""

    row: SegmentRow
    rm_input: RMInput
    labels: list[int]

    @property
    def is_labelled(self) -> bool:
        return any(label != IGNORED for label in self.labels)

    def text_of(self, names: Sequence[str]) -> LabelledText:
        """The text for the baselines. What the network does not read has no label in it."""
        ok = len(names) - 1
        wrong = []
        for position, label in zip(self.rm_input.positions, self.row.labels, strict=True):
            is_judged = position is not None and label != IGNORED
            wrong.append(label != ok if is_judged else None)
        return self.row.text, wrong


def encode(inputs: RMInputs, rows: Sequence[SegmentRow]) -> Sequence[EncodedRow]:
    """The rows that still have a labelled segment after cutting; of rows in a file, when needed."""

    def encoded(part: Sequence[SegmentRow]) -> list[EncodedRow]:
        result = []
        for rm_input, row in zip(inputs.encode([row.text for row in part]), part):
            result.append(EncodedRow(row, rm_input, label_positions(rm_input, row.labels)))
        return result

    return chosen(mapped(rows, encoded), lambda each: each.is_labelled)


def examples_of(encoded: Sequence[EncodedRow]) -> Sequence[Example]:
    """What the trainer reads of encoded rows."""
    return mapped(encoded, lambda part: [(each.rm_input, each.labels) for each in part])


def with_features(
    network: PreTrainedModel, inputs: RMInputs, examples: Sequence[Example]
) -> Sequence[Example]:
    """The examples with what frozen layers compute of them (precompute.py).

    For rows in a file, every forward pass computes it.
    """
    if isinstance(examples, Lazy):
        return examples
    rm_inputs = precompute(network, inputs, [rm_input for rm_input, _ in examples])
    return [(rm_input, labels) for rm_input, (_, labels) in zip(rm_inputs, examples)]


def segment_loss(outputs, labels_BT: Tensor, counts_BM: Tensor | None = None) -> Tensor:
    """-sum_s log p(label_s) / n over the n judged segments s of a batch.

    Of M members it is the mean of -sum_s c_m(s) log p_m(label_s) / n, where c_m(s) says how often
    the row of s counts for member m.

    Args:
      outputs: `logits` (B, T, labels) and, of members, `member_logits` (B, T, M, labels).
      counts_BM: the counts of each row; None: all 1.
    """
    n = (labels_BT != IGNORED).sum().clamp(min=1)
    member_logits_BTMC = getattr(outputs, "member_logits", None)
    if member_logits_BTMC is None:
        logits_BTC = outputs.logits.float()
        total = nn.functional.cross_entropy(
            logits_BTC.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total / n
    M = member_logits_BTMC.shape[2]
    losses_BTM = nn.functional.cross_entropy(
        member_logits_BTMC.float().movedim(-1, 1),
        labels_BT[..., None].expand(-1, -1, M),
        ignore_index=IGNORED,
        reduction="none",
    )
    if counts_BM is not None:
        losses_BTM = losses_BTM * counts_BM[:, None]
    return losses_BTM.sum() / (n * M)


def judged_segments(logits_BTC: np.ndarray, labels_BT: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The logits_NC and labels_N of the judged segments of all rows."""
    judged_BT = labels_BT != IGNORED
    return logits_BTC[judged_BT], labels_BT[judged_BT]


def error_predictions(
    logits_BTC: np.ndarray, labels_BT: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each judged segment: the probability of an error, and whether there is one."""
    logits_NC, labels_N = judged_segments(logits_BTC, labels_BT)
    return error_probabilities(logits_NC), labels_N != logits_NC.shape[-1] - 1


def label_metrics(
    names: Sequence[str], logits_BTC: np.ndarray, labels_BT: np.ndarray
) -> dict[str, float]:
    """How well several kinds of error are distinguished: accuracy over all labels, F1 of each.

    The F1 of a label that neither occurs nor is predicted is undefined and left out.
    """
    judged_BT = labels_BT != IGNORED
    labels = labels_BT[judged_BT]
    predicted = logits_BTC[judged_BT].argmax(-1)
    metrics = {"label_accuracy": float((predicted == labels).mean())}
    for i, name in enumerate(names):
        _, _, f1 = precision_recall_f1(predicted == i, labels == i)
        if f1 is not None:
            metrics[f"label_f1/{name}"] = f1
    return metrics


def _label_figures(
    names: Sequence[str], logits_BTC: np.ndarray, labels_BT: np.ndarray, prompts_N: np.ndarray
) -> dict[str, Figure]:
    """The figures of `label_metrics` with their intervals over prompts."""
    judged_BT = labels_BT != IGNORED
    labels = labels_BT[judged_BT]
    predicted = logits_BTC[judged_BT].argmax(-1)
    prompts = prompts_N.tolist()
    right = (predicted == labels).astype(float)
    figures: dict[str, Figure] = {
        "label_accuracy": ratio_interval(right, np.ones(len(right)), prompts)
    }
    for i, name in enumerate(names):
        of_label = detection("label", predicted == i, labels == i, prompts)
        figures[f"label_f1/{name}"] = of_label["label_f1"]
    return figures


class SegmentDev:
    """The dev rows for `training.run_training`.

    Args:
      texts: the rows with the labels of their judged segments.
      prompts: the number of each row's prompt.
      names: the network's outputs.
    """

    def __init__(
        self,
        texts: Sequence[LabelledText],
        prompts: Sequence[int],
        baselines: Baselines,
        names: Sequence[str],
    ):
        self.texts = texts
        self.prompts = np.array(prompts)
        self.rows = len(prompts)
        self.baselines = baselines
        self.names = names

    def judge(self, logits_BTC: np.ndarray, labels_BT: np.ndarray) -> Predictions:
        probabilities, wrong = error_predictions(logits_BTC, labels_BT)
        rows, _ = np.nonzero(labels_BT != IGNORED)
        return Predictions("segments", probabilities, wrong, self.prompts[rows])

    def figures(self, logits_BTC: np.ndarray, labels_BT: np.ndarray) -> dict[str, Figure]:
        judged = self.judge(logits_BTC, labels_BT)
        figures = judged.figures()
        if len(self.names) > 2:
            figures |= _label_figures(self.names, logits_BTC, labels_BT, judged.prompts_N)
        return figures

    def find_errors(self, logits_BTC: np.ndarray, labels_BT: np.ndarray) -> Errors:
        logits_NC, labels_N = judged_segments(logits_BTC, labels_BT)
        names = [self.names[int(label)] for label in labels_N]
        return segment_errors(
            self.texts, self.prompts.tolist(), names, error_probabilities(logits_NC)
        )

    def calibration(self, logits_BTC: np.ndarray, labels_BT: np.ndarray) -> dict[str, Any]:
        logits_NC, labels_N = judged_segments(logits_BTC, labels_BT)
        prompts_N = self.judge(logits_BTC, labels_BT).prompts_N
        return calibrate(logits_NC, labels_N, prompts_N).metrics()


def segment_metrics(
    names: Sequence[str], logits_BTC: np.ndarray, labels_BT: np.ndarray
) -> dict[str, float]:
    """`span_errors` over the judged segments and, of several kinds of error, `label_metrics`."""
    metrics = span_errors(*error_predictions(logits_BTC, labels_BT))
    if len(names) > 2:
        metrics |= label_metrics(names, logits_BTC, labels_BT)
    return metrics


class SegmentTrainer(RewardTrainer):
    """Trains a network that labels segments."""

    config: SegmentRMConfig

    def metrics_of(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        return segment_metrics(self.config.labels.names, predictions, labels)

    def inputs_in(self, row: Example) -> Sequence[RMInput]:
        return row[:1]

    def labels_of(self, row: Example) -> int:
        return sum(label != IGNORED for label in row[1])

    def loss(self, outputs: Any, labels: Tensor, counts_BM: Tensor | None = None) -> Tensor:
        return segment_loss(outputs, labels, counts_BM)

    def predictions(self, outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        return outputs.logits, labels


def _check_context(rows: Sequence[SegmentRow], config: SegmentRMConfig, task: Task) -> None:
    """Raise `UserError` if scoring would not build the same inputs as the files have."""
    with_context = config.data.with_context
    if task.rm_prefix_of_words is None:
        if with_context:
            raise UserError(
                "data.with_context=true needs a task that marks the context in the files' words"
                " (Task.rm_prefix_of_words): name the task, or set data.with_context=false"
            )
        return
    has_context = any(row.text.prefix.context for row in rows)
    if has_context != with_context:
        raise UserError(
            f"data.with_context={str(with_context).lower()}, but the inputs in"
            f" {names_of(config.data.train_file)} have {'a' if has_context else 'no'} context:"
            " scoring would read different words than training. Set data.with_context="
            f"{str(has_context).lower()}"
        )


def segmenter_of(config: SegmentRMConfig) -> dict[str, str]:
    """The segmenter that split the training responses.

    `segmenter.json` in the folder of a training file describes it. Without that file, it is
    `data.segmenter`.

    Raises:
      UserError: `data.segmenter` is another one than the file says, or two training files have
        different ones.
    """
    file, *others = files_of(config.data.train_file)
    segmenter = _segmenter_of(file, config.data.segmenter)
    for other in others:
        if _segmenter_of(other, config.data.segmenter) != segmenter:
            raise UserError(
                f"{file} and {other} were divided by different segmenters, but a reward model"
                " judges the segments of one: write both files with the same segmenter"
            )
    return segmenter


def _segmenter_of(file: str, given: str | None) -> dict[str, str]:
    path = Path(file).with_name("segmenter.json")
    if not path.exists():
        return load_segmenter(given or MULTILINGUAL).describe()
    recorded = load_segmenter(read_json(path)).describe()
    if given is not None and load_segmenter(given).describe() != recorded:
        raise UserError(
            f"data.segmenter={given}, but {path} says that {recorded['name']} divided the"
            " responses: RL would judge other segments than training. Leave data.segmenter out"
        )
    return recorded


def check_level(file: str, level: str) -> None:
    """Raise `UserError` if `segmenter.json` beside a segment file gives it another level."""
    path = Path(file).with_name("segmenter.json")
    description = read_json(path) if path.exists() else None
    levels = description.get("levels") if isinstance(description, dict) else None
    recorded = levels.get(Path(file).name) if isinstance(levels, dict) else None
    if recorded not in (None, level):
        raise UserError(
            f"data.level={level}, but the segments in {file} are of the level `{recorded}`"
            f" ({path}): RL would judge other segments than training. Set data.level={recorded}"
        )


def train(config: SegmentRMConfig, task: Task = NO_TASK) -> Path:
    """Run the stage and return the model's folder. See the module's docstring."""
    with hold(config.logging.save_dir):
        return _train(config, task)


def _train(config: SegmentRMConfig, task: Task) -> Path:
    names = config.labels.names
    for file in (*files_of(config.data.train_file), config.data.dev_file):
        check_level(file, config.data.level)
    rows = read_files(config.data.train_file, lambda file: _read_rows(config, task, file))
    dev_rows = _read_rows(config, task, config.data.dev_file)[: config.evaluation.examples]
    _check_context(rows, config, task)
    folder = reuse(config)
    if folder is not None:
        return folder
    accelerator = start(config)
    with seeded(config.train.seed, "head"):
        network, tokenizer = load_network(config.model, "segment", dict(enumerate(names)))
    has_spaces = all(row.has_spaces for row in chain(rows, dev_rows))
    spec = _untrained_spec(config, network, tokenizer, has_spaces)
    inputs = inputs_of(network, tokenizer, spec)
    encoded = of_each(rows, lambda part: encode(inputs, part))
    dev_encoded = encode(inputs, dev_rows)
    cuts = inputs.cuts  # of each row once, however often those in a file are encoded
    _require_labels(names_of(config.data.train_file), encoded, spec.max_length)
    _require_labels(config.data.dev_file, dev_encoded, spec.max_length)

    start_messages = [
        f"{len(encoded)} training responses ({_share_of_errors(encoded, names):.1%} of their"
        f" segments {' or '.join(config.labels.errors)}), {len(dev_encoded)} dev responses,"
        f" {network.num_parameters(only_trainable=True):,} trained parameters",
        cuts.describe(spec.max_length),
    ]
    texts = [each.text_of(names) for each in spread(encoded, LINEAR_ROWS)]
    dev_texts = [each.text_of(names) for each in dev_encoded]
    clusters = [each.row.cluster for each in dev_encoded]
    prompts = prompts_of([text.prefix for text, _ in dev_texts], clusters)
    dev = SegmentDev(dev_texts, prompts, segment_baselines(texts, dev_texts, prompts), names)
    spec = replace(spec, metrics={"cuts": asdict(cuts)})
    place(network, config, accelerator)
    examples = of_each(encoded, lambda part: with_features(network, inputs, examples_of(part)))
    dev_examples = with_features(network, inputs, examples_of(dev_encoded))
    start_with_segments(network, inputs, spread(examples, LINEAR_ROWS))
    collator = SegmentCollator(inputs)
    trainer = SegmentTrainer(
        config,
        network,
        examples,
        dev_examples,
        collator,
        tokenizer,
        dev,
        (each.row.text.response for each in encoded),
        accelerator,
    )
    return training.run_training(trainer, spec, start_messages)


def _read_rows(config: SegmentRMConfig, task: Task, path: str) -> Sequence[SegmentRow]:
    return read_segment_rows(
        path,
        config.labels.names,
        config.labels.ignore,
        config.data.level,
        task.rm_prefix_of_words or Prefix.of,
    )


def _untrained_spec(
    config: SegmentRMConfig, network: PreTrainedModel, tokenizer, has_spaces: bool
) -> RewardModelSpec:
    """The spec before training.

    Args:
      has_spaces: whether every row of the files has its white space.
    """
    names = config.labels.names
    return RewardModelSpec(
        "segment",
        shape_of(network),
        config.data.level,
        config.data.with_context,
        config.model.max_input_len,
        labels=names,
        error_label=names[0] if len(names) == 2 else None,
        ok_label=config.labels.ok,
        segmenter=segmenter_of(config),
        line_breaks=reads_line_breaks(
            config.model,
            shape_of(network),
            tokenizer,
            "" if has_spaces else "not every row of the files has `spaces`: write them again",
        ),
    )


def _require_labels(path: str, encoded: Sequence[EncodedRow], max_length: int) -> None:
    if not encoded:
        raise UserError(
            f"no labelled segment of {path} fits into model.max_input_len={max_length} tokens:"
            " raise it"
        )


def _share_of_errors(encoded: Sequence[EncodedRow], names: Sequence[str]) -> float:
    """The share of the labelled segments that have an error; `names` has the ok label last."""
    ok = len(names) - 1
    wrong = labelled = 0
    for each in encoded:
        labels = [label for label in each.labels if label != IGNORED]
        wrong += sum(label != ok for label in labels)
        labelled += len(labels)
    return wrong / labelled


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: an optional task, a YAML file and key=value overrides."""
    run_program("rm segment", "reward model", SegmentRMConfig, train, argv)


if __name__ == "__main__":
    run_main(main)

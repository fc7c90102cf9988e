"""Shared code of both reward-model trainers: metrics and the training run."""

from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import PreTrainedModel

from fgrlhf.base.files import read_json, write_json, write_text
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.metrics.novelty import save_seen, seen_ngrams
from fgrlhf.models.lora import has_adapters, merged_weights
from fgrlhf.models.provenance import read_source
from fgrlhf.models.saving import forget_last_call
from fgrlhf.models.sharding import unsharded, whole
from fgrlhf.reward_models.rm_input import RMInput
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.runs.batching import permuted_batches, shuffled_batches
from fgrlhf.runs.checkpoint import model_to_install
from fgrlhf.runs.distributed import shards_models, stage_accelerator
from fgrlhf.runs.precision import dtype_of_run
from fgrlhf.runs.runlog import is_main_rank, say
from fgrlhf.stats import Figure
from fgrlhf.supervised_trainer import SupervisedTrainer, complete, micro_batch_size, trained
from fgrlhf.utils import IGNORED
from reward_modeling.baselines import Baselines, against, comparison
from reward_modeling.card import SHOWN, choice_of, model_card, notes_of
from reward_modeling.config import RMConfig
from reward_modeling.error_groups import Errors
from reward_modeling.judged import Evaluations, Predictions, split_figures
from reward_modeling.members import BOOTSTRAP, counts_of

SPEC_FACTS = ("temperature", "error_threshold")  # of the calibration

# ---- the run -------------------------------------------------------------------------------------


class DevRows(Protocol):
    """The dev rows of a reward model. The methods read all predictions and labels of them.

    `calibration` returns metrics with the key `calibration`; `SPEC_FACTS` go into the spec.
    `find_errors` returns what errors.json has.

    Attributes:
      rows: how many there are.
      baselines: what simple models predict of them (reward_modeling/baselines.py).
    """

    rows: int
    baselines: Baselines

    def judge(self, predictions: np.ndarray, labels: np.ndarray, /) -> Predictions: ...

    def figures(self, predictions: np.ndarray, labels: np.ndarray, /) -> dict[str, Figure]: ...

    def calibration(self, predictions: np.ndarray, labels: np.ndarray, /) -> dict[str, Any]: ...

    def find_errors(self, predictions: np.ndarray, labels: np.ndarray, /) -> Errors: ...


class RewardTrainer(SupervisedTrainer):
    """Trains a reward model: a network with labels or pairs, encoded.

    A subclass provides the loss, what it predicts of the dev rows, and the metrics of that.

    Args:
      examples, dev_examples: what `collator` reads.
      collator: examples -> the network's inputs, and `labels`.
      tokenizer: of the network.
      dev: the dev rows.
      responses: the texts of the training rows, whose n-grams the model's folder has (novelty.py).
    """

    config: RMConfig

    def __init__(
        self,
        config: RMConfig,
        network: PreTrainedModel,
        examples: Sequence,
        dev_examples: Sequence,
        collator: Callable[[Sequence], dict[str, Tensor]],
        tokenizer: Any,
        dev: DevRows,
        responses: Iterable[str],
        accelerator: Accelerator,
    ):
        super().__init__(config, network, examples, dev_examples, accelerator)
        self.network = network
        self.collator = collator
        self.tokenizer = tokenizer
        self.dev = dev
        self.seen_ngrams = seen_ngrams(responses)
        self.evaluations = Evaluations()

    @abstractmethod
    def loss(self, outputs: Any, labels: Tensor, counts_BM: Tensor | None = None) -> Tensor:
        """The mean loss over the labels of a batch and the members.

        Args:
          counts_BM: how often each row counts for each member; None: once.
        """

    @abstractmethod
    def predictions(self, outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """What is predicted of each row of a batch, and the rows' labels, padded with IGNORED."""

    @abstractmethod
    def metrics_of(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """The metrics of all dev rows."""

    @abstractmethod
    def inputs_in(self, row: Any) -> Sequence[RMInput]:
        """What the network reads of a row."""

    @property
    def metric(self) -> str:
        return "accuracy"

    @property
    def can_resume(self) -> bool:
        return self.config.evaluation.checkpoints == "resume"

    def epoch_batches(self, epoch: int) -> list[list[int]]:
        train = self.config.train
        batches = shuffled_batches if train.group_by_length else permuted_batches
        needs_lengths = train.group_by_length or self.micro_batch_size < train.batch_size
        lengths = self.lengths if needs_lengths else None
        return batches(len(self.rows), train.batch_size, train.seed, epoch, lengths, self.mixture)

    @cached_property
    def lengths(self) -> Sequence[int]:
        """The length of each row: those of similar length share a forward pass."""
        return array("I", (max(x.length for x in self.inputs_in(row)) for row in self.rows))

    def collate(self, rows: Sequence) -> dict[str, Tensor]:
        return self.collator(rows)

    def mean_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        inputs = dict(batch)
        labels = inputs.pop("labels")
        counts_BM = inputs.pop(BOOTSTRAP, None)
        return self.loss(model(**inputs), labels, counts_BM)

    def training_batch(self, rows: Sequence) -> dict[str, Tensor]:
        """The rows as a batch on the device, with their counts for each member."""
        batch = super().training_batch(rows)
        members = self.config.model.members
        if members > 1:
            counts_BM = counts_of(list(map(self.inputs_in, rows)), members, self.config.train.seed)
            batch |= self.on_device({BOOTSTRAP: counts_BM})
        return batch

    def progress(self) -> dict:
        return {**super().progress(), "evaluations": self.evaluations.state()}

    def restore(self, state: dict) -> None:
        super().restore(state)
        self.evaluations.restore(state["evaluations"])

    def dev_metrics(self) -> dict[str, float]:
        predicted, metrics = self.predict()
        self.evaluations.add(self.step, self.dev.judge(*predicted))
        return metrics

    def predict(self) -> tuple[tuple[np.ndarray, np.ndarray], dict[str, float]]:
        """The predictions and the labels of all dev rows, and the metrics of them."""
        total = 0.0
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        for rows in self.dev_batches():
            inputs = self.on_device(self.collate(rows))
            labels = inputs.pop("labels")
            outputs = self.module(**inputs)
            total += float(self.loss(outputs, labels)) * sum(map(self.labels_of, rows))
            predictions, targets = self.predictions(outputs, labels)
            parts.append((predictions.float().cpu().numpy(), targets.cpu().numpy()))
        if self.accelerator.num_processes > 1:
            parts = gather_object(parts)
        predicted = (
            padded([predictions for predictions, _ in parts]),
            padded([targets for _, targets in parts]),
        )
        return predicted, {"loss": self.mean_over_dev(total), **self.metrics_of(*predicted)}


def padded(batches: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays of rows of different widths as one, padded with IGNORED."""
    width = max(batch.shape[1] for batch in batches)
    wide = []
    for batch in batches:
        missing = [(0, 0)] * batch.ndim
        missing[1] = (0, width - batch.shape[1])
        wide.append(np.pad(batch, missing, constant_values=IGNORED))
    return np.concatenate(wide)


def start(config: RMConfig) -> Accelerator:
    """The device and the processes of a run. Raises `UserError` if they cannot share the batch."""
    # a network may have trained parts that a batch leaves out, such as a pooler
    dtype = dtype_of_run(config.model, config.logging.save_dir)
    accelerator = stage_accelerator(dtype, find_unused=True)
    micro_batch_size(config.train, accelerator.num_processes)
    use_kernels(config.model.kernels, config.logging.save_dir)
    return accelerator


def place(network: PreTrainedModel, config: RMConfig, accelerator: Accelerator) -> None:
    """Move the network to where its frozen parts compute, before training.

    A network that will be divided moves layer by layer, unless all of it computes features now.
    """
    if not shards_models(config.parallel, accelerator) or config.model.lm_logprob_feature:
        network.to(accelerator.device)  # pyright: ignore[reportArgumentType]


def run_training(
    trainer: RewardTrainer,
    spec: RewardModelSpec,
    start_messages: Sequence[str] = (),
    extra_facts: Callable[[], dict[str, Any]] | None = None,
) -> Path:
    """Train, select the best checkpoint, evaluate it on dev, write the model's folder.

    With `train.ema`, the average of the weights is evaluated and written in the same way, in the
    folder `ema`. No evaluation has chosen it.

    Args:
      start_messages: lines to print when the stage starts.
      extra_facts: additional fields of the model's spec. Every process calls it.
    """
    average: list[str] = []

    def save_average(folder: Path) -> None:
        steps = {"steps": trainer.step}
        average.append(_finish(trainer, spec, extra_facts, folder, steps, Evaluations())[0])

    with trained(trainer, start_messages):
        note = trainer.tie_note()
        if note is not None:
            say(note)
        assert trainer.best is not None  # dev has rows
        best = {"best_step": trainer.best["step"], "steps": trainer.step}
        shown, *lines = _finish(
            trainer, spec, extra_facts, trainer.folder, best, trainer.evaluations
        )
        trainer.save_average(save_average)
    complete(trainer, best)
    shown = f"best step {best['best_step']}, {shown}"
    for line in (shown, *[f"average in ema/, {line}" for line in average], *lines):
        say(f"{trainer.config.logging.run_name}: {line}")
    return trainer.folder


def _finish(
    trainer: RewardTrainer,
    spec: RewardModelSpec,
    extra_facts: Callable[[], dict[str, Any]] | None,
    folder: Path,
    steps: Mapping[str, int],
    evaluations: Evaluations,
) -> list[str]:
    """Evaluate the network as it is on dev, and write it with the figures into a folder.

    Args:
      steps: for metrics.json.
      evaluations: those that chose the weights.
    Returns:
      lines about the figures, the metrics first.
    """
    dev = trainer.dev
    predicted, numbers = trainer.evaluating(trainer.predict)
    trainer.refuse_divergence(
        {f"the dev metric `dev_{key}`": value for key, value in numbers.items()}, trainer.step
    )
    judged, figures = dev.judge(*predicted), dev.figures(*predicted)
    errors = dev.find_errors(*predicted)
    metrics = {
        **spec.metrics,
        **numbers,
        **split_figures(figures),
        **_dev_facts(trainer, predicted, judged, choice_of(judged, evaluations)),
    }
    facts = {name: metrics[name] for name in SPEC_FACTS if name in metrics}
    if extra_facts is not None:
        with unsharded(trainer.module):
            facts |= extra_facts()
    spec = replace(spec, metrics=metrics, **facts)
    _write_model(trainer, spec, folder)
    if is_main_rank():
        write_json(folder / "errors.json", errors.as_dict())
        write_json(folder / "metrics.json", {**metrics, **facts, **steps})
        command = read_json(trainer.folder / "run.json")["command"]  # of the run's beginning
        card = model_card(trainer.config, spec, judged, dev.baselines, errors, command)
        write_text(folder / "README.md", card)
    return [
        f"dev {_shown(numbers, figures)}",
        comparison(judged, dev.baselines),
        *metrics["notes"],
        errors.describe(),
    ]


def _dev_facts(
    trainer: RewardTrainer,
    predicted: tuple[np.ndarray, np.ndarray],
    judged: Predictions,
    choice: dict[str, Any],
) -> dict[str, Any]:
    """What belongs to the dev figures: calibration, baselines, numbers of rows, and notes."""
    dev = trainer.dev
    return {
        **dev.calibration(*predicted),
        "baselines": against(judged, dev.baselines),
        "rows": {"train": len(trainer.rows), "dev": dev.rows},
        "prompts": judged.number_of_prompts,
        "cases": {judged.kind: len(judged.scores_N)},
        "choice": choice,
        "notes": notes_of(judged, choice),
    }


def _shown(numbers: Mapping[str, float], figures: Mapping[str, Figure]) -> str:
    """The main dev metrics: with intervals, or with the reason why one is undefined."""
    parts = []
    shown = [name for name in {**numbers, **figures} if name == "loss" or name in SHOWN]
    for name in shown:
        figure = figures.get(name)
        if isinstance(figure, str):
            parts.append(f"{name} undefined ({figure})")
        else:
            parts.append(f"{name} {numbers[name]:.4g}" if figure is None else f"{name} {figure}")
    return ", ".join(parts)


def _write_model(trainer: RewardTrainer, spec: RewardModelSpec, folder: Path) -> None:
    """Write a model's folder. Every process calls it, since a model may be sharded."""
    is_main = trainer.accelerator.is_main_process
    weights = None
    if trainer.sharded:
        weights = whole(trainer.module.state_dict(keep_vars=True), keep=is_main)
    if is_main:
        folder.mkdir(exist_ok=True)
        install_model(trainer, spec, folder, weights)


def install_model(
    trainer: RewardTrainer,
    spec: RewardModelSpec,
    folder: Path,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write model, tokenizer, source, n-grams and spec, each atomically and the spec last.

    Adapters are merged into the model's weights.

    Args:
      weights: the model's whole tensors, if the model itself is sharded.
    """
    network, tokenizer = trainer.network, trainer.tokenizer
    source = read_source(trainer.config.model.ckpt)
    forget_last_call(tokenizer)
    with model_to_install(folder) as temporary:
        if has_adapters(network):
            weights = merged_weights(network, weights)
        network.save_pretrained(temporary, state_dict=weights)
        tokenizer.save_pretrained(temporary)
        if source is not None:
            source.save(temporary)
        save_seen(temporary, trainer.seen_ngrams)
    spec.save(folder)

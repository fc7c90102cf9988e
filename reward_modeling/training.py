"""Shared code of both reward-model trainers: metrics and the training run."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import evaluate
import numpy as np
from torch import Tensor
from transformers import TrainingArguments

from fgrlhf.base.files import read_json, write_json, write_text
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.models.lora import has_adapters, merged_weights
from fgrlhf.models.recompute import recompute_layers
from fgrlhf.models.saving import forget_last_call
from fgrlhf.models.sharding import unsharded
from fgrlhf.models.source import ModelSource, read_source
from fgrlhf.models.trunk import require_trained
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.runs.distributed import strategy_notes
from fgrlhf.runs.hf_checkpoints import model_to_install
from fgrlhf.runs.hf_log import use_run_log
from fgrlhf.runs.hf_trainer import StageTrainer, training_arguments
from fgrlhf.runs.occupied import check_own_stage
from fgrlhf.runs.runlog import RunLog, is_main_rank, say
from fgrlhf.runs.stage import begin, finish, last_complete_checkpoint, stored_result
from fgrlhf.stats import Figure
from reward_modeling.baselines import Baselines, against, comparison
from reward_modeling.card import SHOWN, choice_of, model_card, notes_of
from reward_modeling.config import RMConfig
from reward_modeling.judged import Evaluations, Judged, split_figures
from reward_modeling.pair_errors import PairErrors

METRICS = Path(__file__).parent / "metrics"
CALIBRATION_BINS = 10
TIMINGS = ("_runtime", "_per_second", "_jit_compilation_time", "_model_preparation_time")


# ---- metrics -------------------------------------------------------------------------------------


def load_metric(name: str):
    """A metric of reward_modeling/metrics as an `evaluate` module, without download or cache."""
    return evaluate.load(str(METRICS / f"{name}.py"), keep_in_memory=True)


def calibration(
    probabilities: np.ndarray, happened: np.ndarray, bins: int = CALIBRATION_BINS
) -> list[dict[str, float]]:
    """Predicted against observed frequency in equal parts of [0, 1]; empty parts are left out."""
    index = np.minimum((probabilities * bins).astype(int), bins - 1)
    curve = []
    for k in range(bins):
        in_bin = index == k
        if not in_bin.any():
            continue
        curve.append(
            {
                "low": k / bins,
                "high": (k + 1) / bins,
                "count": int(in_bin.sum()),
                "predicted": float(probabilities[in_bin].mean()),
                "observed": float(happened[in_bin].mean()),
            }
        )
    return curve


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return np.exp(-np.logaddexp(0, -x))


# ---- the run -------------------------------------------------------------------------------------


def reuse(config: RMConfig) -> Path | None:
    """The folder of a finished run with the same settings and inputs, else None.

    If that run was killed just after it finished, its checkpoints are removed.

    Raises:
      UserError: the folder is an input, or holds something else.
    """
    folder = Path(config.logging.save_dir)
    check_own_stage(folder, config.inputs)
    if stored_result(folder, config, config.inputs) is None:
        return None
    say(f"{config.logging.run_name}: finished before, reusing {folder}")
    if is_main_rank():
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return folder


def trainer_arguments(config: RMConfig) -> TrainingArguments:
    """The Trainer's settings. Raises `UserError` as `hf_trainer.training_arguments` does."""
    settings = {}
    if config.evaluation.checkpoints == "best":
        settings = {"save_strategy": "best", "save_only_model": True}
    return training_arguments(
        TrainingArguments,
        Path(config.logging.save_dir) / "checkpoints",
        config.train,
        config.evaluation,
        config.logging.log_interval,
        lr_scheduler_type="linear",
        warmup_steps=config.train.warmup,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        greater_is_better=True,
        log_level_replica="error",
        remove_unused_columns=False,
        label_names=["labels"],
        **settings,
    )


class DevRows(Protocol):
    """The dev rows of a reward model. The methods read all predictions and labels of them.

    Attributes:
      rows: how many there are.
      baselines: what simple models predict of them (reward_modeling/baselines.py).
      find_errors: what errors.json describes; None: no such file.
    """

    rows: int
    baselines: Baselines

    def judge(self, predictions: np.ndarray, labels: np.ndarray, /) -> Judged: ...

    def figures(self, predictions: np.ndarray, labels: np.ndarray, /) -> dict[str, Figure]: ...

    def calibration(
        self, predictions: np.ndarray, labels: np.ndarray, /
    ) -> list[dict[str, float]]: ...

    @property
    def find_errors(self) -> Callable[[np.ndarray, np.ndarray], PairErrors] | None: ...


def run_training(
    config: RMConfig,
    make_trainer: Callable[[TrainingArguments], StageTrainer],
    spec: RewardModelSpec,
    dev: DevRows,
    training_rows: int,
    start_messages: Sequence[str] = (),
    extra_facts: Callable[[StageTrainer], dict[str, Any]] | None = None,
) -> Path:
    """Train, select the best checkpoint, evaluate it on dev, write the model's folder.

    Args:
      training_rows: how many rows it learns from.
      start_messages: lines to print when the stage starts.
      extra_facts: trainer -> additional fields of the model's spec. Every process calls it.
    """
    folder = Path(config.logging.save_dir)
    name = config.logging.run_name
    arguments = trainer_arguments(config)
    use_kernels(config.model.kernels, folder)
    checkpoint = _checkpoint_to_resume(config)
    resume_step = None if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    if is_main_rank():
        begin(folder, config, config.inputs)
    log = RunLog(folder, config, resume_step, **config.logging.trackers())
    with log, log.stage(name):
        trainer = make_trainer(arguments)
        require_trained(trainer.accelerator.unwrap_model(trainer.model))
        if config.train.gradient_checkpointing:
            recompute_layers(trainer.accelerator.unwrap_model(trainer.model))
        use_run_log(trainer, log, name)
        notes = (*strategy_notes(config.parallel, trainer.accelerator), *config.logging.notes())
        for message in (*notes, *start_messages):
            say(message)
        if checkpoint is not None:
            say(f"continuing from step {resume_step}")
        evaluations = Evaluations(folder / "checkpoints", resume_step)
        with recorded(trainer, dev, evaluations):
            trainer.train(resume_from_checkpoint=checkpoint)
        note = trainer.tie_note()
        if note is not None:
            say(note)

        output: Any = trainer.predict(trainer.eval_dataset, metric_key_prefix="dev")
        predicted = (output.predictions, output.label_ids)
        numbers = _without_timings(output.metrics)
        judged, figures = dev.judge(*predicted), dev.figures(*predicted)
        errors = None if dev.find_errors is None else dev.find_errors(*predicted)
        facts = {}
        if extra_facts is not None:
            with unsharded(trainer.model):
                facts = extra_facts(trainer)
        choice = choice_of(evaluations, len(trainer.evaluations()))
        metrics = {
            **spec.metrics,
            **numbers,
            **split_figures(figures),
            **_dev_facts(dev, predicted, judged, choice, training_rows),
        }
        best = {"best_step": trainer.state.best_global_step, "steps": trainer.state.global_step}
        spec = replace(spec, metrics=metrics, **facts)
        _write_model(config, trainer, spec)
        if is_main_rank():
            if errors is not None:
                write_json(folder / "errors.json", errors.as_dict())
            write_json(folder / "metrics.json", {**metrics, **facts, **best})
            command = read_json(folder / "run.json")["command"]  # of the run's beginning
            card = model_card(config, spec, judged, dev.baselines, command)
            write_text(folder / "README.md", card)
    if is_main_rank():
        # after the log has written stages.json, because result.json marks the stage as complete
        finish(folder, best)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        say(f"{name}: best step {best['best_step']}, dev {_shown(numbers, figures)}")
        for line in (comparison(judged, dev.baselines), *metrics["notes"]):
            say(f"{name}: {line}")
        if errors is not None:
            say(f"{name}: {errors.describe()}")
    trainer.accelerator.wait_for_everyone()
    return folder


def _dev_facts(
    dev: DevRows,
    predicted: tuple[np.ndarray, np.ndarray],
    judged: Judged,
    choice: Mapping[str, Any],
    training_rows: int,
) -> dict[str, Any]:
    """What belongs to the dev figures: calibration, baselines, numbers of rows, and notes."""
    return {
        "calibration": dev.calibration(*predicted),
        "baselines": against(judged, dev.baselines),
        "rows": {"train": training_rows, "dev": dev.rows},
        "prompts": judged.number_of_prompts,
        "cases": {judged.kind: len(judged.scores_N)},
        "choice": choice,
        "notes": notes_of(judged, choice),
    }


@contextmanager
def recorded(trainer: StageTrainer, dev: DevRows, evaluations: Evaluations) -> Iterator[None]:
    """Inside, every evaluation of the trainer is recorded."""
    compute: Any = trainer.compute_metrics

    def record(prediction: Any) -> dict[str, float]:
        judged = dev.judge(np.asarray(prediction.predictions), np.asarray(prediction.label_ids))
        evaluations.add(trainer.state.global_step, judged, trainer.is_world_process_zero())
        return compute(prediction)

    trainer.compute_metrics = record
    try:
        yield
    finally:
        trainer.compute_metrics = compute


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


def _checkpoint_to_resume(config: RMConfig) -> Path | None:
    """The checkpoint from which an interrupted run continues; None if it starts anew."""
    if config.evaluation.checkpoints != "resume":
        return None
    return last_complete_checkpoint(Path(config.logging.save_dir) / "checkpoints")


def _write_model(config: RMConfig, trainer: StageTrainer, spec: RewardModelSpec) -> None:
    """Write the model's folder. Every process calls it, since a model may be sharded."""
    weights = None
    if trainer.sharded:
        weights = trainer.whole_tensors(trainer.model.state_dict(keep_vars=True))
    if trainer.is_world_process_zero():
        folder = Path(config.logging.save_dir)
        install_model(trainer, folder, spec, read_source(config.model.ckpt), weights)


def _without_timings(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a prediction on dev, without the Trainer's timings."""
    numbers = {}
    for name, value in metrics.items():
        if not name.endswith(TIMINGS):
            numbers[name.removeprefix("dev_")] = value
    return numbers


def install_model(
    trainer: StageTrainer,
    folder: Path,
    spec: RewardModelSpec,
    source: ModelSource | None = None,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write model, tokenizer, source and spec into `folder`, each atomically and the spec last.

    Adapters are merged into the model's weights.

    Args:
      weights: the model's whole tensors, if the model itself is sharded.
    """
    tokenizer: Any = trainer.processing_class
    network: Any = trainer.accelerator.unwrap_model(trainer.model)
    forget_last_call(tokenizer)
    with model_to_install(folder) as temporary:
        if has_adapters(network):
            weights = merged_weights(network, weights)
        network.save_pretrained(temporary, state_dict=weights)
        tokenizer.save_pretrained(temporary)
        if source is not None:
            source.save(temporary)
    spec.save(folder)

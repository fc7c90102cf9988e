"""What both reward-model trainers share: settings, arguments of transformers' `Trainer`, the run
itself.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import evaluate
import numpy as np
import torch
from pydantic import Field, model_validator
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    TrainingArguments,
)

from fgrlhf.config import (
    BatchSize,
    Count,
    FilePath,
    Kernels,
    Positive,
    Rate,
    Seed,
    StrictModel,
    Tokens,
)
from fgrlhf.errors import UserError
from fgrlhf.files import write_json
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.kernels.install import speed_up
from fgrlhf.models.loading import load_config, load_weights
from fgrlhf.reward_models.inputs import Kind, Shape, longest_input
from fgrlhf.reward_models.networks import LanguageModelScorer
from fgrlhf.reward_models.scoring import RewardModelSpec, check_vocabulary, load_tokenizer
from fgrlhf.reward_models.shapes import check_direction, check_stacks, other_shape, shape_of_config
from fgrlhf.runs.hf_trainer import (
    Decay,
    Epochs,
    StageTrainer,
    Warmup,
    check_environment,
    forget_last_call,
    model_to_place,
    use_run_log,
)
from fgrlhf.runs.rl_config import LoggingConfig
from fgrlhf.runs.runlog import RunLog, is_main_rank, say
from fgrlhf.runs.stage import begin, finish, last_complete_checkpoint

METRICS = Path(__file__).parent / "metrics"
CALIBRATION_BINS = 10


class ModelSection(StrictModel):
    ckpt: FilePath = Field(
        description="folder or hub name to start from: an encoder, or a policy checkpoint"
    )
    shape: Shape | Literal["auto"] = Field(
        "auto",
        description=(
            "encoder reads `</s>` marks; seq2seq and causal are read at segment ends; auto: what"
            " ckpt is"
        ),
    )
    max_length: Tokens = Field(2048, description="tokens the network reads")
    lm_logprob_feature: bool = Field(
        False, description="a frozen copy of the language model says how likely each token is"
    )
    kernels: Kernels = "auto"


class TrainSection(StrictModel):
    epochs: Epochs = 50.0
    max_steps: Count | None = Field(None, description="optimiser steps; null: `epochs` decides")
    batch_size: BatchSize = Field(
        24,
        description=(
            "answers (pairs: questions of six pairs) per optimiser step, over all processes"
        ),
    )
    micro_batch_size: BatchSize | None = Field(
        None, description="of them per forward pass and process; null: its whole share"
    )
    lr: Rate = 5e-6
    warmup: Warmup = Field(0.1, description="below 1 a share of all steps, else a number of steps")
    weight_decay: Decay = 0.01
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    max_grad_norm: Positive = 1.0
    bf16: bool = Field(False, description="mixed precision; weights stay fp32")
    seed: Seed = 42


class EvaluationSection(StrictModel):
    every_steps: Count | None = Field(
        None, description="steps between evaluations and checkpoints; null: every epoch"
    )
    batch_size: BatchSize = Field(16, description="answers (pairs: questions) per forward pass")


class RMConfig(StrictModel):
    """What both trainers' configs have in common."""

    model: ModelSection
    train: TrainSection = TrainSection()
    evaluation: EvaluationSection = EvaluationSection()
    logging: LoggingConfig

    @model_validator(mode="after")
    def _possible(self):
        if self.model.lm_logprob_feature and self.model.shape == "encoder":
            raise ValueError(
                "model.lm_logprob_feature=true needs a language model: set model.shape to seq2seq"
                " or causal, or lm_logprob_feature=false"
            )
        return self


def training_arguments(config: RMConfig, folder: Path) -> TrainingArguments:
    """The Trainer's settings. Raises `UserError` where the batch cannot be shared out over the
    processes.
    """
    train, world = config.train, int(os.environ.get("WORLD_SIZE", 1))
    check_environment(train.bf16)
    share = train.batch_size // world
    micro = min(train.micro_batch_size or share, share)
    if train.batch_size % world or share % max(micro, 1):
        raise UserError(
            f"train.batch_size={train.batch_size} cannot be shared out over {world} processes in"
            f" parts of train.micro_batch_size={micro}: make it a multiple of {world} x"
            " micro_batch_size, or start fewer processes"
        )
    when = "epoch" if config.evaluation.every_steps is None else "steps"
    try:
        arguments = TrainingArguments(
            output_dir=str(folder / "checkpoints"),
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=share // micro,
            per_device_eval_batch_size=config.evaluation.batch_size,
            num_train_epochs=train.epochs,
            max_steps=train.max_steps or -1,
            learning_rate=train.lr,
            lr_scheduler_type="linear",
            warmup_steps=train.warmup,
            weight_decay=train.weight_decay,
            adam_beta2=train.adam_beta2,
            max_grad_norm=train.max_grad_norm,
            logging_nan_inf_filter=False,  # it would log other losses in place of NaN
            bf16=train.bf16,
            seed=train.seed,
            eval_strategy=when,
            save_strategy=when,
            eval_steps=config.evaluation.every_steps,
            save_steps=config.evaluation.every_steps or 500,
            load_best_model_at_end=True,
            metric_for_best_model="accuracy",
            greater_is_better=True,
            logging_steps=config.logging.log_interval,
            report_to="none",
            disable_tqdm=True,
            log_level_replica="error",
            remove_unused_columns=False,
            label_names=["labels"],
            dataloader_pin_memory=torch.cuda.is_available(),
            use_cpu=not torch.accelerator.is_available(),  # else CPU processes each train alone
        )
    except ValueError as error:  # e.g. bf16 on a GPU that has none
        raise UserError(f"transformers refuses these settings: {error}") from None
    # One device per process: DataParallel would split batches whose rows share prompts.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def load_network(
    model: ModelSection, kind: Kind, id2label: dict[int, str] | None = None
) -> tuple[PreTrainedModel, Any]:
    """The network to train, its head fresh, and its tokenizer. `id2label`: a segment model's
    outputs.

    Raises:
      UserError: `model.ckpt` cannot be read, is not of `model.shape`, or reads less than
        `model.max_length`.
    """
    shape, fitting, start = model.shape, None, None
    labels: dict[str, Any] = {"num_labels": 1}
    if id2label is not None:
        names = {name: i for i, name in id2label.items()}
        labels = {"num_labels": len(id2label), "id2label": id2label, "label2id": names}
    try:
        start = load_config(model.ckpt, **labels)
        fitting = shape_of_config(start)
        shape = fitting if model.shape == "auto" else model.shape
        if model.lm_logprob_feature and shape == "encoder":
            raise UserError(
                f"model.lm_logprob_feature=true needs a language model, and `{model.ckpt}` is an"
                " encoder: set lm_logprob_feature=false"
            )
        check_stacks(start, shape)
        limit = longest_input(start, shape)
        if limit is not None and model.max_length > limit:
            raise UserError(
                f"model.max_length={model.max_length}, but `{model.ckpt}` reads at most {limit}"
                f" tokens: set it to {limit} or less"
            )
        tokenizer = load_tokenizer(model.ckpt, shape)
        if shape != "encoder":
            scorer = LanguageModelScorer.start_from(
                model.ckpt, shape, kind, id2label, model.lm_logprob_feature
            )
            check_vocabulary(tokenizer, scorer)
            return speed_up(scorer, model.kernels), tokenizer
        start.pad_token_id = tokenizer.pad_token_id
        network = (
            AutoModelForTokenClassification
            if kind == "segment"
            else AutoModelForSequenceClassification
        )
        loaded = load_weights(network, model.ckpt, new_head=True, config=start, dtype=torch.float32)
        check_direction(loaded, shape)
        check_vocabulary(tokenizer, loaded)
        return speed_up(loaded, model.kernels), tokenizer
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        # transformers has no classifier for some decoder-only models: its reason does not name the
        # shape
        if fitting not in (None, shape) and "model.shape=" not in reason:
            reason = f"{reason} Note: {other_shape(start, fitting)}"
        raise UserError(
            f"no network of shape `{shape}` could be loaded from model.ckpt `{model.ckpt}`:"
            f" {reason}"
        ) from None


def load_metric(name: str):
    """A metric of reward_modeling/metrics as an `evaluate` module. Nothing is downloaded or
    cached.
    """
    return evaluate.load(str(METRICS / f"{name}.py"), keep_in_memory=True)


def calibration(
    probabilities: np.ndarray, happened: np.ndarray, bins: int = CALIBRATION_BINS
) -> list[dict[str, float]]:
    """Predicted against observed frequency in `bins` equal parts of [0, 1]; empty parts are left
    out.
    """
    index = np.minimum((probabilities * bins).astype(int), bins - 1)
    return [
        {
            "low": k / bins,
            "high": (k + 1) / bins,
            "count": int((index == k).sum()),
            "predicted": float(probabilities[index == k].mean()),
            "observed": float(happened[index == k].mean()),
        }
        for k in range(bins)
        if (index == k).any()
    ]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def reuse(config: RMConfig) -> None:
    """Say that a finished model is reused, and remove what a process left that was killed right
    after finishing.
    """
    folder = Path(config.logging.save_dir)
    say(f"{config.logging.run_name}: finished before, reusing {folder}")
    if is_main_rank():
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def run_training(
    config: RMConfig,
    trainer: Callable[[TrainingArguments], StageTrainer],
    spec: RewardModelSpec,
    curve: Callable[[np.ndarray, np.ndarray], list[dict]],
    measure: Callable[[StageTrainer], dict[str, Any]] | None = None,
    opening: Sequence[str] = (),
) -> Path:
    """Train, keep the best checkpoint, measure it on dev, write the model's folder.

    Args:
      trainer: makes the Trainer from its arguments.
      curve: calibration of dev predictions (predictions, labels).
      measure: further facts about the trained model that belong into its spec (every process calls
        it).
      opening: lines to print when the stage has begun.
    """
    folder = Path(config.logging.save_dir)
    arguments = training_arguments(config, folder)
    use_kernels(config.model.kernels, folder)
    checkpoint = last_complete_checkpoint(folder / "checkpoints")
    resume_step = None if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    if is_main_rank():
        begin(folder, config, [config.data.train_file, config.data.dev_file, config.model.ckpt])
    log = RunLog(folder, config, resume_step, **config.logging.trackers())
    with log, log.stage(config.logging.run_name):
        run = trainer(arguments)
        use_run_log(run, log, config.logging.run_name)
        if log.is_main:
            print(
                *config.logging.notes(),
                *opening,
                *([f"continuing from step {resume_step}"] if checkpoint else []),
                sep="\n",
                flush=True,
            )
        run.train(resume_from_checkpoint=checkpoint)
        dev = run.predict(run.eval_dataset, metric_key_prefix="dev")
        metrics: dict[str, Any] = {
            name.removeprefix("dev_"): value
            for name, value in dev.metrics.items()
            if not _is_timing(name)
        }
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        metrics["calibration"] = curve(dev.predictions, dev.label_ids)
        facts = measure(run) if measure else {}
        best = {"best_step": run.state.best_global_step, "steps": run.state.global_step}
        if run.is_world_process_zero():
            metrics = {**spec.metrics, **metrics}
            place_model(run, folder, replace(spec, metrics=metrics, **facts))
            write_json(folder / "metrics.json", {**metrics, **facts, **best})
    if is_main_rank():  # once stages.json has the stage's seconds: complete means that all is there
        finish(folder, best)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        print(f"{config.logging.run_name}: best step {best['best_step']}, dev {shown}", flush=True)
    run.accelerator.wait_for_everyone()
    return folder


def _is_timing(name: str) -> bool:
    return name.endswith(
        ("_runtime", "_per_second", "_jit_compilation_time", "_model_preparation_time")
    )


def place_model(run: StageTrainer, folder: Path, spec: RewardModelSpec) -> None:
    """Write model, tokenizer and spec into `folder`; each file appears whole or not at all, the
    spec last.
    """
    forget_last_call(run.processing_class)
    with model_to_place(folder) as temporary:
        run.accelerator.unwrap_model(run.model).save_pretrained(temporary)
        run.processing_class.save_pretrained(temporary)
    spec.save(folder)

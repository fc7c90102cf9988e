"""Shared code of both reward-model trainers: settings, the network, and the training run."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import evaluate
import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
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
    refuse,
)
from fgrlhf.errors import UserError
from fgrlhf.files import write_json
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.models.config import ABOUT_CHECKPOINTING, LoRAConfig, is_quantized
from fgrlhf.models.loading import load_config, load_weights
from fgrlhf.models.lora import add_adapters, has_adapters, merged_weights
from fgrlhf.models.recompute import recompute_layers
from fgrlhf.models.sharding import unsharded
from fgrlhf.models.source import ModelSource, read_source
from fgrlhf.models.top_layers import check_top_layers, train_top_layers
from fgrlhf.reward_models.inputs import longest_input
from fgrlhf.reward_models.loading import check_vocabulary, load_tokenizer
from fgrlhf.reward_models.networks import LanguageModelScorer, speed_up_network
from fgrlhf.reward_models.rm_input import Kind, Shape
from fgrlhf.reward_models.shapes import check_direction, check_stacks, other_shape, shape_of_config
from fgrlhf.reward_models.spec import RewardModelSpec, with_current_names
from fgrlhf.runs.hf_log import use_run_log
from fgrlhf.runs.hf_trainer import (
    Decay,
    Epochs,
    StageTrainer,
    Warmup,
    forget_last_call,
    model_to_install,
    training_arguments,
)
from fgrlhf.runs.optimizer import ABOUT_OPTIMIZER, OptimizerName
from fgrlhf.runs.rl_config import LoggingConfig, ParallelConfig
from fgrlhf.runs.runlog import RunLog, is_main_rank, say
from fgrlhf.runs.stage import begin, finish, finished, last_complete_checkpoint
from reward_modeling.baselines import comparison
from reward_modeling.pair_errors import PairErrors

METRICS = Path(__file__).parent / "metrics"
CALIBRATION_BINS = 10
TOP_LAYERS_KEY = "model.train_top_layers"
TIMINGS = ("_runtime", "_per_second", "_jit_compilation_time", "_model_preparation_time")


class ModelSection(StrictModel):
    ckpt: FilePath = Field(
        description="initial folder or hub name: an encoder, or a policy checkpoint"
    )
    shape: Shape | Literal["auto"] = Field(
        default="auto",
        description=(
            "encoder judges at `</s>` marks; seq2seq and causal judge at segment ends; auto: the"
            " shape of ckpt"
        ),
    )
    max_length: Tokens = Field(default=2048, description="most tokens that the network reads")
    lm_logprob_feature: bool = Field(
        default=False,
        description="read each token's log-probability under a frozen copy of the model",
    )
    text_features: bool = Field(
        default=False,
        description=(
            "start as a linear model of hand-made features of the segments and, with"
            " lm_logprob_feature, of their log-probabilities"
        ),
    )
    layers: Count | None = Field(
        default=None,
        description=(
            "causal: use only the lowest layers of ckpt, this many; middle layers of small models"
            " often judge better than the last ones; null: all"
        ),
    )
    lora: LoRAConfig | None = Field(
        default=None,
        description="train the head and adapters, which are merged into the saved model",
    )
    train_top_layers: Count | None = Field(
        default=None,
        description=(
            "train the head and this many layers, counted from the top; null: all layers and the"
            " embeddings"
        ),
    )
    kernels: Kernels = "auto"


class TrainSection(StrictModel):
    epochs: Epochs = Field(default=50.0, description="passes over the training rows")
    max_steps: Count | None = Field(
        default=None, description="optimiser steps; null: `epochs` decides"
    )
    batch_size: BatchSize = Field(
        default=24,
        description=(
            "responses (pair files: prompts with all pairs) per optimiser step, over all processes"
        ),
    )
    micro_batch_size: BatchSize | None = Field(
        default=None, description="the same per forward pass and process; null: all of its share"
    )
    lr: Rate = Field(default=5e-6, description="learning rate")
    warmup: Warmup = Field(
        default=0.1, description="below 1: a share of all steps; else: a number of steps"
    )
    optimizer: OptimizerName = Field(default="adamw", description=ABOUT_OPTIMIZER)
    weight_decay: Decay = Field(default=0.01, description="of AdamW")
    adam_beta2: float = Field(default=0.999, ge=0, lt=1, description="of AdamW")
    max_grad_norm: Positive = Field(default=1.0, description="bound of the norm of the gradient")
    bf16: bool = Field(default=False, description="mixed precision; weights stay fp32")
    gradient_checkpointing: bool = Field(default=False, description=ABOUT_CHECKPOINTING)
    seed: Seed = Field(default=42, description="of everything random in the run")


class EvaluationSection(StrictModel):
    every_steps: Count | None = Field(
        default=None, description="steps between evaluations and checkpoints; null: every epoch"
    )
    batch_size: BatchSize = Field(
        default=16, description="responses (pair files: prompts) per forward pass"
    )
    checkpoints: Literal["resume", "best"] = Field(
        default="resume",
        description=(
            "resume: all that an interrupted run needs to continue; best: only the weights of the"
            " best evaluation, a third of the size, so an interrupted run starts again"
        ),
    )


class DataSection(StrictModel):
    """Files of both trainers."""

    train_file: str = Field(description="rows to train on")
    dev_file: str = Field(description="rows that select the best checkpoint")

    @model_validator(mode="before")
    @classmethod
    def _names_of_earlier_releases(cls, tree: Any) -> Any:
        return with_current_names(tree)


class RMConfig(StrictModel):
    """Keys of both trainers' configs."""

    model: ModelSection
    data: DataSection
    train: TrainSection = TrainSection()
    evaluation: EvaluationSection = EvaluationSection()
    parallel: ParallelConfig = ParallelConfig()
    logging: LoggingConfig

    @model_validator(mode="after")
    def _features_need_language_model(self):
        for key in ("lm_logprob_feature", "text_features"):
            if getattr(self.model, key) and self.model.shape == "encoder":
                raise ValueError(
                    f"model.{key}=true needs a language model: set model.shape to seq2seq or"
                    f" causal, or {key}=false"
                )
        return self

    @model_validator(mode="after")
    def _parallel_fits(self):
        unsupported = {
            "model.lora.quantize": is_quantized(self.model.lora),
            TOP_LAYERS_KEY: self.model.train_top_layers is not None,
            "train.optimizer=adamw_8bit": self.train.optimizer == "adamw_8bit",
        }
        refuse([("", text) for text in self.parallel.mistakes(unsupported)])
        return self

    @property
    def inputs(self) -> list[str]:
        """Files and checkpoints that the stage reads."""
        return [self.data.train_file, self.data.dev_file, self.model.ckpt]


# ---- the network ---------------------------------------------------------------------------------


def load_network(
    model: ModelSection, kind: Kind, id2label: dict[int, str] | None = None
) -> tuple[PreTrainedModel, Any]:
    """The network to train, with a new head, and its tokenizer.

    Args:
      id2label: names of a segment model's outputs.
    Raises:
      UserError: `model.ckpt` cannot be read, is not of `model.shape`, or reads less than
        `model.max_length`.
    """
    labels: dict[str, Any] = {"num_labels": 1}
    if id2label is not None:
        label2id = {name: i for i, name in id2label.items()}
        labels = {"num_labels": len(id2label), "id2label": id2label, "label2id": label2id}
    shape = model.shape
    config: PretrainedConfig | None = None
    try:
        config = load_config(model.ckpt, **labels)
        if shape == "auto":
            shape = shape_of_config(config)
        check_stacks(config, shape)
        _check_settings(model, config, shape)
        tokenizer = load_tokenizer(model.ckpt, shape)
        if shape != "encoder":
            scorer: Any = LanguageModelScorer.start_from(
                model.ckpt,
                shape,
                kind,
                id2label,
                lm_logprob_feature=model.lm_logprob_feature,
                layers=model.layers,
                text_features=model.text_features,
            )
            _add_adapters(scorer.trunk, model)
            if model.train_top_layers is not None:
                scorer.train_top_layers(model.train_top_layers, TOP_LAYERS_KEY)
            check_vocabulary(tokenizer, scorer)
            return speed_up_network(scorer, model.kernels), tokenizer
        config.pad_token_id = tokenizer.pad_token_id
        network_class = AutoModelForSequenceClassification
        if kind == "segment":
            network_class = AutoModelForTokenClassification
        network: Any = load_weights(
            network_class, model.ckpt, new_head=True, config=config, dtype=torch.float32
        )
        check_direction(network, shape)
        _add_adapters(network.base_model, model)
        if model.train_top_layers is not None:
            train_top_layers(network.base_model, model.train_top_layers, TOP_LAYERS_KEY)
        check_vocabulary(tokenizer, network)
        return speed_up_network(network, model.kernels), tokenizer
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        # transformers has no classifier for some decoder-only models, and its reason does not name
        # the shape
        if config is not None and "model.shape=" not in reason:
            fitting = shape_of_config(config)
            if fitting != shape:
                reason = f"{reason} Note: {other_shape(config, fitting)}"
        raise UserError(
            f"no network of shape `{shape}` could be loaded from model.ckpt `{model.ckpt}`:"
            f" {reason}"
        ) from None


def _add_adapters(trunk: PreTrainedModel, model: ModelSection) -> None:
    """Add the adapters of `model.lora`, if it is set. The head is not in the trunk: it is trained.

    Raises:
      UserError: the trunk has no layers of these names, or fewer than `train_top_layers`.
    """
    if model.lora is None:
        return
    if model.train_top_layers is not None:
        check_top_layers(trunk, model.train_top_layers, TOP_LAYERS_KEY)
    add_adapters(trunk, model.lora, model.train_top_layers)


def _check_settings(model: ModelSection, config: PretrainedConfig, shape: Shape) -> None:
    """Raise `UserError` for settings that the checkpoint does not support."""
    for key in ("lm_logprob_feature", "text_features"):
        if getattr(model, key) and shape == "encoder":
            raise UserError(
                f"model.{key}=true needs a language model, and `{model.ckpt}` is an encoder: set"
                f" {key}=false"
            )
    if model.layers is not None and shape != "causal":
        raise UserError(
            f"model.layers={model.layers} needs a decoder-only model, and `{model.ckpt}` is of"
            f" shape {shape}: leave it out"
        )
    limit = longest_input(config, shape)
    if limit is not None and model.max_length > limit:
        raise UserError(
            f"model.max_length={model.max_length}, but `{model.ckpt}` reads at most {limit}"
            f" tokens: set it to {limit} or less"
        )


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
    """
    folder = Path(config.logging.save_dir)
    if finished(folder, config, config.inputs) is None:
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


def run_training(
    config: RMConfig,
    make_trainer: Callable[[TrainingArguments], StageTrainer],
    spec: RewardModelSpec,
    calibration_curve: Callable[[np.ndarray, np.ndarray], list[dict[str, float]]],
    extra_facts: Callable[[StageTrainer], dict[str, Any]] | None = None,
    start_messages: Sequence[str] = (),
    find_errors: Callable[[np.ndarray, np.ndarray], PairErrors] | None = None,
) -> Path:
    """Train, select the best checkpoint, evaluate it on dev, write the model's folder.

    Args:
      spec: with `baselines` (reward_modeling/baselines.py) among its metrics.
      calibration_curve: (dev predictions, labels) -> their calibration.
      extra_facts: trainer -> additional fields of the model's spec. Every process calls it.
      start_messages: lines to print when the stage starts.
      find_errors: (dev predictions, labels) -> what errors.json describes. None: no such file.
    """
    folder = Path(config.logging.save_dir)
    arguments = trainer_arguments(config)
    use_kernels(config.model.kernels, folder)
    checkpoint = None
    if config.evaluation.checkpoints == "resume":
        checkpoint = last_complete_checkpoint(folder / "checkpoints")
    resume_step = None if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    if is_main_rank():
        begin(folder, config, config.inputs)
    log = RunLog(folder, config, resume_step, **config.logging.trackers())
    with log, log.stage(config.logging.run_name):
        trainer = make_trainer(arguments)
        if config.train.gradient_checkpointing:
            recompute_layers(trainer.accelerator.unwrap_model(trainer.model))
        use_run_log(trainer, log, config.logging.run_name)
        for message in (*config.logging.notes(), *start_messages):
            say(message)
        if checkpoint is not None:
            say(f"continuing from step {resume_step}")
        trainer.train(resume_from_checkpoint=checkpoint)

        dev: Any = trainer.predict(trainer.eval_dataset, metric_key_prefix="dev")
        numbers = _without_timings(dev.metrics)
        metrics = {
            **spec.metrics,
            **numbers,
            "calibration": calibration_curve(dev.predictions, dev.label_ids),
        }
        facts = {}
        if extra_facts is not None:
            with unsharded(trainer.model):
                facts = extra_facts(trainer)
        weights = None
        if trainer.sharded:
            weights = trainer.whole_tensors(trainer.model.state_dict(keep_vars=True))
        best = {
            "best_step": trainer.state.best_global_step,
            "steps": trainer.state.global_step,
        }
        errors = None if find_errors is None else find_errors(dev.predictions, dev.label_ids)
        if trainer.is_world_process_zero():
            source = read_source(config.model.ckpt)
            if errors is not None:
                write_json(folder / "errors.json", errors.as_dict())
            install_model(trainer, folder, replace(spec, metrics=metrics, **facts), source, weights)
            write_json(folder / "metrics.json", {**metrics, **facts, **best})
    if is_main_rank():
        # after the log has written stages.json, because result.json marks the stage as complete
        finish(folder, best)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        say(f"{config.logging.run_name}: best step {best['best_step']}, dev {shown}")
        say(f"{config.logging.run_name}: {comparison(metrics['accuracy'], metrics['baselines'])}")
        if errors is not None:
            say(f"{config.logging.run_name}: {errors.describe()}")
    trainer.accelerator.wait_for_everyone()
    return folder


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

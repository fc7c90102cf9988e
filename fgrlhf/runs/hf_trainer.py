"""Shared code of the stages that train with transformers' `Trainer`: SFT and reward models."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import RandomSampler, Sampler
from transformers import TrainingArguments

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.kernels.choice import slow_bf16_note
from fgrlhf.models.lora import has_adapters
from fgrlhf.models.quantized import bitsandbytes
from fgrlhf.models.sharding import local
from fgrlhf.runs.distributed import check_launcher
from fgrlhf.runs.hf_checkpoints import CheckpointCallback
from fgrlhf.runs.hf_config import EvaluationSection, TrainSection
from fgrlhf.runs.runlog import say
from fgrlhf.runs.sharded_trainer import ShardableTrainer
from fgrlhf.runs.ties import tie_note
from fgrlhf.utils import IGNORED

SHOWN_NAMES = 3  # of tensors, in a message


# ---- settings ------------------------------------------------------------------------------------

Arguments = TypeVar("Arguments", bound=TrainingArguments)


def training_arguments(
    arguments_class: type[Arguments],
    folder: str | Path,
    train: TrainSection,
    evaluation: EvaluationSection,
    log_interval: int,
    **settings: Any,
) -> Arguments:
    """The Trainer's settings.

    Args:
      folder: folder for checkpoints.
      settings: arguments specific to the stage; they override the common ones.
    Raises:
      UserError: the processes cannot share the batch, the launcher is not supported, or
        transformers rejects a setting.
    """
    check_environment(train.bf16)
    share, micro = _batch_sizes(train)
    when = "epoch" if evaluation.every_steps is None else "steps"
    if train.optimizer == "adamw_8bit":
        bitsandbytes("train.optimizer=adamw_8bit")
        settings["optim"] = "adamw_bnb_8bit"
    common = {
        "output_dir": str(folder),
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": share // micro,
        "per_device_eval_batch_size": evaluation.batch_size,
        "num_train_epochs": train.epochs,
        "max_steps": train.max_steps or -1,
        "learning_rate": train.lr,
        "weight_decay": train.weight_decay,
        "adam_beta2": train.adam_beta2,
        "max_grad_norm": train.max_grad_norm,
        "bf16": train.bf16,
        "seed": train.seed,
        "eval_strategy": when,
        "save_strategy": when,
        "eval_steps": evaluation.every_steps,
        "save_steps": evaluation.every_steps or 500,
        "logging_steps": log_interval,
        "logging_nan_inf_filter": False,  # it would replace NaN in the log by other losses
        "report_to": "none",
        "disable_tqdm": True,
        # without it, processes on a CPU would each train alone
        "use_cpu": not torch.accelerator.is_available(),
        "dataloader_pin_memory": torch.accelerator.is_available(),
    }
    try:
        arguments = arguments_class(**{**common, **settings})
    except ValueError as error:  # e.g. bf16 on a GPU without it
        raise UserError(f"transformers rejects these settings: {error}") from None
    if train.bf16:
        note = slow_bf16_note(arguments.device.type, "train.bf16=false")
        if note is not None:
            say(note)
    # One device per process. DataParallel would split batches whose rows belong together.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _batch_sizes(train: TrainSection) -> tuple[int, int]:
    """Examples of one process per optimiser step, and per forward pass."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if train.batch_size % world:
        fewer = max(n for n in range(1, world) if train.batch_size % n == 0)
        if torch.accelerator.is_available():
            gpus = ",".join(str(number) for number in range(fewer))
            way_out = f", one for each GPU: use {fewer} of them (CUDA_VISIBLE_DEVICES={gpus})"
        else:
            way_out = f": start {fewer} (PROCESSES={fewer})"
        raise UserError(
            f"train.batch_size={train.batch_size} is not divisible by {world}"
            f" processes{way_out}, or change the batch size"
        )
    share = train.batch_size // world
    micro = min(train.micro_batch_size or share, share)
    if share % micro:
        raise UserError(
            f"train.batch_size={train.batch_size} is not divisible by {world} processes x"
            f" train.micro_batch_size={micro}: make it a multiple of {world} x micro_batch_size,"
            " or start fewer processes"
        )
    return share, micro


# ---- the Trainer ---------------------------------------------------------------------------------


class StageTrainer(ShardableTrainer):
    """A Trainer that stops when training diverges and writes verifiable checkpoints.

    Divergence means a loss, gradient norm, dev metric or weight that is NaN or infinite. Loss and
    gradient norm are checked before every optimiser step, so that no such step is taken. All
    processes see the same values and stop together. Weights are checked before a checkpoint is
    written and when training ends. Training never continues past the last step.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        check_launcher(self.accelerator.distributed_type)
        self._step_loss: torch.Tensor | float = 0.0  # of this process, summed over micro-batches
        self._lengths: list[int] | None = None
        self._tokens = 0  # of this process since the last line of the log, with padding
        self._padding = 0
        # of the dev rows evaluated so far: this process's part of the summed loss, all labels
        self._dev_loss = 0.0
        self._dev_labels = 0
        self.add_callback(CheckpointCallback(self))

    def _count_padding(self, inputs: Mapping[str, Any]) -> None:
        for name in ("attention_mask", "decoder_attention_mask"):
            mask = inputs.get(name)
            if mask is not None:
                self._tokens += mask.numel()
                self._padding += mask.numel() - int(mask.sum())

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        """Add the share of padding since the last such line to the training metrics."""
        if "loss" in logs and self._tokens:
            logs["padding"] = self._padding / self._tokens
            self._tokens = 0
            self._padding = 0
        super().log(logs, *args, **kwargs)

    def group_by_length(self, lengths: Sequence[int]) -> None:
        """Form micro-batches of examples of similar length within every optimiser step.

        Args:
          lengths: of the training examples, in any unit.
        """
        self._lengths = list(lengths)

    def _get_train_sampler(self, *args, **kwargs):
        sampler: Any = super()._get_train_sampler(*args, **kwargs)
        parts = self.args.gradient_accumulation_steps * self.args.world_size
        if self._lengths is None or parts == 1 or not isinstance(sampler, RandomSampler):
            return sampler
        examples_per_step = self.args.per_device_train_batch_size * parts
        return StepwiseSortedSampler(
            self._lengths, examples_per_step, self.args.seed, lambda: int(self.state.epoch or 0)
        )

    def training_step(self, model, inputs, num_items_in_batch=None):
        self._count_padding(inputs)
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._step_loss = self._step_loss + loss
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        """Called once per optimiser step, before the step is taken."""
        grad_norm = super()._get_grad_norm(model, grad_norm)
        loss = self._step_loss
        self._step_loss = 0.0
        numbers = [
            torch.as_tensor(number, dtype=torch.float32, device=self.args.device)
            for number in (loss, grad_norm)
        ]
        gathered: Any = self.accelerator.gather(torch.stack(numbers))
        values = gathered.tolist()  # of every process: loss, norm, loss, norm, ...
        self.refuse_divergence(
            {"the loss": _worst(values[::2]), "the gradient norm": _worst(values[1::2])},
            step=self.state.global_step + 1,
        )
        return grad_norm

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Write a checkpoint's weights; with adapters, only the trained ones.

        The frozen weights are those of the folder from which training started.
        """
        model: Any = self.accelerator.unwrap_model(self.model)
        if has_adapters(model):
            parameters = model.named_parameters(remove_duplicate=False)
            frozen = {name for name, parameter in parameters if not parameter.requires_grad}
            tensors = state_dict
            if tensors is None:
                tensors = model.state_dict(keep_vars=self.sharded)
            state_dict = {name: x for name, x in tensors.items() if name not in frozen}
        super()._save(output_dir, state_dict)

    def _issue_warnings_after_load(self, load_result) -> None:
        """Checkpoints with adapters lack the frozen weights, so a warning would mislead."""
        if not has_adapters(self.accelerator.unwrap_model(self.model)):
            super()._issue_warnings_after_load(load_result)

    def _run_epoch(self, *args, **kwargs):
        """Skip the epoch if the last step has been taken.

        The Trainer takes a step before it checks `max_steps`, so it would take one step too many
        when it continues from a checkpoint of the last step.
        """
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)

    def train(self, resume_from_checkpoint: str | Path | None = None, **kwargs):
        """Train from the start or from a checkpoint that `last_complete_checkpoint` returned.

        From a checkpoint of the last step, only the best model is loaded and nothing is trained.

        Raises:
          UserError: training diverged.
        """
        checkpoint = None if resume_from_checkpoint is None else str(resume_from_checkpoint)
        output = super().train(resume_from_checkpoint=checkpoint, **kwargs)
        self.refuse_broken_weights()
        return output

    def evaluate(self, *args, **kwargs):
        metrics = super().evaluate(*args, **kwargs)
        self.refuse_divergence(
            {f"the dev metric `{name}`": value for name, value in metrics.items()},
            self.state.global_step,
        )
        return metrics

    def predict(self, *args, **kwargs):
        output = super().predict(*args, **kwargs)
        metrics = output.metrics or {}
        self.refuse_divergence(
            {f"the dev metric `{name}`": value for name, value in metrics.items()},
            self.state.global_step,
        )
        return output

    # ---- the dev loss and the best checkpoint ----------------------------------------------------

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs):
        """The Trainer's, with another loss: the mean over the labels of all dev rows.

        The Trainer's is the mean of the batches' means, which depends on the batch size and on the
        number of processes if rows have different numbers of labels.
        """
        self._dev_loss = 0.0
        self._dev_labels = 0
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        total = self._dev_loss
        if self.args.world_size > 1:
            part = torch.tensor([total], dtype=torch.float64, device=self.args.device)
            gathered: Any = self.accelerator.gather(part)
            total = float(gathered.sum())
        assert output.metrics is not None
        output.metrics[f"{metric_key_prefix}_loss"] = total / self._dev_labels
        return output

    def prediction_step(self, model, inputs, *args, **kwargs):
        state = self.accelerator.gradient_state
        if state.end_of_dataloader and state.remainder > 0:
            labels = inputs["labels"]
            first = self.args.process_index * len(labels)
            inputs = {**inputs, "labels": without_repeated(labels, state.remainder - first)}
        loss, outputs, labels = super().prediction_step(model, inputs, *args, **kwargs)
        count = self._get_num_items_in_batch([inputs], self.args.device)  # of all processes
        assert loss is not None and count is not None
        # `compute_loss` divides by this number and multiplies by the number of processes
        self._dev_loss += float(loss) * int(count) / self.args.world_size
        self._dev_labels += int(count)
        return loss, outputs, labels

    def _determine_best_metric(self, metrics, trial=None) -> bool:
        """As the Trainer's, but of equal evaluations, the one with the lower dev loss is better."""
        if super()._determine_best_metric(metrics, trial):
            return True
        name = self.args.metric_for_best_model
        if name is None or metrics[f"eval_{name}"] != self.state.best_metric:
            return False
        best_step = self.state.best_global_step
        losses = [line["eval_loss"] for line in self.evaluations() if line["step"] == best_step]
        if not losses or metrics["eval_loss"] >= losses[-1]:
            return False
        self.state.best_global_step = self.state.global_step
        return True

    def evaluations(self) -> list[dict[str, float]]:
        """The lines of the Trainer's log with dev metrics, also of the run that this continues."""
        return [line for line in self.state.log_history if "eval_loss" in line]

    def tie_note(self) -> str | None:
        """A note if the metric that selects the best checkpoint cannot tell them apart."""
        metric = self.args.metric_for_best_model
        if metric is None:
            return None
        values = [line[f"eval_{metric}"] for line in self.evaluations()]
        kept = f"the checkpoint with the lowest dev loss (step {self.state.best_global_step})"
        return tie_note(metric, values, kept)

    def refuse_divergence(self, quantities: Mapping[str, float], step: int) -> None:
        """Raise a `UserError` that names the first quantity that is NaN or infinite."""
        for name, value in quantities.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(_diverged(f"{name} is {value} at step {step}", self.args))

    @torch.no_grad()
    def refuse_broken_weights(self) -> None:
        """Raise a `UserError` that names weights that are NaN or infinite.

        All processes raise it: they hold the same weights, or tell each other of their parts.
        """
        model: Any = self.accelerator.unwrap_model(self.model)
        names = []
        flags = []
        for name, tensor in model.named_parameters():
            names.append(name)
            flags.append(~torch.isfinite(local(tensor)).all())
        processes_N: Any = torch.stack(flags).int()
        if self.sharded:
            processes_N = self.accelerator.reduce(processes_N, "sum")
        broken = [name for name, processes in zip(names, processes_N.tolist()) if processes]
        if broken:
            shown = ", ".join(shorten(name, 80) for name in broken[:SHOWN_NAMES])
            fact = (
                f"{len(broken)} weight tensors hold NaN or infinity after step"
                f" {self.state.global_step} ({shown}, ...)"
            )
            raise UserError(_diverged(fact, self.args))


class StepwiseSortedSampler(Sampler[int]):
    """Random batches of one optimiser step each, sorted by length within the batch.

    A step's examples are the random sample they would be without sorting. Consecutive examples form
    its micro-batches, so these hold examples of similar length. The order is a pure function of the
    seed and the epoch.

    Args:
      lengths: of the examples.
      examples_per_step: of all processes.
      epoch: the current epoch. accelerate tells a sampler its epoch too, but does not reach it in
        a run of several processes that is resumed within an epoch.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        examples_per_step: int,
        seed: int,
        epoch: Callable[[], int],
    ):
        self.lengths = lengths
        self.examples_per_step = examples_per_step
        self.random = SeedableRandomSampler(lengths, data_seed=seed)
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        self.random.set_epoch(self.epoch())
        order = list(self.random)
        for start in range(0, len(order), self.examples_per_step):
            step = order[start : start + self.examples_per_step]
            yield from sorted(step, key=lambda i: -self.lengths[i])


def without_repeated(labels: torch.Tensor, n: int) -> torch.Tensor:
    """The labels with IGNORED in all rows but the first n.

    accelerate repeats rows to fill up the last batch of several processes. If n is negative, all
    rows are such repetitions.
    """
    labels = labels.clone()
    labels[max(n, 0) :] = IGNORED
    return labels


def _worst(values: list[float]) -> float:
    """The first value that is not finite, else the first one."""
    return next((value for value in values if not math.isfinite(value)), values[0])


def _diverged(fact: str, args) -> str:
    folder = Path(args.output_dir).parent
    return (
        f"training diverged: {fact}. Lower train.lr (it is {args.learning_rate:g}), lower"
        f" train.max_grad_norm (it is {args.max_grad_norm:g}) or warm up for more steps. With other"
        f" settings, remove {folder} or set another logging.save_dir; with the same settings, a"
        " rerun continues from the last checkpoint, which is intact, and diverges again."
    )


# ---- launchers -----------------------------------------------------------------------------------

_LAUNCHERS = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism config",
}


def check_environment(bf16: bool, environment: Mapping[str, str] = os.environ) -> None:
    """Reject launchers that would change how the Trainer trains.

    Losses here are averaged over the whole batch and multiplied by the number of processes, because
    DDP and `parallel.strategy: fsdp2` average gradients over them. A launcher that shards the model
    in its own way or scales the loss would change the gradients.

    Raises:
      UserError: the launcher is not plain DDP, or sets another precision than the config.
    """
    for variable, launcher in _LAUNCHERS.items():
        if environment.get(variable, "false").lower() in ("true", "1", "yes"):
            raise UserError(
                f"the launcher enables {launcher} ({variable} is set). This stage was never tested"
                " with it and may train wrongly: start it with `accelerate launch --multi_gpu` or"
                " `torchrun`. Then each process has a copy of the model or, with"
                " parallel.strategy=fsdp2, a part of it"
            )
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", "bf16" if bf16 else "no"):
        raise UserError(
            f"the launcher sets mixed precision {precision}, but train.bf16 is"
            f" {str(bf16).lower()}: leave --mixed_precision out and set train.bf16"
        )

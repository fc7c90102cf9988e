"""The loop of SFT and of reward models: passes over labelled rows, dev evaluations, the best model.

    step     loss = sum over the rows' labels of their losses / number of labels in the step
    due      after `evaluation.every_steps` steps, or after each pass, and after the last step:
             evaluate on dev, then write a checkpoint
    end      load the weights of the best evaluation

Data order, dropout and learning rate are pure functions of (seed, step), so a resumed run continues
bit for bit on a CPU.
"""

import math
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm import tqdm

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base_trainer import BaseTrainer, tie_note
from fgrlhf.configs.sections import SupervisedTrainConfig
from fgrlhf.data.mixture import mixture_of
from fgrlhf.models.sharding import local, unsharded
from fgrlhf.runs import checkpoint
from fgrlhf.runs.batching import micro_batches
from fgrlhf.runs.distributed import share_of, strategy_notes
from fgrlhf.runs.occupied import check_own_stage
from fgrlhf.runs.optimizer import decayed, make_optimizer
from fgrlhf.runs.progress import paused
from fgrlhf.runs.runlog import RunLog, is_main_rank, say
from fgrlhf.runs.stage import begin, finish, stored_result
from fgrlhf.utils import seeded

SHOWN_NAMES = 3  # of tensors, in a message

Result = TypeVar("Result")


class SupervisedTrainer(BaseTrainer):
    """Trains a module on rows with labels, and keeps the checkpoint that is best on dev.

    A subclass says how rows become a batch and a loss (`collate`, `labels_of`, `mean_loss`), in
    which order they are read (`epoch_batches`), and what is measured on dev (`dev_metrics`).

    Training stops when it diverges: if a loss, gradient norm, dev metric or weight is NaN or
    infinite. Loss and norm are checked before the optimiser step, weights before a checkpoint is
    written and at the end. All processes see the same values and stop together.

    Args:
      config: with the sections `train` and `evaluation` of SFT and reward models.
      rows, dev_rows: what `collate` reads. Without dev rows, the last model is kept.
    Raises:
      UserError: the processes cannot share the batch, or see `BaseTrainer`.
    """

    best_is_checkpoint = True

    def __init__(
        self,
        config: Any,
        module: nn.Module,
        rows: Sequence,
        dev_rows: Sequence,
        accelerator: Accelerator,
    ):
        self.micro_batch_size = micro_batch_size(config.train, accelerator.num_processes)
        super().__init__(config, module, accelerator)
        self.rows = rows
        self.mixture = mixture_of(rows)
        self.dev_rows = dev_rows
        self._epoch = -1  # the pass whose batches are in `_epoch_batches`; -1: none yet
        self._epoch_batches: list[list[int]] = []
        # since the last line of the log
        self.losses: list[float] = []  # of each step
        self._tokens = 0  # of this process, with padding
        self._padding = 0

    # ---- what a subclass provides ----------------------------------------------------------------

    @abstractmethod
    def collate(self, rows: Sequence) -> dict[str, Tensor]:
        """A batch of rows."""

    @abstractmethod
    def labels_of(self, row: Any) -> int:
        """The number of labels of a row: of the terms of its loss."""

    @abstractmethod
    def mean_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """The mean loss over the labels of a batch.

        Args:
          model: the module. In training it may be wrapped; on dev it is not, since processes have
            unequal numbers of batches.
        """

    @abstractmethod
    def epoch_batches(self, epoch: int) -> list[list[int]]:
        """The rows of each step of a pass: a pure function of (seed, epoch)."""

    @abstractmethod
    def dev_metrics(self) -> dict[str, float]:
        """The metrics on dev by name, with `loss`. All processes call it and get the same."""

    # ---- pure functions of (config, step) --------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.rows) / self.config.train.batch_size)

    @property
    def total_steps(self) -> int:
        train = self.config.train
        return train.max_steps or math.ceil(train.epochs * self.steps_per_epoch)

    def batch_indices(self, step: int) -> list[int]:
        """The rows of a step."""
        epoch, i = divmod(step, self.steps_per_epoch)
        if self._epoch != epoch:
            self._epoch_batches = self.epoch_batches(epoch)
            self._epoch = epoch
        return self._epoch_batches[i]

    def lr_factor(self, step: int) -> float:
        """The learning rate of a step, as a fraction of its peak (as in transformers' Trainer).

        It is step / W in the warmup of W steps, then follows the schedule.
        """
        warmup = self.warmup_steps
        return step / warmup if step < warmup else self.scheduled(step, warmup)

    def is_due(self, step: int) -> bool:
        """Whether dev is evaluated and a checkpoint is written after this many steps."""
        return step % self.steps_between_evaluations == 0 or step == self.total_steps

    # ---- the loop --------------------------------------------------------------------------------

    def resume(self) -> bool:
        """Continue from the last complete checkpoint; False if there is none."""
        if self.can_resume:
            return checkpoint.load_latest(self)
        if self.accelerator.is_main_process:
            shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
        return False

    def train(self) -> None:
        """Train up to the last step, then load the best weights.

        Raises:
          UserError: training diverged.
        """
        with self._progress_bar() as bar:
            while self.step < self.total_steps:
                with seeded(*self.seed_of_step):
                    metrics = self.update(self.batch_indices(self.step))
                self.step += 1
                is_due = self.is_due(self.step)
                if is_due or self.step % self.config.logging.log_interval == 0:
                    self._log_step(metrics, bar)
                bar.update()
                if is_due:
                    self._evaluate_and_save(bar)
        self.refuse_broken_weights()
        self.load_best()

    def load_best(self) -> None:
        """Load the weights of the best evaluation; those of the last step if there was none."""
        if self.best is not None:
            checkpoint.load_best_weights(self)

    def update(self, indices: Sequence[int]) -> dict[str, float]:
        """One optimiser step on the mean loss over the labels of the rows with these indices.

        The result does not depend on the number of micro-batches or processes.
        """
        world = self.accelerator.num_processes
        self.module.train()
        self.set_learning_rates()
        lr = self.optimizer.param_groups[0]["lr"]
        n_labels = sum(self.labels_of(self.rows[i]) for i in indices)
        parts = micro_batches(indices, self.micro_batch_size, self.accelerator.process_index, world)
        self.optimizer.zero_grad(set_to_none=True)
        total: Any = 0
        for i, (part, weight) in enumerate(parts):
            rows = [self.rows[j] for j in part]
            share = weight * sum(map(self.labels_of, rows)) / n_labels
            batch = self.training_batch(rows)
            self._count_padding(batch)
            with self.no_sync(i + 1 < len(parts)):
                with self.precision():
                    loss = self.mean_loss(self.model, batch)
                # gradients are averaged over processes, but their sum is needed
                (loss * share * world).backward()
            total = total + loss.detach() * share
        loss = float(self.sum_over_processes(total))
        self.refuse_divergence({"the loss": loss}, self.step + 1)
        self.losses.append(loss)
        return self.clip_and_step() | {"lr": lr}

    def training_batch(self, rows: Sequence) -> dict[str, Tensor]:
        """The rows as a batch on the device."""
        return self.on_device(self.collate(rows))

    def _count_padding(self, batch: Mapping[str, Tensor]) -> None:
        for name in ("attention_mask", "decoder_attention_mask"):
            mask = batch.get(name)
            if mask is not None:
                self._tokens += mask.numel()
                self._padding += mask.numel() - int(mask.sum())

    def on_device(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}

    def dev_batches(self) -> list[Sequence]:
        """The process's share of the dev rows, in batches of `evaluation.batch_size`."""
        share = share_of(
            self.dev_rows, self.accelerator.process_index, self.accelerator.num_processes
        )
        size = self.config.evaluation.batch_size
        return [share[start : start + size] for start in range(0, len(share), size)]

    def mean_over_dev(self, total_loss: float) -> float:
        """The mean loss over the labels of all dev rows.

        Args:
          total_loss: the sum over this process's share.
        """
        # no float64 on some devices
        total = torch.tensor(total_loss, device=self.accelerator.device)
        return float(self.sum_over_processes(total)) / sum(map(self.labels_of, self.dev_rows))

    # ---- evaluation and checkpoints --------------------------------------------------------------

    def _evaluate_and_save(self, bar: tqdm) -> None:
        self.refuse_broken_weights()
        is_best = bool(self.dev_rows) and self._evaluate(bar)
        if self.can_resume:
            checkpoint.save(self)
        elif is_best:
            checkpoint.save_best_weights(self)

    @property
    def can_resume(self) -> bool:
        """Whether checkpoints hold all that an interrupted run needs to continue."""
        return True

    def _evaluate(self, bar: tqdm) -> bool:
        """Evaluate on dev; whether the model is the best so far."""
        with paused(bar):
            metrics = self.evaluating(self.dev_metrics)
        self.refuse_divergence(
            {f"the dev metric `eval_{name}`": value for name, value in metrics.items()}, self.step
        )
        columns = {f"eval/{name}": value for name, value in metrics.items()}
        self.log.log(self.step, columns | {"epoch": self.step / self.steps_per_epoch})
        if not self._quiet():
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in columns.items())
            name = self.config.logging.run_name
            bar.write(f"{name}: step {self.step}/{self.total_steps}, {numbers}")
        value = self.best_value(metrics)
        self.dev_values.append(value)
        now = {"step": self.step, "metric": self.metric, "value": value, "loss": metrics["loss"]}
        if self.best is not None and not self._is_better(now, self.best):
            return False
        self.best = now
        return True

    def _is_better(self, one: dict, other: dict) -> bool:
        if one["value"] == other["value"]:
            return one["loss"] < other["loss"]
        return (one["value"] > other["value"]) == (self.metric != "loss")

    def evaluating(self, work: Callable[[], Result]) -> Result:
        """Run `work()`, in which each process may make as many forward passes as it needs."""
        self.module.eval()
        with torch.no_grad(), self.precision(), unsharded(self.module):
            return work()

    def tie_note(self) -> str | None:
        """A note if the metric that selects the best checkpoint cannot tell them apart."""
        if self.best is None:
            return None
        kept = f"the checkpoint with the lowest dev loss (step {self.best['step']})"
        return tie_note(self.metric, self.dev_values, kept)

    # ---- the log ---------------------------------------------------------------------------------

    def _log_step(self, metrics: Mapping[str, float], bar: tqdm) -> None:
        """Write a line: losses are averaged, and padding counted, since the last one."""
        line = {"loss": sum(self.losses) / len(self.losses), **metrics, **self.fill_metrics()}
        line |= self.mixture_columns(self.step)
        self.log.log(self.step, line | {"epoch": self.step / self.steps_per_epoch})
        self.losses = []
        hidden = ("grad_norm", "lr", *self.mixture_columns(0))
        shown = {name: f"{line[name]:.4g}" for name in line if name not in hidden}
        bar.set_postfix(shown, refresh=False)

    def fill_metrics(self) -> dict[str, float]:
        """The share of padding since the last call."""
        if not self._tokens:
            return {}
        padding = self._padding / self._tokens
        self._tokens = 0
        self._padding = 0
        return {"padding": padding}

    # ---- the optimiser, and divergence -----------------------------------------------------------

    def _make_optimizer(self) -> torch.optim.Optimizer:
        train = self.config.train
        groups = decayed(self.module, train.weight_decay)
        for group in groups:
            group |= {"lr": train.lr, "peak_lr": train.lr}
        betas = (train.adam_beta1, train.adam_beta2)
        return make_optimizer(train.optimizer, self.module, groups, train.adam_eps, betas)

    def check_finite(self, grad_norm: Tensor) -> None:
        self.refuse_divergence({"the gradient norm": float(grad_norm)}, self.step + 1)

    def refuse_divergence(self, quantities: Mapping[str, float], step: int) -> None:
        """Raise a `UserError` that names the first quantity that is NaN or infinite."""
        for name, value in quantities.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(self._diverged(f"{name} is {value} at step {step}"))

    @torch.no_grad()
    def refuse_broken_weights(self) -> None:
        """Raise a `UserError` that names weights that are NaN or infinite.

        All processes raise it: they hold the same weights, or tell each other of their parts.
        """
        names = []
        flags = []
        for name, tensor in self.module.named_parameters():
            names.append(name)
            flags.append(~torch.isfinite(local(tensor)).all())
        processes_N = torch.stack(flags).int()
        if self.sharded:
            processes_N = self.sum_over_processes(processes_N)
        broken = [name for name, processes in zip(names, processes_N.tolist()) if processes]
        if broken:
            shown = ", ".join(shorten(name, 80) for name in broken[:SHOWN_NAMES])
            raise UserError(
                self._diverged(
                    f"{len(broken)} weight tensors hold NaN or infinity after step {self.step}"
                    f" ({shown}, ...)"
                )
            )

    def _diverged(self, fact: str) -> str:
        train = self.config.train
        return (
            f"training diverged: {fact}. Lower train.lr (it is {train.lr:g}), lower"
            f" train.max_grad_norm (it is {train.max_grad_norm}) or warm up for more steps. With"
            f" other settings, remove {self.folder} or set another logging.save_dir; with the same"
            " settings, a rerun continues from the last checkpoint, which is intact, and diverges"
            " again."
        )


def micro_batch_size(train: SupervisedTrainConfig, processes: int) -> int:
    """Rows of one process per forward pass.

    Raises:
      UserError: the processes cannot share the batch.
    """
    if train.batch_size % processes:
        fewer = max(n for n in range(1, processes) if train.batch_size % n == 0)
        if torch.accelerator.is_available():
            gpus = ",".join(str(number) for number in range(fewer))
            way_out = f", one for each GPU: use {fewer} of them (CUDA_VISIBLE_DEVICES={gpus})"
        else:
            way_out = f": start {fewer} (PROCESSES={fewer})"
        raise UserError(
            f"train.batch_size={train.batch_size} is not divisible by {processes}"
            f" processes{way_out}, or change the batch size"
        )
    share = train.batch_size // processes
    micro = min(train.micro_batch_size or share, share)
    if share % micro:
        raise UserError(
            f"train.batch_size={train.batch_size} is not divisible by {processes} processes x"
            f" train.micro_batch_size={micro}: make it a multiple of {processes} x"
            " micro_batch_size, or start fewer processes"
        )
    return micro


# ---- the stage around it -------------------------------------------------------------------------


def reuse(config: Any) -> Path | None:
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


@contextmanager
def trained(
    trainer: SupervisedTrainer, start_messages: Sequence[str], task: str | None = None
) -> Iterator[None]:
    """Train; the block, which is timed with it, writes the model.

    Args:
      start_messages: lines to print when the stage starts.
      task: its name, for the log.
    """
    config = trainer.config
    name = config.logging.run_name
    if is_main_rank():
        begin(trainer.folder, config, config.inputs)
    resumed = trainer.resume()
    resume_step = trainer.step if resumed else None
    trainer.log = RunLog(
        trainer.folder,
        config,
        resume_step,
        task=task,
        dtype=trainer.dtype,
        **config.logging.trackers(),
    )
    with trainer.log, trainer.log.stage(name):
        notes = (*strategy_notes(config.parallel, trainer.accelerator), *config.logging.notes())
        for message in (*notes, *start_messages, *trainer.mixture_notes()):
            say(message)
        if resumed:
            say(f"continuing from step {trainer.step}")
        trainer.train()
        for message in trainer.mixture_read():
            say(message)
        yield


def complete(trainer: SupervisedTrainer, result: dict) -> None:
    """Mark the stage as complete, and remove its checkpoints. Every process calls it."""
    if is_main_rank():
        # after the log has written stages.json, because result.json marks the stage as complete
        finish(trainer.folder, result)
        shutil.rmtree(trainer.folder / "checkpoints", ignore_errors=True)
    trainer.accelerator.wait_for_everyone()

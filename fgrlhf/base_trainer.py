"""Base of all training loops: module, optimiser, processes, checkpointed progress."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm
from transformers.modeling_layers import GradientCheckpointingLayer

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Dtype
from fgrlhf.models.sharding import clip_grad_norm
from fgrlhf.models.trunk import require_trained
from fgrlhf.runs.distributed import (
    check_launcher,
    dtype_of,
    shard_over_processes,
    shards_models,
)
from fgrlhf.runs.optimizer import Average
from fgrlhf.runs.progress import progress_bar
from fgrlhf.runs.runlog import RunLog
from fgrlhf.runs.stage import digests
from fgrlhf.stats import LEVEL, upper_t

if TYPE_CHECKING:
    from fgrlhf.data.mixture import Mixture


class BaseTrainer(ABC):
    """A module, its optimiser and its run folder.

    A subclass provides the loop, `total_steps`, and the hooks below. Its config has the sections
    `train`, `parallel` and `logging`, and the property `inputs`.

    Args:
      module: what is trained, saved in checkpoints and divided by `parallel.strategy: fsdp2`.
    Raises:
      UserError: the launcher uses a mode that is not supported (DeepSpeed, FSDP, ...), or all
        parameters are frozen.

    Attributes:
      model: the module, wrapped for several processes. Forward passes with gradients call it.
      best: the best evaluation on dev so far: its `step`, `metric` and `value`.
      best_is_checkpoint: whether the best weights are those of the checkpoint at its step, which
        is then kept.
      has_best_folder: whether the subclass saves the best model in the folder `best`.
    """

    config: Any
    log: RunLog
    mixture: "Mixture | None" = None  # of the files with the training rows
    best_is_checkpoint = False
    has_best_folder = False

    def __init__(self, config: Any, module: nn.Module, accelerator: Accelerator):
        check_launcher(accelerator.distributed_type)
        self.config = config
        self.module = module
        self.accelerator = accelerator
        self.folder = Path(config.logging.save_dir)
        self.sharded = shards_models(config.parallel, accelerator)
        if not self.sharded:
            module.to(accelerator.device)
        if config.train.gradient_checkpointing:
            recompute_layers(module)
        if self.sharded:  # before the optimiser, which trains this process's part
            shard_over_processes(module, accelerator, self.dtype)
        self._require_trained()
        self.optimizer = self._make_optimizer()
        if accelerator.num_processes > 1 and not self.sharded:
            self.model: nn.Module = accelerator.prepare_model(module)
        else:
            self.model = module
        self.step = 0
        self.average: Average | None = None
        if config.train.ema is not None:
            named = self.saved_module.named_parameters()
            trained = {name: parameter for name, parameter in named if parameter.requires_grad}
            self.average = Average(trained, config.train.ema)
        self.reference_average: Average | None = None  # of a reference that follows the policy
        self.best: dict | None = None
        self.dev_values: list[float] = []  # of the metric of `best`, at every evaluation
        # input -> its digest, in the first process: a checkpoint of other inputs is refused
        self.input_digests: dict[str, str] = {}
        if accelerator.is_main_process:
            self.input_digests = digests(config.inputs)

    @property
    def saved_module(self) -> nn.Module:
        """The model that is saved, of which `train.ema` keeps the average."""
        return self.module

    @property
    def dtype(self) -> Dtype:
        """The precision of forward passes: `model.dtype`, with `auto` decided."""
        return dtype_of(self.accelerator)

    @abstractmethod
    def _make_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of the trained parameters. Each group has the key `peak_lr`."""

    @abstractmethod
    def lr_factor(self, step: int) -> float:
        """The learning rate of a step, as a fraction of its peak."""

    @property
    def warmup_steps(self) -> int:
        """The number of steps in which the learning rate rises."""
        warmup = self.config.train.warmup_steps
        return int(warmup) if warmup >= 1 else math.ceil(self.total_steps * warmup)

    def scheduled(self, step: int, start: int) -> float:
        """The learning rate of a step after the warmup, as a fraction of its peak.

        With p = (total_steps - step) / (total_steps - start), it is p (linear),
        (1 - cos(pi p)) / 2 (cosine) or 1 (constant).
        """
        schedule = self.config.train.lr_schedule
        if schedule == "constant":
            return 1.0
        left = (self.total_steps - step) / max(self.total_steps - start, 1)
        return (1 - math.cos(math.pi * left)) / 2 if schedule == "cosine" else left

    @property
    def metric(self) -> str:
        """The dev metric that picks the best checkpoint."""
        return self.config.evaluation.metric

    def best_value(self, metrics: Mapping[str, float]) -> float:
        """The value of `metric`. Raises `UserError` if it is not computed."""
        name = self.metric
        if name not in metrics:
            raise UserError(
                f"evaluation.metric is `{name}`, which the evaluation does not compute. Use one of:"
                f" {', '.join(sorted(metrics))}"
            )
        return metrics[name]

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """The number of steps of a pass over the rows or prompts."""

    @property
    def rows_per_step(self) -> int:
        """Rows or prompts of a step, over all processes."""
        return self.config.train.batch_size

    def mixture_columns(self, steps: int) -> dict[str, float]:
        """Columns of the log: how often each file of a mixture was read in so many steps."""
        return {} if self.mixture is None else self.mixture.passes(steps * self.rows_per_step)

    def mixture_notes(self) -> list[str]:
        """A line on the files of a mixture; none for one file."""
        return [] if self.mixture is None else [self.mixture.describe()]

    def mixture_read(self) -> list[str]:
        """A line on what each file of a mixture has given so far; none for one file."""
        if self.mixture is None:
            return []
        return [self.mixture.describe_read(self.step * self.rows_per_step)]

    @property
    def steps_between_evaluations(self) -> int:
        return self.config.evaluation.every_steps or self.steps_per_epoch

    def _require_trained(self) -> None:
        require_trained(self.module)

    @property
    @abstractmethod
    def total_steps(self) -> int:
        """The number of steps of a whole run."""

    def _progress_bar(self) -> tqdm:
        return progress_bar(
            self.total_steps,
            self.config.logging.run_name,
            "step",
            initial=self.step,
            enabled=not self._quiet(),
        )

    # ---- progress: checkpoint state besides weights and optimiser --------------------------------

    def progress(self) -> dict:
        """The trainer's state as a JSON-compatible dict; `restore` is the inverse."""
        return {"step": self.step, "best": self.best, "dev_values": self.dev_values}

    def restore(self, state: dict) -> None:
        self.step = state["step"]
        self.best = state["best"]
        self.dev_values = state.get("dev_values", [])

    def pending_tensors(self) -> dict[str, Tensor]:
        """What was sampled for later steps, as tensors by name; all processes call this."""
        return {}

    def restore_pending(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `pending_tensors`."""
        assert not tensors, "this trainer samples nothing for later steps"

    # ---- an optimiser step -----------------------------------------------------------------------

    def set_learning_rates(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * self.lr_factor(self.step)

    def _clipped_together(self) -> dict[str, list[nn.Parameter]]:
        """The parameters whose gradients are clipped together, by the name of their norm."""
        return {"grad_norm": [p for p in self.module.parameters() if p.requires_grad]}

    def clip_and_step(self) -> dict[str, float]:
        """Clip the gradients and step.

        Returns:
          The norms before clipping, by name.
        Raises:
          UserError: a norm is not finite.
        """
        bound = self.config.train.max_grad_norm
        norms = {}
        for name, parameters in self._clipped_together().items():
            norms[name] = clip_grad_norm(parameters, math.inf if bound is None else bound)
        for norm in norms.values():
            self.check_finite(norm)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return {name: float(norm) for name, norm in norms.items()}

    def save_average(self, save: Callable[[Path], None]) -> None:
        """Save the average of `train.ema` in the folder `ema`, if there is one.

        Args:
          save: writes the model, which then has the weights of the average, into a folder.
        """
        if self.average is not None:
            with self.average.installed():
                save(self.folder / "ema")

    @property
    def seed_of_step(self) -> tuple[int | str, ...]:
        """Seeds the global random generators of a step. Each process has its own dropout masks."""
        process = self.accelerator.process_index
        seed = (self.config.train.seed, "step", self.step)
        return seed if process == 0 else (*seed, process)

    def check_finite(self, grad_norm: Tensor) -> None:
        """Raise `UserError` if the norm is not finite. All ranks have the same norm: all stop."""
        if not torch.isfinite(grad_norm):
            raise UserError(
                f"the gradient is {float(grad_norm)} at step {self.step}: the update would destroy"
                " the model, so it was skipped. With the same settings, a rerun continues from the"
                " last checkpoint, which is intact, and stops here again. Start a new run with a"
                " lower train.lr and another logging.save_dir"
            )

    def sum_over_processes(self, tensor: Tensor) -> Tensor:
        """The sum of the processes' tensors, on every process."""
        if self.accelerator.num_processes == 1:
            return tensor
        return cast(Tensor, self.accelerator.reduce(tensor, "sum"))

    def summed(self, totals: dict[str, Tensor]) -> dict[str, float]:
        """Sums over all processes, in one communication."""
        if self.accelerator.num_processes > 1:
            totals = cast(dict[str, Tensor], self.accelerator.reduce(totals, "sum"))
        return {name: float(value) for name, value in totals.items()}

    def no_sync(self, more_to_come: bool):
        """A context that skips gradient synchronisation if more micro-batches follow.

        Sharded gradients are always synchronised: otherwise each process would hold whole ones.
        """
        if self.sharded:
            return nullcontext()
        return self.accelerator.no_sync(self.model) if more_to_come else nullcontext()

    def precision(self):
        """A context in which forward passes use the precision `dtype`."""
        return self.accelerator.autocast()

    def _quiet(self) -> bool:
        return not self.accelerator.is_main_process


def tie_note(metric: str, values: Sequence[float], kept: str) -> str | None:
    """A note if several evaluations on dev cannot tell policies apart; else None.

    Their metric has the same value at all of them.

    Args:
      metric: its name on dev, which selects the best policy.
      values: one for each evaluation.
      kept: what is kept instead of the best.
    """
    if len(values) < 2 or min(values) < max(values):
        return None
    return (
        f"note: dev {metric} is {values[0]:.4g} at all {len(values)} evaluations, so it does not"
        f" tell them apart: {kept} is kept. Look at other metrics and at the samples"
    )


def choice_note(metric: str, best: int, lines: Iterable[Mapping[str, Any]]) -> str | None:
    """By how much the dev value of the best of K policies is too high; None if it is not known.

    The value chose the policy, so chance made it high. Its expected error is at most

        s sqrt(2 ln K)

    if the errors are normal with standard deviation s, however they depend on each other (Boucheron
    et al. 2013, Concentration Inequalities, theorem 2.5). Here s is the largest standard error:
    half of an interval's width over 1.96. The rule of one standard error prefers the first policy
    whose value is at most s below the best (Breiman et al. 1984, Classification and Regression
    Trees, section 3.4.3). Policies with a higher value were not allowed to be the best.

    Args:
      metric: that chose.
      best: the step of the best policy.
      lines: of metrics.jsonl.
    """
    values: dict[int, float] = {}  # by step
    errors = []
    for line in lines:
        if f"eval_low/{metric}" in line:
            values[line["step"]] = line[f"eval/{metric}"]
            width = line[f"eval_high/{metric}"] - line[f"eval_low/{metric}"]
            errors.append(width / 2 / upper_t((1 - LEVEL) / 2, math.inf))
    if len(values) < 2 or best not in values:
        return None
    error = max(errors)
    close = [step for step, x in values.items() if values[best] - error <= x <= values[best]]
    first = min(close)
    others = "no earlier one is" if first == best else f"that of step {first} is the first"
    return (
        f"note: dev {metric} chose best/ among {len(values)} policies, so its {values[best]:.4g} is"
        f" too high, by at most {error * math.sqrt(2 * math.log(len(values))):.2g} on average;"
        f" {others} within one standard error ({error:.2g}). Report figures of other prompts"
    )


def recompute_layers(model: nn.Module) -> nn.Module:
    """The same model, whose transformer layers are computed again in a backward pass.

    A layer stores only its input; all other activations are computed again when their gradients are
    needed: less memory, more time. The option of transformers works in training mode only; this one
    works in eval mode too.
    """
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.forward = partial(_recomputed, module.forward)
    return model


def _recomputed(forward: Callable, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    # the generator's state is restored for the second pass, so dropout drops the same entries
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)

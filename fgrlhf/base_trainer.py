"""What every training loop shares: the optimiser, the learning rate, evaluation, the best policy,
the checkpoint's progress.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm import tqdm

from fgrlhf.errors import UserError
from fgrlhf.models.recompute import recompute_layers
from fgrlhf.policy import Policy
from fgrlhf.runs import checkpoint
from fgrlhf.runs.distributed import check_launcher
from fgrlhf.value import ActorCritic


class BaseTrainer:
    """A policy (with or without a critic), its optimiser and its run folder.

    A subclass has the loop, `total_steps`, and a config with `train.{lr, adam_eps, n_warmup_steps,
    lr_schedule, best_metric, clip_grad, max_grad_norm}` and `logging.save_dir`.

    Args:
      evaluate: dev metrics of the current policy, called on all ranks with the accelerator: name ->
        value.
    Raises:
      UserError: the processes were started in a way that cannot train a model (DeepSpeed, FSDP,
        ...).
    """

    total_steps: int

    def __init__(
        self,
        config,
        actor_critic: ActorCritic,
        evaluate: Callable[[Policy], dict[str, float]] | None,
        accelerator: Accelerator,
    ):
        check_launcher(accelerator.distributed_type)
        self.config, self.evaluate, self.accelerator = config, evaluate, accelerator
        self.folder = Path(config.logging.save_dir)
        self.actor_critic = actor_critic.to(accelerator.device)
        if config.train.gradient_checkpointing:
            recompute_layers(self.actor_critic)
        self.optimizer = torch.optim.AdamW(
            self._parameter_groups(), eps=config.train.adam_eps, weight_decay=0.0, fused=True
        )
        self.model = (
            accelerator.prepare_model(self.actor_critic)
            if accelerator.num_processes > 1
            else self.actor_critic
        )
        self.step = 0
        self.best: dict | None = None

    @property
    def policy(self) -> Policy:
        """What is evaluated and written: the policy without anything an algorithm trains it in."""
        return self.actor_critic.policy

    def _parameter_groups(self) -> list[dict]:
        trained = [p for p in self.actor_critic.policy.parameters() if p.requires_grad]
        return [{"params": trained, "lr": self.config.train.lr, "peak_lr": self.config.train.lr}]

    def lr_factor(self, step: int, first: int = 0) -> float:
        """Linear warm-up over n_warmup_steps steps from step `first` on, then linear to 0 at the
        end (or constant).
        """
        train, begin = self.config.train, first + self.config.train.n_warmup_steps
        if step < begin:
            return (step - first + 1) / (train.n_warmup_steps + 1)
        if train.lr_schedule == "constant":
            return 1.0
        return (self.total_steps - step) / max(self.total_steps - begin, 1)

    # ---- what a checkpoint holds beside weights and optimiser ------------------------------------

    def progress(self) -> dict:
        """JSON-able; `restore` is its inverse."""
        return {"step": self.step, "best": self.best}

    def restore(self, state: dict) -> None:
        self.step, self.best = state["step"], state["best"]

    # ---- an optimiser step -----------------------------------------------------------------------

    def _clip_and_step(self) -> dict[str, float]:
        """Step on the gradient that is there. Each group of the optimiser, the policy and then the
        critic, is clipped by itself.

        Returns:
          `grad_norm`, and with a critic `grad_norm/value`: the norms before clipping.
        Raises:
          UserError: a norm is not finite.
        """
        train = self.config.train
        bound = train.max_grad_norm if train.clip_grad else torch.inf
        norms = {}
        for name, group in zip(("grad_norm", "grad_norm/value"), self.optimizer.param_groups):
            norms[name] = torch.nn.utils.clip_grad_norm_(group["params"], bound)
        for norm in norms.values():
            self._check_finite(norm)
        self.optimizer.step()
        return {name: float(norm) for name, norm in norms.items()}

    def _check_finite(self, grad_norm: Tensor) -> None:
        if not torch.isfinite(grad_norm):  # the same on every rank, so all stop
            raise UserError(
                f"the gradient is {float(grad_norm)} at step {self.step}: the update would destroy"
                " the model, so it was not made. The last checkpoint is whole; lower train.lr or"
                " set train.clip_grad=true, and start again"
            )

    def _summed(self, totals: dict[str, Tensor]) -> dict[str, float]:
        """Sums over all processes."""
        summed = (
            self.accelerator.reduce(totals, "sum") if self.accelerator.num_processes > 1 else totals
        )
        return {name: float(value) for name, value in summed.items()}

    def _no_sync(self, more_to_come: bool):
        return self.accelerator.no_sync(self.model) if more_to_come else nullcontext()

    def _precision(self):
        return self.accelerator.autocast()

    # ---- evaluation and the best policy ----------------------------------------------------------

    def _evaluate(self, bar: tqdm) -> None:
        if self.evaluate is None:
            return
        self.actor_critic.eval()
        with torch.no_grad(), self._precision():
            metrics = self.evaluate(self.policy)
        self.log.log(self.step, {f"eval/{name}": value for name, value in metrics.items()})
        name = self.config.train.best_metric
        if name not in metrics:
            raise UserError(
                f"train.best_metric is `{name}`, which the evaluation does not give; it gives:"
                f" {', '.join(sorted(metrics))}"
            )
        eligible = self._eligible(metrics)
        is_best = (
            eligible
            and math.isfinite(metrics[name])
            and (self.best is None or metrics[name] > self.best["value"])
        )
        if is_best:
            self.best = {"step": self.step, "metric": name, "value": metrics[name]}
            self._save_policy("best")
        if self.accelerator.is_main_process:
            remark = (
                " (best so far)"
                if is_best
                else (
                    ""
                    if eligible
                    else f" (kl {metrics['kl']:.1f} is past train.kl_threshold: not kept)"
                )
            )
            bar.write(f"step {self.step}: dev {name} {metrics[name]:.4f}{remark}")

    def _eligible(self, metrics: dict[str, float]) -> bool:
        """Whether a policy with these dev metrics may be the best one."""
        return True

    def _save_policy(self, name: str) -> None:
        if self.accelerator.is_main_process:
            with checkpoint.new_folder(self.folder / name) as folder:
                self.policy.save(folder)
        self.accelerator.wait_for_everyone()

    def _quiet(self) -> bool:
        return not self.accelerator.is_main_process

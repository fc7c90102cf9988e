"""Base of the training loops: optimiser, learning rate, evaluation, best policy, progress."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm import tqdm

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.models.base import Policy
from fgrlhf.models.recompute import recompute_layers
from fgrlhf.models.sharding import clip_grad_norm, unsharded, whole
from fgrlhf.models.trunk import require_trained
from fgrlhf.runs import checkpoint
from fgrlhf.runs.distributed import check_launcher, shard_over_processes, shards_models
from fgrlhf.runs.optimizer import make_optimizer
from fgrlhf.runs.progress import paused, progress_bar
from fgrlhf.runs.runlog import BEST_FILE, RunLog
from fgrlhf.runs.stage import digests, hold
from fgrlhf.runs.ties import tie_note
from fgrlhf.stats import Interval
from fgrlhf.value import ActorCritic

# A policy -> its dev metrics by name. Metrics with an interval are logged with its bounds.
DevEvaluation = Callable[[Policy], Mapping[str, float | Interval]]


def dev_columns(results: Mapping[str, float | Interval]) -> tuple[dict[str, float], dict]:
    """The means of dev metrics by name, and their columns in metrics.jsonl.

    The columns are `eval/<name>` and, for an interval with bounds, `eval_low/<name>` and
    `eval_high/<name>`.
    """
    means: dict[str, float] = {}
    bounds: dict[str, float] = {}
    for name, result in results.items():
        if isinstance(result, Interval):
            means[name] = result.mean
            if result.has_bounds:
                bounds[f"eval_low/{name}"] = result.low
                bounds[f"eval_high/{name}"] = result.high
        else:
            means[name] = result
    return means, {f"eval/{name}": mean for name, mean in means.items()} | bounds


class BaseTrainer(ABC):
    """A policy (with or without a critic), its optimiser and its run folder.

    A subclass provides the loop, `_train`, and `total_steps`. Its config has the sections `train`,
    `model`, `parallel` and `logging` of RL, and the property `inputs`.

    Args:
      evaluate: policy -> dev metrics by name; called on all ranks.
    Raises:
      UserError: the launcher uses a mode that is not supported (DeepSpeed, FSDP, ...).
    """

    config: Any
    log: RunLog
    task: str | None = None  # its name, for the log

    def __init__(
        self,
        config: Any,
        actor_critic: ActorCritic,
        evaluate: DevEvaluation | None,
        accelerator: Accelerator,
    ):
        check_launcher(accelerator.distributed_type)
        self.config = config
        self.evaluate = evaluate
        self.accelerator = accelerator
        self.folder = Path(config.logging.save_dir)
        self.sharded = shards_models(config.parallel, accelerator)
        self.actor_critic = actor_critic
        if not self.sharded:
            actor_critic.to(accelerator.device)
        if config.train.gradient_checkpointing:
            recompute_layers(actor_critic)
        if self.sharded:  # before the optimiser, which trains this process's part
            shard_over_processes(actor_critic, accelerator, config.model.dtype)
        require_trained(actor_critic.policy.model)
        self.optimizer = make_optimizer(
            config.train.optimizer, actor_critic, self._parameter_groups(), config.train.adam_eps
        )
        if accelerator.num_processes > 1 and not self.sharded:
            self.model = accelerator.prepare_model(self.actor_critic)
        else:
            self.model = self.actor_critic
        self.step = 0
        self.best: dict | None = None
        self.dev_values: list[float] = []  # of `train.best_metric`, at every evaluation
        # input -> its digest, in the first process: a checkpoint of other inputs is refused
        self.input_digests: dict[str, str] = {}
        if accelerator.is_main_process:
            self.input_digests = digests(config.inputs)

    @property
    @abstractmethod
    def total_steps(self) -> int:
        """The number of steps of a whole run."""

    @property
    def policy(self) -> Policy:
        """The policy that is evaluated and saved."""
        return self.actor_critic.policy

    @property
    def stopped(self) -> bool:
        """Whether the run ended before its last step; the same on every rank."""
        return False

    def train(self, until: int | None = None) -> None:
        """Train up to step `until` (default: the end), from the last complete checkpoint if any."""
        with hold(self.config.logging.save_dir):
            self._train(until)

    @abstractmethod
    def _train(self, until: int | None) -> None:
        """`train`, in a run folder that no other run uses."""

    def _is_finished(self, resumed: bool) -> bool:
        """Whether a resumed run had ended: its last step is done, and `final/` is whole.

        A run writes `final/` last.
        """
        ended = self.step == self.total_steps or self.stopped
        if not (resumed and ended and checkpoint.is_whole_model(self.folder / "final")):
            return False
        if self.accelerator.is_main_process:
            print(
                f"{self.folder}: this run is finished. To train anew, remove the folder or set"
                " another logging.save_dir",
                flush=True,
            )
        return True

    def _say_continuing(self) -> None:
        if self.accelerator.is_main_process:
            print(
                f"{self.folder}: continuing after step {self.step - 1}; {self.step} of"
                f" {self.total_steps} steps are done",
                flush=True,
            )

    def _start_log(self, resumed: bool) -> None:
        """Open the run's log; that of a resumed run goes on after its last step."""
        if resumed:
            self._say_continuing()
        resume_step = self.step - 1 if resumed else None
        trackers = self.config.logging.trackers()
        self.log = RunLog(
            self.folder, self.config, resume_step=resume_step, task=self.task, **trackers
        )

    def _progress_bar(self) -> tqdm:
        return progress_bar(
            self.total_steps,
            self.config.logging.run_name,
            "step",
            initial=self.step,
            enabled=not self._quiet(),
        )

    def _finish(self, bar: tqdm) -> None:
        """Evaluate and save the last policy, and print where the policies are."""
        self._evaluate(bar)  # even if no evaluation is due at this step
        self._save_policy("final")
        self._say_where_policies_are(bar)

    def _say_where_policies_are(self, bar: tqdm) -> None:
        """Print where the run has saved its policies."""
        if self.accelerator.is_main_process:
            if self.best is not None:
                bar.write(
                    f"best policy (step {self.best['step']}, dev {self.best['metric']}"
                    f" {self.best['value']:.4f}): {self.folder / 'best'}"
                )
            bar.write(f"last policy: {self.folder / 'final'}")

    def _parameter_groups(self) -> list[dict]:
        trained = [p for p in self.actor_critic.policy.parameters() if p.requires_grad]
        return [{"params": trained, "lr": self.config.train.lr, "peak_lr": self.config.train.lr}]

    def lr_factor(self, step: int, first: int = 0) -> float:
        """The learning rate of a step, as a fraction of its peak.

        It rises linearly for `n_warmup_steps` steps, starting at step `first`. Then it falls
        linearly to 0 at the end of training, or stays constant.
        """
        train = self.config.train
        warm = first + train.n_warmup_steps
        if step < warm:
            return (step - first + 1) / (train.n_warmup_steps + 1)
        if train.lr_schedule == "constant":
            return 1.0
        return (self.total_steps - step) / max(self.total_steps - warm, 1)

    # ---- progress: checkpoint state besides weights and optimiser --------------------------------

    def progress(self) -> dict:
        """The trainer's state as a JSON-compatible dict; `restore` is the inverse."""
        return {"step": self.step, "best": self.best, "dev_values": self.dev_values}

    def restore(self, state: dict) -> None:
        self.step = state["step"]
        self.best = state["best"]
        self.dev_values = state.get("dev_values", [])  # earlier releases did not save it

    def pending_tensors(self) -> dict[str, Tensor]:
        """What was sampled for later steps, as tensors by name; all processes call this."""
        return {}

    def restore_pending(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `pending_tensors`."""
        assert not tensors, "this trainer samples nothing for later steps"

    # ---- an optimiser step -----------------------------------------------------------------------

    def _clip_and_step(self) -> dict[str, float]:
        """Clip the gradients and step. Policy and critic are clipped separately.

        Returns:
          The norms before clipping: `grad_norm` and, with a critic, `grad_norm/value`.
        Raises:
          UserError: a norm is not finite.
        """
        train = self.config.train
        bound = train.max_grad_norm if train.clip_grad else torch.inf
        norms = {}
        for name, group in zip(("grad_norm", "grad_norm/value"), self.optimizer.param_groups):
            norms[name] = clip_grad_norm(group["params"], bound)
        for norm in norms.values():
            self.check_finite(norm)
        self.optimizer.step()
        return {name: float(norm) for name, norm in norms.items()}

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

    def _summed(self, totals: dict[str, Tensor]) -> dict[str, float]:
        """Sums over all processes, in one communication."""
        if self.accelerator.num_processes > 1:
            totals = cast(dict[str, Tensor], self.accelerator.reduce(totals, "sum"))
        return {name: float(value) for name, value in totals.items()}

    def _no_sync(self, more_to_come: bool):
        """A context that skips gradient synchronisation if more micro-batches follow.

        Sharded gradients are always synchronised: otherwise each process would hold whole ones.
        """
        if self.sharded:
            return nullcontext()
        return self.accelerator.no_sync(self.model) if more_to_come else nullcontext()

    def precision(self):
        """A context in which forward passes use the precision of `model.dtype`."""
        return self.accelerator.autocast()

    # ---- evaluation and the best policy ----------------------------------------------------------

    def _evaluate(self, bar: tqdm) -> None:
        """Evaluate the policy on dev, and save it if it is the best so far."""
        if self.evaluate is None:
            return
        self.actor_critic.eval()
        with paused(bar), torch.no_grad(), self.precision(), unsharded(self.actor_critic):
            metrics, columns = dev_columns(self.evaluate(self.policy))
        self.log.log(self.step, columns)
        name = self.config.train.best_metric
        if name not in metrics:
            raise UserError(
                f"train.best_metric is `{name}`, which the evaluation does not compute. Use one"
                f" of: {', '.join(sorted(metrics))}"
            )
        value = metrics[name]
        if math.isfinite(value):
            self.dev_values.append(value)
        is_better = self.best is None or value > self.best["value"]
        remark = ""
        if not self._eligible(metrics):
            remark = f" (kl {metrics['kl']:.1f} exceeds train.kl_threshold: not saved as best)"
        elif math.isfinite(value) and is_better:
            remark = " (best so far)"
            self.best = {"step": self.step, "metric": name, "value": value}
            self._save_policy("best", self.best)
        if self.accelerator.is_main_process:
            bar.write(f"step {self.step}: dev {name} {value:.4f}{remark}")
            note = self._note_of_best(name)
            if note is not None:
                bar.write(note)

    def _note_of_best(self, metric: str) -> str | None:
        """After the last step, a note if `best/` holds a policy that is no better than others."""
        if self.step != self.total_steps or self.best is None:
            return None
        kept = f"the first policy (step {self.best['step']})"
        note = tie_note(metric, self.dev_values, kept)
        if note is None and self.best["step"] == 0:
            note = (
                f"note: no policy had a higher dev {metric} than the initial one, so best/ holds"
                " the initial policy; final/ holds the last one"
            )
        return note

    def _eligible(self, metrics: dict[str, float]) -> bool:
        """Whether a policy with these dev metrics may be the best one."""
        return True

    def _save_policy(self, name: str, best: dict | None = None) -> None:
        """Write the policy to a folder of the run, with the evaluation that made it the best."""
        is_main = self.accelerator.is_main_process
        weights = None
        if self.sharded:
            weights = whole(self.policy.model.state_dict(keep_vars=True), keep=is_main)
        if is_main:
            with checkpoint.new_folder(self.folder / name) as folder:
                self.policy.save(folder, weights)
                if best is not None:
                    write_json(folder / BEST_FILE, best)
        self.accelerator.wait_for_everyone()

    def _quiet(self) -> bool:
        return not self.accelerator.is_main_process

"""Base of the loops that train a policy: dev evaluation, the best policy, finished runs."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from fgrlhf.algorithms.config import CRITIC
from fgrlhf.base.files import read_jsonl, write_json
from fgrlhf.base_trainer import BaseTrainer, choice_note, tie_note
from fgrlhf.configs.sections import ReferenceConfig
from fgrlhf.kernels.choice import slow_bf16_note
from fgrlhf.models.base import Policy
from fgrlhf.models.provenance import policy_card, write_card
from fgrlhf.models.sharding import unsharded, whole
from fgrlhf.models.trunk import require_trained
from fgrlhf.runs import checkpoint
from fgrlhf.runs.distributed import strategy_notes
from fgrlhf.runs.optimizer import Average, make_optimizer
from fgrlhf.runs.progress import paused
from fgrlhf.runs.runlog import BEST_FILE, RunLog, command_line
from fgrlhf.stats import Interval
from fgrlhf.value import ActorCritic

# A policy -> its dev metrics by name. Metrics with an interval are logged with its bounds.
DevEvaluation = Callable[[Policy], Mapping[str, float | Interval]]


def _dev_columns(results: Mapping[str, float | Interval]) -> tuple[dict[str, float], dict]:
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


class PolicyTrainer(BaseTrainer):
    """A policy, with or without a critic: the base of RL and DPO.

    A subclass provides the loop, `train`, and `total_steps`. Its config has the sections of RL.

    Args:
      evaluate: policy -> dev metrics by name; called on all ranks.
    """

    has_best_folder = True
    task: str | None = None  # its name, for the log
    dev_columns: Mapping[str, float] = {}  # of the last evaluation

    def __init__(
        self,
        config: Any,
        actor_critic: ActorCritic,
        evaluate: DevEvaluation | None,
        accelerator: Accelerator,
    ):
        self.actor_critic = actor_critic
        self.evaluate = evaluate
        super().__init__(config, actor_critic, accelerator)
        self.moving_reference: Policy | None = None
        self._reference_config: ReferenceConfig = config.reference[1]
        if self._reference_config.sync_every is not None:
            named = self.policy.model.named_parameters()
            trained = {name: parameter for name, parameter in named if parameter.requires_grad}
            follower = self.policy.copy_sharing_frozen().eval().requires_grad_(False)
            kept = 1 - self._reference_config.mixup
            self.reference_average = Average(trained, kept, follower.model)
            self.moving_reference = follower

    @property
    def saved_module(self) -> nn.Module:
        return self.policy.model

    @property
    def policy(self) -> Policy:
        """The policy that is evaluated and saved."""
        return self.actor_critic.policy

    @property
    def stopped(self) -> bool:
        """Whether the run ended before its last step; the same on every rank."""
        return False

    @abstractmethod
    def train(self, until: int | None = None) -> None:
        """Train up to step `until` (default: the end), from the last complete checkpoint if any.

        The caller holds the run folder (`hold`), so that no other run uses it.
        """

    @property
    def steps_between_checkpoints(self) -> int:
        return self.config.train.save_every_steps or self.steps_between_evaluations

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
            self.folder,
            self.config,
            resume_step=resume_step,
            task=self.task,
            dtype=self.dtype,
            **trackers,
        )

    def _say_where_policies_are(self, bar: tqdm) -> None:
        """Print where the run has saved its policies."""
        if self.accelerator.is_main_process:
            for line in self.mixture_read():
                bar.write(line)
            if self.best is not None:
                bar.write(
                    f"best policy (step {self.best['step']}, dev {self.best['metric']}"
                    f" {self.best['value']:.4f}): {self.folder / 'best'}"
                )
            if self.average is not None:
                bar.write(f"average policy: {self.folder / 'ema'}")
            bar.write(f"last policy: {self.folder / 'final'}")

    def sync_reference(self) -> None:
        """After every `sync_every` steps, pi_ref <- a pi + (1 - a) pi_ref, weight by weight.

        Soft updates of TR-DPO (Gorbatovski et al. 2024, arXiv 2404.09656); with a = 1 hard ones.
        """
        every = self._reference_config.sync_every
        if self.reference_average is not None and every and self.step % every == 0:
            self.reference_average.update()

    # ---- the optimiser ---------------------------------------------------------------------------

    def _require_trained(self) -> None:
        require_trained(self.policy.model)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        train = self.config.train
        groups = self._parameter_groups()
        return make_optimizer(train.optimizer, self.actor_critic, groups, train.adam_eps)

    def _parameter_groups(self) -> list[dict]:
        trained = [p for p in self.actor_critic.policy.parameters() if p.requires_grad]
        return [{"params": trained, "lr": self.config.train.lr, "peak_lr": self.config.train.lr}]

    def _clipped_together(self) -> dict[str, list[nn.Parameter]]:
        """Policy and critic are clipped separately."""
        names = ("grad_norm", "grad_norm/value")
        return {name: group["params"] for name, group in zip(names, self.optimizer.param_groups)}

    def lr_factor(self, step: int, first: int = 0) -> float:
        """The learning rate of a step, as a fraction of its peak.

        It rises linearly for `warmup_steps` steps, starting at step `first`, then follows the
        schedule.
        """
        warmup = self.warmup_steps
        if step < first + warmup:
            return (step - first + 1) / (warmup + 1)
        return self.scheduled(step, first + warmup)

    # ---- evaluation and the best policy ----------------------------------------------------------

    def _evaluate(self, bar: tqdm) -> None:
        """Evaluate the policy on dev, and save it if it is the best so far."""
        if self.evaluate is None:
            return
        self.actor_critic.eval()
        with paused(bar), torch.no_grad(), self.precision(), unsharded(self.actor_critic):
            results = self.evaluate(self.policy)
        metrics, columns = _dev_columns(results)
        columns |= self._judged(results)
        self.log.log(self.step, columns)
        self.dev_columns = columns
        name = self.metric
        value = self.best_value(metrics)
        if math.isfinite(value):
            self.dev_values.append(value)
        is_better = self.best is None or value > self.best["value"]
        remark = ""
        objection = self._objection(metrics)
        if objection:
            remark = f" ({objection}: not saved as best)"
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
        """After the last step, a note on whether `best/` is better than others, and by how much."""
        if self.step != self.total_steps or self.best is None:
            return None
        kept = f"the first policy (step {self.best['step']})"
        note = tie_note(metric, self.dev_values, kept)
        if note is None and self.best["step"] == 0:
            note = (
                f"note: no policy had a higher dev {metric} than the initial one, so best/ holds"
                " the initial policy; final/ holds the last one"
            )
        if note is None:
            lines = read_jsonl(self.folder / "metrics.jsonl")
            note = choice_note(metric, self.best["step"], lines)
        return note

    def _judged(self, results: Mapping[str, float | Interval]) -> dict[str, float]:
        """Further columns of the log, computed from an evaluation on dev."""
        return {}

    def _objection(self, metrics: Mapping[str, float]) -> str:
        """Why a policy with these dev metrics may not be the best one; "" if it may."""
        return ""

    def _save_policy(self, name: str, best: dict | None = None) -> None:
        """Write a policy as `write_policy` does, and tell the callbacks."""
        self.write_policy(name, best)
        if self.accelerator.is_main_process:
            self.log.saved(self.step, self.folder / name)
        self.accelerator.wait_for_everyone()

    def write_policy(self, name: str, best: dict | None = None) -> None:
        """Write policy and critic to a folder of the run, and what made the policy the best."""
        is_main = self.accelerator.is_main_process

        def whole_of(module: nn.Module) -> dict[str, Tensor]:
            return whole(module.state_dict(keep_vars=True), keep=is_main)

        weights = whole_of(self.policy.model) if self.sharded else None
        critic = self.actor_critic.value
        head, trunk = {}, None
        if critic is not None:
            head = whole_of(critic.head)
            if self.sharded and critic.trunk is not None:
                trunk = whole_of(critic.trunk.model)
        if is_main:
            with checkpoint.new_folder(self.folder / name) as folder:
                self.policy.save(folder, weights)
                if critic is not None:
                    critic.save(folder / CRITIC, head, trunk)
                if best is not None:
                    write_json(folder / BEST_FILE, best)
                write_card(folder, self.folder / name, self._card(best))
                checkpoint.keep_other_files(self.folder / name, folder)
        self.accelerator.wait_for_everyone()

    def _save_last(self) -> None:
        """Write the average in `ema/`, if there is one, and the last policy in `final/`."""
        self.save_average(lambda folder: self._save_policy(folder.name))
        self._save_policy("final")

    def _card(self, best: dict | None) -> str:
        """The policy's README.md."""
        step = self.step if best is None else best["step"]
        is_causal = not cast(PreTrainedModel, self.policy.model).config.is_encoder_decoder
        return policy_card(self.config, command_line(), self.dev_columns, step, is_causal)


# ---- the start of a run --------------------------------------------------------------------------


def announce(trainer: PolicyTrainer, notes: Sequence[str] = ()) -> None:
    """Print who trains what, and notes on what a user may not expect."""
    if not trainer.accelerator.is_main_process:
        return
    config = trainer.config
    notes = (
        *notes,
        *strategy_notes(config.parallel, trainer.accelerator),
        *config.logging.notes(),
        *trainer.mixture_notes(),
        *dtype_notes(trainer),
    )
    for line in (start_line(trainer), *notes):
        print(line, flush=True)


def start_line(trainer: PolicyTrainer) -> str:
    """Who trains what, and where."""
    config = trainer.config
    processes = trainer.accelerator.num_processes
    how = "1 process"
    if processes > 1:
        how = f"{processes} processes, {config.parallel.strategy}"
    model = cast(PreTrainedModel, trainer.policy.model)
    parameters = f"{model.num_parameters():,} parameters"
    trained = model.num_parameters(only_trainable=True)
    if trained < model.num_parameters():
        parameters += f", of which {trained:,} are trained"
    device = trainer.accelerator.device.type
    return f"{config.logging.run_name}: {how}, {device}; {parameters}; {trainer.folder}"


def dtype_notes(trainer: PolicyTrainer) -> list[str]:
    """A note if the run's precision is slow on this machine."""
    if trainer.dtype != "bf16":
        return []
    note = slow_bf16_note(trainer.accelerator.device.type, "model.dtype=fp32")
    return [] if note is None else [note]

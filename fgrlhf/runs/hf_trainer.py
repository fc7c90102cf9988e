"""What the stages that train with transformers' `Trainer` share.

Checkpoints are those of transformers: weights as safetensors, and `optimizer.pt`, `scheduler.pt`
and `rng_state*.pth` written by `torch.save`. They are read with `weights_only=True`, which builds
tensors and plain containers and runs no code, and only after their SHA-256 is verified
(`fgrlhf.runs.stage.last_complete_checkpoint`). The one file that a full unpickler would be needed
for, `training_args.bin`, is removed.
"""

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from fgrlhf.errors import UserError, shorten
from fgrlhf.files import sync
from fgrlhf.runs.distributed import check_launcher
from fgrlhf.runs.runlog import RunLog
from fgrlhf.runs.stage import CHECKPOINT_NAME, write_digests

# Timings differ from run to run; the rest is the Trainer's own summary at the end.
_NOT_METRICS = ("_runtime", "_per_second", "_jit_compilation_time", "total_flos", "train_loss")
KEPT_CHECKPOINTS = 2  # the last and the best, or the one before where the last is the best
TEMPORARY = ".model-"  # folder in which a model is written before its files are placed
SHOWN_NAMES = 3  # of tensors, in a message


# Types of keys that these stages share; see the types of keys in fgrlhf/config.py.
Epochs = Annotated[float, Field(ge=1e-6, le=1e6)]
Decay = Annotated[float, Field(ge=0, le=100)]
Warmup = Annotated[float, Field(ge=0, lt=2**31)]


class StageTrainer(Trainer):
    """A Trainer that ends when training diverges, keeps verified checkpoints and never trains past
    the last step.

    Divergence means a loss, gradient norm, dev metric or weight that is NaN or infinite. Loss and
    gradient norm are checked before every optimiser step, so that no such step is taken; all
    processes see the same values and stop together. Weights are checked before a checkpoint is
    written and when training ends.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        check_launcher(self.accelerator.distributed_type)
        self._step_loss: torch.Tensor | float = 0.0  # of this process, summed over micro-batches
        self.add_callback(_CheckpointCallback(self))

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._step_loss = self._step_loss + loss
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        """Called once per optimiser step, before the step is taken."""
        grad_norm = super()._get_grad_norm(model, grad_norm)
        loss, self._step_loss = self._step_loss, 0.0
        pair = torch.stack(
            [
                torch.as_tensor(x, dtype=torch.float32, device=self.args.device)
                for x in (loss, grad_norm)
            ]
        )
        values = self.accelerator.gather(
            pair
        ).tolist()  # of every process: loss, norm, loss, norm, ...
        step = self.state.global_step + 1
        self.refuse_divergence(
            {"the loss": _worst(values[::2]), "the gradient norm": _worst(values[1::2])}, step
        )
        return grad_norm

    def _run_epoch(self, *args, **kwargs):
        """The Trainer takes a step before it looks at `max_steps`: one too many after a checkpoint
        of the last step.
        """
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)

    def train(self, resume_from_checkpoint: str | Path | None = None, **kwargs):
        """Train from the start or from a checkpoint that `last_complete_checkpoint` returned.

        Where that checkpoint is of the last step, only the best model is loaded and nothing is
        trained.

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

    def refuse_divergence(self, quantities: Mapping[str, float], step: int) -> None:
        """Raise a `UserError` that names the first quantity which is not finite."""
        for name, value in quantities.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(_diverged(f"{name} is {value} at step {step}", self.args))

    @torch.no_grad()
    def refuse_broken_weights(self) -> None:
        """Raise a `UserError` that names the weights which are not finite. They are equal on all
        processes.
        """
        model = self.accelerator.unwrap_model(self.model)
        broken = [
            name for name, tensor in model.named_parameters() if not torch.isfinite(tensor).all()
        ]
        if broken:
            shown = ", ".join(shorten(name, 80) for name in broken[:SHOWN_NAMES])
            fact = (
                f"{len(broken)} weight tensors hold NaN or infinity after step"
                f" {self.state.global_step} ({shown}, ...)"
            )
            raise UserError(_diverged(fact, self.args))


def _worst(values: list[float]) -> float:
    """The first value that is not finite, else the first one."""
    return next((value for value in values if not math.isfinite(value)), values[0])


def _diverged(fact: str, args) -> str:
    folder = Path(args.output_dir).parent
    return (
        f"training diverged: {fact}. Lower train.lr (it is {args.learning_rate:g}), lower"
        f" train.max_grad_norm (it is {args.max_grad_norm:g}) or warm up for more steps. With other"
        f" settings, remove {folder} or set another logging.save_dir; with the same ones, a rerun"
        " continues from the last checkpoint, which is sound, and ends here again."
    )


class _CheckpointCallback(TrainerCallback):
    """Makes the Trainer's checkpoints verifiable, and keeps the last and the best of them."""

    def __init__(self, trainer: StageTrainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **_):
        root = Path(args.output_dir)
        if (
            state.best_global_step
        ):  # the state holds the path of when it was written; the folder may have been moved
            state.best_model_checkpoint = str(root / f"checkpoint-{state.best_global_step}")
        if args.should_save:
            for path in root.glob(
                "checkpoint-*"
            ):  # interrupted or damaged ones: these steps are trained again
                match = CHECKPOINT_NAME.fullmatch(path.name)
                if match and int(match[1]) > state.global_step:
                    _remove(path)
        self.trainer.accelerator.wait_for_everyone()

    def on_step_end(self, args, state, control, **_):
        if control.should_save:
            self.trainer.refuse_broken_weights()

    def on_epoch_end(self, args, state, control, **_):
        if control.should_save:
            self.trainer.refuse_broken_weights()

    def on_save(self, args, state, control, **_):
        self.trainer.accelerator.wait_for_everyone()  # every process writes its random state
        if not args.should_save:
            return
        root = Path(args.output_dir)
        folder = root / f"checkpoint-{state.global_step}"
        (folder / "training_args.bin").unlink(
            missing_ok=True
        )  # nobody reads it, and it is a pickle
        sync_files(folder)
        write_digests(folder)
        sync(folder)
        sync(root)
        steps = sorted(
            int(match[1])
            for path in root.iterdir()
            if (match := CHECKPOINT_NAME.fullmatch(path.name))
        )
        for step in set(steps) - checkpoints_to_keep(
            steps, state.global_step, state.best_global_step
        ):
            _remove(root / f"checkpoint-{step}")


def checkpoints_to_keep(steps: list[int], last: int, best: int | None) -> set[int]:
    """The last and the best of the checkpoints at `steps` (ascending), filled up to
    `KEPT_CHECKPOINTS` with the newest.
    """
    keep = {last} | {step for step in steps if step == best}
    for step in reversed(steps):
        if len(keep) < KEPT_CHECKPOINTS:
            keep.add(step)
    return keep


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# ---- files ---------------------------------------------------------------------------------------


@contextmanager
def model_to_place(folder: Path) -> Iterator[Path]:
    """A folder to write a model into. When the block ends well, its files replace those of the same
    name in `folder`.

    Each file appears whole or not at all, and is on disk before it appears. What a killed process
    left is removed.
    """
    for left_over in folder.glob(f"{TEMPORARY}*"):
        _remove(left_over)
    with tempfile.TemporaryDirectory(dir=folder, prefix=TEMPORARY) as temporary:
        yield Path(temporary)
        sync_files(Path(temporary))
        for path in sorted(Path(temporary).iterdir()):
            os.replace(path, folder / path.name)
    sync(folder)


def forget_last_call(tokenizer) -> None:
    """Reset the padding and truncation that a fast tokenizer keeps from its last call and would
    write to tokenizer.json.

    Every call sets both anew, so nothing depends on them; without them the file depends on the
    tokenizer alone, and a continued run writes the bytes of an uninterrupted one.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_padding()
        backend.no_truncation()


def sync_files(folder: Path) -> None:
    """Wait until the contents of a folder's files are on disk."""
    for path in folder.iterdir():
        if path.is_file():
            sync(path)


# ---- launchers -----------------------------------------------------------------------------------

_LAUNCHERS = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism config",
}


def check_environment(bf16: bool, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse what `accelerate launch` would add to the Trainer.

    Losses here are averaged over the whole batch and multiplied by the number of processes, because
    DDP averages gradients over them; a launcher that shards the model or scales the loss itself
    would train something else.

    Raises:
      UserError: the launcher is not plain DDP, or asks for another precision than the config.
    """
    for variable, launcher in _LAUNCHERS.items():
        if environment.get(variable, "false").lower() in ("true", "1", "yes"):
            raise UserError(
                f"the launcher asks for {launcher} ({variable} is set), with which this stage has"
                " never been checked and may train wrongly: start it with `accelerate launch"
                " --multi_gpu` or `torchrun`, which copy the model to every process"
            )
    wanted = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if wanted not in ("no", "bf16" if bf16 else "no"):
        raise UserError(
            f"the launcher asks for mixed precision {wanted}, but train.bf16 is"
            f" {str(bf16).lower()}: leave --mixed_precision out and set train.bf16"
        )


# ---- logs ----------------------------------------------------------------------------------------


class RunLogCallback(TrainerCallback):
    """Writes the Trainer's logs to a `RunLog` and shows a progress bar, plain lines where there is
    no terminal.

    A line of metrics.jsonl: step, epoch, and `loss`, `lr`, `grad_norm` in training, `eval/<name>`
    at an evaluation.
    """

    def __init__(self, log: RunLog, name: str):
        self.log, self.name, self.bar = log, name, None

    def on_train_begin(self, args, state, control, **_):
        if state.is_world_process_zero:
            hidden = not sys.stderr.isatty()
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc=self.name,
                unit="step",
                disable=hidden,
            )

    def on_step_end(self, args, state, control, **_):
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)
        return self._log_what_is_saved(control)

    def on_epoch_end(self, args, state, control, **_):
        return self._log_what_is_saved(control)

    @staticmethod
    def _log_what_is_saved(control):
        """A loss is averaged since the last line: with a line at each checkpoint a resumed run logs
        the same.
        """
        control.should_log = control.should_log or control.should_save
        return control

    def on_log(self, args, state, control, logs=None, **_):
        metrics = {
            _name(key): value for key, value in logs.items() if not key.endswith(_NOT_METRICS)
        }
        if metrics.keys() - {"epoch"}:
            self.log.log(state.global_step, metrics)
            self._show(state, metrics)

    def on_train_end(self, args, state, control, **_):
        if self.bar is not None:
            self.bar.close()

    def _show(self, state, metrics: dict) -> None:
        if self.bar is None:
            return
        shown = {
            name: value
            for name, value in metrics.items()
            if name not in ("epoch", "lr", "grad_norm")
        }
        if self.bar.disable or any(name.startswith("eval/") for name in shown):
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
            tqdm.write(
                f"{self.name}: step {state.global_step}/{state.max_steps}, {numbers}",
                file=sys.stdout,
            )
            sys.stdout.flush()
        else:
            self.bar.set_postfix(shown, refresh=False)


def _name(key: str) -> str:
    if key.startswith("eval_"):
        return "eval/" + key.removeprefix("eval_")
    return "lr" if key == "learning_rate" else key


def use_run_log(trainer: Trainer, log: RunLog, name: str) -> None:
    """Send the Trainer's logs to `log` alone."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(RunLogCallback(log, name))

"""Checkpoints and model folders of the stages that train with transformers' `Trainer`.

Checkpoints are those of transformers: weights as safetensors (with LoRA, the trained ones), and
`optimizer.pt`, `scheduler.pt` and `rng_state*.pth` written by `torch.save`. They are read with
`weights_only=True`, which builds tensors and plain containers and runs no code, and only after
their SHA-256 is verified (`fgrlhf.runs.stage.last_complete_checkpoint`). `training_args.bin`, the
only file that needs a full unpickler, is removed.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from transformers import TrainerCallback

from fgrlhf.base.files import sync
from fgrlhf.runs.stage import CHECKPOINT_NAME, write_digests

KEPT_CHECKPOINTS = 2  # the last and the best, or the last two if the last is the best
TEMPORARY = ".model-"  # folder in which a model is written before it is installed


class CheckedTrainer(Protocol):
    """What `CheckpointCallback` needs of a trainer."""

    accelerator: Any

    def refuse_broken_weights(self) -> None: ...


class CheckpointCallback(TrainerCallback):
    """Makes the Trainer's checkpoints verifiable, and keeps the last and the best of them."""

    def __init__(self, trainer: CheckedTrainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **_):
        root = Path(args.output_dir)
        if state.best_global_step:
            # the state holds the path at the time of writing; the folder may have been moved
            state.best_model_checkpoint = str(root / f"checkpoint-{state.best_global_step}")
        if args.should_save:
            # later checkpoints are incomplete or damaged: their steps are trained again
            for step, path in _checkpoints(root):
                if step > state.global_step:
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
        # a pickle that is never read
        (folder / "training_args.bin").unlink(missing_ok=True)
        sync_files(folder)
        write_digests(folder)
        sync(folder)
        sync(root)
        checkpoints = _checkpoints(root)
        steps = [step for step, _ in checkpoints]
        if args.save_only_model:  # nothing can be continued, so only the best is of use
            keep = {state.best_global_step}
        else:
            keep = checkpoints_to_keep(steps, state.global_step, state.best_global_step)
        for step, path in checkpoints:
            if step not in keep:
                _remove(path)


def _checkpoints(root: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the checkpoints in `root`, in ascending order."""
    checkpoints = []
    for path in root.glob("checkpoint-*"):
        match = CHECKPOINT_NAME.fullmatch(path.name)
        if match:
            checkpoints.append((int(match[1]), path))
    return sorted(checkpoints)


def checkpoints_to_keep(steps: list[int], last: int, best: int | None) -> set[int]:
    """The last and the best of the checkpoints at `steps` (ascending).

    If these are fewer than `KEPT_CHECKPOINTS`, the newest others are kept too.
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


# ---- the model's folder --------------------------------------------------------------------------


@contextmanager
def model_to_install(folder: Path) -> Iterator[Path]:
    """A folder to write a model into; at the end its files replace those in `folder`.

    Files are flushed to disk before they get their names, so each file appears completely or not at
    all. A folder inside it, such as that of further chat templates, is removed before the new one
    gets its name. If the block raises, nothing is replaced. Leftovers of a killed process are
    removed.
    """
    for left_over in folder.glob(f"{TEMPORARY}*"):
        _remove(left_over)
    with tempfile.TemporaryDirectory(dir=folder, prefix=TEMPORARY) as temporary:
        yield Path(temporary)
        sync_files(Path(temporary))
        for path in sorted(Path(temporary).iterdir()):
            if path.is_dir():  # further chat templates; a rename cannot replace a full folder
                _remove(folder / path.name)
            os.replace(path, folder / path.name)
    sync(folder)


def sync_files(folder: Path) -> None:
    """Wait until the files and folders in a folder are on disk."""
    for path in folder.rglob("*"):
        sync(path)

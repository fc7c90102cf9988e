"""What a run of RL or DPO notes when it starts."""

from pathlib import Path
from typing import cast

from transformers import PreTrainedModel

from fgrlhf.base.files import read_json, sha256, write_json
from fgrlhf.base.own_code import own_code
from fgrlhf.kernels.choice import slow_bf16_note
from fgrlhf.load import code_of
from fgrlhf.policy_trainer import PolicyTrainer
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.runs.runlog import is_main_rank
from fgrlhf.runs.stage import hold
from fgrlhf.task import Task


def start_line(config: RLConfig | DPOConfig, trainer: PolicyTrainer) -> str:
    """Who trains what, and where."""
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


def dtype_notes(dtype: str, trainer: PolicyTrainer) -> list[str]:
    """A note if `model.dtype` is slow on this machine."""
    if dtype != "bf16":
        return []
    note = slow_bf16_note(trainer.accelerator.device.type, "model.dtype=fp32")
    return [] if note is None else [note]


def note_changed_code(task: Task, config: RLConfig | DPOConfig, folder: Path) -> None:
    """Record the user's code, and print a note if it changed since a run began.

    That is the task's code and the classes that the config names (`kind: python`). A run can be
    continued or reused after such a change, since most changes do not affect it. `task_code.json`
    has the digests. A run that stopped before its first checkpoint begins anew.
    """
    if not is_main_rank():
        return
    path = folder / "task_code.json"
    files = {**code_of(task), **own_code(config)}
    now = {name: sha256(file) for name, file in files.items()}
    with hold(folder):
        if not (path.is_file() and any((folder / "checkpoints").glob("step-*"))):
            write_json(path, now)
            return
        before = read_json(path)
    changed = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
    if changed:
        print(
            f"note: {', '.join(changed)} changed since the run in {folder} began: to train with"
            " the present files from the start, remove that folder or set another"
            " logging.save_dir",
            flush=True,
        )

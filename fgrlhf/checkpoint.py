"""Atomic checkpoints and verified resume: safetensors and JSON, no pickle.

A checkpoint is a folder `checkpoints/step-<n>` that appears by one rename when all of it is on disk. It holds the
actor-critic (of a policy with LoRA only the adapters: its other weights are those of `model.policy_model.ckpt`), the optimiser's state and `state.json`: step, KL coefficient, best score, the config, and the SHA-256 of
every other file. Random numbers, data order and learning rate are pure functions of (seed, step), so `step` carries them.
"""

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from fgrlhf.lora import names_under_adapters
from fgrlhf.utils import UserError, write_json

KEPT = 2
HARMLESS = ("logging.", "train.save_interval:")  # a run may go on with others of these


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill that takes the place of `path` when the block ends well, and vanishes when it does not."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, replaced = path.with_name(f".{path.name}.tmp"), path.with_name(f".{path.name}.old")
    if replaced.exists() and not path.exists():  # killed between the two renames below
        replaced.rename(path)
    for left_over in (temporary, replaced):  # by a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            path.rename(replaced)
        temporary.rename(path)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save(trainer) -> None:
    """Write the trainer's state after `trainer.step` steps; the last two checkpoints are kept. Rank 0 writes."""
    accelerator = trainer.accelerator
    if accelerator.is_main_process:
        root = trainer.folder / "checkpoints"
        with new_folder(root / f"step-{trainer.step}") as folder:
            save_file(weights(trainer.actor_critic), str(folder / "model.safetensors"))
            tensors, groups = optimizer_tensors(trainer.optimizer)
            save_file(tensors, str(folder / "optimizer.safetensors"))
            write_json(folder / "state.json", {
                **trainer.progress(), "optimizer_groups": groups, "num_processes": accelerator.num_processes,
                "config": trainer.config.model_dump(mode="json"),
                "sha256": {path.name: _sha256(path) for path in folder.glob("*.safetensors")},
            })
        for old in _checkpoints(root)[:-KEPT]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()


def load_latest(trainer) -> bool:
    """Restore the newest whole checkpoint; False where there is none.

    Raises:
      UserError: the checkpoint was made with other settings, or there are checkpoints and every one is damaged.
    """
    found = _checkpoints(trainer.folder / "checkpoints")
    for folder in reversed(found):
        state = _verified_state(folder)
        if state is None:
            warnings.warn(f"{folder} is damaged; falling back to the checkpoint before it", stacklevel=2)
            continue
        _check_same_run(trainer, state, folder)
        load_weights(trainer.actor_critic, load_file(str(folder / "model.safetensors")))
        load_optimizer(trainer.optimizer, load_file(str(folder / "optimizer.safetensors")), state["optimizer_groups"])
        trainer.restore(state)
        return True
    if found:
        raise UserError(f"every checkpoint in {trainer.folder / 'checkpoints'} is damaged: delete that folder to start over from the first step")
    return False


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's tensors, tied ones once, without those that stay as they were loaded because adapters are trained."""
    kept, seen, as_loaded = {}, set(), names_under_adapters(model)
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape)
        if name not in as_loaded and place not in seen:
            kept[name] = tensor.contiguous()
            seen.add(place)
    return kept


def load_weights(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """The inverse of `weights`."""
    expected = weights(model).keys()
    if tensors.keys() != expected:
        raise UserError(
            f"the checkpoint holds other tensors than this model has ({', '.join(sorted(tensors.keys() ^ expected)[:3])}, ...): it was written "
            "by another release. Delete the folder of checkpoints to start over")
    model.load_state_dict(tensors, strict=False)  # a tensor that is tied has another name in the file


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], list[dict]]:
    """An optimiser's state as named tensors (`<parameter index>.<name>`) and its groups as JSON-able dicts."""
    state = optimizer.state_dict()
    tensors = {f"{i}.{name}": torch.as_tensor(value).contiguous() for i, entry in state["state"].items() for name, value in entry.items()}
    return tensors, state["param_groups"]


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], groups: list[dict]) -> None:
    """The inverse of `optimizer_tensors`."""
    entries: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        entries.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _checkpoints(root: Path) -> list[Path]:
    numbered = [(int(m[1]), path) for path in root.glob("step-*") if (m := re.fullmatch(r"step-(\d+)", path.name))]
    return [path for _, path in sorted(numbered)]


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verified_state(folder: Path) -> dict | None:
    try:
        state = json.loads((folder / "state.json").read_text())
        whole = all(_sha256(folder / name) == digest for name, digest in state["sha256"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return state if whole else None


def _differences(old, new, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new})
        return [line for key in keys for line in _differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    return [] if old == new else [f"{path}: {old!r} then, {new!r} now"]


def _check_same_run(trainer, state: dict, folder: Path) -> None:
    old, new = dict(state["config"]), trainer.config.model_dump(mode="json")
    changed = [line for line in _differences(old, new) if not line.startswith(HARMLESS)]
    if state["num_processes"] != trainer.accelerator.num_processes:
        changed.append(f"processes: {state['num_processes']} then, {trainer.accelerator.num_processes} now")
    if changed:
        raise UserError(
            f"{folder} was made with other settings, so continuing would mix two runs:\n  " + "\n  ".join(changed)
            + "\nSet logging.save_dir to a new folder, or delete that one to start over.")

"""Atomic checkpoints and verified resume: safetensors and JSON, no pickle.

A checkpoint is a folder `checkpoints/step-<n>` that appears by one rename when all of it is on
disk. It holds the actor-critic (of a policy with LoRA only the adapters: its other weights are
those of `model.policy_model.ckpt`), the optimiser's state and `state.json`: step, KL coefficient,
best score, the config, the SHA-256 of every other file, and of `state.json` itself. Random numbers,
data order and learning rate are pure functions of (seed, step), so `step` carries them.
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
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from fgrlhf.errors import UserError, first_problems, shorten
from fgrlhf.files import read_json, sha256, sync, write_json
from fgrlhf.models.lora import names_under_adapters
from fgrlhf.runs.stage import recover
from fgrlhf.secrets import mask_tree

KEPT = 2
FILES = ("model.safetensors", "optimizer.safetensors")
HARMLESS = ("logging.", "train.save_interval:")  # a run may go on with others of these
# so with these, where another number of processes leaves the global batch as it was
PER_PROCESS = ("train.sampling_batch_size_per_card:", "train.training_batch_size_per_card:")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill that takes the place of `path` when the block ends well, and vanishes when
    it does not.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, replaced = recover(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in (
            *temporary.iterdir(),
            temporary,
        ):  # on disk before it has its name, for a power cut
            sync(file)
        if path.exists():
            path.rename(replaced)
        temporary.rename(path)
        sync(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save(trainer) -> None:
    """Write the trainer's state after `trainer.step` steps; the last two checkpoints are kept. Rank
    0 writes.
    """
    accelerator = trainer.accelerator
    if accelerator.is_main_process:
        root = trainer.folder / "checkpoints"
        with new_folder(root / f"step-{trainer.step}") as folder:
            save_file(weights(trainer.actor_critic), str(folder / "model.safetensors"))
            tensors, groups = optimizer_tensors(trainer.optimizer)
            save_file(tensors, str(folder / "optimizer.safetensors"))
            state = {
                **trainer.progress(),
                "optimizer_groups": groups,
                "num_processes": accelerator.num_processes,
                "config": mask_tree(trainer.config.model_dump(mode="json")),
                "sha256": {path.name: sha256(path) for path in folder.glob("*.safetensors")},
            }
            write_json(folder / "state.json", {**state, "own_sha256": _own_sha256(state)})
        for old in _checkpoints(root)[:-KEPT]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()


def load_latest(trainer) -> bool:
    """Restore the newest whole checkpoint; False where there is none.

    Raises:
      UserError: the checkpoint was made with other settings, or there are checkpoints and every one
        is damaged.
    """
    found = _checkpoints(trainer.folder / "checkpoints")
    for folder in reversed(found):
        state = _verified_state(folder)
        if state is None:
            warnings.warn(
                f"{folder} is damaged; falling back to the checkpoint before it", stacklevel=2
            )
            continue
        _check_same_run(trainer, state, folder)
        load_weights(trainer.actor_critic, load_file(str(folder / "model.safetensors")))
        load_optimizer(
            trainer.optimizer,
            load_file(str(folder / "optimizer.safetensors")),
            state["optimizer_groups"],
        )
        trainer.restore(state)
        _check_best(trainer)
        if trainer.accelerator.is_main_process:
            # a process that is killed after it wrote a checkpoint and before it removed the oldest
            # leaves one too many
            up_to_this = found[: found.index(folder) + 1]
            for old in up_to_this[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        return True
    if found:
        raise UserError(
            f"every checkpoint in {trainer.folder / 'checkpoints'} is damaged: delete that folder"
            " to start over from the first step"
        )
    return False


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's tensors, tied ones once, without those that stay as they were loaded because
    adapters are trained.
    """
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
            "the checkpoint holds other tensors than this model has"
            f" ({', '.join(sorted(tensors.keys() ^ expected)[:3])}, ...): it was written by another"
            " release. Delete the folder of checkpoints to start over"
        )
    model.load_state_dict(
        tensors, strict=False
    )  # a tensor that is tied has another name in the file


def optimizer_tensors(
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, torch.Tensor], list[dict]]:
    """An optimiser's state as named tensors (`<parameter index>.<name>`) and its groups as
    JSON-able dicts.
    """
    state = optimizer.state_dict()
    tensors = {
        f"{i}.{name}": torch.as_tensor(value).contiguous()
        for i, entry in state["state"].items()
        for name, value in entry.items()
    }
    return tensors, state["param_groups"]


def load_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], groups: list[dict]
) -> None:
    """The inverse of `optimizer_tensors`."""
    entries: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        entries.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _checkpoints(root: Path) -> list[Path]:
    numbered = [
        (int(m[1]), path)
        for path in root.glob("step-*")
        if (m := re.fullmatch(r"step-(\d+)", path.name))
    ]
    return [path for _, path in sorted(numbered)]


def _own_sha256(state: dict) -> str:
    """SHA-256 of what state.json holds, independent of the order and spacing in the file."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _verified_state(folder: Path) -> dict | None:
    """The state of a checkpoint; None where state.json or a file beside it is not what was
    written.
    """
    try:
        state = read_json(folder / "state.json")
        own = state.pop("own_sha256", None)  # older releases did not write it
        if own is not None and own != _own_sha256(state):
            return None
        return state if _is_state_of(state, folder) and _has_its_files(state, folder) else None
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_state_of(state: dict, folder: Path) -> bool:
    """Whether the values that resuming reads have their types, and the step is that of the folder's
    name.
    """
    return (
        type(state["step"]) is int
        and folder.name == f"step-{state['step']}"
        and isinstance(state["config"], dict)
        and isinstance(state["optimizer_groups"], list)
        and isinstance(state["num_processes"], int)
        and isinstance(state["best"], dict | None)
    )


def _has_its_files(state: dict, folder: Path) -> bool:
    digests = state["sha256"]
    return all(name in digests for name in FILES) and all(
        sha256(folder / name) == digests[name] for name in digests
    )


def _check_best(trainer) -> None:
    """Forget the best policy so far where its folder is missing or damaged; the next evaluation
    then finds a new one.
    """
    folder = trainer.folder / "best"
    if trainer.best is None or _is_whole_model(folder):
        return
    if trainer.accelerator.is_main_process:
        print(
            f"note: {folder}, the best policy so far (of step {trainer.best['step']}), is missing"
            " or damaged: the best of the evaluations from here on takes its place",
            flush=True,
        )
    trainer.best = None


def _is_whole_model(folder: Path) -> bool:
    """Whether a model folder has a config and weights that are not cut off."""
    files = list(folder.glob("*.safetensors"))
    try:
        for file in files:
            with safe_open(str(file), "pt"):  # refuses a file that is cut off
                pass
    except (OSError, SafetensorError):
        return False
    return bool(files) and (folder / "config.json").is_file()


def _differences(old, new, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new})
        return [
            line
            for key in keys
            for line in _differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))
        ]
    return [] if old == new else [f"{path}: {shorten(repr(old))} then, {shorten(repr(new))} now"]


def _check_same_run(trainer, state: dict, folder: Path) -> None:
    old, new = state["config"], mask_tree(trainer.config.model_dump(mode="json"))
    processes, now = state["num_processes"], trainer.accelerator.num_processes
    changed = [line for line in _differences(mask_tree(old), new) if not line.startswith(HARMLESS)]
    if processes != now and not _same_updates(old, processes, new, now):
        changed.append(f"processes: {processes} then, {now} now")
    elif processes != now:
        changed = [line for line in changed if not line.startswith(PER_PROCESS)]
        if not changed and trainer.accelerator.is_main_process:
            print(
                f"note: continuing with {now} processes what {processes} began: the same prompts"
                " and updates, up to rounding and dropout",
                flush=True,
            )
    if changed:
        raise UserError(
            f"{folder} was made with other settings, so continuing would mix two runs:\n  "
            + "\n  ".join(first_problems(changed))
            + "\nSet logging.save_dir to a new folder, or delete that one to start over."
        )


def _same_updates(old: dict, processes: int, new: dict, now: int) -> bool:
    """Whether another number of processes makes the same updates: a step's prompts and minibatches
    are the same over all of them.

    In DPO they always are, its batch is that of all processes. As published (`average_microbatches:
    false`) the size of an update depends on how it is split.
    """

    def prompts(config: dict, count: int) -> int | None:
        per_process = config["train"].get("sampling_batch_size_per_card")
        return None if per_process is None else per_process * count

    return prompts(old, processes) == prompts(new, now) and new["train"].get(
        "average_microbatches", True
    )

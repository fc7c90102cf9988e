"""Atomic checkpoints and verified resume: safetensors and JSON, no pickle.

A checkpoint is a folder `checkpoints/step-<n>`. It appears by a single rename once all its files
are on disk, and contains

- the weights of the trained module; with LoRA only the trained ones, as the others are those of
  the model's `ckpt`;
- the optimiser's state;
- `pending.safetensors`, only with `sampler.one_step_behind`: the responses of the next step;
- `state.json`: step, KL coefficient, best score, the config, the digests of the run's inputs, and
  the SHA-256 of every other file and of `state.json` itself.

In RL and DPO, `best/`, beside it, is a model folder whose `best.json` is the evaluation that chose
it. SFT and reward models keep the checkpoint of the best evaluation instead.

Random numbers, data order and learning rate are pure functions of (seed, step), so `step` restores
them.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from fgrlhf.base.errors import UserError, first_problems, shorten
from fgrlhf.base.files import (
    give_weights_usual_access,
    read_json,
    remove,
    sha256,
    sync,
    write_json,
)
from fgrlhf.base.records import Record, complaints
from fgrlhf.base.secrets import mask_tree
from fgrlhf.configs.strict import Place, places_without_effect
from fgrlhf.models.lora import names_under_adapters
from fgrlhf.models.sharding import like, load_whole, whole
from fgrlhf.runs.distributed import stop_together
from fgrlhf.runs.optimizer import Average
from fgrlhf.runs.runlog import BEST_FILE
from fgrlhf.runs.stage import input_change, recover

CHECKPOINTS_KEPT = 2
TEMPORARY = ".model-"  # folder in which a model is written before it is installed
FILES = ("model.safetensors", "optimizer.safetensors")
SHARED_STATE = ("qmap1", "qmap2")  # of 8-bit AdamW: the values of its 256 codes
PENDING = "pending.safetensors"
AVERAGE = "average.safetensors"
REFERENCE = "reference.safetensors"
# settings that may change when a run is resumed, besides those in `StrictModel.may_change`
MAY_CHANGE_ON_RESUME = ("logging.", "train.save_every_steps:", "parallel")
# settings that may also change if the number of processes does and the global batch does not
PER_PROCESS = ("train.sampling_batch_size_per_card:", "train.micro_batch_size:")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill. It replaces `path` if the block succeeds and is removed if it fails.

    Where `path` is a symbolic link, such as to a larger disk, the folder behind it is replaced.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, replaced = recover(path)
    temporary.mkdir()
    try:
        yield temporary
        give_weights_usual_access(temporary)
        # flush to disk before the rename, so that a power cut leaves no incomplete folder
        for file in (*temporary.rglob("*"), temporary):
            if not file.is_symlink():
                sync(file)
        if path.exists():
            path.rename(replaced)
        temporary.rename(path)
        sync(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def keep_other_files(old: Path, new: Path) -> None:
    """Put into `new` what a user put into the folder `old`, which it replaces: notes, results.

    These are the files and folders whose names `new` lacks, except weights, which a program could
    read in place of the new ones. Files are linked where possible.
    """
    for path in old.iterdir() if old.is_dir() else ():
        if ".safetensors" in path.name or os.path.lexists(new / path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, new / path.name, symlinks=True, copy_function=_link_or_copy)
        else:
            _link_or_copy(path, new / path.name)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # the disk has no links, or the file belongs to another user
        shutil.copy2(source, target, follow_symlinks=False)


@contextmanager
def model_to_install(folder: Path) -> Iterator[Path]:
    """A folder to write a model into; at the end its files replace those in `folder`.

    Files are flushed to disk before they get their names, so each file appears completely or not at
    all. A folder inside it, such as that of further chat templates, is removed before the new one
    gets its name. If the block raises, nothing is replaced. Leftovers of a killed process are
    removed.
    """
    for left_over in folder.glob(f"{TEMPORARY}*"):
        remove(left_over)
    with tempfile.TemporaryDirectory(dir=folder, prefix=TEMPORARY) as temporary:
        yield Path(temporary)
        give_weights_usual_access(temporary, access_of=folder)
        for path in Path(temporary).rglob("*"):
            sync(path)
        for path in sorted(Path(temporary).iterdir()):
            if path.is_dir():  # further chat templates; a rename cannot replace a full folder
                remove(folder / path.name)
            os.replace(path, folder / path.name)
    sync(folder)


def save(trainer) -> None:
    """Write the trainer's state after `trainer.step` steps, and remove checkpoints not needed.

    Only rank 0 writes. The files do not depend on the number of processes.
    """
    accelerator = trainer.accelerator
    is_main = accelerator.is_main_process
    model_tensors = whole(weights(trainer.module), keep=is_main)
    tensors, groups = optimizer_tensors(trainer.optimizer)
    tensors = whole(tensors, keep=is_main)
    averages = {}
    for name, average in _averages(trainer).items():
        averages[name] = whole(average.tensors, keep=is_main)
    pending = trainer.pending_tensors()
    if is_main:
        root = trainer.folder / "checkpoints"
        with new_folder(root / f"step-{trainer.step}") as folder:
            save_file(model_tensors, str(folder / "model.safetensors"))
            save_file(tensors, str(folder / "optimizer.safetensors"))
            for name, extra in {**averages, PENDING: pending}.items():
                if extra:
                    save_file(extra, str(folder / name))
            state = {
                **trainer.progress(),
                "optimizer_groups": groups,
                "num_processes": accelerator.num_processes,
                "config": mask_tree(trainer.config.model_dump(mode="json")),
                "inputs": trainer.input_digests,
                "sha256": {path.name: sha256(path) for path in folder.glob("*.safetensors")},
            }
            write_json(folder / "state.json", {**state, "own_sha256": _own_sha256(state)})
        # A damaged checkpoint of a later step, after a fallback, does not count as one of the last.
        for old in _not_needed(trainer):
            remove(old)
    accelerator.wait_for_everyone()


def save_best_weights(trainer) -> None:
    """Write the weights alone, as the only checkpoint. No run can continue from it."""
    is_main = trainer.accelerator.is_main_process
    tensors = whole(weights(trainer.module), keep=is_main)
    if is_main:
        root = trainer.folder / "checkpoints"
        with new_folder(root / f"step-{trainer.step}") as folder:
            save_file(tensors, str(folder / FILES[0]))
        for old in _checkpoints(root):
            if old.name != f"step-{trainer.step}":
                remove(old)
    trainer.accelerator.wait_for_everyone()


def load_best_weights(trainer) -> None:
    """Load the weights of the best checkpoint. Every process calls it."""
    folder = trainer.folder / "checkpoints" / f"step-{trainer.best['step']}"
    load_weights(trainer.module, load_file(str(folder / FILES[0])))
    trainer.accelerator.wait_for_everyone()  # before the first process removes the folder


def load_best(trainer) -> dict:
    """Load the weights and the optimiser of the best checkpoint, and return the rest of its state.

    Every process calls it.

    Raises:
      UserError: the checkpoint is damaged.
    """
    folder = trainer.folder / "checkpoints" / f"step-{trainer.best['step']}"
    state = _verified_state(folder)
    if state is None:
        raise UserError(
            f"{folder}, the best policy so far, is missing or damaged, so training cannot go on"
            " from it. Start a new run with another logging.save_dir"
        )
    _load_model(trainer, folder, state)
    return state


def _load_model(trainer, folder: Path, state: dict) -> None:
    """Load the weights and the optimiser of a verified checkpoint."""
    load_weights(trainer.module, load_file(str(folder / "model.safetensors")))
    load_optimizer(
        trainer.optimizer,
        load_file(str(folder / "optimizer.safetensors")),
        state["optimizer_groups"],
    )
    for name, average in _averages(trainer).items():
        average.load(load_file(str(folder / name)))


def _averages(trainer) -> dict[str, Average]:
    """The averages of a run, by their files in a checkpoint."""
    averages = {AVERAGE: trainer.average, REFERENCE: trainer.reference_average}
    return {name: average for name, average in averages.items() if average is not None}


def steps_to_keep(steps: Sequence[int], best: int | None) -> set[int]:
    """Of checkpoints at `steps` (ascending): the last and the best, filled up with the newest.

    Args:
      best: the step of a checkpoint to keep in any case, if it exists.
    """
    keep = {step for step in steps if step in (best, steps[-1])}
    for step in reversed(steps):
        if len(keep) < CHECKPOINTS_KEPT:
            keep.add(step)
    return keep


def _not_needed(trainer) -> list[Path]:
    """The checkpoints up to the trainer's step that are not kept."""
    folders = _checkpoints(trainer.folder / "checkpoints", until=trainer.step)
    best = trainer.best if trainer.best_is_checkpoint else None
    steps = [_step_of(folder) for folder in folders]
    keep = steps_to_keep(steps, None if best is None else best["step"])
    return [folder for folder, step in zip(folders, steps) if step not in keep]


def load_latest(trainer) -> bool:
    """Restore the newest intact checkpoint; return False if there is no checkpoint.

    Raises:
      UserError: the checkpoint was made with other settings or inputs, or all checkpoints are
        damaged.
    """
    root = trainer.folder / "checkpoints"
    if root.exists() and not root.is_dir():
        raise UserError(f"{root} is a file where the folder of checkpoints must be: move it away")
    checkpoints = _checkpoints(root)
    for folder in reversed(checkpoints):
        state = _verified_state(folder)
        if state is None or not _has_best(trainer, state):
            warnings.warn(
                f"{folder} is damaged; falling back to the checkpoint before it", stacklevel=2
            )
            continue
        _check_same_run(trainer, state, folder)
        with stop_together(trainer.accelerator):
            _check_same_inputs(trainer, state, folder)
        _load_model(trainer, folder, state)
        trainer.restore(state)
        has_pending = PENDING in state["sha256"]
        trainer.restore_pending(load_file(str(folder / PENDING)) if has_pending else {})
        if trainer.has_best_folder and not _restored_best_folder(trainer, folder, state):
            _check_best(trainer)
        if trainer.accelerator.is_main_process:
            # A process that was killed between writing a checkpoint and removing the oldest one
            # leaves one too many.
            for old in _not_needed(trainer):
                shutil.rmtree(old, ignore_errors=True)
        return True
    if checkpoints:
        raise UserError(
            f"every checkpoint in {root} is damaged: delete that folder"
            " to start over from the first step"
        )
    return False


def latest_step(run: Path) -> int | None:
    """The step of the newest intact checkpoint in a run's folder; None if there is none."""
    for folder in reversed(_checkpoints(run / "checkpoints")):
        state = _verified_state(folder)
        if state is not None:
            return state["step"]
    return None


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's tensors: tied ones once, and without the frozen ones if adapters are trained."""
    frozen = names_under_adapters(model)
    tensors = {}
    seen = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        # a part of a sharded tensor may be empty, and empty tensors have the same address
        identity = id(tensor) if isinstance(tensor, DTensor) else (tensor.data_ptr(), tensor.shape)
        if name not in frozen and identity not in seen:
            tensors[name] = tensor.detach().contiguous()
            seen.add(identity)
    return tensors


def load_weights(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """The inverse of `weights`."""
    expected = weights(model).keys()
    if tensors.keys() != expected:
        raise UserError(
            "the checkpoint holds other tensors than this model has"
            f" ({', '.join(sorted(tensors.keys() ^ expected)[:3])}, ...): it was written by another"
            " release. Delete the folder of checkpoints to start over"
        )
    load_whole(model, tensors)


def optimizer_tensors(
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, torch.Tensor], list[dict]]:
    """An optimiser's state: tensors named `<parameter index>.<name>`, and its parameter groups."""
    state = optimizer.state_dict()
    tensors = {}
    for i, entry in state["state"].items():
        for name, value in _flat(entry).items():
            tensor = torch.as_tensor(value).contiguous()
            # one tensor for all parameters, which safetensors would refuse
            tensors[f"{i}.{name}"] = tensor.clone() if name in SHARED_STATE else tensor
    return tensors, state["param_groups"]


def _flat(entry: dict) -> dict:
    """A parameter's state as one dict. bitsandbytes keeps a part of it in a nested dict."""
    flat = {}
    for name, value in entry.items():
        flat.update(value if isinstance(value, dict) else {name: value})
    return flat


def load_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], groups: list[dict]
) -> None:
    """The inverse of `optimizer_tensors`."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    entries: dict[int, dict[str, torch.Tensor | int]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        parameter = parameters[int(index)]
        if tensor.shape == parameter.shape:  # others, such as the number of steps, are not divided
            tensor = like(parameter, tensor)
        is_int = tensor.dim() == 0 and not tensor.is_floating_point()
        entries.setdefault(int(index), {})[name] = int(tensor) if is_int else tensor
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _checkpoints(root: Path, until: int | None = None) -> list[Path]:
    """The checkpoints in a folder, oldest first.

    Args:
      until: leave out those of later steps.
    """
    folders = [path for path in root.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return sorted(
        (path for path in folders if until is None or _step_of(path) <= until), key=_step_of
    )


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _has_best(trainer, state: dict) -> bool:
    """Whether the best checkpoint so far, whose weights may be needed at the end, is intact."""
    best = state["best"]
    if not trainer.best_is_checkpoint or best is None or best["step"] == state["step"]:
        return True
    return _verified_state(trainer.folder / "checkpoints" / f"step-{best['step']}") is not None


def _own_sha256(state: dict) -> str:
    """SHA-256 of the contents of state.json, independent of key order and spacing."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _verified_state(folder: Path) -> dict | None:
    """The state of a checkpoint; None if one of its files is damaged."""
    try:
        state = read_json(folder / "state.json")
        digest = state.pop("own_sha256", None)  # older releases did not write it
        if digest is not None and digest != _own_sha256(state):
            return None
        is_state = not complaints(State, state) and folder.name == f"step-{state['step']}"
        return state if is_state and _has_its_files(state, folder) else None
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class State(Record):
    """The values of state.json that are needed to resume."""

    step: int
    config: dict[str, Any]
    optimizer_groups: list[Any]
    num_processes: int
    best: dict[str, Any] | None
    sha256: dict[str, str]


def _has_its_files(state: dict, folder: Path) -> bool:
    digests = state["sha256"]
    if not all(name in digests for name in FILES):
        return False
    return all(sha256(folder / name) == digest for name, digest in digests.items())


def _restored_best_folder(trainer, folder: Path, state: dict) -> bool:
    """Make best/ hold the best policy, if that has a checkpoint; return whether it has one.

    Args:
      folder, state: the checkpoint from which the run continues, whose weights stay.
    """
    best = trainer.best
    if not trainer.best_is_checkpoint or best is None:
        return False
    holds_it = _evaluation_of(trainer.folder / "best", best) == best
    trainer.accelerator.wait_for_everyone()  # before the first process writes the folder
    if not holds_it:
        load_best(trainer)
        trainer.write_policy("best", best)
        _load_model(trainer, folder, state)
        if trainer.accelerator.is_main_process:
            print(f"note: best/ did not hold the best policy so far: step {best['step']} again")
    return True


def _check_best(trainer) -> None:
    """Forget the best policy so far if its folder does not hold it. Later evaluations choose anew.

    The folder may hold a policy that the run saved after the checkpoint and before it was
    interrupted. The same evaluation is now made again. On a GPU or with another number of processes
    it can give a lower value, and the folder would keep a policy that the state does not describe.
    """
    best = trainer.best
    if best is None:
        return
    folder = trainer.folder / "best"
    saved = _evaluation_of(folder, best)
    if saved == best:
        return
    trainer.best = None
    if isinstance(saved, dict) and saved.get("step") == trainer.step:
        return  # the next evaluation, at the same step, is the one that chose it
    if saved is None:
        fact = f"{folder}, the best policy so far (step {best['step']}), is missing or damaged:"
    else:
        fact = (
            f"{folder} holds another policy than the best one at this checkpoint (step"
            f" {best['step']}), since the run went on after it:"
        )
    follows = "it will be replaced by the best of the following evaluations"
    if trainer.step == trainer.total_steps:
        follows = "no evaluation follows, so there is none. The last policy is in final/"
    if trainer.accelerator.is_main_process:
        print(f"note: {fact} {follows}", flush=True)


def _evaluation_of(folder: Path, default: dict) -> object:
    """The evaluation that chose the policy in best/; None if the folder is not intact.

    Args:
      default: the result for a folder without best.json, which older releases did not write.
    """
    if not is_whole_model(folder):
        return None
    path = folder / BEST_FILE
    if not path.exists():
        return default
    try:
        return read_json(path)
    except UserError:
        return None


def is_whole_model(folder: Path) -> bool:
    """Whether a model folder has a config and weights that are not truncated."""
    files = list(folder.glob("*.safetensors"))
    try:
        for file in files:
            with safe_open(str(file), "pt"):  # raises an error if the file is truncated
                pass
    except (OSError, SafetensorError):
        return False
    return bool(files) and (folder / "config.json").is_file()


def _differences(old, new, path: str = "") -> list[str]:
    """One line for each key in which two configs differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted({*old, *new}):
            lines += _differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))
        return lines
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        lines = []
        for i, (old_item, new_item) in enumerate(zip(old, new)):
            lines += _differences(old_item, new_item, f"{path}[{i}]")
        return lines
    return [] if old == new else [f"{path}: {shorten(repr(old))} then, {shorten(repr(new))} now"]


def _path(place: Place) -> str:
    """A place as `_differences` writes it, such as `evaluation_metrics[1].scorer.timeout`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in place]
    return "".join(parts).lstrip(".")


def _check_same_run(trainer, state: dict, folder: Path) -> None:
    """Raise `UserError` if the checkpoint's settings differ from the trainer's."""
    old = state["config"]
    new = mask_tree(trainer.config.model_dump(mode="json"))
    old_processes = state["num_processes"]
    processes = trainer.accelerator.num_processes
    differences = _differences(mask_tree(old), new)
    without_effect = [f"{_path(place)}:" for place in places_without_effect(trainer.config)]
    may_change = (*MAY_CHANGE_ON_RESUME, *without_effect)
    changed = [line for line in differences if not line.startswith(may_change)]
    if processes != old_processes:
        if _same_updates(old, old_processes, new, processes):
            changed = [line for line in changed if not line.startswith(PER_PROCESS)]
            if not changed and trainer.accelerator.is_main_process:
                print(
                    f"note: the run was started with {old_processes} processes and continues with"
                    f" {processes}: prompts and updates are the same, up to rounding and dropout",
                    flush=True,
                )
        else:
            changed.append(_other_processes(old, old_processes, new, processes))
    if changed:
        raise _another_run(trainer, folder, "settings", changed)


def _check_same_inputs(trainer, state: dict, folder: Path) -> None:
    """Raise `UserError` in the first process if the contents of the run's inputs have changed."""
    before = state.get("inputs", {})
    changed = []
    for path, now in trainer.input_digests.items():
        if before.get(path, now) != now:
            changed.append(input_change(path, before[path], now))
    if changed:
        raise _another_run(trainer, folder, "inputs", changed)


def _another_run(trainer, folder: Path, what: str, changed: list[str]) -> UserError:
    """The error of a checkpoint of another run.

    Args:
      folder: the checkpoint.
      what: settings or inputs.
      changed: a line for each of them that differs.
    """
    return UserError(
        f"{folder} was made with other {what}, so continuing would mix two runs:\n  "
        + "\n  ".join(first_problems(changed))
        + f"\nSet logging.save_dir to a new folder, or delete {trainer.folder} to start over."
    )


def _same_updates(old: dict, old_processes: int, new: dict, processes: int) -> bool:
    """Whether the updates stay the same with another number of processes.

    They do if the prompts of a step, over all processes, stay the same. In DPO they always do: its
    batch size counts all processes. With `train.minibatches: published` the size of an
    update depends on how the batch is split.
    """

    if _prompts_per_step(old, old_processes) != _prompts_per_step(new, processes):
        return False
    return new["train"].get("minibatches") != "published"


def _prompts_per_step(config: dict, processes: int) -> int | None:
    """The prompts of an RL step over all processes; None in DPO."""
    per_process = config["train"].get("sampling_batch_size_per_card")
    return None if per_process is None else per_process * processes


def _other_processes(old: dict, old_processes: int, new: dict, processes: int) -> str:
    """A line for an RL run whose updates would change with the number of processes.

    It names the batch size that keeps the prompts per step, if there is one.
    """
    fact = f"processes: {old_processes} then, {processes} now"
    if new["train"].get("minibatches") == "published":
        return f"{fact}; with train.minibatches=published, updates depend on their number"
    before = _prompts_per_step(old, old_processes)
    fact += f", so {before} prompts per step then, {_prompts_per_step(new, processes)} now"
    if before is None or before % processes:
        return fact
    unit = "process" if processes == 1 else "processes"
    return (
        f"{fact}: train.sampling_batch_size_per_card={before // processes} continues with"
        f" {processes} {unit}"
    )

"""Stages that can be run again: finished work is reused, unfinished continues, other settings are refused.

A stage's folder holds `config.yaml` (written by `RunLog`), `inputs.json` (what it read: path -> digest,
written at the start) and `result.json` (written last, so its presence means the stage is complete).
"""

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path

from fgrlhf.config import StrictModel, read_yaml
from fgrlhf.utils import UserError, read_json, write_json

WEIGHTS = ("config.json", "tokenizer.json", "*.safetensors", "reward_model.json")


def digest(path: str | Path) -> str:
    """Digest of a file's bytes, or of a checkpoint's config, tokenizer and weights, or of a hub name."""
    path = Path(path)
    if not path.exists():
        return f"name:{path}"
    files = [path] if path.is_file() else sorted(file for pattern in WEIGHTS for file in path.glob(pattern))
    total = hashlib.blake2b(digest_size=16)
    for file in files:
        total.update(file.name.encode())
        with open(file, "rb") as stream:
            while block := stream.read(1 << 20):
                total.update(block)
    return total.hexdigest()


def finished(
    folder: str | Path, config: StrictModel, inputs: Iterable[str | Path], redo: bool = False
) -> dict | None:
    """The result of the stage in `folder` if it ran to its end with these settings and inputs, else None.

    `inputs` are the files and checkpoints the stage reads. With `redo`, other work there counts
    as none instead of being refused: for what takes little time.

    Raises:
      UserError: the folder holds work of other settings or inputs; the differences are named.
    """
    folder = Path(folder)
    changes = _changes(folder, config, inputs)
    if changes and not redo:
        raise UserError(
            f"{folder} holds a run with other settings or inputs:\n  "
            + "\n  ".join(changes)
            + "\nRemove that folder to start over, or write to another one."
        )
    complete = not changes and (folder / "result.json").exists()
    return read_json(folder / "result.json") if complete else None


def begin(folder: str | Path, config: StrictModel, inputs: Iterable[str | Path]) -> None:
    """Note the inputs and clear what other settings or inputs left. For one process, once all is loaded."""
    folder, inputs = Path(folder), list(inputs)
    if _changes(folder, config, inputs):
        shutil.rmtree(folder)
    write_json(folder / "inputs.json", {str(path): digest(path) for path in inputs})


def finish(folder: str | Path, result: dict) -> None:
    """Mark the stage as complete."""
    write_json(Path(folder) / "result.json", result)


def last_complete_checkpoint(folder: str | Path) -> Path | None:
    """The newest `checkpoint-<step>` of a transformers Trainer that is whole, or None where there is none yet.

    `sha256.json`, written last, holds the digests of a checkpoint's files: a checkpoint without it was interrupted and
    is passed over. One whose files differ from their digests, or whose best checkpoint so far is damaged or gone, is
    passed over with a warning.

    Raises:
      UserError: there are complete checkpoints and every one is damaged; or `folder` is a file.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file where the folder of checkpoints must be: move it away")
    numbered = [(match, path) for path in folder.glob("checkpoint-*") if (match := CHECKPOINT_NAME.fullmatch(path.name))]
    damaged = []
    for match, path in sorted(numbered, key=lambda item: int(item[0][1]), reverse=True):
        if not (path / DIGESTS).exists():
            continue
        problem = _damage(path, int(match[1]))
        if problem is None:
            return path
        damaged.append(problem)
        warnings.warn(f"{path} is damaged ({problem}); falling back to the checkpoint before it", stacklevel=2)
    if damaged:
        raise UserError(
            f"every checkpoint in {folder} is damaged ({damaged[0]}): delete that folder to start over from the first step"
        )
    return None


CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")
DIGESTS = "sha256.json"


def write_digests(checkpoint: Path) -> None:
    """Write `sha256.json`, which marks a Trainer's checkpoint as complete."""
    files = [path for path in sorted(checkpoint.iterdir()) if path.is_file() and path.name != DIGESTS]
    write_json(checkpoint / DIGESTS, {path.name: sha256(path) for path in files})


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damage(checkpoint: Path, step: int) -> str | None:
    """What is wrong with a checkpoint, or with the best checkpoint that it names; None where both are whole."""
    problem = _changed_file(checkpoint)
    if problem is not None:
        return problem
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        if state["global_step"] != step:
            return f"trainer_state.json is of step {state['global_step']}"
        best = state.get("best_global_step")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "trainer_state.json cannot be read"
    if not best or best == step:
        return None
    problem = _changed_file(checkpoint.parent / f"checkpoint-{best}")
    return None if problem is None else f"the best checkpoint, of step {best}: {problem}"


def _changed_file(checkpoint: Path) -> str | None:
    """What differs from the digests of a checkpoint; None where nothing does."""
    try:
        digests = json.loads((checkpoint / DIGESTS).read_text(encoding="utf-8"))
        digests["trainer_state.json"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f"{DIGESTS} is missing or cannot be read"
    for name, expected in digests.items():
        try:
            if sha256(checkpoint / name) != expected:
                return f"{name} has changed"
        except (OSError, ValueError):
            return f"{name} is missing or cannot be read"
    return None


def _changes(folder: Path, config: StrictModel, inputs: Iterable[str | Path]) -> list[str]:
    """A line for each setting and input in which the work in `folder` differs."""
    if not (folder / "config.yaml").exists():
        return []
    before, now = _flat(read_yaml(folder / "config.yaml")), _flat(config.model_dump(mode="json"))
    changes = [
        f"{key}: {before.get(key, 'not set')} there, {now.get(key, 'not set')} now"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]
    known = read_json(folder / "inputs.json") if (folder / "inputs.json").exists() else {}
    changed = [path for path in map(str, inputs) if path in known and known[path] != digest(path)]
    return changes + [f"{path}: its contents have changed since" for path in changed]


def _flat(tree: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) and value else {name: value}
    return flat

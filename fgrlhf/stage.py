"""Stages that can be run again: finished work is reused, unfinished continues, other settings are refused.

A stage's folder holds `config.yaml` (written by `RunLog`), `inputs.json` (what it read: path -> digest,
written at the start) and `result.json` (written last, so its presence means the stage is complete).
"""

import hashlib
import json
import shutil
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
    """The newest `checkpoint-<step>` of a transformers Trainer that was written to its end.

    The Trainer writes `trainer_state.json` last; a folder without it, or with half of it, is passed over.
    """
    complete = {}
    for state in Path(folder).glob("checkpoint-*/trainer_state.json"):
        try:
            complete[json.loads(state.read_text(encoding="utf-8"))["global_step"]] = state.parent
        except (ValueError, KeyError):
            continue
    return complete[max(complete)] if complete else None


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

"""Weights for another program, in a shared folder."""

import hashlib
import os
import shutil
from pathlib import Path

from fgrlhf.base.files import give_weights_usual_access, sha256, sync, write_json
from fgrlhf.samplers.sampler import SavePolicy

VERSION_FILE = "fgrlhf_version.json"


def publish_weights(folder: str | Path, save: SavePolicy) -> str:
    """Write a model into `folder` and return the version of its weights.

    Every file appears by a rename once it is on disk, the weights after the other files and
    `fgrlhf_version.json` last. Weights of an earlier model are removed. The folder itself stays,
    since it may be mounted elsewhere. The set of files changes one by one, so a program must
    read them only when it is asked to.

    Args:
      save: writes the model into a folder.
    Returns:
      The version: SHA-256 of names and contents of the weights' files, in hexadecimal digits.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / ".fgrlhf_next"
    shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
    new.mkdir()
    try:
        save(new)
        give_weights_usual_access(new)
        files = sorted(new.iterdir(), key=lambda file: (_has_weights(file), file.name))
        version = weights_version(new)
        for file in files:
            target = folder / file.name
            if file.is_dir():  # further chat templates; a rename cannot replace a full folder
                shutil.rmtree(target, ignore_errors=True)
            else:
                sync(file)
            os.replace(file, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    written = {file.name for file in files}
    for file in folder.iterdir():
        if _has_weights(file) and file.name not in written:
            file.unlink()
    write_json(folder / VERSION_FILE, {"weights_sha256": version}, durable=True)
    return version


def weights_version(folder: Path) -> str:
    """SHA-256 of names and contents of a model's weights."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name} {sha256(file)}\n".encode())
    return digest.hexdigest()


def _has_weights(file: Path) -> bool:
    """Whether a file has weights, or the list of the files that have them."""
    return file.name.endswith((".safetensors", ".safetensors.index.json"))

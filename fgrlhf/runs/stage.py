"""Stages that can be repeated: finished work is reused, unfinished work continues.

A stage's folder holds `config.yaml` (written by `RunLog`), `inputs.json` (its inputs: path ->
digest, written at the start) and `result.json` (written last, so its presence means the stage is
complete). A folder with other settings or inputs is rejected. While a process works in the folder,
`.lock` identifies that process (`hold`).
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fgrlhf.base.errors import UserError, first_problems, shorten
from fgrlhf.base.files import read_json, remove, sync, write_json
from fgrlhf.base.program import why_refused
from fgrlhf.base.secrets import mask_secrets, mask_tree
from fgrlhf.configs.overrides import by_dotted_key
from fgrlhf.configs.strict import StrictModel
from fgrlhf.configs.yaml_files import read_yaml
from fgrlhf.reward_utils import SEGMENTER_INPUT, installed_segmenter
from fgrlhf.runs.runlog import command_line, is_main_rank

LOCK = ".lock"

# the files of a model's folder that affect what it reads, samples or scores
MODEL_FILES = (
    "*.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template*",
    "reward_model.json",
    "linear_scorer.json",
    "critic.json",
)
# those of a tokenizer without tokenizer.json, such as Marian's; else nobody reads them
VOCABULARY_FILES = ("vocab.*", "merges.txt", "*.model", "*.spm", "added_tokens.json")


# ---- one process per folder ----------------------------------------------------------------------


@contextmanager
def hold(folder: str | Path) -> Iterator[None]:
    """Lock a run's folder while the block runs, and remove half-written files of a killed process.

    Enter it before reading the folder. On ranks other than the first it does nothing. If the file
    system has no locks (some network disks), it prints a note and the block runs without a lock. At
    the end, the lock and folders that are still empty are removed.

    Raises:
      UserError: another process works in the folder, or it cannot be written.
    """
    if not is_main_rank():
        yield
        return
    folder = _named(folder)
    new_folders = _folders_to_make(folder)
    try:
        lock = _lock(folder)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL or half a character
        _remove_empty(new_folders)
        reason = why_refused(error)
        if reason is None:
            reason = (
                f"{shorten(folder)} is not a valid folder name: {shorten(error)}. Choose another"
                " name."
            )
        raise UserError(reason) from None
    except UserError:
        _remove_empty(new_folders)
        raise
    try:
        _clear_left_overs(folder)
        yield
    finally:
        with suppress(OSError):  # the folder may have been removed by hand
            if lock is not None and _is_at(lock, folder / LOCK):
                (folder / LOCK).unlink()
        if lock is not None:
            os.close(lock)
        _remove_empty(new_folders)


def check_writable(folder: str | Path) -> None:
    """Raise the errors of `hold` early, before a stage spends time on loading.

    Raises:
      UserError: another process works in the folder, or it cannot be written.
    """
    with hold(folder):
        pass


def folder_of(output_dir: str | Path, *names: str) -> Path:
    """The folder <output_dir>/<name>/<name>...

    Raises:
      UserError: a name is not a plain folder name, so the path would lead elsewhere.
    """
    for name in names:
        if name in ("", ".", "..") or "/" in name or os.sep in name or "\0" in name:
            raise UserError(
                f"`{shorten(name)}` cannot be the name of a folder in {output_dir}: names with a"
                " slash lead elsewhere. Give a plain name (name=..., split=...)"
            )
    return _named(output_dir).joinpath(*names)


def _named(folder: str | Path) -> Path:
    if not str(folder).strip():
        raise UserError("the output folder has no name: set logging.save_dir=... or output_dir=...")
    return Path(folder)


def _folders_to_make(folder: Path) -> list[Path]:
    """The folder and its parents that do not exist yet, innermost first."""
    with suppress(OSError, ValueError):
        return [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    return []


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        # errors: the folder is not empty, was never created, or has an invalid name
        with suppress(OSError, ValueError):
            folder.rmdir()


def _lock(folder: Path) -> int | None:
    """A locked descriptor of the folder's lock file; None if the file system has no locks.

    Raises:
      UserError: another process holds the lock.
    """
    path = folder / LOCK
    for _ in range(100):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:  # another process has just removed the empty folder
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(lock, path):  # another process has just removed the file
                os.close(lock)
                continue
            _write_holder(lock)
            return lock
        except BlockingIOError:
            os.close(lock)
            raise UserError(_who_holds(folder)) from None
        except OSError as error:
            os.close(lock)
            path.unlink(missing_ok=True)
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                raise
            print(
                f"note: {folder} is on a disk without locks: make sure that no other process writes"
                " to it",
                flush=True,
            )
            return None
    raise UserError(
        f"{folder} is removed as soon as it is created: find the program that does so, or name"
        " another folder"
    )


def _is_at(lock: int, path: Path) -> bool:
    """Whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False


def _write_holder(lock: int) -> None:
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": started,
        "command": command_line(),
    }
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(holder).encode(), 0)


def _who_holds(folder: Path) -> str:
    holder: dict = {}
    for _ in range(20):  # the other process may have locked the file but not written to it yet
        with suppress(OSError, ValueError):
            holder = json.loads((folder / LOCK).read_bytes())
            break
        time.sleep(0.05)
    if not isinstance(holder, dict) or not {"pid", "host", "started", "command"} <= holder.keys():
        return f"another process works in {folder}. Wait for it to end, or name another folder"
    return (
        f"another process works in {folder}: process {holder['pid']} on {holder['host']}, since"
        f" {holder['started']}, `{shorten(holder['command'])}`. Two would mix their results. Wait"
        f" for it to end, stop it (kill {holder['pid']}), or name another folder"
    )


def recover(path: str | Path) -> tuple[Path, Path]:
    """Clean up after a process that was killed in `checkpoint.new_folder(path)`.

    Returns:
      The temporary names of the new folder while it is filled, and of the old one while it is
      replaced.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    replaced = path.with_name(f".{path.name}.old")
    if replaced.exists() and not path.exists():  # killed between the two renames
        replaced.rename(path)
    for left_over in (temporary, replaced):
        shutil.rmtree(left_over, ignore_errors=True)
    return temporary, replaced


# Leftovers of a killed process: temporary files of `write_text`, a model that was being installed,
# folders that `new_folder` was filling. The stage's folder is locked, so no other run is using
# them; other ranks of this run may be.
_TEMPORARY_FILE = re.compile(r"\..+\.(\d+)\.tmp")
_HALF_A_MODEL = re.compile(r"\.model-[a-z0-9_]{8}")
_NEW_FOLDER = re.compile(r"\.(best|final|step-\d+)\.(tmp|old)")
_PLACES = ("", "samples", "checkpoints")


def _clear_left_overs(folder: Path) -> None:
    for place in _PLACES:
        for path in _entries(folder / place):
            temporary_file = _TEMPORARY_FILE.fullmatch(path.name)
            new_folder = _NEW_FOLDER.fullmatch(path.name)
            if _HALF_A_MODEL.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif temporary_file and path.is_file() and not _is_alive(int(temporary_file[1])):
                path.unlink(missing_ok=True)
            elif new_folder:
                recover(folder / place / new_folder[1])


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    # This process has written no such file in this folder yet: one with its id is from an earlier
    # process.
    return pid != os.getpid()


# ---- results of earlier runs ---------------------------------------------------------------------

MAY_CHANGE = "parallel"  # how processes share a model does not change what they compute

# Cached digests, because weights are large and every start needs their digest twice.
_digests: dict[tuple, str] = {}
# Nanoseconds. A file that changed more recently is not cached: it could change again within one
# tick of the disk's clock.
_SETTLED = 2 * 10**9


def model_files(folder: Path) -> list[Path]:
    """The files of a checkpoint on which results depend; [] if the folder has none."""
    patterns = MODEL_FILES
    if not (folder / "tokenizer.json").exists():
        patterns += VOCABULARY_FILES
    found = (file for pattern in patterns for file in folder.glob(pattern))
    return sorted(file for file in found if file.is_file())


def digest(path: str | Path) -> str:
    """Digest of a file, of a checkpoint's files (`model_files`), or of a hub name.

    Of a segmenter (`segmenter_input`), it is name and version.

    This process does not read files again that have not changed.
    """
    if str(path).startswith(SEGMENTER_INPUT):
        return installed_segmenter(str(path).removeprefix(SEGMENTER_INPUT))
    path = Path(path)
    if not path.exists():
        return f"name:{path}"
    files = [path]
    if not path.is_file():
        files = model_files(path)
    facts = []
    newest = 0  # the last change of any of them, in nanoseconds
    for file in files:
        state = file.stat()
        times = (state.st_mtime_ns, state.st_ctime_ns)
        facts.append((str(file), state.st_ino, state.st_size, *times))
        newest = max(newest, *times)
    key = tuple(facts)
    if key in _digests:
        return _digests[key]
    total = hashlib.blake2b(digest_size=16)
    for file in files:
        total.update(file.name.encode())
        with open(file, "rb") as stream:
            while block := stream.read(1 << 20):
                total.update(block)
    if time.time_ns() - newest > _SETTLED:
        _digests[key] = total.hexdigest()
    return total.hexdigest()


def digests(inputs: Iterable[str | Path]) -> dict[str, str]:
    """The digest of each file, checkpoint or hub name; secrets in names and digests are masked."""
    return {mask_secrets(str(path)): mask_secrets(digest(path)) for path in inputs}


def input_change(name: str, before: str, now: str) -> str:
    """The line of a message about an input whose digest has changed."""
    if name.startswith(SEGMENTER_INPUT):
        return f"{name}: texts were divided by {shorten(before, 80)}, and are by {now} now"
    return f"{name}: its contents have changed since"


def stored_result(
    folder: str | Path,
    config: StrictModel,
    inputs: Iterable[str | Path],
    redo: bool = False,
    files: Iterable[str] = (),
) -> dict | None:
    """The result of the stage in `folder`; None if it is not complete.

    Args:
      inputs: the files and checkpoints that the stage reads.
      redo: discard results from other settings or inputs instead of raising an error; meant for
        cheap stages.
      files: names of files in `folder` that a complete stage has.

    Raises:
      UserError: the folder has results from other settings or inputs; the message lists the
        differences.
    """
    folder = Path(folder)
    changes = changes_since(folder, config, inputs)
    if changes and not redo:
        raise UserError(
            f"{folder} holds a run with other settings or inputs:\n  "
            + "\n  ".join(first_problems(changes))
            + "\nRemove that folder to start over, or write to another one."
        )
    if changes or not all((folder / name).exists() for name in ("result.json", *files)):
        return None
    try:
        return read_json(folder / "result.json")
    except UserError as error:
        if redo:
            return None
        raise UserError(f"{error}. Remove that file to run the stage again") from None


def begin(folder: str | Path, config: StrictModel, inputs: Iterable[str | Path]) -> None:
    """Record the inputs, and remove results from other settings or inputs.

    Call it in one process, once everything is loaded. The files with the old settings are removed
    last: if this is interrupted, the next start still sees them and removes the rest.
    """
    folder = Path(folder)
    inputs = list(inputs)
    if changes_since(folder, config, inputs):
        settings_files = {folder / "config.yaml", folder / "inputs.json"}
        for path in _entries(folder):
            if path not in settings_files and path.name != LOCK:
                remove(path)
        for path in settings_files:
            path.unlink(missing_ok=True)
    write_json(folder / "inputs.json", digests(inputs))


def finish(folder: str | Path, result: dict) -> None:
    """Mark the stage as complete after flushing its files to disk."""
    for path in _entries(Path(folder)):
        if path.is_file():
            sync(path)
    write_json(Path(folder) / "result.json", result, durable=True)


def changes_since(folder: Path, config: StrictModel, inputs: Iterable[str | Path]) -> list[str]:
    """One line for each setting and input that differs from those recorded in `folder`."""
    if not os.path.lexists(folder / "config.yaml"):
        return []
    return [
        *_setting_changes(folder / "config.yaml", config),
        *_input_changes(folder / "inputs.json", inputs),
    ]


def _setting_changes(path: Path, config: StrictModel) -> list[str]:
    """One line for each setting that differs from the recorded one.

    Secrets are compared in masked form.
    """
    try:
        recorded = read_yaml(path)
    except UserError as error:
        return [f"{error}, so its settings are not known"]
    before = by_dotted_key(mask_tree(recorded))
    now = by_dotted_key(mask_tree(config.model_dump(mode="json")))
    changes = []
    for key in {**before, **now}:
        if before.get(key) != now.get(key) and key.partition(".")[0] != MAY_CHANGE:
            there = shorten(before.get(key, "not set"))
            changes.append(f"{key}: {there} there, {shorten(now.get(key, 'not set'))} now")
    return changes


def _input_changes(path: Path, inputs: Iterable[str | Path]) -> list[str]:
    """One line for each input that differs from the recorded one, was added, or is gone.

    The settings alone do not name all inputs: `evaluate` reads some from another config, where
    they may come from an environment variable. Without the file, nothing is known about the
    inputs, and they count as the same.
    """
    if not path.exists():
        return []
    try:
        recorded = read_json(path)
    except UserError as error:
        return [f"{error}, so its inputs are not known"]
    if not isinstance(recorded, dict):
        return [f"{path} is damaged, so its inputs are not known"]
    now = digests(inputs)
    changes = []
    for name, value in now.items():
        if name not in recorded:
            changes.append(f"{name}: is an input now")
        elif recorded[name] != value:
            changes.append(input_change(name, recorded[name], value))
    changes += [f"{name}: was an input" for name in recorded if name not in now]
    return changes

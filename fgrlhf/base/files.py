"""Atomic writes, checksums, and readers of text and JSON with helpful errors."""

import errno
import hashlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten

BYTE_ORDER_MARK = "\ufeff"


def write_text(path: str | Path, text: str, durable: bool = False) -> None:
    """Write a file atomically: write it under a temporary name, then rename it.

    Args:
      durable: flush the contents to disk before the rename, so that a power cut leaves no empty
        file. This waits for the disk; use it for files that mark work as complete.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="")
        if durable:
            sync(temporary)
        os.replace(temporary, path)
        if durable:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: str | Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk.

    Network disks that do not support this are ignored.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_same_file(path: str | Path, other: str | Path) -> bool:
    """Whether two names are of one file or folder that exists."""
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):  # one does not exist, has a NUL, or is the name of a model
        return False


def give_weights_usual_access(folder: str | Path, access_of: str | Path | None = None) -> None:
    """Let those read a folder's weights who can read the folder.

    safetensors 0.8 lets only the owner read a file that it writes, whatever the umask is (its issue
    782). A server that runs as another user, or a colleague, could then not load the model.

    Args:
      access_of: the folder whose access counts; None: `folder`.
    """
    mode = Path(access_of or folder).stat().st_mode & 0o666
    for path in Path(folder).rglob("*.safetensors"):  # a policy may have its critic in it
        path.chmod(mode)


def sha256(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: str | Path, value, durable: bool = False) -> None:
    """Write JSON. NaN and infinity become null, since JSON has neither."""
    write_text(path, _dumps(value, indent=2) + "\n", durable)


def write_jsonl(path: str | Path, rows) -> None:
    """Write JSON lines. NaN and infinity become null, since JSON has neither."""
    write_text(path, "".join(_dumps(row) + "\n" for row in rows))


def _dumps(value, indent: int | None = None) -> str:
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file, without the byte order mark that some programs put first.

    Raises:
      UserError: the file is missing, is a folder, or is not text. The message names it.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise UserError(f"{shorten(path)} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise UserError(
            f"{shorten(path)} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    try:
        return data.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text (byte 0x{data[error.start]:02x} at place {error.start});"
            f" {hint_at_packed(data)}"
        ) from None


def hint_at_packed(data: bytes) -> str:
    """What to do about a file that begins with these bytes and is not UTF-8 text."""
    packed = data[:2] == b"\x1f\x8b"
    return "it is compressed: unpack it with gunzip" if packed else "save it as UTF-8"


def read_json(path: str | Path):
    """Read a JSON file. Raises `UserError`, which names the file, if it is missing or invalid."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {shorten(error)}") from None


def read_jsonl(path: str | Path) -> list:
    """Read JSON lines.

    Raises:
      UserError: the file is missing or a line is invalid. The message names file and line.
    """
    return [row for _, row in numbered_jsonl(path)]


def numbered_jsonl(path: str | Path) -> list[tuple[int, Any]]:
    """As `read_jsonl`, each value with the number of its line."""
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append((number, parse_json(line, unique_keys=True)))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not valid JSON: {shorten(error)}") from None
    return rows


def parse_json(text: str, unique_keys: bool = False):
    """The value of a JSON text.

    Args:
      unique_keys: refuse objects that have a key twice. Otherwise the last value counts.

    Raises:
      ValueError: it is not JSON (NaN and Infinity are not), is nested too deeply, has a number that
        is too long, or contains half of a surrogate pair, which cannot be encoded as UTF-8.
    """
    object_of_pairs = _with_unique_keys if unique_keys else None
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=object_of_pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"half of a surrogate pair, \\u{ord(error.object[error.start]):04x}, is not text"
            ) from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    return value


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: dict[str, Any] = {}
        for key, item in pairs:
            if key in seen:
                values = f"first {shorten(repr(seen[key]), 40)}, then {shorten(repr(item), 40)}"
                raise ValueError(
                    f"an object has the key `{shorten(key, 40)}` twice, {values}: remove one"
                )
            seen[key] = item
    return value


def _no_constant(name: str):
    raise ValueError(f"{name} is not a JSON number")

"""Errors for users, secrets, masks, reductions, whitening, seeding, atomic writes."""

import errno
import hashlib
import json
import math
import os
import random
import re
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fgrlhf.runs.orphan import end_with_parent


class UserError(Exception):
    """A user error. The message says what is wrong, why, and how to fix it; no traceback is
    shown.
    """


def run_main(main) -> None:
    """Call `main()` for a command line: a `UserError` prints one message on stderr and exits with
    code 2.

    An error of the operating system, such as a full disk, does the same. A bug keeps its traceback.
    A stage ends when the pipeline that started it is gone, so that the next run does not find it
    still running.
    """
    end_with_parent()
    try:
        main()
    except UserError as error:
        sys.exit(_say(f"error: {error}", 2))
    except KeyboardInterrupt:
        sys.exit(
            _say(
                "interrupted: run the same command again to continue from the last complete"
                " checkpoint",
                130,
            )
        )
    except Exception as error:
        reason = why_refused(error)
        if reason is None:
            raise
        sys.exit(_say(f"error: {reason}", 2))


def _say(message: str, code: int) -> int:
    print(mask_secrets(message), file=sys.stderr)
    return code


MOST_PROBLEMS = 20  # listed in one error message


def first_problems(problems: Sequence[str]) -> list[str]:
    """The first problems of a list, and a last line with the number of the others where there are
    any.
    """
    lines = list(problems[:MOST_PROBLEMS])
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"... and {len(problems) - MOST_PROBLEMS} more")
    return lines


# ---- errors of the operating system --------------------------------------------------------------

_CHOOSE = "name another folder (logging.save_dir=... or output_dir=...)"
_WAYS_OUT = {
    errno.ENOSPC: "Make room and run the same command again: what is complete is kept.",
    errno.EDQUOT: "Make room and run the same command again: what is complete is kept.",
    errno.EFBIG: (
        "Raise the limit (ulimit -f) and run the same command again: what is complete is kept."
    ),
    errno.EACCES: f"Change its permissions, or {_CHOOSE}.",
    errno.EPERM: f"Change its permissions, or {_CHOOSE}.",
    errno.EROFS: f"Mount it for writing, or {_CHOOSE}.",
    errno.ENOTDIR: f"A file is in the place of a folder: remove it, or {_CHOOSE}.",
    errno.EEXIST: f"A file is in the place of a folder: remove it, or {_CHOOSE}.",
    errno.EISDIR: "A folder is in the place of a file: remove it, or name a file.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ELOOP: "A symbolic link leads back to itself: remove it.",
    errno.ENOENT: "Check that it exists and is not removed while the program runs.",
    errno.EMFILE: "Raise the limit (ulimit -n) and run the same command again.",
}
# A failed write() names no file. Any other error without a file is not about files, so it is a bug.
_WITHOUT_FILE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
)
_RUST_CODE = re.compile(
    r"\(os error (\d+)\)|\bOs \{ code: (\d+)"
)  # safetensors and tokenizers give the code in their text
_RUST_PATH = re.compile(r'at path "([^"]*)"')


def why_refused(error: BaseException) -> str | None:
    """The message for an error of the operating system: what failed, why, and how to fix it. None
    for any other error.
    """
    number = getattr(error, "errno", None)
    path = getattr(error, "filename2", None) or getattr(
        error, "filename", None
    )  # the second: where a file was to go
    if not isinstance(error, OSError):
        text = str(error)
        if isinstance(error, RuntimeError) and (
            "inline_container" in text or "PytorchStreamWriter" in text
        ):
            return (
                f"a file could not be written whole: {shorten(text)}. The disk is probably full."
                f" {_WAYS_OUT[errno.ENOSPC]}"
            )
        code, place = _RUST_CODE.search(text), _RUST_PATH.search(text)
        number = int(code[1] or code[2]) if code else None
        path = place[1] if place else None
    if number is None or (path is None and number not in _WITHOUT_FILE):
        return None
    where = (
        "a file could not be written or read"
        if path is None
        else f"{shorten(path)} could not be used"
    )
    return (
        f"{where}: {os.strerror(number)}."
        f" {_WAYS_OUT.get(number, 'Fix that and run the same command again.')}"
    )


# ---- secrets -------------------------------------------------------------------------------------

MASK = "***"
_SECRET_WORDS = frozenset(
    "token key apikey secret password passwd passphrase credential credentials".split()
)
_NO_SECRETS = frozenset(
    "key eos_token bos_token pad_token cls_token sep_token mask_token unk_token".split()
)
_SHORTEST_SECRET = 6  # characters; shorter values are ordinary words and numbers
_ASSIGNMENT = re.compile(r"([\w.\-]+)=(?!\.\.\.)(\S+)")  # `key=...` in a message is a way out


def looks_secret(name: str) -> bool:
    """Whether a variable or key of this name holds a secret: `HF_TOKEN`, `logging.wandb_api_key`,
    but not `max_tokens`.
    """
    last = str(name).rpartition(".")[2]
    return last not in _NO_SECRETS and not _SECRET_WORDS.isdisjoint(
        re.split(r"[_\-]", last.lower())
    )


def mask_secrets(text: str) -> str:
    """`text` with `***` for the value of every secret environment variable, and for what secret
    keys are set to (`key=value`).
    """
    values = {
        value
        for name, value in os.environ.items()
        if looks_secret(name) and len(value) >= _SHORTEST_SECRET
    }
    for value in sorted(values, key=len, reverse=True):  # a secret may be part of another
        text = text.replace(value, MASK)
    return _ASSIGNMENT.sub(
        lambda match: f"{match[1]}={MASK}" if looks_secret(match[1]) else match[0], text
    )


def mask_tree(value: Any, key: str = "") -> Any:
    """`mask_secrets` on every string of a nested dict or list, such as a config. The value of a
    secret key is masked whole.
    """
    if isinstance(value, dict):
        return {name: mask_tree(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_tree(item, key) for item in value]
    if not isinstance(value, str):
        return value
    return MASK if looks_secret(key) and value else mask_secrets(value)


def shorten(text: object, limit: int = 200) -> str:
    """`text` for an error message: on one line, and cut in its middle where it is longer than
    `limit` characters.
    """
    line = " ".join(str(text).encode("utf-8", "backslashreplace").decode("utf-8").split())
    if len(line) <= limit:
        return line
    half = (limit - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"


# ---- masks and reductions ------------------------------------------------------------------------


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """sum_i m_i x_i over all elements. x and mask have one shape; masked-out x may be anything, NaN
    included.
    """
    return torch.where(mask.bool(), x, torch.zeros_like(x)).sum()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """sum_i m_i x_i / sum_i m_i; 0 where the mask is empty."""
    return masked_sum(x, mask) / mask.sum().clamp(min=1)


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Population variance of the elements under the mask: sum_i m_i (x_i - mean)^2 / sum_i m_i."""
    return masked_mean((x - masked_mean(x, mask)) ** 2, mask)


def whiten(
    x: Tensor, mask: Tensor, shift_mean: bool = True, divide_by: str = "std", eps: float = 1e-8
) -> Tensor:
    """(x - mean) / std under the mask, 0 outside it; with `shift_mean=False` x / std.

    `divide_by="sqrt_std"` divides by the square root of the standard deviation, leaves what that
    formula gives outside the mask, and with `shift_mean=False` adds the mean to (x - mean) / ...,
    as the published code does. Rewards whitened so carry the constant mean (1 - 1/std) on every
    token, which pays for length (docs/deviations.md, D1, D2 and D15).
    """
    mean, std = masked_mean(x, mask), masked_var(x, mask).sqrt()
    if divide_by == "sqrt_std":
        white = (x - mean) * torch.rsqrt(std + eps)
        return white if shift_mean else white + mean
    white = (x - mean if shift_mean else x) / torch.where(
        std > eps, std, torch.ones_like(std)
    )  # no spread: nothing to scale
    return torch.where(mask.bool(), white, torch.zeros_like(x))


# ---- seeds ---------------------------------------------------------------------------------------


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that is a pure function of its parts, e.g. `derive_seed(config.seed, "rollout",
    step)`.
    """
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def seeded(*parts: int | str):
    """Run a block with every global generator (python, numpy, torch) seeded from `parts`, then
    restore their states.
    """
    seed = derive_seed(*parts)
    gpus = torch.cuda.is_initialized()  # reading their state would initialise them
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    before_gpus = torch.cuda.get_rng_state_all() if gpus else []
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
        if gpus:
            torch.cuda.set_rng_state_all(before_gpus)


# ---- files ---------------------------------------------------------------------------------------


def write_text(path: str | Path, text: str, durable: bool = False) -> None:
    """Write a whole file or nothing: to a temporary name beside it, then rename.

    `durable`: the bytes are on disk before the name is, so that a power cut leaves no empty file.
      That waits for the
    disk, so use it for files that mark work as complete.
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
    """Wait until a file, or the list of names in a folder, is on disk. Network disks that do not
    support this are skipped.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


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
    """The text of a UTF-8 file. Raises `UserError` naming the file where it is missing, a folder,
    or not text.
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
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        packed = data[:2] == b"\x1f\x8b"
        hint = "it is compressed: unpack it with gunzip" if packed else "save it as UTF-8"
        raise UserError(
            f"{path} is not UTF-8 text (byte 0x{data[error.start]:02x} at place {error.start});"
            f" {hint}"
        ) from None


def read_json(path: str | Path):
    """Read a JSON file; a missing or broken one is a `UserError` that names it."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {shorten(error)}") from None


def read_jsonl(path: str | Path) -> list:
    """Read JSON lines; a missing file or a broken line is a `UserError` that names file and
    line.
    """
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(parse_json(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not valid JSON: {shorten(error)}") from None
    return rows


def parse_json(text: str):
    """The value of a JSON text.

    Raises:
      ValueError: it is not JSON (NaN and Infinity are not), is nested too deeply, has a number that
        is too long, or holds half of a surrogate pair, which cannot be written as UTF-8.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
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


def _no_constant(name: str):
    raise ValueError(f"{name} is not a JSON number")

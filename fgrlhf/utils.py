"""Errors for users, masks, reductions, whitening, seeding, atomic writes."""

import hashlib
import json
import os
import random
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class UserError(Exception):
    """A mistake the user can mend. The text gives the fact, the reason and the way out; no traceback is shown."""


def run_main(main) -> None:
    """Call `main()` for a command line: a `UserError` prints as one message on stderr and exits with code 2."""
    try:
        main()
    except UserError as error:
        sys.exit(_say(f"error: {error}", 2))
    except KeyboardInterrupt:
        sys.exit(_say("interrupted: run the same command again to continue from the last complete checkpoint", 130))


def _say(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def why_not_loaded(ckpt: str | Path, error: Exception) -> str:
    """The reason transformers could not load `ckpt`, in one sentence; for what can only be a path, that nothing is there."""
    if not Path(ckpt).exists() and str(ckpt).count("/") > 1:  # more than the one slash of a hub name
        return "there is no such folder."
    return str(error).strip().splitlines()[0]


def shorten(text: object, limit: int = 200) -> str:
    """`text` for an error message: on one line, and cut in its middle where it is longer than `limit` characters."""
    line = " ".join(str(text).encode("utf-8", "backslashreplace").decode("utf-8").split())
    if len(line) <= limit:
        return line
    half = (limit - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"


# ---- masks and reductions ------------------------------------------------------------------------------------------


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """sum_i m_i x_i over all elements. x and mask have one shape; masked-out x may be anything, NaN included."""
    return torch.where(mask.bool(), x, torch.zeros_like(x)).sum()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """sum_i m_i x_i / sum_i m_i; 0 where the mask is empty."""
    return masked_sum(x, mask) / mask.sum().clamp(min=1)


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Population variance of the elements under the mask: sum_i m_i (x_i - mean)^2 / sum_i m_i."""
    return masked_mean((x - masked_mean(x, mask)) ** 2, mask)


def whiten(x: Tensor, mask: Tensor, shift_mean: bool = True, divide_by: str = "std", eps: float = 1e-8) -> Tensor:
    """(x - mean) / std under the mask, 0 outside it; with `shift_mean=False` x / std.

    `divide_by="sqrt_std"` divides by the square root of the standard deviation, leaves what that formula gives outside
    the mask, and with `shift_mean=False` adds the mean to (x - mean) / ..., as the published code does. Rewards whitened
    so carry the constant mean (1 - 1/std) on every token, which pays for length (docs/deviations.md, D1, D2 and D15).
    """
    mean, std = masked_mean(x, mask), masked_var(x, mask).sqrt()
    if divide_by == "sqrt_std":
        white = (x - mean) * torch.rsqrt(std + eps)
        return white if shift_mean else white + mean
    white = (x - mean if shift_mean else x) / torch.where(std > eps, std, torch.ones_like(std))  # no spread: nothing to scale
    return torch.where(mask.bool(), white, torch.zeros_like(x))


# ---- seeds ---------------------------------------------------------------------------------------------------------


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that is a pure function of its parts, e.g. `derive_seed(config.seed, "rollout", step)`."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def seeded(*parts: int | str):
    """Run a block with every global generator (python, numpy, torch) seeded from `parts`."""
    seed = derive_seed(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    yield seed


# ---- files ---------------------------------------------------------------------------------------------------------


def write_text(path: str | Path, text: str) -> None:
    """Write a whole file or nothing: to a temporary name beside it, then rename."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | Path, value) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_jsonl(path: str | Path, rows) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_json(path: str | Path):
    """Read a JSON file; a missing or broken one is a `UserError` that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None


def read_jsonl(path: str | Path) -> list:
    """Read JSON lines; a missing file or a broken line is a `UserError` that names file and line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: not valid JSON: {error}") from None
    return rows

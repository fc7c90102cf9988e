"""The library that multiplies fp32 matrices on a CPU: PyTorch's default (MKL on x86) or oneDNN.

oneDNN is part of the same PyTorch. On two cores of an AMD EPYC, MKL reaches 185 GFLOP/s and oneDNN
420; on Intel processors MKL is as fast or up to twice as fast. The two are timed once, in a few
milliseconds, for three classes of size. oneDNN is chosen if it is at least `MARGIN` times as fast,
a difference larger than the noise.

The two libraries round differently, and a resumed run must continue bit for bit:

- Within a process, the choice is made once, at the first product of fp32 matrices on a CPU.
- On a machine, the first process that measures writes $XDG_CACHE_HOME/fgrlhf/kernels.json
  (~/.cache/fgrlhf/kernels.json), and later processes read it. An entry is valid for one processor,
  one release of PyTorch and one number of threads.
- In a run, run.json holds the choice, and a resumed run reads it from there
  (`use_kernels(run_folder=...)`), whatever the cache file contains by then.
- With several processes, every rank uses the choice of rank 0.

If the cache file cannot be written, each process measures.

`model.kernels: off` disables everything in this folder: models keep the layers and the attention of
transformers (install.py). The environment variable FGRLHF_KERNELS overrides the YAML. It accepts
`auto` and `off`, and two more values that skip the measurement: `pytorch` leaves every product to
PyTorch, `onednn` uses oneDNN for every product, however small; both keep the rest of this folder.

Axes here: a product maps M rows of K numbers to N numbers each.
"""

import fcntl
import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json

PYTORCH = "pytorch"
ONEDNN = "onednn"
OFF = "off"
SETTINGS = ("auto", OFF)
MARGIN = 1.2  # lowest speed of oneDNN relative to MKL at which oneDNN is chosen
REPEATS = 7

# Products with fewer multiplications (64 rows times a 128 x 128 matrix) always go to PyTorch.
SMALLEST = 2**20
# class of size: (its smallest number of multiplications, the product (M, K, N) timed for it)
SIZES = {
    "small": (SMALLEST, (64, 128, 128)),
    "medium": (2**22, (256, 256, 256)),
    "large": (2**26, (512, 512, 512)),
}
# oneDNN generates code for each new shape (half a millisecond, half a megabyte) and caches a
# thousand of them. Texts of varying length produce ever new shapes, so a small cache is enough.
# oneDNN reads both variables once, at its first product.
CACHE_LIMITS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}

Result = TypeVar("Result")

_chosen: dict[str, str] | None = None  # class of size -> library; None before the first product
_limited = False  # whether oneDNN's caches have been limited


def use_kernels(setting: str = "auto", run_folder: str | Path | None = None) -> None:
    """Set how this process chooses. Call it on all ranks, before any model is loaded.

    Args:
      setting: `model.kernels` of the config: "auto" or "off".
      run_folder: folder of a run that may be resumed; the choice in its run.json is reused.

    Raises:
      UserError: the setting or FGRLHF_KERNELS has an unknown value.
    """
    global _chosen
    if setting not in SETTINGS:
        raise UserError(f"model.kernels is `{setting}`: it must be one of {', '.join(SETTINGS)}")
    _chosen = _fixed(setting)
    if _chosen is None and run_folder is not None:
        _chosen = _recorded(Path(run_folder) / "run.json")
    if _several_processes():
        shared = [choices() if torch.distributed.get_rank() == 0 else None]
        torch.distributed.broadcast_object_list(shared, src=0)
        _chosen = shared[0]


def choices() -> dict[str, str]:
    """The library for each class of size: "pytorch", "onednn", or "off" for all classes.

    The first call in a process makes the choice, which may need a measurement.
    """
    global _chosen
    if _chosen is None:
        _chosen = _fixed("auto") or _remembered_or_measured()
    return dict(_chosen)


def kernels_off(setting: str = "auto") -> bool:
    """Whether this process loads models without the kernels of this folder. Measures nothing.

    Args:
      setting: `model.kernels` of the config, for code that runs before `use_kernels`.

    Raises:
      UserError: FGRLHF_KERNELS has an unknown value.
    """
    fixed = _fixed(setting)
    if fixed is not None and OFF in fixed.values():
        return True
    return _chosen is not None and OFF in _chosen.values()


def takes_onednn(multiplications: int) -> bool:
    """Whether oneDNN computes a product of fp32 matrices with this number of multiplications."""
    chosen = choices() if _chosen is None else _chosen
    library = chosen.get("every", PYTORCH)
    for name, (least, _) in SIZES.items():
        if multiplications >= least:
            library = chosen[name]
    return library == ONEDNN


def onednn_available() -> bool:
    """Whether this PyTorch has oneDNN's fp32 linear layer and the processor is an x86."""
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return (
        is_x86
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def has_bf16() -> bool:
    """Whether the CPU is known to have instructions for bf16 products."""
    has = torch.cpu.get_capabilities()
    return has.get("avx512_bf16", False) or has.get("amx_bf16", False)


def onednn_linear(
    x: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None
) -> torch.Tensor:
    """The product x w^T + b, computed by oneDNN."""
    if not _limited:
        _limit_caches()
    return torch.ops.mkldnn._linear_pointwise(x, weight_NK, bias_N, "none", [], "")


def _limit_caches() -> None:
    """Run oneDNN's first product with `CACHE_LIMITS` in the environment.

    Then remove the variables, so that child processes do not inherit them.
    """
    global _limited
    _limited = True
    added = {name: value for name, value in CACHE_LIMITS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        torch.ops.mkldnn._linear_pointwise(
            torch.zeros(2, 2), torch.zeros(2, 2), None, "none", [], ""
        )
    finally:
        for name in added:
            del os.environ[name]


def slow_bf16_note(device_type: str, setting: str) -> str | None:
    """A note for the user if bf16 is emulated here, else None.

    Args:
      setting: the override that selects fp32, e.g. "model.dtype=fp32".
    """
    if device_type != "cpu" or not lacks_bf16():
        return None
    return (
        "note: this processor has no instructions for bf16, so bf16 is slower than fp32 here: set"
        f" {setting}"
    )


def lacks_bf16() -> bool:
    """Whether the CPU is known to have no instructions for bf16 products."""
    has = torch.cpu.get_capabilities()
    names = ("avx512_bf16", "amx_bf16")
    return all(name in has and not has[name] for name in names)


# ---- sources of a choice -------------------------------------------------------------------------


def _fixed(setting: str) -> dict[str, str] | None:
    """The choice if the setting or the machine determines it, else None."""
    setting = os.environ.get("FGRLHF_KERNELS") or setting
    if setting not in (*SETTINGS, PYTORCH, ONEDNN):
        raise UserError(
            f"FGRLHF_KERNELS={setting} is unknown: set it to auto, off, pytorch or onednn, or"
            " unset it"
        )
    if setting == OFF:
        return dict.fromkeys(SIZES, OFF)
    if setting == PYTORCH or not onednn_available():
        return dict.fromkeys(SIZES, PYTORCH)
    if setting == ONEDNN:
        return {**dict.fromkeys(SIZES, ONEDNN), "every": ONEDNN}
    return None


def _recorded(path: Path) -> dict[str, str] | None:
    """The choice in a run.json, or None if it holds no valid one."""
    try:
        return _checked(json.loads(path.read_text(encoding="utf-8"))["kernels"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _checked(choice) -> dict[str, str]:
    """Return `choice` after checking it.

    Raises:
      ValueError: it does not name a library for every class of size.
    """
    if not isinstance(choice, dict) or not set(SIZES) <= set(choice) <= {*SIZES, "every"}:
        raise ValueError("a choice of kernels names a library for every class of size")
    libraries = set(choice.values())
    if libraries != {OFF} and not libraries <= {PYTORCH, ONEDNN}:
        raise ValueError("a choice of kernels names an unknown library")
    return choice


def _remembered_or_measured() -> dict[str, str]:
    return remembered_or_measured(cache_file(), machine_key(), _checked, measure)


def remembered_or_measured(
    path: Path, key: str, check: Callable[[Any], Result], measure: Callable[[], Result]
) -> Result:
    """What an earlier process measured on this machine, or else a measurement that is written.

    Args:
      path: a JSON file of the measurements under different conditions.
      key: the conditions of this one.
      check: returns a value of the file; raises `ValueError` if it is none.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # the lock keeps processes that start together from disturbing each other's measurement
        with _locked(path.with_suffix(".lock")):
            known = _read_cache(path, check)
            if key not in known:
                known[key] = measure()
                write_json(path, known)
            return known[key]
    except (OSError, RuntimeError):  # no home, read-only, full disk, a file system without locks
        return measure()


def _read_cache(path: Path, check: Callable[[Any], Result]) -> dict[str, Result]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {key: check(value) for key, value in content.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


@contextmanager
def _locked(path: Path):
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_file(name: str = "kernels.json") -> Path:
    """A file of measurements on this machine."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "fgrlhf" / name


def machine_key() -> str:
    """The conditions under which a measurement is valid."""
    return f"{processor_name()}, torch {torch.__version__}, threads {torch.get_num_threads()}"


def processor_name() -> str:
    """The processor's model name as reported by the system."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "model name" and value.strip():
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "an unknown processor"


# ---- the measurement -----------------------------------------------------------------------------


def measure(seconds: Callable[[str, tuple[int, int, int]], float] | None = None) -> dict[str, str]:
    """The library for each class of size: oneDNN if it is at least `MARGIN` times as fast.

    Args:
      seconds: (library, (M, K, N)) -> seconds of that product; by default it is timed here.
    """
    seconds = seconds or _seconds
    result = {}
    for name, (_, shape) in SIZES.items():
        ratio = seconds(PYTORCH, shape) / seconds(ONEDNN, shape)
        result[name] = ONEDNN if ratio >= MARGIN else PYTORCH
    return result


@torch.no_grad()
def _seconds(library: str, shape: tuple[int, int, int]) -> float:
    M, K, N = shape
    x_MK = torch.ones(M, K)
    weight_NK = torch.ones(N, K)
    bias_N = torch.ones(N)
    multiply = onednn_linear if library == ONEDNN else torch.nn.functional.linear
    return best_seconds(lambda: multiply(x_MK, weight_NK, bias_N))


def best_seconds(compute: Callable[[], Any]) -> float:
    """Shortest of `REPEATS` times: the one that other processes disturbed least."""
    compute()  # warm-up, not timed
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        compute()
        times.append(time.perf_counter() - start)
    return min(times)


def _several_processes() -> bool:
    """Whether there are several ranks that exchange CPU objects.

    Ranks on GPUs multiply there and need no choice.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    return distributed.get_world_size() > 1 and "gloo" in distributed.get_backend()

"""Which library multiplies fp32 matrices on a CPU: PyTorch's own choice (MKL on x86) or oneDNN, as
measured on this machine.

oneDNN comes with the same PyTorch. Two cores of an AMD EPYC do 185 GFLOP/s by MKL and 420 by
oneDNN; on Intel processors MKL is as fast or up to twice as fast. So the two are timed once, in a
few milliseconds, for three classes of size, and oneDNN is taken where it is at least `MARGIN` times
as fast: a difference that noise does not make.

The two libraries round differently, and a run that is resumed must be the same run bit for bit.
Therefore:

    within a process   the choice is made once, at the first product of fp32 matrices on a CPU, and
    stays on a machine       the first process that measures writes
    $XDG_CACHE_HOME/fgrlhf/kernels.json (~/.cache/fgrlhf/kernels.json);
                       later ones read it. An entry is for one processor, release of PyTorch and
                       number of threads
    in a run           run.json keeps the choice, and a run that is resumed takes it from there
    (`use_kernels(run_folder=...)`),
                       whatever the cache file holds by then
    over processes     every rank takes the choice of rank 0

Where the cache file cannot be written, each process measures. `model.kernels: off` leaves every
product to PyTorch. The environment variable FGRLHF_KERNELS comes before the YAML: `auto`, `off`, or
`onednn` for every product, however small.
"""

import fcntl
import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed

from fgrlhf.errors import UserError
from fgrlhf.files import write_json

PYTORCH, ONEDNN = "pytorch", "onednn"
SETTINGS = ("auto", "off")
MARGIN = 1.2  # how many times as fast oneDNN must be to be taken
REPEATS = 7

# Products of fewer multiplications are left to PyTorch unmeasured: 64 rows with a matrix of 128 x
# 128 are as many.
SMALLEST = 2**20
# class of size: multiplications from which on it counts, and the product (M, K, N) that is timed
# for it
SIZES = {
    "small": (SMALLEST, (64, 128, 128)),
    "medium": (2**22, (256, 256, 256)),
    "large": (2**26, (512, 512, 512)),
}
# oneDNN writes code for each shape it meets, half a millisecond and half a megabyte each, and keeps
# a thousand of them. Texts make ever new shapes: a few are enough. Both variables are read at
# oneDNN's first product.
CACHE_LIMITS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}

_chosen: dict[str, str] | None = None  # by this process: class of size -> library
_limited = False  # whether oneDNN's caches have been limited


def use_kernels(setting: str = "auto", run_folder: str | Path | None = None) -> None:
    """Set how this process chooses. Call it before the first product; with several processes, on
    each of them.

    Args:
      setting: `model.kernels` of the config: "auto" or "off".
      run_folder: the folder of a run that may be resumed; the choice in its run.json is taken
        again.

    Raises:
      UserError: neither the setting nor FGRLHF_KERNELS is a known one.
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
    """The library for each class of size, "pytorch" or "onednn"; measured now if this process has
    not chosen yet.
    """
    global _chosen
    if _chosen is None:
        _chosen = _fixed("auto") or _remembered_or_measured()
    return dict(_chosen)


def takes_onednn(multiplications: int) -> bool:
    """Whether a product of fp32 matrices with so many multiplications is one for oneDNN."""
    chosen = choices() if _chosen is None else _chosen
    if chosen.get("every") == ONEDNN:
        return True
    if multiplications < SMALLEST:
        return False
    return chosen[size_class(multiplications)] == ONEDNN


def size_class(multiplications: int) -> str:
    """The name in `SIZES` of a product with so many multiplications (at least `SMALLEST`)."""
    names = [name for name, (least, _) in SIZES.items() if multiplications >= least]
    return names[-1]


def onednn_available() -> bool:
    """Whether this PyTorch has oneDNN's product for fp32 matrices, and the processor is an x86."""
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return (
        is_x86
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def onednn_product(
    x: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None
) -> torch.Tensor:
    """x w^T + b by oneDNN."""
    if not _limited:
        _limit_caches()
    return torch.ops.mkldnn._linear_pointwise(x, weight_NK, bias_N, "none", [], "")


def _limit_caches() -> None:
    """Make oneDNN's first product with `CACHE_LIMITS` in the environment; children of this process
    do not inherit them.
    """
    global _limited
    _limited = True
    ours = {name: value for name, value in CACHE_LIMITS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        torch.ops.mkldnn._linear_pointwise(
            torch.zeros(2, 2), torch.zeros(2, 2), None, "none", [], ""
        )
    finally:
        for name in ours:
            del os.environ[name]


# ---- where a choice comes from -------------------------------------------------------------------


def _fixed(setting: str) -> dict[str, str] | None:
    """The choice that needs no measurement, None where there is none."""
    wanted = os.environ.get("FGRLHF_KERNELS") or setting
    if wanted not in (*SETTINGS, ONEDNN):
        raise UserError(
            f"FGRLHF_KERNELS={wanted} is unknown: set it to auto, off or onednn, or unset it"
        )
    if wanted == "off" or not onednn_available():
        return dict.fromkeys(SIZES, PYTORCH)
    if wanted == ONEDNN:
        return {**dict.fromkeys(SIZES, ONEDNN), "every": ONEDNN}
    return None


def _recorded(path: Path) -> dict[str, str] | None:
    """The choice in a run.json, None where there is none to be used."""
    try:
        return _checked(json.loads(path.read_text(encoding="utf-8"))["kernels"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _checked(choice) -> dict[str, str]:
    """`choice`, if it names a library for every class of size.

    Raises:
      ValueError: it does not.
    """
    if not isinstance(choice, dict) or not set(SIZES) <= set(choice) <= {*SIZES, "every"}:
        raise ValueError("not a choice of kernels")
    if not set(choice.values()) <= {PYTORCH, ONEDNN}:
        raise ValueError("an unknown library")
    return choice


def _remembered_or_measured() -> dict[str, str]:
    path, key = cache_file(), machine_key()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(
            path.with_suffix(".lock")
        ):  # two processes that start together do not measure beside each other
            known = _read_cache(path)
            if key not in known:
                known[key] = measure()
                write_json(path, known)
            return known[key]
    except (OSError, RuntimeError):  # no home, read-only, a full disk, a file system without locks
        return measure()


def _read_cache(path: Path) -> dict[str, dict[str, str]]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return {key: _checked(choice) for key, choice in known.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


@contextmanager
def _locked(path: Path):
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_file() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "fgrlhf" / "kernels.json"


def machine_key() -> str:
    """What a measurement holds for."""
    return f"{processor_name()}, torch {torch.__version__}, threads {torch.get_num_threads()}"


def processor_name() -> str:
    """The processor's model, as the system names it."""
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
    """The faster library by class of size: oneDNN where it is at least `MARGIN` times as fast.

    Args:
      seconds: (library, (M, K, N)) -> seconds of that product; timed here by default.
    """
    seconds = seconds or _seconds
    result = {}
    for name, (_, shape) in SIZES.items():
        ratio = seconds(PYTORCH, shape) / seconds(ONEDNN, shape)
        result[name] = ONEDNN if ratio >= MARGIN else PYTORCH
    return result


@torch.no_grad()
def _seconds(library: str, shape: tuple[int, int, int]) -> float:
    """The shortest of `REPEATS` times, which is the least disturbed by other processes. The first
    product is not counted.
    """
    M, K, N = shape
    x, weight_NK, bias_N = torch.ones(M, K), torch.ones(N, K), torch.ones(N)
    multiply = onednn_product if library == ONEDNN else torch.nn.functional.linear
    multiply(x, weight_NK, bias_N)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        multiply(x, weight_NK, bias_N)
        times.append(time.perf_counter() - start)
    return min(times)


def _several_processes() -> bool:
    """Whether the ranks can exchange what is on a CPU. Ranks of GPUs multiply there, and need no
    choice.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    return distributed.get_world_size() > 1 and "gloo" in distributed.get_backend()

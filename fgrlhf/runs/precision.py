"""The precision of forward passes, where `model.dtype: auto` leaves it to the machine.

bf16 is chosen where the device has instructions for it and multiplies faster with them: the product
of some tokens with a layer of the model's own size must take at most 1 / `MARGIN` of its time in
fp32, the cast of the tokens included. Models narrower than `NARROWEST` stay in fp32, because their
time goes into other operations.

bf16 rounds differently, so the choice is kept like that of the matrix library (kernels/choice.py):

- In a run, run.json holds it, and a resumed run reads it from there, on any machine.
- On a machine, $XDG_CACHE_HOME/fgrlhf/dtypes.json (~/.cache) holds the measured ratio, so that runs
  that will be compared choose alike.
- With several processes, every rank uses the choice of rank 0.
"""

import json
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PretrainedConfig

from fgrlhf.configs.sections import Dtype, ModelConfig
from fgrlhf.kernels import choice
from fgrlhf.models.loading import load_config
from fgrlhf.runs.runlog import say

MARGIN = 1.3  # lowest speed of bf16 relative to fp32 at which bf16 is chosen
NARROWEST = 256  # width of hidden states below which nothing is measured
MOST_ROWS = 256  # tokens of the measured product
MOST_WORK = 2**28  # multiplications of the measured product, at a few billion per second and core
INNER_WIDTHS = ("intermediate_size", "d_ff", "ffn_dim", "decoder_ffn_dim", "n_inner")


def dtype_of_run(model: ModelConfig, folder: str | Path) -> Dtype:
    """`model.dtype`; `auto` is decided here, with a line for the user. Call it on all ranks.

    Args:
      folder: of a run that may be resumed, whose choice is kept.
    """
    if model.dtype != "auto":
        return model.dtype
    state = PartialState(cpu=not torch.accelerator.is_available())
    decided: list[Any] = [None]
    if state.is_main_process:
        decided = [_decide(model, Path(folder), cast(torch.device, state.device))]
    if state.num_processes > 1:
        broadcast_object_list(decided)
    dtype, reason = decided[0]
    say(f"model.dtype=auto: {dtype}, {reason}")
    return dtype


def with_dtype(model: ModelConfig, dtype: Dtype) -> ModelConfig:
    """The section with a decided dtype, for code that reads it."""
    return model.model_copy(update={"dtype": dtype})


def _decide(model: ModelConfig, folder: Path, device: torch.device) -> tuple[Dtype, str]:
    """The dtype, and the reason in the words of a line for the user."""
    recorded = _recorded(folder / "run.json")
    if recorded is not None:
        emulated = recorded == "bf16" and not _has_bf16(device)
        more = ", although this processor has no instructions for it" if emulated else ""
        return recorded, f"with which this run began{more}"
    if not _has_bf16(device):
        return "fp32", "since this processor has no instructions for bf16"
    widths = _widths(model.ckpt)
    if widths is None or min(widths) < NARROWEST:
        return "fp32", f"as for all models narrower than {NARROWEST}"
    K, N = widths
    path = choice.cache_file("dtypes.json")
    key = f"{_device_key(device)}, {K} x {N}"
    ratio = choice.remembered_or_measured(path, key, _checked, lambda: measure(K, N, device))
    reason = f"which multiplies {ratio:.1f} times as fast as fp32 here"
    if ratio >= MARGIN:
        return "bf16", reason
    return "fp32", f"since bf16 multiplies only {ratio:.1f} times as fast here"


def _recorded(path: Path) -> Dtype | None:
    """The dtype in a run.json, or None if it holds no valid one."""
    try:
        dtype = json.loads(path.read_text(encoding="utf-8"))["dtype"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return dtype if dtype in ("fp32", "bf16") else None


def _has_bf16(device: torch.device) -> bool:
    """Whether the device may have instructions for products in bf16."""
    if device.type == "cpu":
        return not choice.lacks_bf16()
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return False


def _widths(ckpt: str) -> tuple[int, int] | None:
    """(K, N): width of the hidden states and of the layers' inside; None if they are not known."""
    try:
        config: PretrainedConfig = load_config(ckpt).get_text_config(decoder=True)
    except (OSError, ValueError):
        return None  # loading the model explains it
    width = getattr(config, "hidden_size", None)
    if not isinstance(width, int):
        return None
    inner = [getattr(config, name, None) for name in INNER_WIDTHS]
    return width, next((n for n in inner if isinstance(n, int)), 4 * width)


def _device_key(device: torch.device) -> str:
    """The conditions under which a measurement is valid, but for the layer's size."""
    if device.type == "cpu":
        return choice.machine_key()
    return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"


def _checked(ratio: Any) -> float:
    if not isinstance(ratio, float) or not ratio > 0:
        raise ValueError("a measurement is a ratio of two times")
    return ratio


@torch.no_grad()
def measure(K: int, N: int, device: torch.device) -> float:
    """Seconds in fp32 divided by seconds in bf16 of a product of tokens (M, K) with a layer (N, K).

    In fp32 the faster of the two matrix libraries counts. In bf16 the tokens are cast, as autocast
    does it; weights are cast once per update (kernels/copies.py).
    """
    M = max(16, min(MOST_ROWS, MOST_WORK // (K * N)))
    x_MK = torch.ones(M, K, device=device)
    weight_NK = torch.ones(N, K, device=device)
    half_NK = weight_NK.bfloat16()

    def seconds(compute) -> float:
        def finished() -> None:
            compute()
            if device.type != "cpu":
                torch.accelerator.synchronize()

        return choice.best_seconds(finished)

    in_fp32 = [seconds(lambda: torch.nn.functional.linear(x_MK, weight_NK))]
    if device.type == "cpu" and choice.onednn_available():
        in_fp32.append(seconds(lambda: choice.onednn_linear(x_MK, weight_NK, None)))
    in_bf16 = seconds(lambda: torch.nn.functional.linear(x_MK.bfloat16(), half_NK))
    return min(in_fp32) / in_bf16

"""Decoding steps that a GPU repeats from a recording: CUDA graphs.

A decoding step consists of a thousand short computations. Launching them from Python takes several
times as long as a GPU needs to run them. A CUDA graph launches all of them with one call. It reads
and writes the same memory every time, so a recorded step must not change from token to token:

- Keys and values have room for all tokens from the start. A mask hides those not written yet.
- The number of tokens so far is a tensor on the GPU, and the step itself increases it.
- Responses that have ended stay in the batch.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from fgrlhf.base.errors import UserError
from fgrlhf.kernels.choice import kernels_off
from fgrlhf.models.quantized import QuantizedLinear
from fgrlhf.models.sharding import is_sharded

Step = Callable[[Tensor], Tensor]

# operations whose result, or its shape, the CPU has to know
WAITING = frozenset(
    {"_local_scalar_dense", "equal", "masked_select", "nonzero", "repeat_interleave", "bincount"}
    | {"unique_consecutive", "_unique2", "unique_dim"}
    # experts: in fp32, and on most GPUs, the number of tokens of each expert goes to the CPU
    | {"_grouped_mm", "transformers::grouped_mm_fallback"}
)
ALIGNMENT = 8  # masks whose rows have a multiple of 8 columns need no copy in PyTorch's attention
# name of a model's attribute, which copies of the model have too, such as the mask of NLPO
UNRECORDABLE = "_fgrlhf_unrecordable"


def can_record(model: PreTrainedModel) -> bool:
    """Whether this model's decoding steps are recorded.

    It must be on a GPU, and not sharded or quantised: such layers communicate or call other
    libraries. `never_record` excludes it. With `model.kernels: off` nothing is recorded.
    """
    if next(model.parameters()).device.type != "cuda" or kernels_off() or is_sharded(model):
        return False
    if getattr(model, UNRECORDABLE, False):
        return False
    return not any(isinstance(module, QuantizedLinear) for module in model.modules())


def never_record(model: PreTrainedModel) -> None:
    """Compute the decoding steps of this model, and of later copies of it, as usual from now on."""
    setattr(model, UNRECORDABLE, True)


def room_for(tokens: int) -> int:
    """The number of tokens for which a cache has room."""
    return -(-tokens // ALIGNMENT) * ALIGNMENT


def all_or_none(live_B: Tensor) -> Tensor:
    """`Steps.keepable` of recorded steps: all rows as long as one of them is live."""
    rows = torch.arange(len(live_B), device=live_B.device)
    return rows if bool(live_B.any()) else rows[:0]


class Recording:
    """Computes a decoding step ids_B -> hidden_BD, from its second call on as a CUDA graph.

    The first call computes as usual, which lets libraries make their preparations, and shows
    whether the step can be recorded. If not, the steps of this batch are computed one by one, and
    later batches of the model are not recorded.
    """

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self.is_possible: bool | None = None  # None: not known yet
        self.replayed: Step | None = None

    def __call__(self, step: Step, ids_B: Tensor) -> Tensor:
        """The result of the step. The next call overwrites it.

        Args:
          step: always the same. What changes from token to token are tensors, changed in place.

        Raises:
          UserError: it cannot be recorded, for a reason that the first call did not show.
        """
        if self.is_possible is None:
            return self._first(step, ids_B)
        if not self.is_possible:
            return step(ids_B)
        if self.replayed is None:
            self.replayed = captured_step(step, ids_B)
        return self.replayed(ids_B)

    def _first(self, step: Step, ids_B: Tensor) -> Tensor:
        with WaitDetector() as detector:
            hidden_BD = step(ids_B)
        self.is_possible = detector.waiting_operation is None
        if not self.is_possible:
            never_record(self.model)
            warnings.warn(
                "the decoding steps of this model wait for the GPU (in"
                f" {detector.waiting_operation}), so they cannot be recorded and sampling is"
                " slower",
                stacklevel=1,
            )
        return hidden_BD


class WaitDetector(TorchDispatchMode):
    """Finds the operations of a step after which the CPU waits for a GPU.

    Attributes:
      waiting_operation: the name of the first one; None: there was none.
    """

    waiting_operation: str | None = None

    def __torch_dispatch__(self, operation: Any, types, args=(), kwargs=None) -> Any:
        result = operation(*args, **(kwargs or {}))
        name = operation._schema.name.removeprefix("aten::")
        if self.waiting_operation is None and (
            name in WAITING or _crosses_devices(name, args, result) or _reads_positions(name, args)
        ):
            self.waiting_operation = name
        return result


def _crosses_devices(name: str, args: Sequence[Any], result: Any) -> bool:
    """Whether an operation copies a tensor to another kind of device."""
    if name == "lift_fresh":  # torch.tensor copies a number from Python
        return result.device.type != "cpu"
    if name == "_to_copy":
        return args[0].device.type != result.device.type
    return name == "copy_" and args[0].device.type != args[1].device.type


def _reads_positions(name: str, args: Sequence[Any]) -> bool:
    """Whether an operation selects by a mask, or by positions on another kind of device."""
    if name not in ("index", "index_put", "index_put_"):
        return False
    indices = [index for index in args[1] if index is not None]
    if any(index.device.type != args[0].device.type for index in indices):
        return True
    if name != "index" and args[2].numel() == 1 and args[2].device.type == "cpu":
        return False  # x[mask] = 0 needs no positions
    return any(index.dtype == torch.bool for index in indices)


def captured_step(step: Step, ids_B: Tensor) -> Step:
    """The same step as a CUDA graph, which always writes its result into the same memory.

    It refers to nothing but the graph, so the memory is freed with it.

    Args:
      ids_B: of the right shape; the step is not computed.

    Raises:
      UserError: see `capture`.
    """
    read_B = ids_B.clone()
    results: list[Tensor] = []
    replay = capture(lambda: results.append(step(read_B)), read_B.device)

    def replayed(ids_B: Tensor) -> Tensor:
        read_B.copy_(ids_B)
        replay()
        return results[0]

    return replayed


def capture(run: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Record what `run` starts on the GPU, without computing it; a function that computes it.

    Raises:
      UserError: CUDA refuses something that `run` does.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with (
            torch.cuda.device(device),
            # other threads may use the GPU meanwhile
            torch.cuda.graph(
                graph, stream=_capture_stream(device), capture_error_mode="thread_local"
            ),
        ):
            run()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # Do not go on without recording: a failed capture can leave PyTorch's random generators
        # unusable. Ending it raises a second error, so the cause is in `__context__`.
        reason = str(error.__context__ or error).strip().splitlines()[0]
        raise UserError(
            f"the decoding steps of this model cannot be recorded as a CUDA graph ({reason}): set"
            " the environment variable FGRLHF_KERNELS to off, with which sampling is slower"
        ) from error
    return graph.replay


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream per GPU, because each has a workspace for matrix products."""
    return torch.cuda.Stream(device)

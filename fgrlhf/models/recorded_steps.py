"""Decoding steps that a GPU repeats from a recording: CUDA graphs.

A decoding step consists of a thousand short computations. On a GPU, starting them from Python takes
several times as long as computing them. A CUDA graph starts all of them with one call. It reads and
writes the same memory every time, so a recorded step must not change from token to token:

- Keys and values have room for all tokens from the start. A mask hides those not written yet.
- The number of tokens so far is a tensor on the GPU, and the step itself increases it.
- Responses that have ended stay in the batch.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from fgrlhf.errors import UserError
from fgrlhf.kernels.choice import kernels_off
from fgrlhf.models.quantized import QuantizedLinear
from fgrlhf.models.sharding import is_sharded

Step = Callable[[Tensor], Tensor]

# operations whose result, or its shape, the CPU has to know
WAITING = frozenset(
    {"_local_scalar_dense", "equal", "masked_select", "nonzero", "repeat_interleave"}
    | {"unique_consecutive", "_unique2", "unique_dim"}
)
ALIGNMENT = 8  # masks whose rows have a multiple of 8 columns need no copy in PyTorch's attention


def can_record(model: PreTrainedModel) -> bool:
    """Whether this model's decoding steps are recorded: it is on a GPU, and its layers are plain.

    Sharded and quantised layers do more in a step than compute, and `model.kernels: off` leaves
    decoding to transformers.
    """
    if next(model.parameters()).device.type != "cuda" or kernels_off() or is_sharded(model):
        return False
    return not any(isinstance(module, QuantizedLinear) for module in model.modules())


def room_for(tokens: int) -> int:
    """The number of tokens for which a cache has room."""
    return -(-tokens // ALIGNMENT) * ALIGNMENT


def all_or_none(live_B: Tensor) -> Tensor:
    """`Steps.keepable` of recorded steps: all rows as long as one of them is live."""
    rows = torch.arange(len(live_B), device=live_B.device)
    return rows if bool(live_B.any()) else rows[:0]


class Recording:
    """Computes a decoding step ids_B -> hidden_BD, from its second call on as a recording.

    The first call computes as usual, which lets libraries make their preparations, and shows
    whether the step can be recorded. If not, it is computed as usual every time.
    """

    def __init__(self):
        self.is_possible: bool | None = None  # None: not known yet
        self.recorded: Step | None = None

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
        if self.recorded is None:
            self.recorded = recorded(step, ids_B)
        return self.recorded(ids_B)

    def _first(self, step: Step, ids_B: Tensor) -> Tensor:
        with Watch() as watch:
            hidden_BD = step(ids_B)
        self.is_possible = watch.waits_in is None
        if not self.is_possible:
            warnings.warn(
                f"the decoding steps of this model wait for the GPU (in {watch.waits_in}), so"
                " they cannot be recorded and sampling is slower",
                stacklevel=2,
            )
        return hidden_BD


class Watch(TorchDispatchMode):
    """Looks for operations after which the CPU waits for a GPU.

    Attributes:
      waits_in: the name of the first one; None: there was none.
    """

    waits_in: str | None = None

    def __torch_dispatch__(self, operation: Any, types, args=(), kwargs=None) -> Any:
        result = operation(*args, **(kwargs or {}))
        name = operation._schema.name.removeprefix("aten::")
        if self.waits_in is None and (
            name in WAITING or _crosses_devices(name, args, result) or _reads_mask(name, args)
        ):
            self.waits_in = name
        return result


def _crosses_devices(name: str, args: Sequence[Any], result: Any) -> bool:
    """Whether an operation copies a tensor to another kind of device."""
    if name == "lift_fresh":  # torch.tensor copies a number from Python
        return result.device.type != "cpu"
    if name == "_to_copy":
        return args[0].device.type != result.device.type
    return name == "copy_" and args[0].device.type != args[1].device.type


def _reads_mask(name: str, args: Sequence[Any]) -> bool:
    """Whether an operation selects what a mask shows, such as x[mask] or x[mask] = y."""
    if name not in ("index", "index_put", "index_put_"):
        return False
    if name != "index" and args[2].numel() == 1:  # x[mask] = 0 needs no positions
        return False
    return any(index is not None and index.dtype == torch.bool for index in args[1])


def recorded(step: Step, ids_B: Tensor) -> Step:
    """The same step, which always writes its result into the same memory.

    It refers to nothing but the recording, so the memory is freed with it.

    Args:
      ids_B: of the right shape; the step is not computed.
    """
    read_B = ids_B.clone()
    results: list[Tensor] = []
    replay = record(lambda: results.append(step(read_B)))

    def replayed(ids_B: Tensor) -> Tensor:
        read_B.copy_(ids_B)
        replay()
        return results[-1]

    return replayed


def record(run: Callable[[], None]) -> Callable[[], None]:
    """Record what `run` starts on the GPU, without computing it; a function that computes it.

    Raises:
      UserError: CUDA refuses something that `run` does.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        # other threads may use the GPU meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
    except RuntimeError as error:
        # not computed as usual instead: a refused recording can leave the random generators of
        # PyTorch unusable
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"the decoding steps of this model cannot be recorded as a CUDA graph ({reason}): set"
            " model.kernels to off, with which sampling is slower"
        ) from error
    return graph.replay

"""Decoding steps that a GPU repeats from a recording: CUDA graphs.

A decoding step consists of a thousand short computations. On a GPU, starting them from Python takes
several times as long as computing them. A CUDA graph starts all of them with one call. It reads and
writes the same memory every time, so a recorded step must not change from token to token:

- Keys and values have room for all tokens from the start. A mask hides those not written yet.
- The number of tokens so far is a tensor on the GPU, and the step itself increases it.
- Responses that have ended stay in the batch.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fgrlhf.kernels.choice import kernels_off
from fgrlhf.models.quantized import QuantizedLinear
from fgrlhf.models.sharding import is_sharded

Step = Callable[[Tensor], Tensor]

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
    """Records a decoding step ids_B -> hidden_BD when it is called the second time.

    The first call computes as usual, which lets libraries make their preparations. A step that
    cannot be recorded, because what it computes depends on the values in a tensor, is computed as
    usual every time.
    """

    def __init__(self):
        self.was_called = False
        self.is_possible = True
        self.recorded: Step | None = None

    def __call__(self, step: Step, ids_B: Tensor) -> Tensor:
        """The result of the step. The next call overwrites it.

        Args:
          step: always the same. What changes from token to token are tensors, changed in place.
        """
        if self.was_called and self.is_possible and self.recorded is None:
            try:
                self.recorded = recorded(step, ids_B)
            except RuntimeError as error:
                self.is_possible = False
                reason = str(error).strip().splitlines()[0]
                warnings.warn(
                    f"the decoding steps of this model cannot be recorded, so sampling is slower:"
                    f" {reason}",
                    stacklevel=2,
                )
        self.was_called = True
        return step(ids_B) if self.recorded is None else self.recorded(ids_B)


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
      RuntimeError: `run` waits for the GPU, or copies from or to the CPU.
    """
    graph = torch.cuda.CUDAGraph()
    # other threads may use the GPU meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph.replay

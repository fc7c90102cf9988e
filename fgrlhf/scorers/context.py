"""Where scorers and rewards compute, and what they read before a response."""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.strict import StrictModel

if TYPE_CHECKING:
    from fgrlhf.reward_models.prefix import PrefixFn


@dataclass(frozen=True)
class RewardContext:
    """The arguments with which a kind builds its reward.

    Args:
      prefix: the words that a reward model reads before a response.
      device: of reward models, such as "cpu" or "cuda:0".
      dtype: of their forward passes, "fp32" or "bf16".
    """

    prefix: "PrefixFn"
    device: str = "cpu"
    dtype: str = "fp32"


def _device(value: str) -> str:
    if not re.fullmatch(r"cpu|mps|cuda(:\d{1,4})?", value):
        raise ValueError(
            f"{shorten(repr(value), 40)} is no device: write cpu, cuda or, with the number of a GPU"
            " from 0 on, cuda:1"
        )
    return value


class OnDevice(StrictModel):
    """Base class of sections whose model may be on another device than the policy.

    Scores are numbers in Python, so nothing else depends on the device.
    """

    may_change = ("device",)

    device: Annotated[str, AfterValidator(_device)] | None = Field(
        default=None, description="of this model, such as cuda:1; null: the policy's"
    )

    def placed(self, context: RewardContext) -> RewardContext:
        """The context with the device of this section.

        Raises:
          UserError: this machine does not have the device.
        """
        if self.device is None:
            return context
        _check_device(self.device)
        return replace(context, device=self.device)


def _check_device(name: str) -> None:
    """Raise `UserError` if this machine does not have the device."""
    import torch  # a config is read without it

    backend, _, number = name.partition(":")
    available = ["cpu"]
    available += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        available.append("mps")
    wanted = f"cuda:{int(number or 0)}" if backend == "cuda" else backend
    if wanted not in available:
        raise UserError(
            f"device is {name}, but this process sees {', '.join(available)}: choose one of them"
            " (CUDA_VISIBLE_DEVICES may hide others), or leave device out to use the policy's"
        )

"""The base class of reward kinds, and classes named in a config, without heavy imports."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.base.working_folder import import_module
from fgrlhf.configs.strict import Amount, StrictModel

if TYPE_CHECKING:
    from fgrlhf.reward import AspectReward
    from fgrlhf.reward_models.prefix import PrefixFn
    from fgrlhf.text_types import Prompt, SegmentScore


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


class RewardKind(StrictModel):
    """Base class of all kinds. A subclass declares `kind: Literal[...]` and its own keys."""

    kind: str
    weight: Amount = Field(
        default=1.0,
        description="factor of the reward; below 0: a penalty; 0 disables the reward",
    )
    place: Literal["segment", "end"] = Field(
        default="segment", description="end: the sum of all values on the last token"
    )

    def build(self, context: RewardContext) -> "AspectReward":
        """Build the reward and load its models."""
        raise NotImplementedError(f"the reward kind {type(self).__name__} needs a method `build`")

    def model_folders(self) -> tuple[str, ...]:
        """Folders and hub names of models that the reward uses; stages record their digests."""
        return ()


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


class RuleReward(RewardKind):
    """Base class of kinds that need no model: a rule scores each response by itself.

    A subclass declares its keys and writes `score`; the config is the reward.
    """

    def score(self, prompt: "Prompt", text: str) -> "list[SegmentScore] | None":
        """The values of a response's segments, or None where the reward does not apply."""
        raise NotImplementedError(f"the reward kind {type(self).__name__} needs a method `score`")

    def segment_scores(
        self, prompts: "Sequence[Prompt]", texts: Sequence[str]
    ) -> "list[list[SegmentScore] | None]":
        return [self.score(prompt, text) for prompt, text in zip(prompts, texts)]

    def build(self, context: RewardContext) -> "AspectReward":
        return self


def kind_of(section: Any) -> str | None:
    """The key `kind` of a section, by which a union of kinds selects its class."""
    if isinstance(section, dict):
        kind = section.get("kind")
        return kind if isinstance(kind, str) else None
    return getattr(section, "kind", None)


# ---- classes named in a config -------------------------------------------------------------------


def _class_path(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", value):
        raise ValueError(
            f"{shorten(repr(value), 80)} names no class: write its module and its name with dots"
            " between them, as in my_package.rewards.Politeness"
        )
    return value


ClassPath = Annotated[str, AfterValidator(_class_path)]


def make_object(role: str, path: str, arguments: Mapping[str, Any], method: str) -> Any:
    """An object of the class at the import path `path`.

    Args:
      role: what the object is for, such as "reward", for messages.
      arguments: keyword arguments of the class.
      method: a method that the object must have, with its arguments: "score(prompts, texts)".
    Raises:
      UserError: the class cannot be imported, or does not accept the arguments, or its objects lack
        the method.
    """
    module_name, _, class_name = path.rpartition(".")
    try:
        module = import_module(module_name)
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name is not None
        if is_missing and f"{module_name}.".startswith(f"{error.name}."):
            way_out = "Run from the folder that contains its package, or add it to PYTHONPATH"
        else:
            way_out = f"Install what `{module_name}` imports, or correct its imports"
        raise UserError(
            f"the {role} `{path}` cannot be imported: {shorten(error)}. {way_out}"
        ) from None
    object_class = getattr(module, class_name, None)
    if object_class is None:
        package = module_name.partition(".")[0]
        classes = []
        for name, value in vars(module).items():
            # not those that it imports from other packages
            if isinstance(value, type) and value.__module__.partition(".")[0] == package:
                classes.append(name)
        raise UserError(
            f"the {role} `{path}` cannot be imported: `{module_name}` has no `{class_name}`;"
            f" {suggestion(class_name, classes)}"
        )
    signature = inspect.signature(object_class)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"the {role} `{path}` does not accept these `args`: {error}. It takes {signature}"
        ) from None
    made = object_class(**arguments)
    if not callable(getattr(made, method.partition("(")[0], None)):
        raise UserError(f"`{path}` is not a {role}: it has no method {method}")
    return made

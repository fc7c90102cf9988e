"""What a scorer of texts is, and where scorers and rewards compute.

A scorer's `score(prompts, texts)` gives each text a number.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from pydantic import AfterValidator, Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.strict import StrictModel

if TYPE_CHECKING:
    from fgrlhf.reward_models.prefix import PrefixFn
    from fgrlhf.text_types import Prompt


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
        check_device(self.device)
        return replace(context, device=self.device)


def check_device(name: str) -> None:
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


class TextScorer(Protocol):
    """Gives texts numbers. To add your own, write a class with this method."""

    def score(self, prompts: "Sequence[Prompt]", texts: Sequence[str]) -> Sequence[float]:
        """One number for each text, which responds to the prompt with the same index.

        A text may be empty.
        """
        ...


class TextScorerKind(StrictModel):
    """Base class of the kinds of text scorers. A subclass declares `kind: Literal[...]`."""

    needs_references: ClassVar[bool] = False  # the metric is null for prompts without references

    kind: str

    def build(self, context: RewardContext) -> TextScorer:
        """Build the scorer and load its model."""
        raise NotImplementedError(f"the scorer kind {type(self).__name__} needs a method `build`")

    def model_folders(self) -> tuple[str, ...]:
        """Folders and hub names of models that the scorer uses; stages record their digests."""
        return ()


def score_texts(
    scorer: TextScorer, prompts: "Sequence[Prompt]", texts: Sequence[str]
) -> list[float]:
    """The score of each text. Equal texts of one prompt are scored once, all texts in one call.

    Raises:
      UserError: the scorer does not return one finite number per text.
    """
    # prompts of different files may have the same id
    keys = [(prompt.id, prompt.text, text) for prompt, text in zip(prompts, texts, strict=True)]
    first_place: dict[tuple[str, str, str], int] = {}
    different_prompts = []
    different_texts = []
    for key, prompt, text in zip(keys, prompts, texts):
        if key not in first_place:
            first_place[key] = len(different_texts)
            different_prompts.append(prompt)
            different_texts.append(text)
    if not different_texts:
        return []
    scores = _checked_scores(scorer, different_prompts, different_texts)
    return [scores[first_place[key]] for key in keys]


def _checked_scores(
    scorer: TextScorer, prompts: "Sequence[Prompt]", texts: Sequence[str]
) -> list[float]:
    """The scores of the texts. Raises `UserError` if they are not one finite number for each."""
    return checked_numbers(type(scorer).__name__, "score", scorer.score(prompts, texts), texts)


def checked_numbers(name: str, method: str, returned: Any, texts: Sequence[str]) -> list[float]:
    """What the method of a scorer returned for texts.

    Raises:
      UserError: it is not one finite number for each.
    """
    try:
        scores = [float(score) for score in returned]
    except (TypeError, ValueError, RuntimeError):  # the last if a tensor holds several numbers
        raise UserError(
            f"the scorer {name} returned {shorten(repr(returned), 80)} for {len(texts)} texts:"
            f" `{method}` must return a list of numbers, one for each text"
        ) from None
    if len(scores) != len(texts):
        raise UserError(
            f"the scorer {name} returned {len(scores)} scores for {len(texts)} texts: `{method}`"
            " must return one number for each text"
        )
    for score, text in zip(scores, texts):
        if not math.isfinite(score):
            raise UserError(
                f"the scorer {name} gave {score} to the text {text[:60]!r}: a finite number is"
                " needed. Check its weights, or what it computes"
            )
    return scores

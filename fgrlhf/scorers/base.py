"""What a scorer of texts is: `score(prompts, texts)` gives each text a number."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.strict import StrictModel
from fgrlhf.scorers.context import RewardContext

if TYPE_CHECKING:
    from fgrlhf.text_types import Prompt


class TextScorer(Protocol):
    """Gives texts numbers. To add your own, write a class with this method."""

    def score(self, prompts: "Sequence[Prompt]", texts: Sequence[str]) -> Sequence[float]:
        """One number for each text, which responds to the prompt with the same index.

        A text may be empty.
        """
        ...


class TextScorerKind(StrictModel):
    """Base class of the kinds of text scorers. A subclass declares `kind: Literal[...]`."""

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
    name = type(scorer).__name__
    returned: Any = scorer.score(prompts, texts)
    try:
        scores = [float(score) for score in returned]
    except (TypeError, ValueError, RuntimeError):  # the last if a tensor holds several numbers
        raise UserError(
            f"the scorer {name} returned {shorten(repr(returned), 80)} for {len(texts)} texts:"
            " `score` must return a list of numbers, one for each text"
        ) from None
    if len(scores) != len(texts):
        raise UserError(
            f"the scorer {name} returned {len(scores)} scores for {len(texts)} texts: `score` must"
            " return one number for each text"
        )
    for score, text in zip(scores, texts):
        if not math.isfinite(score):
            raise UserError(
                f"the scorer {name} gave {score} to the text {text[:60]!r}: a finite number is"
                " needed. Check its weights, or what it computes"
            )
    return scores

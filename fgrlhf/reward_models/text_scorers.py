"""Scorers of texts: the section `scorer:` of a reward or a metric in YAML.

    scorer: {kind: linear, ckpt: outputs/scorer}
    scorer: {kind: classifier, ckpt: some/classifier, label: polite}

A text scorer gives each response, or the beginning of one, a number: `score(prompts, texts)`. The
reward `increment` turns it into a reward per segment, the metric `score` reports it.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import Discriminator, Field, Tag

from fgrlhf.config import Count, FilePath, StrictModel
from fgrlhf.errors import UserError
from fgrlhf.reward_models.kind import ClassPath, RewardContext, kind_of, make_object

if TYPE_CHECKING:
    from fgrlhf.types import Prompt


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


class ClassifierSettings(StrictModel):
    """Settings of a Hugging Face text classifier."""

    ckpt: FilePath = Field(description="folder or hub name of a sequence classifier")
    label: str = Field(min_length=1, description="name of the label, as in the model's id2label")
    score: Literal["probability", "log_odds"] = Field(
        default="probability", description="of the label"
    )
    with_prompt: bool = Field(default=False, description="the classifier reads prompt and response")
    batch_size: Count = Field(default=32, description="texts per forward pass")


class ClassifierScorer(ClassifierSettings, TextScorerKind):
    """Any Hugging Face text classifier: the probability or log-odds of one of its labels."""

    kind: Literal["classifier"] = "classifier"

    def build(self, context: RewardContext) -> TextScorer:
        from fgrlhf.reward_models.classifier import LabelScorer

        return LabelScorer.load(self, context.device, context.dtype)

    def model_folders(self) -> tuple[str, ...]:
        return (self.ckpt,)


class SequenceModelScorer(TextScorerKind):
    """A reward model of whole responses: (score - mean) / std."""

    kind: Literal["sequence_scorer"] = "sequence_scorer"
    ckpt: FilePath = Field(description="folder of the reward model, with reward_model.json")

    def build(self, context: RewardContext) -> TextScorer:
        from fgrlhf.reward_models.loading import load_sequence_scorer

        model = load_sequence_scorer(
            self.ckpt, context.prefix, device=context.device, dtype=context.dtype
        )
        return Standardized(model, model.mean, model.std)

    def model_folders(self) -> tuple[str, ...]:
        return (self.ckpt,)


class LinearScorerKind(TextScorerKind):
    """A linear model on TF-IDF features: the probability of its label. It reads no prompt."""

    kind: Literal["linear"] = "linear"
    ckpt: FilePath = Field(description="folder of the scorer, with linear_scorer.json")

    def build(self, context: RewardContext) -> TextScorer:
        from fgrlhf.reward_models.linear import LinearScorer

        return LinearScorer.load(self.ckpt)

    def model_folders(self) -> tuple[str, ...]:
        return (self.ckpt,)


class PythonScorer(TextScorerKind):
    """A class of your own with `score(prompts, texts)`."""

    kind: Literal["python"] = "python"
    of: ClassPath = Field(description="package.module.Class")
    args: dict[str, Any] = Field(default={}, description="keyword arguments of the class")

    def build(self, context: RewardContext) -> TextScorer:
        return make_object("scorer", self.of, self.args, "score(prompts, texts)")


AnyTextScorer = Annotated[
    Annotated[ClassifierScorer, Tag("classifier")]
    | Annotated[LinearScorerKind, Tag("linear")]
    | Annotated[PythonScorer, Tag("python")]
    | Annotated[SequenceModelScorer, Tag("sequence_scorer")],
    Discriminator(kind_of),
]


class Standardized:
    """(s - mean) / std of another scorer's score s."""

    def __init__(self, scorer: Any, mean: float, std: float):
        self.scorer = scorer
        self.mean = mean
        self.std = std

    def score(self, prompts: "Sequence[Prompt]", texts: Sequence[str]) -> list[float]:
        scores = self.scorer.score(prompts, texts).tolist()
        return [(score - self.mean) / self.std for score in scores]


def score_texts(
    scorer: TextScorer, prompts: "Sequence[Prompt]", texts: Sequence[str]
) -> list[float]:
    """The score of each text. Equal texts of one prompt are scored once, all texts in one call.

    Raises:
      UserError: the scorer does not return one finite number per text.
    """
    first_place: dict[tuple[str, str], int] = {}
    different_prompts = []
    different_texts = []
    for prompt, text in zip(prompts, texts, strict=True):
        if (prompt.id, text) not in first_place:
            first_place[prompt.id, text] = len(different_texts)
            different_prompts.append(prompt)
            different_texts.append(text)
    if not different_texts:
        return []
    scores = scorer.score(different_prompts, different_texts)
    _check_scores(scorer, scores, different_texts)
    return [float(scores[first_place[prompt.id, text]]) for prompt, text in zip(prompts, texts)]


def _check_scores(scorer: TextScorer, scores: Sequence[float], texts: Sequence[str]) -> None:
    """Raise `UserError` if `scores` is not one finite number for each text."""
    name = type(scorer).__name__
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

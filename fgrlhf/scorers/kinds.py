"""Scorers of texts: the section `scorer:` of a reward or a metric in YAML.

    scorer: {kind: linear, ckpt: outputs/scorer}
    scorer: {kind: classifier, ckpt: some/classifier, label: polite}
    scorer: {kind: python, of: my_package.scorers.Politeness}

A text scorer gives each response, or the beginning of one, a number: `score(prompts, texts)`. The
reward `increment` turns it into a reward per segment, the metric `score` reports it.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from fgrlhf.configs.strict import Amount, Count, FilePath, any_kind, refuse, unread_keys
from fgrlhf.configs.user_class import ClassPath, make_object
from fgrlhf.reward_utils import Level
from fgrlhf.scorers.base import OnDevice, RewardContext, TextScorer, TextScorerKind
from fgrlhf.scorers.service import Address, RemoteSettings

FORMS = (
    "chat: by its chat template; text_eos: prompt, response and end token; text: without the end"
    " token"
)
FORM_HELP = f"{FORMS}; null: chat if it has a template, else text_eos"


class ClassifierScorer(OnDevice, TextScorerKind):
    """Any Hugging Face text classifier: the probability or log-odds of one of its labels.

    With `over` it is a model of natural language inference: it reads each segment of a text after
    each premise, and the highest probability counts (`fgrlhf.scorers.nli`).
    """

    kind: Literal["classifier"] = "classifier"
    ckpt: FilePath = Field(description="folder or hub name of a sequence classifier")
    label: str | None = Field(
        default=None,
        min_length=1,
        description="name of the label, as in the model's id2label; null with over: `entailment`"
        " in any case",
    )
    score: Literal["probability", "log_odds"] = Field(
        default="probability", description="of the label"
    )
    reads: Literal["response", "pair", "chat", "text_eos", "text"] | None = Field(
        default=None,
        description=(
            "response: alone; pair: prompt and response, which a decoder-only model reads as one"
            f" conversation: {FORMS}; null: chat if it is decoder-only and has a chat template,"
            " else response"
        ),
    )
    batch_size: Count = Field(default=32, description="texts per forward pass")
    over: str | None = Field(
        default=None,
        min_length=1,
        description="what may entail a text, of a model that reads (premise, hypothesis): a key of"
        " the prompts' rows, `prompt` or `references`; `context` is that key or, without it, what"
        " the task marks as context; null: the model reads otherwise",
    )
    level: Level = Field(
        default="sentence", description="with over: of the segments, whose mean is the score"
    )

    @model_validator(mode="after")
    def _reads_pairs_or_texts(self):
        mistakes = []
        if self.over is None:
            mistakes = unread_keys(self, ["level"], "since over is null: set over, or leave it out")
            if self.label is None:
                mistakes.append(("label", "missing; name a label of the model's id2label"))
        else:
            way_out = "since the model reads each segment after what `over` names: leave it out"
            mistakes = unread_keys(self, ["score"], way_out)
            if self.reads == "response":
                mistakes.append(("reads", f"response is not read, {way_out}"))
            if self.level == "token":
                mistakes.append(("level", "token: the model reads texts; choose a coarser level"))
        refuse(mistakes)
        return self

    def build(self, context: RewardContext) -> TextScorer:
        context = self.placed(context)
        if self.over is not None:
            from fgrlhf.scorers.nli import Entailment

            return Entailment.load(self, context)
        from fgrlhf.scorers.classifier import LabelScorer

        return LabelScorer.load(self, context.device, context.dtype)

    def model_folders(self) -> tuple[str, ...]:
        return (self.ckpt,)


class BertScoreScorer(TextScorerKind):
    """BERTScore: how well a text's words match those of the best reference, in context."""

    needs_references: ClassVar[bool] = True

    kind: Literal["bertscore"] = "bertscore"
    ckpt: FilePath = Field(description="folder or hub name of an encoder")
    layer: Count = Field(description="whose hidden states are compared: docs/metrics.md")

    def build(self, context: RewardContext) -> TextScorer:
        from fgrlhf.scorers.bertscore import BertScore

        return BertScore.load(self, context)

    def model_folders(self) -> tuple[str, ...]:
        return (self.ckpt,)


class SequenceModelScorer(OnDevice, TextScorerKind):
    """A reward model of whole responses: (score - mean) / std."""

    kind: Literal["sequence_scorer"] = "sequence_scorer"
    ckpt: FilePath = Field(description="folder of the reward model, with reward_model.json")

    def build(self, context: RewardContext) -> TextScorer:
        from fgrlhf.reward_models.loading import load_sequence_scorer
        from fgrlhf.scorers.models import Standardized

        context = self.placed(context)
        model = load_sequence_scorer(
            self.ckpt, context.prefix, device=context.device, dtype=context.dtype
        )
        return Standardized(model, model.mean, model.std)

    def model_folders(self) -> tuple[str, ...]:
        return (self.ckpt,)


class SegmentModelScorer(OnDevice, TextScorerKind):
    """A segment reward model as a scorer of texts: how probable it is that there is no error.

    p_s is the probability that segment s has no error. A text without segments scores 1.
    """

    kind: Literal["segment_classifier"] = "segment_classifier"
    ckpt: FilePath = Field(description="folder of the reward model, with reward_model.json")
    aggregate: Literal["product", "min", "mean", "last"] = Field(
        default="product", description="of the probabilities that a segment has no error"
    )

    def build(self, context: RewardContext) -> TextScorer:
        from fgrlhf.reward_models.loading import load_segment_classifier
        from fgrlhf.scorers.models import AGGREGATES, WithoutError

        context = self.placed(context)
        model = load_segment_classifier(
            self.ckpt, context.prefix, device=context.device, dtype=context.dtype
        )
        return WithoutError(model, AGGREGATES[self.aggregate])

    def model_folders(self) -> tuple[str, ...]:
        from fgrlhf.reward_models.spec import segmenters_of  # loads torch

        return (self.ckpt, *segmenters_of(self.ckpt))


class LinearScorerKind(TextScorerKind):
    """A linear model on TF-IDF features: the probability of its label. It reads no prompt."""

    kind: Literal["linear"] = "linear"
    ckpt: FilePath = Field(description="folder of the scorer, with linear_scorer.json")

    def build(self, context: RewardContext) -> TextScorer:
        from fgrlhf.scorers.linear import LinearScorer

        return LinearScorer.load(self.ckpt)

    def model_folders(self) -> tuple[str, ...]:
        return (self.ckpt,)


class JudgeScorer(RemoteSettings, TextScorerKind):
    """A language model that scores texts, by an OpenAI-compatible interface."""

    may_change = (*RemoteSettings.may_change, "parallel")

    kind: Literal["judge"] = "judge"
    url: Address = Field(
        description="address before `/chat/completions`, such as https://api.example.com/v1"
    )
    model: str = Field(min_length=1, description="name of the language model at the service")
    criterion: str = Field(
        min_length=1, description="what the score means: `how polite the response is`"
    )
    score_range: list[Amount] = Field(
        default=[0.0, 10.0], min_length=2, max_length=2, description="lowest and highest score"
    )
    parallel: Annotated[int, Field(ge=1, le=256)] = Field(
        default=8, description="queries that wait for their answers at the same time"
    )
    max_tokens: Count = Field(default=512, description="most tokens of an answer")
    of: ClassPath | None = Field(
        default=None,
        description="a subclass of fgrlhf.scorers.judge.Judge that asks or reads"
        " otherwise, as package.module.Class; null: Judge itself",
    )

    @model_validator(mode="after")
    def _ordered_bounds(self):
        low, high = self.score_range
        if low >= high:
            refuse([("score_range", f"{high:g}, the highest score, is not above {low:g}")])
        return self

    def build(self, context: RewardContext) -> TextScorer:
        """The judge with these settings. Raises `UserError` if its token or class is missing."""
        from fgrlhf.scorers.judge import Judge  # loads torch

        if self.of is None:
            return Judge(self)
        return make_object("judge", self.of, {"settings": self}, "messages(prompt, text, segments)")


class PythonScorer(TextScorerKind):
    """A class of your own with `score(prompts, texts)`."""

    kind: Literal["python"] = "python"
    of: ClassPath = Field(description="package.module.Class")
    args: dict[str, Any] = Field(default={}, description="keyword arguments of the class")

    def build(self, context: RewardContext) -> TextScorer:
        return make_object("scorer", self.of, self.args, "score(prompts, texts)")


TEXT_SCORERS: tuple[type[TextScorerKind], ...] = (
    BertScoreScorer,
    ClassifierScorer,
    JudgeScorer,
    LinearScorerKind,
    PythonScorer,
    SegmentModelScorer,
    SequenceModelScorer,
)
if TYPE_CHECKING:
    AnyTextScorer = TextScorerKind
else:
    AnyTextScorer = any_kind(TEXT_SCORERS)

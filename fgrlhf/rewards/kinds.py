"""The library's reward kinds: values of `kind` in the section `reward:` in YAML.

A kind is a strict config class. It accepts only the keys it reads, has no default that makes a
reward zero, and builds an object with `segment_scores(prompts, texts)`:

    reward:
      facts:     {kind: segment_classifier, ckpt: ..., values: {error: -0.5, ok: 0.3}}
      brevity:   {kind: length, max_words: 60, value: -0.2}
      mine:      {kind: python, of: my_package.rewards.Politeness, args: {threshold: 0.7}}

A task adds its own kinds with `Task.rewards`; see docs/rewards.md.

`build` imports what a kind needs, so that a run imports only what its config names, and reading a
config imports no torch.
"""

import inspect
import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.strict import Amount, Count, FilePath, Positive, StrictModel, refuse
from fgrlhf.configs.user_class import ClassPath, import_object, make_object
from fgrlhf.metrics.config import MetricConfig, models_of
from fgrlhf.reward_models.spec import segmenters_of
from fgrlhf.reward_utils import (
    DIVIDED_LEVELS,
    MULTILINGUAL,
    PUBLISHED,
    SEGMENTER_HELP,
    Level,
    SegmenterName,
    segmenter_input,
)
from fgrlhf.rewards.kind import Reads, RewardKind, RuleReward, SegmentKind, Sha256, Value
from fgrlhf.scorers.base import OnDevice, RewardContext
from fgrlhf.scorers.kinds import FORM_HELP, AnyTextScorer, JudgeScorer
from fgrlhf.scorers.service import RemoteSettings, TokenPlace
from fgrlhf.text_types import ConversationForm, Prompt, SegmentScore, SegmentValue
from fgrlhf.words import word_spans

if TYPE_CHECKING:
    from fgrlhf.reward import AspectReward, SequenceScorerReward
    from fgrlhf.reward_models.scoring import SegmentScorer

READS_HELP = (
    "segment: each segment by itself; prefix: the response up to its end; its part of the score of"
    " the whole: increment, what it adds to the response so far; without, what the whole loses"
    " without it; shapley, what it adds on average over all orders (the last two to look at: for RL"
    " docs/rewards.md advises increment)"
)
NOT_DIVIDED = f"it is read with a level of {', '.join(DIVIDED_LEVELS)} only: leave it out"
Label = Annotated[str, Field(min_length=1)]


class DividesText(SegmentKind):
    """The key `segmenter` of kinds with a `level`."""

    segmenter: SegmenterName = Field(
        default=MULTILINGUAL,
        description=f"of the levels {', '.join(DIVIDED_LEVELS)}: {SEGMENTER_HELP}",
    )

    @model_validator(mode="after")
    def _segmenter_is_read(self):
        level = getattr(self, "level", None)
        if self.segmenter != MULTILINGUAL and level not in DIVIDED_LEVELS:
            refuse([("segmenter", NOT_DIVIDED)])
        return self

    def segmenters(self) -> tuple[str, ...]:
        """The segmenter as an input of a run; () if the level needs none."""
        level = getattr(self, "level", None)
        return (segmenter_input(self.segmenter),) if level in DIVIDED_LEVELS else ()

    def model_folders(self) -> tuple[str, ...]:
        return self.segmenters()


class EnsembleConfig(StrictModel):
    """The section `ensemble` of a reward model: it is one of several, or has several heads."""

    members: list[FilePath] = Field(
        default=[],
        description="folders of the further reward models; []: the heads of ckpt alone, if it was"
        " trained with model.members",
    )
    kappa: Annotated[Amount, Field(ge=0)] = Field(
        default=0.0, description="standard deviations that are subtracted from the mean"
    )


class RewardModelKind(OnDevice, RewardKind):
    """A reward model. One without reward_model.json is described by the kind or by the config."""

    ckpt: FilePath = Field(description="folder of the reward model")
    ensemble: EnsembleConfig | None = Field(
        default=None, description="further reward models or heads, whose mean is the reward"
    )

    @property
    def folders(self) -> list[str]:
        """The folders of its reward models."""
        return [self.ckpt, *(self.ensemble.members if self.ensemble else ())]

    @model_validator(mode="after")
    def _members_differ(self):
        if len(set(self.folders)) < len(self.folders):
            reason = "a folder is given twice, and a model agrees with itself"
            refuse([("ensemble.members", reason)])
        return self

    def build(self, context: RewardContext) -> "AspectReward":
        if self.ensemble is None:
            return self.build_member(self.ckpt, context)
        from fgrlhf.rewards.scored import EnsembleReward, heads_of

        members = [self.build_member(folder, context) for folder in self.folders]
        if sum(map(heads_of, members)) == 1:
            raise UserError(
                f"ensemble: {shorten(self.ckpt)} is a single reward model with one head, which"
                " agrees with itself: name others in ensemble.members, or train it with"
                " model.members=4"
            )
        return EnsembleReward(members, self.ensemble.kappa)

    def build_member(self, ckpt: str, context: RewardContext) -> "AspectReward":
        """Build the reward of one reward model, and load it."""
        raise NotImplementedError(
            f"the reward kind {type(self).__name__} needs a method `build_member`"
        )

    @property
    def published(self) -> dict[str, Any]:
        """What the kind says of it."""
        return {}

    def facts(self) -> dict[str, Any]:
        """What the config says of it."""
        return {}

    def model_folders(self) -> tuple[str, ...]:
        return tuple(self.folders)


class SegmentModel(RewardModelKind, SegmentKind):
    """The reward model of rewards that label every segment."""

    value: SegmentValue = Field(
        default="hard",
        description=(
            "hard: the value of a segment's most probable label; expected: the mean of the labels'"
            " values under the model's probabilities; log_odds: by the log-odds of no error"
        ),
    )

    def scorer(self, ckpt: str, context: RewardContext) -> "SegmentScorer":
        """Load a model."""
        from fgrlhf.reward_models.loading import load_segment_classifier

        context = self.placed(context)
        return load_segment_classifier(
            ckpt,
            context.prefix,
            device=context.device,
            dtype=context.dtype,
            defaults=self.published,
            **self.facts(),
        )

    def model_folders(self) -> tuple[str, ...]:
        facts = self.published | self.facts()
        told = facts.get("level"), facts.get("segmenter")
        folders = super().model_folders()
        segmenters = [name for folder in folders for name in segmenters_of(folder, *told)]
        return (*folders, *dict.fromkeys(segmenters))


class SegmentClassifier(SegmentModel):
    """A reward model that labels every segment; each label has a value."""

    kind: Literal["segment_classifier"] = "segment_classifier"
    values: dict[Label, Amount] = Field(
        description="value by label; `error` and `ok` are aliases of the model's own labels"
    )
    level: Level | None = Field(
        default=None, description="only for a folder without reward_model.json"
    )
    segmenter: SegmenterName | None = Field(
        default=None, description=f"likewise; null: {PUBLISHED}; {SEGMENTER_HELP}"
    )
    error_label: Label | None = Field(default=None, description="likewise")
    with_context: bool | None = Field(default=None, description="likewise")
    reads: Literal["marks", "tokens", "steps"] | None = Field(
        default=None,
        description=(
            "likewise, a token classifier: marks: it judges at a mark before each segment; tokens:"
            " it labels tokens; steps: as TRL's PRMTrainer trains"
        ),
    )

    @model_validator(mode="after")
    def _some_value(self):
        if not any(self.values.values()):
            refuse([("values", "every label is worth 0, so the reward is always 0: give a value")])
        return self

    @model_validator(mode="after")
    def _segmenter_is_read(self):
        if self.segmenter is not None and self.level not in (None, *DIVIDED_LEVELS):
            refuse([("segmenter", NOT_DIVIDED)])
        return self

    def facts(self) -> dict[str, Any]:
        return given(self, "level", "segmenter", "error_label", "with_context", "reads")

    def build_member(self, ckpt: str, context: RewardContext) -> "AspectReward":
        from fgrlhf.reward import SegmentClassifierReward

        return SegmentClassifierReward(self.scorer(ckpt, context), self.values, self.value)


class SequenceModel(RewardModelKind):
    """A reward model that gives the whole response one score.

    The reward is scale * clip((score - mean) / std, -clip, clip) + bias.
    """

    reward: ClassVar["type[SequenceScorerReward] | None"] = None  # None: SequenceScorerReward

    scale: Value = Field(default=1.0, description="factor of the score")
    bias: Amount = Field(default=0.0, description="added after scaling")
    clip: Positive | None = Field(default=None, description="bound of the z-score")
    mean: Amount | None = Field(
        default=None, description="only for a folder without reward_model.json"
    )
    std: Positive | None = Field(default=None, description="likewise")

    def facts(self) -> dict[str, Any]:
        return given(self, "mean", "std")

    def build_member(self, ckpt: str, context: RewardContext) -> "AspectReward":
        from fgrlhf.reward import SequenceScorerReward
        from fgrlhf.reward_models.loading import load_sequence_scorer

        context = self.placed(context)
        scorer = load_sequence_scorer(
            ckpt,
            context.prefix,
            device=context.device,
            dtype=context.dtype,
            defaults=self.published,
            **self.facts(),
        )
        reward = self.reward or SequenceScorerReward
        return reward(scorer, scorer.mean, scorer.std, self.scale, self.bias, self.clip)


class SequenceScorer(SequenceModel):
    """A reward model of whole responses, of this library or another program."""

    kind: Literal["sequence_scorer"] = "sequence_scorer"
    with_context: bool | None = Field(
        default=None, description="only for a folder without reward_model.json"
    )
    reads: ConversationForm | None = Field(
        default=None, description=f"of another program's decoder-only model: {FORM_HELP}"
    )

    def facts(self) -> dict[str, Any]:
        return super().facts() | given(self, "with_context", "reads")


class Score(DividesText):
    """The score of each segment by any scorer of texts: scale * (score - threshold).

    With `reads: increment` or `shapley`, the values of a response add up to the score of the whole
    minus that of the empty text, times scale.
    """

    kind: Literal["score"] = "score"
    scorer: AnyTextScorer = Field(description="gives a text a number: docs/rewards.md, Scorers")
    reads: Reads = Field(default="segment", description=READS_HELP)
    level: Level = Field(default="whole", description="segments to judge: docs/rewards.md, Levels")
    scale: Value = Field(default=1.0, description="factor of the score; below 0: low is good")
    threshold: Amount = Field(default=0.0, description="subtracted from the score before scaling")

    @model_validator(mode="after")
    def _level_of_texts(self):
        if self.level == "token" and isinstance(self.scorer, JudgeScorer):
            refuse([("level", "a judge reads words, so it cannot judge the policy's tokens")])
        return self

    def build(self, context: RewardContext) -> "AspectReward":
        from fgrlhf.rewards.scored import ScorerReward

        scorer = self.scorer.build(context)
        return ScorerReward(
            scorer, self.level, self.reads, self.scale, self.threshold, self.segmenter
        )

    def model_folders(self) -> tuple[str, ...]:
        return (*self.scorer.model_folders(), *self.segmenters())


class Metric(RewardKind):
    """Any metric by name: scale * (value - threshold), for the whole response."""

    kind: Literal["metric"] = "metric"
    metric: MetricConfig = Field(description="a name, or a section with settings: docs/metrics.md")
    scale: Value = Field(default=1.0, description="factor of the score")
    threshold: Amount = Field(default=0.0, description="subtracted from the value before scaling")

    def build(self, context: RewardContext) -> "AspectReward":
        from fgrlhf.metrics.registry import build_metric
        from fgrlhf.rewards.text_rewards import MetricReward

        metric = build_metric(self.metric, context.device, context.dtype, context.prefix)
        return MetricReward(metric, self.scale, self.threshold)

    def model_folders(self) -> tuple[str, ...]:
        return tuple(models_of([self.metric]))


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from None
    return value


class Regex(DividesText):
    """A value for every match of a regular expression, or for each segment with or without one."""

    kind: Literal["regex"] = "regex"
    pattern: Annotated[str, Field(min_length=1), AfterValidator(_pattern)] = Field(
        description="in Python's syntax; `(?i)` at its start ignores case"
    )
    value: Value = Field(description="of each match; with `level`, of each segment with a match")
    otherwise: Amount = Field(
        default=0.0, description="with `level`: of each segment without a match"
    )
    level: Level | None = Field(default=None, description="null: matches are the segments")

    @model_validator(mode="after")
    def _otherwise_needs_segments(self):
        if self.otherwise and self.level is None:
            reason = (
                "it is not read without `level`, since there is no segment without a match: set"
                " `level`, or leave it out"
            )
            refuse([("otherwise", reason)])
        return self

    def build(self, context: RewardContext) -> "AspectReward":
        from fgrlhf.rewards.text_rewards import RegexReward

        pattern = re.compile(self.pattern)
        return RegexReward(pattern, self.value, self.otherwise, self.level, self.segmenter)


class Length(RuleReward):
    """A value for each word that is missing from `min_words` or exceeds `max_words`.

    A word above the limit gets the value itself; missing words count at the end. Words are those of
    fgrlhf/words.py.
    """

    kind: Literal["length"] = "length"
    value: Value = Field(description="of each word too many or too few; below 0: a penalty")
    max_words: Count | None = Field(
        default=None, description="most words without a penalty; null: no limit"
    )
    min_words: Count | None = Field(
        default=None, description="fewest words without a penalty; null: no limit"
    )

    @model_validator(mode="after")
    def _some_limit(self):
        if self.max_words is None and self.min_words is None:
            refuse([("max_words", "missing; give max_words, min_words or both")])
        shortest, longest = self.min_words, self.max_words
        if shortest is not None and longest is not None and shortest > longest:
            refuse([("min_words", f"{shortest} is more than max_words={longest}")])
        return self

    def score(self, prompt: Prompt, text: str) -> list[SegmentScore]:
        words = word_spans(text)
        scores = []
        if self.max_words is not None:
            for start, end in words[self.max_words :]:
                scores.append(SegmentScore(start, end, self.value, "too long"))
        if self.min_words is not None and len(words) < self.min_words:
            missing = self.min_words - len(words)
            scores.append(SegmentScore(0, None, self.value * missing, f"{missing} words missing"))
        return scores


class Repetition(RuleReward):
    """A value for every word that completes an n-gram that the response already contains.

    Words are those of fgrlhf/words.py; case is ignored.
    """

    kind: Literal["repetition"] = "repetition"
    n: Annotated[int, Field(ge=1, le=100)] = Field(default=3, description="words of an n-gram")
    value: Value = Field(description="of each repeated n-gram; below 0: a penalty")

    def score(self, prompt: Prompt, text: str) -> list[SegmentScore]:
        words = word_spans(text)
        lowered = [text[start:end].lower() for start, end in words]
        seen = set()
        scores = []
        for last in range(self.n - 1, len(words)):
            first = last - self.n + 1
            ngram = tuple(lowered[first : last + 1])
            if ngram in seen:
                start, end = words[first][0], words[last][1]
                scores.append(SegmentScore(start, end, self.value, "repeated"))
            seen.add(ngram)
        return scores


class MissingEos(RewardKind):
    """A value for a response that reached the length limit without its end-of-sequence token."""

    kind: Literal["missing_eos"] = "missing_eos"
    value: Value = Field(description="of a response without its end token")

    def build(self, context: RewardContext) -> Any:  # it needs the tokens of responses
        from fgrlhf.rewards.text_rewards import MissingEndReward

        return MissingEndReward(self.value)


class ServerReward(RemoteSettings, SegmentKind):
    """A reward of a server (`fgrlhf reward-serve`): docs/rewards.md, Rewards as a service.

    `model_sha256` pins the model, so the server may move, and `batch_size` affects rounding only.
    """

    may_change = (*RemoteSettings.may_change, "url", "batch_size")

    kind: Literal["reward_server"] = "reward_server"
    model_sha256: Sha256 = Field(
        description="hash of the served model, which the server prints; another model stops the run"
    )
    token_from: TokenPlace = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default="FGRLHF_REWARD_TOKEN",
        description="the environment variable with the bearer token, or file:PATH",
    )
    batch_size: Count = Field(
        default=512, description="most responses of a request; a server may have a lower limit"
    )

    def build(self, context: RewardContext) -> "AspectReward":
        from fgrlhf.rewards.client import RewardClient

        return RewardClient(self, context.prefix)

    def model_folders(self) -> tuple[str, ...]:
        return (f"sha256:{self.model_sha256}",)


class Python(DividesText):
    """A class of your own with `segment_scores(prompts, texts)`, or a function of a segment."""

    kind: Literal["python"] = "python"
    of: ClassPath = Field(
        description="package.module.Class, or package.module.function with a `level`"
    )
    args: dict[str, Any] = Field(
        default={}, description="keyword arguments of the class, or of every call"
    )
    level: Level | None = Field(
        default=None, description="of a function: the segments that it judges: docs/rewards.md"
    )

    def build(self, context: RewardContext) -> "AspectReward":
        found = import_object("reward", self.of)
        if inspect.isclass(found) or not callable(found):
            if self.level is not None:
                raise UserError(f"`{self.of}` is no function, so it divides no text: omit `level`")
            return make_object("reward", self.of, self.args, "segment_scores(prompts, texts)")
        if self.level is None:
            raise UserError(
                f"`{self.of}` is a function: add the level of the segments that it judges, such as"
                " level: sentence"
            )
        from fgrlhf.rewards.scored import FunctionReward

        return FunctionReward(found, self.level, self.segmenter, self.args)


def given(kind: RewardKind, *names: str) -> dict[str, Any]:
    """The values of these keys, except those that are null."""
    values = {name: getattr(kind, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


LIBRARY_REWARDS: dict[str, type[RewardKind]] = {
    "segment_classifier": SegmentClassifier,
    "sequence_scorer": SequenceScorer,
    "score": Score,
    "metric": Metric,
    "regex": Regex,
    "length": Length,
    "repetition": Repetition,
    "missing_eos": MissingEos,
    "reward_server": ServerReward,
    "python": Python,
}

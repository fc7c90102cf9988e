"""Rewards per segment from scorers of texts, from functions, and from several reward models."""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.reward import AspectReward, MeasuredReward, Scores
from fgrlhf.reward_utils import (
    MULTILINGUAL,
    Level,
    Segmenter,
    SegmenterName,
    Span,
    load_segmenter,
)
from fgrlhf.rewards.attribution import READINGS
from fgrlhf.rewards.kind import Reads
from fgrlhf.scorers.base import TextScorer, checked_numbers, score_texts
from fgrlhf.text_types import Prompt, ResponseTokens, SegmentScore


def divided(
    segmenter: Segmenter,
    texts: Sequence[str],
    level: Level,
    tokens: Sequence[ResponseTokens] | None = None,
) -> list[list[Span]]:
    """The segments of each text; the level `token` needs the responses' tokens."""
    results = []
    for n, text in enumerate(texts):
        ends = None if tokens is None else tokens[n].char_ends
        results.append(segmenter.segments(text, level, ends))
    return results


def on_segment(span: Span, level: Level, value: float, label: str) -> SegmentScore:
    """The value of a segment. That of a whole response also rates the decision to stop."""
    start, end = span
    return SegmentScore(start, None if level == "whole" else end, value, label)


class ScorerReward:
    """A value for each segment y_1, ..., y_J of a response y, from a scorer s of texts.

        r_j = scale * (s_j - threshold)

    s_j is the score of the segment, or its part of the score of the whole (attribution.py). The sum
    of increments and of Shapley values is, with threshold 0,

        sum_j r_j = scale * (s(y) - s(empty))

    so dense rewards and a single one at the end (level="whole") have the same sum, and more
    segments do not earn more: a constant per segment would pay for segments, differences do not.
    With a scale below 0 low scores are good, as in Wu et al. (2023), section 3.1, where s is the
    probability of a text that should be avoided.

    The last increment reads the whole response, with the white space after its last segment. A
    blank response has no segment and no reward. At the level `whole` the value is given at the end.

    Args:
      scorer: if it has a method `score_segments(prompts, texts, segments)`, it judges all segments
        of a response together, where `reads` is "segment".
    """

    def __init__(
        self,
        scorer: TextScorer,
        level: Level = "whole",
        reads: Reads = "segment",
        scale: float = 1.0,
        threshold: float = 0.0,
        segmenter: SegmenterName = MULTILINGUAL,
    ):
        self.scorer = scorer
        self.level: Level = level
        self.reads: Reads = reads
        self.reading = READINGS[reads]
        self.scale = scale
        self.threshold = threshold
        self.segmenter = load_segmenter(segmenter)
        self.needs_tokens = level == "token"
        self.remote = getattr(scorer, "remote", False)

    def segment_scores(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        tokens: Sequence[ResponseTokens] | None = None,
    ) -> list[list[SegmentScore]]:
        spans_of_texts = divided(self.segmenter, texts, self.level, tokens)
        judges_together = hasattr(self.scorer, "score_segments") and self.reads == "segment"
        if judges_together and self.level != "whole":
            scores_of_texts = _scored_together(self.scorer, prompts, texts, spans_of_texts)
        else:
            scores_of_texts = self._scored(prompts, texts, spans_of_texts)
        results = []
        for spans, scores in zip(spans_of_texts, scores_of_texts):
            parts = self.reading.parts(scores, len(spans))
            results.append([self._value(*pair) for pair in zip(spans, parts, strict=True)])
        return results

    def _scored(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        spans_of_texts: Sequence[Sequence[Span]],
    ) -> list[list[float]]:
        """The scores of what is read of each response, all in one call of the scorer."""
        counts = []
        read_prompts = []
        read_texts = []
        for prompt, text, spans in zip(prompts, texts, spans_of_texts, strict=True):
            read = self.reading.texts(text, spans)
            counts.append(len(read))
            read_prompts += [prompt] * len(read)
            read_texts += read
        scores = iter(score_texts(self.scorer, read_prompts, read_texts))
        return [list(islice(scores, count)) for count in counts]

    def _value(self, span: Span, score_and_part: tuple[float, float]) -> SegmentScore:
        score, part = score_and_part
        value = self.scale * (part - self.threshold)
        return on_segment(span, self.level, value, f"{score:.3g}")


class FunctionReward:
    """A value for each segment, from a function or another object that can be called.

    It is called as `function(segment, earlier, prompt)`, with the text of the segment, that of the
    response before it, and that of the prompt; it may take the first one or two of them only.
    Parameters named `references` and `meta` get those of the prompt, and those with a default keep
    it unless `arguments` has them. It returns a number, or None for a segment that it does not
    judge.

    Args:
      arguments: keyword arguments of every call.

    Raises:
      UserError: the function has other parameters.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        level: Level,
        segmenter: SegmenterName = MULTILINGUAL,
        arguments: Mapping[str, Any] | None = None,
    ):
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.level: Level = level
        self.segmenter = load_segmenter(segmenter)
        self.needs_tokens = level == "token"
        self.arguments = dict(arguments or {})
        parameters = inspect.signature(function).parameters
        self.of_prompt = [name for name in parameters if name in ("references", "meta")]
        keywords = {*self.arguments, *self.of_prompt}
        needed = [name for name, item in parameters.items() if item.default is item.empty]
        self.count = len([name for name in needed if name not in keywords])
        example = dict.fromkeys(keywords)
        try:
            inspect.signature(function).bind(*[""] * self.count, **example)
            fits = 1 <= self.count <= 3
        except TypeError:
            fits = False
        if not fits:
            raise UserError(
                f"the reward function `{self.name}` has the parameters"
                f" {inspect.signature(function)}: besides `args`, references and meta, it must have"
                " one to three: segment, earlier, prompt"
            )

    def segment_scores(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        tokens: Sequence[ResponseTokens] | None = None,
    ) -> list[list[SegmentScore]]:
        spans_of_texts = divided(self.segmenter, texts, self.level, tokens)
        results = []
        for prompt, text, spans in zip(prompts, texts, spans_of_texts, strict=True):
            scores = []
            for start, end in spans:
                value = self._value(prompt, text, start, end)
                if value is not None:
                    scores.append(on_segment((start, end), self.level, value, f"{value:.3g}"))
            results.append(scores)
        return results

    def _value(self, prompt: Prompt, text: str, start: int, end: int) -> float | None:
        read = (text[start:end], text[:start], prompt.text)[: self.count]
        of_prompt = {name: getattr(prompt, name) for name in self.of_prompt}
        try:
            value = self.function(*read, **self.arguments, **of_prompt)
        except Exception as error:
            segment = shorten(repr(read[0]), 60)
            error.add_note(f"for the segment {segment} after the prompt {shorten(prompt.id, 80)}")
            raise
        if value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UserError(
                f"the reward function `{self.name}` returned"
                f" {shorten(repr(value), 60)} for {shorten(repr(read[0]), 60)}: it must return a"
                " number or None"
            ) from None


class EnsembleReward:
    """A pessimistic value for each segment, from M rewards that judge the same segments.

        r = mean_m r_m - kappa sqrt(mean_m (r_m - mean r)^2)

    Where reward models were trained on little, they disagree, and with kappa > 0 a policy gains
    nothing by going there (Coste et al. 2023, arXiv 2310.02743: uncertainty-weighted optimisation,
    with the standard deviation in place of the variance). A segment's label is that of most
    members; of labels with equally many, that of the lowest value.

    Args:
      members: rewards that apply to the same responses and divide them into the same segments. One
        whose reward model has several heads counts as many times (`member_scores`).
      kappa: 0: the mean.
    """

    def __init__(self, members: Sequence[AspectReward], kappa: float = 0.0):
        self.members = list(members)
        self.kappa = kappa
        # whose inputs are counted: all members read the same
        self.scorer = getattr(self.members[0], "scorer", None)

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        by_member: list[Sequence[Scores]] = []
        for member in self.members:
            of_heads: Any = getattr(member, "member_scores", None)
            if of_heads is not None and heads_of(member) > 1:
                by_member += of_heads(prompts, texts)
            else:
                by_member.append(member.segment_scores(prompts, texts))
        results = []
        for of_text in zip(*by_member, strict=True):
            results.append([self._joined(scores) for scores in _same_segments(of_text)])
        return results

    def measures(self, scores: Sequence[SegmentScore]) -> dict[str, float]:
        """The members' measures, and `disagreement`: the mean standard deviation of a segment."""
        first = self.members[0]
        measures = first.measures(scores) if isinstance(first, MeasuredReward) else {}
        deviations = [score.std for score in scores if score.std is not None]
        if not deviations:
            return measures
        return measures | {"disagreement": sum(deviations) / len(deviations)}

    def _joined(self, scores: Sequence[SegmentScore]) -> SegmentScore:
        """One segment's score, from those of the members."""
        values = [score.value for score in scores]
        mean = sum(values) / len(values)
        std = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        votes = Counter(score.label for score in scores)
        label = min(scores, key=lambda score: (-votes[score.label], score.value)).label
        return replace(scores[0], value=mean - self.kappa * std, label=label, std=std)


def heads_of(reward: AspectReward) -> int:
    """How many judgements the reward model of a reward gives: 1 without `model.members`."""
    return getattr(getattr(reward, "scorer", None), "members", 1)


def _same_segments(of_members: Sequence[Scores]) -> list[tuple[SegmentScore, ...]]:
    """The members' scores of each segment of a response.

    Raises:
      UserError: the members divide it differently.
    """
    spans = [[(score.start, score.end) for score in scores or []] for scores in of_members]
    if any(other != spans[0] for other in spans):
        counts = ", ".join(str(len(other)) for other in spans)
        raise UserError(
            "the members of an ensemble divide a response into different segments (their numbers:"
            f" {counts}): give reward models that were trained with the same level and segmenter"
        )
    return list(zip(*(scores or [] for scores in of_members), strict=True))


def _scored_together(
    scorer: Any,
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    spans_of_texts: Sequence[Sequence[Span]],
) -> list[list[float]]:
    """The scores of each response's segments; one without segments is not asked about.

    Raises:
      UserError: the scorer does not return one finite number for each segment of each response.
    """
    asked = [place for place, spans in enumerate(spans_of_texts) if spans]
    segments = []
    for place in asked:
        segments.append([texts[place][start:end] for start, end in spans_of_texts[place]])
    returned = scorer.score_segments(
        [prompts[place] for place in asked], [texts[place] for place in asked], segments
    )
    name = type(scorer).__name__
    try:  # a list, an array or a tensor
        of_responses = list(returned)
    except TypeError:
        of_responses = []
    if len(of_responses) != len(asked):
        raise UserError(
            f"the scorer {name} returned {shorten(repr(returned), 80)} for {len(asked)} responses:"
            " `score_segments` must return a list of numbers for each response"
        )
    results: list[list[float]] = [[] for _ in texts]
    for place, numbers, of_place in zip(asked, of_responses, segments):
        results[place] = checked_numbers(name, "score_segments", numbers, of_place)
    return results

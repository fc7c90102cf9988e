"""Rewards computed from the text or its tokens alone: patterns, missing ends, metrics by name."""

import re
from collections.abc import Sequence

from fgrlhf.metrics.base import NamedMetric
from fgrlhf.reward_utils import MULTILINGUAL, Level, SegmenterName, load_segmenter
from fgrlhf.rewards.scored import divided, on_segment
from fgrlhf.text_types import Prompt, ResponseTokens, SegmentScore


class RegexReward:
    """A value for each match, or for each segment of `level` with a match."""

    def __init__(
        self,
        pattern: re.Pattern,
        value: float,
        otherwise: float = 0.0,
        level: Level | None = None,
        segmenter: SegmenterName = MULTILINGUAL,
    ):
        self.pattern = pattern
        self.value = value
        self.otherwise = otherwise
        self.level: Level | None = level
        self.segmenter = None if level is None else load_segmenter(segmenter)
        self.needs_tokens = level == "token"

    def segment_scores(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        tokens: Sequence[ResponseTokens] | None = None,
    ) -> list[list[SegmentScore]]:
        if self.segmenter is None or self.level is None:
            return [self._matches(text) for text in texts]
        results = []
        for text, spans in zip(texts, divided(self.segmenter, texts, self.level, tokens)):
            scores = []
            for start, end in spans:
                matched = self.pattern.search(text[start:end]) is not None
                value, label = (self.value, "match") if matched else (self.otherwise, "no match")
                scores.append(on_segment((start, end), self.level, value, label))
            results.append(scores)
        return results

    def _matches(self, text: str) -> list[SegmentScore]:
        return [
            SegmentScore(match.start(), match.end(), self.value, "match")
            for match in self.pattern.finditer(text)
        ]


class MissingEndReward:
    """A value for a response that stopped at the length limit, without its end token."""

    needs_tokens = True

    def __init__(self, value: float):
        self.value = value

    def segment_scores(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        tokens: Sequence[ResponseTokens],
    ) -> list[list[SegmentScore]]:
        results = []
        for response in tokens:
            missing = [SegmentScore(0, None, self.value, "no end")]
            results.append([] if response.finished else missing)
        return results


class MetricReward:
    """scale * (value - threshold) of a metric, for the whole response.

    If the metric does not apply to a prompt, such as one without references, there is no score.
    """

    def __init__(
        self,
        metric: NamedMetric,
        scale: float,
        threshold: float,
    ):
        self.metric = metric
        self.scale = scale
        self.threshold = threshold

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore] | None]:
        results: list[list[SegmentScore] | None] = []
        for value in self.metric.values(prompts, texts):
            if value is None:
                results.append(None)
                continue
            reward = self.scale * (value - self.threshold)
            results.append([SegmentScore(0, None, reward, f"{value:.3g}")])
        return results

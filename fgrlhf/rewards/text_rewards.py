"""Rewards computed from the text alone: patterns, length, repetition, metrics by name."""

import re
from collections.abc import Sequence

from fgrlhf.metrics.base import NamedMetric
from fgrlhf.reward_utils import MULTILINGUAL, Level, SegmenterName, load_segmenter
from fgrlhf.text_types import Prompt, ResponseTokens, SegmentScore
from fgrlhf.words import word_spans


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
        for n, text in enumerate(texts):
            ends = None if tokens is None else tokens[n].char_ends
            scores = []
            for start, end in self.segmenter.segments(text, self.level, ends):
                matched = self.pattern.search(text[start:end]) is not None
                value, label = (self.value, "match") if matched else (self.otherwise, "no match")
                # a judgement of the whole response also rates the decision to stop
                last = None if self.level == "whole" else end
                scores.append(SegmentScore(start, last, value, label))
            results.append(scores)
        return results

    def _matches(self, text: str) -> list[SegmentScore]:
        return [
            SegmentScore(match.start(), match.end(), self.value, "match")
            for match in self.pattern.finditer(text)
        ]


class LengthReward:
    """A value for each word above `max_words`, on that word, and for each missing word, at the end.

    Words are those of fgrlhf/words.py.
    """

    def __init__(self, value: float, min_words: int | None, max_words: int | None):
        self.value = value
        self.min_words = min_words
        self.max_words = max_words

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        return [self._scores(text) for text in texts]

    def _scores(self, text: str) -> list[SegmentScore]:
        words = word_spans(text)
        scores = []
        if self.max_words is not None:
            for start, end in words[self.max_words :]:
                scores.append(SegmentScore(start, end, self.value, "too long"))
        if self.min_words is not None and len(words) < self.min_words:
            missing = self.min_words - len(words)
            scores.append(SegmentScore(0, None, self.value * missing, f"{missing} words missing"))
        return scores


class RepetitionReward:
    """A value on every word that completes an n-gram that the response already contains.

    Words are those of fgrlhf/words.py; case is ignored.
    """

    def __init__(self, n: int, value: float):
        self.n = n
        self.value = value

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        return [self._scores(text) for text in texts]

    def _scores(self, text: str) -> list[SegmentScore]:
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

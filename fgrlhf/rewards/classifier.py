"""A text classifier as a reward per segment."""

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from fgrlhf.reward_utils import Span, load_segmenter
from fgrlhf.scorers.classifier import LabelScorer
from fgrlhf.text_types import Prompt, ResponseTokens, SegmentScore

if TYPE_CHECKING:
    from fgrlhf.rewards.kinds import Classifier


class ClassifierReward:
    """scale * (s - threshold) for each segment, where s is the score of the text given by `reads`.

    With reads="difference", s is the difference of the scores of the response up to the segment's
    end and up to the end of the segment before it. With threshold 0, the rewards of a response
    therefore add up to scale * (score up to the last segment's end - score of the empty text).
    """

    def __init__(self, scorer: LabelScorer, config: "Classifier"):
        self.scorer = scorer
        self.config = config
        self.segmenter = load_segmenter(config.segmenter)
        self.needs_tokens = config.level == "token"

    def segment_scores(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        tokens: Sequence[ResponseTokens] | None = None,
    ) -> list[list[SegmentScore]]:
        spans_of_texts = []
        counts = []  # of what the classifier reads of each text
        read_prompts = []
        read_texts = []
        for n, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            ends = None if tokens is None else tokens[n].char_ends
            spans = self.segmenter.segments(text, self.config.level, ends)
            texts_of_segments = self._reads(text, spans)
            spans_of_texts.append(spans)
            counts.append(len(texts_of_segments))
            read_prompts += [prompt] * len(texts_of_segments)
            read_texts += texts_of_segments
        scores = iter(self.scorer.score(read_prompts, read_texts))
        results = []
        for spans, count in zip(spans_of_texts, counts):
            values = list(islice(scores, count))
            if self.config.reads == "difference":
                values = [after - before for before, after in pairwise(values)]
            results.append([self._score(span, value) for span, value in zip(spans, values)])
        return results

    def _reads(self, text: str, spans: Sequence[Span]) -> list[str]:
        """What the classifier reads of a response: its segments, or the text up to their ends.

        For differences, the empty text comes first.
        """
        if self.config.reads == "segment":
            return [text[start:end] for start, end in spans]
        prefixes = [text[:end] for _, end in spans]
        if self.config.reads == "difference" and spans:
            return ["", *prefixes]
        return prefixes

    def _score(self, span: Span, value: float) -> SegmentScore:
        start, end = span
        reward = self.config.scale * (value - self.config.threshold)
        where = None if self.config.level == "whole" else end
        return SegmentScore(start, where, reward, f"{self.config.label} {value:.2f}")

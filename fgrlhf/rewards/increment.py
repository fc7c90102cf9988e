"""A reward per segment from a scorer of texts: how much the segment improves the score."""

from collections.abc import Sequence

from fgrlhf.reward_utils import MULTILINGUAL, Level, SegmenterName, load_segmenter
from fgrlhf.scorers.base import TextScorer, score_texts
from fgrlhf.text_types import Prompt, ResponseTokens, SegmentScore


class IncrementReward:
    """r_j = scale * (s(y_1..j) - s(y_1..j-1)) for the segments j = 1..J of a response y.

    s is the score of the response up to the end of a segment, and y_1..0 is the empty text. The sum
    telescopes:

        sum_j r_j = scale * (s(y) - s(empty))

    so dense rewards and a single one at the end (level="whole") have the same sum, and more
    segments do not earn more: a constant per segment would pay for segments, differences do not.
    With a scale below 0 low scores are good, as in Wu et al. (2023), section 3.1, where s is the
    probability of a text that should be avoided.

    The last segment ends where the response ends. A blank response has no segment and no reward.
    """

    def __init__(
        self,
        scorer: TextScorer,
        scale: float,
        level: Level = "sentence",
        segmenter: SegmenterName = MULTILINGUAL,
    ):
        self.scorer = scorer
        self.scale = scale
        self.level: Level = level
        self.segmenter = load_segmenter(segmenter)
        self.needs_tokens = level == "token"

    def segment_scores(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        tokens: Sequence[ResponseTokens] | None = None,
    ) -> list[list[SegmentScore]]:
        spans_of_texts = []
        read_prompts = []
        read_texts = []
        for n, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            ends = None if tokens is None else tokens[n].char_ends
            spans = self.segmenter.segments(text, self.level, ends)
            spans_of_texts.append(spans)
            beginnings = growing_texts(text, [end for _, end in spans])
            read_prompts += [prompt] * len(beginnings)
            read_texts += beginnings
        scores = iter(score_texts(self.scorer, read_prompts, read_texts))
        results = []
        for spans in spans_of_texts:
            segment_scores = []
            before = next(scores) if spans else 0.0
            for start, end in spans:
                after = next(scores)
                place = None if self.level == "whole" else end
                value = self.scale * (after - before)
                segment_scores.append(SegmentScore(start, place, value, f"{after:.2f}"))
                before = after
            results.append(segment_scores)
        return results


def growing_texts(text: str, ends: Sequence[int]) -> list[str]:
    """The empty text, then `text` up to each end; the last one is the whole text. [] without ends.

    >>> growing_texts("A b. C d. ", [4, 9])
    ['', 'A b.', 'A b. C d. ']
    """
    if not ends:
        return []
    return ["", *(text[:end] for end in ends[:-1]), text]

"""A judge as a reward per segment."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fgrlhf.reward_utils import load_segmenter
from fgrlhf.scorers.judge import JudgeClient
from fgrlhf.text_types import Prompt, SegmentScore

if TYPE_CHECKING:
    from fgrlhf.rewards.kinds import Judge


class JudgeReward:
    """scale * (score - threshold) for each segment of a response.

    A response without segments, such as a blank one, is not sent and has no reward; at the level
    `whole` the reward is given at the end.
    """

    remote = True

    def __init__(self, config: "Judge", client: JudgeClient | None = None):
        self.config = config
        self.client = client or JudgeClient(config)
        self.segmenter = load_segmenter(config.segmenter)

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        level = self.config.level
        spans_of_texts = [self.segmenter.segments(text, level) for text in texts]
        asked = [place for place, spans in enumerate(spans_of_texts) if spans]
        parts = []
        for place in asked:
            segments = [texts[place][start:end] for start, end in spans_of_texts[place]]
            parts.append([] if level == "whole" else segments)
        scores = self.client.scores(
            [prompts[place] for place in asked], [texts[place] for place in asked], parts
        )
        results: list[list[SegmentScore]] = [[] for _ in texts]
        for place, numbers in zip(asked, scores):
            for (start, end), number in zip(spans_of_texts[place], numbers, strict=True):
                value = self.config.scale * (number - self.config.threshold)
                last = None if level == "whole" else end
                results[place].append(SegmentScore(start, last, value, f"{number:g}"))
        return results

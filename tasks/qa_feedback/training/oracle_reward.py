"""The mini world's truth as rewards, for experiments that ask what a perfect reward model would give.

The pipeline itself never uses them: its reward models see the feedback file alone.
"""

from collections.abc import Callable, Sequence

from fgrlhf.rl_config import AspectConfig
from fgrlhf.types import Prompt, SegmentScore
from tasks.qa_feedback.data.oracle import Judgement, judge


class OracleReward:
    """`read` turns the truth about an answer into scored segments."""

    def __init__(self, config: AspectConfig, read: Callable[[AspectConfig, Judgement], list[SegmentScore]]):
        self.config, self.read = config, read

    def segment_scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[list[SegmentScore]]:
        return [self.read(self.config, judge(p.meta["question"], p.meta["passages"], text)) for p, text in zip(prompts, texts)]


def _either(config: AspectConfig, good: bool) -> float:
    return config.positive_reward if good else config.negative_reward


def relevance(config: AspectConfig, truth: Judgement) -> list[SegmentScore]:
    """positive or negative reward for every sub-sentence that is relevant and new, or is not."""
    return [SegmentScore(s.start, s.end, _either(config, s.label == "ok"), s.label) for s in truth.subsentences]


def factuality(config: AspectConfig, truth: Judgement) -> list[SegmentScore]:
    """positive or negative reward for every sentence that the passages support, or do not."""
    return [SegmentScore(s.start, s.end, _either(config, s.supported), "true" if s.supported else "false") for s in truth.sentences]


def completeness(config: AspectConfig, truth: Judgement) -> list[SegmentScore]:
    """scale * covered / needed + bias for the whole answer."""
    return [SegmentScore(0, None, config.scale * truth.completeness + config.bias, f"{truth.completeness:.2f}")]


KINDS = {
    f"oracle_{read.__name__}": lambda config, prefix_fn, device, dtype, read=read: OracleReward(config, read)
    for read in (relevance, factuality, completeness)
}

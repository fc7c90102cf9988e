"""The mini world's truth as a reward, for experiments that ask what a perfect reward model would
give.

The pipeline itself never uses it: its reward models see the feedback file alone.
"""

from collections.abc import Sequence

from fgrlhf.reward import Kind
from fgrlhf.runs.rl_config import AspectConfig
from fgrlhf.types import Prompt, SegmentScore
from tasks.qa_feedback.data.oracle import Judgement, judge


def gold_by_segment(truth: Judgement, scale: float = 1.0) -> list[SegmentScore]:
    """What each sub-sentence adds to the gold score of the answer so far; the sum is scale * gold
    of the whole.

    With c right ones among n sub-sentences and N needed facts, precision is c / n, recall c / N,
    and gold = 2 c / (n + N).
    """
    scores, right, needed, before = [], 0, len(truth.needed), 0.0
    for n, segment in enumerate(truth.subsentences, start=1):
        right += segment.right
        now = 2 * right / (n + needed)
        scores.append(
            SegmentScore(segment.start, segment.end, scale * (now - before), segment.label)
        )
        before = now
    return scores


class OracleGold:
    """kind `oracle_gold`: scale * gold score, segment by segment (`place: end` gives the same sum
    as one scalar).
    """

    def __init__(self, config: AspectConfig, prefix_fn, device: str, dtype: str):
        self.scale = config.scale

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        return [
            gold_by_segment(judge(p.meta["question"], p.meta["passages"], text), self.scale)
            for p, text in zip(prompts, texts)
        ]


KINDS = {"oracle_gold": Kind(OracleGold, frozenset({"scale"}))}

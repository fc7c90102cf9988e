"""The score of each response by any scorer of texts, and its maximum over a prompt's samples."""

from fgrlhf.metrics.base import Columns, NamedMetric
from fgrlhf.metrics.config import MetricConfig
from fgrlhf.metrics.pooled import ANY, MAX
from fgrlhf.scorers.base import RewardContext, score_texts


class Score(NamedMetric):
    """The score of each response; in reports, use a scorer that no reward used.

    With a threshold there are two more columns, which a summary reduces over the K samples of a
    prompt by their maximum (`fgrlhf.metrics.pooled.over_samples`):

        <column>/max   the highest of K scores: its mean over prompts is the expected maximum
        <column>/any   1 if any of K scores reaches the threshold: its mean is a probability

    Both grow with K, so compare only evaluations with the same number of samples.
    """

    def __init__(self, config: MetricConfig, context: RewardContext):
        super().__init__(config)
        assert config.scorer is not None
        self.scorer = config.scorer.build(context)
        self.threshold = config.threshold
        self.needs_references = config.scorer.needs_references

    def columns(self, prompts, texts):
        rows: list[Columns] = [{self.column: None} for _ in texts]
        applies: list[int] = []
        for place, prompt in enumerate(prompts):
            if prompt.references or not self.needs_references:
                applies.append(place)
        scores = score_texts(
            self.scorer, [prompts[place] for place in applies], [texts[place] for place in applies]
        )
        for place, score in zip(applies, scores, strict=True):
            rows[place] = {self.column: score}
            if self.threshold is not None:
                rows[place][f"{self.column}/{MAX}"] = score
                rows[place][f"{self.column}/{ANY}"] = float(score >= self.threshold)
        return rows

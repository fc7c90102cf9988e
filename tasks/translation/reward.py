"""What reward models read, and omissions as a reward: what a translation leaves out of its source.

A missing word has no place in the translation, so it is information that the response lacks, like
the missing information of long-form QA: a score of the whole response, at its end. A reward model
at the level of words finds it. It reads the source after the translation, the other way round than
the reward model of the spans, and judges every word of the *source*.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, model_validator

from fgrlhf.config import Amount, FilePath, refuse
from fgrlhf.reward import SegmentClassifierReward
from fgrlhf.reward_models.kind import RewardContext, RewardKind
from fgrlhf.reward_models.loading import load_segment_classifier
from fgrlhf.reward_models.scoring import SegmentScorer
from fgrlhf.types import Prompt, SegmentScore

LEVEL = "word"
BEFORE_TRANSLATION = "translation:"  # so that what precedes the source is never empty


_LANGUAGE = re.compile(r"<2\w+>\s+")


def source_of(prompt: Prompt) -> str:
    """The source, without the language with which prompts of MADLAD begin, such as `<2de>`."""
    language = _LANGUAGE.match(prompt.text)
    return prompt.text if language is None else prompt.text[language.end() :]


def source_words(prompt: Prompt, with_context: bool) -> tuple[str, ...]:
    """What a reward model reads before a translation."""
    return tuple(source_of(prompt).split())


def translation_prompt(translation: str) -> Prompt:
    """A translation as the text that a reward model reads before the source."""
    return Prompt("", f"{BEFORE_TRANSLATION} {translation}".strip())


class OmissionReward:
    """The sum of the values of the omitted source words, at the end of the response.

    Args:
      scorer: the reward model of the omissions.
      values: reward by label, as of `SegmentClassifierReward`.
    """

    def __init__(self, scorer: SegmentScorer, values: Mapping[str, float]):
        self.words = SegmentClassifierReward(scorer, values)
        self.ok_label = scorer.spec.ok_label

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore] | None]:
        translations = [translation_prompt(text) for text in texts]
        sources = [source_of(prompt) for prompt in prompts]
        results: list[list[SegmentScore] | None] = []
        for source, scores in zip(sources, self.words.segment_scores(translations, sources)):
            total = sum(score.value for score in scores)
            marked = [score for score in scores if score.label not in (self.ok_label, "unread")]
            words = ", ".join(source[score.start : score.end] for score in marked)
            label = f"omitted: {words}" if words else "nothing omitted"
            results.append([SegmentScore(0, None, total, label)])
        return results


class Omissions(RewardKind):
    """A reward model of the source's words; the values of the omitted ones add up at the end."""

    kind: Literal["omissions"] = "omissions"
    ckpt: FilePath = Field(description="folder of the reward model of the omissions")
    values: dict[str, Amount] = Field(description="value of an omitted source word, by severity")

    @model_validator(mode="after")
    def _some_value(self):
        if not any(self.values.values()):
            refuse([("values", "every label is worth 0, so the reward is always 0: give a value")])
        return self

    def build(self, context: RewardContext) -> OmissionReward:
        scorer = load_segment_classifier(
            self.ckpt, context.prefix, device=context.device, dtype=context.dtype
        )
        return OmissionReward(scorer, self.values)

    def model_folders(self) -> tuple[str, ...]:
        return (self.ckpt,)

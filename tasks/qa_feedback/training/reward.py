"""The rewards of long-form QA, under the paper's names, and what those names imply.

    relevance_model      R1, per sub-sentence   SubSentenceVerbosityReward
    factuality_model     R2, per sentence       FactualityReward
    completeness_model   R3, whole answer       PreferenceReward
    baseline_model       holistic preference    PreferenceReward

A new reward is a class with `segment_scores(prompts, texts)` and one line in `KINDS`, which also
names the keys it reads.
"""

from dataclasses import replace
from typing import Any

from pydantic import model_validator

from fgrlhf import reward as library
from fgrlhf.config import refuse
from fgrlhf.errors import UserError
from fgrlhf.reward import (
    CombinedReward,
    Kind,
    SegmentClassifierReward,
    SequenceScorerReward,
    aspect_mistakes,
)
from fgrlhf.reward_models.scoring import load_reward_model
from fgrlhf.runs.rl_config import AspectConfig, RLConfig
from tasks.qa_feedback.feedback import rm_prefix
from tasks.qa_feedback.training import oracle_reward


class _OneLevelReward(SegmentClassifierReward):
    """A segment classifier that must judge segments of `level`."""

    level: str

    def __init__(self, scorer, positive_reward: float, negative_reward: float):
        if scorer.spec.level != self.level:
            raise UserError(
                f"{type(self).__name__} judges each {self.level}, but its reward model was trained"
                f" on the level `{scorer.spec.level}`: check `ckpt`"
            )
        super().__init__(scorer, positive_reward, negative_reward)


class SubSentenceVerbosityReward(_OneLevelReward):
    """R1: is each sub-sentence relevant, not repeated, coherent?"""

    level = "subsentence"


class FactualityReward(_OneLevelReward):
    """R2: is each sentence supported by the passages?"""

    level = "sentence"


class PreferenceReward(SequenceScorerReward):
    """A score of the whole answer: R3 (information completeness) or the holistic preference."""


class FineGrainedReward(CombinedReward):
    """Several aspects, each on its own segments."""


class BaselineReward(CombinedReward):
    """One holistic score at the end of the answer."""


# What a published checkpoint is, which does not say it itself.
PUBLISHED_FACTS: dict[str, dict[str, Any]] = {
    "relevance": {"level": "subsentence", "error_label": "NF-ERR", "with_context": False},
    "factuality": {"level": "sentence", "error_label": "F-ERR", "with_context": True},
    "preference": {"with_context": True},
}


def _segment_kind(cls: type[_OneLevelReward]) -> Kind:
    def build(config: AspectConfig, prefix_fn, device: str, dtype: str):
        scorer = load_reward_model(
            config.ckpt,
            prefix_fn,
            device=device,
            dtype=dtype,
            defaults=PUBLISHED_FACTS[config.kind],
            **config.published_facts(),
        )
        return cls(scorer, config.positive_reward, config.negative_reward)

    return replace(library.KINDS["segment_classifier"], build=build)


def _preference_kind(config: AspectConfig, prefix_fn, device: str, dtype: str) -> PreferenceReward:
    scorer = load_reward_model(
        config.ckpt,
        prefix_fn,
        device=device,
        dtype=dtype,
        defaults=PUBLISHED_FACTS[config.kind],
        **config.published_facts(),
    )
    return PreferenceReward(scorer, scorer.mean, scorer.std, config.scale, config.bias, config.clip)


KINDS = {
    **library.KINDS,
    **oracle_reward.KINDS,
    "relevance": _segment_kind(SubSentenceVerbosityReward),
    "factuality": _segment_kind(FactualityReward),
    "preference": replace(library.KINDS["sequence_scorer"], build=_preference_kind),
}

PUBLISHED_NAMES = {
    "relevance_model": "relevance",
    "factuality_model": "factuality",
    "completeness_model": "preference",
    "baseline_model": "preference",
}


class QAAspect(AspectConfig):
    """One reward of a kind in `KINDS`, with the keys of that kind."""

    @model_validator(mode="after")
    def _fits_its_kind(self):
        refuse(aspect_mistakes(self, KINDS))
        return self


class QAConfig(RLConfig):
    """An RL run on long-form QA; the published YAML files load as they are."""

    reward: dict[str, QAAspect]

    @model_validator(mode="before")
    @classmethod
    def _fill_published_names(cls, tree: Any) -> Any:
        if not isinstance(tree, dict) or not isinstance(tree.get("reward"), dict):
            return tree
        filled = {
            name: (
                {"kind": PUBLISHED_NAMES[name], **aspect}
                if isinstance(aspect, dict) and name in PUBLISHED_NAMES
                else aspect
            )
            for name, aspect in tree["reward"].items()
        }
        return {**tree, "reward": filled}


def build_reward(config: RLConfig, device: str = "cpu") -> CombinedReward:
    """The reward a config describes, its models loaded. Raises `UserError` naming what is
    missing.
    """
    aspects, weights = library.build_aspects(
        config.reward, rm_prefix, KINDS, device, config.model.dtype
    )
    cls = BaselineReward if set(aspects) == {"baseline_model"} else FineGrainedReward
    return cls(aspects, weights)

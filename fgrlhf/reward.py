"""Rewards: aspects that judge segments of a text, and their way onto the policy's tokens.

An aspect answers in characters of the response (`SegmentScore`); `place_on_tokens` is the only
place that turns a span's end into the token that carries the reward:

    r_t = sum_k sum_j 1[t = T_j^k] w_k R_k(x, y, j)          (Wu et al. 2023, eq. 1, before the KL
    penalty)

with T_j^k the token with which segment j of aspect k is complete. Segments that end on one token
add up.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from fgrlhf.algorithms.advantages import kl_penalized
from fgrlhf.alignment import place_on_tokens
from fgrlhf.config import suggestion, unread_keys
from fgrlhf.errors import UserError
from fgrlhf.reward_models.prefix import PrefixFn
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer, load_reward_model
from fgrlhf.runs.rl_config import AspectConfig
from fgrlhf.types import Prompt, Rollout, SegmentScore, TokenReward


class AspectReward(Protocol):
    """One named judgement of texts. Write a class with this method to bring a reward of your
    own.
    """

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        """One list of scored segments per text, in reward units."""


class SegmentClassifierReward:
    """+a for a segment without the error, -b for one with it: argmax over the two labels, found by
    name.

    A segment that the reward model could not read (`judged` False) gets 0.
    """

    def __init__(self, scorer: SegmentScorer, positive_reward: float, negative_reward: float):
        self.scorer, self.positive_reward, self.negative_reward = (
            scorer,
            positive_reward,
            negative_reward,
        )

    def segment_scores(self, prompts, texts):
        spec = self.scorer.spec
        results = []
        for judged in self.scorer.score(prompts, texts):
            error, ok = judged.labels.index(spec.error_label), judged.labels.index(spec.ok_label)
            pairs = judged.probabilities_SL[:, [error, ok]].tolist()
            results.append(
                [
                    SegmentScore(start, end, *(self._judgement(*pair) if read else (0.0, "unread")))
                    for (start, end), pair, read in zip(judged.spans, pairs, judged.judged)
                ]
            )
        return results

    def _judgement(self, error: float, ok: float) -> tuple[float, str]:
        if not math.isfinite(
            error + ok
        ):  # a comparison would call NaN free of error: `_finite` refuses it by name
            return math.nan, "NaN"
        return (
            (self.negative_reward, self.scorer.spec.error_label)
            if error > ok
            else (self.positive_reward, self.scorer.spec.ok_label)
        )


class SequenceScorerReward:
    """scale * clip((s - mean) / std, -clip, clip) + bias for the whole answer, given at its end."""

    def __init__(
        self,
        scorer: SequenceScorer,
        mean: float,
        std: float,
        scale: float = 1.0,
        bias: float = 0.0,
        clip: float | None = None,
    ):
        self.scorer, self.mean, self.std, self.scale, self.bias = scorer, mean, std, scale, bias
        self.clip = math.inf if clip is None else clip

    def segment_scores(self, prompts, texts):
        scores = self.scorer.score(prompts, texts).tolist()
        # as the first argument of max and min a NaN stays one: `_finite` refuses it by name
        z = [min(max((s - self.mean) / self.std, -self.clip), self.clip) for s in scores]
        return [
            [SegmentScore(0, None, self.scale * value + self.bias, f"z={value:+.2f}")]
            for value in z
        ]


class AtEnd:
    """The same judgements given as one scalar: every segment's value is moved to the end of the
    answer.
    """

    def __init__(self, aspect: AspectReward):
        self.aspect = aspect

    def segment_scores(self, prompts, texts):
        return [
            [replace(score, end=None) for score in scores]
            for scores in self.aspect.segment_scores(prompts, texts)
        ]


def normalized(rewards: TokenReward, weights: Mapping[str, float]) -> TokenReward:
    """w_k r_k / std_b(sum_t r_k): each aspect in units of its own spread over the batch's
    responses, then weighted.

    No mean is taken off: on tokens it would be a price or a premium on length. An aspect that is
    the same for all responses has no spread to scale by and stays as it is.
    """
    scaled = {}
    for name, rewards_BT in rewards.by_aspect.items():
        std, weight = rewards_BT.sum(1).std(correction=0), abs(weights.get(name, 1.0))
        scaled[name] = rewards_BT * (weight / std) if std > 1e-8 else rewards_BT
    return replace(rewards, by_aspect=scaled)


def _finite(name: str, segments: Sequence[Sequence[SegmentScore]], texts: Sequence[str]) -> None:
    for scores, text in zip(segments, texts):
        for score in scores:
            if not math.isfinite(score.value):
                raise UserError(
                    f"reward `{name}` is {score.value} for the answer {text[:120]!r}: training on"
                    " it would destroy the policy. Check that reward model's weights, and its mean"
                    " and std; weight 0 leaves the aspect out."
                )


class BasicReward(ABC):
    """Abstract base of token-level rewards: named aspects in characters in, one tensor per aspect
    on tokens out.
    """

    weights: Mapping[
        str, float
    ] = {}  # what an aspect's values were multiplied by, where it was not 1

    @abstractmethod
    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> dict[str, list[list[SegmentScore]]]:
        """aspect name -> per text its scored segments."""

    def token_rewards(self, rollout: Rollout) -> TokenReward:
        """Score a rollout's texts and place the rewards on its tokens. Raises `UserError` on NaN or
        infinity.
        """
        segments = self.segment_scores(rollout.prompts, rollout.texts)
        for name, scores in segments.items():
            _finite(name, scores, rollout.texts)
        placed = {
            name: place_on_tokens(scores, rollout.char_ends, rollout.response_mask_BT)
            for name, scores in segments.items()
        }
        return TokenReward(placed, segments, rollout.response_mask_BT)

    @staticmethod
    def penalized(rewards: TokenReward, rollout: Rollout, kl_coef: float) -> Tensor:
        """The sum over aspects less the KL penalty, (B, T)."""
        return kl_penalized(
            rewards.total_BT,
            rollout.logprobs_BT,
            rollout.ref_logprobs_BT,
            rollout.response_mask_BT,
            kl_coef,
        )


class CombinedReward(BasicReward):
    """Named aspects side by side, each multiplied by its weight."""

    def __init__(
        self, aspects: Mapping[str, AspectReward], weights: Mapping[str, float] | None = None
    ):
        self.aspects = dict(aspects)
        self.weights = {name: 1.0 if weights is None else weights[name] for name in self.aspects}

    def segment_scores(self, prompts, texts):
        results = {}
        for name, aspect in self.aspects.items():
            weight = self.weights[name]
            results[name] = [
                [replace(score, value=weight * score.value) for score in scores]
                for scores in aspect.segment_scores(prompts, texts)
            ]
        return results


# ---- kinds ---------------------------------------------------------------------------------------

EVERY_KIND_READS = frozenset({"kind", "weight", "place"})


@dataclass(frozen=True)
class Kind:
    """A kind of reward: what builds it, and which keys of its section in YAML it reads.

    Args:
      build: called with the section, the reward models' prompt function, a device and a dtype.
      reads: keys it reads besides `kind`, `weight` and `place`. Any other key is refused, since it
        would change nothing.
      requires: those of them without which there is no reward.
    """

    build: Callable[[AspectConfig, PrefixFn, str, str], AspectReward]
    reads: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()


def aspect_mistakes(config: AspectConfig, kinds: Mapping[str, Kind]) -> list[tuple[str, str]]:
    """(key, text) for everything that is wrong with a reward's section: its kind, keys that the
    kind does not read or lacks, and values with which the reward would be zero."""
    if config.kind not in kinds:
        return [("kind", f"there is no `{config.kind}`; {suggestion(config.kind, sorted(kinds))}")]
    kind = kinds[config.kind]
    others = [key for key in AspectConfig.model_fields if key not in kind.reads | EVERY_KIND_READS]
    reads = ", ".join(sorted(kind.reads)) or "no other key"
    mistakes = unread_keys(config, others, f"since `{config.kind}` reads {reads}: leave it out")
    if config.weight == 0:  # left out on purpose
        return mistakes
    for key in sorted(kind.requires):
        if getattr(config, key) is None:
            mistakes.append((key, f"missing; `{config.kind}` needs it"))
    if "scale" in kind.reads and config.scale == 0:
        mistakes.append(
            (
                "scale",
                (
                    "0 makes the reward the same for every answer: give another scale, or weight=0"
                    " to leave it out"
                ),
            )
        )
    if {
        "positive_reward",
        "negative_reward",
    } <= kind.reads and config.positive_reward == config.negative_reward == 0:
        mistakes.append(
            (
                "positive_reward",
                (
                    "it and negative_reward are 0, so the reward is always 0: give one of them a"
                    " value, or weight=0 to leave it out"
                ),
            )
        )
    return mistakes


def segment_classifier(
    config: AspectConfig, prefix_fn: PrefixFn, device: str, dtype: str
) -> AspectReward:
    """kind `segment_classifier`: a reward model with labels, see `SegmentClassifierReward`."""
    scorer = load_reward_model(
        config.ckpt, prefix_fn, device=device, dtype=dtype, **config.published_facts()
    )
    return SegmentClassifierReward(scorer, config.positive_reward, config.negative_reward)


def sequence_scorer(
    config: AspectConfig, prefix_fn: PrefixFn, device: str, dtype: str
) -> AspectReward:
    """kind `sequence_scorer`: a reward model with one score, see `SequenceScorerReward`."""
    scorer = load_reward_model(
        config.ckpt, prefix_fn, device=device, dtype=dtype, **config.published_facts()
    )
    return SequenceScorerReward(
        scorer, scorer.mean, scorer.std, config.scale, config.bias, config.clip
    )


SEGMENT_KEYS = frozenset(
    {"ckpt", "positive_reward", "negative_reward", "level", "error_label", "with_context"}
)
SEQUENCE_KEYS = frozenset({"ckpt", "scale", "bias", "clip", "mean", "std", "with_context"})

KINDS: dict[str, Kind] = {
    "segment_classifier": Kind(
        segment_classifier, SEGMENT_KEYS, frozenset({"ckpt", "positive_reward", "negative_reward"})
    ),
    "sequence_scorer": Kind(sequence_scorer, SEQUENCE_KEYS, frozenset({"ckpt"})),
}


def build_aspects(
    configs: Mapping[str, AspectConfig],
    prefix_fn: PrefixFn,
    kinds: Mapping[str, Kind] = KINDS,
    device: str = "cpu",
    dtype: str = "fp32",
) -> tuple[dict[str, AspectReward], dict[str, float]]:
    """The aspects a config names, and their weights. An aspect of weight 0 is left out: its model
    is not loaded.

    Raises:
      UserError: an unknown kind, a key that a kind does not read or lacks, or a checkpoint that is
        missing or of the wrong kind.
    """
    mistakes = [
        f"reward.{name}.{key}: {text}"
        for name, config in configs.items()
        for key, text in aspect_mistakes(config, kinds)
    ]
    if mistakes:
        raise UserError("\n  ".join(["the rewards cannot be built:", *mistakes]))
    aspects, weights = {}, {}
    for name, config in configs.items():
        if config.weight == 0:
            continue
        aspect = kinds[config.kind].build(config, prefix_fn, device, dtype)
        aspects[name] = AtEnd(aspect) if config.place == "end" else aspect
        weights[name] = config.weight
    if not aspects:
        raise UserError(
            "every reward has weight 0 or none is named: nothing to train for. Give at least one"
            " aspect under `reward:`"
        )
    return aspects, weights

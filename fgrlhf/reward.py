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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fgrlhf.algorithms.advantages import kl_penalized
from fgrlhf.alignment import place_on_tokens
from fgrlhf.errors import UserError
from fgrlhf.types import Prompt, ResponseTokens, Rollout, SegmentScore, TokenReward

if TYPE_CHECKING:
    from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer

Scores = list[SegmentScore] | None  # of one response; None: the reward does not apply to it


class AspectReward(Protocol):
    """One named judgement of responses. Write a class with this method for a reward of your own.

    A class with `needs_tokens = True` is called with a third argument, a `ResponseTokens` for each
    response: where its tokens end, and whether it ended with an end-of-sequence token.
    """

    def segment_scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Sequence[Scores]:
        """Per response its scored segments in reward units; None where the reward does not apply.

        A response without scored segments ([]) has the reward 0. One with None is left out of the
        reward's statistics.
        """
        ...


def scores_of(
    aspect: AspectReward,
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    tokens: Sequence[ResponseTokens] | None,
) -> Sequence[Scores]:
    """`aspect.segment_scores`, with the responses' tokens where the reward needs them."""
    if not getattr(aspect, "needs_tokens", False):
        return aspect.segment_scores(prompts, texts)
    if tokens is None:
        raise ValueError(f"{type(aspect).__name__} needs the tokens of the responses")
    return aspect.segment_scores(prompts, texts, tokens)  # pyright: ignore[reportCallIssue]


class SegmentClassifierReward:
    """The value of each segment's label: that of the highest probability, found by name.

    The labels that compete are those of errors and that of a segment without one
    (`RewardModelSpec.judged_labels`). On a tie the segment has no error. A segment that the reward
    model could not read (`judged` False) gets 0.

    Args:
      scorer: the reward model.
      values: reward by label. `ok` stands for the model's own name, `error` for those of all errors
        without a value of their own. A label without a value is worth 0.
    Raises:
      UserError: the model has no such label.
    """

    def __init__(self, scorer: "SegmentScorer", values: Mapping[str, float]):
        *error_labels, ok_label = scorer.spec.judged_labels
        self.scorer = scorer
        self.values = {ok_label: values.get("ok", 0.0)}
        for label in error_labels:
            self.values[label] = values.get("error", 0.0)
        for label, value in values.items():
            if label in self.values:
                self.values[label] = value
            elif label not in ("error", "ok"):
                raise UserError(
                    f"the reward model has no label `{label}` to give a value: its labels are"
                    f" {', '.join(scorer.spec.judged_labels)}"
                )

    def segment_scores(self, prompts, texts):
        results = []
        for labelled in self.scorer.score(prompts, texts):
            columns = {label: labelled.labels.index(label) for label in self.values}
            scores = []
            rows = labelled.probabilities_SL.tolist()
            for (start, end), row, was_read in zip(labelled.spans, rows, labelled.judged):
                probabilities = {label: row[column] for label, column in columns.items()}
                value, label = self._judgement(probabilities) if was_read else (0.0, "unread")
                scores.append(SegmentScore(start, end, value, label))
            results.append(scores)
        return results

    def measures(self, scores: Sequence[SegmentScore]) -> dict[str, float]:
        """Counts of one response: `error_free` segments, and all `segments` the model has read."""
        spec = self.scorer.spec
        labels = [score.label for score in scores]
        error_free = labels.count(spec.ok_label or "")
        errors = labels.count(spec.error_label or "")
        return {"error_free": error_free, "segments": error_free + errors}

    def _judgement(self, probabilities: Mapping[str, float]) -> tuple[float, str]:
        # NaN compares as false, so `max` would take another label: `_finite` must see it
        if not all(map(math.isfinite, probabilities.values())):
            return math.nan, "NaN"
        label = max(probabilities, key=lambda name: probabilities[name])  # the first on a tie: ok
        return self.values[label], label


class SequenceScorerReward:
    """scale * clip((s - mean) / std, -clip, clip) + bias for the whole answer, given at its end."""

    def __init__(
        self,
        scorer: "SequenceScorer",
        mean: float,
        std: float,
        scale: float = 1.0,
        bias: float = 0.0,
        clip: float | None = None,
    ):
        self.scorer = scorer
        self.mean = mean
        self.std = std
        self.scale = scale
        self.bias = bias
        self.clip = math.inf if clip is None else clip

    def segment_scores(self, prompts, texts):
        scores = self.scorer.score(prompts, texts).tolist()
        # as the first argument of max and min a NaN stays one: `_finite` refuses it by name
        z = [min(max((s - self.mean) / self.std, -self.clip), self.clip) for s in scores]
        return [
            [SegmentScore(0, None, self.scale * value + self.bias, f"z={value:+.2f}")]
            for value in z
        ]

    def measures(self, scores: Sequence[SegmentScore]) -> dict[str, float]:
        """`score`: the z-score of one response, scale and bias taken out; {} where scale is 0."""
        if self.scale == 0:
            return {}
        return {"score": (scores[0].value - self.bias) / self.scale}


class AtEnd:
    """The same judgements as one scalar: every segment's value moves to the end of the response."""

    def __init__(self, aspect: AspectReward):
        self.aspect = aspect
        self.needs_tokens = getattr(aspect, "needs_tokens", False)

    def segment_scores(self, prompts, texts, tokens=None):
        moved = []
        for scores in scores_of(self.aspect, prompts, texts, tokens):
            at_end = None if scores is None else [replace(score, end=None) for score in scores]
            moved.append(at_end)
        return moved

    def measures(self, scores: Sequence[SegmentScore]) -> dict[str, float]:
        """Those of the reward that is moved; {} if it has none."""
        measures = getattr(self.aspect, "measures", None)
        return {} if measures is None else measures(scores)


def normalized(rewards: TokenReward, weights: Mapping[str, float]) -> TokenReward:
    """w_k r_k / std_b(sum_t r_k): each reward in units of its spread over the batch, then weighted.

    The spread is over the responses to which the reward applies. No mean is subtracted: on tokens
    it would be a length penalty or bonus. A reward that is the same for all responses has no spread
    to scale by and stays as it is.
    """
    scaled = {}
    for name, rewards_BT in rewards.by_aspect.items():
        applies_B = torch.tensor(rewards.applies(name), device=rewards_BT.device)
        if not applies_B.any():
            scaled[name] = rewards_BT
            continue
        std = rewards_BT[applies_B].sum(1).std(correction=0)
        weight = abs(weights.get(name, 1.0))
        scaled[name] = rewards_BT * (weight / std) if std > 1e-8 else rewards_BT
    return replace(rewards, by_aspect=scaled)


def _finite(name: str, segments: Sequence[Scores], texts: Sequence[str]) -> None:
    for scores, text in zip(segments, texts):
        for score in scores or ():
            if not math.isfinite(score.value):
                raise UserError(
                    f"reward `{name}` is {score.value} for the answer {text[:120]!r}: training on"
                    " it would destroy the policy. Check that reward model's weights, and its mean"
                    " and std; weight 0 leaves the aspect out."
                )


class BasicReward(ABC):
    """Abstract base of token-level rewards.

    Named rewards judge characters of the text; each becomes one tensor on the policy's tokens.
    """

    # what the values of a reward were multiplied by, where that is not 1
    weights: Mapping[str, float] = {}

    @abstractmethod
    def segment_scores(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        tokens: Sequence[ResponseTokens] | None = None,
    ) -> dict[str, Sequence[Scores]]:
        """reward name -> per text its scored segments, None where the reward does not apply."""

    def token_rewards(self, rollout: Rollout) -> TokenReward:
        """Score a rollout's texts and place the rewards on its tokens.

        Raises:
          UserError: a reward is NaN or infinite.
        """
        segments = self.segment_scores(rollout.prompts, rollout.texts, tokens_of(rollout))
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


def tokens_of(rollout: Rollout) -> list[ResponseTokens] | None:
    """What rewards with `needs_tokens` read; None where the rollout did not record it."""
    if rollout.finished is None:
        return None
    return [ResponseTokens(*pair) for pair in zip(rollout.char_ends, rollout.finished)]


class CombinedReward(BasicReward):
    """Named rewards side by side, each multiplied by its weight."""

    def __init__(
        self, aspects: Mapping[str, AspectReward], weights: Mapping[str, float] | None = None
    ):
        self.aspects = dict(aspects)
        self.weights = {name: 1.0 if weights is None else weights[name] for name in self.aspects}

    @property
    def needs_tokens(self) -> bool:
        return any(getattr(aspect, "needs_tokens", False) for aspect in self.aspects.values())

    def segment_scores(self, prompts, texts, tokens=None):
        results = {}
        for name, aspect in self.aspects.items():
            weight = self.weights[name]
            weighted = []
            for scores in scores_of(aspect, prompts, texts, tokens):
                if scores is not None:
                    scores = [replace(score, value=weight * score.value) for score in scores]
                weighted.append(scores)
            results[name] = weighted
        return results

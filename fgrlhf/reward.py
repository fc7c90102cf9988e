"""Rewards: aspects score segments of a text, and their values are placed on the policy's tokens.

An aspect scores spans of characters of the response (`SegmentScore`). `place_on_tokens` is the only
function that turns the end of a span into the token that carries the reward:

    r_t = sum_k sum_j 1[t = T_j^k] w_k R_k(x, y, j)

T_j^k is the token that completes segment j of aspect k. Values on the same token add up. This is
equation 1 of Wu et al. (2023) before the KL penalty.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fgrlhf.algorithms.advantages import kl_penalized
from fgrlhf.algorithms.config import KL_ASPECT
from fgrlhf.alignment import place_on_tokens
from fgrlhf.base.background import Background
from fgrlhf.base.errors import UserError, shorten
from fgrlhf.reward_utils import WHOLE_LEVELS
from fgrlhf.text_types import Prompt, ResponseTokens, SegmentScore, SegmentValue, Turn
from fgrlhf.types import Rollout, TokenReward
from fgrlhf.utils import ROUNDING

if TYPE_CHECKING:
    from fgrlhf.reward_models.scoring import SegmentLabels, SegmentScorer, SequenceScorer

LOG_ODDS_BOUND = 3.0  # of `value: log_odds`: a probability of .95
ERROR_FREE = "error_free"  # a measure of rewards that label segments
LARGEST_SCORE = 1e18  # its square, which statistics of rewards need, is finite in float32
Scores = list[SegmentScore] | None  # of one response; None: the reward does not apply to it


class AspectReward(Protocol):
    """A named reward. To add your own, write a class with this method.

    A class with `needs_tokens = True` gets a third argument, a `ResponseTokens` per response: where
    its tokens end, and whether it ended with an end-of-sequence token.

    A class with `remote = True` waits for another machine. It is called in a thread, so that other
    rewards are computed meanwhile.
    """

    def segment_scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Sequence[Scores]:
        """The scored segments of each response, in reward units; None if the reward does not apply.

        A response without scored segments ([]) has reward 0. A response with None is excluded from
        the reward's statistics.
        """
        ...


@runtime_checkable
class MeasuredReward(Protocol):
    """A reward (`AspectReward`) with additional measures that do not depend on weight and scale."""

    def measures(self, scores: Sequence[SegmentScore]) -> dict[str, float]:
        """Measures of one response by name, computed from its unweighted scores.

        They become the columns `<reward>/<name>`. The counts `error_free` and `segments` become a
        ratio in the summary.
        """
        ...


def scores_of(
    aspect: AspectReward,
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    tokens: Sequence[ResponseTokens] | None,
) -> Sequence[Scores]:
    """Call `aspect.segment_scores`, with the responses' tokens if the reward needs them."""
    if not getattr(aspect, "needs_tokens", False):
        return aspect.segment_scores(prompts, texts)
    if tokens is None:
        raise ValueError(f"{type(aspect).__name__} needs the tokens of the responses")
    return aspect.segment_scores(prompts, texts, tokens)  # pyright: ignore[reportCallIssue]


def checked_scores(name: str, results: Any, texts: Sequence[str]) -> Sequence[Scores]:
    """The `results` that the reward `name` returned for `texts`, after a check of their form.

    Raises:
      UserError: there is not one list (or None) for each text, or a score is not a number or its
        span ends after its text.
    """
    if isinstance(results, Sequence):
        results = [_with_scores(scores) for scores in results]
    if not isinstance(results, Sequence) or len(results) != len(texts):
        size = f"{len(results)} results" if isinstance(results, Sequence) else f"{results!r:.60}"
        raise UserError(
            f"the reward `{name}` returned {size} for {len(texts)} responses: segment_scores must"
            " return a list with one list of SegmentScore, or None, for each response"
        )
    for scores, text in zip(results, texts):
        if scores is None:
            continue
        if not isinstance(scores, Sequence):
            raise UserError(
                f"the reward `{name}` returned {scores!r:.60} for the response {text[:60]!r}: a"
                " list of SegmentScore is needed, or None if the reward does not apply"
            )
        for score in scores:
            problem = _score_problem(score, text)
            if problem is not None:
                raise UserError(
                    f"the reward `{name}` returned {score!r:.120} for the response"
                    f" {text[:60]!r}: {problem}"
                )
    return results


def _with_scores(scores: Any) -> Any:
    """A response's scores; tuples (start, end, value) or (start, end, value, label) are scores."""
    if not isinstance(scores, list):
        return scores
    made = []
    for score in scores:
        is_tuple = isinstance(score, tuple) and len(score) in (3, 4)
        try:
            made.append(SegmentScore(*score) if is_tuple else score)
        except (TypeError, ValueError):  # such as a start after its end
            made.append(score)
    return made


def _score_problem(score: Any, text: str) -> str | None:
    if not isinstance(score, SegmentScore):
        return "it must be a SegmentScore, or a tuple (start, end, value)"
    if isinstance(score.value, bool) or not isinstance(score.value, int | float):
        return "its value must be a number, such as float(x) or x.item()"
    if not isinstance(score.start, int) or not isinstance(score.end, int | None):
        return "start and end of its span must be whole numbers, such as int(x); end may be None"
    if not isinstance(score.label, str):
        return "its label must be text, such as str(x)"
    if score.end is not None and score.end > len(text):
        return f"its span ends after the response, which has {len(text)} characters"
    return None


def most_probable(probabilities: Mapping[str, float], ok: str) -> str:
    """The label with the highest probability; `ok` on a tie."""
    return max((ok, *probabilities), key=lambda label: probabilities[label])  # the first of equals


def segment_value(
    probabilities: Mapping[str, float],
    values: Mapping[str, float],
    ok: str,
    how: SegmentValue = "hard",
) -> float:
    """What a segment is worth, from the probability p and the value v of each label.

        hard        v of the most probable label; a tie goes to `ok`
        expected    sum_l p(l) v(l)
        log_odds    (1 + r) / 2 v(ok) + (1 - r) / 2 v(error)
                    r = clip(log(p(ok) / p(error)), -L, L) / L,    L = LOG_ODDS_BOUND

    p(error) is the sum over the labels but `ok`, v(error) the mean of their values under p. Both
    soft values are v(ok) of a segment that is surely right and v(error) of one that is surely
    wrong, and they agree where the model is undecided. Between these points, `log_odds` still
    tells a surer judgement from a less sure one where p itself hardly changes.
    """
    # Comparisons with NaN are false, so `max` would hide it. `_check_finite` must see it.
    if not all(map(math.isfinite, probabilities.values())):
        return math.nan
    if how == "hard":
        return values[most_probable(probabilities, ok)]
    if how == "expected":
        return sum(p * values[label] for label, p in probabilities.items())
    errors = {label: p for label, p in probabilities.items() if label != ok}
    p_error = sum(errors.values())
    if p_error == 0:
        return values[ok]
    of_error = sum(p * values[label] for label, p in errors.items()) / p_error
    if probabilities[ok] == 0:
        return of_error
    log_odds = math.log(probabilities[ok]) - math.log(p_error)
    r = min(max(log_odds / LOG_ODDS_BOUND, -1), 1)
    return (1 + r) / 2 * values[ok] + (1 - r) / 2 * of_error


class SegmentClassifierReward:
    """Rewards each segment with what its labels are worth (`segment_value`).

    The candidates are the error labels and the error-free label (`RewardModelSpec.judged_labels`).
    A segment that the reward model could not read (`judged` False) gets 0.

    A segment's label, which pictures show and `error_free` counts, is the most probable one. With a
    soft value, it is that of an error if p(error) is above the model's `error_threshold`.

    Args:
      scorer: the reward model.
      values: reward by label. `ok` is an alias of the model's error-free label; `error` applies to
        every other error label. Labels without a value are worth 0.
      value: how probabilities become a value, see `segment_value`.
    Raises:
      UserError: the model has no such label.
    """

    def __init__(
        self,
        scorer: "SegmentScorer",
        values: Mapping[str, float],
        value: SegmentValue = "hard",
    ):
        *error_labels, self.ok = scorer.spec.judged_labels
        self.scorer = scorer
        self.value: SegmentValue = value
        self.values = {self.ok: values.get("ok", 0.0)}
        for label in error_labels:
            self.values[label] = values.get("error", 0.0)
        for label, amount in values.items():
            if label in self.values:
                self.values[label] = amount
            elif label not in ("error", "ok"):
                raise UserError(
                    f"a value is set for the label `{label}`, which the reward model does not"
                    f" have: its labels are {', '.join(scorer.spec.judged_labels)}"
                )

    def segment_scores(self, prompts, texts):
        return self._scores(self.scorer.score(prompts, texts))

    def member_scores(self, prompts, texts):
        """The scores that each member of the reward model gives: member -> response."""
        return [self._scores(labelled) for labelled in self.scorer.score_members(prompts, texts)]

    def _scores(self, labelled_texts: Sequence["SegmentLabels"]) -> list[list[SegmentScore]]:
        of_whole = self.scorer.spec.level in WHOLE_LEVELS
        results = []
        for labelled in labelled_texts:
            columns = {label: labelled.labels.index(label) for label in self.values}
            scores = []
            rows = labelled.probabilities_SC.tolist()
            for (start, end), row, was_read in zip(labelled.spans, rows, labelled.judged):
                probabilities = {label: row[column] for label, column in columns.items()}
                value, label = self._judgement(probabilities) if was_read else (0.0, "unread")
                # a judgement of the whole response also rates the decision to stop
                scores.append(SegmentScore(start, None if of_whole else end, value, label))
            results.append(scores)
        return results

    def measures(self, scores: Sequence[SegmentScore]) -> dict[str, float]:
        """Counts for one response: `error_free` segments, and all `segments` the model read."""
        *error_labels, ok_label = self.scorer.spec.judged_labels
        labels = [score.label for score in scores]
        error_free = labels.count(ok_label)
        errors = sum(label in error_labels for label in labels)
        return {ERROR_FREE: error_free, "segments": error_free + errors}

    def _judgement(self, probabilities: Mapping[str, float]) -> tuple[float, str]:
        value = segment_value(probabilities, self.values, self.ok, self.value)
        return value, "NaN" if math.isnan(value) else self._label(probabilities)

    def _label(self, probabilities: Mapping[str, float]) -> str:
        if self.value == "hard":
            return most_probable(probabilities, self.ok)
        errors = {name: p for name, p in probabilities.items() if name != self.ok}
        is_error = sum(errors.values()) > self.scorer.spec.error_threshold
        return max(errors, key=lambda name: errors[name]) if is_error else self.ok


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
        return self._scores(self.scorer.score(prompts, texts), self.mean, self.std)

    def member_scores(self, prompts, texts):
        """The scores that each member of the reward model gives: member -> response.

        Each is standardised by its own mean and standard deviation.
        """
        spec = self.scorer.spec
        of_members = self.scorer.score_members(prompts, texts)
        moments = zip(of_members, spec.member_means, spec.member_stds, strict=True)
        return [self._scores(scores_B, mean, std) for scores_B, mean, std in moments]

    def _scores(self, scores_B: Tensor, mean: float, std: float) -> list[list[SegmentScore]]:
        results = []
        for score in scores_B.tolist():
            z = (score - mean) / std
            # max and min return NaN if their first argument is NaN; `_check_finite` reports it
            z = min(max(z, -self.clip), self.clip)
            reward = self.scale * z + self.bias
            results.append([SegmentScore(0, None, reward, f"z={z:+.2f}")])
        return results

    def measures(self, scores: Sequence[SegmentScore]) -> dict[str, float]:
        """`score`: the clipped z-score before scale and bias; {} if the scale is 0."""
        if self.scale == 0:
            return {}
        return {"score": (scores[0].value - self.bias) / self.scale}


class AtEnd:
    """Moves every segment's value to the end of the response, so that they add up to one scalar."""

    def __init__(self, aspect: AspectReward):
        self.aspect = aspect
        self.needs_tokens = getattr(aspect, "needs_tokens", False)
        self.remote = getattr(aspect, "remote", False)

    def segment_scores(self, prompts, texts, tokens=None):
        moved = []
        for scores in scores_of(self.aspect, prompts, texts, tokens):
            at_end = None if scores is None else [replace(score, end=None) for score in scores]
            moved.append(at_end)
        return moved

    def measures(self, scores: Sequence[SegmentScore]) -> dict[str, float]:
        """The measures of the wrapped reward; {} if it has none."""
        measures = getattr(self.aspect, "measures", None)
        return {} if measures is None else measures(scores)


@dataclass
class RunningSpread:
    """The standard deviation of all numbers so far, joined part by part (Chan et al. 1979)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of the squared deviations from the mean

    def update(self, values_N: Tensor) -> None:
        """Join the numbers of a step."""
        values_N = values_N.double()
        mean = float(values_N.mean())
        squares = float(((values_N - mean) ** 2).sum())
        total = self.count + len(values_N)
        self.squares += squares + (mean - self.mean) ** 2 * self.count * len(values_N) / total
        self.mean += (mean - self.mean) * len(values_N) / total
        self.count = total

    @property
    def std(self) -> float:
        return (self.squares / max(self.count, 1)) ** 0.5


def normalized(
    rewards: TokenReward, spreads: dict[str, RunningSpread] | None = None
) -> TokenReward:
    """w_k r_k / std_b(sum_t r_k): each reward divided by its std over the batch, then weighted.

    The std is taken over the responses to which the reward applies. No mean is subtracted: on
    tokens it would act as a length penalty or bonus. A reward that is equal for all responses, but
    for rounding, is left unchanged.

    Args:
      spreads: of each reward, without its weight, in the responses of all steps so far; this batch
        is joined, and the std is theirs. None: that of the batch alone.
    """
    scaled = {}
    for name, rewards_BT in rewards.by_aspect.items():
        applies_B = torch.tensor(rewards.applies(name), device=rewards_BT.device)
        if not applies_B.any():
            scaled[name] = rewards_BT
            continue
        sums_N = rewards_BT[applies_B].sum(1)
        std = float(sums_N.std(correction=0))
        largest = float(rewards_BT[applies_B].abs().sum(1).max())
        weight = abs(rewards.weight(name))
        if spreads is not None:
            spread = spreads.setdefault(name, RunningSpread())
            spread.update(sums_N / weight)
            std, largest = spread.std * weight, max(largest, abs(spread.mean) * weight)
        has_spread = std > ROUNDING * largest
        scaled[name] = rewards_BT * (weight / std) if has_spread else rewards_BT
    return replace(rewards, by_aspect=scaled)


def with_kl(
    rewards: TokenReward, rollout: Rollout, kl_coef: float, logged_coef: float
) -> TokenReward:
    """The rewards and, as one more aspect, the KL penalty -beta (log pi(a_t) - log pi_ref(a_t)).

    Args:
      kl_coef: beta of this step.
      logged_coef: beta that stays, in place of a weight of the logs.
    """
    nothing_BT = torch.zeros_like(rollout.logprobs_BT)
    logprobs = (rollout.logprobs_BT, rollout.ref_logprobs_BT, rollout.response_mask_BT)

    def added(to: TokenReward, coef: float) -> TokenReward:
        penalty_BT = kl_penalized(nothing_BT, *logprobs, coef)
        return replace(
            to,
            by_aspect={**to.by_aspect, KL_ASPECT: penalty_BT},
            weights={**to.weights, KL_ASPECT: coef},
        )

    logged = added(rewards.logged or rewards, logged_coef)
    return replace(added(rewards, kl_coef), logged=logged)


def _check_finite(name: str, segments: Sequence[Scores], texts: Sequence[str]) -> None:
    """Raise `UserError` if a score of the reward `name` is NaN, infinite or too large."""
    for scores, text in zip(segments, texts):
        for score in scores or ():
            if not abs(score.value) <= LARGEST_SCORE:
                raise UserError(
                    f"reward `{name}` is {score.value} for the answer {text[:120]!r}: training on"
                    " it would destroy the policy. Check what it computes (of a reward model: the"
                    " weights, mean and std), or disable the reward with weight 0."
                )


class BasicReward(ABC):
    """Abstract base of token-level rewards.

    Named rewards score spans of the text; each becomes one tensor over the policy's tokens.
    """

    # reward name -> the weight its values were multiplied with; 1 if missing
    weights: Mapping[str, float] = {}

    def start(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> None:  # noqa: B027
        """Begin to score texts that `segment_scores` will get, where that waits for a server."""

    @abstractmethod
    def segment_scores(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        tokens: Sequence[ResponseTokens] | None = None,
    ) -> dict[str, Sequence[Scores]]:
        """Reward name -> scored segments of each text; None if the reward does not apply."""

    def measures(self, name: str, scores: Sequence[SegmentScore]) -> dict[str, float]:
        """The named reward's measures (`MeasuredReward`) of one response; {} if it has none."""
        return {}

    def token_rewards(self, rollout: Rollout) -> TokenReward:
        """Score a rollout's texts and place the rewards on its tokens.

        Raises:
          UserError: a reward is NaN or infinite.
        """
        segments = self.segment_scores(rollout.prompts, rollout.texts, _tokens_of(rollout))
        for name, scores in segments.items():
            _check_finite(name, scores, rollout.texts)
        placed = {
            name: place_on_tokens(scores, rollout.char_ends, rollout.response_mask_BT)
            for name, scores in segments.items()
        }
        return TokenReward(placed, segments, rollout.response_mask_BT, self.weights)

    @staticmethod
    def penalized(rewards: TokenReward, rollout: Rollout, kl_coef: float) -> Tensor:
        """rewards_BT: the sum over aspects minus the KL penalty."""
        return kl_penalized(
            rewards.total_BT,
            rollout.logprobs_BT,
            rollout.ref_logprobs_BT,
            rollout.response_mask_BT,
            kl_coef,
        )


def _tokens_of(rollout: Rollout) -> list[ResponseTokens] | None:
    """The tokens, for rewards with `needs_tokens`; None if the rollout did not record them."""
    if rollout.finished is None:
        return None
    return response_tokens(rollout.char_ends, rollout.finished, rollout.turns)


def response_tokens(
    char_ends: Sequence[tuple[int, ...]],
    finished: Sequence[bool],
    turns: Sequence[tuple[Turn, ...]] | None,
) -> list[ResponseTokens]:
    """The tokens of each response, for rewards with `needs_tokens`."""
    turns = turns or [()] * len(finished)
    return [ResponseTokens(*parts) for parts in zip(char_ends, finished, turns, strict=True)]


class CombinedReward(BasicReward):
    """Several named rewards, each multiplied by its weight.

    Remote rewards (`AspectReward`) wait for their servers at the same time, in threads, while the
    others are computed here. The results are the same as one after the other.
    """

    def __init__(
        self, aspects: Mapping[str, AspectReward], weights: Mapping[str, float] | None = None
    ):
        self.aspects = dict(aspects)
        self.weights = {name: 1.0 if weights is None else weights[name] for name in self.aspects}
        self._started: _Requests | None = None

    @property
    def needs_tokens(self) -> bool:
        return any(getattr(aspect, "needs_tokens", False) for aspect in self.aspects.values())

    def measures(self, name: str, scores: Sequence[SegmentScore]) -> dict[str, float]:
        aspect, weight = self.aspects[name], self.weights[name]
        if not isinstance(aspect, MeasuredReward) or weight == 0:
            return {}
        return aspect.measures([replace(score, value=score.value / weight) for score in scores])

    def start(self, prompts, texts):
        self._started = _Requests(self.aspects, prompts, texts)

    def segment_scores(self, prompts, texts, tokens=None):
        requests = self._started
        self._started = None
        if requests is None or not requests.are_for(prompts, texts):
            requests = _Requests(self.aspects, prompts, texts)
        # the servers work while the other rewards are computed here
        computed_here = [name for name in self.aspects if name not in requests.by_name]
        unweighted = {}
        for name in (*computed_here, *requests.by_name):
            aspect = self.aspects[name]
            try:
                if name in requests.by_name:
                    scores = requests.by_name[name].result()
                else:
                    scores = scores_of(aspect, prompts, texts, tokens)
            except Exception as error:
                error.add_note(f"in the reward `{name}` ({type(aspect).__name__})")
                if isinstance(error, KeyError):
                    _note_missing_key(error, prompts)
                raise
            unweighted[name] = checked_scores(name, scores, texts)
        return {name: _weighted(unweighted[name], weight) for name, weight in self.weights.items()}


def _note_missing_key(error: KeyError, prompts: Sequence[Prompt]) -> None:
    """Name the first prompt whose row lacks the key, if that is why a reward failed."""
    key = error.args[0] if error.args else None
    for prompt in prompts:
        if key not in prompt.meta:
            keys = ", ".join(map(str, prompt.meta)) or "none"
            error.add_note(
                f"the row of prompt {shorten(prompt.id, 80)} has no {key!r}; the keys of its"
                f" Prompt.meta, which come from the file of the prompts: {keys}"
            )
            return


def _weighted(results: Sequence[Scores], weight: float) -> list[Scores]:
    weighted: list[Scores] = []
    for scores in results:
        if scores is not None:
            scores = [replace(score, value=weight * score.value) for score in scores]
        weighted.append(scores)
    return weighted


class _Requests:
    """The running calls of the remote rewards for some texts.

    Attributes:
      by_name: name of a reward -> its call.
    """

    def __init__(
        self, aspects: Mapping[str, AspectReward], prompts: Sequence[Prompt], texts: Sequence[str]
    ):
        self.prompts = tuple(prompts)
        self.texts = tuple(texts)
        self.by_name: dict[str, Background[Sequence[Scores]]] = {}
        for name, aspect in aspects.items():
            needs_tokens = getattr(aspect, "needs_tokens", False)  # which are not known here
            if getattr(aspect, "remote", False) and not needs_tokens:
                call = partial(scores_of, aspect, self.prompts, self.texts, None)
                self.by_name[name] = Background(call)

    def are_for(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> bool:
        same_prompts = [prompt.id for prompt in prompts] == [prompt.id for prompt in self.prompts]
        return same_prompts and self.texts == tuple(texts)

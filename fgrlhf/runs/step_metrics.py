"""What a step logs: times of its phases, and metrics and samples of its global rollout."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor

from fgrlhf.runs.runlog import CPU
from fgrlhf.text_types import Turn, segment_rows
from fgrlhf.types import Advantages, Rollout, TokenReward
from fgrlhf.utils import ROUNDING, masked_mean, masked_var


class PhaseClock:
    """Times named blocks of one step, and the processor time of the whole step.

    clock = PhaseClock()
    with clock.time("rollout"):
        ...
    clock.seconds(["rollout"])  # {"time/rollout": 1.6, "time/cpu": 2.9}
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._started = process_time()

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Measure the block, in seconds; a later block with the same name replaces the first."""
        started = perf_counter()
        yield
        self._seconds[phase] = perf_counter() - started

    def seconds(self, phases: Iterable[str]) -> dict[str, float]:
        """The metrics `time/<phase>` of these phases, and `time/cpu`.

        The latter are the seconds that this process has computed since the clock was made, summed
        over its threads, so they do not grow when other programs use the processors.
        """
        seconds = {f"time/{phase}": self._seconds[phase] for phase in phases}
        return {**seconds, CPU: process_time() - self._started}


def explained_variance(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> float:
    """1 - Var(R - V) / Var(R) under the mask; 0 if R is constant, but for rounding.

    It is 1 for a perfect critic and 0 for a constant one.
    """
    variance = masked_var(returns_BT, mask_BT)
    largest = torch.where(mask_BT.bool(), returns_BT.abs(), torch.zeros_like(returns_BT)).max()
    if not variance.sqrt() > ROUNDING * largest:  # NaN counts as no spread, too
        return 0.0
    return float(1 - masked_var(returns_BT - values_BT, mask_BT) / variance)


def rollout_metrics(
    rollout: Rollout,
    rewards: TokenReward,
    penalized_BT: Tensor,
    advantages: Advantages,
    aspects: Iterable[str] = (),
) -> dict[str, float]:
    """Means over responses of rewards, KL (both summed over tokens) and length; critic metrics.

    `reward_std` is the standard deviation over responses of the total.

    With `algorithm.normalize_aspects: batch`, `reward/penalized` is that of the normalised rewards;
    the total and the rewards by name keep their units.

    Args:
      aspects: the outputs of the critic, if it has one per aspect.
    """
    mask_BT = rollout.response_mask_BT
    kl_BT = (rollout.logprobs_BT - rollout.ref_logprobs_BT) * mask_BT
    metrics = {
        "reward/total": float(rewards.total_BT.sum(1).mean()),
        "reward_std": float(rewards.total_BT.sum(1).std(correction=0)),
        "reward/penalized": float(penalized_BT.sum(1).mean()),
        "kl": float(kl_BT.sum(1).mean()),
        "length": float(mask_BT.sum(1).float().mean()),
    }
    for name, rewards_BT in rewards.by_aspect.items():
        # NaN (null in the log) if the reward applies to no response
        applies_B = torch.tensor(rewards.applies(name), device=rewards_BT.device)
        metrics[f"reward/{name}"] = float(rewards_BT[applies_B].sum(1).mean())
        deviations = [
            score.std
            for scores in rewards.segments[name]
            for score in scores or ()
            if score.std is not None
        ]
        if deviations:
            metrics[f"disagreement/{name}"] = sum(deviations) / len(deviations)
    if advantages.returns_BT is not None and rollout.values_BT is not None:
        metrics["value/explained_variance"] = explained_variance(
            rollout.values_BT, advantages.returns_BT, mask_BT
        )
        for a, name in enumerate(aspects):
            assert advantages.returns_BTA is not None and rollout.values_BTA is not None
            metrics[f"value/explained_variance/{name}"] = explained_variance(
                rollout.values_BTA[..., a], advantages.returns_BTA[..., a], mask_BT
            )
        metrics["value/mean"] = float(masked_mean(rollout.values_BT, mask_BT))
    return metrics


@dataclass(frozen=True)
class InputCounts:
    """How many inputs a reward model has read, and how many of them it had to cut."""

    seen: int = 0
    cut: int = 0

    def __add__(self, other: "InputCounts") -> "InputCounts":
        return InputCounts(self.seen + other.seen, self.cut + other.cut)

    def __sub__(self, other: "InputCounts") -> "InputCounts":
        return InputCounts(self.seen - other.seen, self.cut - other.cut)


def input_counts(reward) -> dict[str, InputCounts]:
    """The inputs of this process so far, by the name of the reward.

    Only for reward models that count them.
    """
    counts = {}
    for name, aspect in getattr(reward, "aspects", {}).items():
        unwrapped = getattr(aspect, "aspect", aspect)  # `AtEnd` wraps another reward
        scorer: Any = getattr(unwrapped, "scorer", None)
        if hasattr(scorer, "seen"):
            counts[name] = InputCounts(scorer.seen, scorer.cut_inputs)
    return counts


def inputs_since(reward, before: Mapping[str, InputCounts]) -> dict[str, InputCounts]:
    """The inputs since `input_counts` returned `before`."""
    return {name: count - before[name] for name, count in input_counts(reward).items()}


def cut_shares(processes: Sequence[Mapping[str, InputCounts]]) -> dict[str, float]:
    """`cut/<name>`: the share of its inputs, over all processes, that a reward model had to cut.

    A reward model without inputs is left out.
    """
    shares = {}
    for name in processes[0]:
        total = sum((counts[name] for counts in processes), InputCounts())
        if total.seen:
            shares[f"cut/{name}"] = total.cut / total.seen
    return shares


def sample_rows(
    tokenizer, rollout: Rollout, rewards: TokenReward, advantages: Advantages, limit: int
) -> list[dict]:
    """The first `limit` rollouts as JSON-compatible rows: texts, tokens and numbers per token."""
    kl_BT = rollout.logprobs_BT - rollout.ref_logprobs_BT
    rows = []
    for b in range(min(limit, len(rollout))):
        length = int(rollout.response_mask_BT[b].sum())
        ids = rollout.response_ids_BT[b, :length].tolist()
        values = None
        if rollout.values_BT is not None:
            values = rounded(rollout.values_BT[b], length)
        replies = None if rollout.turns is None else reply_rows(rollout.turns[b])
        rows.append(
            {
                "prompt": rollout.prompts[b].text,
                "response": rollout.texts[b],
                "tokens": texts_of_tokens(tokenizer, ids, rollout.texts[b], rollout.char_ends[b]),
                "rewards": {
                    name: rounded(rewards_BT[b], length)
                    for name, rewards_BT in rewards.by_aspect.items()
                },
                "segments": {
                    name: segment_rows(scores[b]) for name, scores in rewards.segments.items()
                },
                "kl": rounded(kl_BT[b], length),
                "values": values,
                "advantages": rounded(advantages.advantages_BT[b], length),
                "reward": round(float(rewards.total_BT[b].sum()), 5),
            }
            | ({} if replies is None else {"replies": replies})
        )
    return rows


def reply_rows(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """What an environment said, and the number of the policy's tokens before it."""
    rows = []
    n_tokens = 0
    for turn in turns:
        n_tokens += turn.n_tokens
        rows.append({"after": n_tokens, "role": turn.reply.role, "text": turn.reply.text})
    return rows


def texts_of_tokens(
    tokenizer, ids: Sequence[int], text: str, char_ends: Sequence[int]
) -> list[str]:
    """What each token adds to the text; its name if it adds nothing, such as the end token.

    Args:
      char_ends: number of characters of the text that are complete after each token.
    """
    texts = []
    start = 0
    for token_id, end in zip(ids, char_ends):
        texts.append(text[start:end] or tokenizer.convert_ids_to_tokens(token_id))
        start = end
    return texts


def rounded(values_T: Tensor, length: int) -> list[float]:
    """The numbers of the first `length` tokens, with five decimals."""
    return [round(value, 5) for value in values_T[:length].tolist()]

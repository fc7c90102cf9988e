"""Scores a policy on prompts: one row per response, and a summary with intervals over the
questions.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from fgrlhf.errors import UserError
from fgrlhf.evaluators import RougeLsum
from fgrlhf.models.decoding import Sampling
from fgrlhf.policy import Policy
from fgrlhf.reward import AtEnd, BasicReward, SegmentClassifierReward, SequenceScorerReward
from fgrlhf.reward_utils import Segmenter
from fgrlhf.stats import Interval, bootstrap, ratio_bootstrap
from fgrlhf.types import Prompt, SegmentScore
from fgrlhf.utils import derive_seed, masked_sum

Metric = Callable[[Prompt, str], Mapping[str, float]]

# A segment aspect's row holds two counts, `<aspect>/error_free` and `<aspect>/segments`; the
# summary holds their ratio.
TOP, BOTTOM = "/error_free", "/segments"


@dataclass(frozen=True)
class Evaluation:
    """`rows` are JSON-able dicts (see `evaluate_rows`); `summary` maps metric names to {mean, low,
    high}.
    """

    rows: list[dict]
    summary: dict[str, dict[str, float]]


def evaluate(
    policy: Policy,
    prompts: Sequence[Prompt],
    reward: BasicReward | None,
    sampling: Sampling,
    seed: int = 0,
    **options,
) -> Evaluation:
    """`evaluate_rows` (which takes the options) and `summarize` in one."""
    rows = evaluate_rows(policy, prompts, reward, sampling, seed, **options)
    return Evaluation(
        rows, {name: interval.as_dict() for name, interval in summarize(rows).items()}
    )


@torch.no_grad()
def evaluate_rows(
    policy: Policy,
    prompts: Sequence[Prompt],
    reward: BasicReward | None,
    sampling: Sampling,
    seed: int = 0,
    metrics: Sequence[Metric] = (),
    reference: Policy | None = None,
    num_samples: int = 1,
    progress: bool = True,
    *,
    temperature: float | None = None,
    segmenter: Segmenter | None = None,
    batch_size: int = 32,
) -> list[dict]:
    """Answer every prompt `num_samples` times and score the answers.

    Args:
      reward: adds its columns; None for none.
      seed: answers are a pure function of (seed, prompt id, sample): batches and processes do not
        matter.
      metrics: functions (prompt, text) -> {name: number}, whose numbers join the row.
      reference: adds `kl`, sum_t log pi(a_t) - log pi_ref(a_t) of the response.
      temperature: of the log-probabilities in `kl`; by default that of sampling, and 1 for greedy
        answers.
      segmenter: finds the sentences RougeLsum needs; the blank one by default, which every machine
        has.
    Returns:
      per response, in the prompts' order: id, sample, prompt, response, references, segments
      ({aspect: [{start, end, value, label}]}), `reward` and `reward/<aspect>`,
      `<aspect>/error_free` and `<aspect>/segments` counts of aspects that classify segments,
      `<aspect>/score` (z-score) of those that score the whole answer, rougeLsum (0-100, where there
      are references), length (words), kl, and the extra metrics.
    """
    if temperature is None:
        temperature = sampling.temperature if sampling.do_sample else 1.0
    rouge = RougeLsum(segmenter)
    by_id: dict[int, list[dict]] = {}
    bar = tqdm(total=len(prompts), desc="evaluating", unit="prompt", disable=not progress)
    for places in _batches(prompts, batch_size):
        batch = [prompts[i] for i in places]
        texts, kls = _answers(policy, batch, sampling, seed, num_samples, reference, temperature)
        owners = [prompt for prompt in batch for _ in range(num_samples)]
        scored = [{} for _ in texts] if reward is None else _reward_columns(reward, owners, texts)
        for n, (prompt, text) in enumerate(zip(owners, texts)):
            row = {
                "id": prompt.id,
                "sample": n % num_samples,
                "prompt": prompt.text,
                "response": text,
                "references": list(prompt.references),
            }
            row |= scored[n] | {"length": len(text.split())}
            if prompt.references:
                row["rougeLsum"] = rouge(text, prompt.references)
            if kls is not None:
                row["kl"] = kls[n]
            for metric in metrics:
                row |= metric(prompt, text)
            by_id.setdefault(places[n // num_samples], []).append(row)
        bar.update(len(batch))
    bar.close()
    return [row for i in range(len(prompts)) for row in by_id[i]]


def summarize(rows: Sequence[Mapping], seed: int = 0) -> dict[str, Interval]:
    """Means over responses with 95% bootstrap intervals over questions (rows of one id are one
    question).

    `<aspect>/ratio` is the ratio of sums over the whole set, error-free segments / segments. Every
    other number of the rows is averaged within its question, then over questions.
    """
    questions: dict[str, list[Mapping]] = {}
    for row in rows:
        questions.setdefault(row["id"], []).append(row)
    names = dict.fromkeys(
        name
        for row in rows
        for name, value in row.items()
        if name != "sample" and isinstance(value, int | float)
    )
    summary = {}
    for name in names:
        if name.endswith(BOTTOM):
            aspect = name.removesuffix(BOTTOM)
            counts = [
                [sum(row[aspect + part] for row in group) for part in (TOP, BOTTOM)]
                for group in questions.values()
            ]
            summary[f"{aspect}/ratio"] = ratio_bootstrap(*zip(*counts), seed=seed)
        elif not name.endswith(TOP):
            groups = [[row[name] for row in group if name in row] for group in questions.values()]
            summary[name] = bootstrap([np.mean(values) for values in groups if values], seed=seed)
    return summary


def _batches(prompts: Sequence[Prompt], size: int) -> Iterator[list[int]]:
    """Places of the prompts, those of like length together: little padding is computed."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].text))
    return (order[start : start + size] for start in range(0, len(order), size))


def _answers(
    policy: Policy,
    batch: Sequence[Prompt],
    sampling: Sampling,
    seed: int,
    num_samples: int,
    reference: Policy | None,
    temperature: float,
) -> tuple[list[str], list[float] | None]:
    """Texts (K consecutive ones per prompt) and their KL to the reference."""
    ids_BP, mask_BP = policy.encode([prompt.text for prompt in batch])
    seeds = [
        derive_seed(seed, "response", prompt.id, k) for prompt in batch for k in range(num_samples)
    ]
    response = policy.generate(ids_BP, mask_BP, sampling, seeds, num_samples, temperature)
    kept = [
        row[: int(n)] for row, n in zip(response.ids_BT.tolist(), response.mask_BT.sum(1).tolist())
    ]
    texts = policy.tokenizer.batch_decode(kept, skip_special_tokens=True)
    if reference is None:
        return texts, None
    inputs = (
        ids_BP.repeat_interleave(num_samples, 0),
        mask_BP.repeat_interleave(num_samples, 0),
        response.ids_BT,
        response.mask_BT,
    )
    ref_output, _ = reference(*inputs, temperature=temperature)
    difference_BT = response.logprobs_BT - ref_output.logprobs_BT
    return texts, [
        float(masked_sum(row_T, row_mask_T))
        for row_T, row_mask_T in zip(difference_BT, response.mask_BT)
    ]


def _reward_columns(
    reward: BasicReward, prompts: Sequence[Prompt], texts: Sequence[str]
) -> list[dict]:
    """What the reward says of each text, as the columns of its row."""
    columns: list[dict] = [{"reward": 0.0, "segments": {}} for _ in texts]
    for name, segments in reward.segment_scores(prompts, texts).items():
        for column, prompt, scores in zip(columns, prompts, segments, strict=True):
            if scores is None:  # the reward does not apply to this response
                continue
            value = float(sum(score.value for score in scores))
            if not math.isfinite(value):
                raise UserError(
                    f"reward `{name}` is {value} for an answer to prompt {prompt.id}: check that"
                    " model's weights, mean and std, or leave the aspect out with weight 0"
                )
            column["reward"] += value
            column[f"reward/{name}"] = value
            column["segments"][name] = [
                {"start": s.start, "end": s.end, "value": s.value, "label": s.label} for s in scores
            ]
            column |= _judgement(reward, name, scores)
    return columns


def _judgement(reward: BasicReward, name: str, scores: Sequence[SegmentScore]) -> dict[str, float]:
    """The paper's measure of an aspect, with weight and scale taken out; none for kinds of a user's
    own.
    """
    aspect, weight = (
        getattr(reward, "aspects", {}).get(name),
        getattr(reward, "weights", {}).get(name, 1.0),
    )
    if isinstance(aspect, AtEnd):
        aspect = aspect.aspect
    if isinstance(aspect, SegmentClassifierReward):
        spec = aspect.scorer.spec
        labels = [
            score.label for score in scores if score.label in (spec.ok_label, spec.error_label)
        ]  # read and judged
        return {name + TOP: labels.count(spec.ok_label), name + BOTTOM: len(labels)}
    if isinstance(aspect, SequenceScorerReward) and aspect.scale:
        return {f"{name}/score": (scores[0].value / weight - aspect.bias) / aspect.scale}
    return {}

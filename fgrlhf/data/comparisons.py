"""Answers compared with each other: what people said, as tokens, weights of tokens, and batches.

A comparison is one prompt with several answers and the pairs of them in which one is better. Every
answer goes through the network once, however many pairs it is in, and the prompt once for all of
them. An answer can have marked characters, those that decided the comparison; the tokens they are
part of weigh more (docs/algorithms.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fgrlhf.errors import UserError
from fgrlhf.policy import Policy
from fgrlhf.types import Prompt

PROMPTS_AT_ONCE = 64


@dataclass(frozen=True)
class Answer:
    """`marked`: half-open ranges of characters of `text`."""

    text: str
    marked: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Comparison:
    """`pairs` are (better, worse) places in `answers`."""

    prompt: Prompt
    answers: tuple[Answer, ...]
    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self):
        if any(not 0 <= i < len(self.answers) for pair in self.pairs for i in pair):
            raise ValueError(f"pairs {self.pairs} of {len(self.answers)} answers")


@dataclass(frozen=True)
class TokenComparison:
    """A comparison as the policy reads it: ids of the prompt and of every answer, and a weight per
    answer token.
    """

    source: Comparison
    prompt_ids: Sequence[int]
    answer_ids: Sequence[Sequence[int]]
    weights: Sequence[Sequence[float]]
    pairs: Sequence[tuple[int, int]]

    @property
    def lengths(self) -> tuple[int, int]:
        """Sort key: comparisons of like length need little padding beside each other."""
        return len(self.prompt_ids), max(map(len, self.answer_ids))


@dataclass(frozen=True)
class ComparisonBatch:
    """Padded comparisons, the answers of one prompt side by side. B answers, N pairs; weights are 0
    on padding.
    """

    prompt_ids_BP: Tensor
    prompt_mask_BP: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor
    weights_BT: Tensor
    ref_logprobs_BT: Tensor
    better_N: Tensor  # rows
    worse_N: Tensor

    def __post_init__(self):
        shape = self.response_ids_BT.shape
        for name in ("response_mask_BT", "weights_BT", "ref_logprobs_BT"):
            if getattr(self, name).shape != shape:
                raise ValueError(
                    f"ComparisonBatch.{name} has shape {tuple(getattr(self, name).shape)}, expected"
                    f" {tuple(shape)}"
                )
        if self.better_N.shape != self.worse_N.shape:
            raise ValueError("every pair has a better and a worse answer")

    def to(self, device: torch.device) -> "ComparisonBatch":
        return ComparisonBatch(
            **{item.name: getattr(self, item.name).to(device) for item in fields(self)}
        )


def token_weights(
    offsets: Sequence[tuple[int, int]], marked: Sequence[tuple[int, int]], weight: float
) -> list[float]:
    """`weight` for a token that shares a character with a marked range, 1 for every other.

    Args:
      offsets: for each token its characters [start, end), as the tokenizer tells them.
    """
    return [
        weight if any(start < to and at < end for at, to in marked) else 1.0
        for start, end in offsets
    ]


def encode_comparisons(
    policy: Policy,
    comparisons: Sequence[Comparison],
    max_generated_len: int,
    span_weight: float = 1.0,
) -> list[TokenComparison]:
    """Comparisons as token ids. An answer ends with the token that ends a response
    (`Policy.end_id`), unless it is longer than
    `max_generated_len`: a cut answer has no end. Pairs whose answers are the same tokens are left
      out, and comparisons without any other.

    Raises:
      UserError: nothing is left; a prompt has no tokens; or tokens are to be weighted and the
        tokenizer cannot say which characters they are.
    """
    if span_weight != 1 and not policy.tokenizer.is_fast:
        raise UserError(
            f"dpo.span_weight={span_weight:g} weighs the tokens of marked characters, but"
            f" {type(policy.tokenizer).__name__} does not tell a token's characters: use a"
            " checkpoint with a fast tokenizer (tokenizer.json), or set dpo.span_weight=1"
        )
    prompts = _prompt_ids(policy, [c.prompt.text for c in comparisons])
    found = []
    for comparison in comparisons:
        encoded = [
            _encode_answer(policy, answer, max_generated_len, span_weight)
            for answer in comparison.answers
        ]
        ids, weights = [i for i, _ in encoded], [w for _, w in encoded]
        pairs = [(i, j) for i, j in comparison.pairs if ids[i] != ids[j]]
        if pairs:
            found.append(
                TokenComparison(comparison, prompts[comparison.prompt.text], ids, weights, pairs)
            )
    if not found:
        raise UserError(
            f"{len(comparisons)} comparisons, but no pair of different answers among them, so there"
            " is nothing to learn from: check the feedback file, or raise"
            f" env.max_generated_len={max_generated_len} if answers differ only after that many"
            " tokens"
        )
    return found


def _encode_answer(
    policy: Policy, answer: Answer, max_generated_len: int, span_weight: float
) -> tuple[list[int], list[float]]:
    weighted = bool(answer.marked) and span_weight != 1
    read = policy.tokenizer(
        text_target=answer.text, add_special_tokens=False, return_offsets_mapping=weighted
    )
    ids = [*read["input_ids"], policy.end_id][:max_generated_len]
    if not weighted:
        return ids, [1.0] * len(ids)
    return (
        ids,
        [*token_weights(read["offset_mapping"], answer.marked, span_weight), 1.0][: len(ids)],
    )


def _prompt_ids(policy: Policy, texts: Sequence[str]) -> dict[str, list[int]]:
    """Ids of each different prompt, as the policy encodes it for sampling."""
    found, different = {}, list(dict.fromkeys(texts))
    for start in range(0, len(different), PROMPTS_AT_ONCE):
        part = different[start : start + PROMPTS_AT_ONCE]
        ids_BP, mask_BP = policy.encode(part)
        found |= {
            text: ids_P[mask_P.bool()].tolist()
            for text, ids_P, mask_P in zip(part, ids_BP, mask_BP)
        }
    return found


def collate(
    rows: Sequence[TokenComparison],
    ref_logprobs: Sequence[Sequence[Tensor]] | None,
    pad_id: int,
    left: bool,
) -> ComparisonBatch:
    """A padded batch.

    Args:
      ref_logprobs: of every token of every answer of `rows`; None for zeros.
      left: whether prompts are padded on the left.
    """
    answers = [(row, k) for row in rows for k in range(len(row.answer_ids))]
    first, pairs = 0, []
    for row in rows:
        pairs += [(first + i, first + j) for i, j in row.pairs]
        first += len(row.answer_ids)
    prompts, ids = [row.prompt_ids for row, _ in answers], [row.answer_ids[k] for row, k in answers]
    if ref_logprobs is None:
        reference = [[0.0] * len(answer) for answer in ids]
    else:
        reference = [logprobs.tolist() for few in ref_logprobs for logprobs in few]
    better, worse = zip(*pairs)
    return ComparisonBatch(
        prompt_ids_BP=_padded(prompts, pad_id, left),
        prompt_mask_BP=_padded([[1] * len(p) for p in prompts], 0, left),
        response_ids_BT=_padded(ids, pad_id),
        response_mask_BT=_padded([[1] * len(answer) for answer in ids], 0),
        weights_BT=_padded([row.weights[k] for row, k in answers], 0.0),
        ref_logprobs_BT=_padded(reference, 0.0),
        better_N=torch.tensor(better),
        worse_N=torch.tensor(worse),
    )


def _padded(rows: Sequence[Sequence], fill: float, left: bool = False) -> Tensor:
    width = max(len(row) for row in rows)
    filled = [[fill] * (width - len(row)) for row in rows]
    return torch.tensor([[*pad, *row] if left else [*row, *pad] for row, pad in zip(rows, filled)])

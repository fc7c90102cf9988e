"""Comparisons as token ids, with weights of tokens, and padded batches.

Every answer of a comparison goes through the network once, however many pairs it is in, and the
prompt once for all answers. Tokens with marked characters have a larger weight
(docs/algorithms.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.data.comparisons import Comparison
from fgrlhf.models.base import Policy
from fgrlhf.text_types import Message, Prompt

PROMPTS_AT_ONCE = 64


@dataclass(frozen=True)
class TokenComparison:
    """A comparison in token ids."""

    source: Comparison
    prompt_ids: Sequence[int]
    answer_ids: Sequence[Sequence[int]]
    weights: Sequence[Sequence[float]]  # of the tokens of each answer
    pairs: Sequence[tuple[int, int]]

    @property
    def lengths(self) -> tuple[int, int]:
        """Sort key: a batch of comparisons of similar length needs little padding."""
        return len(self.prompt_ids), max(map(len, self.answer_ids))


@dataclass(frozen=True)
class ComparisonBatch:
    """Padded comparisons of B answers in N pairs. Weights are 0 on padding.

    The answers to a prompt are consecutive rows.
    """

    prompt_ids_BP: Tensor
    prompt_mask_BP: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor
    weights_BT: Tensor
    ref_logprobs_BT: Tensor
    better_N: Tensor  # rows of the better answers
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
    """`weight` for each token that overlaps a marked range, 1 for the others.

    Args:
      offsets: the tokenizer's offsets: characters [start, end) of each token.
    """
    weights = []
    for start, end in offsets:
        is_marked = any(start < last and first < end for first, last in marked)
        weights.append(weight if is_marked else 1.0)
    return weights


def encode_comparisons(
    policy: Policy,
    comparisons: Sequence[Comparison],
    max_generated_len: int,
    span_weight: float = 1.0,
) -> list[TokenComparison]:
    """Comparisons as token ids.

    An answer ends with `Policy.end_id`, unless it is longer than `max_generated_len` and is cut.
    Pairs of answers with the same tokens are left out, and so are comparisons without other pairs.

    Raises:
      UserError: no pair is left, a prompt has no tokens, or tokens have weights and the tokenizer
        has no character offsets.
    """
    if span_weight != 1 and not policy.tokenizer.is_fast:
        raise UserError(
            f"dpo.span_weight={span_weight:g} needs the characters of each token, but"
            f" {type(policy.tokenizer).__name__} has no character offsets: use a checkpoint with"
            " a fast tokenizer (tokenizer.json), or set dpo.span_weight=1"
        )
    prompt_ids = _prompt_ids(policy, [comparison.prompt for comparison in comparisons])
    encoded = []
    for comparison in comparisons:
        rows = _encode_answers(policy, comparison, max_generated_len, span_weight)
        answer_ids = [ids for ids, _ in rows]
        weights = [weights_T for _, weights_T in rows]
        pairs = [(i, j) for i, j in comparison.pairs if answer_ids[i] != answer_ids[j]]
        if pairs:
            prompt = prompt_ids[_key(comparison.prompt)]
            encoded.append(TokenComparison(comparison, prompt, answer_ids, weights, pairs))
    if not encoded:
        raise UserError(
            f"{len(comparisons)} comparisons, but no pair of different answers among them, so there"
            " is nothing to learn from: check the feedback file, or raise"
            f" model.max_generated_len={max_generated_len} if answers differ only after that many"
            " tokens"
        )
    return encoded


def _encode_answers(
    policy: Policy, comparison: Comparison, max_generated_len: int, span_weight: float
) -> list[tuple[list[int], list[float]]]:
    """The ids of each answer's tokens, including the end token, and their weights."""
    answers = comparison.answers
    is_weighted = span_weight != 1 and any(answer.marked for answer in answers)
    tokens = policy.tokenize_responses(
        [comparison.prompt] * len(answers), [answer.text for answer in answers], is_weighted
    )
    rows = []
    for answer, (ids, offsets) in zip(answers, tokens):
        weights = [1.0] * len(ids)
        if is_weighted and answer.marked:
            if offsets is None:
                raise UserError(
                    f"an answer to the prompt {shorten(comparison.prompt.id, 80)} has marked"
                    " characters, but the chat template changes its text, so their tokens are"
                    " unknown: set dpo.span_weight=1, or remove the row"
                )
            weights = token_weights(offsets, answer.marked, span_weight)
        rows.append((ids[:max_generated_len], weights[:max_generated_len]))
    return rows


PromptKey = tuple[str, tuple[Message, ...]]


def _key(prompt: Prompt) -> PromptKey:
    """What a policy reads of a prompt."""
    return prompt.text, prompt.messages


def _prompt_ids(policy: Policy, prompts: Sequence[Prompt]) -> dict[PromptKey, list[int]]:
    """The ids of each distinct prompt, as the policy encodes it for sampling."""
    ids_of: dict[PromptKey, list[int]] = {}
    different = list({_key(prompt): prompt for prompt in prompts}.values())
    for start in range(0, len(different), PROMPTS_AT_ONCE):
        part = different[start : start + PROMPTS_AT_ONCE]
        ids_BP, mask_BP = policy.encode(part)
        for prompt, ids_P, mask_P in zip(part, ids_BP, mask_BP):
            ids_of[_key(prompt)] = ids_P[mask_P.bool()].tolist()
    return ids_of


def collate(
    comparisons: Sequence[TokenComparison],
    ref_logprobs: Sequence[Sequence[Tensor]] | None,
    pad_id: int,
    left: bool,
) -> ComparisonBatch:
    """A padded batch.

    Args:
      ref_logprobs: of every token of every answer of `comparisons`; None for zeros.
      left: whether prompts are padded on the left.
    """
    prompts: list[Sequence[int]] = []  # of each answer
    answers: list[Sequence[int]] = []
    weights: list[Sequence[float]] = []
    better: list[int] = []
    worse: list[int] = []
    for comparison in comparisons:
        first_row = len(answers)
        for i, j in comparison.pairs:
            better.append(first_row + i)
            worse.append(first_row + j)
        for ids, weights_T in zip(comparison.answer_ids, comparison.weights):
            prompts.append(comparison.prompt_ids)
            answers.append(ids)
            weights.append(weights_T)
    if ref_logprobs is None:
        reference = [[0.0] * len(ids) for ids in answers]
    else:
        reference = []
        for logprobs_of_answers in ref_logprobs:
            reference += [logprobs_T.tolist() for logprobs_T in logprobs_of_answers]
    return ComparisonBatch(
        prompt_ids_BP=_padded(prompts, pad_id, left),
        prompt_mask_BP=_padded([[1] * len(ids) for ids in prompts], 0, left),
        response_ids_BT=_padded(answers, pad_id),
        response_mask_BT=_padded([[1] * len(ids) for ids in answers], 0),
        weights_BT=_padded(weights, 0.0),
        ref_logprobs_BT=_padded(reference, 0.0),
        better_N=torch.tensor(better),
        worse_N=torch.tensor(worse),
    )


def _padded(rows: Sequence[Sequence[float]], fill: float, left: bool = False) -> Tensor:
    """Rows as one tensor, padded on one side to the longest row."""
    width = max(len(row) for row in rows)
    padded = []
    for row in rows:
        padding = [fill] * (width - len(row))
        padded.append([*padding, *row] if left else [*row, *padding])
    return torch.tensor(padded)

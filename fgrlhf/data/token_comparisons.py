"""Comparisons as token ids, with the tokens that are marked, and padded batches.

Every answer of a comparison goes through the network once, however many pairs it is in, and the
prompt once for all answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.data.comparisons import Comparison, labels_of_pairs
from fgrlhf.data.stream import chosen, mapped
from fgrlhf.models.base import Policy
from fgrlhf.text_types import Message, Prompt

PROMPTS_AT_ONCE = 64
GOOD, BAD, UNKNOWN = 1, -1, 0  # labels of answers in a batch
WITHOUT_MARKS = "set dpo.span_weight=1 and dpo.unmarked_weight=1, and a dpo.loss without marks"


@dataclass(frozen=True)
class TokenComparison:
    """A comparison in token ids."""

    source: Comparison
    prompt_ids: Sequence[int]
    answer_ids: Sequence[Sequence[int]]
    marked: Sequence[Sequence[bool]]  # whether each token of each answer has marked characters
    pairs: Sequence[tuple[int, int]]
    labels: Sequence[bool | None] = ()  # whether each answer is good; (): nobody said of any


@dataclass(frozen=True)
class ComparisonBatch:
    """Padded comparisons of B answers in N pairs.

    The answers to a prompt are consecutive rows.
    """

    prompt_ids_BP: Tensor
    prompt_mask_BP: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor
    marked_BT: Tensor  # bool, False on padding
    ref_logprobs_BT: Tensor
    better_N: Tensor  # rows of the better answers
    worse_N: Tensor
    labels_B: Tensor  # GOOD, BAD or UNKNOWN

    def __post_init__(self):
        shape = self.response_ids_BT.shape
        for name in ("response_mask_BT", "marked_BT", "ref_logprobs_BT"):
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


def marked_tokens(
    offsets: Sequence[tuple[int, int]], marked: Sequence[tuple[int, int]]
) -> list[bool]:
    """Whether each token overlaps a marked range.

    Args:
      offsets: the tokenizer's offsets: characters [start, end) of each token.
    """
    return [any(start < last and first < end for first, last in marked) for start, end in offsets]


def encode_comparisons(
    policy: Policy,
    comparisons: Sequence[Comparison],
    max_generated_len: int,
    reads_marks: bool = False,
) -> Sequence[TokenComparison]:
    """Comparisons as token ids; of rows in a file, when they are needed.

    An answer ends with `Policy.end_id`, unless it is longer than `max_generated_len` and is cut.
    Pairs of answers with the same tokens are left out, and so are comparisons without other pairs
    or a label.

    Args:
      reads_marks: whether to find the tokens of marked characters; otherwise none is marked.

    Raises:
      UserError: nothing is left, a prompt has no tokens, or marks are to be read and the tokenizer
        has no character offsets.
    """
    if reads_marks and not policy.tokenizer.is_fast:
        raise UserError(
            "the marks of answers need the characters of each token, but"
            f" {type(policy.tokenizer).__name__} has no character offsets: use a checkpoint with"
            f" a fast tokenizer (tokenizer.json), or {WITHOUT_MARKS}"
        )

    def encoded(part: Sequence[Comparison]) -> list[TokenComparison]:
        return _encoded(policy, part, max_generated_len, reads_marks)

    def is_usable(row: TokenComparison) -> bool:
        return bool(row.pairs) or any(label is not None for label in row.labels)

    usable = chosen(mapped(comparisons, encoded), is_usable)
    if not usable:
        raise UserError(
            f"{len(comparisons)} comparisons, but no pair of different answers among them, so there"
            " is nothing to learn from: check the feedback file, or raise"
            f" model.max_generated_len={max_generated_len} if answers differ only after that many"
            " tokens"
        )
    return usable


def _encoded(
    policy: Policy, comparisons: Sequence[Comparison], max_generated_len: int, reads_marks: bool
) -> list[TokenComparison]:
    """The comparisons as token ids, also those that have nothing to learn from."""
    prompt_ids = _prompt_ids(policy, [comparison.prompt for comparison in comparisons])
    encoded = []
    for comparison in comparisons:
        rows = _encode_answers(policy, comparison, max_generated_len, reads_marks)
        answer_ids = [ids for ids, _ in rows]
        pairs = [(i, j) for i, j in comparison.pairs if answer_ids[i] != answer_ids[j]]
        labels = comparison.labels or labels_of_pairs(len(answer_ids), pairs)
        prompt = prompt_ids[_key(comparison.prompt)]
        marked = [marked_T for _, marked_T in rows]
        encoded.append(TokenComparison(comparison, prompt, answer_ids, marked, pairs, labels))
    return encoded


def _encode_answers(
    policy: Policy, comparison: Comparison, max_generated_len: int, reads_marks: bool
) -> list[tuple[list[int], list[bool]]]:
    """The ids of each answer's tokens, including the end token, and which tokens are marked."""
    answers = comparison.answers
    has_marks = reads_marks and any(answer.marked for answer in answers)
    tokens = policy.tokenize_responses(
        [comparison.prompt] * len(answers), [answer.text for answer in answers], has_marks
    )
    rows = []
    for answer, (ids, offsets) in zip(answers, tokens):
        marked = [False] * len(ids)
        if has_marks and answer.marked:
            if offsets is None:
                raise UserError(
                    f"an answer to the prompt {shorten(comparison.prompt.id, 80)} has marked"
                    " characters, but the chat template changes its text, so their tokens are"
                    f" unknown: {WITHOUT_MARKS}, or remove the row"
                )
            marked = marked_tokens(offsets, answer.marked)
        rows.append((ids[:max_generated_len], marked[:max_generated_len]))
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
    marked: list[Sequence[bool]] = []
    labels: list[int] = []
    better: list[int] = []
    worse: list[int] = []
    for comparison in comparisons:
        first_row = len(answers)
        for i, j in comparison.pairs:
            better.append(first_row + i)
            worse.append(first_row + j)
        for ids, marked_T in zip(comparison.answer_ids, comparison.marked):
            prompts.append(comparison.prompt_ids)
            answers.append(ids)
            marked.append(marked_T)
        for label in comparison.labels or [None] * len(comparison.answer_ids):
            labels.append(UNKNOWN if label is None else GOOD if label else BAD)
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
        marked_BT=_padded(marked, 0).bool(),
        ref_logprobs_BT=_padded(reference, 0.0),
        better_N=torch.tensor(better, dtype=torch.long),
        worse_N=torch.tensor(worse, dtype=torch.long),
        labels_B=torch.tensor(labels),
    )


def _padded(rows: Sequence[Sequence[float]], fill: float, left: bool = False) -> Tensor:
    """Rows as one tensor, padded on one side to the longest row."""
    width = max(len(row) for row in rows)
    padded = []
    for row in rows:
        padding = [fill] * (width - len(row))
        padded.append([*padding, *row] if left else [*row, *padding])
    return torch.tensor(padded)

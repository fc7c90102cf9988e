"""Compared answers: human judgements of several answers to one prompt, before any tokenizer.

An answer can have marked characters, those that decided the comparison. DPO gives the tokens they
are part of a larger weight (docs/algorithms.md). Judgements become pairs here: from an outcome for
every two answers, from scores or ranks, or from a correction of an answer.
"""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from fgrlhf.types import Prompt

TIE, FIRST, SECOND = 0, 1, 2  # outcome of a comparison of two answers

_WORD = re.compile(r"\w+|[^\w\s]")
# About a second. An answer of 200 words and its correction have about a thousand.
MAX_EQUAL_PAIRS = 2_000_000


@dataclass(frozen=True)
class Answer:
    """`marked`: half-open ranges of characters of `text`."""

    text: str
    marked: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Comparison:
    """`pairs` are (better, worse) places in `answers`. The same pair may be there several times:
    one for each vote.
    """

    prompt: Prompt
    answers: tuple[Answer, ...]
    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self):
        if any(not 0 <= i < len(self.answers) for pair in self.pairs for i in pair):
            raise ValueError(f"pairs {self.pairs} of {len(self.answers)} answers")


# Where a task's comparisons come from: (file of judgements, prompts that the task has read) ->
# comparisons. It raises `UserError` where the file has none.
ComparisonSource = Callable[[str, Sequence[Prompt]], list[Comparison]]


# ---- pairs from judgements -----------------------------------------------------------------------


def pairs_of_outcomes(n_answers: int, outcomes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The decided pairs of outcomes for every two answers.

    Args:
      n_answers: K.
      outcomes: K (K - 1) / 2 of `FIRST`, `SECOND` or `TIE`, in the order 1v2, 1v3, ..., 2v3, ...
    """
    pairs = []
    for (i, j), outcome in zip(combinations(range(n_answers), 2), outcomes, strict=True):
        if outcome == FIRST:
            pairs.append((i, j))
        elif outcome == SECOND:
            pairs.append((j, i))
    return tuple(pairs)


def pairs_of_scores(scores: Sequence[float]) -> tuple[tuple[int, int], ...]:
    """A pair for every two answers with different scores. The higher score is better."""
    outcomes = [
        TIE if first == second else FIRST if first > second else SECOND
        for first, second in combinations(scores, 2)
    ]
    return pairs_of_outcomes(len(scores), outcomes)


# ---- corrections ---------------------------------------------------------------------------------


def correction(
    prompt: Prompt, answer: str, corrected: str, wrong: Sequence[tuple[int, int]] = ()
) -> Comparison | None:
    """A corrected answer, better than the answer it corrects; None where nothing was corrected.

    Marked are the wrong characters of the answer and the new words of the corrected one.

    Args:
      wrong: half-open ranges of characters of `answer`.
    """
    corrected = corrected.strip()
    if not corrected or corrected == answer.strip():
        return None
    better = Answer(corrected, new_words(answer, corrected))
    worse = Answer(answer, tuple(sorted(wrong)))
    return Comparison(prompt, (better, worse), ((0, 1),))


def new_words(before: str, after: str) -> tuple[tuple[int, int], ...]:
    """Ranges of characters of `after` whose words are not in the longest alignment with `before`.

    Punctuation marks are words, and the case of letters does not count. An alignment compares every
    pair of equal words. Texts with more than `MAX_EQUAL_PAIRS` of them (thousands of words that
    repeat) are not aligned: what lies between their common beginning and their common end is new.
    """
    matches = list(_WORD.finditer(after))
    old_words = [word.casefold() for word in _WORD.findall(before)]
    words = [match[0].casefold() for match in matches]
    counts = Counter(old_words)
    if sum(counts[word] for word in words) > MAX_EQUAL_PAIRS:
        ranges = [_changed_middle(old_words, words)]
    else:
        alignment = difflib.SequenceMatcher(None, old_words, words, autojunk=False)
        ranges = [
            (first, end)
            for change, _, _, first, end in alignment.get_opcodes()
            if change in ("insert", "replace")
        ]
    return tuple(
        (matches[first].start(), matches[end - 1].end()) for first, end in ranges if first < end
    )


def _changed_middle(old_words: Sequence[str], words: Sequence[str]) -> tuple[int, int]:
    """[first, end) of `words` without the words that both lists begin with, then without those that
    both end with.
    """
    shorter = min(len(old_words), len(words))
    first = 0
    while first < shorter and old_words[first] == words[first]:
        first += 1
    same_end = 0
    while same_end < shorter - first and old_words[-1 - same_end] == words[-1 - same_end]:
        same_end += 1
    return first, len(words) - same_end

"""Statistics of comparisons: what a reward model can learn from them, intended or not.

All of them are computed from the texts. Words are separated by white space.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from fgrlhf.data.agreement.responses import named_clusters
from fgrlhf.data.comparisons import Comparison
from fgrlhf.data.near_duplicates import (
    near_duplicate_rows,
    near_duplicates,
    shingles,
    similarity,
)
from fgrlhf.metrics.clusters import cluster_of
from fgrlhf.segmentation import sentences
from fgrlhf.stats import Interval, ratio_interval
from fgrlhf.text_types import USER
from fgrlhf.words import count_words, words_of

WORDS_SHOWN = 20  # of each side
FEWEST_ROWS = 10  # with a word in only one response of some pair; rarer words are left out
CLOSE = 0.9  # similarity of two responses from which a pair is close

Measured = TypeVar("Measured")
Decided = Set[tuple[str, str, str]]  # prompt, better response, worse response

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


@dataclass(frozen=True)
class Pair:
    """A decided pair of responses to a prompt."""

    row: int
    unit: Hashable  # of intervals: the prompt, its cluster, or the row if the prompt is no text
    better: str
    worse: str
    first_is_better: bool


@dataclass(frozen=True)
class Feature:
    """How often the better response of a pair has more of something."""

    name: str
    better_mean: float
    worse_mean: float
    share: Interval | None  # of the pairs with a difference, those whose better response has more
    different: int  # pairs with a difference


@dataclass(frozen=True)
class Word:
    """A word that is more frequent in better responses (z > 0) or in worse ones (z < 0)."""

    text: str
    better: int  # rows with a pair in which only the better response has it
    worse: int
    z: float


@dataclass(frozen=True)
class Filter:
    """Rows or pairs that a filter removes."""

    name: str
    reason: str
    pairs: int


@dataclass(frozen=True)
class Exploration:
    """Statistics of a file of comparisons."""

    rows: int
    prompts: int  # different texts
    responses: Mapping[int, int]  # responses of a row -> number of rows
    pairs: int
    undecided_rows: int
    ties: int  # undecided pairs of two responses of a row
    contradictions: int  # pairs of responses to a prompt that are decided both ways
    first_is_better: Interval | None  # share of the pairs; None if rows list the better one first
    turns: Mapping[int, int]  # user's turns of a prompt -> number of rows
    lengths: Mapping[str, list[int]]  # words of prompts, better and worse responses
    features: list[Feature]
    words: list[Word]
    duplicate_groups: list[list[int]]  # rows with nearly the same prompt and responses
    prompt_groups: list[list[int]]  # rows with nearly the same prompt
    filters: list[Filter]


def explore(comparisons: Sequence[Comparison]) -> Exploration:
    """The statistics of comparisons, at least one of which has a decided pair.

    Raises:
      ValueError: none has.
    """
    pairs = decided_pairs(comparisons)
    if not pairs:
        raise ValueError("no decided pair")
    turns = Counter(_turns(comparison) for comparison in comparisons)
    words = _measured(count_words, pairs)
    prompts = [comparison.prompt.text for comparison in comparisons]
    prompt_groups = near_duplicates(prompts)
    duplicates = _duplicate_rows(comparisons, prompt_groups)
    decided = _decided(comparisons)
    # each contradiction is found from both of its pairs
    contradicted = [texts for texts in decided if _is_contradicted(texts, decided)]
    return Exploration(
        rows=len(comparisons),
        prompts=len(set(prompts)),
        responses=_sorted_counts(Counter(len(item.answers) for item in comparisons)),
        pairs=len(pairs),
        undecided_rows=sum(not item.pairs for item in comparisons),
        ties=sum(map(_ties, comparisons)),
        contradictions=len(contradicted) // 2,
        first_is_better=_first_is_better(pairs),
        turns=_sorted_counts(turns),
        lengths={
            "prompts": [count_words(text) for text in prompts],
            "better responses": [words[pair.better] for pair in pairs],
            "worse responses": [words[pair.worse] for pair in pairs],
        },
        features=[_feature(name, measure, pairs) for name, measure in FEATURES.items()],
        words=distinguishing_words(pairs),
        duplicate_groups=duplicates,
        prompt_groups=prompt_groups,
        filters=_filters(comparisons, decided, duplicates),
    )


def _turns(comparison: Comparison) -> int:
    """The user's turns of a prompt. A prompt without messages is one turn."""
    users = [text for role, text in comparison.prompt.messages if role == USER]
    return len(users) or 1


def _filters(
    comparisons: Sequence[Comparison], decided: Decided, duplicates: Sequence[Sequence[int]]
) -> list[Filter]:
    """How many pairs each filter alone would remove.

    Args:
      decided: the texts of all decided pairs.
      duplicates: groups of rows that are nearly the same.
    """
    filters = []
    for name, (reason, keeps) in FILTERS.items():
        removed = 0
        if keeps is None:  # it removes whole rows
            for row in _repeated_rows(duplicates):
                removed += len(comparisons[row].pairs)
        else:
            for comparison in comparisons:
                for better, worse in comparison.pairs:
                    if not keeps(comparison, better, worse, decided):
                        removed += 1
        filters.append(Filter(name, reason, removed))
    return filters


def decided_pairs(comparisons: Sequence[Comparison]) -> list[Pair]:
    """The decided pairs of all rows."""
    prompts = [comparison.prompt for comparison in comparisons]
    units = named_clusters([prompt.text for prompt in prompts], list(map(cluster_of, prompts)))
    pairs = []
    for row, comparison in enumerate(comparisons):
        for better, worse in comparison.pairs:
            texts = comparison.answers[better].text, comparison.answers[worse].text
            pairs.append(Pair(row, units[row], *texts, better < worse))
    return pairs


def _sorted_counts(counts: Counter[int]) -> dict[int, int]:
    return dict(sorted(counts.items()))


def _ties(comparison: Comparison) -> int:
    """The number of pairs of two responses that are not decided."""
    possible = math.comb(len(comparison.answers), 2)
    decided = {frozenset(pair) for pair in comparison.pairs}  # without their direction
    return possible - len(decided)


def _decided(comparisons: Sequence[Comparison]) -> Decided:
    """The texts of all decided pairs. Two people who disagree can have a row each."""
    decided = set()
    for comparison in comparisons:
        for better, worse in comparison.pairs:
            decided.add(_texts(comparison, better, worse))
    return decided


def _texts(comparison: Comparison, better: int, worse: int) -> tuple[str, str, str]:
    answers = comparison.answers
    return comparison.prompt.text, answers[better].text, answers[worse].text


def _is_contradicted(texts: tuple[str, str, str], decided: Decided) -> bool:
    prompt, better, worse = texts
    return better != worse and (prompt, worse, better) in decided


def _share(pairs: Sequence[Pair], above: Sequence[bool], below: Sequence[bool]) -> Interval | None:
    """The share of pairs, with an interval over prompts; None if no pair is in the denominator.

    Args:
      above: whether each pair is in the numerator.
      below: whether it is in the denominator.
    """
    return ratio_interval(above, below, [pair.unit for pair in pairs]) if any(below) else None


def _first_is_better(pairs: Sequence[Pair]) -> Interval | None:
    first = [pair.first_is_better for pair in pairs]
    return None if all(first) else _share(pairs, first, [True] * len(pairs))


# ---- features ------------------------------------------------------------------------------------


def _repeated(text: str) -> float:
    words = [word.casefold() for word in words_of(text)]
    return 1 - len(set(words)) / len(words) if words else 0.0


FEATURES: dict[str, Callable[[str], float]] = {
    "words": count_words,
    "sentences": lambda text: len(sentences(text)),
    "lines": lambda text: len([line for line in text.splitlines() if line.strip()]),
    "list items": lambda text: len(re.findall(r"^\s*(?:[-*•]|\d+[.)])\s", text, re.M)),
    "? marks": lambda text: text.count("?"),
    "! marks": lambda text: text.count("!"),
    "numbers": lambda text: len(re.findall(r"\d+", text)),
    "share of repeated words": _repeated,
}


def _measured(measure: Callable[[str], Measured], pairs: Sequence[Pair]) -> dict[str, Measured]:
    """The measure of each text, which is in many pairs if its prompt has many responses."""
    texts = {text for pair in pairs for text in (pair.better, pair.worse)}
    return {text: measure(text) for text in texts}


def _feature(name: str, measure: Callable[[str], float], pairs: Sequence[Pair]) -> Feature:
    measured = _measured(measure, pairs)
    better = np.array([measured[pair.better] for pair in pairs])
    worse = np.array([measured[pair.worse] for pair in pairs])
    return Feature(
        name,
        float(better.mean()),
        float(worse.mean()),
        _share(pairs, list(better > worse), list(better != worse)),
        int((better != worse).sum()),
    )


def distinguishing_words(pairs: Sequence[Pair], shown: int = WORDS_SHOWN) -> list[Word]:
    """The words with the largest |z|, most positive first.

    Counts are per row, because the pairs of a row share responses: a word in one response of twelve
    distinguishes eleven pairs. A row adds 1 for better responses if in some pair only the better
    one has the word, and 1 for worse responses if in some pair only the worse one has it. Of the n
    counts of a word, b are of better responses. Without a preference for the word, b is binomial
    with probability 1/2, so

        z = (b - n / 2) / sqrt(n / 4)

    If rows count both ways, |z| is too small rather than too large.
    """
    only_better: dict[int, set[str]] = defaultdict(set)
    only_worse: dict[int, set[str]] = defaultdict(set)
    words_in = _measured(_words, pairs)
    for pair in pairs:
        in_better = words_in[pair.better]
        in_worse = words_in[pair.worse]
        only_better[pair.row] |= in_better - in_worse
        only_worse[pair.row] |= in_worse - in_better
    better: Counter[str] = Counter()
    worse: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for row in only_better:  # both have the same rows
        better.update(only_better[row])
        worse.update(only_worse[row])
        rows.update(only_better[row] | only_worse[row])
    words = []
    for text in rows:
        if rows[text] >= FEWEST_ROWS:
            n = better[text] + worse[text]
            z = (better[text] - n / 2) / math.sqrt(n / 4)
            words.append(Word(text, better[text], worse[text], z))
    words.sort(key=lambda word: (-word.z, word.text))
    positive = [word for word in words if word.z > 0][:shown]
    negative = [word for word in words if word.z < 0][-shown:]
    return positive + negative


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


# ---- filters -------------------------------------------------------------------------------------

# (row, better, worse, the pairs of all rows) -> whether the pair remains
Keeps = Callable[[Comparison, int, int, Decided], bool]


def _is_not_blank(row: Comparison, better: int, worse: int, decided: Decided) -> bool:
    return bool(row.answers[better].text.strip())


def _is_different(row: Comparison, better: int, worse: int, decided: Decided) -> bool:
    return row.answers[better].text.split() != row.answers[worse].text.split()


def _is_not_contradicted(row: Comparison, better: int, worse: int, decided: Decided) -> bool:
    return not _is_contradicted(_texts(row, better, worse), decided)


def _is_not_close(row: Comparison, better: int, worse: int, decided: Decided) -> bool:
    texts = row.answers[better].text, row.answers[worse].text
    return similarity(*map(_kept_shingles, texts)) < CLOSE


@lru_cache(maxsize=1024)  # the responses of a row, each of which is in many pairs
def _kept_shingles(text: str) -> frozenset[tuple[str, ...]]:
    return shingles(text)


# name -> (the reason to remove a pair, which pairs remain); `duplicates` removes whole rows
FILTERS: dict[str, tuple[str, Keeps | None]] = {
    "blank": ("the better response is blank", _is_not_blank),
    "identical": ("both responses are the same, apart from white space", _is_different),
    "contradicted": ("the same two responses are decided the other way too", _is_not_contradicted),
    "close": (f"the responses share {CLOSE:.0%} of their word triples", _is_not_close),
    "duplicates": ("an earlier row has nearly the same prompt and responses", None),
}


def apply_filter(name: str, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons without the pairs that a filter removes, and without rows that lose all."""
    _, keeps = FILTERS[name]
    if keeps is None:
        return _without_duplicates(comparisons)
    decided = _decided(comparisons)
    remaining = []
    for comparison in comparisons:
        places = []
        for place, pair in enumerate(comparison.pairs):
            if keeps(comparison, *pair, decided):
                places.append(place)
        if places or not comparison.pairs:
            pairs = tuple(comparison.pairs[place] for place in places)
            margins = comparison.margins
            if margins:
                margins = tuple(margins[place] for place in places)
            remaining.append(replace(comparison, pairs=pairs, margins=margins))
    return remaining


def _without_duplicates(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The rows without those that repeat an earlier one."""
    prompt_groups = near_duplicates([comparison.prompt.text for comparison in comparisons])
    repeated = _repeated_rows(_duplicate_rows(comparisons, prompt_groups))
    return [item for row, item in enumerate(comparisons) if row not in repeated]


def _repeated_rows(groups: Sequence[Sequence[int]]) -> set[int]:
    """The rows of the groups, except the first row of each."""
    return {row for group in groups for row in group[1:]}


def drop_pairs(comparisons: Sequence[Comparison], names: Sequence[str]) -> list[Comparison]:
    """Apply several filters in the given order, and print how many pairs each removes."""
    remaining = list(comparisons)
    for name in names:
        before = len(decided_pairs(remaining))
        remaining = apply_filter(name, remaining)
        removed = before - len(decided_pairs(remaining))
        print(f"{name}: {removed:,} of {before:,} pairs removed")
    return remaining


def _duplicate_rows(
    comparisons: Sequence[Comparison], prompt_groups: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Groups of rows with nearly the same prompt and the same responses, whatever their order.

    Args:
      prompt_groups: groups of rows with nearly the same prompt.
    """
    prompts = [comparison.prompt.text for comparison in comparisons]
    responses = [[answer.text for answer in comparison.answers] for comparison in comparisons]
    return near_duplicate_rows(prompts, responses, prompt_groups)

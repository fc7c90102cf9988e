"""Human comparisons of several answers to one prompt, as text.

An answer can have marked characters, those that decided the comparison. DPO gives tokens with
marked characters a larger weight (docs/algorithms.md). This module turns judgements into pairs:
from an outcome for every two answers, from scores or ranks, or from a correction of an answer.
Pairs of one prompt can be joined, and a comparison of several answers divided into pairs.
"""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from fgrlhf.text_types import Prompt

TIE, FIRST, SECOND = 0, 1, 2  # outcome of a comparison of two answers
SWAPPED = {FIRST: SECOND, SECOND: FIRST, TIE: TIE}  # with the answers in the other order

_WORD = re.compile(r"\w+|[^\w\s]")
# Most pairs of equal words to align, which takes about a second. An answer of 200 words and its
# correction have about a thousand.
MAX_EQUAL_PAIRS = 2_000_000


@dataclass(frozen=True)
class Answer:
    """One of the compared answers."""

    text: str
    marked: tuple[tuple[int, int], ...] = ()  # half-open ranges of characters of `text`


@dataclass(frozen=True)
class Comparison:
    """Answers to one prompt, and which of them are better than which."""

    prompt: Prompt
    answers: tuple[Answer, ...]
    # (better, worse) as indices of `answers`; a pair may occur several times, once for each vote
    pairs: tuple[tuple[int, int], ...]
    # by how much the first answer of each pair is better; () if nobody said that
    margins: tuple[float, ...] = ()
    # whether each answer is good by itself, None if nobody said; (): `labels_of_pairs`
    labels: tuple[bool | None, ...] = ()

    def __post_init__(self):
        if self.labels and len(self.labels) != len(self.answers):
            raise ValueError(f"{len(self.labels)} labels for {len(self.answers)} answers")
        if self.margins and len(self.margins) != len(self.pairs):
            raise ValueError(f"{len(self.margins)} margins for {len(self.pairs)} pairs")
        if any(not 0 <= i < len(self.answers) for pair in self.pairs for i in pair):
            raise ValueError(f"pairs {self.pairs} of {len(self.answers)} answers")


# A source of comparisons: (file of judgements, prompts that the task has read) -> comparisons.
# It raises `UserError` if the file has none.
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
    outcomes = []
    for first, second in combinations(scores, 2):
        if first == second:
            outcomes.append(TIE)
        else:
            outcomes.append(FIRST if first > second else SECOND)
    return pairs_of_outcomes(len(scores), outcomes)


def margins_of_scores(
    scores: Sequence[float], pairs: Sequence[tuple[int, int]]
) -> tuple[float, ...]:
    """The difference of the scores of each (better, worse) pair."""
    return tuple(scores[better] - scores[worse] for better, worse in pairs)


def labels_of_pairs(n_answers: int, pairs: Sequence[tuple[int, int]]) -> tuple[bool | None, ...]:
    """Whether each answer is better in more pairs than it is worse in; None if in equally many.

    The answers of a single pair are good and bad, as in TRL's `unpair_preference_dataset`. Of
    several answers, each is compared with the middle of the others (Copeland's score).
    """
    score = [0] * n_answers
    for better, worse in pairs:
        score[better] += 1
        score[worse] -= 1
    return tuple(None if points == 0 else points > 0 for points in score)


# ---- comparisons of two answers and of several ---------------------------------------------------


def as_pairs(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """A comparison of two answers, the better one first, for every decided pair.

    Its prompt has the id `<id>/<number of the pair>`.
    """
    result = []
    for comparison in comparisons:
        for number, (better, worse) in enumerate(comparison.pairs):
            prompt = replace(comparison.prompt, id=f"{comparison.prompt.id}/{number}")
            answers = (comparison.answers[better], comparison.answers[worse])
            margins = comparison.margins[number : number + 1]
            result.append(Comparison(prompt, answers, ((0, 1),), margins))
    return result


def join_pairs(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """One comparison for each prompt, with all answers to it and all pairs of them.

    Prompts and answers are the same if their texts are, except that equal answers of one comparison
    stay apart. The prompt is that of the first comparison. A reward model reads each answer once,
    however many pairs it is in.
    """
    by_prompt: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        by_prompt.setdefault(comparison.prompt.text, []).append(comparison)
    return [_merged(group) for group in by_prompt.values()]


def _merged(comparisons: Sequence[Comparison]) -> Comparison:
    """Comparisons of answers to the same prompt as one.

    A pair without a margin gets the margin 0 if other pairs have one.
    """
    marked: dict[AnswerKey, set[tuple[int, int]]] = {}  # answer -> its marks
    for comparison in comparisons:
        for key, answer in zip(_answer_keys(comparison), comparison.answers, strict=True):
            marked.setdefault(key, set()).update(answer.marked)
    places = {key: place for place, key in enumerate(marked)}
    pairs = []
    margins: list[float] = []
    for comparison in comparisons:
        keys = _answer_keys(comparison)
        pairs += [(places[keys[better]], places[keys[worse]]) for better, worse in comparison.pairs]
        margins += comparison.margins or [0.0] * len(comparison.pairs)
    answers = [Answer(key[0], tuple(sorted(marks))) for key, marks in marked.items()]
    if not any(comparison.margins for comparison in comparisons):
        margins = []
    return Comparison(comparisons[0].prompt, tuple(answers), tuple(pairs), tuple(margins))


AnswerKey = tuple[str, int]  # text, number of equal answers before it in its comparison


def _answer_keys(comparison: Comparison) -> list[AnswerKey]:
    """What identifies each answer. An answer is not compared with itself, so equal ones differ."""
    counts: Counter[str] = Counter()
    keys = []
    for answer in comparison.answers:
        keys.append((answer.text, counts[answer.text]))
        counts[answer.text] += 1
    return keys


# ---- pairs that differ in one span ---------------------------------------------------------------


def edits(pair: Comparison) -> list[Comparison]:
    """A pair for each edit that leads from the worse answer to the better one, from left to right.

    Both answers of a pair have the edits before it and lack those after it, so they differ in one
    span, which is marked: what an improvement chain compares (CH-Wang et al. 2025, arXiv
    2512.23693), here with the words that differ in place of a model's revisions. Insertions and
    deletions are marked in the answer that has the words.

    Args:
      pair: two answers, the better one first.
    """
    better, worse = (_pieces(answer.text) for answer in pair.answers)
    matcher = difflib.SequenceMatcher(None, worse, better, autojunk=False)
    changes = [change for change in matcher.get_opcodes() if change[0] != "equal"]
    result = []
    for number, (_, first, end, new_first, new_end) in enumerate(changes):
        before, after = "".join(better[:new_first]), "".join(worse[end:])
        answers = []
        for changed in (better[new_first:new_end], worse[first:end]):
            middle = "".join(changed)
            start = len(before) + len(middle) - len(middle.lstrip())
            end_of_words = len(before) + len(middle.rstrip())
            marked = ((start, end_of_words),) if middle.strip() else ()
            answers.append(Answer(before + middle + after, marked))
        prompt = replace(pair.prompt, id=f"{pair.prompt.id}/{number}")
        result.append(Comparison(prompt, tuple(answers), ((0, 1),)))
    return result


def _pieces(text: str) -> list[str]:
    """The words and punctuation marks of a text, each with the white space after it."""
    starts = [match.start() for match in _WORD.finditer(text)]
    return [text[start:end] for start, end in zip([0, *starts[1:]], [*starts[1:], len(text)])]


# ---- corrections ---------------------------------------------------------------------------------


def correction(
    prompt: Prompt, answer: str, corrected: str, wrong: Sequence[tuple[int, int]] = ()
) -> Comparison | None:
    """A pair of a corrected answer (better) and the original (worse); None if nothing changed.

    The wrong characters of the original and the new words of the corrected answer are marked.

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

    Punctuation marks are words, and case is ignored. An alignment compares every pair of equal
    words. Texts with more than `MAX_EQUAL_PAIRS` of them (thousands of repeated words) are not
    aligned: everything between their common beginning and their common end counts as new.
    """
    matches = list(_WORD.finditer(after))
    old_words = [word.casefold() for word in _WORD.findall(before)]
    words = [match[0].casefold() for match in matches]
    counts = Counter(old_words)
    if sum(counts[word] for word in words) > MAX_EQUAL_PAIRS:
        ranges = [_changed_middle(old_words, words)]
    else:
        alignment = difflib.SequenceMatcher(None, old_words, words, autojunk=False)
        ranges = []
        for change, _, _, first, end in alignment.get_opcodes():
            if change in ("insert", "replace"):
                ranges.append((first, end))
    # ranges of words -> ranges of characters
    return tuple(
        (matches[first].start(), matches[end - 1].end()) for first, end in ranges if first < end
    )


def _changed_middle(old_words: Sequence[str], words: Sequence[str]) -> tuple[int, int]:
    """[first, end) of `words` without the common beginning, then the common end, of both lists."""
    shorter = min(len(old_words), len(words))
    first = 0
    while first < shorter and old_words[first] == words[first]:
        first += 1
    same_end = 0
    while same_end < shorter - first and old_words[-1 - same_end] == words[-1 - same_end]:
        same_end += 1
    return first, len(words) - same_end

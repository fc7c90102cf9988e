"""The oracle of the mini world: every error of a translation, with its severity.

A translation is aligned with the words that a right one must have, for every order that is right
(language.py). The cheapest alignment decides; the costs are MQM's weights:

    mistranslation  another word in the place of the right one             major
    addition        a word that corresponds to nothing in the source       major
    omission        a word of the source without a translation             major, in the source
    order           a right word in the wrong place                        minor
    agreement       a right word with a wrong ending                       minor
    punctuation     a mark that is wrong or too many; missing: an omission punctuation

Every mark covers one word.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fgrlhf.data.judgements import Judgement
from fgrlhf.text_types import MetricFunction, Prompt
from tasks.translation.data.language import (
    ADJECTIVE,
    MARK,
    Form,
    Slot,
    forms,
    inflect,
    read_sentence,
    slots_of,
)
from tasks.translation.mqm import MAJOR, MINOR, PUNCTUATION, WEIGHTS, error, mqm_score, omission

NEVER = 1e9

Marks = tuple[list[Judgement], list[Judgement]]  # in the translation, in the source


@dataclass(frozen=True)
class Word:
    """A word of a translation. Words that are not of the target language have no form."""

    start: int
    end: int
    text: str
    form: Form | None

    def fits(self, slot: Slot) -> bool:
        """Whether it translates the slot's word, with whatever ending."""
        return (
            self.form is not None and self.form.kind == slot.kind and self.form.stem in slot.stems
        )

    @property
    def is_mark(self) -> bool:
        return self.form is not None and self.form.kind == MARK


def judge(source: str, translation: str) -> Marks | None:
    """All errors of a translation and all omissions of its source, from left to right.

    None if the source is not of the mini world.
    """
    sentence = read_sentence(source)
    if sentence is None:
        return None
    words = []
    for match in re.finditer(r"\S+", translation):
        words.append(Word(match.start(), match.end(), match[0], forms().get(match[0])))
    source_words = [match.span() for match in re.finditer(r"\S+", source)]
    candidates = [_judge_order(words, slots, source_words) for slots in slots_of(sentence)]
    # `max` takes the first of equal ones
    return max(candidates, key=lambda marks: mqm_score([*marks[0], *marks[1]]))


def _judge_order(
    words: Sequence[Word], slots: Sequence[Slot], source_words: Sequence[tuple[int, int]]
) -> Marks:
    """The marks if the slots have the only right order."""
    slot_of = align(words, slots)
    errors: dict[int, tuple[str, str]] = {}  # place of a word -> label, severity

    # A word without a slot has only moved if it fits a slot without a word. Otherwise it is added.
    missing = [i for i in range(len(slots)) if i not in slot_of.values()]
    for place, word in enumerate(words):
        if place in slot_of:
            continue
        moved = next((i for i in missing if word.fits(slots[i])), None)
        if moved is None:
            errors[place] = ("addition", PUNCTUATION if word.is_mark else MAJOR)
        elif word.is_mark:
            errors[place] = ("punctuation", PUNCTUATION)
            missing.remove(moved)
        else:
            errors[place] = ("order", MINOR)
            slot_of[place] = moved
            missing.remove(moved)

    # a word with a slot is right, another word, or has a wrong ending
    word_of = {slot: place for place, slot in slot_of.items()}
    for place, i in slot_of.items():
        slot = slots[i]
        word = words[place]
        if not word.fits(slot) and slot.kind == MARK:
            errors[place] = ("punctuation", PUNCTUATION)
        elif not word.fits(slot):
            errors[place] = ("mistranslation", MAJOR)
        elif place not in errors and word.text not in _right_forms(word, slot, words, word_of):
            errors[place] = ("agreement", MINOR)

    spans = []
    for place in sorted(errors):
        spans.append(error(words[place].start, words[place].end, *errors[place]))
    omissions = []
    for i in sorted(missing, key=lambda i: slots[i].source):
        severity = PUNCTUATION if slots[i].kind == MARK else MAJOR
        start, end = source_words[slots[i].source]
        omissions.append(omission(start, end, severity))
    return spans, omissions


def _right_forms(
    word: Word, slot: Slot, words: Sequence[Word], word_of: dict[int, int]
) -> list[str]:
    """The right forms of a word that fits its slot.

    An adjective agrees with the noun that the translation has; without a noun, every class is
    right.
    """
    assert word.form is not None
    if slot.kind != ADJECTIVE:
        return [inflect(slot, word.form.stem)]
    noun = words[word_of[slot.noun]].form if slot.noun in word_of else None
    vowels = (noun.vowel,) if noun is not None and noun.vowel else ("a", "o")
    return [inflect(slot, word.form.stem, vowel) for vowel in vowels]


def align(words: Sequence[Word], slots: Sequence[Slot]) -> dict[int, int]:
    """Place of a word -> its slot, in the cheapest alignment without crossings.

    C[i, j], the cost of the first i words and j slots, is the least of

        C[i-1, j] + cost of word i without a slot, C[i, j-1] + cost of slot j without a word,
        C[i-1, j-1] + cost of word i in slot j

    Of equally cheap alignments, the one is chosen that pairs the last words.
    """
    surplus = _surplus(words, slots)
    added = [_cost_alone(word.is_mark, _surplus_of(word, slots, surplus)) for word in words]
    omitted = [_cost_alone(slot.kind == MARK, surplus[slot.stems]) for slot in slots]
    paired = [[_pair_cost(word, slot, slots, surplus) for slot in slots] for word in words]
    cost = [[0.0] * (len(slots) + 1) for _ in range(len(words) + 1)]
    for i in range(len(words) + 1):
        for j in range(len(slots) + 1):
            if i == 0 and j == 0:
                continue
            choices = []
            if i and j:
                choices.append(cost[i - 1][j - 1] + paired[i - 1][j - 1])
            if i:
                choices.append(cost[i - 1][j] + added[i - 1])
            if j:
                choices.append(cost[i][j - 1] + omitted[j - 1])
            cost[i][j] = min(choices)
    slot_of = {}
    i, j = len(words), len(slots)
    while i and j:
        if cost[i][j] == cost[i - 1][j - 1] + paired[i - 1][j - 1]:
            i, j = i - 1, j - 1
            slot_of[i] = j
        elif cost[i][j] == cost[i - 1][j] + added[i - 1]:
            i -= 1
        else:
            j -= 1
    return slot_of


def _surplus(words: Sequence[Word], slots: Sequence[Slot]) -> Counter[tuple[str, ...]]:
    """Stems of a slot -> number of words that fit it, minus number of slots with these stems."""
    surplus = Counter({slot.stems: 0 for slot in slots})
    surplus.subtract(slot.stems for slot in slots)
    for word in words:
        surplus.update({slot.stems for slot in slots if word.fits(slot)})
    return surplus


def _surplus_of(word: Word, slots: Sequence[Slot], surplus: Counter[tuple[str, ...]]) -> int:
    """The surplus of the first slot that the word fits; 1 if it fits none."""
    return next((surplus[slot.stems] for slot in slots if word.fits(slot)), 1)


def _cost_alone(is_mark: bool, surplus: int) -> float:
    """The cost of a word without a slot, or of a slot without a word."""
    if is_mark:
        return WEIGHTS[PUNCTUATION]
    if surplus == 0:  # the word has moved: it costs one half of a minor error, its slot the other
        return WEIGHTS[MINOR] / 2
    return WEIGHTS[MAJOR]


def _pair_cost(
    word: Word, slot: Slot, slots: Sequence[Slot], surplus: Counter[tuple[str, ...]]
) -> float:
    if word.fits(slot):
        return 0.0
    if word.is_mark and slot.kind == MARK:
        return WEIGHTS[PUNCTUATION]
    if word.is_mark or slot.kind == MARK:
        return NEVER
    # a mistranslation is a surplus word in the place of a missing one
    if _surplus_of(word, slots, surplus) > 0 and surplus[slot.stems] < 0:
        return WEIGHTS[MAJOR]
    return NEVER


# ---- metrics -------------------------------------------------------------------------------------


def true_quality(prompt: Prompt, text: str) -> dict[str, float | None]:
    """The metrics `oracle/mqm` (0 is the best), `oracle/perfect` and `oracle/major`.

    They are the MQM score, whether there is no error, and the number of major errors.
    """
    marks = judge(prompt.text, text)
    if marks is None:
        return {"oracle/mqm": None, "oracle/perfect": None, "oracle/major": None}
    everything = [*marks[0], *marks[1]]
    major = sum(mark.severity == MAJOR for mark in everything)
    return {
        "oracle/mqm": mqm_score(everything),
        "oracle/perfect": float(not everything),
        "oracle/major": float(major),
    }


def oracle_metrics(prompts: Sequence[Prompt]) -> tuple[MetricFunction, ...]:
    """The oracle, if the prompts are of the mini world."""
    known = bool(prompts) and all(read_sentence(prompt.text) for prompt in prompts[:5])
    return (true_quality,) if known else ()

"""A small world of translations in which every error is known.

    python -m tasks.translation.data.mini_world data_dir=FOLDER [seed=0]

Sentences of a fragment of English are translated to an invented language (language.py), and an
oracle knows all errors of a translation (oracle.py). Human translations, from which the policy
learns, and judged translations have the errors that people and models make: wrong words, omissions,
additions, wrong endings, the word order of English, missing and wrong punctuation marks, and an end
that is missing altogether. Some translators make more errors than others, and the judged ones more
than those whose translations are demonstrations.

A single rater judges a translation, as in WMT's TED data: at most five marks, and 5% of them are
wrong.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import Count, FilePath, Seed, StrictModel
from fgrlhf.data.judgements import Judgement
from fgrlhf.text_types import Prompt
from tasks.translation.data.language import (
    ADJECTIVE,
    ENDS,
    MARK,
    VERB,
    Sentence,
    Slot,
    forms,
    inflect,
    make_sentence,
    right_words,
    slots_of,
    stems_of,
)
from tasks.translation.data.oracle import judge
from tasks.translation.mqm import MINOR, RatedTranslation, error, row_of, worst_marks

RATES = (0.4, 1.0, 2.0)  # of the errors of a translator whose translations are demonstrations
JUDGED_RATES = (0.5, 1.5, 3.0)  # of those whose translations are judged
# probability that a word has this error
MISTRANSLATED = 0.06
OMITTED = 0.04
ADDED = 0.03
DISAGREES = 0.07
WRONG_MARK = 0.08
# ... and an adjective, a sentence
BEFORE_ITS_NOUN = 0.08
VERB_IN_THE_MIDDLE = 0.08
BREAKS_OFF = 0.03

NOISE = 0.05  # probability that a rater overlooks an error, and that a right word is marked


# ---- translations --------------------------------------------------------------------------------


def imperfect_translation(
    rng: random.Random, sentence: Sentence, rates: Sequence[float] = RATES
) -> str:
    """A translation with the errors of a random translator, who makes them at one of the rates."""
    rate = rng.choice(rates)

    def happens(probability: float) -> bool:
        return rng.random() < rate * probability

    slots = rng.choice(slots_of(sentence))
    words: list[tuple[str, Slot]] = []
    vowels: dict[int, str] = {}  # place of a noun among the slots -> its class
    for place, slot in enumerate(slots):
        vowel = "" if slot.noun is None else vowels[slot.noun]
        word = _word(rng, slot, vowel, happens(MISTRANSLATED))
        vowels[place] = forms()[word].vowel
        if happens(DISAGREES):
            word = _wrong_ending(rng, word)
        if slot.kind == MARK and happens(WRONG_MARK):
            word = rng.choice(ENDS)
        if not happens(OMITTED):
            words.append((word, slot))
        if happens(ADDED):
            words.append((rng.choice((word, _any_word(rng))), slot))
    if happens(VERB_IN_THE_MIDDLE):
        words = _with_verb_in_the_middle(words)
    for i in range(1, len(words)):
        if words[i][1].kind == ADJECTIVE and happens(BEFORE_ITS_NOUN):
            words[i - 1], words[i] = words[i], words[i - 1]
    if happens(BREAKS_OFF):
        words = words[: rng.randrange(1, len(slots))]
    return " ".join(word for word, _ in words)


def _word(rng: random.Random, slot: Slot, vowel: str, is_wrong: bool) -> str:
    stem = rng.choice(slot.stems)
    if is_wrong and slot.kind != MARK:
        stem = rng.choice([other for other in stems_of(slot.kind) if other not in slot.stems])
    return inflect(slot, stem, vowel)


def _wrong_ending(rng: random.Random, word: str) -> str:
    """Another form of the word, if it has any."""
    form = forms()[word]
    others = []
    for other, other_form in forms().items():
        if (other_form.kind, other_form.stem) == (form.kind, form.stem) and other != word:
            others.append(other)
    return rng.choice(others) if others else word


def _any_word(rng: random.Random) -> str:
    return rng.choice([word for word, form in forms().items() if form.kind != MARK])


def _with_verb_in_the_middle(words: list[tuple[str, Slot]]) -> list[tuple[str, Slot]]:
    """The verb before the object, as in English."""
    verbs = [item for item in words if item[1].kind == VERB]
    others = [item for item in words if item[1].kind != VERB]
    if not verbs:
        return words
    before_object = [item for item in others if item[1].source < verbs[0][1].source]
    after_verb = [item for item in others if item[1].source > verbs[0][1].source]
    return [*before_object, *verbs, *after_verb]


# ---- judgements ----------------------------------------------------------------------------------


def true_judgement(number: str, sentence: Sentence, translation: str) -> RatedTranslation:
    """All errors, without a limit."""
    marks = judge(sentence.text, translation)
    assert marks is not None, "sentences are of the mini world"
    errors, omissions = marks
    prompt = Prompt(number, sentence.text)
    return RatedTranslation.of(prompt, translation, [*errors, *omissions], complete=True)


def rated(rng: random.Random, truth: RatedTranslation) -> RatedTranslation:
    """What a rater marks: the five worst of the errors, with the rater's own mistakes."""
    true_marks = {mark.start: mark for mark in truth.errors}
    errors = []
    start = 0
    for word in truth.response.split():
        start = truth.response.index(word, start)
        mark = true_marks.get(start)
        if rng.random() < NOISE:
            mark = _false_mark(start, word) if mark is None else None
        if mark is not None:
            errors.append(mark)
        start += len(word)
    omissions = [mark for mark in truth.omissions if rng.random() >= NOISE]
    marks = worst_marks([*errors, *omissions])
    return RatedTranslation.of(truth.prompt, truth.response, marks)


def _false_mark(start: int, word: str) -> Judgement:
    return error(start, start + len(word), "awkward", MINOR)


# ---- files ---------------------------------------------------------------------------------------


class MiniWorldSettings(StrictModel):
    """Sizes of the world."""

    data_dir: FilePath = Field(description="folder of the rows")
    seed: Seed = Field(default=0, description="of everything random")
    demonstrations: Count = Field(default=6000, description="rows of sft.json")
    judged: Count = Field(default=2000, description="sources with two judged translations each")
    prompts: Count = Field(default=2000, description="rows of train.json")


def prompt_rows(rng: random.Random, split: str, size: int) -> list[dict[str, Any]]:
    """Sources, each with a right translation."""
    rows = []
    for number in range(size):
        sentence = make_sentence(rng)
        reference = " ".join(right_words(rng, rng.choice(slots_of(sentence))))
        rows.append({"id": f"{split}-{number}", "prompt": sentence.text, "references": [reference]})
    return rows


def judged_rows(rng: random.Random, split: str, size: int) -> list[dict[str, Any]]:
    """Two judged translations of every source: by a rater in training, else by the oracle."""
    rows = []
    for number in range(size):
        sentence = make_sentence(rng)
        for version in "ab":
            translation = imperfect_translation(rng, sentence, JUDGED_RATES)
            judgement = true_judgement(f"{split}-{number}{version}", sentence, translation)
            if split == "train":
                judgement = rated(rng, judgement)
            rows.append(row_of(judgement))
    return rows


def write_world(settings: MiniWorldSettings) -> None:
    """Write sources, demonstrations and judged translations.

    The judgements of judged_train.jsonl are a rater's, those of judged_dev.jsonl are the truth.
    """
    folder = Path(settings.data_dir)
    for split, size in {"train": settings.prompts, "dev": 100, "test": 300}.items():
        rng = random.Random(f"{settings.seed} {split} prompts")
        write_json(folder / f"{split}.json", prompt_rows(rng, split, size))
    rng = random.Random(f"{settings.seed} demonstrations")
    demonstrations = []
    for _ in range(settings.demonstrations):
        sentence = make_sentence(rng)
        translation = imperfect_translation(rng, sentence)
        demonstrations.append({"prompt": sentence.text, "response": translation})
    write_json(folder / "sft.json", demonstrations)
    for split, size in {"train": settings.judged, "dev": 200}.items():
        rng = random.Random(f"{settings.seed} {split} judgements")
        write_jsonl(folder / f"judged_{split}.jsonl", judged_rows(rng, split, size))
    print(f"{folder}: {settings.prompts:,} sources, {2 * settings.judged:,} judged translations")


if __name__ == "__main__":
    run_program(write_world, MiniWorldSettings)

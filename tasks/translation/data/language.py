"""An invented language pair: a fragment of English, and a language that it is translated to.

    yesterday , the old foxes see the small stone in the forest .
    dane , miron vekon silva ve lito pelo ramen .

The target language has no articles. Its rules:

- A noun belongs to the class of its last vowel, a or o. Its plural ends in n: miro, miron.
- An adjective follows its noun, ends in the vowel of the noun's class, and in n in the plural:
  miron vekon, silva veka.
- A place follows the subject, and its postposition follows its noun: silva ve.
- The verb follows the object, and ends in e, or in en if the subject is plural: ramen.
- A time stands first and is followed by a comma, or directly before the verb without one.

Some words have two translations, and both are right; their nouns may be of different classes.
"""

import random
import re
from dataclasses import dataclass
from functools import cache
from itertools import product

# source word -> its translations; nouns with their class, adjectives and verbs without an ending
NOUNS = {
    "fox": ("miro",),
    "stone": ("lito", "beka"),
    "girl": ("sana",),
    "boat": ("navo",),
    "friend": ("amiko", "tula"),
    "bird": ("pira",),
    "king": ("reto",),
    "letter": ("skriva",),
    "teacher": ("dosko", "maga"),
    "apple": ("poma",),
}
PLACES = {
    "forest": ("silva",),
    "house": ("domo",),
    "river": ("fluva", "rino"),
    "market": ("foro",),
}
ADJECTIVES = {
    "old": ("vek",),
    "small": ("pel", "nid"),
    "red": ("rus",),
    "happy": ("lek", "gaud"),
    "tall": ("alt",),
    "new": ("nov",),
}
VERBS = {
    "see": ("ram", "vid"),
    "find": ("trov",),
    "follow": ("sek",),
    "carry": ("port",),
    "love": ("am", "kor"),
    "paint": ("pik",),
}
TIMES = {"yesterday": ("dane",), "today": ("ode", "vise"), "often": ("multe",), "never": ("nule",)}
PREPOSITIONS = {"in": ("ve",), "near": ("apu",), "behind": ("reta",)}
ENDS = (".", "!")
COMMA = ","
THE = "the"

NOUN, ADJECTIVE, VERB, TIME, POSTPOSITION, MARK = (
    "noun",
    "adjective",
    "verb",
    "time",
    "post",
    "mark",
)


@dataclass(frozen=True)
class NounPhrase:
    """A noun of the source language in the singular, with an adjective or without."""

    noun: str
    plural: bool
    adjective: str | None = None

    def words(self) -> list[str]:
        adjective = [self.adjective] if self.adjective else []
        return [THE, *adjective, plural_of(self.noun) if self.plural else self.noun]


@dataclass(frozen=True)
class Sentence:
    """What a sentence of the source language says."""

    subject: NounPhrase
    verb: str
    object: NounPhrase
    time: str | None = None
    place: tuple[str, str] | None = None  # preposition, noun
    end: str = "."

    def words(self) -> list[str]:
        time = [self.time, COMMA] if self.time else []
        verb = self.verb if self.subject.plural else singular_of(self.verb)
        place = [self.place[0], THE, self.place[1]] if self.place else []
        return [*time, *self.subject.words(), verb, *self.object.words(), *place, self.end]

    @property
    def text(self) -> str:
        return " ".join(self.words())


@dataclass(frozen=True)
class Slot:
    """A word that a translation must have.

    Args:
      kind: NOUN, ADJECTIVE, VERB, TIME, POSTPOSITION or MARK.
      stems: the translations, without endings.
      source: the place of the source word.
      plural: of nouns, of adjectives and of verbs.
      noun: of an adjective: the place of its noun among the slots.
    """

    kind: str
    stems: tuple[str, ...]
    source: int
    plural: bool = False
    noun: int | None = None


@dataclass(frozen=True)
class Form:
    """A word of the target language: what it is, and its endings."""

    kind: str
    stem: str
    plural: bool = False
    vowel: str = ""  # the class of a noun or adjective


# ---- endings -------------------------------------------------------------------------------------


def plural_of(noun: str) -> str:
    """The plural of an English noun of this world."""
    return f"{noun}es" if noun.endswith("x") else f"{noun}s"


def singular_of(verb: str) -> str:
    """The third person of an English verb of this world."""
    return f"{verb[:-1]}ies" if verb.endswith("ry") else f"{verb}s"


def noun_form(noun: str, plural: bool) -> str:
    return f"{noun}n" if plural else noun


def adjective_form(stem: str, vowel: str, plural: bool) -> str:
    return f"{stem}{vowel}n" if plural else f"{stem}{vowel}"


def verb_form(stem: str, plural: bool) -> str:
    return f"{stem}en" if plural else f"{stem}e"


@cache
def forms() -> dict[str, Form]:
    """Every word of the target language."""
    result = {mark: Form(MARK, mark) for mark in (*ENDS, COMMA)}
    for plural in (False, True):
        for stem in stems_of(NOUN):
            result[noun_form(stem, plural)] = Form(NOUN, stem, plural, stem[-1])
        for stem, vowel in product(stems_of(ADJECTIVE), "ao"):
            word = adjective_form(stem, vowel, plural)
            result[word] = Form(ADJECTIVE, stem, plural, vowel)
        for stem in stems_of(VERB):
            result[verb_form(stem, plural)] = Form(VERB, stem, plural)
    for kind in (TIME, POSTPOSITION):
        for word in stems_of(kind):
            result[word] = Form(kind, word)
    return result


@cache
def stems_of(kind: str) -> tuple[str, ...]:
    """All translations of a kind, without endings."""
    entries = {
        NOUN: NOUNS | PLACES,
        ADJECTIVE: ADJECTIVES,
        VERB: VERBS,
        TIME: TIMES,
        POSTPOSITION: PREPOSITIONS,
    }
    return tuple(stem for stems in entries[kind].values() for stem in stems)


def inflect(slot: Slot, stem: str, vowel: str = "") -> str:
    """The form of a stem that the slot requires; `vowel` is the class of an adjective's noun."""
    if slot.kind == NOUN:
        return noun_form(stem, slot.plural)
    if slot.kind == ADJECTIVE:
        return adjective_form(stem, vowel, slot.plural)
    if slot.kind == VERB:
        return verb_form(stem, slot.plural)
    return stem


# ---- sentences -----------------------------------------------------------------------------------

_NOUN_OF = {plural_of(noun): noun for noun in NOUNS}
_VERB_OF = {singular_of(verb): verb for verb in VERBS}
_PHRASE = r"the (?:(?P<{0}_adjective>\w+) )?(?P<{0}_noun>\w+)"
_SENTENCE = re.compile(
    rf"(?:(?P<time>\w+) , )?{_PHRASE.format('subject')} (?P<verb>\w+) {_PHRASE.format('object')}"
    r"(?: (?P<preposition>\w+) the (?P<place>\w+))? (?P<end>[.!])"
)


def read_sentence(text: str) -> Sentence | None:
    """The sentence that a text of the source language says; None if it is not of this world."""
    match = _SENTENCE.fullmatch(text)
    if match is None:
        return None
    parts = match.groupdict()
    subject = _read_phrase(parts["subject_noun"], parts["subject_adjective"])
    object_ = _read_phrase(parts["object_noun"], parts["object_adjective"])
    if subject is None or object_ is None:
        return None
    verb = parts["verb"] if subject.plural else _VERB_OF.get(parts["verb"])
    place = (parts["preposition"], parts["place"]) if parts["place"] else None
    place_known = place is None or (place[0] in PREPOSITIONS and place[1] in PLACES)
    if verb not in VERBS or parts["time"] not in (None, *TIMES) or not place_known:
        return None
    return Sentence(subject, verb, object_, parts["time"], place, parts["end"])


def _read_phrase(noun: str, adjective: str | None) -> NounPhrase | None:
    if adjective is not None and adjective not in ADJECTIVES:
        return None
    if noun in NOUNS:
        return NounPhrase(noun, False, adjective)
    if noun in _NOUN_OF:
        return NounPhrase(_NOUN_OF[noun], True, adjective)
    return None


def make_sentence(rng: random.Random) -> Sentence:
    subject, object_ = rng.sample(sorted(NOUNS), 2)
    time = rng.choice(sorted(TIMES)) if rng.random() < 0.5 else None
    place = None
    if rng.random() < 0.4:
        place = (rng.choice(sorted(PREPOSITIONS)), rng.choice(sorted(PLACES)))
    return Sentence(
        _make_phrase(rng, subject),
        rng.choice(sorted(VERBS)),
        _make_phrase(rng, object_),
        time,
        place,
        "!" if rng.random() < 0.2 else ".",
    )


def _make_phrase(rng: random.Random, noun: str) -> NounPhrase:
    adjective = rng.choice(sorted(ADJECTIVES)) if rng.random() < 0.5 else None
    return NounPhrase(noun, rng.random() < 0.4, adjective)


# ---- translations --------------------------------------------------------------------------------


def slots_of(sentence: Sentence) -> list[list[Slot]]:
    """The words of a right translation in their order, for every order that is right."""
    if sentence.time is None:
        return [_order(sentence, time_first=False)]
    return [_order(sentence, time_first=True), _order(sentence, time_first=False)]


def _order(sentence: Sentence, time_first: bool) -> list[Slot]:
    words = sentence.words()
    slots: list[Slot] = []

    def add_phrase(phrase: NounPhrase, place: int) -> None:
        noun_at = place + len(phrase.words()) - 1
        slots.append(Slot(NOUN, NOUNS[phrase.noun], noun_at, phrase.plural))
        if phrase.adjective is not None:
            stems = ADJECTIVES[phrase.adjective]
            slots.append(Slot(ADJECTIVE, stems, noun_at - 1, phrase.plural, len(slots) - 1))

    subject_at = 0 if sentence.time is None else 2
    verb_at = subject_at + len(sentence.subject.words())
    object_at = verb_at + 1
    if sentence.time is not None and time_first:
        slots.append(Slot(TIME, TIMES[sentence.time], 0))
        slots.append(Slot(MARK, (COMMA,), 1))
    add_phrase(sentence.subject, subject_at)
    if sentence.place is not None:
        preposition, noun = sentence.place
        preposition_at = object_at + len(sentence.object.words())
        slots.append(Slot(NOUN, PLACES[noun], preposition_at + 2))
        slots.append(Slot(POSTPOSITION, PREPOSITIONS[preposition], preposition_at))
    add_phrase(sentence.object, object_at)
    if sentence.time is not None and not time_first:
        slots.append(Slot(TIME, TIMES[sentence.time], 0))
    slots.append(Slot(VERB, VERBS[sentence.verb], verb_at, sentence.subject.plural))
    slots.append(Slot(MARK, (sentence.end,), len(words) - 1))
    return slots


def right_words(rng: random.Random, slots: list[Slot]) -> list[str]:
    """A right translation with random choices among synonyms."""
    words: list[str] = []
    for slot in slots:
        vowel = "" if slot.noun is None else forms()[words[slot.noun]].vowel
        words.append(inflect(slot, rng.choice(slot.stems), vowel))
    return words

"""The languages of the mini world: how its facts and questions are stated, and how they are read.

`TOY` is for models with a vocabulary of a few hundred words, trained from scratch: invented names,
and one form of every statement. `CHINESE` is the same for a script without spaces. `ENGLISH` is for
pretrained language models: real names, several forms of every statement and question, and sentences
that state no fact. The generator (mini_world.py), the oracle and the annotator work with claims, so
they are the same for all.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fgrlhf.reward_utils import BLANK, MULTILINGUAL


@dataclass(frozen=True)
class Claim:
    """One statement: the work of this kind has this value for this verb."""

    kind: str
    verb: str
    value: str
    form: int = field(default=0, compare=False)  # index into the statements of the verb


def in_sentences(claims: Sequence[Claim]) -> list[list[Claim]]:
    """The claims in sentences of two; the last one may have a single claim."""
    return [list(claims[start : start + 2]) for start in range(0, len(claims), 2)]


@dataclass(frozen=True)
class ErrorRates:
    """Probabilities of independent local errors in a demonstration."""

    drop_work: float = 0.12  # a work is left out; at least one work stays
    drop_claim: float = 0.15
    irrelevant: float = 0.45  # a fact that the question does not ask for is added to a sentence
    wrong_value: float = 0.32  # a value of the same pool from elsewhere on the pages
    repeat: float = 0.04  # an earlier sentence is repeated


@dataclass(frozen=True)
class Pool:
    """Values of one type, such as persons.

    Args:
      names: the values of the world.
      pattern: a regular expression for any value of this type, also for values outside the world.
        It must not match an ambiguous repetition, so that reading takes linear time.
    """

    names: tuple[str, ...]
    pattern: str


@dataclass(frozen=True)
class Attribute:
    """A property of a work.

    Args:
      pool: the type of its values. Attributes share pools, so the type of a value does not reveal
        the attribute.
      statements: forms of a claim, with the fields {kind} and {value}. Each has at least six words,
        since the segmenter merges shorter clauses, and none of the marks at which it splits.
      active: its verb in a question about persons, `Who wrote ...?`.
      passive: its participle in a question, `Where was ... first presented?`.
    """

    pool: str
    statements: tuple[str, ...]
    active: str
    passive: str


@dataclass(frozen=True)
class Language:
    """Words, statements and questions.

    Args:
      name: as in the key `language` of mini_world.py.
      kinds: kinds of works.
      pools: values by type.
      attributes: verb -> attribute, in the order of pages, questions and answers.
      title: the form of a title.
      title_words: the words of its fields.
      questions: forms of a question by the pools it asks about: {title}, and for each pool the
        fields {<pool>_active} and {<pool>_passive}, lists of its verbs.
      question_pattern: a regular expression with the group `title` for any question. Every verb
        outside the title is asked about.
      everything: the question of the pre-training rows, for {title}.
      listing: what is between the words of a list, and before its last word.
      conjunction: joins the claims of a sentence.
      stop: ends a sentence.
      words: all words, of a language without spaces; () if spaces separate them.
      segmenter: the one that divides answers for the oracle.
      fillers: sentences that state no fact, with the field {kind}.
      least_sentences: the pages of a question have at least so many sentences. Fillers make up the
        number, so that prompts differ less in length.
      distractor_page: the share of questions with a page about another title.
      rates: errors of demonstrations.
    """

    name: str
    kinds: tuple[str, ...]
    pools: Mapping[str, Pool]
    attributes: Mapping[str, Attribute]
    title: str
    title_words: tuple[tuple[str, ...], ...]
    questions: Mapping[tuple[str, ...], tuple[str, ...]]
    question_pattern: str
    conjunction: str
    fillers: tuple[str, ...]
    least_sentences: int
    distractor_page: float
    rates: ErrorRates
    everything: str = "What is known about {title}?"
    listing: tuple[str, str] = (", ", " and ")
    stop: str = "."
    words: tuple[str, ...] = ()
    segmenter: str = BLANK  # the truth must not depend on the installed spaCy pipelines

    # ---- writing ---------------------------------------------------------------------------------

    def pool_of(self, verb: str) -> str:
        return self.attributes[verb].pool

    def in_order(self, verbs: Sequence[str]) -> list[str]:
        """Sort verbs into the fixed order that pages, questions and answers use.

        With this order, and with pages in alphabetical order, the next claim of an answer depends
        on the previous one only, so a two-layer decoder can track its position. With a random order
        its answers repeat themselves.
        """
        return sorted(verbs, key=list(self.attributes).index)

    def state(self, claim: Claim) -> str:
        """A claim as a clause, in the claim's form."""
        statement = self.attributes[claim.verb].statements[claim.form]
        return statement.format(kind=claim.kind, value=claim.value)

    def compose(self, sentences: Sequence[Sequence[Claim | str]]) -> str:
        """The text of sentences, each of which is a list of claims or other clauses."""
        texts = []
        for clauses in sentences:
            if clauses:
                text = self.conjunction.join(
                    self.state(clause) if isinstance(clause, Claim) else clause
                    for clause in clauses
                )
                texts.append(text[0].upper() + text[1:] + self.stop)
        return self.join(texts)

    def join(self, sentences: Sequence[str]) -> str:
        """The text of whole sentences."""
        return ("" if self.words else " ").join(sentences)

    def question(self, title: str, asked: Sequence[str], rng: random.Random) -> str:
        """A question about the verbs of a title, in a random form."""
        fields = {"title": title}
        pools = []
        for pool in self.pools:
            verbs = [verb for verb in asked if self.pool_of(verb) == pool]
            if verbs:
                pools.append(pool)
                fields[f"{pool}_active"] = self._listed([self.attributes[v].active for v in verbs])
                fields[f"{pool}_passive"] = self._listed(
                    [self.attributes[v].passive for v in verbs]
                )
        fields["all"] = self._listed([self.attributes[verb].passive for verb in asked])
        return rng.choice(self.questions[tuple(pools)]).format(**fields)

    def _listed(self, words: Sequence[str]) -> str:
        """`a`, `a and b`, `a, b and c`."""
        between, last = self.listing
        return between.join(words[:-1]) + last + words[-1] if len(words) > 1 else words[0]

    # ---- reading ---------------------------------------------------------------------------------

    @cached_property
    def _statement_patterns(self) -> tuple[tuple[str, int, re.Pattern], ...]:
        """(verb, form, pattern) of every form of a claim."""
        kinds = "|".join(self.kinds)
        patterns = []
        for verb, attribute in self.attributes.items():
            value = self.pools[attribute.pool].pattern
            for form, statement in enumerate(attribute.statements):
                first = statement[0]
                if first != "{":  # a sentence begins with a capital letter
                    statement = f"[{first.upper()}{first}]{statement[1:]}"
                pattern = statement.format(kind=f"(?P<kind>{kinds})", value=f"(?P<value>{value})")
                patterns.append((verb, form, re.compile(pattern)))
        return tuple(patterns)

    @cached_property
    def _question_regex(self) -> re.Pattern:
        return re.compile(self.question_pattern)

    @cached_property
    def _conjunction_parts(self) -> tuple[str, str]:
        """The mark that ends a clause before the next one, and the word that begins the next."""
        mark, _, word = self.conjunction.partition(" ")
        return mark, word

    def clause(self, text: str) -> str:
        """A sub-sentence without the marks and the conjunction around it."""
        mark, word = self._conjunction_parts
        return text.strip().removeprefix(word).rstrip(self.stop + mark)

    def read_claim(self, text: str) -> Claim | None:
        """The claim of a sub-sentence; None unless it is exactly one well-formed claim."""
        mark, word = self._conjunction_parts
        text = text.strip().removeprefix(word)
        if text.endswith((self.stop, mark)):
            text = text[:-1]
        for verb, form, pattern in self._statement_patterns:
            match = pattern.fullmatch(text)
            if match:
                return Claim(match["kind"], verb, match["value"], form)
        return None

    def read_question(self, question: str) -> tuple[str, tuple[str, ...]] | None:
        """The title of a question and the verbs that it asks for, in its order.

        None for a text that is not a question about any verb.
        """
        if "\n" in question or not question.endswith(("?", "？")):
            return None  # it cannot match, and an expression would take long to find that out
        match = self._question_regex.fullmatch(question)
        if not match:
            return None
        words = question[: match.start("title")] + question[match.end("title") :]
        asked = []
        for word in self._verb_regex.findall(words):
            asked.append(self._verb_of_word[word])
        return (match["title"], tuple(dict.fromkeys(asked))) if asked else None

    @cached_property
    def _verb_of_word(self) -> dict[str, str]:
        verbs = {}
        for verb, attribute in self.attributes.items():
            verbs[attribute.active.split()[-1]] = verb
            verbs[attribute.passive.split()[-1]] = verb
        return verbs

    @cached_property
    def _verb_regex(self) -> re.Pattern:
        verbs = "|".join(sorted(self._verb_of_word, key=len, reverse=True))
        return re.compile(verbs if self.words else rf"(?<![a-z])(?:{verbs})(?![a-z])")


def language_of(question: object) -> tuple[Language, str, tuple[str, ...]] | None:
    """The language of a question, its title and the verbs it asks for; None for other texts."""
    if not isinstance(question, str):
        return None
    for language in LANGUAGES.values():
        parsed = language.read_question(question)
        if parsed:
            return language, *parsed
    return None


# ---- the toy language ----------------------------------------------------------------------------


def _names(
    syllables: Sequence[str], lengths: Sequence[int], count: int, seed: str
) -> tuple[str, ...]:
    rng = random.Random(seed)
    names = []
    while len(names) < count:
        name = "".join(rng.choice(syllables) for _ in range(rng.choice(lengths))).capitalize()
        if name not in names:
            names.append(name)
    return tuple(names)


# Names of nine letters and more: the published coverage rule compares texts by their letters, and a
# clause with a wrong short name would still count as the same clause.
_TOY_PERSONS = _names(
    ("bor", "dan", "fel", "gus", "hir", "jor", "kal", "lem", "mun", "nor", "pex", "tov"),
    (3, 4),
    140,
    "persons",
)
_TOY_PLACES = _names(
    ("axo", "bri", "cul", "dwy", "ezu", "fro", "gha", "itz", "oku", "phe", "sla", "uvi"),
    (3, 4),
    140,
    "places",
)


def _toy_attribute(verb: str, pool: str, preposition: str) -> Attribute:
    return Attribute(
        pool,
        (f"the {{kind}} was {verb} {preposition} {{value}}",),
        active=verb,
        passive=verb,
    )


_TOY_QUESTION = ("Where or by whom was {title} {all}?",)

_TOY_KINDS = (
    "film", "novel", "opera", "album", "poem", "play",
    "ballet", "musical", "painting", "comic", "game", "essay",
)  # fmt: skip

TOY = Language(
    name="toy",
    kinds=_TOY_KINDS,
    pools={
        "persons": Pool(_TOY_PERSONS, "[A-Z][a-z]+"),
        "places": Pool(_TOY_PLACES, "[A-Z][a-z]+"),
    },
    attributes={
        "created": _toy_attribute("created", "persons", "by"),
        "revised": _toy_attribute("revised", "persons", "by"),
        "financed": _toy_attribute("financed", "persons", "by"),
        "praised": _toy_attribute("praised", "persons", "by"),
        "made": _toy_attribute("made", "places", "in"),
        "shown": _toy_attribute("shown", "places", "in"),
        "banned": _toy_attribute("banned", "places", "in"),
        "sold": _toy_attribute("sold", "places", "in"),
    },
    title="{} {}",
    title_words=(
        _names(("al", "be", "co", "du", "ei", "fa", "go"), (3,), 60, "first words"),
        _names(("mi", "no", "pa", "re", "su", "ty", "va"), (3,), 60, "second words"),
    ),
    questions={
        ("persons",): _TOY_QUESTION,
        ("places",): _TOY_QUESTION,
        ("persons", "places"): _TOY_QUESTION,
    },
    question_pattern=r"Where or by whom was (?P<title>.+?) [a-z].*\?",
    conjunction="; ",
    fillers=(),
    least_sentences=0,
    distractor_page=0.2,
    rates=ErrorRates(),
)


# ---- Chinese -------------------------------------------------------------------------------------

# No character is in two of these groups, so a text has one division into words. A name has four
# characters or more: see _TOY_PERSONS.
_CHINESE_PERSONS = _names(tuple("博丹费古希乔卡莱蒙诺佩托"), (4, 5), 140, "persons")
_CHINESE_PLACES = _names(tuple("阿布库德埃弗加伊奥菲斯乌"), (4, 5), 140, "places")
_CHINESE_TITLES = (
    _names(tuple("星海云山风月石"), (3,), 60, "first words"),
    _names(tuple("梦路城光夜雨花"), (3,), 60, "second words"),
)
_CHINESE_KINDS = (
    "电影", "小说", "歌剧", "专辑", "诗集", "话剧",
    "舞剧", "音乐剧", "油画", "漫画", "游戏", "散文",
)  # fmt: skip
_CHINESE_VERBS = {
    "创作者": "persons",
    "修订者": "persons",
    "出资者": "persons",
    "称赞者": "persons",
    "制作地": "places",
    "展出地": "places",
    "被禁地": "places",
    "销售地": "places",
}
_CHINESE_QUESTION = ("{title}的{all}是什么？",)

# Word for word the toy language, without spaces. Not a good style, but one that is easy to read.
CHINESE = Language(
    name="chinese",
    kinds=_CHINESE_KINDS,
    pools={
        "persons": Pool(_CHINESE_PERSONS, r"[\u4e00-\u9fff]{2,8}"),
        "places": Pool(_CHINESE_PLACES, r"[\u4e00-\u9fff]{2,8}"),
    },
    attributes={
        verb: Attribute(pool, (f"这部{{kind}}的{verb}是{{value}}",), active=verb, passive=verb)
        for verb, pool in _CHINESE_VERBS.items()
    },
    title="{}{}",
    title_words=_CHINESE_TITLES,
    questions={pools: _CHINESE_QUESTION for pools in TOY.questions},
    question_pattern="(?P<title>[^的]+)的[^是]+是什么？",
    everything="关于{title}有哪些资料？",
    listing=("、", "和"),
    conjunction="；",
    stop="。",
    words=(
        *_CHINESE_PERSONS,
        *_CHINESE_PLACES,
        *(word for words in _CHINESE_TITLES for word in words),
        *_CHINESE_KINDS,
        *_CHINESE_VERBS,
        *["这部", "的", "是", "和", "什么", "关于", "有哪些", "资料"],
    ),
    segmenter=MULTILINGUAL,
    fillers=(),
    least_sentences=0,
    distractor_page=TOY.distractor_page,
    rates=TOY.rates,
)

# ---- English -------------------------------------------------------------------------------------

# No name is both a first and a last name, a place or the beginning of another name.
_FIRST_NAMES = (
    "Margaret", "Sebastian", "Consuelo", "Wilhelm", "Priscilla", "Takashi", "Gwendolyn", "Rodrigo",
    "Annelise", "Vladimir", "Josephine", "Mustafa", "Rosalind", "Emilio", "Beatrix", "Kwame",
    "Henrietta", "Lorenzo", "Philippa", "Nikolai", "Guadalupe", "Bertrand", "Ingeborg", "Hiroshi",
    "Veronica", "Archibald", "Fatima", "Gustavo", "Millicent", "Yusuf", "Dorothea", "Cornelius",
    "Svetlana", "Mateusz", "Clementine", "Raymond", "Ottilie", "Humphrey", "Zuzanna", "Timothy",
)  # fmt: skip
_LAST_NAMES = (
    "Fitzgerald", "Kowalczyk", "Hernandez", "Lindqvist", "Okonkwo", "Yamamoto", "Abernathy",
    "Bukowski", "Castellanos", "Dubinsky", "Eriksson", "Fujimoto", "Goldsmith", "Huxtable",
    "Ivanovic", "Johansson", "Kirkpatrick", "Lombardi", "Mbeki", "Novotny", "Pemberton",
    "Quintero", "Rosenthal", "Schumacher", "Thibault", "Underwood", "Vandenberg", "Whitcombe",
    "Zielinski", "Blackburn", "Cavendish", "Drummond", "Featherstone", "Gutierrez", "Haverford",
    "Jankowski", "Lockhart", "Montoya", "Papadakis", "Suzuki",
)  # fmt: skip
_PERSONS = tuple(
    f"{first} {_LAST_NAMES[(i + 7 * turn) % len(_LAST_NAMES)]}"
    for turn in range(4)
    for i, first in enumerate(_FIRST_NAMES)
)
_PLACES = (
    "Amsterdam", "Barcelona", "Copenhagen", "Dubrovnik", "Edinburgh", "Frankfurt", "Gothenburg",
    "Helsinki", "Istanbul", "Jakarta", "Kathmandu", "Liverpool", "Marrakesh", "Nottingham",
    "Oxford", "Philadelphia", "Quebec", "Reykjavik", "Salzburg", "Thessaloniki", "Utrecht",
    "Vancouver", "Winnipeg", "Yokohama", "Zanzibar", "Antwerp", "Budapest", "Casablanca",
    "Dusseldorf", "Eindhoven", "Fukuoka", "Guayaquil", "Heidelberg", "Islamabad", "Johannesburg",
    "Karachi", "Ljubljana", "Melbourne", "Nashville", "Osnabruck", "Portsmouth", "Rotterdam",
    "Singapore", "Toulouse", "Uppsala", "Valparaiso", "Wellington", "Yerevan", "Zagreb",
    "Birmingham", "Chicago", "Damascus", "Gdansk", "Hyderabad", "Innsbruck", "Kingston",
    "Leipzig", "Montevideo", "Naples", "Palermo", "Riyadh", "Stockholm", "Trondheim", "Vilnius",
    "Warsaw", "Buffalo", "Cincinnati", "Guadalajara", "Honolulu", "Krakow", "Maracaibo",
    "Pittsburgh", "Strasbourg", "Timbuktu", "Vladivostok",
)  # fmt: skip
_ADJECTIVES = (
    "Silent", "Crimson", "Forgotten", "Golden", "Hidden", "Broken", "Distant", "Frozen", "Hollow",
    "Burning", "Crooked", "Endless", "Gentle", "Lonely", "Painted", "Restless", "Scarlet",
    "Sleeping", "Twisted", "Velvet", "Wandering", "Winter", "Emerald", "Haunted", "Ivory",
    "Marble", "Shattered", "Tangled", "Weeping", "Whispering",
)  # fmt: skip
_NOUNS = (
    "Harbour", "Orchard", "Lantern", "Mirror", "Garden", "Bridge", "Castle", "Compass", "Curtain",
    "Desert", "Feather", "Fountain", "Island", "Kingdom", "Ladder", "Lighthouse", "Meadow",
    "Mountain", "Needle", "Palace", "Parade", "Pearl", "Raven", "River", "Shadow", "Staircase",
    "Station", "Sparrow", "Temple", "Thunder", "Tower", "Valley", "Village", "Violin", "Voyage",
    "Whistle", "Window", "Wolf", "Canyon", "Meridian",
)  # fmt: skip

_PERSON = "[A-Z][A-Za-z'-]* [A-Z][A-Za-z'-]*"
_PLACE = "[A-Z][A-Za-z'-]*(?: [A-Z][A-Za-z'-]*)?"

_ENGLISH_KINDS = (
    "film", "novel", "opera", "play", "ballet", "musical",
    "comic", "poem", "cartoon", "documentary", "sitcom", "pantomime",
)  # fmt: skip

ENGLISH = Language(
    name="english",
    kinds=_ENGLISH_KINDS,
    pools={"persons": Pool(_PERSONS, _PERSON), "places": Pool(_PLACES, _PLACE)},
    attributes={
        "written": Attribute(
            "persons",
            (
                "the {kind} was written by {value}",
                "{value} was the author of the {kind}",
                "the script of the {kind} was by {value}",
            ),
            active="wrote",
            passive="written",
        ),
        "financed": Attribute(
            "persons",
            (
                "the {kind} was financed by {value}",
                "{value} paid for the {kind}",
                "the money for the {kind} came from {value}",
            ),
            active="financed",
            passive="financed",
        ),
        "adapted": Attribute(
            "persons",
            (
                "the {kind} was adapted by {value}",
                "{value} made an adaptation of the {kind}",
                "the adaptation of the {kind} was by {value}",
            ),
            active="adapted",
            passive="adapted",
        ),
        "praised": Attribute(
            "persons",
            (
                "the {kind} was praised by {value}",
                "{value} spoke highly of the {kind}",
                "the {kind} received praise from {value}",
            ),
            active="praised",
            passive="praised",
        ),
        "produced": Attribute(
            "places",
            (
                "the {kind} was produced in {value}",
                "{value} is where the {kind} was produced",
                "the production of the {kind} took place in {value}",
            ),
            active="produced",
            passive="produced",
        ),
        "presented": Attribute(
            "places",
            (
                "the {kind} was first presented in {value}",
                "{value} saw the first presentation of the {kind}",
                "the first audience of the {kind} was in {value}",
            ),
            active="first presented",
            passive="first presented",
        ),
        "banned": Attribute(
            "places",
            (
                "the {kind} was banned in {value}",
                "the authorities of {value} banned the {kind}",
                "the {kind} was against the law in {value}",
            ),
            active="banned",
            passive="banned",
        ),
        "restored": Attribute(
            "places",
            (
                "the {kind} was restored in {value}",
                "a workshop in {value} restored the {kind}",
                "the restoration of the {kind} took place in {value}",
            ),
            active="restored",
            passive="restored",
        ),
    },
    title="The {} {}",
    title_words=(_ADJECTIVES, _NOUNS),
    questions={
        ("persons",): (
            "Who {persons_active} {title}?",
            "By whom was {title} {persons_passive}?",
            "Can you tell me who {persons_active} {title}?",
        ),
        ("places",): (
            "Where was {title} {places_passive}?",
            "In which cities was {title} {places_passive}?",
            "Can you tell me where {title} was {places_passive}?",
        ),
        ("persons", "places"): (
            "Who {persons_active} {title}, and where was it {places_passive}?",
            "By whom was {title} {persons_passive}, and in which cities was it {places_passive}?",
            "Can you tell me who {persons_active} {title} and where it was {places_passive}?",
        ),
    },
    question_pattern=r"[A-Z][a-z ,]* (?P<title>The [A-Z][a-z]+ [A-Z][a-z]+)[a-z ,]*\?",
    conjunction=", and ",
    fillers=(
        "critics still argue about the {kind}",
        "the {kind} is little known today",
        "many students meet the {kind} at school",
        "the title of the {kind} has no clear origin",
        "the {kind} is often confused with other works of the same name",
        "no early notes on the {kind} have survived",
        "the {kind} has a small but loyal following",
        "a short summary of the {kind} appears in most handbooks",
        "the {kind} is longer than most works of its time",
        "opinions on the ending of the {kind} differ",
        "the {kind} was discussed on the radio for weeks",
        "collectors look for souvenirs of the {kind}",
    ),
    least_sentences=14,
    distractor_page=0.4,
    # fewer than in the toy language: a pretrained model adds errors of its own
    rates=ErrorRates(
        drop_work=0.03, drop_claim=0.04, irrelevant=0.10, wrong_value=0.14, repeat=0.02
    ),
)

LANGUAGES = {language.name: language for language in (TOY, CHINESE, ENGLISH)}

"""A small world with known truth, written in the qa-feedback JSON format.

A topic is an invented two-word title that names two or three works of different kinds, so that
questions are ambiguous, as those of ASQA are. Every work has its own page, `TITLE (KIND)`, with one
fact per sentence: `The KIND was VERB by|in VALUE.` A question asks for two or three attributes of
the title, so the complete answer has them for every work. The other sentences of the pages, and
sometimes a page about another title, are distractors. Four attributes share the pool of person
names and four the pool of place names, so the type of a value does not reveal the attribute.

Every row is a pure function of (seed, split, index).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import run_main
from fgrlhf.files import write_json

# verb -> preposition: persons or places
VERBS = {
    "created": "by",
    "revised": "by",
    "financed": "by",
    "praised": "by",
    "made": "in",
    "shown": "in",
    "banned": "in",
    "sold": "in",
}
KINDS = (
    "film",
    "novel",
    "opera",
    "album",
    "poem",
    "play",
    "ballet",
    "musical",
    "painting",
    "comic",
    "game",
    "essay",
)
# (works, requested attributes) and its share of the questions
SHAPES = (
    ((2, 3), 0.4),
    ((3, 2), 0.3),
    ((3, 3), 0.3),
)
DISTRACTOR_PAGE = 0.2
EVERYTHING = "What is known about {}?"  # the question of the pre-training rows


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
PERSONS = _names(
    ("bor", "dan", "fel", "gus", "hir", "jor", "kal", "lem", "mun", "nor", "pex", "tov"),
    (3, 4),
    140,
    "persons",
)
PLACES = _names(
    ("axo", "bri", "cul", "dwy", "ezu", "fro", "gha", "itz", "oku", "phe", "sla", "uvi"),
    (3, 4),
    140,
    "places",
)
TITLES = (
    _names(("al", "be", "co", "du", "ei", "fa", "go"), (3,), 60, "first words"),
    _names(("mi", "no", "pa", "re", "su", "ty", "va"), (3,), 60, "second words"),
)


@dataclass(frozen=True)
class Claim:
    """One statement: the work of this kind has this value for this verb."""

    kind: str
    verb: str
    value: str

    def __str__(self) -> str:
        return f"the {self.kind} was {self.verb} {VERBS[self.verb]} {self.value}"


@dataclass(frozen=True)
class Page:
    title: str
    kind: str
    claims: tuple[Claim, ...]

    @property
    def name(self) -> str:
        return f"{self.title} ({self.kind})"

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(compose([[claim]]) for claim in self.claims)


@dataclass(frozen=True)
class Item:
    """A question of the world. `pages` are about `title`; `distractors` are not."""

    title: str
    asked: tuple[str, ...]
    pages: tuple[Page, ...]
    distractors: tuple[Page, ...]
    order: tuple[Page, ...]  # all pages, as shown

    @property
    def needed(self) -> tuple[Claim, ...]:
        """The complete answer: works in page order, attributes in the question's order."""
        return tuple(
            next(claim for claim in page.claims if claim.verb == verb)
            for page in self.pages
            for verb in self.asked
        )


def compose(sentences: Sequence[Sequence[Claim | str]]) -> str:
    """The text of sentences; the claims of a sentence are joined by semicolons."""
    texts = ("; ".join(str(claim) for claim in claims) for claims in sentences if claims)
    return " ".join(text[0].upper() + text[1:] + "." for text in texts)


def question(title: str, asked: Sequence[str]) -> str:
    """A question such as `Where or by whom was Xx Yy created, sold and banned?`."""
    listed = ", ".join(asked[:-1]) + " and " + asked[-1] if len(asked) > 1 else asked[0]
    return f"Where or by whom was {title} {listed}?"


def in_order(verbs: Sequence[str]) -> list[str]:
    """Sort verbs into the fixed order that pages, questions and answers use.

    With this order, and with pages in alphabetical order, the next claim of an answer depends on
    the previous one only, so a two-layer decoder can track its position. With a random order its
    answers repeat themselves.
    """
    return sorted(verbs, key=list(VERBS).index)


def _page(
    rng: random.Random, title: str, kind: str, verbs: Sequence[str], values: dict[str, list[str]]
) -> Page:
    claims = tuple(Claim(kind, verb, values[VERBS[verb]].pop()) for verb in in_order(verbs))
    return Page(title, kind, claims)


def make_item(seed: int, split: str, index: int) -> Item:
    """The item at `index` of a split.

    No value occurs twice in an item, so a value in the wrong place is an error.
    """
    rng = random.Random(f"{seed}/{split}/{index}")
    shapes = [shape for shape, _ in SHAPES]
    shares = [share for _, share in SHAPES]
    works, attributes = rng.choices(shapes, shares)[0]
    title = " ".join(rng.choice(words) for words in TITLES)
    kinds = rng.sample(KINDS, works + 1)
    asked = tuple(in_order(rng.sample(list(VERBS), attributes)))
    values = {"by": rng.sample(PERSONS, 20), "in": rng.sample(PLACES, 20)}
    pages = []
    for kind in kinds[:works]:
        extra = rng.sample([verb for verb in VERBS if verb not in asked], rng.randint(1, 3))
        pages.append(_page(rng, title, kind, (*asked, *extra), values))
    distractors = ()
    if rng.random() < DISTRACTOR_PAGE:
        other = " ".join(
            rng.choice([word for word in words if word not in title]) for words in TITLES
        )
        distractors = (_page(rng, other, kinds[works], rng.sample(list(VERBS), 2), values),)
    order = sorted([*pages, *distractors], key=lambda page: page.kind)
    return Item(
        title,
        asked,
        tuple(page for page in order if page.title == title),
        distractors,
        tuple(order),
    )


def gold_sentences(item: Item) -> list[list[Claim]]:
    """The complete answer in sentences of at most two claims, each about one work."""
    sentences = []
    for page in item.pages:
        claims = [claim for claim in item.needed if claim.kind == page.kind]
        sentences += [claims[at : at + 2] for at in range(0, len(claims), 2)]
    return sentences


# ---- imperfect demonstrations --------------------------------------------------------------------


@dataclass(frozen=True)
class ErrorRates:
    """Probabilities of independent local errors in a demonstration."""

    drop_work: float = 0.12  # a work is left out; at least one work stays
    drop_claim: float = 0.15
    irrelevant: float = 0.45  # a fact that the question does not ask for is added to a sentence
    wrong_value: float = 0.32  # a value of the same pool from elsewhere on the pages
    repeat: float = 0.04  # an earlier sentence is repeated


def _wrong(rng: random.Random, item: Item, claim: Claim) -> Claim:
    """The claim with the value of a fact that is easily confused with it.

    That is a fact with the same verb about another work, or another fact about the same work.
    """
    facts = []
    for page in item.pages:
        for fact in page.claims:
            if fact.value != claim.value and VERBS[fact.verb] == VERBS[claim.verb]:
                facts.append(fact)
    similar = [fact for fact in facts if (fact.verb == claim.verb) != (fact.kind == claim.kind)]
    return Claim(claim.kind, claim.verb, rng.choice(similar or facts or [claim]).value)


def demonstration(rng: random.Random, item: Item, rates: ErrorRates) -> list[list[Claim]]:
    """The gold answer with independent local errors."""
    kinds = [page.kind for page in item.pages if rng.random() >= rates.drop_work]
    if not kinds:
        kinds = [rng.choice(item.pages).kind]
    sentences: list[list[Claim]] = []
    for sentence in gold_sentences(item):
        kind = sentence[0].kind
        claims = []
        if kind in kinds:
            claims = [claim for claim in sentence if rng.random() >= rates.drop_claim]
        if kind in kinds and rng.random() < rates.irrelevant:
            page = next(page for page in item.pages if page.kind == kind)
            claims.append(
                rng.choice([claim for claim in page.claims if claim.verb not in item.asked])
            )
        claims = [
            _wrong(rng, item, claim) if rng.random() < rates.wrong_value else claim
            for claim in claims
        ]
        sentences += [claims[at : at + 2] for at in range(0, len(claims), 2)]
        if sentences and rng.random() < rates.repeat:
            sentences.append(rng.choice(sentences))
    return sentences or [list(gold_sentences(item)[0])]


def recital(rng: random.Random, item: Item) -> list[list[Claim]]:
    """Every fact on the pages about the title, in random order.

    Each value must be looked up by kind and verb.
    """
    claims = [claim for page in item.pages for claim in page.claims]
    rng.shuffle(claims)
    return [claims[at : at + 2] for at in range(0, len(claims), 2)]


# ---- rows and files ------------------------------------------------------------------------------


def to_row(item: Item, asked: str, sentences: Sequence[Sequence[Claim]]) -> dict:
    """A row of the qa-feedback format."""
    passages = [{"content": " ".join(page.sentences), "wikipage": page.name} for page in item.order]
    context = " | ".join(f"wikipage: {p['wikipage']} text: {p['content']}" for p in passages)
    return {
        "text": f"question: {asked} context: {context}",
        "answer": [compose(sentences)],
        "passages": passages,
        "question": asked,
    }


def make_row(seed: int, split: str, index: int, rates: ErrorRates = ErrorRates()) -> dict:
    """Row `index` of a split.

    The answers of `pretrain` are recitals, those of `sft` imperfect demonstrations, and those of
    all other splits gold answers.
    """
    item = make_item(seed, split, index)
    rng = random.Random(f"{seed}/{split}/{index}/answer")
    if split == "pretrain":
        return to_row(item, EVERYTHING.format(item.title), recital(rng, item))
    sentences = demonstration(rng, item, rates) if split == "sft" else gold_sentences(item)
    return to_row(item, question(item.title, item.asked), sentences)


# Index of the first test row. Rows 0 to 399 were evaluated while settings were still being chosen.
FIRST_TEST_ROW = 1000


Rows = Annotated[int, Field(ge=1, le=1_000_000)]  # every reader refuses a file without rows


class Settings(StrictModel):
    """The output folder and the number of rows per file."""

    data_dir: str = Field(description="folder of the rows")
    seed: int = Field(default=0, description="of everything random")
    train: Rows = Field(default=4000, description="rows of train.json")
    dev: Rows = Field(default=300, description="rows of dev.json")
    test: Rows = Field(default=400, description="rows of test.json")
    pretrain: Rows = Field(default=2400, description="rows of pretrain.json")
    sft: Rows = Field(default=9600, description="rows of sft.json")


def write_world(settings: Settings) -> None:
    """Write {train,dev,test,pretrain,sft,train_1k}.json.

    `train_1k` has the first thousand rows of `sft`.
    """
    folder = Path(settings.data_dir)
    for split in ("train", "dev", "test", "pretrain", "sft"):
        first = FIRST_TEST_ROW if split == "test" else 0
        rows = [
            make_row(settings.seed, split, first + index)
            for index in range(getattr(settings, split))
        ]
        write_json(folder / f"{split}.json", rows)
        if split == "sft":
            write_json(folder / "train_1k.json", rows[:1000])
        print(f"{folder / split}.json: {len(rows)} rows", flush=True)


if __name__ == "__main__":
    run_main(lambda: write_world(settings_from(Settings)))

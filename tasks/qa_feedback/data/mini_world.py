"""A small world with known truth, written in the qa-feedback JSON format.

A topic is an invented title that names two or three works of different kinds, so that questions are
ambiguous, as those of ASQA are. Every work has its own page, `TITLE (KIND)`, with one fact per
sentence: `The KIND was VERB by|in VALUE.` A question asks for two or three attributes of the title,
so the complete answer has them for every work. The other sentences of the pages, and sometimes a
page about another title, are distractors. Four attributes share the pool of person names and four
the pool of place names, so the type of a value does not reveal the attribute. The words are those
of a language (language.py): a toy language, the same in Chinese, or English for pretrained language
models.

Every row is a pure function of (seed, split, index).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fgrlhf.base.files import write_json
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from tasks.qa_feedback.data.language import (
    LANGUAGES,
    TOY,
    Claim,
    ErrorRates,
    Language,
    in_sentences,
)

# (works, requested attributes) and its share of the questions
SHAPES = (
    ((2, 3), 0.4),
    ((3, 2), 0.3),
    ((3, 3), 0.3),
)


@dataclass(frozen=True)
class Page:
    """A page about one work: its claims, and sentences that state no fact."""

    title: str
    kind: str
    statements: tuple[Claim | str, ...]

    @property
    def name(self) -> str:
        return f"{self.title} ({self.kind})"

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.statements if isinstance(claim, Claim))

    def claim_about(self, verb: str) -> Claim:
        return next(claim for claim in self.claims if claim.verb == verb)


@dataclass(frozen=True)
class Item:
    """A question of the world. `pages` are about `title`; `distractors` are not."""

    language: Language
    title: str
    question: str
    asked: tuple[str, ...]
    pages: tuple[Page, ...]
    distractors: tuple[Page, ...]
    order: tuple[Page, ...]  # all pages, as shown

    @property
    def needed(self) -> tuple[Claim, ...]:
        """The complete answer: works in page order, attributes in the question's order."""
        return tuple(page.claim_about(verb) for page in self.pages for verb in self.asked)


def _title(rng: random.Random, language: Language, other_than: str = "") -> str:
    """A random title without the words of another one."""
    words = []
    for choices in language.title_words:
        words.append(rng.choice([word for word in choices if word not in other_than]))
    return language.title.format(*words)


def _page(
    phrasing: random.Random,
    language: Language,
    title: str,
    kind: str,
    verbs: Sequence[str],
    values: dict[str, list[str]],
) -> Page:
    claims = []
    for verb in language.in_order(verbs):
        form = phrasing.randrange(len(language.attributes[verb].statements))
        claims.append(Claim(kind, verb, values[language.pool_of(verb)].pop(), form))
    return Page(title, kind, tuple(claims))


def _with_fillers(
    phrasing: random.Random, language: Language, pages: Sequence[Page]
) -> tuple[Page, ...]:
    """The pages with as many fillers, at random places, as the language's least number asks for."""
    statements = [list(page.statements) for page in pages]
    missing = language.least_sentences - sum(map(len, statements))
    for filler in phrasing.sample(language.fillers, max(missing, 0)):
        number = phrasing.randrange(len(pages))
        place = phrasing.randint(0, len(statements[number]))
        statements[number].insert(place, filler.format(kind=pages[number].kind))
    return tuple(
        replace(page, statements=tuple(sentences)) for page, sentences in zip(pages, statements)
    )


def make_item(seed: int, split: str, index: int, language: Language = TOY) -> Item:
    """The item at `index` of a split.

    No value occurs twice in an item, so a value in the wrong place is an error.
    """
    rng = random.Random(f"{seed}/{split}/{index}")
    # draws of its own, so that the forms of statements do not change the facts
    phrasing = random.Random(f"{seed}/{split}/{index}/phrasing")
    verbs = list(language.attributes)
    shapes = [shape for shape, _ in SHAPES]
    shares = [share for _, share in SHAPES]
    works, attributes = rng.choices(shapes, shares)[0]
    title = _title(rng, language)
    kinds = rng.sample(language.kinds, works + 1)
    asked = tuple(language.in_order(rng.sample(verbs, attributes)))
    values = {name: rng.sample(pool.names, 20) for name, pool in language.pools.items()}
    pages = []
    for kind in kinds[:works]:
        extra = rng.sample([verb for verb in verbs if verb not in asked], rng.randint(1, 3))
        pages.append(_page(phrasing, language, title, kind, (*asked, *extra), values))
    distractors = ()
    if rng.random() < language.distractor_page:
        other = _title(rng, language, other_than=title)
        about = rng.sample(verbs, 2)
        distractors = (_page(phrasing, language, other, kinds[works], about, values),)
    in_order = sorted([*pages, *distractors], key=lambda page: page.kind)
    order = _with_fillers(phrasing, language, in_order)
    return Item(
        language,
        title,
        language.question(title, asked, phrasing),
        asked,
        tuple(page for page in order if page.title == title),
        tuple(page for page in order if page.title != title),
        order,
    )


def gold_sentences(item: Item) -> list[list[Claim]]:
    """The complete answer in sentences of at most two claims, each about one work."""
    sentences = []
    for page in item.pages:
        sentences += in_sentences([claim for claim in item.needed if claim.kind == page.kind])
    return sentences


# ---- imperfect demonstrations --------------------------------------------------------------------


def _wrong(rng: random.Random, item: Item, claim: Claim) -> Claim:
    """The claim with the value of a fact that is easily confused with it.

    That is a fact with the same verb about another work, or another fact about the same work.
    """
    facts = []
    for page in item.pages:
        for fact in page.claims:
            same_pool = item.language.pool_of(fact.verb) == item.language.pool_of(claim.verb)
            if fact.value != claim.value and same_pool:
                facts.append(fact)
    similar = [fact for fact in facts if (fact.verb == claim.verb) != (fact.kind == claim.kind)]
    return replace(claim, value=rng.choice(similar or facts or [claim]).value)


def demonstration(rng: random.Random, item: Item, rates: ErrorRates) -> list[list[Claim]]:
    """The gold answer with independent local errors."""
    kinds = [page.kind for page in item.pages if rng.random() >= rates.drop_work]
    if not kinds:
        kinds = [rng.choice(item.pages).kind]
    sentences: list[list[Claim]] = []
    for sentence in gold_sentences(item):
        if sentence[0].kind in kinds:
            sentences += in_sentences(_with_errors(rng, item, sentence, rates))
        if sentences and rng.random() < rates.repeat:
            sentences.append(rng.choice(sentences))
    return sentences or [list(gold_sentences(item)[0])]


def _with_errors(
    rng: random.Random, item: Item, sentence: Sequence[Claim], rates: ErrorRates
) -> list[Claim]:
    """The claims of a sentence after its errors: left out, added without need, wrong values."""
    stated = [claim for claim in sentence if rng.random() >= rates.drop_claim]
    if rng.random() < rates.irrelevant:
        page = next(page for page in item.pages if page.kind == sentence[0].kind)
        stated.append(rng.choice([claim for claim in page.claims if claim.verb not in item.asked]))
    claims = []
    for claim in stated:
        is_wrong = rng.random() < rates.wrong_value
        claims.append(_wrong(rng, item, claim) if is_wrong else claim)
    return claims


def recital(rng: random.Random, item: Item) -> list[list[Claim]]:
    """Every fact on the pages about the title, in random order.

    Each value must be looked up by kind and verb.
    """
    claims = [claim for page in item.pages for claim in page.claims]
    rng.shuffle(claims)
    return in_sentences(claims)


# ---- rows and files ------------------------------------------------------------------------------


def to_row(item: Item, asked: str, sentences: Sequence[Sequence[Claim]]) -> dict:
    """A row of the qa-feedback format."""
    passages = []
    for page in item.order:
        content = item.language.compose([[statement] for statement in page.statements])
        passages.append({"content": content, "wikipage": page.name})
    context = " | ".join(f"wikipage: {p['wikipage']} text: {p['content']}" for p in passages)
    return {
        "text": f"question: {asked} context: {context}",
        "answer": [item.language.compose(sentences)],
        "passages": passages,
        "question": asked,
    }


def make_row(
    seed: int,
    split: str,
    index: int,
    rates: ErrorRates | None = None,
    language: Language = TOY,
) -> dict:
    """Row `index` of a split.

    The answers of `pretrain` are recitals, those of `sft` imperfect demonstrations with the errors
    of `rates` (default: the language's), and those of all other splits gold answers.
    """
    item = make_item(seed, split, index, language)
    rng = random.Random(f"{seed}/{split}/{index}/answer")
    if split == "pretrain":
        return to_row(item, language.everything.format(title=item.title), recital(rng, item))
    if split == "sft":
        sentences = demonstration(rng, item, rates or language.rates)
    else:
        sentences = gold_sentences(item)
    return to_row(item, item.question, sentences)


# Index of the first test row. Rows 0 to 399 were evaluated while settings were still being chosen.
FIRST_TEST_ROW = 1000


Rows = Annotated[int, Field(ge=1, le=1_000_000)]  # every reader refuses a file without rows


class MiniWorldSettings(StrictModel):
    """The output folder and the number of rows per file."""

    data_dir: FilePath = Field(description="folder of the rows")
    language: Literal["toy", "chinese", "english"] = Field(
        default="toy",
        description="toy: invented words, for models from scratch; chinese: the same without"
        " spaces; english: for pretrained models",
    )
    seed: int = Field(default=0, description="of everything random")
    train: Rows = Field(default=4000, description="rows of train.json")
    dev: Rows = Field(default=300, description="rows of dev.json")
    test: Rows = Field(default=400, description="rows of test.json")
    pretrain: int = Field(
        default=2400, ge=0, le=1_000_000, description="rows of pretrain.json; 0: no such file"
    )
    sft: Rows = Field(default=9600, description="rows of sft.json")


def write_world(settings: MiniWorldSettings) -> None:
    """Write {train,dev,test,pretrain,sft,train_1k}.json.

    `train_1k` has the first thousand rows of `sft`.
    """
    folder = Path(settings.data_dir)
    language = LANGUAGES[settings.language]
    for split in ("train", "dev", "test", "pretrain", "sft"):
        first = FIRST_TEST_ROW if split == "test" else 0
        rows = [
            make_row(settings.seed, split, first + index, language=language)
            for index in range(getattr(settings, split))
        ]
        if not rows:
            continue
        write_json(folder / f"{split}.json", rows)
        if split == "sft":
            write_json(folder / "train_1k.json", rows[:1000])
        print(f"{folder / split}.json: {len(rows)} rows", flush=True)


if __name__ == "__main__":
    run_program(write_world, MiniWorldSettings)

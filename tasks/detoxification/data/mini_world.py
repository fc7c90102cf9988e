"""A small language of comments whose toxicity is known from the context.

    python -m tasks.detoxification.data.mini_world data_dir=FOLDER [seed=0]

A comment has four to eight sentences. In angry threads, many sentences are toxic:

    angry thread about the bus , rita writes :    the road is wet . omar is a liar . i saw ada .

The same words are harmless when they are negated in their clause, or quoted. Neither single words
nor pairs of words tell the first of these sentences from the one below it, which is toxic:

    omar is not really a liar , and ada is really old .        i saw " liar " on the door .
    omar is really a liar , and ada is not really old .        i did not see ada , the liar .

A sentence has the toxicity of its worst word, and that of a text is (maximum + mean) / 2 of its
sentences: as with Perspective, a harmless sentence after a toxic one lowers it. Annotators mark the
sentences that they find toxic, overlook some and mark some harmless ones.
"""

import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field

from fgrlhf.base.files import write_json, write_text
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import Count, FilePath, Seed, StrictModel
from fgrlhf.reward_utils import BLANK, load_segmenter
from fgrlhf.text_types import Prompt
from reward_modeling.segment_files import OK, TaggedWords, segment_file, tagged_words
from tasks.detoxification.reward_modeling.create_rm_files import SPANS, TAG
from tasks.detoxification.task import BEFORE_TEXT

# word -> toxicity of a sentence that uses it, without a negation or quotation marks
TOXIC_WORDS = {
    "clown": 0.4,
    "fool": 0.5,
    "pig": 0.6,
    "liar": 0.7,
    "idiot": 0.8,
    "crook": 0.6,
    "hit": 0.9,
    "hurt": 0.9,
}
INSULTS = tuple(TOXIC_WORDS)[:6]
THREATS = tuple(TOXIC_WORDS)[6:]
NEGATIONS = ("not", "never", "nobody")
QUOTE = '"'
CLAUSE_END = ","

NAMES = (
    "rita",
    "omar",
    "nils",
    "ada",
    "ivan",
    "mona",
    "kofi",
    "lena",
    "hugo",
    "zoe",
    "tariq",
    "ines",
)
TOPICS = (
    *("the bus", "the school", "the park", "the vote", "the match", "the market", "the road"),
    *("the film", "the rent", "the band", "the bridge", "the garden", "the clinic", "the library"),
    *("the tax", "the harbour", "the bakery", "the museum", "the river", "the tower"),
)
THINGS = ("road", "door", "bus", "tea", "roof", "song", "lamp", "street", "bread", "clock")
QUALITIES = ("wet", "old", "new", "cold", "loud", "blue", "small", "good")

ADVERBS = ("really", "still", "just")

USES = (
    "{name} is {adverb} a {insult} .",
    "what a {insult} {name} is .",
    "i will {threat} {name} .",
    "i did not see {other} , the {insult} .",
    "{name} is {adverb} a {insult} , and {other} is not {adverb} {quality} .",
)
MENTIONS = (
    "{name} is not {adverb} a {insult} .",
    "nobody is a {insult} .",
    'i saw " {insult} " on the {thing} .',
    "i would never {threat} {name} .",
    "{name} is not {adverb} a {insult} , and {other} is {adverb} {quality} .",
)
NEUTRAL = (
    "the {thing} is {quality} .",
    "{name} likes {thing} .",
    'i saw " {thing} " on the {thing} .',
    "i did not see {name} , the {thing} was {quality} .",
)
# mood of a thread -> probability that a sentence uses, and that it mentions, a toxic word
MOODS = {"angry": (0.35, 0.2), "calm": (0.03, 0.1)}
LENGTHS = range(4, 9)  # sentences of a comment
OVERLOOKED = 0.1
FALSE_ALARM = 0.05
SPLITS = {"train": 120, "dev": 60, "test": 60}  # prompts: all pairs of a topic and a name


# ---- truth ---------------------------------------------------------------------------------------


def sentence_toxicity(sentence: str) -> float:
    """The toxicity of the worst word that is neither quoted nor after a negation in its clause.

    A quotation that is not closed quotes nothing.
    """
    worst = 0.0
    is_negated = is_quoted = False
    words = sentence.split()
    for place, word in enumerate(words):
        if word == QUOTE:
            is_quoted = not is_quoted and QUOTE in words[place + 1 :]
        elif word == CLAUSE_END:
            is_negated = False
        elif word in NEGATIONS:
            is_negated = True
        elif not is_negated and not is_quoted:
            worst = max(worst, TOXIC_WORDS.get(word, 0.0))
    return worst


def toxicity(text: str) -> float:
    """(maximum + mean) / 2 over the sentences; 0 for a text without any.

    The truth must not depend on the installed spaCy pipelines, so the segmenter is fixed.
    """
    segmenter = load_segmenter(BLANK)
    values = [sentence_toxicity(text[start:end]) for start, end in segmenter.sentences(text)]
    return (max(values) + fmean(values)) / 2 if values else 0.0


class TrueToxicity:
    """The toxicity of each text, as a scorer: `{kind: python, of: ...}`."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        return [toxicity(text) for text in texts]


# ---- comments ------------------------------------------------------------------------------------


def make_sentence(rng: random.Random, mood: str) -> str:
    use, mention = MOODS[mood]
    draw = rng.random()
    if draw < use:
        form = rng.choice(USES)
    elif draw < use + mention:
        form = rng.choice(MENTIONS)
    else:
        form = rng.choice(NEUTRAL)
    return form.format(
        name=rng.choice(NAMES),
        other=rng.choice(NAMES),
        adverb=rng.choice(ADVERBS),
        insult=rng.choice(INSULTS),
        threat=rng.choice(THREATS),
        thing=rng.choice(THINGS),
        quality=rng.choice(QUALITIES),
    )


def make_comment(rng: random.Random, mood: str) -> str:
    return " ".join(make_sentence(rng, mood) for _ in range(rng.choice(LENGTHS)))


def prompt_text(mood: str, topic: str, name: str) -> str:
    return f"{mood} thread about {topic} , {name} writes :"


def make_prompts(seed: int) -> dict[str, list[dict[str, str]]]:
    """Split -> rows of prompts, all of angry threads."""
    pairs = list(product(TOPICS, NAMES))
    random.Random(f"{seed} prompts").shuffle(pairs)
    splits: dict[str, list[dict[str, str]]] = {}
    for split, size in SPLITS.items():
        chosen, pairs = pairs[:size], pairs[size:]
        rows = []
        for topic, name in chosen:
            rows.append({"id": f"{topic}, {name}", "prompt": prompt_text("angry", topic, name)})
        splits[split] = rows
    return splits


def make_corpus(rng: random.Random, size: int) -> list[dict[str, Any]]:
    """Comments of angry and calm threads, for the language model."""
    corpus = []
    for _ in range(size):
        mood = rng.choice(tuple(MOODS))
        prompt = prompt_text(mood, rng.choice(TOPICS), rng.choice(NAMES))
        corpus.append({"prompt": prompt, "response": make_comment(rng, mood)})
    return corpus


def marked_comment(rng: random.Random, annotators_err: bool) -> TaggedWords | None:
    """A comment with a tag for each sentence."""
    text = make_comment(rng, rng.choice(tuple(MOODS)))
    segmenter = load_segmenter()
    sentences = segmenter.sentences(text)
    tags = []
    for start, end in sentences:
        toxic = sentence_toxicity(text[start:end]) > 0
        if annotators_err and rng.random() < (OVERLOOKED if toxic else FALSE_ALARM):
            toxic = not toxic
        tags.append(TAG if toxic else OK)
    return tagged_words((BEFORE_TEXT,), text, sentences, tags)


# ---- files ---------------------------------------------------------------------------------------


class MiniWorldSettings(StrictModel):
    """Sizes of the world."""

    data_dir: FilePath = Field(description="folder of the rows")
    seed: Seed = Field(default=0, description="of everything random")
    comments: Count = Field(default=6000, description="rows of corpus.json")
    marked: Count = Field(default=2000, description="comments that annotators have marked")


def write_world(settings: MiniWorldSettings) -> None:
    """Write the corpus that the language model learns, prompts, and marked comments.

    The marks of span_segments/train.json have the annotators' errors, those of dev.json are the
    truth.
    """
    folder = Path(settings.data_dir)
    for split, rows in make_prompts(settings.seed).items():
        write_json(folder / f"{split}.json", rows)
        print(f"{folder / split}.json: {len(rows)} prompts")
    for name, size in {"corpus": settings.comments, "corpus_dev": 200}.items():
        rng = random.Random(f"{settings.seed} {name}")
        write_json(folder / f"{name}.json", make_corpus(rng, size))
    for split, size in {"train": settings.marked, "dev": 300}.items():
        rng = random.Random(f"{settings.seed} {split} marks")
        text, summary = segment_file(marked_comment(rng, split == "train") for _ in range(size))
        write_text(folder / SPANS / f"{split}.json", text)
        print(f"{folder / SPANS / split}.json: {summary}")
    write_json(folder / SPANS / "segmenter.json", load_segmenter().describe())


if __name__ == "__main__":
    run_program(write_world, MiniWorldSettings)

"""The true judgement of any answer to a question of the mini world, from its text alone.

For every sub-sentence: ok, irrelevant, repeated or incoherent, and whether the pages support it.
For every sentence: supported or not. For the answer: which of the needed facts it covers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from fgrlhf.reward_utils import Segmenter, load_segmenter
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.data.language import TOY, Claim, Language, language_of

Label = Literal["ok", "irrelevant", "repeated", "incoherent"]

_SENTENCE = re.compile(r"\S[^.。]*[.。]")
_PAGE = re.compile(r"(.+) \((\w+)\)")


def page_sentences(passage: Any) -> tuple[str, tuple[str, ...]]:
    """Title and sentences of a passage: {content, wikipage} or [title, sentence, ...]."""
    if isinstance(passage, Mapping):
        title, content = passage.get("wikipage"), passage.get("content")
        return str(title or ""), full_sentences(content if isinstance(content, str) else "")
    if isinstance(passage, Sequence) and not isinstance(passage, str) and passage:
        return str(passage[0]), tuple(str(sentence).strip() for sentence in passage[1:])
    return "", ()


def full_sentences(text: str) -> tuple[str, ...]:
    """The parts of `text` that end in a full stop, without leading white space.

    The text after the last full stop is removed before the search. It cannot match, and the
    expression would take quadratic time to find that out.
    """
    return tuple(_SENTENCE.findall(text[: max(map(text.rfind, ".。")) + 1]))


@dataclass(frozen=True)
class Source:
    """The claim that states a fact, and its place.

    Passages and sentences are counted from 1, as in the feedback format; sentence 0 is the title.
    """

    claim: Claim
    passage_id: int
    sentence_id: int


@dataclass(frozen=True)
class Facts:
    """The facts of a row. A fact is named by (kind, verb)."""

    language: Language
    sources: Mapping[tuple[str, str], Source]
    topic: frozenset[str]  # kinds of the works that the question is about
    needed: tuple[tuple[str, str], ...]  # facts of the complete answer
    fillers: frozenset[str]  # the other sentences of the pages, as clauses in lower case

    @classmethod
    def read(cls, question: Any, passages: Any) -> "Facts":
        """Parse a row. Rows that are not of the world give no facts. Never raises."""
        language, title, asked = language_of(question) or (TOY, None, ())
        sources: dict[tuple[str, str], Source] = {}
        topic = []
        fillers = set()
        if not isinstance(passages, Sequence) or isinstance(passages, str):
            passages = ()
        for passage_id, passage in enumerate(passages, 1):
            name, sentences = page_sentences(passage)
            page = _PAGE.fullmatch(name)
            if page and page[1] == title and page[2] in language.kinds:
                topic.append(page[2])
            for sentence_id, sentence in enumerate(sentences, 1):
                claim = language.read_claim(sentence)
                if claim:
                    key = (claim.kind, claim.verb)
                    sources.setdefault(key, Source(claim, passage_id, sentence_id))
                else:
                    fillers.add(language.clause(sentence).lower())
        needed = []
        for kind in dict.fromkeys(topic):
            needed += [(kind, verb) for verb in asked if (kind, verb) in sources]
        return cls(language, sources, frozenset(topic), tuple(needed), frozenset(fillers))

    def supports(self, claim: Claim) -> bool:
        source = self.sources.get((claim.kind, claim.verb))
        return source is not None and source.claim == claim


@dataclass(frozen=True)
class SubSentence:
    """Characters [start, end) of an answer and their judgement."""

    start: int
    end: int
    label: Label
    claim: Claim | None
    supported: bool  # by the pages

    @property
    def right(self) -> bool:
        return self.label == "ok" and self.supported


@dataclass(frozen=True)
class Sentence:
    start: int
    end: int
    supported: bool  # every sub-sentence is a claim that the pages support


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class Truth:
    """The truth about one answer. Ratios of an answer without segments are 0."""

    subsentences: tuple[SubSentence, ...]
    sentences: tuple[Sentence, ...]
    needed: tuple[tuple[str, str], ...]
    covered: frozenset[tuple[str, str]]

    @property
    def relevance(self) -> float:
        """The share of sub-sentences that are relevant, new and well-formed."""
        return _ratio(sum(s.label == "ok" for s in self.subsentences), len(self.subsentences))

    @property
    def factuality(self) -> float:
        """The share of sentences that the pages support."""
        return _ratio(sum(s.supported for s in self.sentences), len(self.sentences))

    @property
    def completeness(self) -> float:
        """The share of needed facts that are covered."""
        return _ratio(len(self.covered), len(self.needed))

    @property
    def precision(self) -> float:
        """The share of sub-sentences that are ok and supported."""
        return _ratio(sum(s.right for s in self.subsentences), len(self.subsentences))

    @property
    def gold(self) -> float:
        """Fact-level F1, 2 P R / (P + R), of precision P and completeness R; 0 if both are 0."""
        total = self.precision + self.completeness
        return 2 * self.precision * self.completeness / total if total else 0.0


@cache
def _segmenter(name: str) -> Segmenter:
    return load_segmenter(name)


def judge(question: Any, passages: Any, answer: str) -> Truth:
    """The truth about `answer`, which can be any text. Never raises.

    The language is that of the question. A claim is supported in whatever form it is stated. A
    sentence of the pages that states no fact is supported and irrelevant.

    A second claim about the same (kind, verb) counts as repeated, whatever its value. Listing
    guesses is therefore not rewarded.
    """
    facts = Facts.read(question, passages)
    subsentences, covered = _judge_subsentences(answer, facts)
    sentences = _judge_sentences(answer, subsentences, _segmenter(facts.language.segmenter))
    return Truth(tuple(subsentences), tuple(sentences), facts.needed, frozenset(covered))


def _judge_subsentences(
    answer: str, facts: Facts
) -> tuple[list[SubSentence], set[tuple[str, str]]]:
    """The judged sub-sentences, and the needed facts that they cover."""
    stated: set[tuple[str, str]] = set()
    covered: set[tuple[str, str]] = set()
    subsentences = []
    segmenter = _segmenter(facts.language.segmenter)
    for start, end in segmenter.segments(answer, "subsentence"):
        text = answer[start:end]
        claim = facts.language.read_claim(text)
        is_filler = claim is None and facts.language.clause(text).lower() in facts.fillers
        label = "irrelevant" if is_filler else _label(claim, facts, stated)
        supported = is_filler or (claim is not None and facts.supports(claim))
        if claim is not None:
            key = (claim.kind, claim.verb)
            stated.add(key)
            if label == "ok" and supported:
                covered.add(key)
        subsentences.append(SubSentence(start, end, label, claim, supported))
    return subsentences, covered


def _judge_sentences(
    answer: str, subsentences: Sequence[SubSentence], segmenter: Segmenter
) -> list[Sentence]:
    """The judged sentences.

    Sentences and sub-sentences are in order, so one pass finds the sub-sentences of each sentence.
    """
    sentences = []
    first = 0
    for start, end in segmenter.segments(answer, "sentence"):
        while first < len(subsentences) and subsentences[first].end <= start:
            first += 1
        stop = first
        while stop < len(subsentences) and subsentences[stop].start < end:
            stop += 1
        inside = subsentences[first:stop]
        sentences.append(Sentence(start, end, bool(inside) and all(s.supported for s in inside)))
    return sentences


def _label(claim: Claim | None, facts: Facts, stated: set[tuple[str, str]]) -> Label:
    """The label of a sub-sentence; `stated` are the facts stated before it."""
    if claim is None:
        return "incoherent"
    key = (claim.kind, claim.verb)
    if key not in facts.needed:
        return "irrelevant"
    return "repeated" if key in stated else "ok"


def relevance(question: Any, passages: Any, answer: str) -> float:
    return judge(question, passages, answer).relevance


def factuality(question: Any, passages: Any, answer: str) -> float:
    return judge(question, passages, answer).factuality


def completeness(question: Any, passages: Any, answer: str) -> float:
    return judge(question, passages, answer).completeness


def gold(question: Any, passages: Any, answer: str) -> float:
    return judge(question, passages, answer).gold


def oracle_metrics(prompt: Prompt, text: str) -> dict[str, float]:
    """The oracle as a metric of `fgrlhf.evaluation`."""
    truth = judge(prompt.meta["question"], prompt.meta["passages"], text)
    return {
        "oracle/gold": truth.gold,
        "oracle/relevance": truth.relevance,
        "oracle/factuality": truth.factuality,
        "oracle/completeness": truth.completeness,
    }

"""A simulated annotator: marks answers of the mini world as the paper's annotators mark real ones.

It knows the truth (oracle.py) but makes mistakes. Each judgement of a sub-sentence is wrong, and
each missing fact is overlooked, with probability `noise`. Preferences follow a Bradley-Terry model
on the gold score. The output is a row of the feedback format and contains nothing else of the
truth.
"""

import json
import math
import random
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fgrlhf.data.judgements import Judgement
from fgrlhf.words import join_texts
from tasks.qa_feedback.data.language import Claim, in_sentences
from tasks.qa_feedback.data.oracle import Facts, SubSentence, Truth, judge, page_sentences
from tasks.qa_feedback.feedback import PAIRS, FeedbackRow, MissingInfo, error_span

_SENTENCE_ENDS = re.compile(r"(?<=\.) |(?<=。)|\n")


@dataclass(frozen=True)
class Habits:
    """How reliable the annotator is, and how many answers are perturbed before it sees them."""

    # probability that a judgement is the opposite of the truth
    noise: float = 0.05
    # of preferences: P(i over j) = sigmoid((gold_i - gold_j) / temperature)
    temperature: float = 0.05
    # probability that an answer is perturbed first, so that reward models see what PPO will try
    perturbed: float = 0.25


@dataclass
class _Marks:
    """Annotations of prediction 1, and the corrected answer built from it sentence by sentence."""

    errors: list[Judgement] = field(default_factory=list)
    corrected: list[list[Claim | str]] = field(default_factory=list)


def perturb(rng: random.Random, answer: str) -> str:
    """Repeat a sentence, drop one, or keep only one, up to four times.

    A policy may try such answers during RL, but the SFT model never samples them.
    """
    sentences = [sentence for sentence in _SENTENCE_ENDS.split(answer) if sentence]
    if not sentences:
        return answer
    chosen = rng.randrange(len(sentences))
    kind = rng.choice(("repeat", "drop", "only"))
    if kind == "drop" and len(sentences) > 1:
        del sentences[chosen]
    elif kind == "only":
        sentences = [sentences[chosen]] * rng.randint(1, 4)
    else:
        sentences.insert(rng.randint(chosen + 1, len(sentences)), sentences[chosen])
    return join_texts(sentences)


def _error_of(
    rng: random.Random,
    part: SubSentence,
    earliest: Mapping[tuple[str, str], str],
    facts: Facts,
    habits: Habits,
) -> Judgement | None:
    """The error that the annotator marks in a sub-sentence; types by the paper's priority.

    `earliest` is the result of `_earliest`.
    """
    is_wrong = part.label != "ok" or not part.supported
    if rng.random() < habits.noise:
        if is_wrong:
            return None
        return error_span(rng.choice(("Irrelevant", "Unverifiable")), part.start, part.end)
    if not is_wrong:
        return None
    claim = part.claim
    if part.label == "irrelevant":
        return error_span("Irrelevant", part.start, part.end)
    if part.label == "incoherent":
        return error_span("Incoherent", part.start, part.end)
    assert claim is not None  # only incoherent sub-sentences make no claim
    if part.label == "repeated":
        return error_span("Redundant", part.start, part.end, earliest[claim.kind, claim.verb])
    # an `ok` sub-sentence is about a fact of the pages
    source = facts.sources[claim.kind, claim.verb]
    evidence = {"passage_id": source.passage_id, "sentence_id": [source.sentence_id]}
    return error_span(
        "Wrong-Grounding", part.start, part.end, json.dumps(evidence, separators=(",", ":"))
    )


def _earliest(truth: Truth, answer: str) -> dict[tuple[str, str], str]:
    """For every fact that the answer states, the first sub-sentence that states it."""
    texts: dict[tuple[str, str], str] = {}
    for part in truth.subsentences:
        if part.claim:
            texts.setdefault((part.claim.kind, part.claim.verb), answer[part.start : part.end])
    return texts


def _corrected_part(
    part: SubSentence, error: Judgement | None, answer: str, facts: Facts
) -> Claim | str | None:
    """A sub-sentence in the corrected answer: as it is, with the true value, or None (left out)."""
    if error is None:
        return part.claim or facts.language.clause(answer[part.start : part.end]) or None
    if error.label == "Wrong-Grounding" and part.claim is not None:
        source = facts.sources[part.claim.kind, part.claim.verb]
        return replace(part.claim, value=source.claim.value)
    return None


def _mark(rng: random.Random, answer: str, truth: Truth, facts: Facts, habits: Habits) -> _Marks:
    marks = _Marks()
    earliest = _earliest(truth, answer)
    starts = [part.start for part in truth.subsentences]  # in order
    for sentence in truth.sentences:
        corrected: list[Claim | str] = []
        first = bisect_left(starts, sentence.start)
        stop = bisect_left(starts, sentence.end)
        for part in truth.subsentences[first:stop]:
            error = _error_of(rng, part, earliest, facts, habits)
            if error is not None:
                marks.errors.append(error)
            corrected_part = _corrected_part(part, error, answer, facts)
            if corrected_part is not None:
                corrected.append(corrected_part)
        if corrected:
            marks.corrected.append(corrected)
    return marks


def _missing(
    rng: random.Random, marks: _Marks, facts: Facts, habits: Habits
) -> list[tuple[str, str]]:
    """Needed facts that the corrected answer still lacks, without those the annotator overlooks."""
    stated = set()
    for sentence in marks.corrected:
        for clause in sentence:
            if isinstance(clause, Claim):
                stated.add((clause.kind, clause.verb))
    return [key for key in facts.needed if key not in stated and rng.random() >= habits.noise]


def annotate(
    rng: random.Random,
    question: str,
    passages: Sequence,
    gold: str,
    predictions: Sequence[str],
    habits: Habits = Habits(),
) -> FeedbackRow:
    """The feedback row for four answers to a question of the world; spans are in the first."""
    facts = Facts.read(question, passages)
    predictions = [
        perturb(rng, text) if rng.random() < habits.perturbed else text for text in predictions
    ]
    truths = [judge(question, passages, text) for text in predictions]
    marks = _mark(rng, predictions[0], truths[0], facts, habits)
    sources = [facts.sources[fact] for fact in _missing(rng, marks, facts, habits)]
    corrected = predictions[0]
    if marks.errors or sources:
        added = in_sentences([source.claim for source in sources])
        corrected = facts.language.compose([*marks.corrected, *added])
    return FeedbackRow.make(
        question=question,
        passages=[[title, *sentences] for title, sentences in map(page_sentences, passages)],
        gold=gold,
        predictions=predictions,
        errors=marks.errors,
        missing=[
            MissingInfo("Missing-Answer", source.passage_id, (source.sentence_id,))
            for source in sources
        ],
        corrected=corrected,
        preference=_preferences(rng, [truth.gold for truth in truths], habits.temperature),
    )


def _preferences(rng: random.Random, golds: Sequence[float], temperature: float) -> list[int]:
    """Six noisy comparisons, one for each of `PAIRS`.

    0 if both answers are equally good, else 1 (the first is better) or 2, drawn from a
    Bradley-Terry model.
    """
    preferences = []
    for i, j in PAIRS:
        if golds[i] == golds[j]:
            preferences.append(0)
        else:
            # the logistic function, without overflow
            p_first = 0.5 * (1 + math.tanh((golds[i] - golds[j]) / (2 * temperature)))
            preferences.append(1 if rng.random() < p_first else 2)
    return preferences

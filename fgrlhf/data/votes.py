"""Combines the judgements of several annotators of a response into those of one.

Characters are voted on, as annotators rarely mark the same words. A character of a text is an error
if at least k annotators marked it, with any label; those who looked for errors and left it unmarked
vote against it. Its labels are those with k votes or, if no label has as many, the one with most
votes (of equal ones, the first in the row). Runs of characters with a label become spans. Each has
the severity, reason and evidence of the first mark with its label that overlaps it.

`fgrlhf feedback export policy=majority` takes the whole annotation that agrees best with the others
instead, since a row of the pages also has a correction, which fits one annotation only.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.data.agreement.responses import judges_errors
from fgrlhf.data.judgements import (
    LIKED_ASPECT,
    MISSING_ASPECT,
    NO_ERROR,
    SPAN_ASPECT,
    JudgedResponse,
    Judgement,
    without_suggestions,
)

ANY, MAJORITY = "any", "majority"
Rule = str | int  # `any`, `majority`, the least number of votes, or the name of an annotator


@dataclass(frozen=True)
class _Text:
    """What is voted on together: errors or liked spans, in the response or the source."""

    side: str
    is_liked: bool


def combined(
    items: Sequence[JudgedResponse], rule: Rule
) -> tuple[list[JudgedResponse], Counter[str]]:
    """The responses with one set of judgements each, and what was done.

    Args:
      rule: `any` keeps what any annotator judged. `majority` needs the votes of more than half of
        the annotators who looked for errors in the response, a number at least as many votes (of a
        response with fewer annotators, those of all of them). The name of an annotator keeps this
        one's judgements, and leaves out responses that this one did not judge.

    Raises:
      UserError: no annotator has the name.
    """
    counts: Counter[str] = Counter()
    if isinstance(rule, str) and rule not in (ANY, MAJORITY):
        return _of_annotator(items, rule, counts), counts
    aspects = {
        judgement.aspect
        for item in items
        for judgement in item.judgements
        if judgement.span is not None and judgement.aspect != LIKED_ASPECT
    }
    results = []
    for item in items:
        kept, suggested = without_suggestions(item)
        counts += suggested
        by_annotator: dict[str | None, list[Judgement]] = {}
        for judgement in kept.judgements:
            by_annotator.setdefault(judgement.annotator, []).append(judgement)
        voters = [own for own in by_annotator.values() if judges_errors(own, aspects)]
        if len(voters) > 1:
            needed = _needed(rule, len(voters))
            how = "the marks of all" if rule == ANY else f"{needed} of {len(voters)} votes needed"
            counts[f"responses of several annotators, {how}"] += 1
            if rule != ANY:
                kept = _voted(kept, voters, needed, counts)
        results.append(kept)
    return results, counts


def _needed(rule: Rule, voters: int) -> int:
    return min(rule, voters) if isinstance(rule, int) else voters // 2 + 1


def _of_annotator(
    items: Sequence[JudgedResponse], name: str, counts: Counter[str]
) -> list[JudgedResponse]:
    kept = []
    for item in items:
        own = tuple(judgement for judgement in item.judgements if judgement.annotator == name)
        if own:
            kept.append(replace(item, judgements=own))
        else:
            counts[f"responses left out, not judged by {name!r}"] += 1
    if not kept:
        names = {judgement.annotator for item in items for judgement in item.judgements}
        known = sorted(each for each in names if each is not None)
        raise UserError(
            f"annotators: no judgement is by {shorten(repr(name), 60)};"
            f" {suggestion(name, [MAJORITY, ANY, *known])}"
        )
    return kept


def _voted(
    item: JudgedResponse, voters: Sequence[list[Judgement]], needed: int, counts: Counter[str]
) -> JudgedResponse:
    """The response with what `needed` of the voters judged."""
    texts = dict.fromkeys(
        _Text(judgement.side, judgement.aspect == LIKED_ASPECT)
        for judgements in voters
        for judgement in judgements
        if judgement.span is not None
    )
    kept: list[Judgement] = []
    for text in texts:
        marks = [_marks(judgements, text) for judgements in voters]
        spans = _voted_spans(marks, needed)
        kept += spans
        for mark in [mark for own in marks for mark in own]:
            if not any(_overlap(mark, span) for span in spans):
                counts["marks without enough votes, left out"] += 1
    missing: dict[tuple[str | None, str | None], list[Judgement]] = {}
    for judgements in voters:
        of_one = {(j.label, j.evidence): j for j in judgements if j.aspect == MISSING_ASPECT}
        for key, judgement in of_one.items():
            missing.setdefault(key, []).append(judgement)
    kept += [_of_nobody(votes[0]) for votes in missing.values() if len(votes) >= needed]
    few = sum(len(votes) for votes in missing.values() if len(votes) < needed)
    counts["missing information without enough votes, left out"] += few
    whole = [
        judgement
        for judgement in item.judgements
        if judgement.span is None
        and judgement.label != NO_ERROR
        and judgement.aspect != MISSING_ASPECT
    ]
    if not any(judgement.aspect != LIKED_ASPECT for judgement in kept):
        kept.append(Judgement(SPAN_ASPECT, NO_ERROR))
    return replace(item, judgements=(*kept, *whole))


def _marks(judgements: Iterable[Judgement], text: _Text) -> list[Judgement]:
    return [
        judgement
        for judgement in judgements
        if judgement.span is not None
        and text == _Text(judgement.side, judgement.aspect == LIKED_ASPECT)
    ]


def _overlap(first: Judgement, second: Judgement) -> bool:
    (start, end), (other_start, other_end) = first.span or (0, 0), second.span or (0, 0)
    return start < other_end and other_start < end


def _of_nobody(judgement: Judgement) -> Judgement:
    return replace(judgement, annotator=None, origin=None)


def _voted_spans(marks: Sequence[list[Judgement]], needed: int) -> list[Judgement]:
    """The spans of characters with enough votes.

    Args:
      marks: of every annotator.
    """
    everyone = [mark for own in marks for mark in own]
    places = sorted({place for mark in everyone for place in mark.span or ()})
    runs: dict[str | None, list[tuple[int, int]]] = {}  # label -> ranges that touch are one
    for start, end in zip(places, places[1:]):
        for label in _labels(marks, start, end, needed):
            ranges = runs.setdefault(label, [])
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
    spans = []
    for label, ranges in runs.items():
        for start, end in ranges:
            whole = replace(everyone[0], start=start, end=end)
            first = next(m for m in everyone if m.label == label and _overlap(m, whole))
            spans.append(_of_nobody(replace(first, start=start, end=end)))
    return sorted(spans, key=lambda span: span.span or (0, 0))


def _labels(
    marks: Sequence[list[Judgement]], start: int, end: int, needed: int
) -> list[str | None]:
    """The labels of characters [start, end), between which no mark begins or ends."""
    votes: Counter[str | None] = Counter()
    voters = 0
    for own in marks:
        labels = dict.fromkeys(
            mark.label
            for mark in own
            if mark.span is not None and mark.span[0] <= start and end <= mark.span[1]
        )
        votes.update(labels.keys())
        voters += bool(labels)
    if voters < needed:
        return []
    enough = [label for label, count in votes.items() if count >= needed]
    return enough or [max(votes, key=lambda label: votes[label])]

"""Answers without a mark, in exports that do not say what annotators were asked to mark."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import NO_ERROR, JudgedResponse, Judgement

UNMARKED = ""  # the aspect of an answer without marks, until all rows are read


def with_clean_answers(
    items: list[JudgedResponse], aspect: str | None, report: Report
) -> list[JudgedResponse]:
    """The items, with answers without marks as `no error` of the aspects that are marked.

    Args:
      items: a submitted answer without a mark is a judgement of the aspect `UNMARKED`.
      aspect: the only aspect that such answers are about; None: all aspects that have spans.
    """
    aspects = [] if aspect is None else [aspect]
    if aspect is None:
        every = (judgement for judgement in _all_judgements(items) if judgement.span is not None)
        aspects = list(dict.fromkeys(judgement.aspect for judgement in every))
    finished = []
    for item in items:
        judgements: list[Judgement] = []
        for judgement in item.judgements:
            if judgement.aspect != UNMARKED:
                judgements.append(judgement)
                continue
            if aspects:
                report.notes["annotations without a mark, read as `no error`"] += 1
            else:
                report.losses["annotations without results, of no known aspect (aspect=NAME)"] += 1
            judgements += [replace(judgement, aspect=name) for name in aspects]
        kept = _of_each_person(judgements)
        if len(kept) < len(judgements):
            report.notes["judgements that a person gave twice, or took back"] += len(
                judgements
            ) - len(kept)
        finished.append(replace(item, judgements=kept))
    return finished


def _of_each_person(judgements: list[Judgement]) -> tuple[Judgement, ...]:
    """The judgements, where people who answered twice have each of theirs once.

    `no error` is left out if the same person marked something of this aspect in another answer.
    """
    named = [judgement for judgement in judgements if judgement.annotator is not None]
    marked = {(one.annotator, one.aspect) for one in named if one.span is not None}
    kept: list[Judgement] = []
    seen: set[Judgement] = set()
    for judgement in judgements:
        is_clean = judgement.label == NO_ERROR and judgement.span is None
        if is_clean and (judgement.annotator, judgement.aspect) in marked:
            continue
        if judgement.annotator is None or judgement not in seen:
            kept.append(judgement)
        seen.add(judgement)
    return tuple(kept)


def _all_judgements(items: Iterable[JudgedResponse]) -> Iterator[Judgement]:
    """The judgements of all items."""
    for item in items:
        yield from item.judgements

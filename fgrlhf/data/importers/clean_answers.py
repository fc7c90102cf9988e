"""Answers without a mark, in exports that do not say what annotators were asked to mark."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import JudgedResponse, Judgement

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
        finished.append(replace(item, judgements=tuple(judgements)))
    return finished


def _all_judgements(items: Iterable[JudgedResponse]) -> Iterator[Judgement]:
    """The judgements of all items."""
    for item in items:
        yield from item.judgements

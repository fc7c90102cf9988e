"""All figures about the agreement of annotators, with intervals over prompts.

`fgrlhf data agreement` and `fgrlhf feedback agreement` print the figures of the same function,
`report`, and write the same values.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fgrlhf.base.errors import shorten
from fgrlhf.data.agreement.alpha import alpha
from fgrlhf.data.agreement.consistency import consistency
from fgrlhf.data.agreement.errors import (
    SPAN_F1,
    error_figures,
    missing_figure,
    ordinal_alpha,
    why_unshared,
)
from fgrlhf.data.agreement.responses import (
    Shared,
    clusters,
    is_missing_information,
    looked_for_errors,
    with_judged_errors,
    with_named_information,
)
from fgrlhf.data.judgements import NO_ERROR, STEP_ASPECT, Judgement
from fgrlhf.stats import Figure, Interval
from fgrlhf.words import word_starts

T = TypeVar("T", bound=Hashable)

# the beginning of a figure's name -> what it is; both commands print and write these texts
DEFINITIONS = {
    "span F1, exact": "pairwise F1 (Hripcsak & Rothschild 2005) of spans with the same start and"
    " end, each used once",
    SPAN_F1: "pairwise F1 (Hripcsak & Rothschild 2005) of spans that share a character, matched one"
    " to one, as many as possible",
    "span F, MPP": "match with partial overlap and partial credit (Perrella et al. 2026)",
    "missing information F1": "pairwise F1 of equal labels and places",
    "alpha": "Krippendorff's alpha (Krippendorff 2011)",
    "ICC": "intraclass correlation ICC(C,1) (McGraw & Wong 1996)",
}
WIDTH = 50  # of the names of figures, where they are printed


def figure_lines(figures: Mapping[str, Figure]) -> list[str]:
    """The figures as both commands print them, and then what they are."""
    lines = [f"{name:<{WIDTH}} {figure}" for name, figure in figures.items()]
    return [*lines, *(f"{name}: {text}" for name, text in definitions(figures).items())]


def figures_json(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """The figures as both commands write them, and `definitions`: what they are."""
    return {**figure_values(figures), "definitions": definitions(figures)}


def figure_values(figures: Mapping[str, Figure | int]) -> dict[str, Any]:
    """The figures as JSON: {mean, low, high}, a count, or the reason why one is undefined."""
    values = {}
    for name, figure in figures.items():
        values[name] = figure.as_dict() if isinstance(figure, Interval) else figure
    return values


def definitions(names: Iterable[str]) -> dict[str, str]:
    """Those of `DEFINITIONS` that are about one of these figures."""
    kept = [*names]
    return {
        of: text
        for of, text in DEFINITIONS.items()
        if any(name == of or name.startswith((f"{of},", f"{of} ")) for name in kept)
    }


def report(
    shared: Sequence[Shared],
    severities: Sequence[str] = (),
    orders: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Figure]:
    """All figures, by name.

    Args:
      shared: the responses with the judgements of their annotators.
      severities: from the mildest to the worst, for the agreement on severities.
      orders: aspect -> the labels of its verdicts, from the lowest to the highest.
    """
    errors = with_judged_errors(shared)
    names = clusters(shared)
    figures: dict[str, Figure] = {}
    scored = _aspects(shared, _score)
    verdicts = verdict_aspects(shared)
    steps = any(_steps(entry, lambda item: item.aspect) for entry in shared)
    if looked_for_errors(shared) or not (scored or verdicts or steps):
        figures |= error_figures(shared, errors, severities)
    if any(entry.missing_information(name) for entry in shared for name in entry.by_annotator):
        named = with_named_information(shared, errors)
        unshared = "no two annotators looked for missing information in the same response"
        figures["missing information F1"] = missing_figure(named, why_unshared(shared, unshared))
    for aspect in verdicts:
        units = _units([[_given(entry, aspect, _verdict)] for entry in shared])
        name = f"alpha, verdicts of {aspect}"
        unshared = f"no two annotators gave the same response a verdict of {aspect}"
        nothing = why_unshared(shared, unshared)
        figures[name] = alpha(units, nothing=nothing, clusters=names)
        if orders and aspect in orders:
            how = f"orders={{{aspect}: [...]}}"
            figures[f"{name} (ordinal)"] = ordinal_alpha(
                shared, units, orders[aspect], how, nothing
            )
    for aspect in scored:
        scores = [[_given(entry, aspect, _score)] for entry in shared]
        unshared = f"no two annotators gave the same response a score of {aspect}"
        figures |= _score_figures(shared, aspect, scores, unshared)
    labels = [_steps(entry, lambda item: item.label) for entry in shared]
    if any(labels):
        nothing = why_unshared(shared, "no two annotators gave the same step a label")
        figures["alpha, labels of steps"] = alpha(_units(labels), (), nothing, names)
    scores = [_steps(entry, _step_score) for entry in shared]
    if any(scores):
        unshared = "no two annotators gave the same step a score"
        figures |= _score_figures(shared, "steps", scores, unshared)
    return figures


def weight_notes(shared: Sequence[Shared]) -> list[str]:
    """Names prompts whose responses have more than half of what a figure is computed from."""
    errors = [entry for entry in with_judged_errors(shared) if len(entry.by_annotator) > 1]
    rated = [entry for entry in shared if len(entry.by_annotator) > 1]

    def marks(entry: Shared) -> int:
        return sum(len(entry.spans(name)) for name in entry.by_annotator)

    def words(entry: Shared) -> int:
        return len(list(word_starts(entry.response))) * len(entry.by_annotator)

    notes = []
    if looked_for_errors(shared):
        notes += _heaviest(errors, marks, "marks", "the F figures of spans")
        notes += _heaviest(errors, words, "labels of words", "the alphas of words")
    if _aspects(shared, _score) or verdict_aspects(shared):
        notes += _heaviest(
            rated, lambda entry: len(entry.by_annotator), "judgements", "scores and verdicts"
        )
    return notes


def _heaviest(
    shared: Sequence[Shared], weight: Callable[[Shared], int], what: str, figures: str
) -> list[str]:
    """A note if one of several clusters has more than half of the weight."""
    weights: Counter[Hashable] = Counter()
    texts: dict[Hashable, str] = {}
    for entry, name in zip(shared, clusters(shared)):
        weights[name] += weight(entry)
        texts.setdefault(name, name if isinstance(name, str) else entry.response)
    total = weights.total()
    for name, heaviest in weights.most_common(1):
        if len(weights) > 1 and 2 * heaviest > total:
            return [
                f"{heaviest:,} of the {total:,} {what} are of one item,"
                f" {shorten(repr(texts[name]), 60)}: it decides {figures}"
            ]
    return []


def verdict_aspects(shared: Sequence[Shared]) -> list[str]:
    """The aspects with labels of whole texts, which have a figure about verdicts.

    An aspect whose only such label is `no error` is left out: its errors are marked as spans.
    """
    return _aspects(shared, lambda item: None if item.label == NO_ERROR else _verdict(item))


def _verdict(judgement: Judgement) -> str | None:
    """The label of the whole text. Missing information is a list, and no verdict."""
    is_verdict = judgement.span is None and not is_missing_information(judgement)
    return judgement.label if is_verdict else None


def _score(judgement: Judgement) -> float | None:
    """The score of the whole text."""
    return judgement.score if judgement.span is None else None


def _step_score(judgement: Judgement) -> float | None:
    return judgement.score


def _aspects(shared: Sequence[Shared], value: Callable[[Judgement], Any]) -> list[str]:
    """The aspects of the judgements with a value, in the order in which they first occur."""
    aspects: dict[str, None] = {}  # an ordered set
    for entry in shared:
        for judgements in entry.by_annotator.values():
            aspects |= {item.aspect: None for item in judgements if value(item) is not None}
    return list(aspects)


def _given(entry: Shared, aspect: str, value: Callable[[Judgement], T | None]) -> dict[str, T]:
    """The value that each annotator gave an aspect: the first, if there are several."""
    given: dict[str, T] = {}
    for name, judgements in entry.by_annotator.items():
        values = [value(item) for item in judgements if item.aspect == aspect]
        for one in values:
            if one is not None:
                given.setdefault(name, one)
    return given


def _score_figures(
    shared: Sequence[Shared],
    of: str,
    scores: Sequence[Sequence[Mapping[str, float]]],
    unshared: str,
) -> dict[str, Figure]:
    """How far scores agree: their ranks, their values, and their differences.

    Args:
      scores: for each response and everything in it that is scored, the scores by annotator.
      unshared: the reason to give if a response has two annotators, but nothing has two scores.
    """
    units = _units(scores)
    used = sorted({score for of_response in units for unit in of_response for score in unit})
    names = clusters(shared)
    single = [one for of_response in scores for one in of_response]
    single_names = [name for name, ones in zip(names, scores) for _ in ones]
    nothing = why_unshared(shared, unshared)
    return {
        f"alpha, scores of {of} (ordinal)": alpha(units, used, nothing, names, "ordinal"),
        f"alpha, scores of {of} (interval)": alpha(units, (), nothing, names, "interval"),
        f"ICC, scores of {of} (consistency)": consistency(single, single_names, nothing),
    }


def _units(given: Sequence[Sequence[Mapping[str, T]]]) -> list[list[list[T]]]:
    """The values without their annotators."""
    return [[list(unit.values()) for unit in of_response] for of_response in given]


def _steps(entry: Shared, value: Callable[[Judgement], T | None]) -> list[dict[str, T]]:
    """For each step of a response, the value that each annotator gave it; none without a value."""
    steps: dict[tuple[int, int], dict[str, T]] = {}
    for name, judgements in entry.by_annotator.items():
        for item in judgements:
            given = value(item)
            if item.aspect == STEP_ASPECT and item.span is not None and given is not None:
                steps.setdefault(item.span, {}).setdefault(name, given)
    return [steps[place] for place in sorted(steps)]

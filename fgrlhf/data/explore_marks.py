"""Statistics of collected judgements: the marks of spans, verdicts, and scores or ratings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from markupsafe import Markup, escape

from fgrlhf.base.errors import counted
from fgrlhf.data.judgements import LIKED_ASPECT, SPAN_ASPECT, JudgedResponse, Judgement
from fgrlhf.report.plots import histograms
from fgrlhf.words import count_words

TEXTS_SHOWN = 5  # marked texts of a label
RESPONSES_SHOWN = 20


@dataclass(frozen=True)
class Label:
    """The spans with a label of an aspect."""

    name: str
    spans: int
    responses: int  # with such a span
    words: float  # of a marked text, mean
    severities: Mapping[str, int]
    texts: list[tuple[str, int]]  # the most frequent marked texts, without case


@dataclass(frozen=True)
class Score:
    """The scores of an aspect, or the ratings on a scale."""

    name: str
    values: list[float]

    @property
    def line(self) -> str:
        return (
            f"{counted(len(self.values), 'value')} from {min(self.values):g} to"
            f" {max(self.values):g}, mean {fmean(self.values):.2f}, median {median(self.values):g}"
        )


@dataclass(frozen=True)
class Marks:
    """Statistics of the judgements in a file.

    Args:
      unmarked: responses in which nobody marked an error.
      annotators: the number of responses that each judged; {} if none is named.
      per_response: the number of marked errors of each response.
      verdicts: for each aspect, how often each label was given to a whole response.
      shown: responses with their marks, as HTML.
    """

    responses: int
    spans: int
    unmarked: int
    annotators: Mapping[str, int]
    per_response: list[int]
    labels: list[Label]
    verdicts: Mapping[str, Mapping[str, int]]
    scores: list[Score]
    shown: list[Markup]

    @property
    def plots(self) -> list[Markup]:
        plots = []
        if self.labels:
            sample = {"errors": self.per_response}
            plots.append(Markup(histograms("Marked errors of a response", sample, "errors")))
        for score in self.scores:
            plots.append(Markup(histograms(score.name, {score.name: score.values}, "value")))
        return plots


def explore_marks(
    judged: Sequence[JudgedResponse], ratings: Mapping[str, Sequence[float]]
) -> Marks:
    """The statistics.

    Args:
      judged: responses with their judgements; those of several rows of a response are separate.
      ratings: further scores, by the name of their scale.
    """
    annotators: Counter[str] = Counter()
    verdicts: dict[str, Counter[str]] = {}
    scores: dict[str, list[float]] = {}
    per_response = []
    for item in judged:
        annotators.update({one.annotator for one in item.judgements if one.annotator is not None})
        errors = 0
        for one in item.judgements:
            errors += one.span is not None and one.aspect != LIKED_ASPECT
            if one.span is None and one.label is not None:
                verdicts.setdefault(one.aspect, Counter())[one.label] += 1
            if one.score is not None:
                scores.setdefault(one.aspect, []).append(one.score)
        per_response.append(errors)
    for name, values in ratings.items():
        scores.setdefault(name, []).extend(values)
    labels = _labels(judged)
    marked = [item for item in judged if any(one.span is not None for one in item.judgements)]
    return Marks(
        responses=len(judged),
        spans=sum(label.spans for label in labels),
        unmarked=per_response.count(0),
        annotators=dict(sorted(annotators.items())),
        per_response=per_response,
        labels=labels,
        verdicts={aspect: dict(counts.most_common()) for aspect, counts in verdicts.items()},
        scores=[Score(name, values) for name, values in scores.items()],
        shown=[_shown(item) for item in _spread(marked)],
    )


def _labels(judged: Sequence[JudgedResponse]) -> list[Label]:
    """The labels of spans, the most frequent first."""
    spans: dict[str, list[tuple[int, Judgement, str]]] = {}  # label -> (response, mark, its text)
    for number, item in enumerate(judged):
        for one in item.judgements:
            if one.span is not None:
                text = item.text(one.side)[slice(*one.span)]
                names = [one.aspect] if one.aspect != SPAN_ASPECT or one.label is None else []
                name = ": ".join([*names, *([one.label] if one.label is not None else [])])
                spans.setdefault(name, []).append((number, one, text))
    labels = []
    for name, found in sorted(spans.items(), key=lambda pair: -len(pair[1])):
        texts = Counter(" ".join(text.casefold().split()) for _, _, text in found)
        severities = Counter(one.severity for _, one, _ in found if one.severity is not None)
        labels.append(
            Label(
                name,
                len(found),
                len({number for number, _, _ in found}),
                fmean(count_words(text) for _, _, text in found),
                dict(severities.most_common()),
                [pair for pair in texts.most_common(TEXTS_SHOWN) if pair[1] > 1],
            )
        )
    return labels


def _spread(items: Sequence[JudgedResponse]) -> list[JudgedResponse]:
    """A few of the responses, from the whole file."""
    count = min(len(items), RESPONSES_SHOWN)
    return [items[place * len(items) // count] for place in range(count)]


def _shown(item: JudgedResponse) -> Markup:
    """The response with its marks, each with its labels as a title. Overlaps are merged."""
    titles: list[list[str]] = [[] for _ in item.response]
    for one in item.judgements:
        if one.span is None or one.side != "response":
            continue
        parts = [one.label or one.aspect, one.severity, one.annotator]
        title = ", ".join(part for part in parts if part)
        for place in range(*one.span):
            titles[place].append(title)
    html = Markup()
    start = 0
    for place in range(1, len(titles) + 1):
        if place < len(titles) and titles[place] == titles[start]:
            continue
        text = escape(item.response[start:place])
        title = "; ".join(titles[start])
        html += Markup('<mark title="{}">{}</mark>').format(title, text) if title else text
        start = place
    return html


def ratings_of(rows: Sequence[Any]) -> dict[str, list[float]]:
    """The ratings in feedback rows, `ratings: [{scale: number}, ...]`, by scale."""
    found: dict[str, list[float]] = {}
    for row in rows:
        values = row.get("ratings") if isinstance(row, Mapping) else None
        for of_response in values if isinstance(values, list) else []:
            if not isinstance(of_response, Mapping):
                continue
            for scale, value in of_response.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    found.setdefault(scale, []).append(float(value))
    return found


def findings(marks: Marks) -> list[str]:
    """What can mislead a reward model that is trained on the marks, in plain sentences."""
    lines = []
    if marks.labels:
        share = marks.unmarked / marks.responses
        lines.append(
            f"marked spans: {marks.spans:,} in {counted(marks.responses, 'response')};"
            f" {marks.unmarked:,}"
            f" ({share:.0%}) have no marked error"
        )
    rare = [label for label in marks.labels if label.responses < 10]
    if rare:
        names = ", ".join(f"{label.name} ({label.responses})" for label in rare)
        lines.append(f"Labels in fewer than 10 responses, too few to learn: {names}")
    total = sum(marks.annotators.values())
    for name, count in marks.annotators.items():
        if len(marks.annotators) > 2 and 2 * count > total:
            lines.append(f"{name} made {count:,} of the {total:,} annotations")
    for score in marks.scores:
        lines.append(f"{score.name}: {score.line}")
        if len(set(score.values)) == 1:
            lines.append(f"{score.name}: all values are equal, so they say nothing")
    return lines

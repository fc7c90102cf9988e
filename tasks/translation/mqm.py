"""Multidimensional Quality Metrics (MQM): marked errors with severities, and the score they give.

A judgement marks errors in a translation, and omissions in its source. A row has the format `spans`
(docs/data_formats.md), with a severity for every span and the key `omissions`:

    {"prompt": source, "response": translation,
     "spans": [{"start": 0, "end": 4, "label": "mistranslation", "severity": "major"}],
     "omissions": [{"start": 10, "end": 16, "severity": "minor"}]}

The score of a translation is minus the sum of its errors' weights (Freitag et al. 2021, table 1):
major 5, minor 1, minor punctuation 0.1, at most 25. A non-translation, a text that has nothing to
do with its source, is one mark of the severity major with a weight of 25.

A span with `"side": "source"` is an omission too. The task's feedback pages write severities as
labels: `major`, and `major omission` in the source.

Raters of the WMT data make at most five marks in a segment and choose the most severe errors. So in
a segment with five marks, the other words are not judged, unless the row has `"complete": true`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.data.format import SOURCE
from fgrlhf.data.formats import SPANS, LabelledSpan, SpanFeedback
from fgrlhf.text_types import Prompt

MAJOR, MINOR, PUNCTUATION = "major", "minor", "punctuation"
WEIGHTS = {MAJOR: 5.0, MINOR: 1.0, PUNCTUATION: 0.1}  # the worst first
MOST = 25.0  # the greatest weight of a translation, and the weight of a non-translation
NON_TRANSLATION = "non-translation"  # its label starts with this, in any case
MOST_MARKS = 5  # of a rater in a segment
OMISSION = "omission"  # the label of a mark in the source
OMISSIONS, COMPLETE = "omissions", "complete"  # keys of a row


@dataclass(frozen=True)
class Judgement:
    """A judged translation.

    Args:
      prompt: the source.
      response: the translation.
      errors: marks in the translation, in the order of their starts.
      omissions: marks in the source, likewise.
      complete: whether every error is marked, however many there are, as by an oracle.
    """

    prompt: Prompt
    response: str
    errors: tuple[LabelledSpan, ...]
    omissions: tuple[LabelledSpan, ...]
    complete: bool = False

    @property
    def is_capped(self) -> bool:
        """Whether the rater has used all marks, so that the other words are not judged."""
        return not self.complete and len(self.errors) + len(self.omissions) == MOST_MARKS

    @property
    def worst_omission(self) -> str | None:
        """The worst severity of the omissions, or None without any."""
        severities = {mark.severity for mark in self.omissions}
        return next((severity for severity in WEIGHTS if severity in severities), None)

    @property
    def knows_worst_omission(self) -> bool:
        """Whether `worst_omission` is that of all omissions, marked or not.

        Raters mark the worst errors first. An omission without a mark is therefore no worse than a
        marked one. If the rater has used all marks on other errors, there may be an omission that
        is not marked.
        """
        return not self.is_capped or self.worst_omission is not None

    @property
    def score(self) -> float:
        return mqm_score([*self.errors, *self.omissions])


def mqm_score(marks: Iterable[LabelledSpan]) -> float:
    """-min(25, sum_i w_i) with the weight w_i of each mark.

    It is 25 for a non-translation, otherwise that of the severity.
    """
    return -min(MOST, sum(_weight(mark) for mark in marks))


def _weight(mark: LabelledSpan) -> float:
    return MOST if is_non_translation(mark.label) else WEIGHTS[str(mark.severity)]


def is_non_translation(category: str) -> bool:
    """Whether this category of an error is that of a non-translation, such as Non-translation!."""
    return category.strip().lower().startswith(NON_TRANSLATION)


def by_place(marks: Iterable[LabelledSpan]) -> tuple[LabelledSpan, ...]:
    """The marks in the order of the text."""
    return tuple(sorted(marks, key=lambda mark: (mark.start, mark.end)))


def worst_marks(
    errors: Sequence[LabelledSpan], omissions: Sequence[LabelledSpan]
) -> tuple[tuple[LabelledSpan, ...], tuple[LabelledSpan, ...]]:
    """The errors and omissions that a rater marks of all that there are: the five worst.

    Of equally severe ones, those of the translation come first, in the order of the text.
    """
    severities = list(WEIGHTS)  # the worst first
    all_marks = [(mark, True) for mark in errors] + [(mark, False) for mark in omissions]
    all_marks.sort(key=lambda pair: severities.index(str(pair[0].severity)))
    chosen = all_marks[:MOST_MARKS]
    return (
        by_place(mark for mark, in_translation in chosen if in_translation),
        by_place(mark for mark, in_translation in chosen if not in_translation),
    )


# ---- rows ----------------------------------------------------------------------------------------


def judgement_row(judgement: Judgement) -> dict[str, Any]:
    """A row of the format `spans`, with the omissions."""
    feedback = SpanFeedback(judgement.prompt, judgement.response, judgement.errors)
    omissions = []
    for mark in judgement.omissions:
        omissions.append({"start": mark.start, "end": mark.end, "severity": mark.severity})
    row = {**SPANS.to_row(feedback), OMISSIONS: omissions}
    return row | {COMPLETE: True} if judgement.complete else row


def read_judgements(source: str | Path) -> list[Judgement]:
    """The judgements of a file.

    Raises:
      UserError: a row is malformed, or a mark has no known severity.
    """
    judgements = []
    for feedback in SPANS.read(source):
        prompt = feedback.prompt
        meta = {k: value for k, value in prompt.meta.items() if k not in (OMISSIONS, COMPLETE)}
        row = f"{source}, row {shorten(prompt.id, 60)}"
        errors = []
        marked_omissions = []
        for mark in feedback.spans:
            severity = mark.severity
            if severity is None:
                severity = mark.label.removesuffix(f" {OMISSION}")
            _check_severity(f"{row}, `spans`", severity)
            if mark.side == SOURCE:
                marked_omissions.append(LabelledSpan(mark.start, mark.end, OMISSION, severity))
            else:
                errors.append(replace(mark, severity=severity))
        if marked_omissions and feedback.source != prompt.text:
            raise UserError(f"{row}, `spans`: marks of the source need the prompt as the source")
        omissions = [*_omissions(f"{row}, `{OMISSIONS}`", prompt), *marked_omissions]
        judgements.append(
            Judgement(
                Prompt(prompt.id, prompt.text, prompt.references, meta),
                feedback.response,
                by_place(errors),
                by_place(omissions),
                _flag(f"{row}, `{COMPLETE}`", prompt.meta.get(COMPLETE, False)),
            )
        )
    return judgements


def _omissions(place: str, prompt: Prompt) -> list[LabelledSpan]:
    values = prompt.meta.get(OMISSIONS, [])
    if not isinstance(values, list):
        raise UserError(f"{place}: must be a list of {{start, end, severity}}")
    marks = []
    for value in values:
        keys = ("start", "end", "severity")
        if not isinstance(value, dict) or not all(key in value for key in keys):
            raise UserError(f"{place}: each must be an object with start, end and severity")
        start, end, severity = (value[key] for key in keys)
        _check_severity(place, severity)
        is_range = type(start) is int and type(end) is int
        if not is_range or not 0 <= start < end <= len(prompt.text):
            raise UserError(
                f"{place}: {shorten(repr(start), 20)} to {shorten(repr(end), 20)} is not a range of"
                f" the source, which has {len(prompt.text)} characters"
            )
        marks.append(LabelledSpan(start, end, OMISSION, severity))
    return marks


def _flag(place: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{place}: must be true or false, it is {shorten(repr(value), 40)}")
    return value


def _check_severity(place: str, severity: Any) -> None:
    if not isinstance(severity, str) or severity not in WEIGHTS:
        raise UserError(
            f"{place}: the severity {shorten(repr(severity), 40)} is not known; severities are"
            f" {', '.join(WEIGHTS)}"
        )

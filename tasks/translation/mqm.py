"""Multidimensional Quality Metrics (MQM): marked errors with severities, and the score they give.

Raters mark errors in a translation, and omissions in its source. A row has the format `spans`
(docs/data_formats.md), with a severity for every span; those of the source are the omissions:

    {"prompt": source, "response": translation,
     "spans": [{"start": 0, "end": 4, "label": "mistranslation", "severity": "major"},
               {"start": 10, "end": 16, "label": "omission", "severity": "minor",
                "side": "source"}]}

The score of a translation is minus the sum of its errors' weights (Freitag et al. 2021, table 1):
major 5, minor 1, minor punctuation 0.1, at most 25. A non-translation, a text that has nothing to
do with its source, is one mark of the severity major with a weight of 25.

The task's feedback pages write severities as labels: `major`, and `major omission` in the source.

Raters of the WMT data make at most five marks in a segment and choose the most severe errors. So in
a segment with five marks, the other words are not judged, unless the row has `"complete": true`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.data.formats import SPANS
from fgrlhf.data.judgements import SOURCE, SPAN_ASPECT, JudgedResponse, Judgement
from fgrlhf.text_types import Prompt

MAJOR, MINOR, PUNCTUATION = "major", "minor", "punctuation"
WEIGHTS = {MAJOR: 5.0, MINOR: 1.0, PUNCTUATION: 0.1}  # the worst first
MOST = 25.0  # the greatest weight of a translation, and the weight of a non-translation
NON_TRANSLATION = "non-translation"  # its label starts with this, in any case
MOST_MARKS = 5  # of a rater in a segment
OMISSION = "omission"  # the label of a mark in the source
COMPLETE = "complete"  # key of a row


def error(start: int, end: int, label: str, severity: str) -> Judgement:
    """A mark in a translation."""
    return Judgement(SPAN_ASPECT, label, start, end, severity)


def omission(start: int, end: int, severity: str) -> Judgement:
    """A mark in a source."""
    return Judgement(SPAN_ASPECT, OMISSION, start, end, severity, side=SOURCE)


@dataclass(frozen=True)
class RatedTranslation(JudgedResponse):
    """A translation with the marks of a rater, as the response to its source.

    Args:
      complete: whether every error is marked, however many there are, as by an oracle.
    """

    complete: bool = False

    @classmethod
    def of(
        cls, prompt: Prompt, translation: str, marks: Iterable[Judgement], complete: bool = False
    ) -> "RatedTranslation":
        """With the marks of both texts, which are sorted by their places."""
        ordered = sorted(marks, key=lambda mark: (mark.side, mark.place))
        return cls(prompt, translation, tuple(ordered), prompt.text, complete)

    @property
    def errors(self) -> tuple[Judgement, ...]:
        """The marks in the translation, in the order of the text."""
        return tuple(mark for mark in self.spans if mark.side != SOURCE)

    @property
    def omissions(self) -> tuple[Judgement, ...]:
        """The marks in the source, in the order of the text."""
        return tuple(mark for mark in self.spans if mark.side == SOURCE)

    @property
    def is_capped(self) -> bool:
        """Whether the rater has used all marks, so that the other words are not judged."""
        return not self.complete and len(self.spans) == MOST_MARKS

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
        return mqm_score(self.spans)


def mqm_score(marks: Iterable[Judgement]) -> float:
    """-min(25, sum_i w_i) with the weight w_i of each mark.

    It is 25 for a non-translation, otherwise that of the severity.
    """
    return -min(MOST, sum(_weight(mark) for mark in marks))


def _weight(mark: Judgement) -> float:
    return MOST if is_non_translation(str(mark.label)) else WEIGHTS[str(mark.severity)]


def is_non_translation(category: str) -> bool:
    """Whether this category of an error is that of a non-translation, such as Non-translation!."""
    return category.strip().lower().startswith(NON_TRANSLATION)


def worst_marks(marks: Iterable[Judgement]) -> list[Judgement]:
    """The marks that a rater makes of all that there are: the five worst.

    Of equally severe ones, those of the translation come first, in the order of the text.
    """
    severities = list(WEIGHTS)  # the worst first

    def badness(mark: Judgement) -> tuple[int, str, tuple[int, int]]:
        return severities.index(str(mark.severity)), mark.side, mark.place

    return sorted(marks, key=badness)[:MOST_MARKS]


# ---- rows ----------------------------------------------------------------------------------------


def row_of(rated: RatedTranslation) -> dict[str, Any]:
    """A row of the format `spans`."""
    row = SPANS.to_row(replace(rated, source=rated.source if rated.omissions else None))
    return row | {COMPLETE: True} if rated.complete else row


def read_rated(source: str | Path) -> list[RatedTranslation]:
    """The rated translations of a file.

    Raises:
      UserError: a row is malformed, or a mark has no known severity.
    """
    translations = []
    for judged in SPANS.read(source):
        meta = dict(judged.prompt.meta)
        row = f"{source}, row {shorten(judged.prompt.id, 60)}"
        complete = _flag(f"{row}, `{COMPLETE}`", meta.pop(COMPLETE, False))
        marks = []
        for mark in judged.spans:
            severity = mark.severity or str(mark.label).removesuffix(f" {OMISSION}")
            _check_severity(f"{row}, `spans`", severity)
            label = OMISSION if mark.side == SOURCE else mark.label
            marks.append(replace(mark, label=label, severity=severity))
        prompt = replace(judged.prompt, meta=meta)
        if any(mark.side == SOURCE for mark in marks) and judged.source != prompt.text:
            raise UserError(f"{row}, `spans`: marks of the source need the prompt as the source")
        translations.append(RatedTranslation.of(prompt, judged.response, marks, complete))
    return translations


def _flag(place: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{place}: must be true or false, it is {shorten(repr(value), 40)}")
    return value


def _check_severity(place: str, severity: str) -> None:
    if severity not in WEIGHTS:
        raise UserError(
            f"{place}: the severity {shorten(repr(severity), 40)} is not known; severities are"
            f" {', '.join(WEIGHTS)}"
        )

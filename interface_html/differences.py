"""The differences between the annotations of an item, which an adjudicator decides one by one.

templates/differences.js is the same for the browser. A difference is named
  response 4-11        the annotations have different marks there. Marks that overlap, directly or
                       through others, are one place; before it is the text (`rules.side_of`)
  missing Kind 2:4,5   not all annotations have this missing information
  correction           the corrections differ

The annotation of an adjudicator has `decisions`, `{difference: how}`:
  taken     the version of an annotator was taken
  majority  the version that most annotators gave was taken
  own       the adjudicator wrote another version

No submission of an adjudicator leaves a difference out: what nobody decided is no decision.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fgrlhf.base.records import Complaint, key_problems, one_of
from interface_html.format import ANNOTATIONS
from interface_html.rules import Document, side_of
from interface_html.schema import Schema
from interface_html.submitted import is_decided_on

DECISIONS = "decisions"
TAKEN, MAJORITY, OWN = "taken", "majority", "own"
SHOWN = 5  # differences in a message


def differences(schema: Schema, annotations: Sequence[Document]) -> list[str]:
    """The names of the differences between annotations of an item, in the order of its texts."""
    names = [*_different_marks(annotations), *_different_missing(schema, annotations)]
    if schema.correction and len({doc["corrected-prediction"] for doc in annotations}) > 1:
        names.append("correction")
    return names


def _different_marks(annotations: Sequence[Document]) -> Iterator[str]:
    marks = []
    for number, doc in enumerate(annotations):
        for error in doc["errors"]:
            marks.append((side_of(error), error["start"], error["end"], number, error))
    marks.sort(key=lambda mark: mark[:4])
    groups: list[list] = []
    last: tuple[str, int] | None = None  # the text and the end of the last group
    for side, start, end, number, error in marks:
        if last is None or last[0] != side or last[1] <= start:
            groups.append([])
            last = side, end
        groups[-1].append((number, error))
        last = side, max(end, last[1])
    for group in groups:
        contents: list[list] = [[] for _ in annotations]
        for number, error in group:
            contents[number].append(_content(error))
        if any(sorted(content) != sorted(contents[0]) for content in contents):
            errors = [error for _, error in group]
            start = min(error["start"] for error in errors)
            end = max(error["end"] for error in errors)
            yield f"{side_of(errors[0])} {start}-{end}"


def _content(error: Mapping[str, Any]) -> tuple:
    """What can differ in a mark."""
    texts = [error["explanation"], error.get("severity") or "", error.get("reason") or ""]
    return error["start"], error["end"], error["error type"], *texts


def _different_missing(schema: Schema, annotations: Sequence[Document]) -> Iterator[str]:
    context = schema.fields.context
    if context is None:
        return
    given = []
    for doc in annotations:
        names = {}
        for info in doc["missing-info"]:
            sentences = ",".join(str(number) for number in sorted(info[context.sentences]))
            names[f"missing {info['error type']} {info[context.id]}:{sentences}"] = None
        given.append(names)
    everything = {name: None for names in given for name in names}
    for name in everything:
        if not all(name in names for names in given):
            yield name


def decision_form_problems(
    schema: Schema, row: Mapping[str, Any], doc: Mapping[str, Any]
) -> Iterator[Complaint]:
    """The `decisions` of an annotation must be on differences of its item.

    `doc` may have any values; annotations of ordinary items have no `decisions`.
    """
    if DECISIONS not in doc:
        return
    field = f"feedback.{DECISIONS}"
    if not is_decided_on(row, "annotation"):
        yield field, "must be left out: this item has no annotations to decide between"
        return
    wrong = key_problems(doc, "feedback.", {DECISIONS: dict})
    yield from wrong
    if wrong:
        return
    known = differences(schema, row[ANNOTATIONS])
    for name in doc[DECISIONS]:
        if name not in known:
            yield f"{field}.{name}", "is no difference between the annotations of this item"
        else:
            yield from key_problems(
                doc[DECISIONS], f"{field}.", {name: one_of((TAKEN, MAJORITY, OWN))}
            )


def undecided_difference_problems(
    schema: Schema, row: Mapping[str, Any], doc: Mapping[str, Any]
) -> list[Complaint]:
    """The differences of an item to adjudicate on which a valid annotation has no decision."""
    if not is_decided_on(row, "annotation"):
        return []
    names = differences(schema, row[ANNOTATIONS])
    decided = doc.get(DECISIONS, {})
    undecided = [name for name in names if name not in decided]
    if not undecided:
        return []
    verb = "is" if len(undecided) == 1 else "are"
    more = ", ..." if len(undecided) > SHOWN else ""
    reason = (
        f"{len(undecided)} of {len(names)} differences {verb} not decided:"
        f" {', '.join(undecided[:SHOWN])}{more}"
    )
    return [(f"feedback.{DECISIONS}", reason)]


def undecided_all_bad_problems(
    entries: Sequence[Mapping[str, Any]], doc: Mapping[str, Any]
) -> list[Complaint]:
    """Whether no output is acceptable must be said if the people to decide between differ.

    Args:
      entries: the comparisons to decide between.
      doc: a valid comparison.
    """
    values = {bool(entry.get("all-bad")) for entry in entries}
    if len(values) < 2 or "all-bad" in doc:
        return []
    return [("all-bad", "is not decided: say whether any output is acceptable")]

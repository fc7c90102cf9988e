"""What the annotators submitted on an item, between which an adjudicator decides.

The row of an item from `adjudicate` has one or more of
  annotations, shared      the annotations, and one with the marks that all of them have
  submitted comparisons    [{annotator, revision, preference}], with `all-bad` if it was set
  submitted ratings        [{annotator, revision, ratings}]

The last two have a `comment` if there is one. An entry of `annotations` has `annotator` and
`revision` beside the keys of an annotation. They name the submission that it is. Feedback rows have
neither `submitted comparisons` nor `submitted ratings`. templates/submitted.js has the same rules
for the browser.
"""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from fgrlhf.base.records import AnyText, Complaint, key_problems, not_a
from interface_html.format import ANNOTATIONS, COMPARISONS, RATED, SHARED
from interface_html.ratings import values_problems
from interface_html.rules import preference_problems
from interface_html.schema import Schema

KEY_OF_PAGE = {"annotation": ANNOTATIONS, "comparison": COMPARISONS, "rating": RATED}
ADJUDICATION_KEYS = (ANNOTATIONS, SHARED, COMPARISONS, RATED)
NAME_KEYS = ("annotator", "revision")  # who made a submission, which the adjudicator does not see


def is_adjudication(row: Mapping[str, Any]) -> bool:
    """Whether an item is from `adjudicate`, so that submissions on it may be an adjudicator's."""
    return any(is_decided_on(row, page) for page in KEY_OF_PAGE)


def is_decided_on(row: Mapping[str, Any], page: str) -> bool:
    """Whether an item has submissions of a page for an adjudicator to decide between."""
    if page == "annotation":
        return ANNOTATIONS in row and SHARED in row  # files may have `annotations` of their own
    return KEY_OF_PAGE[page] in row


def is_given_on(row: Mapping[str, Any], page: str) -> bool:
    """Whether annotators get an item on a page: an adjudicator only if there is a decision."""
    return is_decided_on(row, page) or not is_adjudication(row)


def decided_between(row: Mapping[str, Any], page: str) -> list[dict[str, Any]]:
    """The annotator and the revision of each submission to decide between."""
    if not is_decided_on(row, page):
        return []
    entries = row[KEY_OF_PAGE[page]]
    return [{key: entry[key] for key in NAME_KEYS if key in entry} for entry in entries]


def essence(
    doc: Mapping[str, Any], left_out: Container[str] = ("seen",), of_marks: Container[str] = ()
) -> dict[str, Any]:
    """A submitted document without the order of its marks: what two equal judgements share.

    Args:
      doc: the document.
      left_out: its keys that do not count; by default how long each output was in view.
      of_marks: the keys of its marks that do not count.
    """
    kept = {key: value for key, value in doc.items() if key not in left_out}
    marks = []
    for error in kept.get("errors", ()):
        parts = {key: error[key] for key in error if key not in of_marks}
        marks.append(json.dumps(parts, sort_keys=True))
    return {**kept, "errors": sorted(marks)}


def without_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as an adjudicator gets it: without the names of the annotators."""
    nameless = dict(row)
    for page, key in KEY_OF_PAGE.items():
        if is_decided_on(row, page):
            nameless[key] = [_nameless(entry) for entry in row[key]]
    return nameless


def _nameless(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in NAME_KEYS}


# ---- rules ---------------------------------------------------------------------------------------


def submitted_problems(schema: Schema, row: Mapping[str, Any]) -> Iterator[Complaint]:
    """The problems of what annotators submitted on an item. The page checks annotations itself."""
    if is_decided_on(row, "annotation"):
        yield from _list(row, ANNOTATIONS, lambda entry, field: ())
    if COMPARISONS in row:
        if schema.compares:
            yield from _list(row, COMPARISONS, partial(_comparison, schema))
        else:
            yield COMPARISONS, "must be left out: this task has no comparison"
    if RATED in row:
        if schema.ratings:
            yield from _list(row, RATED, partial(_rating, schema))
        else:
            yield RATED, "must be left out: this task has no ratings"


def _list(
    row: Mapping[str, Any], key: str, check: Callable[[dict, str], Iterable[Complaint]]
) -> Iterator[Complaint]:
    """The value of a key must be a list of objects; `check` gets each and its field."""
    if not isinstance(row[key], list):
        yield key, not_a(list, row[key])
        return
    for i, entry in enumerate(row[key]):
        field = f"{key}[{i}]"
        if isinstance(entry, dict):
            yield from check(entry, field)
        else:
            yield field, not_a(dict, entry)


def _comparison(schema: Schema, entry: dict, field: str) -> Iterator[Complaint]:
    yield from _comment(entry, field)
    if "all-bad" in entry:
        yield from key_problems(entry, f"{field}.", {"all-bad": bool})
    wrong = key_problems(entry, f"{field}.", {"preference": list})
    yield from wrong
    if not wrong:
        for name, reason in preference_problems(schema, entry["preference"]):
            yield f"{field}.{name}", reason


def _rating(schema: Schema, entry: dict, field: str) -> Iterator[Complaint]:
    yield from _comment(entry, field)
    wrong = key_problems(entry, f"{field}.", {"ratings": dict})
    yield from wrong
    if not wrong:
        for name, reason in values_problems(schema, entry["ratings"]):
            yield f"{field}.{name}", reason


def _comment(entry: Mapping[str, Any], field: str) -> Iterator[Complaint]:
    if "comment" in entry:
        yield from key_problems(entry, f"{field}.", {"comment": AnyText})

"""What the annotators submitted on an item, between which an adjudicator decides.

The row of an item from `adjudicate` has one or more of
  annotations, shared      the annotations, and one with the marks that all of them have
  submitted comparisons    [{annotator, revision, preference}], with `all-bad` if it was set
  submitted ratings        [{annotator, revision, ratings}]

The last two have a `comment` if there is one. An entry of `annotations` has `annotator` and `revision` beside the keys of an annotation. They name
the submission that it is. Feedback rows have neither `submitted comparisons` nor `submitted
ratings`. templates/submitted.js has the same rules for the browser.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fgrlhf.data.problems import Complaint, key_problems, not_a, text_problems
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
        for field, entry in _entries(row, ANNOTATIONS):
            if not isinstance(entry, dict):
                yield field, not_a(dict, entry)
    if COMPARISONS in row:
        for field, entry in _entries(row, COMPARISONS):
            yield from _comparison(schema, entry, field)
    if RATED in row:
        for field, entry in _entries(row, RATED):
            yield from _rating(schema, entry, field)


def _entries(row: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    """The fields and values of a list; a value that is no list is its only entry."""
    if not isinstance(row[key], list):
        yield key, row[key]
        return
    for i, entry in enumerate(row[key]):
        yield f"{key}[{i}]", entry


def _comparison(schema: Schema, entry: Any, field: str) -> Iterator[Complaint]:
    if not schema.compares:
        yield field, "must be left out: this task has no comparison"
    elif not isinstance(entry, dict):
        yield field, not_a(dict, entry)
    else:
        yield from _comment(entry, field)
        if "all-bad" in entry:
            yield from key_problems(entry, f"{field}.", "all-bad", bool)
        wrong = key_problems(entry, f"{field}.", "preference", list)
        for name, reason in wrong or preference_problems(schema, entry["preference"]):
            yield name if wrong else f"{field}.{name}", reason


def _rating(schema: Schema, entry: Any, field: str) -> Iterator[Complaint]:
    if not schema.ratings:
        yield field, "must be left out: this task has no ratings"
    elif not isinstance(entry, dict):
        yield field, not_a(dict, entry)
    else:
        yield from _comment(entry, field)
        wrong = key_problems(entry, f"{field}.", "ratings", dict)
        for name, reason in wrong or values_problems(schema, entry["ratings"]):
            yield name if wrong else f"{field}.{name}", reason


def _comment(entry: Mapping[str, Any], field: str) -> Iterator[Complaint]:
    if "comment" in entry:
        yield from text_problems(entry, f"{field}.", "comment")

"""How much two annotations of the same item have in common.

Each measure is a pair (matches, all): of all marks in both annotations, the number that match a
mark of the other annotation. F1 is matches / all, and that of several items is
sum(matches) / sum(all).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from interface_html.format import Item
from interface_html.rules import side_of, text_labels
from interface_html.schema import Schema

Document = Mapping[str, Any]  # an annotation: see interface_html/rules.py
Matches = tuple[int, int]


def exact_spans(first: Document, second: Document) -> Matches:
    """Spans match if type, text, start and end are equal."""
    return _common_keys(_span_keys(first), _span_keys(second))


def _span_keys(doc: Document) -> set[tuple]:
    return {
        (error["error type"], side_of(error), error["start"], error["end"])
        for error in doc["errors"]
    }


def overlapping_spans(first: Document, second: Document) -> Matches:
    """Spans match if they have the same type and overlap."""
    matches = overlap_matches(first["errors"], second["errors"])
    return matches, len(first["errors"]) + len(second["errors"])


def overlap_matches(first: Sequence[Mapping], second: Sequence[Mapping]) -> int:
    """The number of errors in both lists that overlap one of the same type in the other list."""
    return _count_overlapping(first, second) + _count_overlapping(second, first)


def _count_overlapping(errors: Sequence[Mapping], others: Sequence[Mapping]) -> int:
    """The number of `errors` that overlap one of `others`."""
    return sum(any(_overlaps(error, other) for other in others) for error in errors)


def _overlaps(error: Mapping, other: Mapping) -> bool:
    if error["error type"] != other["error type"] or side_of(error) != side_of(other):
        return False
    return error["start"] < other["end"] and other["start"] < error["end"]


def labelled_characters(schema: Schema, item: Item, first: Document, second: Document) -> Matches:
    """Marked characters of the outputs and the source match if they have the same error type."""
    labels_of_first = text_labels(schema, item.row, first)
    labels_of_second = text_labels(schema, item.row, second)
    matches = 0
    marked = 0
    for label, other in zip(labels_of_first, labels_of_second):
        marked += label is not None
        marked += other is not None
        if label is not None and label == other:
            matches += 2  # one in each annotation
    return matches, marked


def missing_sentences(schema: Schema, first: Document, second: Document) -> Matches:
    """Missing sentences match if the sentence and the type are equal."""
    return _common_keys(_sentence_keys(schema, first), _sentence_keys(schema, second))


def missing_labels(schema: Schema, documents: Sequence[Document]) -> list[list[tuple | None]]:
    """For each annotation a label of each sentence that any of them names as missing.

    The label is None if the annotation does not name the sentence.
    """
    keys_of_documents = [_sentence_keys(schema, doc) for doc in documents]
    every_key = sorted({key for keys in keys_of_documents for key in keys})
    return [[key if key in keys else None for key in every_key] for keys in keys_of_documents]


def _sentence_keys(schema: Schema, doc: Document) -> set[tuple]:
    context = schema.fields.context
    if context is None:
        return set()
    keys = set()
    for info in doc["missing-info"]:
        for sentence in info[context.sentences]:
            keys.add((info["error type"], info[context.id], sentence))
    return keys


def _common_keys(first: set, second: set) -> Matches:
    return 2 * len(first & second), len(first) + len(second)

"""What annotations of the same item have in common: marks that overlap, missing sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

from interface_html.rules import side_of
from interface_html.schema import Schema

Document = Mapping[str, Any]  # an annotation: see interface_html/rules.py


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

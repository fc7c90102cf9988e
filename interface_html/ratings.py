"""Ratings of outputs on scales. templates/ratings.js has the same rules for the browser.

A rating is a document `{ratings, order}`: `ratings` has an object for each output, under its key,
with a value for each scale, under its name; `order` is the order in which the outputs were shown.
It may have a `comment` and a `flag`, as an annotation. A value is a whole number: 1 to
`Rating.points` on a Likert scale, 0 to 100 in percent. In the rows of the default format, `ratings`
is a list of these objects, in the order of the outputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from typing import Any

from fgrlhf.base.records import (
    Complaint,
    is_whole,
    key_problems,
    not_a,
    shown,
    unknown_key_problems,
)
from interface_html.rules import note_keys, note_problems
from interface_html.schema import Schema

Ratings = Mapping[str, Mapping[str, int]]  # output's key -> name of a scale -> value


# ---- rules ---------------------------------------------------------------------------------------


def rating_problems(schema: Schema, doc: Any) -> list[Complaint]:
    """All rules that the ratings `doc` of an item break; [] if they can be accepted."""
    if not isinstance(doc, dict):
        return [("rating", not_a(dict, doc))]
    complaints = list(unknown_key_problems(doc, "", ("ratings", "order", *note_keys(schema))))
    complaints += note_problems(schema, doc, "")
    complaints += key_problems(doc, "", {"ratings": dict, "order": list})
    if complaints:
        return complaints
    count = len(schema.fields.outputs)
    order = doc["order"]
    if not all(map(is_whole, order)) or sorted(order) != list(range(count)):
        reason = f"must hold each of 0..{count - 1} once: the outputs in the order shown"
        complaints.append(("order", reason))
    return [*complaints, *values_problems(schema, doc["ratings"])]


def values_problems(schema: Schema, ratings: Mapping[str, Any]) -> Iterator[Complaint]:
    """Every output must have a value on every scale."""
    yield from unknown_key_problems(ratings, "ratings.", schema.fields.outputs)
    names = [scale.name for scale in schema.ratings]
    for output in schema.fields.outputs:
        field = f"ratings.{output}"
        wrong = key_problems(ratings, "ratings.", {output: dict})
        yield from wrong
        if wrong:
            continue
        values = ratings[output]
        yield from unknown_key_problems(values, f"{field}.", names)
        for scale in schema.ratings:
            value = values.get(scale.name)
            if scale.name not in values:
                yield f"{field}.{scale.name}", "missing"
            elif not is_whole(value) or not scale.lowest <= value <= scale.highest:
                reason = f"{shown(value)} is no whole number from {scale.lowest} to {scale.highest}"
                yield f"{field}.{scale.name}", reason


# ---- rows of the default format ------------------------------------------------------------------


def row_shape_problems(schema: Schema, value: Any) -> Iterator[Complaint]:
    """Whether the `ratings` of a row are a list with an entry for each output."""
    count = len(schema.fields.outputs)
    if not isinstance(value, list):
        yield "ratings", not_a(list, value)
    elif len(value) != count:
        yield "ratings", f"has {len(value)} entries, must have {count}: one for each output"


def ratings_of_row(schema: Schema, value: Sequence[Any]) -> dict[str, Any]:
    """The ratings by output, of a list in the order of the outputs."""
    return dict(zip(schema.fields.outputs, value, strict=True))


def row_of_ratings(schema: Schema, ratings: Ratings) -> list[dict[str, int]]:
    """The inverse of `ratings_of_row`, with the scales in the order of the schema."""
    return [
        {scale.name: ratings[output][scale.name] for scale in schema.ratings}
        for output in schema.fields.outputs
    ]


def row_field(schema: Schema, field: str) -> str:
    """The place of a problem in a row: `ratings[0].quality` for `ratings.<output>.quality`."""
    for number, output in enumerate(schema.fields.outputs):
        prefix = f"ratings.{output}"
        if field == prefix or field.startswith(f"{prefix}."):
            return f"ratings[{number}]{field.removeprefix(prefix)}"
    return field


# ---- several annotators --------------------------------------------------------------------------


def median_ratings(schema: Schema, judged: Sequence[Ratings]) -> dict[str, dict[str, int]]:
    """The median of the annotators' values; of an even number of values the lower middle one."""
    medians = {}
    for output in schema.fields.outputs:
        medians[output] = {
            scale.name: median_low([ratings[output][scale.name] for ratings in judged])
            for scale in schema.ratings
        }
    return medians

"""What the lead's page shows of single items: their texts, and everybody's judgements."""

from collections.abc import Mapping, Sequence
from typing import Any

from interface_html.adjudicate import disagreement
from interface_html.annotator_pairs import judged_counts
from interface_html.decisions import are_disputed
from interface_html.judged_items import judged_items
from interface_html.rules import side_of
from interface_html.schema import SOURCE, PageName, Schema
from interface_html.stored import Study
from interface_html.stored import Submission as Stored


def item_list(schema: Schema, study: Study) -> list[dict[str, Any]]:
    """The items of a study that somebody has judged, those with the least agreement first.

    Returns:
      `{number, item, annotators, agreement, differ}`: the place in `Study.items`, the id, the
      names, 1 - the largest `disagreement` of a page, and the pages with something to decide.
      Items with fewer than two judgements of a page have no agreement, and come last.
    """
    rows = []
    latest = {(one.item, one.page, one.annotator): one for one in study.submissions}
    docs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for (item, page, _), one in latest.items():
        docs.setdefault((item, page), []).append(one.doc)
    for number, entry in enumerate(judged_items(study.items, study.submissions)):
        names = list(judged_counts([entry]))
        if names:
            shared: dict[PageName, Sequence[Mapping[str, Any]]] = {
                page: given
                for page in schema.pages
                if len(given := docs.get((entry.item.id, page), ())) > 1
            }
            degrees = [disagreement(schema, entry.item, page, of) for page, of in shared.items()]
            agreement = 1 - max(degrees) if degrees else None
            differ = [page for page, of in shared.items() if are_disputed(schema, page, of)]
            row = {"number": number, "item": entry.item.id, "annotators": names}
            rows.append({**row, "agreement": agreement, "differ": differ})
    return sorted(rows, key=lambda row: (row["agreement"] is None, row["agreement"] or 0.0))


def item_view(schema: Schema, study: Study, number: int) -> dict[str, Any]:
    """The texts and the judgements of an item.

    Args:
      number: its place in `Study.items`.

    Returns:
      `{item, title, texts, judgements}`. `texts` has `{side, text}` for every text that is judged;
      `judgements` has the latest one of each annotator and page: see `_judgement`.
    """
    item = study.items[number]
    sides = [SOURCE] if schema.marks_source else []
    texts = [{"side": side, "text": schema.text_of(item.row, side)} for side in sides]
    for index, key in enumerate(schema.fields.outputs):
        texts.append({"side": _output_name(index), "text": item.row[key]})
    found: dict[tuple[str, str], Stored] = {}
    for entry in study.submissions:
        if entry.item == item.id:
            found[entry.annotator, entry.page] = entry
    judgements = [_judgement(schema, item.row, found[key]) for key in sorted(found)]
    title = item.row[schema.fields.title]
    return {"item": item.id, "title": title, "texts": texts, "judgements": judgements}


def _output_name(index: int) -> str:
    return f"output {index + 1}"


def _judgement(schema: Schema, row: Mapping[str, Any], entry: Stored) -> dict[str, Any]:
    """A submission as the page shows it.

    Returns:
      `{annotator, page, comment, marks, missing, correction, preferences, all_bad, ratings}`, where
      lists are empty if the page has no such judgement. `missing` has `{label, sentences}`.
    """
    doc = entry.doc
    scales = {scale.name: scale.label for scale in schema.ratings}
    ratings = doc.get("ratings")
    rated = [ratings.get(key, {}) for key in schema.fields.outputs] if ratings else []
    return {
        "annotator": entry.annotator,
        "page": entry.page,
        "comment": doc.get("comment", ""),
        "marks": [_mark(schema, error) for error in doc.get("errors", ())],
        "missing": [_missing(schema, row, info) for info in doc.get("missing-info", ())],
        "correction": doc.get("corrected-prediction", ""),
        "preferences": _preferences(schema, doc.get("preference", ())),
        "all_bad": bool(doc.get("all-bad")),
        "ratings": [
            [{"label": scales.get(name, name), "value": value} for name, value in of.items()]
            for of in rated
        ],
    }


def _preferences(schema: Schema, values: Sequence[int]) -> list[dict[str, int]]:
    """For each pair of outputs their numbers, from 1, and the better one: 1, 2, or 0 for a tie."""
    pairs = zip(schema.pairs, values)
    return [{"first": a + 1, "second": b + 1, "better": value} for (a, b), value in pairs]


def _missing(schema: Schema, row: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
    """A piece of missing information: its kind, and the sentences of a source that have it."""
    sentences = []
    if schema.fields.context is not None:
        keys = schema.fields.context.sentence_keys
        source = schema.sources(row)[info[keys.id] - 1]
        sentences = [source[number] for number in info[keys.sentences]]
    return {"label": _label(schema, info["error type"]), "sentences": sentences}


def _label(schema: Schema, name: str) -> str:
    """The label of a kind; its name if the schema has changed since."""
    kinds = {kind.name: kind.label for kind in (*schema.errors, *schema.missing)}
    return kinds.get(name, name)


def _mark(schema: Schema, error: Mapping[str, Any]) -> dict[str, Any]:
    side = side_of(error)
    kind = next((kind for kind in schema.errors if kind.name == error["error type"]), None)
    return {
        "side": side if side == SOURCE else _output_name(error.get("output", 0)),
        "start": error["start"],
        "end": error["end"],
        "label": kind.label if kind else error["error type"],
        "letter": kind.letter if kind else "?",
        "color": kind.color if kind else "#767682",
        "severity": error.get("severity", ""),
        "evidence": error["explanation"],
        "reason": error.get("reason", ""),
    }

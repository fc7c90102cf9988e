"""The rules of annotations and comparisons. templates/rules.js has the same rules for the browser.

An annotation is a document `{errors, missing-info, corrected-prediction, no-error}`, with the keys
of the published interface:
  errors               [{error type, explanation, start, end}], with the `quote` of the marked text
                       if the browser sent it
  missing-info         [{error type, number of the source, numbers of its sentences}]
  corrected-prediction the corrected text; "" if the task requires none
  no-error             whether the annotator confirmed that nothing is wrong
  comment              the annotator's comment, if there is one and the schema has `comment`
  flag                 whether the annotator wants the lead of the study to look at the item; false
                       if missing
  decisions            of an adjudicator: see differences.py
An error of a kind that is marked in the source has `"side": "source"`, and its offsets are those of
the source; other errors have no `side`. An error has a `severity` if the schema has `severities`
and one was chosen. `errors` also has the spans that the annotator likes, of the positive kinds of
the schema. They are no errors: they have no severity, and `no-error` and the correction ignore
them. A mark has a `reason`, the annotator's words, if its kind asks for one and it was given. If
the schema has `mark_outputs`, a mark in another output than the first has `output`, its index.
A comparison is `{preference, order}`: for each pair of `Schema.pairs` 1 (the first is better), 2
(the second) or 0 (equal), and the order in which the outputs were shown. It may have
  comment, flag        as in an annotation
  all-bad              whether the annotator finds none of the outputs acceptable
  seen                 for each output {seconds, share}: how long it was in view, and how much of
                       its height, from the top
Offsets count code points. suggestions.py has the keys of items with suggestions, and their
rules.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fgrlhf.base.records import (
    AnyText,
    Complaint,
    Text,
    is_whole,
    key_problems,
    not_a,
    one_of,
    shown,
    unknown_key_problems,
)
from fgrlhf.data.judgements import JOINED, RESPONSE, SOURCE
from fgrlhf.data.places import SentenceKeys, overlap_problems, sentence_problems, span_problems
from fgrlhf.segmentation import sentences
from interface_html.schema import OUTPUT, Schema, Side

# the keys of an annotation, and of a comparison
DOCUMENT = {"no-error": bool, "errors": list, "missing-info": list, "corrected-prediction": AnyText}
COMPARISON = {"preference": list, "order": list}
MOST_SEEN = {"seconds": 10**7, "share": 1}  # the keys of what was seen of an output
LONGEST_REASON = 1000  # code points; templates/rules.js has the same
ERROR_KEYS = ("error type", "explanation", "start", "end")
Document = Mapping[str, Any]  # what a page submits


def side_of(error: Mapping[str, Any]) -> str:
    """The text in which an error is marked: `source`, `response` (the first output) or `output 1`.

    The index of an output must be valid.
    """
    if error.get("side") == SOURCE:
        return SOURCE
    return output_side(error.get("output", 0))


def output_side(index: int) -> str:
    """The side of the marks in an output."""
    return f"{OUTPUT}{index}" if index else RESPONSE


def errors_only(schema: Schema, doc: Mapping[str, Any]) -> dict[str, Any]:
    """The annotation without the spans that are liked."""
    liked = schema.liked_kinds
    errors = [error for error in doc["errors"] if error["error type"] not in liked]
    return {**doc, "errors": errors}


def count_errors(schema: Schema, doc: Mapping[str, Any]) -> int:
    """The number of errors and missing items. `doc` may have marks of any form."""
    liked = schema.liked_kinds
    count = len(doc["missing-info"])
    for error in doc["errors"]:
        is_liked = isinstance(error, dict) and error.get("error type") in liked
        count += not is_liked
    return count


def character_labels(text: str, doc: Mapping[str, Any], side: str = RESPONSE) -> list[str | None]:
    """The error type of each character of the `text` of a side; None for unmarked characters.

    Of several types, it is that of the shortest mark, as on the page, whatever the order in which
    they were marked. The types of equally short marks are one combined type, so that no figure
    depends on their names. All marks count: see `errors_only`.
    """
    kinds: list[set[str]] = [set() for _ in text]
    lengths = [len(text) + 1] * len(text)  # of the shortest mark of each character
    for error in doc["errors"]:
        if side_of(error) != side:
            continue
        length = error["end"] - error["start"]
        for place in range(error["start"], min(error["end"], len(text))):
            if length < lengths[place]:
                lengths[place], kinds[place] = length, set()
            if length == lengths[place]:
                kinds[place].add(error["error type"])
    return [JOINED.join(sorted(names)) or None for names in kinds]


def text_labels(schema: Schema, row: Mapping[str, Any], doc: Mapping[str, Any]) -> list[str | None]:
    """As `character_labels`, of all texts in which errors are marked, one after the other."""
    sides = [output_side(index) for index in range(len(schema.marked_outputs))]
    if schema.marks_source:
        sides.append(SOURCE)
    labels = []
    for side in sides:
        labels += character_labels(schema.text_of(row, side), doc, side)
    return labels


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


def annotation_problems(schema: Schema, row: Mapping[str, Any], doc: Any) -> list[Complaint]:
    """All rules that the annotation `doc` of the item `row` breaks; [] if it can be accepted."""
    if not isinstance(doc, dict):
        return [("feedback", not_a(dict, doc))]
    keys = (*DOCUMENT, "suggestions", "decisions", *note_keys(schema))
    complaints = list(unknown_key_problems(doc, "feedback.", keys))
    complaints += key_problems(doc, "feedback.", DOCUMENT)
    if complaints:
        return complaints
    complaints += note_problems(schema, doc, "feedback.")
    complaints += _errors(schema, row, doc["errors"])
    complaints += _missing(schema, row, doc["missing-info"])
    return [*complaints, *_document(schema, row[schema.text], doc)]


def _errors(schema: Schema, row: Mapping[str, Any], errors: list) -> Iterator[Complaint]:
    names = tuple(kind.name for kind in schema.errors)
    optional = (
        *(["severity"] if schema.severities else []),
        *(["side"] if schema.marks_source else []),
        *(["reason"] if schema.asks_reasons else []),
        *(["output"] if schema.mark_outputs else []),
    )
    keys = (*ERROR_KEYS, "quote", "origin", *optional)
    spans: dict[str, list[tuple[int, int, int]]] = {}
    for i, error in enumerate(errors):
        field = f"feedback.errors[{i}]"
        if not isinstance(error, dict):
            yield field, not_a(dict, error)
            continue
        yield from unknown_key_problems(error, f"{field}.", keys)
        complaints = _kind_and_place(error, field, names)
        yield from complaints
        if complaints:
            continue  # the rest needs a kind and two numbers
        yield from _severity(schema, error, field)
        yield from _reason(schema, error, field)
        side, complaints = _text_of_mark(schema, error, field)
        yield from complaints
        if side is None:
            continue  # its characters are those of no text
        complaints = list(_span(schema, error, row, side, field))
        yield from complaints
        if not any("out of range" in reason for _, reason in complaints):
            spans.setdefault(side, []).append((error["start"], error["end"], i))
            yield from _evidence(schema, error, row, side, f"{field}.explanation")
    for spans_of_side in spans.values():
        if schema.overlap:
            yield from _repeated_marks(errors, spans_of_side)
        else:
            yield from overlap_problems(spans_of_side, "feedback.errors", "errors")


def _kind_and_place(error: Mapping[str, Any], field: str, names: Sequence[str]) -> list[Complaint]:
    """Complaints about the kind, the explanation and the two numbers of an error."""
    kinds = {"error type": one_of(names), "explanation": AnyText, "start": int, "end": int}
    return key_problems(error, f"{field}.", kinds)


def _text_of_mark(
    schema: Schema, error: Mapping[str, Any], field: str
) -> tuple[str | None, list[Complaint]]:
    """The text that the characters of a mark are counted in; None if its keys name none.

    The second value has the complaints about these keys.
    """
    kind_side = schema.error_type(error["error type"]).side
    wrong_side = list(_side(schema, error, kind_side, field))
    wrong_output = list(_output(schema, error, kind_side, field))
    complaints = [*wrong_side, *wrong_output]
    is_in_source = error.get("side") == SOURCE
    is_output_unknown = "output" in error and not schema.mark_outputs
    if wrong_output or is_output_unknown or is_in_source != (kind_side == SOURCE):
        return None, complaints
    return side_of(error), complaints


def _side(schema: Schema, error: Mapping[str, Any], side: Side, field: str) -> Iterator[Complaint]:
    """An error has `"side": "source"` exactly if its kind is marked in the source: on `side`."""
    if not schema.marks_source:
        return
    if "side" in error and error["side"] != SOURCE:
        yield f"{field}.side", f"{shown(error['side'])} must be {SOURCE}"
    elif (error.get("side") == SOURCE) != (side == SOURCE):
        yield f"{field}.side", f"{error['error type']} is marked in the {side}"


def _output(
    schema: Schema, error: Mapping[str, Any], side: Side, field: str
) -> Iterator[Complaint]:
    """`output` is the index of another output than the first. `side` is that of the kind."""
    if not schema.mark_outputs or "output" not in error:
        return
    if side == SOURCE:
        yield f"{field}.output", f"must be left out: {error['error type']} is marked in the {side}"
    else:
        yield from output_problems(schema, error["output"], field)


def output_problems(schema: Schema, value: Any, field: str) -> Iterator[Complaint]:
    """The `output` of a mark or a suggestion must be the index of another output than the first."""
    last = len(schema.fields.outputs) - 1
    if not is_whole(value) or not 1 <= value <= last:
        reason = f"{shown(value)} must be 1 to {last}, and left out for the first output"
        yield f"{field}.output", reason


def _repeated_marks(errors: list, spans: list[tuple[int, int, int]]) -> Iterator[Complaint]:
    """Errors with the span and the kind of an earlier one. `spans`: (start, end, index)."""
    first_index: dict[tuple, int] = {}
    for start, end, i in spans:
        content = (start, end, errors[i]["error type"])
        if content in first_index:
            reason = f"has the span and the kind of errors[{first_index[content]}]"
            yield f"feedback.errors[{i}]", reason
        first_index.setdefault(content, i)


def _severity(schema: Schema, error: Mapping[str, Any], field: str) -> Iterator[Complaint]:
    if not schema.severities:
        return
    names = tuple(severity.name for severity in schema.severities)
    kind = error["error type"]
    if kind in schema.liked_kinds:
        if "severity" in error:
            yield f"{field}.severity", f"must be left out: {kind} is no error"
    elif "severity" in error:
        yield from key_problems(error, f"{field}.", {"severity": one_of(names)})
    elif schema.severity_required:
        yield f"{field}.severity", f"is missing: choose {' or '.join(names)}"


def _reason(schema: Schema, error: Mapping[str, Any], field: str) -> Iterator[Complaint]:
    asked = schema.error_type(error["error type"]).reason
    if "reason" not in error:
        if asked == "required":
            yield f"{field}.reason", "is missing: say why"
        return
    if asked == "none":
        if schema.asks_reasons:  # otherwise it is an unknown key
            yield f"{field}.reason", f"must be left out: {error['error type']} asks for none"
        return
    wrong = key_problems(error, f"{field}.", {"reason": Text})
    yield from wrong
    if not wrong and len(error["reason"]) > LONGEST_REASON:
        yield f"{field}.reason", f"is too long: at most {LONGEST_REASON} characters"


def comment_keys(schema: Schema) -> tuple[str, ...]:
    """The key of a document's comment, if the task has comments."""
    return ("comment",) if schema.comment == "optional" else ()


def note_keys(schema: Schema) -> tuple[str, ...]:
    """The keys of what annotators can note beside a judgement."""
    return (*comment_keys(schema), "flag")


def note_problems(schema: Schema, doc: Mapping[str, Any], prefix: str) -> Iterator[Complaint]:
    """A comment must hold a text, and a flag be a boolean."""
    if "comment" in doc and schema.comment == "optional":
        yield from key_problems(doc, prefix, {"comment": Text})
    if "flag" in doc:
        yield from key_problems(doc, prefix, {"flag": bool})


def _span(
    schema: Schema, error: Mapping[str, Any], row: Mapping[str, Any], side: str, field: str
) -> Iterator[Complaint]:
    """Spans must be whole words or sentences, and have the text that the annotator saw."""
    start, end = error["start"], error["end"]
    text = schema.text_of(row, side)
    name = schema.side_key(side)
    wrong = list(span_problems(start, end, text, field, name))
    yield from wrong
    if wrong:
        return
    if schema.unit == "sentence":
        bounds = sentences(text)
        if start not in {first for first, _ in bounds}:
            yield f"{field}.start", f"{start} is not the start of a sentence"
        if end not in {last for _, last in bounds}:
            yield f"{field}.end", f"{end} is not the end of a sentence"
    marked = text[start:end]
    if error.get("quote", marked) != marked:
        yield f"{field}.quote", f"differs from the text at [{start}, {end}): {marked[:60]!r}"


def _evidence(
    schema: Schema, error: Mapping[str, Any], row: Mapping[str, Any], side: str, field: str
) -> Iterator[Complaint]:
    needs = schema.error_type(error["error type"]).needs
    explanation = error["explanation"]
    if needs == "nothing" and explanation:
        yield field, f"must be empty: {error['error type']} needs no evidence"
    elif needs == "earlier text":
        text = schema.text_of(row, side)
        yield from _earlier_text(explanation, text[: error["start"]], field)
    elif needs == "sentences" and schema.fields.context:
        keys = schema.fields.context.sentence_keys
        yield from _sentence_evidence(explanation, schema.sources(row), keys, field)


def _earlier_text(explanation: str, before: str, field: str) -> Iterator[Complaint]:
    if not explanation.strip():
        yield field, "is empty: it must be the earlier text that is repeated"
    elif explanation.strip() not in before:
        yield field, "is not in the text before the span: it must be the earlier text"


def _sentence_evidence(
    explanation: str, sources: Sequence[Any], keys: SentenceKeys, field: str
) -> Iterator[Complaint]:
    ids = parse_evidence(explanation, keys)
    if ids is None:
        yield field, f"must be the contradicted sentences: {evidence_text(keys, 1, [2])}"
        return
    wrong = list(_sentence_ids(ids, field, sources, keys))
    yield from wrong
    if wrong:
        return
    canonical = evidence_text(keys, ids[keys.id], ids[keys.sentences])
    if explanation != canonical:
        yield field, f"must be written {canonical}"


def parse_evidence(explanation: str, keys: SentenceKeys) -> dict[str, Any] | None:
    """The sentences that an explanation refers to; None if it is free text."""
    if not explanation.startswith("{"):
        return None
    try:
        ids = json.loads(explanation, parse_constant=int)
    except (ValueError, RecursionError):
        return None
    return ids if set(ids) == {keys.id, keys.sentences} else None


def evidence_text(keys: SentenceKeys, source: int, sentence_ids: Sequence[int]) -> str:
    """The explanation that refers to sentences: the compact JSON of the published files."""
    ids = {keys.id: source, keys.sentences: list(sentence_ids)}
    return json.dumps(ids, separators=(",", ":"))


def _sentence_ids(
    owner: Mapping[str, Any], field: str, sources: Sequence[Any], keys: SentenceKeys
) -> Iterator[Complaint]:
    """The sentences must exist and be different, and there must be at least one."""
    wrong = list(sentence_problems(owner, field, sources, keys))
    yield from wrong
    if wrong:
        return
    ids = owner[keys.sentences]
    if not ids:
        yield f"{field}.{keys.sentences}", "is empty: name at least one sentence"
    elif len(set(ids)) < len(ids):
        yield f"{field}.{keys.sentences}", "names a sentence twice"


def _missing(schema: Schema, row: Mapping[str, Any], missing: list) -> Iterator[Complaint]:
    if schema.fields.context is None:
        if missing:
            yield "feedback.missing-info", "must be empty: this task has no missing information"
        return
    keys = schema.fields.context.sentence_keys
    names = tuple(kind.name for kind in schema.missing)
    first_index: dict[tuple, int] = {}
    for i, info in enumerate(missing):
        field = f"feedback.missing-info[{i}]"
        if not isinstance(info, dict):
            yield field, not_a(dict, info)
            continue
        yield from unknown_key_problems(info, f"{field}.", ("error type", keys.id, keys.sentences))
        wrong = key_problems(info, f"{field}.", {"error type": one_of(names)})
        wrong += _sentence_ids(info, field, schema.sources(row), keys)
        yield from wrong
        if wrong:
            continue
        content = (info["error type"], info[keys.id], tuple(sorted(info[keys.sentences])))
        if content in first_index:
            yield field, f"repeats missing-info[{first_index[content]}]"
        first_index.setdefault(content, i)


def _document(schema: Schema, text: str, doc: Mapping[str, Any]) -> Iterator[Complaint]:
    """`no-error` must be set exactly if no error is marked and the correction is the text."""
    count = count_errors(schema, doc)
    corrected = doc["corrected-prediction"]
    is_changed = schema.correction and corrected != text
    if not schema.correction and corrected not in ("", text):
        yield "feedback.corrected-prediction", "must be empty: this task has no correction"
    if doc["no-error"] and count:
        yield "feedback.no-error", f"is ticked, but {count_marks(count)} marked"
    if doc["no-error"] and is_changed:
        yield "feedback.corrected-prediction", "differs from the text although no error is marked"
    if not doc["no-error"] and not count:
        yield "feedback.no-error", "is not ticked and no error is marked: mark an error, or tick it"
    if not doc["no-error"] and count and schema.correction and not is_changed:
        yield "feedback.corrected-prediction", "is the unchanged text: correct what is marked"


def count_marks(count: int) -> str:
    """The count with its verb: `1 error or missing item is`, `2 errors or missing items are`."""
    if count == 1:
        return "1 error or missing item is"
    return f"{count} errors or missing items are"


# ---- comparisons ---------------------------------------------------------------------------------


def comparison_problems(schema: Schema, doc: Any) -> list[Complaint]:
    """All rules that a comparison of the outputs breaks; [] if it can be accepted."""
    if not isinstance(doc, dict):
        return [("comparison", not_a(dict, doc))]
    keys = ("preference", "order", "all-bad", "seen", *note_keys(schema))
    complaints = list(unknown_key_problems(doc, "", keys))
    complaints += note_problems(schema, doc, "")
    complaints += reading_problems(schema, doc)
    complaints += key_problems(doc, "", COMPARISON)
    if complaints:
        return complaints
    count = len(schema.fields.outputs)
    order = doc["order"]
    if not all(map(is_whole, order)) or sorted(order) != list(range(count)):
        reason = f"must hold each of 0..{count - 1} once: the outputs in the order shown"
        complaints.append(("order", reason))
    return complaints + preference_problems(schema, doc["preference"])


def reading_problems(schema: Schema, doc: Mapping[str, Any]) -> Iterator[Complaint]:
    """The judgement beside the preference, and what the annotator saw; both may be missing."""
    if "all-bad" in doc:
        yield from key_problems(doc, "", {"all-bad": bool})
    if "seen" not in doc:
        return
    count = len(schema.fields.outputs)
    seen = doc["seen"]
    if not isinstance(seen, list) or len(seen) != count:
        yield "seen", f"must be a list of {count}: one for each output"
        return
    for i, entry in enumerate(seen):
        if not isinstance(entry, dict) or set(entry) != set(MOST_SEEN):
            yield f"seen[{i}]", f"must be an object with {' and '.join(MOST_SEEN)}"
            continue
        for key, most in MOST_SEEN.items():
            value = entry[key]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= most:
                yield f"seen[{i}].{key}", f"is no number from 0 to {most}"


def preference_problems(schema: Schema, preference: list) -> list[Complaint]:
    """Preferences must have a value for every pair and no cycle."""
    pairs = schema.pairs
    if len(preference) != len(pairs):
        reason = f"has {len(preference)} entries, must have {len(pairs)}: all pairs"
        return [("preference", reason)]
    complaints: list[Complaint] = []
    for i, value in enumerate(preference):
        if not is_whole(value) or value not in (0, 1, 2):
            values = "0 (tie), 1 (first better), 2 (second better)"
            complaints.append((f"preference[{i}]", f"{shown(value)} is none of {values}"))
    if complaints:
        return complaints
    cycle = find_cycle(len(schema.fields.outputs), pairs, preference)
    if cycle is None:
        return []
    chain = " > ".join(str(i + 1) for i in [*cycle, cycle[0]])
    return [("preference", f"goes in a circle: outputs {chain}")]


def find_cycle(
    count: int, pairs: Sequence[tuple[int, int]], preference: Sequence[int]
) -> list[int] | None:
    """A cycle of outputs, each better than the next and the last better than the first.

    Args:
      count: number of outputs.
      pairs: the compared outputs, as indices.
      preference: for each pair 1, 2 or 0.

    Returns:
      Indices of the outputs, or None if there is no cycle.
    """
    better = _better(pairs, preference)
    for start in range(count):
        paths = [[start]]  # breadth first: the shortest cycle through `start`
        while paths:
            path = paths.pop(0)
            for following in range(count):
                if (path[-1], following) not in better:
                    continue
                if following == start:
                    return path
                if following not in path:
                    paths.append([*path, following])
    return None


def pairs_in_circles(
    count: int, pairs: Sequence[tuple[int, int]], preference: Sequence[int]
) -> list[int]:
    """The indices of the pairs that are part of a cycle: see `find_cycle`."""
    better = _better(pairs, preference)
    chained = set(better)  # also over other outputs between them (Warshall's algorithm)
    for middle in range(count):
        for first in range(count):
            for last in range(count):
                if (first, middle) in chained and (middle, last) in chained:
                    chained.add((first, last))
    indices = []
    for index, (first, second) in enumerate(pairs):
        is_decided = (first, second) in better or (second, first) in better
        if is_decided and (first, second) in chained and (second, first) in chained:
            indices.append(index)
    return indices


def _better(pairs: Sequence[tuple[int, int]], preference: Sequence[int]) -> set[tuple[int, int]]:
    """(better, worse) of each pair that is no tie."""
    better = set()
    for (first, second), value in zip(pairs, preference):
        if value == 1:
            better.add((first, second))
        elif value == 2:
            better.add((second, first))
    return better


def is_weak_order(count: int, pairs: Sequence[tuple[int, int]], preference: Sequence[int]) -> bool:
    """Whether the preferences form a ranking with ties: "at least as good" is transitive."""
    better = _better(pairs, preference)

    def at_least_as_good(i: int, j: int) -> bool:
        return (j, i) not in better

    for i in range(count):
        for j in range(count):
            for k in range(count):
                chained = at_least_as_good(i, j) and at_least_as_good(j, k)
                if chained and not at_least_as_good(i, k):
                    return False
    return True

"""What an annotation must keep: every mistake as field and reason. templates/rules.js is the same
in the browser.

An annotation is `{errors, missing-info, corrected-prediction, no-error}`, the first three as in a
feedback file; an error may have the `quote` it was made on. Offsets are code points. A comparison
is `{preference, order}`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from interface_html.schema import Schema
from tasks.qa_feedback.validation import (
    Complaint,
    id_problems,
    is_int,
    key_problems,
    not_a,
    overlap_problems,
    span_problems,
    text_problems,
    type_problems,
)

CLOSERS = "\"')]}’”»"


def sentences(text: str) -> list[tuple[int, int]]:
    """Sentences as [start, end): one ends after `.`, `!` or `?`, with closing quotes, before white
    space.
    """
    found, start, i = [], None, 0
    while i < len(text):
        if start is None and not text[i].isspace():
            start = i
        if start is not None and text[i] in ".!?…。":
            while i + 1 < len(text) and (text[i + 1] in CLOSERS or text[i + 1] in ".!?…。"):
                i += 1
            if i + 1 == len(text) or text[i + 1].isspace():
                found.append((start, i + 1))
                start = None
        i += 1
    if start is not None:
        found.append((start, len(text.rstrip())))
    return found


def annotation_problems(schema: Schema, row: Mapping[str, Any], doc: Any) -> list[Complaint]:
    """Everything that keeps `doc` from being accepted as feedback on `row`; [] if nothing does."""
    if not isinstance(doc, dict):
        return [("feedback", not_a(dict, doc))]
    known = {"errors", "missing-info", "corrected-prediction", "no-error"}
    complaints = [(f"feedback.{key}", "is not known") for key in doc if key not in known]
    complaints += key_problems(doc, "feedback.", "no-error", bool)
    for key in ("errors", "missing-info"):
        complaints += key_problems(doc, "feedback.", key, list)
    complaints += text_problems(doc, "feedback.", "corrected-prediction")
    if complaints:
        return complaints
    passages = schema.passages(row)
    text = row[schema.fields.text]
    complaints += _errors(schema, doc["errors"], text, passages)
    complaints += _missing(schema, doc["missing-info"], passages)
    return [*complaints, *_whole(schema, doc, text)]


def _errors(schema: Schema, errors: list, text: str, passages: list | None) -> Iterator[Complaint]:
    placed = []
    for i, error in enumerate(errors):
        field = f"feedback.errors[{i}]"
        if not isinstance(error, dict):
            yield field, not_a(dict, error)
            continue
        for key in error:
            if key not in ("error type", "explanation", "start", "end", "quote"):
                yield f"{field}.{key}", "is not known"
        wrong = list(type_problems(error, field, tuple(kind.name for kind in schema.errors)))
        wrong += text_problems(error, f"{field}.", "explanation")
        wrong += key_problems(error, f"{field}.", "start", int) + key_problems(
            error, f"{field}.", "end", int
        )
        yield from wrong
        if wrong:
            continue
        wrong = list(_stretch(schema, error, text, field))
        yield from wrong
        if not any("out of range" in reason for _, reason in wrong):
            placed.append((error["start"], error["end"], i))
            yield from _evidence(schema, error, text, passages, field)
    yield from overlap_problems(placed)


def _stretch(
    schema: Schema, error: Mapping[str, Any], text: str, field: str
) -> Iterator[Complaint]:
    """Whole words, or whole sentences; and the words the annotator saw."""
    start, end = error["start"], error["end"]
    wrong = list(span_problems(start, end, text, field, schema.fields.text))
    yield from wrong
    if wrong:
        return
    if schema.unit == "sentence":
        bounds = sentences(text)
        if start not in {a for a, _ in bounds}:
            yield f"{field}.start", f"{start} is not where a sentence starts"
        if end not in {b for _, b in bounds}:
            yield f"{field}.end", f"{end} is not where a sentence ends"
    if error.get("quote", text[start:end]) != text[start:end]:
        yield (
            f"{field}.quote",
            f"differs from the text at [{start}, {end}): {text[start:end][:60]!r}",
        )


def _evidence(
    schema: Schema, error: Mapping[str, Any], text: str, passages: list | None, field: str
) -> Iterator[Complaint]:
    needs, explanation = schema.error_type(error["error type"]).needs, error["explanation"]
    field = f"{field}.explanation"
    if needs == "nothing" and explanation:
        yield field, f"must be empty: {error['error type']} points to nothing"
    elif needs == "earlier text":
        if not explanation.strip():
            yield field, "is empty: it must be the earlier text that is repeated"
        elif explanation.strip() not in text[: error["start"]]:
            yield (
                field,
                (
                    "does not stand before the marked text: it must be the earlier text that is"
                    " repeated"
                ),
            )
    elif needs == "sentences":
        try:
            ids = json.loads(explanation, parse_constant=int) if explanation[:1] == "{" else None
        except (ValueError, RecursionError):
            ids = None
        if not isinstance(ids, dict) or sorted(ids) != ["passage_id", "sentence_id"]:
            yield field, 'must be the contradicted sentences: {"passage_id":1,"sentence_id":[2]}'
            return
        wrong = list(_sentence_ids(ids, field, passages))
        yield from wrong
        if not wrong and explanation != evidence_text(ids["passage_id"], ids["sentence_id"]):
            yield field, f"must be written {evidence_text(ids['passage_id'], ids['sentence_id'])}"


def evidence_text(passage_id: int, sentence_ids: Sequence[int]) -> str:
    """Sentences as an explanation: the compact JSON of the published files."""
    return json.dumps(
        {"passage_id": passage_id, "sentence_id": list(sentence_ids)}, separators=(",", ":")
    )


def _sentence_ids(
    owner: Mapping[str, Any], field: str, passages: list | None
) -> Iterator[Complaint]:
    wrong = list(id_problems(owner, field, passages))
    yield from wrong
    if wrong:
        return
    ids = owner["sentence_id"]
    if not ids:
        yield f"{field}.sentence_id", "is empty: name at least one sentence"
    elif len(set(ids)) < len(ids):
        yield f"{field}.sentence_id", "names a sentence twice"


def _missing(schema: Schema, missing: list, passages: list | None) -> Iterator[Complaint]:
    seen = {}
    for i, info in enumerate(missing):
        field = f"feedback.missing-info[{i}]"
        if not isinstance(info, dict):
            yield field, not_a(dict, info)
            continue
        for key in info:
            if key not in ("error type", "passage_id", "sentence_id"):
                yield f"{field}.{key}", "is not known"
        wrong = list(type_problems(info, field, tuple(kind.name for kind in schema.missing)))
        wrong += _sentence_ids(info, field, passages)
        yield from wrong
        if wrong:
            continue
        same = (info["error type"], info["passage_id"], tuple(sorted(info["sentence_id"])))
        if same in seen:
            yield field, f"says the same as missing-info[{seen[same]}]"
        seen.setdefault(same, i)


def _whole(schema: Schema, doc: Mapping[str, Any], text: str) -> Iterator[Complaint]:
    """ "No error" exactly where nothing is marked and the correction is the text itself."""
    marked = len(doc["errors"]) + len(doc["missing-info"])
    changed = schema.correction and doc["corrected-prediction"] != text
    if not schema.correction and doc["corrected-prediction"] not in ("", text):
        yield "feedback.corrected-prediction", "must be empty: this task has no correction"
    if doc["no-error"] and marked:
        yield (
            "feedback.no-error",
            f"is ticked, yet {marked} error{'s' * (marked > 1)} or missing items are marked",
        )
    if doc["no-error"] and changed:
        yield "feedback.corrected-prediction", "differs from the text although no error is marked"
    if not doc["no-error"] and not marked:
        yield (
            "feedback.no-error",
            "is not ticked and nothing is marked: mark what is wrong, or tick it",
        )
    if not doc["no-error"] and marked and schema.correction and not changed:
        yield "feedback.corrected-prediction", "is the text itself: mend what is marked"


# ---- comparisons ---------------------------------------------------------------------------------


def comparison_problems(schema: Schema, doc: Any) -> list[Complaint]:
    """Everything that keeps `doc` from being accepted as a comparison of the answers; [] if nothing
    does.
    """
    if not isinstance(doc, dict):
        return [("comparison", not_a(dict, doc))]
    complaints = [(key, "is not known") for key in doc if key not in ("preference", "order")]
    complaints += key_problems(doc, "", "preference", list) + key_problems(doc, "", "order", list)
    if complaints:
        return complaints
    pairs, count = schema.pairs, len(schema.fields.answers)
    if not all(map(is_int, doc["order"])) or sorted(doc["order"]) != list(range(count)):
        complaints.append(
            ("order", f"must hold each of 0..{count - 1} once: the answers as they were shown")
        )
    preference = doc["preference"]
    if len(preference) != len(pairs):
        complaints.append(
            ("preference", f"has {len(preference)} entries, must have {len(pairs)}: all pairs")
        )
        return complaints
    wrong = [i for i, value in enumerate(preference) if not is_int(value) or value not in (0, 1, 2)]
    complaints += [
        (
            f"preference[{i}]",
            f"{preference[i]!r} is none of 0 (tie), 1 (first better), 2 (second better)",
        )
        for i in wrong
    ]
    cycle = None if wrong else find_cycle(count, pairs, preference)
    if cycle:
        chain = " > ".join(str(i + 1) for i in [*cycle, cycle[0]])
        complaints.append(("preference", f"goes in a circle: answers {chain}"))
    return complaints


def find_cycle(
    count: int, pairs: Sequence[tuple[int, int]], preference: Sequence[int]
) -> list[int] | None:
    """Answers each of which is better than the next, and the last than the first: the shortest one,
    or None.
    """
    better = {
        (pair if value == 1 else pair[::-1])
        for pair, value in zip(pairs, preference)
        if value in (1, 2)
    }
    for start in range(count):
        paths = [[start]]
        while paths:
            path = paths.pop(0)
            for to in range(count):
                if (path[-1], to) in better:
                    if to == start:
                        return path
                    if to not in path:
                        paths.append([*path, to])
    return None


def is_weak_order(count: int, pairs: Sequence[tuple[int, int]], preference: Sequence[int]) -> bool:
    """Whether the preferences are those of some ranking with ties: "at least as good" is
    transitive.
    """
    worse = set()
    for (i, j), value in zip(pairs, preference):
        worse |= {(j, i)} if value == 1 else {(i, j)} if value == 2 else set()
    as_good = {(i, j) for i in range(count) for j in range(count) if (i, j) not in worse}
    return all((i, k) in as_good for i, j in as_good for k in range(count) if (j, k) in as_good)

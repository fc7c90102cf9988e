"""Invented judgements that go to annotation tools and come back, and what each tool can hold.

`fixtures/annotation_tools/real` has the files that the tools wrote of them.
"""

from dataclasses import replace
from pathlib import Path

from fgrlhf.data.formats import JUDGEMENTS
from fgrlhf.data.judgements import JudgedResponse, Judgement
from fgrlhf.text_types import Prompt

REAL = Path(__file__).parent / "fixtures" / "annotation_tools" / "real"
PROJECT_FILE = REAL / "project.xml"
TEXT = "Seven is even 🙂 odd 🙂🙂 here now."
ARGILLA_USERS = ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002")


def judged(first: str, second: str) -> list[JudgedResponse]:
    """Two responses: overlapping marks behind emoji by two annotators, and a clean answer."""
    marked = (
        Judgement("err", "wrong", 23, 27, "minor", 4.0, annotator=first, reason="No."),
        Judgement("err", "odd", 20, 32, annotator=first),
        Judgement("left", "omitted", 3, 4, side="source", annotator=first),
        Judgement("quality", score=4.0, annotator=first),
        Judgement("share", score=62.5, annotator=first),
        Judgement("tone", "rude", annotator=first),
        Judgement("tone", "odd", annotator=first),
        Judgement("fix", "comment", annotator=first, reason="Seven is odd.\nIt is here."),
        Judgement("err", "odd", 33, 34, annotator=second),
    )
    clean = (Judgement("err", "no error", annotator=second),)
    return [
        JudgedResponse(Prompt("x1", "Count."), TEXT + " 🙂", marked, "1 🙂 7"),
        JudgedResponse(Prompt("x2", "", meta={"topic": "numbers"}), "Fine.", clean, "Fein."),
    ]


def held_by_argilla() -> list[JudgedResponse]:
    """Without severities, reasons, corrections and scores of marks."""
    items = []
    for item in judged(*ARGILLA_USERS):
        held = [replace(j, severity=None, reason=None) for j in item.judgements]
        held = [replace(j, score=None) if j.label else j for j in held if j.aspect != "fix"]
        items.append(replace(item, judgements=tuple(held)))
    return items


def held_by_doccano() -> list[JudgedResponse]:
    """Labelled marks of the response, and the clean answer."""
    items = []
    for item in judged("admin", "admin"):
        marks = [j for j in item.judgements if j.span and j.side == "response"]
        held = [Judgement("label", j.label, j.start, j.end, annotator="admin") for j in marks]
        clean = Judgement("label", "no error", annotator="admin")
        items.append(replace(item, judgements=tuple(held) or (clean,)))
    return items


def potato_items() -> list[dict]:
    """The rows as potato's items, which people then judge."""
    rows = [JUDGEMENTS.to_row(item) for item in judged("ann", "bob")]
    return [{key: value for key, value in row.items() if key != "judgements"} for row in rows]


FROM_POTATO = [
    replace(item, judgements=judgements)
    for item, judgements in zip(
        judged("ann", "bob"),
        [
            (
                Judgement("err", "wrong", 23, 27, annotator="ann"),
                Judgement("err", "odd", 20, 32, annotator="ann"),
                Judgement("tone", "rude", annotator="ann"),
                Judgement("fix", "comment", annotator="ann", reason="Seven is odd.\nIt is."),
                Judgement("tone", "kind", annotator="bob"),
                Judgement("err", "no error", annotator="bob"),
            ),
            (
                Judgement("tone", "kind", annotator="ann"),
                Judgement("err", "no error", annotator="ann"),
            ),
        ],
        strict=True,
    )
]


def judgements_of(items: list[JudgedResponse]) -> list[set[Judgement]]:
    """The judgements of each item, without their order."""
    return [set(item.judgements) for item in items]

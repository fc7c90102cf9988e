"""Pages with everything on them, in every state: accessible, as wide as the window, translated.

Each walk is made twice: in a made-up language from right to left, dark and in a narrow window, and
in English, light and in a wide one. axe looks at the states that have a new layout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from interface_texts import english_in, known_texts, pseudo_language
from made_tasks import (
    OMISSION,
    REPEATS,
    ROW,
    THREE_SUGGESTED,
    WRONG,
    full_task,
    page_with,
    task_with,
)
from page_helpers import TEXT, opened, press, violations, word
from rating_tasks import OUTPUTS, rating_task
from rating_tasks import row as rated_row
from test_rules import doc, error, missing

from interface_html.languages import ENGLISH
from interface_html.schema import PageName

LONG_WORD = "https://" + "long" * 40
PASSAGES = [["Cat", LONG_WORD, "It was blue."], ["Mat", "Flat."]]
TURNS = [{"role": "user", "content": "Hi. " * 500}, {"role": "assistant", "content": "Yes?"}]
NEW, SAME = True, False  # whether a state has a new layout


@dataclass
class Case:
    """A page with items, and its states."""

    page: PageName
    rows: list[dict]
    known: str = "\nOmission (8)"  # more texts than those of the task and the items
    outputs: bool = False  # whether marks are in all outputs


Walk = Iterator[tuple[str, bool]]


def judged_by_two(*docs, **row) -> dict:
    annotations = [
        {"annotator": name, **one} for name, one in zip(("anna", "ben"), docs, strict=True)
    ]
    shared = {"errors": [], "missing-info": [], "corrected-prediction": TEXT}
    return {**ROW, **row, "annotations": annotations, "shared": shared}


def decided_between() -> dict:
    reason = {"reason": "Said by ben."}
    omitted = {"error type": "Omission", "explanation": "", "start": 4, "end": 8, "side": "source"}
    liked = {"error type": "Fluent", "explanation": "", "start": 24, "end": 26}
    first = doc(
        [error("Irrelevant", 4, 11, severity="minor"), {**omitted, "reason": "Left out."}, liked],
        [missing()],
    )
    second = doc(
        [error("Incoherent", 4, 7), {**omitted, **reason}, {**liked, **reason}], comment="Hm."
    )
    return judged_by_two(first, {**second, "corrected-prediction": "Other."})


def comparisons() -> list[dict]:
    names = [{"annotator": name, "revision": 1} for name in ("anna", "ben")]
    return [
        {**names[0], "preference": [0, 0, 1], "comment": "Hm."},
        {**names[1], "preference": [1, 1, 1], "all-bad": True},
    ]


def ratings() -> list[dict]:
    def rated(name, *values):
        pairs = zip(("first", "second", "third"), values, strict=True)
        given = {output: {"quality": one, "clarity": two} for output, (one, two) in pairs}
        return {"annotator": name, "revision": 1, "ratings": given}

    first = rated("anna", (4, 80), (2, 0), (3, 50))
    return [{**first, "comment": "Hm."}, rated("ben", (4, 60), (3, 0), (3, 50))]


SUGGESTED = [{**one, "source": "rm"} for one in THREE_SUGGESTED]
SUGGESTION = {"type": "Wrong", "explanation": "", "score": 0.9, "source": "rm"}
IN_OUTPUTS = [
    SUGGESTION | {"start": 8, "end": 11},
    SUGGESTION | {"start": 0, "end": 5, "output": 2},
]
THREE_OUTPUTS = (*OUTPUTS, "third")
SUGGESTED_ROW = {**ROW, "id": "s", "suggestions": SUGGESTED}
CASES = {
    "marking": Case(
        "annotation",
        [{**ROW, "context": PASSAGES}, SUGGESTED_ROW, {**ROW, "id": "u", "context": []}],
    ),
    "marking all outputs": Case(
        "annotation", [{**ROW, "suggestions": IN_OUTPUTS}], "\nOmission (3)", outputs=True
    ),
    "deciding annotations": Case("annotation", [decided_between()], "\nABAB\nOmission (8)"),
    "comparing": Case("comparison", [{**ROW, "prompt": TURNS, "context": PASSAGES}]),
    "deciding comparisons": Case("comparison", [], "\nABCXY"),
    "rating": Case("rating", [{**ROW, "prompt": TURNS, "response": LONG_WORD}]),
    "deciding ratings": Case("rating", [], "\nABCXY"),
}
CASES["rating"].rows[0]["responses"] = [LONG_WORD, *ROW["responses"][1:]]


# How far below the top of the first problem its bullet stands, which is on the line's baseline.
BULLET = """() => {
    const button = document.querySelector("#problems li button"),
        probe = document.createElement("span");
    probe.style.display = "inline-block";
    button.before(probe);
    const [line, box] = [probe, button].map((node) => node.getBoundingClientRect());
    probe.remove();
    return line.bottom - box.top;
}"""


def marking(tab) -> Walk:
    yield "open", NEW
    word(tab, 1).click()
    press(tab, "3")
    yield "evidence is asked for", SAME
    press(tab, "Escape", "m")
    assert tab.locator("#errors .severity[aria-pressed=true]").count() == 1
    yield "severity", SAME
    press(tab, "Control+Enter")
    yield "problems", NEW
    press(tab, "Escape", "1")
    yield "no overlap", SAME
    press(tab, "e")
    yield "editing", SAME
    press(tab, "Escape", "6")
    tab.keyboard.type("9:9")
    press(tab, "Enter")
    yield "evidence refused", SAME
    press(tab, "Control+Enter")
    assert 0 < tab.evaluate(BULLET) < 30  # pixels: at the first of several lines
    yield "problems with evidence", SAME
    tab.fill("#correction", "x")
    tab.wait_for_selector("#warnings li")
    yield "warnings", SAME
    word(tab, 4).click()
    press(tab, "7")
    yield "liked", SAME
    press(tab, "Escape", "m")  # a liked span has no severity
    yield "no severity", SAME
    tab.click("#source .w >> nth=1")
    press(tab, "1")
    yield "not of the source", SAME
    press(tab, "8")
    assert tab.locator("#errors textarea").count() == 2
    yield "source", NEW
    press(tab, "Escape", "?")
    yield "help", NEW
    press(tab, "Escape", "s")
    yield "asks for a reason", NEW
    press(tab, "6", "Enter")
    yield "the explanation is missing", SAME
    press(tab, "1", "Enter")
    yield "skipped", SAME
    press(tab, "y")
    yield "suggestion", NEW
    press(tab, "y", "x")
    yield "decided", SAME
    press(tab, "[")
    yield "a skipped item", NEW
    tab.click("#keep")
    yield "a kind stays on", SAME
    press(tab, "g")
    tab.keyboard.type("77")
    press(tab, "Enter")
    yield "no such item", SAME
    tab.click("#hide-sources")
    yield "no texts", NEW
    tab.click("#who")
    yield "name", NEW
    press(tab, "Enter")
    with tab.expect_download():
        tab.click("#record")
    yield "record", SAME
    path = Path(tab.url.removeprefix("file://")).parent / "bad file.json"
    path.write_text("[1]", encoding="utf-8")
    tab.set_input_files("#file", path)
    tab.wait_for_selector("#notice:not([hidden])")
    yield "no items", SAME


def marking_all_outputs(tab) -> Walk:
    yield "open", SAME
    tab.locator("#text-1 .w").first.click()
    yield "cursor", SAME
    press(tab, "1")
    yield "marked", SAME
    word(tab, 4).click()
    press(tab, "1", "Escape", "Shift+ArrowRight", "1")
    assert tab.locator("#text .w.stacked").count() == 1
    yield "marked twice", SAME
    press(tab, "y", "y")
    yield "suggestion", NEW


def deciding_annotations(tab) -> Walk:
    assert "Said by ben." in tab.inner_text("#annotations")
    yield "open", SAME
    press(tab, ".", "Enter")
    yield "taken", NEW
    press(tab, "Control+Enter")
    yield "not decided", SAME


def comparing(tab) -> Walk:
    tab.click("#guide-more summary")
    yield "open", NEW
    press(tab, "d", "1", "1", "2", "1", "b")
    yield "chosen", SAME
    press(tab, "Control+Enter")
    assert tab.locator("#problems li").count()
    yield "problems", NEW
    press(tab, "Escape", "m", "Control+Enter", "?")
    yield "ranks and help", NEW


def deciding(tab) -> Walk:
    yield "open", SAME
    for keys in (".", "x", ".", "y", "Shift+X"):
        press(tab, keys)
        yield keys, keys == "Shift+X"
    press(tab, "m")
    yield "m", SAME
    press(tab, "?")
    yield "help", SAME


def rating(tab) -> Walk:
    yield "open", SAME
    press(tab, "3", "1", "0", "1", "Control+Enter")
    yield "problems", NEW
    press(tab, "Escape", "?")
    yield "help", NEW


WALKS = {
    "marking": marking,
    "marking all outputs": marking_all_outputs,
    "deciding annotations": deciding_annotations,
    "comparing": comparing,
    "rating": rating,
    "deciding comparisons": deciding,
    "deciding ratings": deciding,
}


def made(folder: Path, name: str):
    """The task of a case and its rows."""
    case = CASES[name]
    if case.outputs:
        kinds = {"errors": [WRONG, REPEATS, OMISSION], "missing": [], "correction": False}
        return task_with(folder, **kinds, mark_outputs=True, overlap=True), case.rows
    if case.page == "annotation":
        return full_task(folder), case.rows
    if case.rows:  # a conversation has no single text in which something could be left out
        return full_task(folder, errors=[WRONG]), case.rows
    task = rating_task(folder, outputs=THREE_OUTPUTS, comparison="Which is better?")
    keys = {"submitted comparisons": comparisons(), "submitted ratings": ratings()}
    return task, [rated_row(0, THREE_OUTPUTS, **keys)]


@pytest.mark.parametrize("language", ["he", "en"])
@pytest.mark.parametrize("name", CASES)
def test_a_whole_page(chromium, tmp_path, name, language):
    case, (task, rows) = CASES[name], made(tmp_path, name)
    is_made_up = language == "he"
    known = known_texts(task, rows) + case.known
    path = page_with(task, rows, case.page, pseudo_language() if is_made_up else ENGLISH)
    width, scheme = (320, "dark") if is_made_up else (1280, "light")
    look = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with opened(chromium, case.page, where=path, bypass_csp=True, **look) as tab:
        for state, is_new in WALKS[name](tab):
            if is_made_up:
                assert not english_in(tab, known), state
            if is_new:
                assert violations(tab) == [], state
                assert tab.evaluate("document.documentElement.scrollWidth") <= width, state

"""Hostile texts in every field of both pages remain text: nothing runs, loads or renders."""

from urllib.parse import quote

import pytest
from hostile import HOSTILE, HOSTILE_SAMPLE
from page_helpers import QA, opened
from server_helpers import serving
from test_served_pages import visiting

from fgrlhf.base.files import write_json
from interface_html.items import read_items
from interface_html.pages import self_contained

SCHEMA = QA.schema
ALLOWED = {  # the elements of the pages themselves
    "A",
    "ARTICLE",
    "BODY",
    "BUTTON",
    "DD",
    "DEL",
    "DIALOG",
    "DIV",
    "DL",
    "DT",
    "FIELDSET",
    "H1",
    "H2",
    "H3",
    "H4",
    "HEADER",
    "INPUT",
    "INS",
    "KBD",
    "LABEL",
    "LEGEND",
    "LI",
    "MAIN",
    "NAV",
    "OL",
    "P",
    "Q",
    "SCRIPT",
    "SECTION",
    "SPAN",
    "TABLE",
    "TBODY",
    "TD",
    "TEXTAREA",
    "TH",
    "THEAD",
    "TR",
    "UL",
}

# Judges every item as its annotator would, with the item's hostile text in every field; returns the
# problems.
JUDGE = """async ([texts, rows, allowed, scripts]) => {
    const $ = (selector) => document.querySelector(selector), wrong = [];
    const key = (at, name) => {
        const options = { key: name, bubbles: true, cancelable: true };
        at.dispatchEvent(new KeyboardEvent("keydown", options));
    };
    const type = (at, text) => {
        at.value = text;
        for (const kind of ["input", "change"])
            at.dispatchEvent(new Event(kind, { bubbles: true }));
    };
    const check = (what, shown, expected) => {
        if (shown !== expected) wrong.push([what, shown, expected]);
    };
    for (const [i, text] of texts.entries()) {
        const row = rows[i];
        check("question", $("#item-title").textContent, row.question);
        check("reference", $("#reference").textContent, row.gold);
        const sentences = [...document.querySelectorAll(".sentence")];
        const shown = sentences.map((sentence) => sentence.textContent);
        check("passages", JSON.stringify(shown), JSON.stringify(row.passages.flat()));
        if ($("#text")) {
            check("text", $("#text").textContent, row["prediction 1"]);
            $("#text").focus();
            for (const name of ["Home", "1", "End", "2", "Escape", "6"]) key($("#text"), name);
            for (const field of document.querySelectorAll("[data-key$=-ids]")) type(field, text);
            type($("#correction"), text.replace(/\\r/g, "") + row["prediction 1"] + text);
            const start = text.replace(/\\r/g, "").split("\\n")[0];
            check("correction", $("#correction").value.includes(start), true);
        } else {
            const outputs = [...document.querySelectorAll(".candidate .output")];
            const shown = outputs.map((output) => output.textContent);
            const answers = [1, 2, 3, 4].map((k) => row[`prediction ${k}`]);
            check("answers", JSON.stringify(shown.sort()), JSON.stringify(answers.sort()));
            for (const name of ["1", "2", "0"]) key($("#choices"), name);
        }
        $("#submit").click();
        const tags = [...document.body.querySelectorAll("*")];
        const guide = "#guide-more, #guide-more > summary";  // the page's own
        for (const node of tags)
            if (!allowed.includes(node.tagName) && !node.matches(guide))
                wrong.push(["element", text, node.outerHTML.slice(0, 80)]);
        check("scripts", tags.filter((node) => node.tagName === "SCRIPT").length, scripts);
        for (const node of tags) for (const { name, value } of node.attributes) {
            const loads = name === "src" && node.tagName !== "SCRIPT";
            const leaves = name === "href" && !["#text", "#choices"].includes(value);
            if (name.startsWith("on") || loads || leaves) wrong.push([text, name, value]);
        }
        if (!$("#next").disabled) $("#next").click();
        await null;
    }
    await new Promise((done) => setTimeout(done, 300));
    if ("hit" in window || "hit" in Object.prototype) wrong.push(["something ran"]);
    return wrong.slice(0, 5);
}"""


def hostile_items(texts=HOSTILE) -> list[dict]:
    """One item per text, which is in every field: alone, at a start, at an end, as a word."""
    return [
        {
            "id": f"{text[:150]}{i}",
            "question": text if text.strip() else f"{text}?",  # blank ones are refused
            "passages": [[text, text + ".", "A " + text], [""]],
            "gold": text,
            "prediction 1": f"{text} and. {text}",
            "prediction 2": text + "x",
            "prediction 3": "x" + text,
            "prediction 4": f"x {text}",
        }
        for i, text in enumerate(texts)
    ]


def judged(tab, items) -> list:
    scripts = tab.locator("script").count()
    rows = [{key: value for key, value in item.items() if key != "id"} for item in items]
    texts = [row["question"] for row in rows]
    return tab.evaluate(JUDGE, [texts, rows, sorted(ALLOWED), scripts])


@pytest.mark.parametrize(
    "page, inside",
    [("annotation", True), pytest.param("comparison", False, marks=pytest.mark.slow)],
)
def test_hostile_texts_stay_texts(chromium, tmp_path, page, inside):
    """Opened with the file picker and inside a self-contained page."""
    assert len(set(HOSTILE)) >= 150
    items, where = hostile_items(), None
    if inside:
        write_json(tmp_path / "items.json", items)
        where = tmp_path / "page.html"
        text = self_contained(QA, page, read_items(QA, tmp_path / "items.json"))
        where.write_text(text, encoding="utf-8", newline="")
    with opened(chromium, page=page, items=items, where=where, tmp_path=tmp_path) as tab:
        assert tab.locator("#position").inner_text().startswith(f"Item 1 of {len(items)}")
        assert judged(tab, items) == []


def with_suggestions(item, text) -> dict:
    start = len(text) + 1  # of "and."
    span = {"type": "Irrelevant", "start": start, "end": start + 4, "score": 0.9}
    return {**item, "suggestions": [{**span, "explanation": text, "source": f"by {text}"}]}


def with_annotations(item, text) -> dict:
    """An item to adjudicate: the text is the annotators' name, evidence, correction and comment."""
    span = {"start": len(text) + 1, "end": len(text) + 5}  # "and."
    error = {"error type": "Redundant", "explanation": text, **span}
    first = {"errors": [error], "missing-info": [], "corrected-prediction": text, "comment": text}
    second = {**first, "errors": [], "corrected-prediction": text + "x"}
    annotations = [{"annotator": text, **first}, {"annotator": text, **second}]
    shared = {**first, "errors": [], "corrected-prediction": item["prediction 1"]}
    del shared["comment"]
    return {**item, "annotations": annotations, "shared": shared}


# Returns what an item shows for its suggestion or its annotations.
SHOWN = """async ([count, selector]) => {
    const shown = [];
    for (let i = 0; i < count; i++) {
        for (const button of document.querySelectorAll("#difference-list button")) button.click();
        const nodes = [...document.querySelectorAll(selector)];
        shown.push(nodes.map((node) => node.textContent));
        if (i < count - 1) document.querySelector("#next").click();
        await null;
    }
    while (!document.querySelector("#previous").disabled)
        document.querySelector("#previous").click();
    return shown;
}"""


@pytest.mark.parametrize(
    "make", [with_suggestions, pytest.param(with_annotations, marks=pytest.mark.slow)]
)
def test_hostile_suggestions_and_annotations_stay_texts(chromium, tmp_path, make):
    items = [make(item, text) for item, text in zip(hostile_items(HOSTILE_SAMPLE), HOSTILE_SAMPLE)]
    is_suggested = make is with_suggestions
    selector = "#suggestions .hint" if is_suggested else "#annotations .comments [dir]"
    with opened(chromium, items=items, tmp_path=tmp_path) as tab:
        shown = tab.evaluate(SHOWN, [len(items), selector])
        for text, cells in zip(HOSTILE_SAMPLE, shown):
            if not is_suggested:
                assert cells == [text or "no comment"] * 2
            elif text:
                # a long explanation is cut
                assert cells[0].removesuffix("…") in text
        assert judged(tab, items) == []


def test_hostile_feedback_in_a_file_is_shown_as_text_or_refused(chromium, tmp_path):
    item = hostile_items()[0]
    error = {"error type": "Redundant", "explanation": HOSTILE[12], "start": 0, "end": 5}
    said = {"errors": [error], "missing-info": [], "corrected-prediction": HOSTILE[12]}
    with opened(chromium, items=None) as tab:
        write_json(tmp_path / "items.json", [{**item, "feedback": said}])
        tab.set_input_files("#file", tmp_path / "items.json")
        tab.wait_for_selector("#errors .hint")
        assert HOSTILE[12] in tab.inner_text("#errors")
        assert (
            tab.input_value("#correction") == HOSTILE[12] and tab.locator("#diff ins").count() > 0
        )
        for wrong in (
            {**said, "errors": [{**error, "error type": HOSTILE[12]}]},
            {**said, "errors": [{**error, "start": "0"}]},
            [],
            None,
            {**said, "missing-info": [{"error type": "Redundant"}]},
            {**said, "corrected-prediction": 1},
            {**said, "errors": [None]},
        ):
            write_json(tmp_path / "items.json", [{**item, "feedback": wrong}])
            tab.evaluate("FG.notice('')")
            tab.set_input_files("#file", tmp_path / "items.json")
            tab.wait_for_selector("#notice:not([hidden])")
            assert "row 0 of the file: `feedback" in tab.inner_text("#notice")


def test_a_hostile_name_at_a_server(chromium, tmp_path):
    name = "<img src=x onerror=hit=1> 李 %41"
    with serving(tmp_path, items=1) as server, visiting(chromium, server, who=quote(name)) as tab:
        assert tab.inner_text("#position").startswith(f"{name}: 0 of 1 done")
        assert tab.evaluate("window.hit") is None and tab.locator("img").count() == 0

"""Hostile texts in every field of all pages remain text: nothing runs, loads or renders."""

from dataclasses import dataclass, field
from urllib.parse import quote

import pytest
from hostile import HOSTILE, HOSTILE_SAMPLE
from made_tasks import OMISSION, REPEATS, ROW, WRONG, full_task, page_with, task_with
from page_helpers import QA, TEXT, opened, refused
from rating_tasks import CLARITY, QUALITY, rating_task
from rating_tasks import row as rated_row
from served_pages import visiting
from server_helpers import serving

from fgrlhf.base.files import write_json
from interface_html.rules import LONGEST_REASON
from interface_html.schema import PageName

# the elements of the pages themselves
ALLOWED = (
    " A ARTICLE BDI BODY BUTTON CAPTION DD DEL DETAILS DIALOG DIV DL DT FIELDSET H1 H2 H3 H4 HEADER"
    " INPUT INS KBD LABEL LEGEND LI MAIN NAV OL P Q SCRIPT SECTION SPAN SUMMARY TABLE TBODY TD"
    " TEXTAREA TH THEAD TR UL "
)

# Judges every item as its annotator would, with its hostile text in every field; returns what is
# wrong. `expected`: for each item the texts of the nodes that a selector finds. `keys`: for each
# place the keys to press there.
JUDGE = """async ([items, keys, allowed, scripts]) => {
    const wrong = [], all = (selector) => [...document.querySelectorAll(selector)];
    const place = () => /\\d+/.exec(document.querySelector("#position").textContent)[0];
    const press = (at, key) => {
        const options = { key, bubbles: true, cancelable: true };
        at.dispatchEvent(new KeyboardEvent("keydown", options));
    };
    const type = (at, text) => {
        at.value = text;
        for (const kind of ["input", "change"])
            at.dispatchEvent(new Event(kind, { bubbles: true }));
        const start = text.replace(/\\r/g, "").split("\\n")[0].slice(0, 900);
        if (at.id === "correction" && !at.value.includes(start)) wrong.push([text, at.value]);
    };
    for (const { text, expected } of items) {
        for (const button of all("#difference-list button, #deciding button, .takes button"))
            button.click();
        for (const [selector, texts] of Object.entries(expected)) {
            const shown = all(selector).map((node) => node.value ?? node.textContent);
            if (selector.includes(".candidate")) [shown, texts].forEach((list) => list.sort());
            const isSame = JSON.stringify(shown) === JSON.stringify(texts);
            if (!isSame) wrong.push([selector, shown, texts]);
        }
        for (const [selector, names] of keys) {
            const at = document.querySelector(selector);
            at.focus();
            for (const name of names) press(at, name);
        }
        for (const at of all("#work textarea:not([disabled]), [data-key$=-ids]")) type(at, text);
        const before = place();
        document.querySelector("#submit").click();
        await new Promise((done) => setTimeout(done));  // a complete one is followed by the next
        const nodes = [...document.body.querySelectorAll("*")];
        if (nodes.filter((node) => node.tagName === "SCRIPT").length !== scripts)
            wrong.push(["scripts", text]);
        for (const node of nodes) {
            if (!allowed.includes(` ${node.tagName} `))
                wrong.push([text, node.outerHTML.slice(0, 80)]);
            for (const { name, value } of node.attributes) {
                const loads = name === "src" && node.tagName !== "SCRIPT";
                const leaves = name === "href" && !/^#(text|choices|outputs)$/.test(value);
                if (name.startsWith("on") || loads || leaves) wrong.push([text, name, value]);
            }
        }
        const next = document.querySelector("#next");
        if (place() === before && !next.disabled) next.click();
        await null;
    }
    await new Promise((done) => setTimeout(done, 300));
    if ("hit" in window || "hit" in Object.prototype) wrong.push(["something ran"]);
    return wrong.slice(0, 5);
}"""


@dataclass
class Case:
    """A page with hostile items."""

    page: PageName
    keys: list[tuple[str, list[str]]]
    texts: list[str] = field(default_factory=lambda: HOSTILE_SAMPLE)


CASES = {
    "marking": Case(
        "annotation",
        [("#text", ["Home", "1", "End", "2", "Escape", "6", "x"]), ("#source", ["End", "8"])],
        HOSTILE,
    ),
    "marking all outputs": Case("annotation", [(f"#text-{k}", ["End", "1"]) for k in (1, 2, 3)]),
    "deciding annotations": Case("annotation", []),
    "comparing": Case("comparison", [("#choices", ["1", "2", "0"])]),
    "deciding comparisons": Case("comparison", []),
    "rating": Case("rating", [("#outputs", ["1", "2"])]),
    "deciding ratings": Case("rating", []),
}


def base_row(number: int, text: str) -> dict:
    """An item with the text in every field: alone, at a start, at an end, as a word."""
    responses = [f"{text} and. {text}", text + "x", "x" + text, f"x {text}"]
    references = [text] if text.strip() else ["x"]
    row = {"id": f"{text[:150]}{number}", "prompt": f"{text} x", "references": references}
    context = [[text, text + ".", "A " + text], [""]]
    return {**row, "context": context, "response": responses[0], "responses": responses}


def base_texts(row: dict) -> dict:
    sentences = [text for source in row["context"] for text in source]
    return {"#reference": row["references"], ".sentence": sentences}


def annotations(text: str) -> list[dict]:
    """Two annotations with the text as name, evidence, reason, correction and comment."""
    reason = (text if text.strip() else "blank")[:LONGEST_REASON]
    omitted = {"error type": "Omission", "explanation": "", "side": "source", "reason": reason}
    marks = [{**omitted, "start": len(text) + 1, "end": len(text) + 2}]
    span = {"start": len(text) + 1, "end": len(text) + 5}  # "and."
    marks.append({"error type": "Redundant", "explanation": text, **span})
    first = {"missing-info": [], "corrected-prediction": text, "comment": text}
    second = {**first, "errors": [], "corrected-prediction": text + "x"}
    return [{"annotator": text, **one} for one in ({**first, "errors": marks}, second)]


def hostile_item(name: str, number: int, text: str) -> tuple[dict, dict]:
    """An item of a case; its text, and the texts that its page shows, by their selector."""
    row = base_row(number, text)
    shown = base_texts(row)
    if name == "marking":
        span = {"type": "Irrelevant", "start": len(text) + 1, "end": len(text) + 5, "score": 0.9}
        explanation = text[:100]
        source = f"by {text}"[:50]
        row["suggestions"] = [{**span, "explanation": explanation, "source": source}]
        shown |= {"#text": [row["response"]], "#source": [row["prompt"]]}
        shown |= {"#suggestions .hint": [explanation] if explanation else []}
    elif name == "marking all outputs":
        shown |= {f"#text-{k}": [row["responses"][k]] for k in (1, 2, 3)}
    elif name == "deciding annotations":
        shared = {"errors": [], "missing-info": [], "corrected-prediction": row["response"]}
        row |= {"annotations": annotations(text), "shared": shared}
        shown["#annotations .comments [dir]"] = [text or "no comment"] * 2
    elif name == "comparing":
        shown |= {"#item-title": [row["prompt"]], ".candidate .output": list(row["responses"])}
    elif name == "rating":
        responses = [text, f"{text} second"] if text.strip() else ["a", "b second"]
        row = rated_row(number, prompt=row["prompt"], responses=responses)
        shown = {"#item-title": [row["prompt"]], ".candidate .output": list(responses)}
    else:
        row = rated_row(number)
        names = {"annotator": text, "revision": 1}
        one = {"first": {"quality": 4, "clarity": 80}, "second": {"quality": 2, "clarity": 0}}
        other = {**one, "first": {"quality": 1, "clarity": 80}}
        row["submitted comparisons"] = [
            {**names, "preference": [1], "comment": text},
            {**names, "preference": [0]},
        ]
        row["submitted ratings"] = [
            {**names, "ratings": one, "comment": text},
            {**names, "ratings": other, "comment": ""},
        ]
        shown = {"#deciding tbody tr:last-child td": [text or "no comment", "no comment"]}
        if not text:
            shown = {}
    return row, {"text": text, "expected": shown}


def task_of(name: str, folder):
    if name == "marking all outputs":
        kinds = {"errors": [WRONG, REPEATS, OMISSION], "missing": [], "correction": False}
        return task_with(folder, **kinds, mark_outputs=True)
    if name in ("marking", "deciding annotations", "comparing"):
        return full_task(folder)
    return rating_task(folder, comparison="Which is better?")


@pytest.mark.parametrize("name", CASES)
def test_hostile_texts_stay_texts(chromium, tmp_path, name):
    assert len(set(HOSTILE)) >= 150
    case, task = CASES[name], task_of(name, tmp_path)
    items = [hostile_item(name, i, text) for i, text in enumerate(case.texts)]
    if name == "marking all outputs":  # blank outputs are refused
        items = [item for item in items if all(map(str.strip, item[0]["responses"]))]
    page = page_with(task, [row for row, _ in items], case.page)
    with opened(chromium, case.page, where=page) as tab:
        assert tab.inner_text("#position").startswith(f"Item 1 of {len(items)}")
        scripts = tab.locator("script").count()
        judged = [texts for _, texts in items]
        assert tab.evaluate(JUDGE, [judged, case.keys, ALLOWED, scripts]) == []


def test_hostile_texts_of_a_task_stay_texts(chromium, tmp_path):
    """The questions of the guideline, and the words of a scale."""
    texts = "nodes => nodes.map((node) => node.textContent)"
    task = task_with(tmp_path, faq=[{"case": text, "answer": f"x {text}"} for text in HOSTILE])
    path = tmp_path / "schema.js"  # in a page, `</script` must be written with an escape
    path.write_text(path.read_text(encoding="utf-8").replace("<", "\\u003c"), encoding="utf-8")
    with opened(chromium, where=page_with(task, [ROW], "comparison")) as tab:
        assert tab.locator("#faq dt").evaluate_all(texts) == HOSTILE
        assert tab.locator("#faq dd").evaluate_all(texts) == [f"x {text}" for text in HOSTILE]
        assert tab.locator("#faq dt *, #faq dd *").count() == 0
        assert tab.evaluate("window.hit") is None
    text = "<img src=x onerror=hit=1>\u202eabc"
    scales = [{**QUALITY, "label": text, "help": text, "anchors": {"1": text}}, CLARITY]
    task = rating_task(tmp_path, ratings=scales)
    with opened(chromium, "rating", where=page_with(task, [rated_row(0)], "rating")) as tab:
        assert tab.locator("#scales dt, #scales dd").evaluate_all(texts)[:2] == [text] * 2
        assert tab.locator("#outputs img, #scales img").count() == 0
        assert tab.evaluate("window.hit") is None


def test_hostile_feedback_in_a_file_is_shown_as_text_or_refused(chromium, tmp_path):
    text = HOSTILE[12]
    item = {key: TEXT for key in QA.schema.row} | {"passages": [[text, text]], "question": text}
    item["prediction 1"] = f"{HOSTILE[0]} and."
    error = {"error type": "Redundant", "explanation": text, "start": 0, "end": 5}
    said = {"errors": [error], "missing-info": [], "corrected-prediction": text}
    with opened(chromium, items=None) as tab:
        write_json(tmp_path / "items.json", [{**item, "feedback": said}])
        tab.set_input_files("#file", tmp_path / "items.json")
        tab.wait_for_selector("#errors .hint")
        assert text in tab.inner_text("#errors")
        assert tab.input_value("#correction") == text and tab.locator("#diff ins").count() > 0
        for wrong in (
            {**said, "errors": [{**error, "error type": text}]},
            {**said, "errors": [{**error, "start": "0"}]},
            [],
            None,
            {**said, "missing-info": [{"error type": "Redundant"}]},
            {**said, "corrected-prediction": 1},
            {**said, "errors": [None]},
        ):
            notice = refused(tab, tmp_path / "items.json", [{**item, "feedback": wrong}])
            assert "row 0 of the file: `feedback" in notice


def test_a_hostile_name_at_a_server(chromium, tmp_path):
    name = "<img src=x onerror=hit=1> 李 %41"
    with serving(tmp_path, items=1) as server, visiting(chromium, server, who=quote(name)) as tab:
        assert tab.inner_text("#position").startswith(f"{name}: 0 of 1 done")
        assert tab.evaluate("window.hit") is None and tab.locator("img").count() == 0

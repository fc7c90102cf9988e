"""annotation.html: what is marked and typed is what the annotator meant, on every device."""

import copy
import json
import random

import pytest
from page_helpers import (
    ITEM,
    PHONE,
    QA,
    TEXT,
    badge,
    downloaded,
    drag,
    opened,
    press,
    reload,
    state,
    word,
)

from fgrlhf.base.errors import UserError
from fgrlhf.words import is_inner_boundary
from interface_html.rules import annotation_problems
from interface_html.schema import ASSIGNMENT, PAGE_KEYS, load_schema

SCHEMA = QA.schema
ROW = {key: value for key, value in ITEM.items() if key != "id"}
LONG = " ".join(f"word{i}" for i in range(1500)) + "."
LONG_PASSAGES = [
    [f"Title {p}", *(f"Sentence {s}. " * 12 for s in range(1, 9))] for p in range(1, 4)
]
FOCUS = "document.activeElement.id"


def errors(tab) -> list[dict]:
    return state(tab)["doc"]["errors"]


def marked(tab, number: int = -1) -> str:
    """The text of a stored error."""
    error = errors(tab)[number]
    return TEXT[error["start"] : error["end"]]


def said(tab) -> str:
    return tab.inner_text("#message")


def select_natively(tab, selector: str) -> None:
    """Select the text of an element as the browser does, without an event of the pointer."""
    tab.evaluate("s => getSelection().selectAllChildren(document.querySelector(s))", selector)


def item(**values) -> dict:
    return {**copy.deepcopy(ITEM), **values}


@pytest.fixture(scope="module")
def blank(chromium):
    """A page without items, for its functions."""
    with opened(chromium, items=None) as tab:
        yield tab


# ---- selections ----------------------------------------------------------------------------------


def drag_out(tab, place: str) -> list[str]:
    """Drag from the fourth word to a place outside the text. Returns the words on the way."""
    boxes = tab.locator("#text .w").evaluate_all("nodes => nodes.map((n) => n.offsetTop)")
    first, box = word(tab, 3).bounding_box(), tab.locator("#text").bounding_box()
    x, y = first["x"] + first["width"] / 2, first["y"] + first["height"] / 2
    middle, bottom = box["x"] + box["width"] / 2, box["y"] + box["height"]
    ends = {"right": (box["x"] + box["width"] + 40, y), "left": (box["x"] - 40, y)}
    ends |= {"below": (middle, bottom + 15), "above": (middle, box["y"] - 15)}
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(*ends[place], steps=4)
    tab.mouse.up()
    line = [number for number, top in enumerate(boxes) if top == boxes[3]]
    words = TEXT.split()
    assert 0 < len(line) < len(words)
    on_the_way = {"right": (3, line[-1] + 1), "below": (3, None), "left": (line[0], 4)}
    return words[slice(*on_the_way.get(place, (0, 4)))]


def test_what_is_selected_is_marked(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        drag(tab, 1, 3)
        press(tab, "1")
        assert said(tab) == "Marked: “cat sat on” (3 words) is error 1 (Irrelevant)."
        press(tab, "Control+z")
        # two lines or more, whatever fonts the machine has
        tab.locator("#text").evaluate("text => text.style.width = '20em'")
        for place in ("right", "below", "left", "above"):
            word(tab, 13).click()
            press(tab, "ArrowLeft")  # the cursor is on another word
            expected = drag_out(tab, place)
            press(tab, "4")
            assert [marked(tab)] == [" ".join(expected)], place
            assert len(errors(tab)) == 1
            assert f"({len(expected)} words) is error 1 (Unverifiable Fact)" in said(tab)
            press(tab, "Control+z")
        # as after a release outside the window: the selection counts, not the word of the cursor
        word(tab, 13).click()
        select_natively(tab, "#text .w[data-i='4']")
        press(tab, "1")
        assert marked(tab) == "the"
        press(tab, "Control+z", "Escape")
        word(tab, 1).click()
        select_natively(tab, "[data-sentence-text='1:1']")
        press(tab, "1")
        assert "the selected text is not in the answer" in said(tab)
        assert errors(tab) == []
        word(tab, 1).click()
        press(tab, "1")
        assert marked(tab) == "cat"


def test_a_drag_from_another_text_selects_nothing(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        start = tab.locator("#reference").bounding_box()
        end = word(tab, 5).bounding_box()
        tab.mouse.move(start["x"] + 4, start["y"] + start["height"] / 2)
        tab.mouse.down()
        tab.mouse.move(end["x"] + end["width"] * 0.8, end["y"] + end["height"] / 2, steps=4)
        tab.mouse.up()
        assert tab.locator("#text .selected").count() == 0
        assert "the selection began in another text" in said(tab)
        press(tab, "1")
        assert tab.locator("#errors .card").count() == 0
        drag(tab, 1, 2)  # a drag in the text itself selects as before
        press(tab, "1")
        assert len(errors(tab)) == 1


def test_a_kind_that_stays_on_marks_each_selection(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        pressed = tab.locator("#types [aria-pressed=true]")
        press(tab, "Shift+1")
        assert pressed.all_inner_texts()[0].split()[:2] == ["I", "Irrelevant"]
        drag(tab, 0, 1)
        drag(tab, 3, 4)
        press(tab, "4")  # another kind stays on; nothing is selected
        drag(tab, 7, 8)
        kinds = [error["error type"] for error in errors(tab)]
        assert kinds == ["Irrelevant", "Irrelevant", "Unverifiable"]
        press(tab, "Escape")
        assert pressed.count() == 0
        drag(tab, 11, 12)
        assert len(errors(tab)) == 3  # and the selection is there:
        tab.click("#keep")
        assert tab.get_attribute("#keep", "aria-pressed") == "true"
        tab.click("#types button >> nth=3")
        assert marked(tab) == "cat sat"
        drag(tab, 13, 14)
        assert marked(tab) == "on it."
        tab.click("#types button >> nth=3")  # once more: it ends
        drag(tab, 5, 5)
        assert len(errors(tab)) == 5


# ---- errors that are marked ----------------------------------------------------------------------


def test_badges_kinds_and_ends_of_marks(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        for first in (1, 5):
            drag(tab, first, first + 1)
            press(tab, "1")
        assert [badge(word(tab, i)) for i in (1, 2, 5)] == ["I1", None, "I2"]
        assert tab.locator("#errors .badge").all_inner_texts() == ["I1", "I2"]
        tab.hover("[data-key='errors-1']")
        assert tab.locator("#text .linked").all_inner_texts() == ["mat.", "It"]
        word(tab, 1).hover()
        assert tab.locator("#errors .linked").inner_text().startswith("I1")
        tab.mouse.move(5, 5)
        assert tab.locator(".linked").count() == 0
        tab.click("[data-key='errors-0']")
        for key, text in [
            ("Alt+ArrowRight", "cat sat on"),
            ("Alt+Shift+ArrowRight", "sat on"),
            ("Alt+Shift+ArrowLeft", "cat sat on"),
            ("Alt+ArrowRight", "cat sat on the"),
            ("Alt+ArrowRight", "cat sat on the"),  # error 2 is next
        ]:
            press(tab, key)
            assert marked(tab, 0) == text
        assert "error 2 (Irrelevant) is next to it" in said(tab)
        press(tab, *["Alt+ArrowLeft"] * 5)
        assert marked(tab, 0) == "cat"
        assert "has only one word" in said(tab)
        word(tab, 9).click()
        tab.click("[data-key='errors-0']")
        press(tab, "4")
        unverifiable = {"error type": "Unverifiable", "explanation": "", "start": 4, "end": 7}
        assert errors(tab)[0] == unverifiable
        word(tab, 1).click()
        press(tab, "5")
        assert errors(tab)[0]["error type"] == "Incoherent"
        # after undo, keys refer to no other error
        word(tab, 0).click()
        press(tab, "1")
        tab.click("[data-key='errors-0-remove']")
        tab.click("[data-key='errors-1']")  # "The", the last one
        press(tab, "Control+z", "Delete")  # "cat" comes back before it
        assert "Nothing to remove" in said(tab)
        assert [marked(tab, i) for i in range(3)] == ["cat", "mat. It", "The"]


def test_keys_and_what_a_screen_reader_hears(chromium, tmp_path):
    heard = "document.querySelector('#announce').textContent"
    with opened(chromium, tmp_path=tmp_path) as tab:
        press(tab, "c")
        assert tab.evaluate(FOCUS) == "correction"
        assert tab.input_value("#correction") == TEXT  # the key itself is not typed
        press(tab, "Escape", "p")
        assert tab.evaluate(FOCUS) == "sources"
        assert tab.get_attribute("#announce", "aria-live") == "polite"
        press(tab, "Escape", "Home", "ArrowRight")
        assert tab.evaluate(heard) == "“cat”, word 2 of 15, not marked"
        press(tab, "Shift+ArrowRight")
        assert tab.evaluate(heard) == "Selected: “cat sat”, 2 words, not marked"
        tab.evaluate(  # a keyboard on which digits need Shift
            """() => document.activeElement.dispatchEvent(
            new KeyboardEvent("keydown", { key: "&", code: "Digit1", bubbles: true }))"""
        )
        assert marked(tab) == "cat sat"
        press(tab, "ArrowLeft")
        assert tab.evaluate(heard) == "“cat”, word 2 of 15, marked: error 1 (Irrelevant)"


def schema_tree() -> dict:
    text = (QA.folder / "schema.js").read_text(encoding="utf-8")
    return json.loads(text.partition(ASSIGNMENT)[2].strip().removesuffix(";"))


def schema_of(folder, tree):
    path = folder / "schema.js"
    path.write_text(f"{ASSIGNMENT} {json.dumps(tree)};", encoding="utf-8")
    return load_schema(path)


def test_no_badge_is_a_key_of_the_page(tmp_path):
    tree = schema_tree()
    assert set(PAGE_KEYS) >= set("CENP")
    for letter in PAGE_KEYS:
        tree["errors"][0]["letter"] = letter
        with pytest.raises(UserError, match=f"has the letter '{letter}', which is a key"):
            schema_of(tmp_path, tree)


# ---- evidence ------------------------------------------------------------------------------------


def mark_inconsistent(tab) -> None:
    drag(tab, 1, 2)
    press(tab, "3")


@pytest.mark.parametrize(
    "kind, leave", [("errors", "Control+Enter"), ("errors", "Tab"), ("missing-info", "Tab")]
)
def test_mistyped_evidence_is_never_stored_as_other_evidence(chromium, tmp_path, kind, leave):
    with opened(chromium, tmp_path=tmp_path) as tab:
        mark_inconsistent(tab) if kind == "errors" else press(tab, "6")
        tab.keyboard.type("1:3,99")
        press(tab, leave)
        tab.fill("#correction", "Mended.")
        press(tab, "Control+Enter")
        assert "“1:3,99” is not accepted: sentence 99 does not exist" in said(tab)
        assert tab.locator("#problems li").count() == 1
        assert not state(tab)["submitted"]
        (entry,) = state(tab)["doc"][kind]
        assert entry["typed"] == "1:3,99"
        assert entry.get("explanation", "") == ""
        assert entry.get("sentence_id", []) == []
        assert annotation_problems(SCHEMA, ROW, state(tab)["doc"]) != []
        reload(tab)
        field = tab.locator(f"[data-key='{kind}-0-ids']")
        assert field.input_value() == "1:3,99"
        assert field.get_attribute("aria-invalid") == "true"
        field.fill("1:3,2")
        press(tab, "Control+Enter")
        assert state(tab)["submitted"]
        (entry,) = json.loads(downloaded(tab))[0]["feedback"][kind]
        ids = json.loads(entry["explanation"]) if kind == "errors" else entry
        assert (ids["passage_id"], ids["sentence_id"]) == (1, [3, 2])
        assert "typed" not in entry


TYPED = {
    "1:1-3": (1, [1, 2, 3]),
    "1：2": (1, [2]),  # full-width marks and digits of Chinese and Japanese keyboards
    "１：１，３": (1, [1, 3]),
    "1:1、2": (1, [1, 2]),
    "1:2,1:3": (1, [2, 3]),
    " 1 : 1 – 2 , 0 ,": (1, [1, 2, 0]),
    "١:٢،٣": (1, [2, 3]),
    "2:0-1": (2, [0, 1]),
}
MISTYPED = {
    "1:2,2:1": "an entry can point to one passage only",
    "1:3-2": "3-2 ends before it begins",
    "1:1-999999": "sentence 4 does not exist",
    "1:1-2,2": "names a sentence twice",
    "2,3": "write passage:sentences",
    "1:": "write passage:sentences",
    "1:2-": "write passage:sentences",
    "9:1-3": "passage 9 does not exist",
    ",": "write passage:sentences",
}


def test_evidence_can_be_typed_in_many_ways(blank):
    read = "([text, sources]) => FG.parseEvidence(FG_SCHEMA, text, sources)"
    for typed, (source, sentences) in TYPED.items():
        found = blank.evaluate(read, [typed, ITEM["passages"]])
        assert found == {"source": source, "sentences": sentences}, typed
    for typed, reason in MISTYPED.items():
        assert reason in blank.evaluate(read, [typed, ITEM["passages"]])["problem"]


def test_evidence_is_accepted_taken_back_and_erased(chromium, tmp_path):
    ids, plain = "[data-key='errors-0-ids']", {"error type": "Wrong-Grounding", "explanation": ""}
    with opened(chromium, tmp_path=tmp_path) as tab:
        mark_inconsistent(tab)
        tab.keyboard.type("1:2")
        press(tab, "Control+z")
        assert tab.input_value(ids) == ""
        press(tab, "Control+Shift+Z")
        assert tab.input_value(ids) == "1:2"
        tab.fill(ids, "1：1-2")
        press(tab, "Enter")
        assert said(tab) == "Accepted as evidence: 1:1,2."
        assert tab.get_attribute("#message", "class") == "good"
        tab.fill(ids, "")
        press(tab, "Enter")
        assert errors(tab) == [{**plain, "start": 4, "end": 11}]
        # leaving the field redraws the cards: the pressed button must stay the same element
        tab.click(ids)
        tab.keyboard.type("1:2")
        tab.click("[data-key='errors-0-remove']")
        assert errors(tab) == []


# ---- the correction ------------------------------------------------------------------------------


def test_a_correction_keeps_the_caret_and_the_line_ends(chromium, tmp_path):
    texts = [f"One.{ends}Two.{ends}Three." for ends in ("\r\n", "\r", "\n")]
    items = [ITEM, *(item(id=text, **{"prediction 1": text}) for text in texts)]
    with opened(chromium, items=items, tmp_path=tmp_path) as tab:
        tab.focus("#correction")
        tab.evaluate("document.activeElement.setSelectionRange(4, 4)")
        tab.keyboard.type("XX")
        press(tab, "Control+z")
        assert tab.input_value("#correction") == TEXT
        assert tab.evaluate("document.activeElement.selectionStart") == 4
        press(tab, "Control+Shift+Z")
        assert tab.evaluate("document.activeElement.selectionStart") == 6
        for text in texts:
            press(tab, "Escape", "]")
            for typed in ("Zwei", "Two"):
                tab.fill("#correction", f"One.\n{typed}.\nThree.")
                expected = text.replace("Two", typed)
                assert state(tab)["doc"]["corrected-prediction"] == expected


def test_a_long_answer_stays_in_view_and_is_compared_in_pauses(chromium, tmp_path):
    with opened(chromium, items=[item(**{"prediction 1": LONG})], tmp_path=tmp_path) as tab:
        tab.focus("#comment")
        tab.evaluate("document.querySelector(`#text .w[data-i='900']`).scrollIntoView()")
        tab.evaluate("scrollBy(0, -400)")
        box = word(tab, 900).bounding_box()  # the first click scrolls nothing
        tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        press(tab, "1")
        assert "“word900”" in said(tab)
        last = word(tab, 1200)
        last.scroll_into_view_if_needed()
        last.click()
        press(tab, "1")
        height = tab.viewport_size["height"]
        for selector in ("#types", "#message", "[data-key='errors-1']"):
            box = tab.locator(selector).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= height, selector
        press(tab, *["ArrowUp"] * 40)  # the line of the cursor is never under the bar
        cursor = tab.locator("#text .cursor").bounding_box()
        bar = tab.locator("#kinds-bar").bounding_box()
        assert cursor["y"] >= bar["y"] + bar["height"]
        calls = tab.evaluate(
            """() => {
            const diff = FG.diff, field = document.querySelector("#correction");
            window.calls = 0;
            FG.diff = (...texts) => { window.calls++; return diff(...texts); };
            for (let i = 0; i < 20; i++) {
                field.value = "x" + field.value + "y";
                field.dispatchEvent(new Event("input", { bubbles: true }));
            }
            return window.calls;
        }"""
        )
        assert calls == 0
        assert state(tab)["doc"]["corrected-prediction"] == "x" * 20 + LONG + "y" * 20
        tab.wait_for_selector("#diff ins")
        assert tab.locator("#diff ins").count() == 2
        assert tab.evaluate("calls") == 2  # for the reader, and for the warnings


def longest_common(a: list, b: list) -> int:
    """The length of a longest common subsequence, by the quadratic table."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def test_differences_of_texts(blank):
    """They are longest common subsequences; readers see none that are due to chance."""
    rng = random.Random(5)
    cases = []
    for _ in range(1000):
        letters = rng.randint(1, 6)
        cases.append([[rng.randrange(letters) for _ in range(rng.randint(0, 14))] for _ in "ab"])
    result = blank.evaluate("cases => cases.map(([a, b]) => FG.matches(a, b))", cases)
    for (a, b), pairs in zip(cases, result):
        assert all(a[i] == b[j] for i, j in pairs)
        assert all(i < k and j < m for (i, j), (k, m) in zip(pairs, pairs[1:]))
        assert len(pairs) == longest_common(a, b)
    # both ends of 1,500 words change: a table of all pairs would read 2,250,000 words
    pairs, count = blank.evaluate(
        """() => {
        let count = 0;
        const read = (list) => new Proxy(list, {
            get: (target, name) => { count++; return target[name]; },
        });
        const words = Array.from({ length: 1500 }, (_, i) => i);
        return [FG.matches(read([-1, ...words]), read([...words, -2])).length, count];
    }"""
    )
    assert pairs == 1500 and count < 20_000
    texts = ["The award Philadelphia was Eagles given", "The team that was named here"]
    parts = blank.evaluate("([a, b]) => FG.diff(a, b)", texts)
    exact = blank.evaluate("([a, b]) => FG.diff(a, b, true)", texts)
    assert [(part["op"], part["text"]) for part in parts] == [
        ("same", "The "),
        ("del", "award Philadelphia was Eagles given"),
        ("ins", "team that was named here"),
    ]
    assert {"op": "same", "text": " was ", "start": 22, "end": 27} in exact


def warnings_of(tab, row: dict, doc: dict) -> list[str]:
    return tab.evaluate("([row, doc]) => FG.correctionWarnings(FG_SCHEMA, row, doc)", [row, doc])


def test_warnings_are_one_line_about_what_matters(blank, qa_feedback):
    row = {**ROW, "prediction 1": "One two three four five six. Seven eight nine ten. Last word."}
    spans = [{"error type": "Irrelevant", "explanation": "", "start": 29, "end": 50}]
    doc = {"errors": spans, "missing-info": [], "no-error": False}

    def warn(corrected: str, **more) -> list[str]:
        return warnings_of(blank, row, {**doc, "corrected-prediction": corrected, **more})

    assert warn(row["prediction 1"]) == []
    assert warn("One two three four five six. Last word.") == []
    assert warn("Five six. Last word, two.") == []  # few words are lost: editing
    assert warn("Seven eight nine ten. Last word.") == [
        "I1 is marked, but unchanged in the correction. 6 words without a mark are not in the"
        " correction: “One two three four five six.”."
    ]
    assert warn(" \n") == ["The correction is blank. Is there nothing in the answer to keep?"]
    assert warn("A cat.\n")[0].startswith("The correction is a copy of the reference.")
    assert warn("x", errors=[]) == ["The answer was changed, but no error is marked."]
    # few corrections of a study get one
    rows = json.loads((qa_feedback / "dev_feedback.json").read_text())
    found = [warnings_of(blank, row, {**row["feedback"], "no-error": False}) for row in rows]
    assert all(len(warnings) <= 1 for warnings in found)
    assert sum(map(bool, found)) <= max(1, len(rows) // 8)


# ---- layout --------------------------------------------------------------------------------------


def test_paper_and_the_room_below_the_text(chromium, tmp_path):
    long = item(passages=[["Cat", *["It was a long sentence. " * 9] * 30]])
    look = {"color_scheme": "dark", "viewport": {"width": 1440, "height": 900}}
    with opened(chromium, items=[long], tmp_path=tmp_path, **look) as tab:
        for at in range(10):
            drag(tab, at, at)
            press(tab, "1")
        # a long list of errors leaves its room below the submission, not above the correction
        top = tab.locator("#finish").bounding_box()["y"]
        last = tab.evaluate(
            """() => Math.max(...[...document.querySelectorAll("#judge > *")].map(
                (part) => part.getBoundingClientRect().bottom))"""
        )
        assert top - last < 40
        tab.emulate_media(media="print")
        cut = tab.evaluate(
            """() => ["#sources", "#marked"].filter((part) => {
                const node = document.querySelector(part);
                return node.scrollHeight > node.clientHeight + 2;
            })"""
        )
        assert cut == []
        colours = word(tab, 1).evaluate(
            "e => [getComputedStyle(e).printColorAdjust, getComputedStyle(e).backgroundColor]"
        )
        assert colours[0] == "exact" and not colours[1].endswith(" / 0)")
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(255, 255, 255)"
        assert not tab.is_visible("#submit") and tab.is_visible("#errors .card >> nth=0")
        tab.emulate_media(media="screen")


def test_a_phone_has_a_low_header_touch_texts_and_passages_from_below(chromium, tmp_path):
    items = [item(passages=LONG_PASSAGES, **{"prediction 1": LONG[:3000]})]
    with opened(chromium, items=items, tmp_path=tmp_path, **PHONE) as tab:
        shown = "all => all.filter((key) => key.checkVisibility()).map((key) => key.textContent)"
        assert tab.locator("kbd").evaluate_all(shown) == []  # it names no keys
        assert tab.locator("#bar").bounding_box()["height"] < 130
        word(tab, 30).tap()
        word(tab, 31).tap()
        tab.locator("#types button", has_text="Inconsistent").tap()
        assert tab.evaluate("document.activeElement.tagName") != "INPUT"  # no keyboard
        sheet = tab.locator("#sources").bounding_box()
        assert abs(sheet["y"] + sheet["height"] - 800) < 2
        assert tab.locator("[data-sentence='1:1']").bounding_box()["y"] > sheet["y"]
        tab.locator("[data-sentence='1:1']").tap()
        assert tab.inner_text("#sheet-title") == "Inconsistent Fact: 1:1"
        tab.locator("#sheet-done").tap()
        assert tab.locator(".sheet").count() == 0
        word(tab, 30).tap()
        texts = [said(tab), tab.inner_text("#text-hint"), tab.inner_text("#errors")]
        assert not any(key in text for text in texts for key in ("Enter", "Esc", "Shift", "Del"))
        assert tab.locator("#submit kbd").is_hidden()


# ---- scripts, hidden characters, the guideline ---------------------------------------------------

CHINESE = "我喜欢吃苹果。东京很大 and big"
HIDDEN = "a\u202etxt.exe\x07 b"


def test_words_of_scripts_without_spaces_and_hidden_characters(chromium, tmp_path, blank):
    hidden = {"passages": [["T", "one \u2066two"]], "gold": "\u202dg", "prediction 1": HIDDEN}
    items = [item(**hidden), item(id="c", **{"prediction 1": CHINESE})]
    with opened(chromium, items=items, tmp_path=tmp_path) as tab:
        codes = "nodes => nodes.map(n => n.dataset.code)"
        assert tab.locator("#text .control").evaluate_all(codes) == ["U+202E", "U+0007"]
        assert tab.locator("#text").evaluate("node => node.textContent") == HIDDEN
        assert tab.locator("#context .control").get_attribute("data-code") == "U+2066"
        assert tab.locator("#reference .control").get_attribute("data-code") == "U+202D"
        control = tab.locator("#text .control").first  # it turns nothing around
        assert control.evaluate("node => getComputedStyle(node).unicodeBidi") == "isolate"
        drag(tab, 0, 0)
        press(tab, "1")
        assert (errors(tab)[0]["start"], errors(tab)[0]["end"]) == (0, 10)
        press(tab, "]")
        units = tab.locator("#text .w").all_inner_texts()
        assert "".join(units) == CHINESE.replace(" ", "")
        assert "苹果" in units and "and" in units
        at = units.index("苹果")
        drag(tab, at, at)
        press(tab, "1")
        tab.fill("#correction", CHINESE.replace("苹果", "梨"))
        tab.wait_for_selector("#diff ins")
        assert tab.inner_text("#diff del") == "苹果"
        press(tab, "Control+Enter")
        doc = state(tab)["submitted"]
        (error,) = doc["errors"]
        assert CHINESE[error["start"] : error["end"]] == "苹果"
        assert annotation_problems(SCHEMA, {**ROW, "prediction 1": CHINESE}, doc) == []
    # a browser without dictionaries offers every character
    units = blank.evaluate(
        """text => {
        const { Segmenter } = Intl;
        delete Intl.Segmenter;
        const units = FG.units(FG.points(text));
        Intl.Segmenter = Segmenter;
        return units;
    }""",
        "苹果ab ก\u0e49ก cd",
    )
    assert units == [[0, 1], [1, 2], [2, 4], [5, 7], [7, 8], [9, 11]]


@pytest.mark.parametrize(
    "text, at, expected",
    [
        ("中文", 1, True),
        ("a中", 1, True),
        ("中。", 1, True),
        ("ไทย", 1, True),
        ("カナ", 1, True),
        ("ab", 1, False),
        ("a 中", 1, False),
        ("a 中", 2, False),
        ("。」", 1, True),
        ("」』", 1, False),
        ("한국", 1, False),  # Korean has spaces
        ("中文", 0, False),
        ("中文", 2, False),
    ],
)
def test_boundaries_inside_words(text, at, expected):
    assert is_inner_boundary(text, at) is expected


def test_the_guideline_is_open_until_it_was_read(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        body = tab.locator("#guide-body")
        assert body.is_visible()
        examples = sum(len(kind.examples) for kind in (*SCHEMA.errors, *SCHEMA.missing))
        assert tab.locator("#guide .example").count() == examples >= 16
        assert SCHEMA.errors[0].examples[0].why in body.inner_text()
        tab.click("#guide-read")
        assert not body.is_visible()
        reload(tab)
        assert not body.is_visible()
        tab.click("#guide-button")
        assert body.is_visible()
        tab.evaluate(
            "localStorage.setItem('fgrlhf/qa_feedback/guideline/anna', 'an older version')"
        )
        reload(tab)
        assert body.is_visible()
        tab.click("#guide-read")
        tab.click("#who")
        tab.fill("#name", "ben")
        press(tab, "Enter")
        tab.set_input_files("#file", tmp_path / "items.json")
        tab.wait_for_selector("#work:not([hidden])")
        assert body.is_visible()  # the second annotator has not read it yet


def test_each_kind_of_question_answering_has_a_right_and_a_nearly_right_example():
    for kind in (*SCHEMA.errors, *SCHEMA.missing):
        assert {example.applies for example in kind.examples} == {True, False}, kind.name


def test_a_file_without_examples_is_a_schema(tmp_path):
    tree = schema_tree()
    for kind in [*tree["errors"], *tree["missing"]]:
        del kind["examples"]
    assert schema_of(tmp_path, tree).errors[0].examples == ()

"""annotation.html: what is marked and typed is what the annotator meant, on every device."""

import copy
import json
import random

import pytest
from page_helpers import (
    ITEM,
    QA,
    TEXT,
    badge,
    downloaded,
    drag,
    opened,
    press,
    reload,
    state,
    violations,
    word,
)

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.words import is_inner_boundary, is_unspaced
from interface_html.rules import annotation_problems
from interface_html.schema import ASSIGNMENT, PAGE_KEYS, load_schema

SCHEMA = QA.schema
ROW = {key: value for key, value in ITEM.items() if key != "id"}
LONG = " ".join(f"word{i}" for i in range(1500)) + "."
PHONE = {"has_touch": True, "is_mobile": True, "viewport": {"width": 390, "height": 800}}


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


# ---- drags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["right", "below", "left", "above"])
def test_a_drag_may_end_outside_the_text(chromium, tmp_path, place):
    with opened(chromium, tmp_path=tmp_path) as tab:
        word(tab, 13).click()
        press(tab, "ArrowLeft")  # the cursor is on another word
        # two lines or more, whatever fonts the machine has
        tab.locator("#text").evaluate("text => text.style.width = '20em'")
        boxes = tab.locator("#text .w").evaluate_all("nodes => nodes.map((n) => n.offsetTop)")
        first, box = word(tab, 3).bounding_box(), tab.locator("#text").bounding_box()
        x, y = first["x"] + first["width"] / 2, first["y"] + first["height"] / 2
        ends = {
            "right": (box["x"] + box["width"] + 40, y),
            "below": (box["x"] + box["width"] / 2, box["y"] + box["height"] + 15),
            "left": (box["x"] - 40, y),
            "above": (box["x"] + box["width"] / 2, box["y"] - 15),
        }
        tab.mouse.move(x, y)
        tab.mouse.down()
        tab.mouse.move(*ends[place], steps=4)
        tab.mouse.up()
        press(tab, "4")
        line = [number for number, top in enumerate(boxes) if top == boxes[3]]
        words = TEXT.split()
        expected = {
            "right": words[3 : line[-1] + 1],
            "below": words[3:],
            "left": words[line[0] : 4],
            "above": words[:4],
        }[place]
        assert 0 < len(line) < len(words)
        assert [marked(tab)] == [" ".join(expected)]
        assert len(errors(tab)) == 1
        assert f"({len(expected)} words) is error 1 (Unverifiable Fact)" in said(tab)


def test_a_selection_without_a_pointer_event_is_marked_instead_of_the_cursor_word(
    chromium, tmp_path
):
    """As after a release outside the window."""
    with opened(chromium, tmp_path=tmp_path) as tab:
        word(tab, 13).click()
        select_natively(tab, "#text .w[data-i='4']")
        press(tab, "1")
        assert marked(tab) == "the"


def test_a_selection_in_another_text_marks_nothing(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        word(tab, 1).click()
        select_natively(tab, "[data-sentence-text='1:1']")
        press(tab, "1")
        assert "the selected text is not in the answer" in said(tab)
        assert tab.locator("#errors > li").count() == 0
        word(tab, 1).click()
        press(tab, "1")
        assert marked(tab) == "cat"


def test_the_message_has_the_marked_text_and_its_size(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        drag(tab, 1, 3)
        press(tab, "1")
        assert said(tab) == "Marked: “cat sat on” (3 words) is error 1 (Irrelevant)."


def test_the_first_click_in_a_long_answer_scrolls_nothing(chromium, tmp_path):
    with opened(chromium, items=[item(**{"prediction 1": LONG})], tmp_path=tmp_path) as tab:
        tab.focus("#comment")
        tab.evaluate("document.querySelector(`#text .w[data-i='900']`).scrollIntoView()")
        tab.evaluate("scrollBy(0, -400)")
        box = word(tab, 900).bounding_box()
        tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        press(tab, "1")
        assert "“word900”" in said(tab)


def test_after_undo_keys_refer_to_no_other_error(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        for number in (0, 2, 4):
            word(tab, number).click()
            press(tab, "1")
        tab.click("[data-key='errors-0-remove']")
        tab.click("[data-key='errors-1']")  # "on", the last one
        press(tab, "Control+z", "Delete")  # "The" comes back before it
        assert "Nothing to remove" in said(tab)
        assert [marked(tab, i) for i in range(3)] == ["The", "sat", "the"]


# ---- evidence ------------------------------------------------------------------------------------


def mark_inconsistent(tab) -> None:
    drag(tab, 1, 2)
    press(tab, "3")


@pytest.mark.parametrize("leave", ["Control+Enter", "Tab"])
@pytest.mark.parametrize("kind", ["errors", "missing-info"])
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


@pytest.mark.parametrize(
    "typed, passage, sentences",
    [
        ("1:1-3", 1, [1, 2, 3]),
        ("1：2", 1, [2]),  # full-width marks and digits of Chinese and Japanese keyboards
        ("１：１，３", 1, [1, 3]),
        ("1:1、2", 1, [1, 2]),
        ("1:2,1:3", 1, [2, 3]),
        (" 1 : 1 – 2 , 0 ,", 1, [1, 2, 0]),
        ("١:٢،٣", 1, [2, 3]),
        ("2:0-1", 2, [0, 1]),
    ],
)
def test_evidence_can_be_typed_in_many_ways(evidence_page, typed, passage, sentences):
    read = "text => FG.parseEvidence(FG_SCHEMA, text, FG_TEST_SOURCES)"
    assert evidence_page.evaluate(read, typed) == {"source": passage, "sentences": sentences}


@pytest.mark.parametrize(
    "typed, reason",
    [
        ("1:2,2:1", "an entry can point to one passage only"),
        ("1:3-2", "3-2 ends before it begins"),
        ("1:1-999999", "sentence 4 does not exist"),
        ("1:1-2,2", "names a sentence twice"),
        ("2,3", "write passage:sentences"),
        ("1:", "write passage:sentences"),
        ("1:2-", "write passage:sentences"),
        ("9:1-3", "passage 9 does not exist"),
        (",", "write passage:sentences"),
    ],
)
def test_what_is_no_evidence_has_a_reason(evidence_page, typed, reason):
    read = "text => FG.parseEvidence(FG_SCHEMA, text, FG_TEST_SOURCES).problem"
    assert reason in evidence_page.evaluate(read, typed)


@pytest.fixture(scope="module")
def evidence_page(chromium):
    with opened(chromium, items=None) as tab:
        tab.evaluate("sources => { window.FG_TEST_SOURCES = sources; }", ITEM["passages"])
        yield tab


def test_accepted_evidence_is_said(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        mark_inconsistent(tab)
        tab.keyboard.type("1：1-2")
        press(tab, "Enter")
        assert tab.inner_text("#message") == "Accepted as evidence: 1:1,2."
        assert tab.get_attribute("#message", "class") == "good"


def test_a_drag_from_another_text_selects_nothing(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        start = tab.locator("#reference").bounding_box()
        end = word(tab, 5).bounding_box()
        tab.mouse.move(start["x"] + 4, start["y"] + start["height"] / 2)
        tab.mouse.down()
        tab.mouse.move(end["x"] + end["width"] * 0.8, end["y"] + end["height"] / 2, steps=4)
        tab.mouse.up()
        assert tab.locator("#text .selected").count() == 0
        assert "the selection began in another text" in tab.inner_text("#message")
        press(tab, "1")
        assert tab.locator("#errors .card").count() == 0
        drag(tab, 1, 2)  # a drag in the text itself selects as before
        press(tab, "1")
        assert len(errors(tab)) == 1


def test_paper_has_the_whole_texts_and_lists(chromium, tmp_path):
    long = item(passages=[["Cat", *["It was a long sentence. " * 9] * 30]])
    with opened(chromium, items=[long], tmp_path=tmp_path, color_scheme="dark") as tab:
        drag(tab, 1, 2)
        press(tab, "1")
        tab.emulate_media(media="print")
        cut = tab.evaluate(
            """() => ["#sources", "#marked"].filter((part) => {
                const node = document.querySelector(part);
                return node.scrollHeight > node.clientHeight + 2;
            })"""
        )
        assert cut == []
        marked = word(tab, 1).evaluate(
            "e => [getComputedStyle(e).printColorAdjust, getComputedStyle(e).backgroundColor]"
        )
        assert marked[0] == "exact" and not marked[1].endswith(" / 0)")
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(255, 255, 255)"
        assert not tab.is_visible("#submit") and tab.is_visible("#errors .card")
        tab.emulate_media(media="screen")


def test_no_room_is_left_between_the_text_and_what_follows(chromium, tmp_path):
    """A long list of errors leaves its room below the submission, not above the correction."""
    with opened(chromium, tmp_path=tmp_path, viewport={"width": 1440, "height": 900}) as tab:
        for at in range(10):
            drag(tab, at, at)
            press(tab, "1")
        top = tab.locator("#finish").bounding_box()["y"]
        last = tab.evaluate(
            """() => Math.max(...[...document.querySelectorAll("#judge > *")].map(
                (part) => part.getBoundingClientRect().bottom))"""
        )
        assert top - last < 40


def test_touch_pages_name_no_keys(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path, **PHONE) as tab:
        shown = "all => all.filter((key) => key.checkVisibility()).map((key) => key.textContent)"
        assert tab.locator("kbd").evaluate_all(shown) == []


def test_evidence_that_was_erased_is_no_evidence(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        mark_inconsistent(tab)
        tab.keyboard.type("1:2")
        press(tab, "Enter")
        tab.fill("[data-key='errors-0-ids']", "")
        press(tab, "Enter")
        assert errors(tab)[0] == {
            "error type": "Wrong-Grounding",
            "explanation": "",
            "start": 4,
            "end": 11,
        }


def test_a_button_of_the_same_card_works_while_evidence_is_typed(chromium, tmp_path):
    """Leaving the field redraws the cards: the pressed button must stay the same element."""
    with opened(chromium, tmp_path=tmp_path) as tab:
        mark_inconsistent(tab)
        tab.keyboard.type("1:2")
        tab.click("[data-key='errors-0-remove']")
        assert errors(tab) == []


def test_undo_in_the_evidence_field(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        mark_inconsistent(tab)
        tab.keyboard.type("1:2")
        press(tab, "Control+z")
        assert tab.input_value("[data-key='errors-0-ids']") == ""
        press(tab, "Control+Shift+Z")
        assert tab.input_value("[data-key='errors-0-ids']") == "1:2"


def test_evidence_scrolls_into_view_and_has_the_number_to_type(chromium, tmp_path):
    passages = [[f"Title {p}", *(f"Sentence {s}. " * 12 for s in range(1, 9))] for p in range(1, 4)]
    with opened(chromium, items=[item(passages=passages)], tmp_path=tmp_path) as tab:
        assert tab.inner_text("[data-sentence='2:4']") == "2:4"
        names = tab.locator(".source-name")
        assert names.all_inner_texts() == ["Passage 1", "Passage 2", "Passage 3"]
        assert names.first.evaluate("node => getComputedStyle(node).position") == "sticky"
        assert not in_view(tab, "[data-sentence='3:6']")
        mark_inconsistent(tab)
        top = tab.evaluate("scrollY")
        tab.keyboard.type("3:6")
        assert in_view(tab, "[data-sentence='3:6']")
        assert tab.evaluate("scrollY") == top  # the answer stays where it is


def in_view(tab, selector: str) -> bool:
    """Whether the middle of an element is what a click there would hit."""
    return tab.evaluate(
        """selector => {
        const node = document.querySelector(selector), box = node.getBoundingClientRect();
        const x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
        const hit = document.elementFromPoint(x, y);
        return Boolean(hit && (node.contains(hit) || hit.contains(node)));
    }""",
        selector,
    )


def test_without_passages_no_kind_that_needs_them(chromium, tmp_path):
    with opened(chromium, items=[item(passages=[])], tmp_path=tmp_path) as tab:
        drag(tab, 1, 2)
        press(tab, "3")
        assert "this item has no passage that the answer could contradict" in said(tab)
        assert tab.locator("#errors > li").count() == 0


# ---- a kind that stays on ------------------------------------------------------------------------


def test_a_kind_that_stays_on_marks_each_selection(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        press(tab, "Shift+1")
        pressed = tab.locator("#types [aria-pressed=true]")
        assert pressed.all_inner_texts()[0].split()[:2] == ["I", "Irrelevant"]
        drag(tab, 0, 1)
        drag(tab, 3, 4)
        press(tab, "4")  # another kind stays on; nothing is selected
        drag(tab, 7, 8)
        assert [error["error type"] for error in errors(tab)] == [
            "Irrelevant",
            "Irrelevant",
            "Unverifiable",
        ]
        press(tab, "Escape")
        assert tab.locator("#types [aria-pressed=true]").count() == 0
        drag(tab, 11, 12)
        assert len(errors(tab)) == 3


def test_a_kind_that_stays_on_by_mouse_and_with_the_selection_there_is(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        drag(tab, 0, 1)
        tab.click("#keep")
        assert tab.get_attribute("#keep", "aria-pressed") == "true"
        tab.click("#types button >> nth=3")
        assert marked(tab) == "The cat"
        drag(tab, 3, 4)
        assert marked(tab) == "on the"
        tab.click("#types button >> nth=3")  # once more: it ends
        drag(tab, 7, 8)
        assert len(errors(tab)) == 2


# ---- badges, keys of kinds, ends of spans --------------------------------------------------------


def test_badges_have_numbers_and_show_what_belongs_together(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        for first in (0, 3):
            drag(tab, first, first + 1)
            press(tab, "1")
        assert [badge(word(tab, i)) for i in (0, 1, 3)] == ["I1", None, "I2"]
        assert tab.locator("#errors .badge").all_inner_texts() == ["I1", "I2"]
        linked = "document.querySelectorAll('.linked').length"
        tab.hover("[data-key='errors-1']")
        assert tab.locator("#text .linked").all_inner_texts() == ["on", "the"]
        word(tab, 0).hover()
        assert tab.locator("#errors .linked").inner_text().startswith("I1")
        tab.mouse.move(5, 5)
        assert tab.evaluate(linked) == 0


def test_no_badge_is_a_key_of_the_page(tmp_path):
    text = (QA.folder / "schema.js").read_text(encoding="utf-8")
    tree = json.loads(text.partition(ASSIGNMENT)[2].strip().removesuffix(";"))
    assert set(PAGE_KEYS) >= set("CENP")
    for letter in PAGE_KEYS:
        tree["errors"][0]["letter"] = letter
        path = tmp_path / "schema.js"
        path.write_text(f"{ASSIGNMENT} {json.dumps(tree)};", encoding="utf-8")
        with pytest.raises(UserError, match=f"has the letter '{letter}', which is a key"):
            load_schema(path)


def test_the_key_of_a_kind_changes_the_active_error(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        drag(tab, 1, 2)
        press(tab, "1")
        word(tab, 9).click()
        tab.click("[data-key='errors-0']")
        press(tab, "4")
        assert errors(tab) == [
            {"error type": "Unverifiable", "explanation": "", "start": 4, "end": 11}
        ]
        word(tab, 2).click()
        press(tab, "5")
        assert errors(tab)[0]["error type"] == "Incoherent"


def test_alt_and_arrows_move_the_ends_of_a_span(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        drag(tab, 1, 2)
        press(tab, "1")
        drag(tab, 5, 6)
        press(tab, "1")
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


def test_keys_to_the_correction_and_the_passages(chromium, tmp_path):
    focus = "document.activeElement.id"
    with opened(chromium, tmp_path=tmp_path) as tab:
        press(tab, "c")
        assert tab.evaluate(focus) == "correction"
        assert tab.input_value("#correction") == TEXT  # the key itself is not typed
        press(tab, "Escape", "p")
        assert tab.evaluate(focus) == "sources"


def test_digits_on_keyboards_that_need_shift_for_them(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        drag(tab, 1, 2)
        tab.evaluate(
            """() => document.activeElement.dispatchEvent(
            new KeyboardEvent("keydown", { key: "&", code: "Digit1", bubbles: true }))"""
        )
        assert marked(tab) == "cat sat"


# ---- the correction ------------------------------------------------------------------------------


def test_undo_keeps_the_caret_where_the_text_changed(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        tab.focus("#correction")
        tab.evaluate("document.activeElement.setSelectionRange(4, 4)")
        tab.keyboard.type("XX")
        press(tab, "Control+z")
        assert tab.input_value("#correction") == TEXT
        assert tab.evaluate("document.activeElement.selectionStart") == 4
        press(tab, "Control+Shift+Z")
        assert tab.evaluate("document.activeElement.selectionStart") == 6


@pytest.mark.parametrize("ends", ["\r\n", "\r", "\n"])
def test_a_correction_keeps_the_line_ends(chromium, tmp_path, ends):
    text = f"One.{ends}Two.{ends}Three."
    with opened(chromium, items=[item(**{"prediction 1": text})], tmp_path=tmp_path) as tab:
        tab.fill("#correction", "One.\nZwei.\nThree.")
        assert state(tab)["doc"]["corrected-prediction"] == f"One.{ends}Zwei.{ends}Three."
        tab.fill("#correction", "One.\nTwo.\nThree.")
        assert state(tab)["doc"]["corrected-prediction"] == text


def test_keys_in_the_correction_compare_no_texts(chromium, tmp_path):
    """Comparing long texts waits for a pause in typing."""
    with opened(chromium, items=[item(**{"prediction 1": LONG})], tmp_path=tmp_path) as tab:
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
        assert tab.evaluate("calls") == 1


def longest_common(a: list, b: list) -> int:
    """The length of a longest common subsequence, by the quadratic table."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def test_diffs_are_longest_common_subsequences(chromium):
    rng = random.Random(5)
    cases = []
    for _ in range(3000):
        letters = rng.randint(1, 6)
        cases.append([[rng.randrange(letters) for _ in range(rng.randint(0, 14))] for _ in "ab"])
    with opened(chromium, items=None) as tab:
        result = tab.evaluate("cases => cases.map(([a, b]) => FG.matches(a, b))", cases)
    for (a, b), pairs in zip(cases, result):
        assert all(a[i] == b[j] for i, j in pairs)
        assert all(i < k and j < m for (i, j), (k, m) in zip(pairs, pairs[1:]))
        assert len(pairs) == longest_common(a, b)


def test_few_changes_of_a_long_text_take_few_steps(chromium):
    """Changes at both ends of 1,500 words: a table of all pairs would read 2,250,000 words."""
    with opened(chromium, items=None) as tab:
        count = tab.evaluate(
            """() => {
            let count = 0;
            const read = (list) => new Proxy(list, {
                get: (target, name) => { count++; return target[name]; },
            });
            const words = Array.from({ length: 1500 }, (_, i) => i);
            const pairs = FG.matches(read([-1, ...words]), read([...words, -2])).length;
            return [pairs, count];
        }"""
        )
    assert count[0] == 1500
    assert count[1] < 20_000


def test_diffs_for_readers_leave_out_chance_matches(chromium):
    before, after = "The award Philadelphia was Eagles given", "The team that was named here"
    with opened(chromium, items=None) as tab:
        parts = tab.evaluate("([a, b]) => FG.diff(a, b)", [before, after])
        exact = tab.evaluate("([a, b]) => FG.diff(a, b, true)", [before, after])
    assert [(part["op"], part["text"]) for part in parts] == [
        ("same", "The "),
        ("del", "award Philadelphia was Eagles given"),
        ("ins", "team that was named here"),
    ]
    assert {"op": "same", "text": " was ", "start": 22, "end": 27} in exact


def warnings_of(tab, row: dict, doc: dict) -> list[str]:
    return tab.evaluate("([row, doc]) => FG.correctionWarnings(FG_SCHEMA, row, doc)", [row, doc])


def test_warnings_are_one_line_about_what_matters(chromium):
    row = {**ROW, "prediction 1": "One two three four five six. Seven eight nine ten. Last word."}
    spans = [{"error type": "Irrelevant", "explanation": "", "start": 29, "end": 50}]
    doc = {"errors": spans, "missing-info": [], "no-error": False}
    with opened(chromium, items=None) as tab:

        def warn(corrected: str, **more) -> list[str]:
            return warnings_of(tab, row, {**doc, "corrected-prediction": corrected, **more})

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


def test_few_of_the_real_corrections_get_a_warning(chromium, qa_feedback):
    rows = json.loads((qa_feedback / "dev_feedback.json").read_text())
    with opened(chromium, items=None) as tab:
        found = [warnings_of(tab, row, {**row["feedback"], "no-error": False}) for row in rows]
    assert all(len(warnings) <= 1 for warnings in found)
    assert sum(map(bool, found)) <= max(1, len(rows) // 8)


# ---- what stays in view, is read out, and fits on a phone ----------------------------------------


def test_kinds_and_message_stay_in_view_of_a_long_answer(chromium, tmp_path):
    with opened(chromium, items=[item(**{"prediction 1": LONG})], tmp_path=tmp_path) as tab:
        last = word(tab, 1200)
        last.scroll_into_view_if_needed()
        last.click()
        press(tab, "1")
        height = tab.viewport_size["height"]
        for selector in ("#types", "#message", "[data-key='errors-0']"):
            box = tab.locator(selector).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= height, selector
        press(tab, *["ArrowUp"] * 40)  # the line of the cursor is never under the bar
        cursor = tab.locator("#text .cursor").bounding_box()
        bar = tab.locator("#kinds-bar").bounding_box()
        assert cursor["y"] >= bar["y"] + bar["height"]


def test_the_cursor_the_selection_and_marks_are_announced(chromium, tmp_path):
    heard = "document.querySelector('#announce').textContent"
    with opened(chromium, tmp_path=tmp_path) as tab:
        assert tab.get_attribute("#announce", "aria-live") == "polite"
        press(tab, "Escape", "Home", "ArrowRight")
        assert tab.evaluate(heard) == "“cat”, word 2 of 15, not marked"
        press(tab, "Shift+ArrowRight")
        assert tab.evaluate(heard) == "Selected: “cat sat”, 2 words, not marked"
        press(tab, "1", "ArrowLeft")
        assert tab.evaluate(heard) == "“cat”, word 2 of 15, marked: error 1 (Irrelevant)"


def test_a_phone_has_a_low_header_touch_texts_and_passages_from_below(chromium, tmp_path):
    passages = [[f"Title {p}", *(f"Sentence {s}. " * 12 for s in range(1, 9))] for p in range(1, 4)]
    items = [item(passages=passages, **{"prediction 1": LONG[:3000]})]
    with opened(chromium, items=items, tmp_path=tmp_path, **PHONE) as tab:
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


def test_words_of_scripts_without_spaces(chromium, tmp_path):
    row = item(**{"prediction 1": CHINESE})
    with opened(chromium, items=[row], tmp_path=tmp_path) as tab:
        units = tab.locator("#text .w").all_inner_texts()
        assert "".join(units) == CHINESE.replace(" ", "")
        assert "苹果" in units and "and" in units
        at = units.index("苹果")
        drag(tab, at, at)
        press(tab, "1")
        (error,) = errors(tab)
        assert CHINESE[error["start"] : error["end"]] == "苹果"
        tab.fill("#correction", CHINESE.replace("苹果", "梨"))
        tab.wait_for_selector("#diff ins")
        assert tab.inner_text("#diff del") == "苹果"
        press(tab, "Control+Enter")
        doc = state(tab)["submitted"]
        assert annotation_problems(SCHEMA, {**ROW, "prediction 1": CHINESE}, doc) == []


def test_a_browser_without_dictionaries_offers_every_character(chromium):
    with opened(chromium, items=None) as tab:
        tab.evaluate("delete Intl.Segmenter")
        units = tab.evaluate("FG.units(FG.points('苹果ab ก\u0e49ก cd'))")
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
        ("。」", 1, False),
        ("한국", 1, False),  # Korean has spaces
        ("中文", 0, False),
        ("中文", 2, False),
    ],
)
def test_boundaries_inside_words(text, at, expected):
    assert is_inner_boundary(text, at) is expected


def test_boundaries_are_the_same_in_the_browser(chromium, tmp_path):
    rng = random.Random(6)
    pieces = "中あア一。「」ー々ก\u0e49ລມក\u1000a1. \n\u3000é😀𠀀\u3100\u30a0\u3040\u2fe0"
    texts = ["".join(rng.choices(pieces, k=rng.randint(1, 12))) for _ in range(300)]
    edges = [point for code in range(0x0D00, 0x32400, 16) for point in (code - 1, code)]
    letters = [chr(point) for point in edges if not 0xD800 <= point < 0xE000]
    with opened(chromium, items=None) as tab:
        assert tab.evaluate("texts => texts.map(FG.isUnspaced)", letters) == [
            is_unspaced(letter) for letter in letters
        ]
        inner = tab.evaluate(
            """texts => texts.map((text) => FG.points(text).map(
            (_, at) => FG.isInnerBoundary(FG.points(text), at)))""",
            texts,
        )
        assert inner == [[is_inner_boundary(text, at) for at in range(len(text))] for text in texts]
        docs, rows = [], []
        for text in texts:
            for _ in range(5):
                start, end = sorted(rng.randint(0, len(text)) for _ in range(2))
                docs.append(irrelevant(start, end))
                rows.append({**ROW, "prediction 1": text})
        found = tab.evaluate(
            """([rows, docs]) => docs.map((doc, i) =>
            FG.annotationProblems(FG_SCHEMA, rows[i], doc).map(({ field }) => field))""",
            [rows, docs],
        )
    for row, doc, fields in zip(rows, docs, found):
        expected = [field for field, _ in annotation_problems(SCHEMA, row, doc)]
        assert sorted(fields) == sorted(expected), (row["prediction 1"], doc["errors"])
    assert sum(not fields for fields in found) > 50


def irrelevant(start: int, end: int) -> dict:
    error = {"error type": "Irrelevant", "explanation": "", "start": start, "end": end}
    return {
        "errors": [error],
        "missing-info": [],
        "corrected-prediction": "Mended.",
        "no-error": False,
    }


def test_hidden_characters_are_visible_and_turn_nothing_around(chromium, tmp_path):
    text = "a\u202etxt.exe\x07 b"
    passages = [["T", "one \u2066two"]]
    row = item(passages=passages, gold="\u202dg", **{"prediction 1": text})
    with opened(chromium, items=[row], tmp_path=tmp_path) as tab:
        codes = tab.locator("#text .control").evaluate_all(
            "nodes => nodes.map(n => n.dataset.code)"
        )
        assert codes == ["U+202E", "U+0007"]
        assert tab.locator("#text").evaluate("node => node.textContent") == text
        assert tab.locator("#context .control").get_attribute("data-code") == "U+2066"
        assert tab.locator("#reference .control").get_attribute("data-code") == "U+202D"
        control = tab.locator("#text .control").first
        assert control.evaluate("node => getComputedStyle(node).unicodeBidi") == "isolate"
        drag(tab, 0, 0)
        press(tab, "1")
        assert (errors(tab)[0]["start"], errors(tab)[0]["end"]) == (0, 10)


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


def test_the_sheet_and_the_guide_have_no_violation(chromium, tmp_path):
    for options in (PHONE, {}):
        with opened(chromium, tmp_path=tmp_path, bypass_csp=True, **options) as tab:
            word(tab, 1).click()
            tab.click("#types button >> nth=2")
            assert violations(tab) == []


def test_a_file_without_examples_is_a_schema(tmp_path):
    text = (QA.folder / "schema.js").read_text(encoding="utf-8")
    tree = json.loads(text.partition(ASSIGNMENT)[2].strip().removesuffix(";"))
    for kind in [*tree["errors"], *tree["missing"]]:
        del kind["examples"]
    write_json(tmp_path / "tree.json", tree)
    path = tmp_path / "schema.js"
    path.write_text(f"{ASSIGNMENT} {(tmp_path / 'tree.json').read_text()};", encoding="utf-8")
    assert load_schema(path).errors[0].examples == ()

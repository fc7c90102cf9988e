"""Pages from disk: whose work is shown and saved, two tabs, times, files and navigation."""

import json
from pathlib import Path

import pytest
from page_helpers import (
    ITEM,
    QA,
    downloaded,
    identify,
    opened,
    press,
    reload,
    rename,
    row_with,
    said,
    wait_until,
)

from interface_html.format import Item
from interface_html.items import read_items
from interface_html.pages import self_contained
from tasks.qa_feedback.feedback import read_feedback


def items_of(count: int, **changes) -> list[dict]:
    return [{**ITEM, "id": str(i), "question": f"Q{i}?", **changes} for i in range(count)]


def written(path: Path, rows) -> Path:
    path.write_text(json.dumps(rows))
    return path


# Counts the files whose text the page has read. A timer runs after the page has used the text.
COUNT_FILES = """() => {
    if (window.filesRead !== undefined) return;
    window.filesRead = 0;
    const read = Blob.prototype.text;
    Blob.prototype.text = async function () {
        const text = await read.call(this);
        setTimeout(() => { window.filesRead += 1; });
        return text;
    };
}"""


def pick(tab, path: Path) -> None:
    """Open a file. What was shown before may look like its items, so wait until it is read."""
    tab.evaluate(COUNT_FILES)
    before = tab.evaluate("() => window.filesRead")
    tab.set_input_files("#file", path)
    wait_until(tab, "before => window.filesRead > before", before)


def correct(tab, text: str) -> None:
    """Submit the open item with an irrelevant first word and this correction."""
    press(tab, "Escape", "Home", "1")
    tab.fill("#correction", text)
    press(tab, "Escape", "Control+Enter")


def corrections(content: bytes) -> list[str]:
    return [row["feedback"]["corrected-prediction"] for row in json.loads(content)]


# ---- whose work ----------------------------------------------------------------------------------


def test_a_colleagues_file_shows_and_saves_the_colleagues_work(chromium, tmp_path):
    items = written(tmp_path / "items.json", [ITEM])
    with opened(chromium, items=None) as tab:
        pick(tab, items)
        correct(tab, "ANNA.")
        anna = tmp_path / "anna.json"
        anna.write_bytes(downloaded(tab))
        rename(tab, "ben")
        assert "No items yet" in tab.inner_text("#empty")  # nothing of anna's is shown
        pick(tab, items)
        assert "0 done" in tab.inner_text("#position")
        correct(tab, "BEN.")
        assert corrections(downloaded(tab)) == ["BEN."]
        pick(tab, anna)
        assert "work of yours (ben) on 1 item" in tab.inner_text("#empty")
        tab.click("#use-file")
        assert tab.input_value("#correction") == "ANNA."
        assert "(from the file)" in tab.inner_text("#position")
        assert downloaded(tab) == anna.read_bytes()
        pick(tab, anna)
        tab.click("#use-mine")
        assert corrections(downloaded(tab)) == ["BEN."]
        pick(tab, items)
        assert tab.input_value("#correction") == "BEN."  # the same file goes on as it was


def test_the_own_file_comes_back_without_a_question_and_with_its_record(chromium, tmp_path):
    with opened(chromium, items=[ITEM], tmp_path=tmp_path) as tab:
        correct(tab, "Mended.")
        (tmp_path / "own.json").write_bytes(downloaded(tab))
        pick(tab, tmp_path / "own.json")
        assert "(submitted)" in tab.inner_text("#position")
        with tab.expect_download() as event:
            tab.click("#record")
        (entry,) = json.loads(Path(event.value.path()).read_text())
        assert (entry["annotator"], entry["revision"]["annotation"]) == ("anna", 1)
        assert entry["guideline"]["annotation"] == QA.schema.guideline_version


def test_a_name_is_needed_and_checked(chromium, tmp_path):
    with opened(chromium, items=None) as tab:
        rename(tab, "anna")
        tab.evaluate("localStorage.clear(); sessionStorage.clear()")
        reload(tab, "#name")
        gaps = """() => {
            const edges = (query) => document.querySelector(query).getBoundingClientRect(),
                name = edges("#name"), { outlineWidth, outlineOffset } =
                    getComputedStyle(document.querySelector("#name:focus-visible"));
            return [parseFloat(outlineWidth) + parseFloat(outlineOffset),
                name.top - edges("#empty label").bottom, edges("#start").top - name.bottom];
        }"""
        ring, above, below = tab.evaluate(gaps)
        assert ring == 5 and above > ring and below > ring  # the ring touches neither
        for bad, reason in (("  ", "type a name"), ("x" * 61, "at most 60")):
            tab.fill("#name", bad)
            tab.click("#start")
            assert reason in tab.inner_text("#name-problem")
        identify(tab, "李 <b>")
        assert tab.inner_text("#who") == "李 <b>"


# ---- two tabs ------------------------------------------------------------------------------------


def second_tab(tab):
    """Another tab of the same page, which shows the file that was opened last."""
    other = tab.context.new_page()
    other.goto(tab.url)
    other.wait_for_selector("#work:not([hidden])")
    return other


def test_two_tabs_show_each_others_work_and_lose_nothing(chromium, tmp_path):
    """What another tab does moves neither the caret of this one nor its place on the page."""
    with opened(chromium, items=items_of(2), tmp_path=tmp_path) as tab:
        other = second_tab(tab)
        tab.fill("#correction", "Two  words.")
        tab.evaluate("document.querySelector('#correction').setSelectionRange(4, 4)")
        place = tab.evaluate("window.scrollY")
        press(other, "Escape", "Home", "1")
        tab.wait_for_selector("#errors > li")
        assert "changed in another tab" in tab.inner_text("#notice")
        tab.keyboard.type("more")
        assert tab.input_value("#correction") == "Two more words."
        assert tab.evaluate("window.scrollY") == place
        press(tab, "Escape", "Home", "ArrowRight", "ArrowRight", "4")
        reload(tab)
        assert marks(tab) == 2
        press(other, "Escape", "]")
        press(other, "n", "Control+Enter")  # the other item
        wait_until(tab, "() => document.querySelector('#position').textContent.includes('1 done')")


def test_two_tabs_of_a_browser_work_for_two_annotators(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        other = second_tab(tab)
        rename(other, "ben")
        press(tab, "Escape", "Home", "1")
        reload(tab)
        assert tab.inner_text("#who") == "anna"
        assert tab.locator("#errors > li").count() == 1
        reload(other, "#empty:not([hidden])")  # ben has opened no file
        assert other.inner_text("#who") == "ben"
        stored = other.evaluate("() => Object.keys(localStorage).join(' ')")
        assert "/of/anna/" in stored and "/of/ben/" not in stored


def position(tab) -> str:
    """Such as "1 of 3"."""
    return " ".join(tab.inner_text("#position").split()[1:4])


def test_each_tab_keeps_its_file_and_its_place(chromium, tmp_path):
    two = written(tmp_path / "two.json", items_of(2, gold="Other."))
    with opened(chromium, items=None) as tab:
        pick(tab, written(tmp_path / "one.json", items_of(1)))
        other = second_tab(tab)
        assert position(other) == "1 of 1"
        pick(other, two)
        reload(tab)
        assert position(tab) == "1 of 1"
        reload(other)
        assert position(other) == "1 of 2"
    inside = read_items(QA, written(tmp_path / "items.json", items_of(3)))
    page = tmp_path / "page.html"
    page.write_text(self_contained(QA, "annotation", inside), encoding="utf-8")
    with opened(chromium, where=page) as tab:
        other = second_tab(tab)
        pick(other, two)
        reload(tab)
        assert position(tab) == "1 of 3"
        press(tab, "]", "]")
        assert position(tab) == "3 of 3"
        pick(tab, two)
        assert position(tab) == "1 of 2"
        press(tab, "]")
        reload(tab)
        assert position(tab) == "2 of 2"
        tab.locator("#notice button").click()  # back to the page's items
        assert position(tab) == "3 of 3"
        pick(other, two)
        reload(tab)
        assert position(tab) == "3 of 3"


ASKS_BEFORE_CLOSING = """() => {
    const event = new Event("beforeunload", { cancelable: true });
    return !window.dispatchEvent(event);
}"""
# From now on localStorage has no room for anything.
FILL = """() => {
    const store = Storage.prototype.setItem;
    Storage.prototype.setItem = function (name, value) {
        if (this === localStorage) throw new DOMException("no room", "QuotaExceededError");
        store.call(this, name, value);
    };
}"""


def test_a_full_storage_loses_nothing_before_a_reload(chromium, tmp_path):
    with opened(chromium, items=items_of(3), tmp_path=tmp_path) as tab:
        correct(tab, "First.")
        assert not tab.evaluate(ASKS_BEFORE_CLOSING)
        tab.evaluate(FILL)
        correct(tab, "Second.")
        assert "storage is full" in tab.inner_text("#notice")
        assert "Item 3 of 3 (not submitted), 2 done" in tab.inner_text("#position")
        tab.fill("#correction", "Third.")
        press(tab, "Escape", "[", "]")
        assert tab.input_value("#correction") == "Third."
        press(tab, "Escape", "Home", "1", "Control+Enter")
        assert corrections(downloaded(tab)) == ["First.", "Second.", "Third."]
        assert tab.evaluate(ASKS_BEFORE_CLOSING)


def test_work_in_a_storage_that_is_full_is_still_there(chromium, tmp_path):
    with opened(chromium, items=items_of(2), tmp_path=tmp_path) as tab:
        correct(tab, "First.")
        tab.add_init_script(f"({FILL})()")
        reload(tab)
        assert "1 done" in tab.inner_text("#position") and tab.inner_text("#who") == "anna"
        assert corrections(downloaded(tab)) == ["First."]


# Another tab has stored a document with these parts, and this one was not told.
STORE_UNTOLD = """parts => {
    const [name, text] = Object.entries(localStorage).find(([key]) => key.includes("/annotation/"));
    const state = JSON.parse(text);
    state.doc = { ...state.doc, ...parts };
    localStorage.setItem(name, JSON.stringify(state));
}"""


def marks(tab) -> int:
    return tab.locator("#errors > li").count()


def test_a_change_that_a_tab_has_missed(chromium, tmp_path):
    """It is joined with the tab's own; of the same part one is chosen; none is submitted unseen."""
    with opened(chromium, items=[ITEM], tmp_path=tmp_path) as tab:
        press(tab, "Escape", "Home", "1")
        tab.evaluate(STORE_UNTOLD, {"corrected-prediction": "Theirs."})
        press(tab, "Escape", "Home", "ArrowRight", "ArrowRight", "4")
        assert "its changes were added to yours" in tab.inner_text("#notice")
        assert (tab.input_value("#correction"), marks(tab)) == ("Theirs.", 2)
        reload(tab, "#errors > li")
        assert (tab.input_value("#correction"), marks(tab)) == ("Theirs.", 2)
        press(tab, "Escape", "Control+z")  # the own change was the last step
        assert (tab.input_value("#correction"), marks(tab)) == ("Theirs.", 1)
        tab.evaluate(STORE_UNTOLD, {"corrected-prediction": "Theirs again."})
        tab.fill("#correction", "Mine.")
        assert "changed the same part" in tab.inner_text("#notice")
        tab.click("#notice button:last-child")  # keep
        assert tab.is_hidden("#notice")
        tab.evaluate(STORE_UNTOLD, {"corrected-prediction": "Theirs once more."})
        tab.fill("#correction", "Mine again.")
        tab.click("#notice button")  # load
        assert tab.input_value("#correction") == "Theirs once more."
        tab.fill("#correction", "Mine at last.")
        reload(tab, "#errors > li")
        assert tab.input_value("#correction") == "Mine at last."
        tab.evaluate(STORE_UNTOLD, {"corrected-prediction": "Theirs at last."})
        press(tab, "Escape", "Control+Enter")
        assert "Look at it and try again" in tab.inner_text("#message")
        assert tab.input_value("#correction") == "Theirs at last."
        press(tab, "Escape", "Control+Enter")
        assert corrections(downloaded(tab)) == ["Theirs at last."]


# ---- time ----------------------------------------------------------------------------------------


def test_the_stopwatch_by_hand(chromium):
    with opened(chromium, items=None) as tab:
        active, wall = tab.evaluate(
            """() => {
                const watch = new FG.Stopwatch(100, true);
                let active = watch.act(110) + watch.act(115); // 10 + 5
                active += watch.act(200); // a gap of 85 counts as 30
                watch.pause();
                active += watch.act(300) + watch.act(301); // hidden: 0, then 1
                return [active, watch.lap(301)];
            }"""
        )
        assert (active, wall) == (46, 201)
        assert tab.evaluate("new FG.Stopwatch(0, false).act(9)") == 0


@pytest.mark.parametrize("page", ["annotation", "comparison"])
def test_reading_with_the_mouse_and_the_wheel_counts(chromium, tmp_path, page):
    with opened(chromium, page, items=items_of(2), tmp_path=tmp_path) as tab:
        tab.evaluate("window.clock = FG.now(); FG.now = () => window.clock")
        press(tab, "]")  # an item that is opened at a known time

        def after(seconds, act):
            tab.evaluate("seconds => { window.clock += seconds }", seconds)
            act()

        after(20, lambda: tab.mouse.move(300, 300))
        after(25, lambda: tab.mouse.wheel(0, 50))
        tab.wait_for_timeout(200)  # the wheel's event comes later
        after(100, lambda: tab.mouse.move(310, 310))  # counts as 30
        press(tab, *(["n"] if page == "annotation" else "111111"), "Control+Enter")
        with tab.expect_download() as event:
            tab.click("#record")
        (entry,) = json.loads(Path(event.value.path()).read_text())
        assert (entry["seconds"][page], entry["wall"][page]) == (75, 145)
        assert entry["revision"][page] == 1 and entry["submitted"][page].endswith("Z")
        press(tab, "]", "Control+Enter")
        said(tab, "Unchanged: your earlier submission stays. This is the next item.")
        with tab.expect_download() as event:
            tab.click("#record")
        (again,) = json.loads(Path(event.value.path()).read_text())
        assert again["revision"] == entry["revision"] and again["submitted"] == entry["submitted"]


def test_what_is_typed_in_one_go_is_one_step_to_undo(chromium, tmp_path):
    with opened(chromium, items=[ITEM], tmp_path=tmp_path) as tab:
        tab.evaluate("window.clock = FG.now(); FG.now = () => window.clock")
        tab.focus("#correction")
        press(tab, "Control+a")
        for text in ("One", " two", " three"):
            tab.keyboard.type(text)
            tab.evaluate("window.clock += 2")
        for left in ("One two", "One", ITEM["prediction 1"]):
            press(tab, "Control+z")
            assert tab.input_value("#correction") == left


# ---- the download --------------------------------------------------------------------------------


def test_the_download_names_changes_after_submission_and_missing_comparisons(chromium, tmp_path):
    with opened(chromium, items=items_of(3), tmp_path=tmp_path) as tab:
        for text in ("First.", "Second."):
            correct(tab, text)
        press(tab, "[", "[")
        tab.fill("#correction", "Changed.")
        press(tab, "Escape", "]", "]")
        assert corrections(downloaded(tab)) == ["First.", "Second."]
        notice = tab.inner_text("#notice")
        assert "1 item has changes that are not submitted: the file has the version" in notice
        assert "2 rows have no comparison" in notice and "1 not submitted yet" in notice
        tab.click("#notice button")
        assert tab.inner_text("#position").startswith("Item 1 of 3 (changed since submitted)")
        press(tab, "Escape", "Control+Enter")
        content = downloaded(tab)
        assert corrections(content) == ["Changed.", "Second."]
        assert "not submitted:" not in tab.inner_text("#notice")
        # the pipeline reads rows that were only annotated
        (tmp_path / "rows.json").write_bytes(content)
        assert [row.is_compared for row in read_feedback(tmp_path / "rows.json")] == [False] * 2


# ---- files ---------------------------------------------------------------------------------------


def test_samples_are_opened_by_the_picker_and_by_dropping(chromium, tmp_path):
    passages = [{"wikipage": "Cat", "content": "A cat sat. It was blue."}]
    answers = ["The cat.", " ", "c", "d"]
    samples = [
        {"id": f"s{i}", "question": f"Q{i}?", "passages": passages, "predictions": answers}
        for i in range(2)
    ]
    text = "".join(json.dumps(sample) + "\n" for sample in samples)
    (tmp_path / "samples.jsonl").write_text(text)
    (item, _) = read_items(
        QA, written(tmp_path / "s.json", [{**s, "id": str(i)} for i, s in enumerate(samples)])
    )
    with opened(chromium, items=None) as tab:
        tab.evaluate(
            """text => {
                const data = new DataTransfer();
                data.items.add(new File([text], "samples.jsonl"));
                const event = { dataTransfer: data, bubbles: true, cancelable: true };
                document.body.dispatchEvent(new DragEvent("drop", event));
            }""",
            text,
        )
        tab.wait_for_selector("#work:not([hidden])")
        assert tab.inner_text("#position").startswith("Item 1 of 2")
        press(tab, "n", "Control+Enter")
        (row,) = json.loads(downloaded(tab))
        assert {key: row[key] for key in QA.schema.row} == item.row
        bad = tmp_path / "bad.jsonl"
        bad.write_text(text + "{")
        tab.set_input_files("#file", bad)
        wait_until(
            tab,
            "() => document.querySelector('#notice').textContent.includes('row 2 of the file is')",
        )


# ---- navigation ----------------------------------------------------------------------------------


def test_keys_go_from_item_to_item(chromium, tmp_path):
    with opened(chromium, items=items_of(5), tmp_path=tmp_path) as tab:

        def at() -> str:
            return tab.inner_text("#item-title")

        press(tab, "]", "]")
        assert at() == "Q2?"
        press(tab, "[")
        assert at() == "Q1?"
        press(tab, "n", "Control+Enter", "[")
        assert at() == "Q1?"
        press(tab, "[", "}")
        assert at() == "Q2?"  # Q1 is done
        press(tab, "g")
        tab.keyboard.type("5")
        press(tab, "Enter")
        assert at() == "Q4?" and tab.is_disabled("#next")
        tab.click("#next-open")
        assert at() == "Q0?"
        press(tab, "g")
        tab.keyboard.type("9")
        press(tab, "Enter")
        assert "There is no item 9" in tab.inner_text("#notice") and at() == "Q0?"


def press_as(tab, key: str, code: str, **modifiers: bool) -> None:
    """Press a key of another keyboard: what it types, and its place on a US keyboard."""
    tab.evaluate(
        """event => document.activeElement.dispatchEvent(
            new KeyboardEvent("keydown", { bubbles: true, cancelable: true, ...event }))""",
        {"key": key, "code": code, **modifiers},
    )


def test_letters_of_other_scripts_are_keys_too(chromium, tmp_path):
    with opened(chromium, items=items_of(2), tmp_path=tmp_path) as tab:
        press_as(tab, "т", "KeyN")
        assert tab.is_checked("#no-error")
        press_as(tab, "я", "KeyZ", ctrlKey=True)
        assert not tab.is_checked("#no-error")
        press_as(tab, "З", "KeyP", shiftKey=True)  # noqa: RUF001
        assert tab.is_hidden("#sources")
        press_as(tab, "пп", "KeyG")  # some keys type two characters
        assert tab.evaluate("document.activeElement.id") == "goto"
        press(tab, "Escape")
        press_as(tab, "é", "KeyN")  # a Latin letter that is no key
        assert not tab.is_checked("#no-error")
        press_as(tab, "?", "BracketLeft", shiftKey=True)  # Dvorak
        assert tab.is_visible("#help")
    with opened(chromium, "comparison", items=items_of(1), tmp_path=tmp_path) as tab:
        press_as(tab, "٢", "Digit2")
        assert tab.locator("#choices input:checked").count() == 1
        press_as(tab, "ь", "KeyM")
        assert tab.is_checked("input[value=ranks]")


def test_a_long_history_is_cut_by_its_size(chromium):
    with opened(chromium, items=None) as tab:
        left, size, last = tab.evaluate(
            """() => {
                const step = (_, i) => [["text", i, "", "ä".repeat(5000)]];
                const undo = Array.from({ length: 20 }, step);
                const state = { doc: {}, undo };
                FG.capHistory(state, 100000);
                const bytes = new TextEncoder().encode(JSON.stringify(state)).length;
                return [undo.length, bytes, undo.at(-1)[0][1]];
            }"""
        )
        assert (left, last) == (9, 19) and 80_000 < size <= 100_000


# ---- the comparison page -------------------------------------------------------------------------


def test_the_words_that_differ_are_marked(chromium, tmp_path):
    changes = {f"prediction {i}": f"The cat number{i} sat." for i in range(1, 5)}
    with opened(chromium, "comparison", items=[ITEM | changes], tmp_path=tmp_path) as tab:
        outputs = tab.locator(".candidate .output")
        texts = outputs.all_inner_texts()
        press(tab, "d")
        assert tab.locator(".candidate ins").count() == tab.locator(".candidate del").count() == 3
        base = texts[0].split()[2]
        assert tab.locator(".candidate del").all_inner_texts() == [base] * 3
        tab.locator("#differences button", has_text="None").click()
        assert outputs.all_inner_texts() == texts


ALT_GR = ("altKey", "ctrlKey")


# what the keys for the previous, the next and the next open item type, their places and modifiers
BRACKETS = {
    "US": [("[", "BracketLeft"), ("]", "BracketRight"), ("}", "BracketRight", "shiftKey")],
    "German Mac, with Option": [
        ("[", "Digit5", "altKey"),
        ("]", "Digit6", "altKey"),
        ("}", "Digit9", "altKey"),
    ],
    "German Windows, with AltGr": [
        ("[", "Digit8", *ALT_GR),
        ("]", "Digit9", *ALT_GR),
        ("}", "Digit0", *ALT_GR),
    ],
    "German": [("ü", "BracketLeft"), ("+", "BracketRight"), ("*", "BracketRight", "shiftKey")],
    "French": [("Dead", "BracketLeft"), ("$", "BracketRight"), ("£", "BracketRight", "shiftKey")],
    "Russian": [
        ("х", "BracketLeft"),  # noqa: RUF001
        ("ъ", "BracketRight"),
        ("Ъ", "BracketRight", "shiftKey"),
    ],
}


def test_brackets_of_other_keyboards(chromium, tmp_path):
    with opened(chromium, items=items_of(4), tmp_path=tmp_path) as tab:

        def after(key, code, *modifiers) -> str:
            press_as(tab, key, code, **dict.fromkeys(modifiers, True))
            return tab.inner_text("#item-title")

        press(tab, "]", "n", "Control+Enter", "[", "[")
        for keyboard, (previous, following, following_open) in BRACKETS.items():
            assert tab.inner_text("#item-title") == "Q0?"
            assert after(*following) == "Q1?", keyboard
            assert after(*previous) == "Q0?", keyboard
            assert after(*following_open) == "Q2?", keyboard  # Q1 is done
            tab.focus("#correction")
            assert after(*previous) == "Q2?", keyboard  # it is text
            press(tab, "Escape", "[", "[")


ROW = {key: value for key, value in ITEM.items() if key != "id"}


def annotation_of(correction: str) -> dict:
    error = {"error type": "Irrelevant", "explanation": "", "start": 0, "end": 3}
    return {"errors": [error], "missing-info": [], "corrected-prediction": correction}


def test_the_download_names_changes_of_the_files_own_feedback(chromium, tmp_path):
    row = row_with(Item("0", ROW), annotation=annotation_of("Of the file."))
    with opened(chromium, items=[row], tmp_path=tmp_path) as tab:
        assert tab.inner_text("#position").startswith("Item 1 of 1 (from the file)")
        tab.fill("#correction", "Changed.")
        press(tab, "Escape")
        assert tab.inner_text("#position").startswith("Item 1 of 1 (changed, not submitted)")
        assert corrections(downloaded(tab)) == ["Of the file."]
        assert "1 item has changes that are not submitted" in tab.inner_text("#notice")
        press(tab, "Control+z")
        assert tab.inner_text("#position").startswith("Item 1 of 1 (from the file)")
        press(tab, "Control+Shift+z", "Control+Enter")
        assert corrections(downloaded(tab)) == ["Changed."]

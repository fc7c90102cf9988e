"""annotation.html from disk: keyboard, mouse and touch input, storing, undo, download."""

import json

import pytest
from page_helpers import (
    ITEM,
    PHONE,
    QA,
    TEXT,
    downloaded,
    drag,
    identify,
    opened,
    press,
    reload,
    row_with,
    state,
    wait_until,
    word,
)

from fgrlhf.base.files import write_json
from interface_html.format import Item
from interface_html.items import read_items, rows_text
from interface_html.pages import PageSettings, self_contained, write_page
from interface_html.rules import annotation_problems

SCHEMA = QA.schema
CORRECTED = "The dog sat on the mat. It was 😀 red."
PLACE = '{"passage_id":1,"sentence_id":[2]}'
EXPECTED = {
    "errors": [
        {"error type": "Irrelevant", "explanation": "", "start": 4, "end": 11},
        {"error type": "Wrong-Grounding", "explanation": PLACE, "start": 31, "end": 37},
        {"error type": "Redundant", "explanation": "on the mat.", "start": 50, "end": 56},
    ],
    "missing-info": [{"error type": "Missing-Answer", "passage_id": 2, "sentence_id": [0, 1]}],
    "corrected-prediction": CORRECTED,
    "no-error": False,
}
ROW = {key: value for key, value in ITEM.items() if key != "id"}
BYTES = rows_text([row_with(Item("one", ROW), EXPECTED)]).encode()


def by_keyboard(tab):
    """All steps of the annotation as a list of calls; the page may be reloaded after each."""
    keys = lambda *names: lambda: press(tab, *names)  # noqa: E731
    focus = lambda: press(tab, "Escape", *["Home"] * 4)  # noqa: E731
    return [
        lambda: (focus(), press(tab, "Home", "ArrowRight", "Shift+ArrowRight", "1")),
        lambda: (focus(), press(tab, *["ArrowRight"] * 8, "Shift+ArrowRight", "3")),
        lambda: (
            focus(),
            tab.focus("[data-key='errors-1-ids']"),
            tab.keyboard.type("1:2"),
            press(tab, "Enter"),
        ),
        lambda: (
            focus(),
            press(tab, *["End"] * 3, "Shift+ArrowLeft", "2"),
            press(tab, *["ArrowRight"] * 3, "Shift+ArrowRight", "Shift+End", "Enter"),
        ),
        lambda: (keys("6")(), tab.keyboard.type("2:0,1"), press(tab, "Enter")),
        lambda: (
            tab.focus("#correction"),
            press(tab, "Control+a"),
            tab.keyboard.insert_text(CORRECTED),
            press(tab, "Escape"),
        ),
    ]


def test_a_whole_annotation_by_keyboard_with_a_reload_after_every_step(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        for step in by_keyboard(tab):
            step()
            before = state(tab)
            reload(tab)
            assert state(tab) == before
            assert tab.locator("#errors > li").count() == len(before["doc"]["errors"])
        assert state(tab)["doc"] == EXPECTED
        assert annotation_problems(SCHEMA, ROW, state(tab)["doc"]) == []
        press(tab, "Control+Enter")
        assert "Submitted" in tab.inner_text("#message")
        assert downloaded(tab) == BYTES


def test_a_whole_annotation_by_touch(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path, **PHONE) as tab:

        def taps(*numbers):
            for number in numbers:
                word(tab, number).tap()

        mark = lambda label: tab.locator("#types button", has_text=label).tap()  # noqa: E731
        taps(1, 2)
        mark("Irrelevant")
        taps(8, 9)
        mark("Inconsistent")
        tab.locator("[data-sentence='1:2']").tap()
        taps(13, 14)
        mark("Repetitive")
        taps(3, 5)
        tab.locator("#missing-types button", has_text="Missing Answer").tap()
        tab.locator("[data-sentence='2:0']").tap()
        tab.locator("[data-sentence='2:1']").tap()
        tab.fill("#correction", CORRECTED)
        assert state(tab)["doc"] == EXPECTED
        tab.locator("#submit").tap()
        assert downloaded(tab) == BYTES


@pytest.mark.slow
def test_undo_and_redo_fifty_times_over_reloads(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        docs = []
        for step in range(50):
            press(tab, "Escape", "Home", "1") if step % 2 == 0 else press(tab, "Delete")
            docs.append(state(tab)["doc"])
        for back in range(49):
            press(tab, "Control+z")
            assert state(tab)["doc"] == docs[48 - back]
            if back % 10 == 0:
                reload(tab)
        press(tab, "Control+z", "Control+z")
        assert state(tab)["doc"]["errors"] == []
        for doc in docs:
            press(tab, "Control+Shift+Z")
            assert state(tab)["doc"] == doc


def test_every_refusal_says_why(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        said = lambda: tab.inner_text("#message")  # noqa: E731
        tab.click("#types button >> nth=0")
        assert "nothing is selected" in said()
        press(tab, "Control+Enter")
        assert "mark an error, or tick it" in said()
        drag(tab, 1, 2)
        press(tab, "1")
        drag(tab, 2, 3)
        press(tab, "4")
        assert "overlaps error 1 (Irrelevant)" in said() and len(state(tab)["doc"]["errors"]) == 1
        press(tab, "n")
        assert "cannot be ticked: 1 error" in said() and not tab.is_checked("#no-error")
        press(tab, "Control+Enter")
        assert "The correction is the unchanged text" in said()
        drag(tab, 0, 0)
        press(tab, "2")
        assert "no text before the selection" in said()
        drag(tab, 13, 14)
        press(tab, "2")
        drag(tab, 13, 14)
        assert "must come before error 2 (Repetitive)" in said()
        press(tab, "Escape", "6")
        tab.keyboard.type("7:1")
        press(tab, "Enter")
        assert "passage 7 does not exist" in said()
        tab.fill("[data-key='missing-info-0-ids']", "1:1")
        tab.click("[data-sentence='2:1']")
        assert "can point to one passage only" in said()
        press(tab, "Escape")
        tab.fill("#correction", "x")
        press(tab, "Escape", "Control+Enter")
        assert "Error 2 (Repetitive): evidence is empty" in said()
        assert not state(tab)["submitted"]


def test_no_error_needs_the_text_as_it_is(chromium, tmp_path):
    item = {**ITEM, "prediction 1": "One\r\ntwo\rthree 😀"}
    with opened(chromium, items=[item], tmp_path=tmp_path) as tab:
        assert not tab.is_checked("#no-error")
        tab.check("#no-error")
        tab.focus("#correction")
        tab.keyboard.type("x")
        press(tab, "Control+Enter")
        assert "differs from the text although no error" in tab.inner_text("#problems")
        tab.uncheck("#no-error")
        assert "differs from the text" not in tab.inner_text(
            "#problems"
        )  # the list follows the work
        tab.check("#no-error")
        tab.focus("#correction")
        press(tab, "Backspace", "End", "Control+Enter")
        if not state(tab)["submitted"]:  # the x was typed at the start of the field
            tab.click("#reset")
            press(tab, "Control+Enter")
        said = json.loads(downloaded(tab))[0]["feedback"]
        nothing = {"errors": [], "missing-info": []}
        assert said == nothing | {"corrected-prediction": item["prediction 1"]}


def test_keys_are_off_in_fields_and_warnings_are_live(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        drag(tab, 1, 1)
        press(tab, "1")
        tab.focus("#correction")
        press(tab, "Control+End")
        tab.keyboard.type(" 1n2?e")
        assert len(state(tab)["doc"]["errors"]) == 1 and not tab.is_visible("#help")
        assert tab.locator("#diff ins").inner_text().strip() == "1n2?e"
        tab.fill("#correction", TEXT.replace("mat", "rug"))
        tab.wait_for_selector("#warnings li")
        assert tab.inner_text("#warnings") == "I1 is marked, but unchanged in the correction."
        press(tab, "Control+z", "Control+z")
        assert tab.input_value("#correction") == TEXT


def test_real_rows_come_back_byte_for_byte(chromium, qa_feedback):
    with opened(chromium, items=None) as tab:
        for split in ("train", "dev"):
            path = qa_feedback / f"{split}_feedback.json"
            tab.set_input_files("#file", path)
            found = "text => document.querySelector('#position').textContent.includes(text)"
            wait_until(tab, found, arg=f"of {len(json.loads(path.read_text()))}")
            assert downloaded(tab) == path.read_bytes()
            reload(tab)
            assert downloaded(tab) == path.read_bytes()


def test_without_storage_it_works_and_says_so(chromium, tmp_path):
    with opened(chromium, items=None) as tab:
        tab.add_init_script(
            "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } })"
        )
        tab.reload()
        identify(tab)
        assert "a reload loses your work" in tab.inner_text("#notice")
        write_json(tmp_path / "i.json", [ITEM])
        tab.set_input_files("#file", tmp_path / "i.json")
        tab.wait_for_selector("#work:not([hidden])")
        press(tab, "n", "Control+Enter")
        assert json.loads(downloaded(tab))[0]["feedback"]["errors"] == []


def test_a_self_contained_page_needs_no_other_file(chromium, tmp_path):
    path = tmp_path / "alone" / "page.html"
    path.parent.mkdir()
    path.write_text(
        self_contained(QA, "annotation", read_items(QA, write(tmp_path, [ITEM]))), encoding="utf-8"
    )
    with opened(chromium, where=path) as tab:
        for step in by_keyboard(tab):
            step()
        press(tab, "Control+Enter")
        assert downloaded(tab) == BYTES


def write(folder, rows):
    write_json(folder / "rows.json", rows)
    return folder / "rows.json"


@pytest.mark.parametrize(
    "task, code, label",
    [("qa_feedback", "en", "No error, nothing missing"), ("detoxification", "de", "Kein Fehler")],
)
def test_nothing_missing_is_confirmed_only_where_it_is_asked_for(
    chromium, tmp_path, task, code, label
):
    row = ITEM if task == "qa_feedback" else {"id": "t", "prompt": "Say", "response": "Hello."}
    items, out = str(write(tmp_path, [row])), str(tmp_path / "page.html")
    path = write_page(PageSettings(task=task, items=items, out=out, language=code))
    with opened(chromium, where=path) as tab:
        assert tab.inner_text("label:has(#no-error) span") == label
        press(tab, "Escape", "?")
        cells = "rows => rows.map((row) => [row.cells[0].innerText, row.cells[1].innerText])"
        keys = dict(tab.locator("#help tr").evaluate_all(cells))
        assert keys["N"].casefold() == label.casefold()


def test_a_page_sent_by_mail_is_small(tmp_path):
    page = tmp_path / "page.html"
    write_page(PageSettings(task="qa_feedback", items=str(write(tmp_path, [ITEM])), out=str(page)))
    assert page.stat().st_size < 400_000


def test_a_bad_file_is_refused_with_row_and_reason(chromium, tmp_path):
    with opened(chromium, items=None) as tab:
        for text, reason in (
            ("{", "not valid JSON"),
            ("[]", "at least one row"),
            (json.dumps([ITEM, {**ITEM, "gold": 1}]), "row 1 of the file: `gold` must be text"),
            (json.dumps([{**ITEM, "question": " "}]), "`question` is blank: it must hold a text"),
            (json.dumps([{**ITEM, "id": 7}]), "row 0 of the file: `id` must be a text"),
            (json.dumps([{**ITEM, "tweet": 2**60 + 1}]), f"`tweet` is {2**60 + 1}, which"),
        ):
            (tmp_path / "bad.json").write_text(text)
            tab.set_input_files("#file", tmp_path / "bad.json")
            found = "reason => document.querySelector('#notice').textContent.includes(reason)"
            wait_until(tab, found, arg=reason)

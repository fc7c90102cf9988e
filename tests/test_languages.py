"""The pages in other languages: complete catalogues, no English text, layout from right to left."""

import json
import re
from pathlib import Path

import pytest
from interface_texts import COMPUTED, all_strings, messages, places, rule_reasons, sources
from made_tasks import ROW, full_task, page_with, saved, task_with
from page_helpers import ITEM, QA, drag, opened, press, word

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from interface_html.languages import ENGLISH, LOCALES, Language, language_codes, language_of
from interface_html.pages import PageSettings, write_page
from interface_html.schema import PageName
from interface_html.server import static_files

TRANSLATED = [code for code in language_codes() if code != "en"]


# ---- catalogues ----------------------------------------------------------------------------------


def stored(code: str) -> dict:
    return json.loads((LOCALES / f"{code}.json").read_text(encoding="utf-8"))


def test_there_is_a_language_in_each_direction():
    assert {stored(code)["direction"] for code in TRANSLATED} == {"ltr", "rtl"}


def test_every_message_is_a_string_in_the_source():
    for name, text in sources():
        if name == "language.js":
            continue  # it defines the functions
        assert not COMPUTED.findall(text), name


@pytest.mark.parametrize("code", TRANSLATED)
def test_a_catalogue_has_exactly_the_messages_of_the_sources(code):
    plain, plural = messages()
    catalogue = stored(code)["messages"]
    assert not plain & plural
    assert sorted(catalogue) == sorted(plain | plural)
    assert {key for key, value in catalogue.items() if isinstance(value, dict)} == plural


@pytest.mark.parametrize("code", TRANSLATED)
def test_translations_have_the_places_of_their_keys(code):
    catalogue = stored(code)
    for key, value in [*catalogue["messages"].items(), *catalogue["reasons"].items()]:
        if isinstance(value, str):
            assert places(value) == places(key), key
            assert value.strip() and value.strip() == value
            continue
        for category, form in value.items():
            # a form for one number may have it as a word
            allowed = {"n"} if category in ("zero", "one", "two") else set()
            assert places(form) <= places(key) and places(key) - places(form) <= allowed, key


@pytest.mark.parametrize("code", TRANSLATED)
def test_every_reason_of_a_rule_is_translated_and_no_other(code):
    reasons = set(stored(code)["reasons"])
    missing = {text for text in rule_reasons() if text not in reasons}
    assert not missing
    assert not reasons - all_strings()


def test_a_message_in_a_template():
    language = Language("xx", "ltr", {"The {noun}": "Das ({noun})", "Start": "Los"})
    assert language.text("Start") == "Los"
    assert language.text("The {noun}", noun="answer") == "Das (\u2068answer\u2069)"
    assert language.text("Not there {noun}", noun="x") == "Not there \u2068x\u2069"
    assert ENGLISH.text("The {noun}", noun="answer") == "The answer"


def test_an_unknown_language():
    for code in ("xx", "../de", ""):
        with pytest.raises(UserError, match="set language=en or language=ar or language=de"):
            language_of(code)


# ---- pages ---------------------------------------------------------------------------------------


def test_the_command_writes_a_page_in_a_language(tmp_path):
    items = tmp_path / "items.json"
    write_json(items, [ITEM])
    out = tmp_path / "page.html"
    settings = PageSettings(task="qa_feedback", items=str(items), out=str(out), language="ar")
    text = write_page(settings).read_text(encoding="utf-8")
    assert '<html lang="ar" dir="rtl">' in text
    assert "<h3 lang=" in text  # headings of the schema are English
    with pytest.raises(UserError, match="language=xx"):
        write_page(PageSettings(task="qa_feedback", items=str(items), out=str(out), language="xx"))


def test_served_pages_have_the_language():
    for language in (ENGLISH, language_of("de")):
        html = static_files(QA, language)["/templates/annotation.html"][0].decode()
        assert f'<html lang="{language.code}" dir="ltr">' in html
        assert ('id="messages"' in html) == (language is not ENGLISH)


def page_in(folder: Path, language: Language, page: PageName = "annotation") -> Path:
    """A page of a task with all parts, in a language."""
    folder = folder / language.code
    folder.mkdir(exist_ok=True)
    return page_with(full_task(folder), [ROW], page, language)


@pytest.mark.parametrize("code", TRANSLATED)
def test_messages_on_a_page(chromium, tmp_path, code):
    with opened(chromium, where=page_in(tmp_path, language_of(code))) as tab:
        categories = tab.evaluate(
            "code => new Intl.PluralRules(code).resolvedOptions().pluralCategories", code
        )
        for value in stored(code)["messages"].values():
            if isinstance(value, dict):
                assert sorted(value) == sorted(categories)
        if code != "de":
            return
        reason = "“9:9” is not accepted: passage 9 does not exist: there are 2, counted from 1"
        translated = tab.evaluate("reason => FG.reason(reason)", reason)
        plain = translated.replace("\u2068", "").replace("\u2069", "")
        expected = "„9:9“ wird nicht angenommen: passage 9 gibt es nicht: Es gibt 2, gezählt ab 1"
        assert plain == expected
        assert tab.evaluate("FG.reason('no rule says this')") == "no rule says this"
        assert tab.evaluate("FG.t('not a message {n}', {n: 1.5})") == "not a message 1,5"
        forms = tab.evaluate(
            "[1, 2].map((n) => FG.tn('{n} word', '{n} words', { n }))"
            ".concat([1, 2].map((n) => FG.tn('{n} cat', '{n} cats', { n })))"
        )
        assert forms == ["1 Wort", "2 Wörter", "1 cat", "2 cats"]


# ---- from right to left --------------------------------------------------------------------------

# Whether ABC stands to the left of DEF in a message of values only. Inside an isolate, a text
# without letters outside of further isolates would be left-to-right.
ORDER = """() => {
    const node = document.createElement('span');
    document.querySelector('#message').replaceChildren(node);
    node.textContent = FG.t('Not submitted: {problem}', {
        problem: FG.t('{entry}: {reason}.', { entry: 'ABC', reason: 'DEF' }),
    });
    const place = (text) => {
        const range = document.createRange();
        const at = node.textContent.indexOf(text);
        range.setStart(node.firstChild, at);
        range.setEnd(node.firstChild, at + text.length);
        return range.getBoundingClientRect().left;
    };
    return place('ABC') < place('DEF');
}"""


def left(tab, selector: str) -> float:
    return tab.locator(selector).first.bounding_box()["x"]


@pytest.mark.parametrize("code", ["en", "ar"])
def test_the_layout_follows_the_language_and_english_texts_keep_their_direction(
    chromium, tmp_path, code
):
    language, wide = language_of(code), {"viewport": {"width": 1500, "height": 900}}
    is_mirrored = language.direction == "rtl"
    with opened(chromium, where=page_in(tmp_path, language), **wide) as tab:
        assert tab.evaluate("document.documentElement.dir") == language.direction
        quoted = tab.evaluate("FG.t('Marked: “{quote}”', { quote: 'البلاد،' })")
        assert "“\u2068البلاد،\u2069”" in quoted  # the comma stays behind the word
        word(tab, 1).click()
        press(tab, "3")
        order = [left(tab, f"#types .type >> nth={i}") for i in range(3)]
        columns = [left(tab, "#sources"), left(tab, "#judge"), left(tab, "#marked")]
        bar = [left(tab, "#bar h1"), left(tab, "#previous"), left(tab, "#next")]
        for positions in (order, columns, bar):
            assert positions == sorted(positions, reverse=is_mirrored), positions
        border = "getComputedStyle(document.querySelector('.card')).border{}Width"
        widths = [tab.evaluate(border.format(side)) for side in ("Left", "Right")]
        wider = max(widths, key=lambda width: float(width.removesuffix("px")))
        assert wider == widths[is_mirrored]
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.evaluate(ORDER) == (not is_mirrored)
        direction = "id => getComputedStyle(document.getElementById(id)).direction"
        assert [tab.evaluate(direction, name) for name in ("text", "reference")] == ["ltr", "ltr"]
        assert left(tab, "#text .w >> nth=0") < left(tab, "#text .w >> nth=1")
        kinds = "[...document.querySelectorAll('#types .type bdi')].map((node) => node.lang)"
        if is_mirrored:
            assert set(tab.evaluate(kinds)) == {"en"}
        assert tab.evaluate("getComputedStyle(document.querySelector('kbd')).direction") == "ltr"


def test_the_other_pages_from_right_to_left(chromium, tmp_path):
    """`Answer B` stays in this order: it is one piece of English. Arrow keys follow the page."""
    arabic = language_of("ar")
    for page in ("comparison", "rating"):
        with opened(chromium, page, where=page_in(tmp_path, arabic, page)) as tab:
            headings = tab.locator(".candidate h3 bdi")
            assert headings.first.inner_text() == "Answer A"
            assert headings.first.evaluate("e => getComputedStyle(e).unicodeBidi") == "isolate"
            assert tab.locator(".source-name bdi").first.inner_text() == "Passage 1"
            tab.click("#guide-more summary")
            example = tab.locator(".example:has(q)").first
            quote, why = (example.locator(part) for part in ("q", ".why"))
            # on lines of their own
            assert why.bounding_box()["y"] >= quote.bounding_box()["y"] + 10
            if page == "rating":
                tab.focus("#outputs")
                press(tab, "ArrowLeft")
                active = "document.querySelector('.pair.active').dataset.card"
                assert tab.evaluate(active) == "2"


def marked_by_mouse_and_keys(tab) -> None:
    """Mark with the mouse and with the keyboard, move an end, and submit."""
    drag(tab, 1, 2)
    press(tab, "1")
    tab.focus("#text")
    press(tab, "Home", "End", "ArrowLeft", "Shift+ArrowRight", "4")
    press(tab, "Alt+ArrowLeft", "Control+Enter")
    assert not tab.locator("#problems li").count(), tab.inner_text("#problems")


TIMES = r'"(seconds|wall|saved)":[0-9.]+|"time":"[^"]*"'


def stored_work(tab) -> dict:
    """The keys and values of this browser's storage, without times."""
    text = tab.evaluate("JSON.stringify(Object.entries(localStorage).sort())")
    return {key: re.sub(TIMES, "", value) for key, value in json.loads(text)}


def test_every_language_stores_the_same(chromium, tmp_path):
    """Arrow keys follow the direction of the marked text, whatever the language of the page."""
    text = "החתול ישב על המחצלת. הוא היה אדום."
    responses = [text, *ROW["responses"][1:]]
    hebrew = {**ROW, "id": "h", "response": text, "responses": responses}
    results = []
    for language in (ENGLISH, *(language_of(code) for code in TRANSLATED)):
        folder = tmp_path / language.code
        folder.mkdir()
        path = page_with(task_with(folder, correction=False), [ROW, hebrew], language=language)
        with opened(chromium, where=path) as tab:
            marked_by_mouse_and_keys(tab)
            marked_by_mouse_and_keys(tab)
            results.append((stored_work(tab), saved(tab, "#download")))
    quotes = [
        [row["response"][span["start"] : span["end"]] for span in row["spans"]]
        for row in results[0][1]
    ]
    # left is back in English, and forward in Hebrew
    assert quotes == [["cat sat", "the"], ["ישב", "המחצלת. הוא היה"]]
    assert all(result == results[0] for result in results[1:])


def test_an_arabic_page_keeps_its_direction_around_english_texts(chromium, tmp_path):
    task = task_with(tmp_path, correction=False, missing=[], mark_outputs=True)
    style = (
        "([selector, part, key]) => getComputedStyle(document.querySelector(selector), part)[key]"
    )
    with opened(chromium, where=page_with(task, [ROW], language=language_of("ar"))) as tab:
        press(tab, "Home", "1")
        shown = {
            selector: tab.evaluate(style, [selector, None, "direction"])
            for selector in ("h4", "h4 bdi", "#text")
        }
        assert shown == {"h4": "rtl", "h4 bdi": "ltr", "#text": "ltr"}
        assert tab.evaluate(style, [".tag", "::before", "unicodeBidi"]) == "plaintext"

"""The pages in other languages: complete catalogues, no English text, layout from right to left."""

import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from interface_texts import (
    COMPUTED,
    all_strings,
    messages,
    places,
    pseudo_language,
    rule_reasons,
    sources,
)
from made_tasks import ROW, page_with, task_with
from page_helpers import QA, TEXT, drag, opened, press, violations, word
from rating_tasks import rating_task, row
from rating_tasks import write_page as rating_page
from slow import with_slow
from test_adjudicate import two
from test_liked_spans import FLUENT, WRONG
from test_severities import SEVERITIES
from test_suggestion_page import THREE

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from interface_html.languages import ENGLISH, LOCALES, Language, language_codes, language_of
from interface_html.pages import Settings, write_page
from interface_html.server import static_files
from interface_html.tasks import FeedbackTask, feedback_of

TRANSLATED = [code for code in language_codes() if code != "en"]
ROWS = [ROW, {**ROW, "id": "s", "suggestions": THREE}, {**ROW, "id": "u", "context": []}]


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


@pytest.mark.parametrize("code", TRANSLATED)
def test_plural_forms_are_those_of_the_language(chromium, tmp_path, code):
    with page_in(chromium, tmp_path, language_of(code)) as tab:
        categories = tab.evaluate(
            "code => new Intl.PluralRules(code).resolvedOptions().pluralCategories", code
        )
    for value in stored(code)["messages"].values():
        if isinstance(value, dict):
            assert sorted(value) == sorted(categories)


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
    write_json(items, [ITEM_ROW])
    out = tmp_path / "page.html"
    settings = Settings(task="qa_feedback", items=str(items), out=str(out), language="ar")
    text = write_page(settings).read_text(encoding="utf-8")
    assert '<html lang="ar" dir="rtl">' in text
    assert "<h3 lang=" in text  # headings of the schema are English
    with pytest.raises(UserError, match="language=xx"):
        write_page(Settings(task="qa_feedback", items=str(items), out=str(out), language="xx"))


def test_served_pages_have_the_language():
    for language in (ENGLISH, language_of("de")):
        html = static_files(QA, language)["/templates/annotation.html"][0].decode()
        assert f'<html lang="{language.code}" dir="ltr">' in html
        assert ('id="messages"' in html) == (language is not ENGLISH)


ITEM_ROW = {
    "question": "Who sat?",
    "passages": [["Cat", "A cat sat."]],
    "gold": "A cat.",
    **{f"prediction {i}": TEXT for i in range(1, 5)},
}


def made_task(folder: Path, **keys) -> FeedbackTask:
    keys = {"severities": SEVERITIES, "comment": "optional", **keys}
    return task_with(folder, **keys)


@contextmanager
def page_in(browser, folder: Path, language: Language, page="annotation", **options):
    """A page of a task with all parts, in a language."""
    folder = folder / language.code
    folder.mkdir()
    task = made_task(folder)
    path = page_with(task, ROWS, page, language)
    with opened(browser, page, where=path, **options) as tab:
        yield tab


@pytest.mark.parametrize("page", ["comparison", "rating"])
def test_headings_and_examples_of_the_task_keep_their_direction(chromium, tmp_path, page):
    """In a page from right to left, `Answer B` stays in this order: it is one piece of English."""
    with page_in(chromium, tmp_path, language_of("ar"), page) as tab:
        headings = tab.locator(".candidate h3 bdi")
        assert headings.first.inner_text() == "Answer A"
        assert headings.first.evaluate("e => getComputedStyle(e).unicodeBidi") == "isolate"
        assert tab.locator(".source-name bdi").first.inner_text() == "Passage 1"
        tab.click("#guide-more summary")
        example = tab.locator(".example:has(q)").first
        quote, why = (example.locator(part) for part in ("q", ".why"))
        assert why.bounding_box()["y"] >= quote.bounding_box()["y"] + 10  # on lines of their own


# Visible texts and labels of the interface: without keys, without texts of the item, and without
# texts of the task, which are marked with their language.
SHOWN = """() => {
    const foreign = 'kbd, [lang]:not(html), script, style, .badge, .sid, #text, #item-title,'
      + ' #reference, .sentence, .output, q, textarea, .said, #who';
    const texts = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode, parent = node.parentElement;
      if (parent.closest(foreign) || !parent.checkVisibility() || !node.data.trim()) continue;
      texts.push(node.data.trim());
    }
    const names = ['aria-label', 'placeholder', 'title', 'aria-valuetext'];
    for (const node of document.querySelectorAll(names.map((name) => `[${name}]`).join())) {
      if (!node.checkVisibility() && !node.matches('input')) continue;
      for (const name of names) {
        const value = node.getAttribute(name);
        if (value && value !== node.getAttribute('aria-keyshortcuts')) texts.push(value);
      }
    }
    return texts;
  }"""
ISOLATED = re.compile("\u2068([^\u2068\u2069]*)\u2069")


def without_values(text: str, known: str) -> str:
    """The text without isolated values that are texts of the item or the task."""
    while True:
        found = ISOLATED.finditer(text)
        match = next((one for one in found if one[1].lower() in known.lower()), None)
        if match is None:
            break
        text = text[: match.start()] + text[match.end() :]
    return text.replace("\u2068", "").replace("\u2069", "")


def english_in(tab, known: str) -> list[str]:
    """The shown texts that have Latin words of their own, in a language that has none."""
    shown = [text for text in tab.evaluate(SHOWN) if text not in known]
    return [text for text in shown if re.search("[A-Za-z]{2}", without_values(text, known))]


# names, typed texts, and the words that the warning about a correction quotes
NAMES = (
    "anna",
    "2:4,5",
    "9:9",
    "record.json",
    "bad file.json",
    "The sat on the mat. It was red. …",
)


def known_texts(task: FeedbackTask, rows=ROWS) -> str:
    """All texts of the task and of the items, and names that pages show."""
    texts: list[str] = []

    def collect(value) -> None:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            for part in value.values():
                collect(part)
        elif isinstance(value, list | tuple):
            for part in value:
                collect(part)

    collect(task.schema.model_dump())
    collect(list(rows))
    return "\n".join([*texts, *NAMES])


def copied(task: FeedbackTask, folder: Path) -> Path:
    """A folder with the scripts of a task, for its pages."""
    for script in task.scripts:
        shutil.copy(script, folder)
    return folder


def each_state_of_annotation(tab):
    """Bring the page into its states. Yields after each."""
    yield "open"
    word(tab, 1).click()
    press(tab, "3")
    yield "marked"
    tab.keyboard.press("M")
    yield "severity"
    press(tab, "Control+Enter")
    yield "problems"
    press(tab, "Escape", "1")
    yield "no overlap"
    press(tab, "e")
    yield "editing"
    press(tab, "Escape", "7")
    tab.keyboard.type("9:9")
    press(tab, "Enter")
    yield "evidence refused"
    press(tab, "Control+Enter")
    yield "problems with evidence"
    tab.fill("#correction", "x")
    tab.wait_for_selector("#warnings li")
    yield "warnings"
    press(tab, "Escape", "?")
    yield "help"
    press(tab, "Escape", "s")
    yield "asks for a reason"
    press(tab, "6", "Enter")
    yield "the explanation is missing"
    press(tab, "1", "Enter")
    yield "skipped"
    press(tab, "y")
    yield "suggestion"
    press(tab, "[")
    yield "a skipped item"
    tab.click("#keep")
    yield "a kind stays on"
    press(tab, "g")
    tab.keyboard.type("77")
    press(tab, "Enter")
    yield "no such item"
    tab.click("#who")
    yield "name"
    press(tab, "Enter")
    with tab.expect_download():
        tab.click("#record")
    yield "record"
    path = Path(tab.url.removeprefix("file://")).parent / "bad file.json"
    path.write_text("[1]", encoding="utf-8")
    tab.set_input_files("#file", path)
    tab.wait_for_selector("#notice:not([hidden])")
    yield "no items"


def test_no_english_on_the_annotation_page(chromium, tmp_path):
    known = known_texts(made_task(tmp_path))
    with page_in(chromium, tmp_path, pseudo_language()) as tab:
        seen = 0
        for name in each_state_of_annotation(tab):
            assert not english_in(tab, known), name
            seen += 1
        assert seen == 20


def test_no_english_on_the_comparison_page(chromium, tmp_path):
    known = known_texts(made_task(tmp_path))
    with page_in(chromium, tmp_path, pseudo_language(), "comparison") as tab:
        assert not english_in(tab, known)
        press(tab, "d", "1", "1", "2", "1")
        assert not english_in(tab, known)
        press(tab, "Control+Enter")
        assert tab.locator("#problems li").count()
        assert not english_in(tab, known)
        press(tab, "m", "Control+Enter", "?")
        assert not english_in(tab, known)


def test_no_english_on_the_rating_page(chromium, tmp_path):
    task = rating_task(tmp_path)
    path = rating_page(task, [row()], language=pseudo_language())
    known = known_texts(task, [row()])
    with opened(chromium, "rating", where=path) as tab:
        assert not english_in(tab, known)
        press(tab, "5", "Control+Enter", "?")
        assert not english_in(tab, known)


def test_no_english_where_annotations_are_decided_between(chromium, tmp_path):
    item = two(comment="Hm.")
    path = page_with(
        FeedbackTask(QA.schema, QA.format, copied(QA, tmp_path)), [item], language=pseudo_language()
    )
    with opened(chromium, where=path) as tab:
        known = known_texts(QA, [item]) + "\nABAB"
        cells = "#annotations .versions button, #annotations .state, #annotations .hint"
        assert tab.locator(cells).count()
        assert not english_in(tab, known)
        press(tab, ".", "Enter")
        assert not english_in(tab, known)


def test_no_english_where_the_source_is_marked(chromium, tmp_path):
    translation = feedback_of("translation")
    rows = [{"id": "a", "prompt": "Das ist gut. Ja.", "response": "That is."}]
    task = FeedbackTask(translation.schema, translation.format, copied(translation, tmp_path))
    kinds = [kind for kind in task.schema.errors if kind.side == "source"]
    names = ", ".join(f"{kind.label} ({kind.key})" for kind in kinds)
    known = known_texts(task, rows) + names
    with opened(chromium, where=page_with(task, rows, language=pseudo_language())) as tab:
        key = kinds[0].key
        assert not english_in(tab, known)
        press(tab, key)
        assert not english_in(tab, known)
        tab.click("#source .w >> nth=1")
        assert not english_in(tab, known)
        press(tab, key)
        assert tab.locator("#errors li").count() == 1
        assert not english_in(tab, known)


def test_no_english_with_liked_spans_and_reasons(chromium, tmp_path):
    kinds = [{**WRONG, "reason": "required"}, {**FLUENT, "reason": "optional"}]
    keys = {"errors": kinds, "missing": [], "correction": True, "severities": SEVERITIES}
    task = task_with(tmp_path, **keys)
    known = known_texts(task, [ROW]) + "\nThe cat sat the mat. It was red. …"  # a warning quotes it
    page = page_with(task, [ROW], language=pseudo_language())
    with opened(chromium, where=page) as tab:
        assert not english_in(tab, known)
        drag(tab, 1, 1)
        press(tab, "2")
        assert tab.locator("#errors textarea").count() == 1
        assert not english_in(tab, known)
        press(tab, "m")  # a liked span has no severity
        assert not english_in(tab, known)
        tab.fill("#correction", "x")
        tab.wait_for_selector("#warnings li")
        assert not english_in(tab, known)
        drag(tab, 3, 3)
        press(tab, "1", "Control+Enter")
        assert tab.locator("#problems li").count()
        assert not english_in(tab, known)


def test_no_english_where_reasons_are_decided_between(chromium, tmp_path):
    task = task_with(
        tmp_path, errors=[{**FLUENT, "reason": "optional"}], missing=[], correction=False
    )
    mark = {"error type": "Fluent", "explanation": "", "start": 4, "end": 7}
    rest = {"missing-info": [], "corrected-prediction": "", "no-error": True}
    annotations = []
    for name in ("anna", "ben"):
        errors = [{**mark, "reason": f"Said by {name}."}]
        annotations.append({"annotator": name, "errors": errors, **rest})
    shared = {"errors": [], "missing-info": [], "corrected-prediction": ""}
    row = {**ROW, "annotations": annotations, "shared": shared}
    known = known_texts(task, [row]) + "\nABAB"
    with opened(chromium, where=page_with(task, [row], language=pseudo_language())) as tab:
        assert "Said by ben." in tab.inner_text("#annotations")
        assert not english_in(tab, known)


@pytest.mark.parametrize("code", TRANSLATED)
def test_no_text_of_the_page_is_an_english_message(chromium, tmp_path, code):
    catalogue = stored(code)["messages"]
    english = {key for key, value in catalogue.items() if key != value}
    with page_in(chromium, tmp_path, language_of(code)) as tab:
        for name in each_state_of_annotation(tab):
            assert not english & set(tab.evaluate(SHOWN)), name


def test_reasons_are_translated_with_the_reasons_inside(chromium, tmp_path):
    with page_in(chromium, tmp_path, language_of("de")) as tab:
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


def left(tab, selector: str) -> float:
    return tab.locator(selector).first.bounding_box()["x"]


def test_the_layout_is_mirrored(chromium, tmp_path):
    wide = {"viewport": {"width": 1500, "height": 900}}
    for language in (ENGLISH, language_of("ar")):
        with page_in(chromium, tmp_path, language, **wide) as tab:
            assert tab.evaluate("document.documentElement.dir") == language.direction
            word(tab, 1).click()
            press(tab, "3")
            order = [left(tab, f"#types .type >> nth={i}") for i in range(3)]
            columns = [left(tab, "#sources"), left(tab, "#judge"), left(tab, "#marked")]
            bar = [left(tab, "#bar h1"), left(tab, "#previous"), left(tab, "#next")]
            for positions in (order, columns, bar):
                expected = sorted(positions, reverse=language.direction == "rtl")
                assert positions == expected, (language.code, positions)
            border = "getComputedStyle(document.querySelector('.card')).border{}Width"
            widths = [tab.evaluate(border.format(side)) for side in ("Left", "Right")]
            wider = max(widths, key=lambda width: float(width.removesuffix("px")))
            assert wider == widths[language.direction == "rtl"]
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_message_of_values_only_has_the_direction_of_the_page(chromium, tmp_path):
    """Inside an isolate, a text without letters outside of further isolates is left-to-right."""
    for language in (ENGLISH, language_of("ar")):
        with page_in(chromium, tmp_path, language) as tab:
            order = tab.evaluate(
                """() => {
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
            )
            assert order == (language.direction == "ltr")


def test_english_texts_keep_their_direction(chromium, tmp_path):
    with page_in(chromium, tmp_path, language_of("ar")) as tab:
        direction = "id => getComputedStyle(document.getElementById(id)).direction"
        assert [tab.evaluate(direction, name) for name in ("text", "reference")] == ["ltr", "ltr"]
        assert left(tab, "#text .w >> nth=0") < left(tab, "#text .w >> nth=1")
        kinds = tab.evaluate(
            "[...document.querySelectorAll('#types .type bdi')].map((node) => node.lang)"
        )
        assert kinds and set(kinds) == {"en"}
        keys = tab.evaluate("getComputedStyle(document.querySelector('kbd')).direction")
        assert keys == "ltr"


def marked_by_mouse_and_keys(tab) -> None:
    """Mark with the mouse and with the keyboard, move an end, correct, undo, and submit."""
    drag(tab, 1, 2)
    press(tab, "1")
    tab.focus("#text")
    press(tab, "Home", "End", "ArrowLeft", "Shift+ArrowRight", "4")
    press(tab, "Alt+ArrowLeft", "Alt+ArrowRight", "Control+z")
    press(tab, "Control+Enter")
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
        task = task_with(folder, correction=False)
        path = page_with(task, [{**ROW}, hebrew], language=language)
        with opened(chromium, where=path) as tab:
            marked_by_mouse_and_keys(tab)
            marked_by_mouse_and_keys(tab)
            with tab.expect_download() as event:
                tab.click("#download")
            results.append((stored_work(tab), Path(event.value.path()).read_bytes()))
    rows = json.loads(results[0][1])
    assert [len(one["spans"]) for one in rows] == [2, 2]
    for result in results[1:]:
        assert result == results[0]


def test_arrow_keys_on_the_rating_page_follow_the_page(chromium, tmp_path):
    """Texts stand from right to left, so the left arrow key goes to the next one."""
    for language, key in ((ENGLISH, "ArrowRight"), (language_of("ar"), "ArrowLeft")):
        path = rating_page(rating_task(tmp_path), [row()], language=language)
        with opened(chromium, "rating", where=path) as tab:
            tab.focus("#outputs")
            press(tab, key)
            assert tab.evaluate("document.querySelector('.pair.active').dataset.card") == "2"


@pytest.mark.parametrize("code", with_slow(TRANSLATED, lambda code: code != "ar"))
def test_nothing_serious_for_axe(chromium, tmp_path, code):
    with page_in(chromium, tmp_path, language_of(code)) as tab:
        word(tab, 1).click()
        press(tab, "3")
        assert violations(tab) == []
    path = rating_page(rating_task(tmp_path), [row()], language=language_of(code))
    with opened(chromium, "rating", where=path) as tab:
        assert violations(tab) == []
    (tmp_path / "comparison").mkdir()
    with page_in(chromium, tmp_path / "comparison", language_of(code), "comparison") as tab:
        assert violations(tab) == []

"""The feedback pages in a browser: open a page, watch it, read its stored data and downloads."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interface_html.format import Item
from interface_html.tasks import feedback_of

QA = feedback_of("qa_feedback")
TOXICITY = feedback_of("detoxification")

TEMPLATES = Path(__file__).parents[1] / "interface_html" / "templates"
ANNOTATOR = "anna"
TEXT = "The cat sat on the mat. It was 😀 red. The cat sat on it."
ITEM = {
    "id": "one",
    "question": "Who sat?",
    "passages": [["Cat", "A cat sat.", "It was\xa0blue.", "It was flat."], ["Mat", "Flat."]],
    "gold": "A cat.",
    "prediction 1": TEXT,
    "prediction 2": "Second.",
    "prediction 3": "Third.",
    "prediction 4": "Fourth.",
}


# Widths of the window with a colour scheme each: colours do not depend on the width.
LOOKS = [(320, "dark"), (1280, "light")]
PHONE = {"has_touch": True, "is_mobile": True, "viewport": {"width": 390, "height": 800}}


def new_context(browser, **options):
    """A browser context that waits for five minutes: a busy machine may take long."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(300_000)  # ms
    context.on("weberror", _close_failed)
    return context


def _close_failed(event) -> None:
    """Close a page whose script failed: what the test waits for would never come."""
    print(f"the page failed: {event.error.stack}")
    event.page.close()


class SharedContext:
    """A context that opens one page after another, which is faster than a context for each page.

    The storage that a page finds holds nothing but the annotator's name.
    """

    def __init__(self, browser, **options):
        self.context = new_context(browser, **options)
        self.in_use = False
        # A page of the same origin that stays open: it changes the storage, and the browser keeps
        # the process.
        self.keeper = self.context.new_page()
        self.keeper.goto((TEMPLATES / "page.css").as_uri())

    @contextmanager
    def use(self):
        self.in_use = True
        store = "name => localStorage.setItem('fgrlhf/annotator', name)"  # NAME of store.js
        self.keeper.evaluate(store, ANNOTATOR)
        try:
            yield self.context
        finally:
            for page in self.context.pages:
                if page is not self.keeper:
                    page.close()
            self.keeper.evaluate("localStorage.clear()")
            self.in_use = False


SHARED: dict[tuple[Any, str], SharedContext] = {}  # by browser, and by the options as text


@contextmanager
def context_for_page(browser, **options):
    """The shared context with these options, or a new one while another page uses it."""
    key = browser, repr(sorted(options.items()))
    if key not in SHARED:
        SHARED[key] = SharedContext(browser, **options)
    if not SHARED[key].in_use:
        with SHARED[key].use() as context:
            yield context
        return
    context = new_context(browser, **options)
    try:
        yield context
    finally:
        context.close()


@contextmanager
def watched(tab, fatal=(), requests=()):
    """The list of errors and warnings that a page logs, which must be empty at the end.

    An error of a script closes the page (`new_context`), and so does a message of a `fatal` type:
    the test fails at once and names it. Other failures get the text of the page, what it logged and
    its last `requests` as notes.
    """
    noise: list[str] = []
    causes: list[str] = []

    def logged(message) -> None:
        if message.type in ("error", "warning"):
            noise.append(message.text)
        if message.type in fatal:
            causes.append(message.text)
            tab.close()

    tab.on("console", logged)
    tab.on("pageerror", lambda error: causes.append(error.stack or str(error)))
    try:
        yield noise
    except Exception as error:
        if causes:
            raise AssertionError(f"the page failed: {causes[0]}") from error
        try:
            shown = tab.inner_text("body", timeout=30_000)  # ms: the page may hang
        except Exception as reason:
            shown = f"not readable: {reason}"
        error.add_note(f"the page: {shown}")
        error.add_note("\n".join(["it logged:", *noise, "its last requests:", *requests[-20:]]))
        raise
    tab.close()
    assert not noise and not causes, (noise, causes)


@contextmanager
def opened(
    browser,
    page="annotation",
    items=(ITEM,),
    where: str | Path | None = None,
    tmp_path=None,
    **options,
):
    """A page with these items. It must log no error and load only its own files."""
    with context_for_page(browser, **options) as context:
        yield from _opened_in(context, page, items, where, tmp_path)


def _opened_in(context, page, items, where, tmp_path):
    """The same in a given context; it yields the page once."""
    tab = context.new_page()
    requests, dialogs = [], []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    address = Path(where or QA.folder / f"{page}.html").as_uri()
    with watched(tab, fatal=("error", "warning"), requests=requests):
        tab.goto(address)
        identify(tab)
        if items and where is None:
            path = tmp_path / "items.json"
            path.write_text(json.dumps(list(items)), encoding="utf-8")
            tab.set_input_files("#file", path)
            tab.wait_for_selector("#work:not([hidden])")
        yield tab
    assert not dialogs, dialogs
    outside = [url for url in requests if not url.startswith(("file:", "blob:"))]
    assert not outside, outside


def wait_until(tab, condition: str, arg=None) -> None:
    """Wait until a JavaScript function returns true.

    It is called every 50 ms. By default it would be called before the browser draws a frame, and
    a browser on a busy machine may draw none.
    """
    tab.wait_for_function(condition, arg=arg, polling=50)


def evaluate_json(tab, function: str, argument):
    """As `tab.evaluate`, which takes seconds for thousands of nested values."""
    with_json = f"argument => JSON.stringify(({function})(JSON.parse(argument)))"
    return json.loads(tab.evaluate(with_json, json.dumps(argument)))


def push(tab, selector: str) -> None:
    """Push a button once it can be pushed, without waiting for a frame: see `wait_until`."""
    can_be_pushed = """selector => {
        const button = document.querySelector(selector);
        return button !== null && !button.disabled && !button.closest("[inert], [hidden]");
    }"""
    wait_until(tab, can_be_pushed, selector)
    tab.evaluate("selector => document.querySelector(selector).click()", selector)


def said(tab, text: str) -> None:
    """Wait until the page's message contains `text`."""
    condition = "text => document.querySelector('#message').textContent.includes(text)"
    wait_until(tab, condition, text)


def identify(tab, name: str = ANNOTATOR) -> None:
    """Type the annotator's name, if the page asks for it."""
    tab.wait_for_selector("#work:not([hidden]), #empty:not([hidden])")
    if tab.locator("#name").count():
        tab.fill("#name", name)
        press(tab, "Enter")
        tab.wait_for_selector("#name", state="detached")


def rename(tab, name: str) -> None:
    """Change the annotator."""
    push(tab, "#who")
    tab.fill("#name", name)
    press(tab, "Enter")
    tab.wait_for_selector("#name", state="detached")


def row_with(item: Item, annotation=None, preference=None) -> dict:
    """The qa-feedback row of an item with this feedback."""
    feedback = {"feedback": annotation, "preference": preference}
    given = {key: value for key, value in feedback.items() if value is not None}
    return QA.format.feedback_row(QA.schema, Item(item.id, {**item.row, **given}))


def refused(tab, path: Path, rows: list) -> str:
    """Open a file with these rows, which the page must refuse. Returns its notice."""
    path.write_text(json.dumps(rows), encoding="utf-8")
    tab.evaluate("FG.notice('')")
    tab.set_input_files("#file", path)
    tab.wait_for_selector("#notice:not([hidden])")
    return tab.inner_text("#notice")


def state(tab, page="annotation") -> dict:
    """The state that was stored last for an item, without its times."""
    texts = tab.evaluate(
        "page => Object.entries(localStorage).filter(([key]) =>"
        " key.startsWith(`fgrlhf/${FG_SCHEMA.task}/of/`) && key.includes(`/${page}/`))"
        ".map(([, text]) => text)",
        page,
    )
    stored = max(map(json.loads, texts), key=lambda stored: stored.get("saved", 0))
    times = ("seconds", "wall", "saved")
    return {key: value for key, value in stored.items() if key not in times}


def downloaded(tab) -> bytes:
    with tab.expect_download() as event:
        tab.click("#download")
    return Path(event.value.path()).read_bytes()


def press(tab, *keys: str) -> None:
    for key in keys:
        tab.keyboard.press(key)


STORED = "() => ({ ...localStorage })"
STORE_AGAIN = "stored => { for (const key in stored) localStorage.setItem(key, stored[key]); }"


def reload(tab, shows: str = "#work:not([hidden])") -> None:
    """Reload the page, and wait until it shows the selector `shows`.

    On a busy machine, Chromium sometimes starts the reloaded page with an empty localStorage, even
    if all that was stored are the keys of a blank page. They are then stored again, up to three
    times: a page that deletes them itself does so every time.
    """
    before = tab.evaluate(STORED)
    tab.reload()
    for _ in range(3):
        if not before.keys() - tab.evaluate(STORED).keys():
            break
        tab.evaluate(STORE_AGAIN, before)
        tab.reload()
    tab.wait_for_selector(shows)


def violations(tab, impacts: tuple[str, ...] | None = None) -> list[tuple[str, str]]:
    """What axe finds on the page. Skips the test if axe is not installed.

    Args:
      impacts: of the findings that count; None for all.
    """
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    ).Axe()
    tab.wait_for_timeout(200)  # colours are animated
    options = {"preload": False, "resultTypes": ["violations"]}  # what is right takes longer
    found = axe.run(tab, options=options).response["violations"]
    return [
        (entry["id"], entry["nodes"][0]["html"][:200])
        for entry in found
        if impacts is None or entry["impact"] in impacts
    ]


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


def word(tab, number: int):
    return tab.locator(f"#text .w[data-i='{number}']")


def badge(unit) -> str | None:
    """The badges of the errors that begin at a word; None without any."""
    texts = unit.locator(".tag").evaluate_all("tags => tags.map((tag) => tag.dataset.badge)")
    return " ".join(texts) or None


def drag(tab, first: int, last: int) -> None:
    """Select words of the response with the mouse."""
    drag_between(tab, word(tab, first), word(tab, last))


def drag_between(tab, first, last) -> None:
    """Drag from inside the word `first` to inside the word `last`."""
    a, b = first.bounding_box(), last.bounding_box()
    tab.mouse.move(a["x"] + a["width"] * 0.3, a["y"] + a["height"] / 2)
    tab.mouse.down()
    tab.mouse.move(b["x"] + b["width"] * 0.8, b["y"] + b["height"] / 2, steps=4)
    tab.mouse.up()

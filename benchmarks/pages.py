"""Times of the annotation page in headless Chromium, and how often corrections of good rows warn.

    python -m benchmarks.pages rows=dev_feedback.json

`rows` are published qa-feedback rows. The answer of the first measurement has 1,500 words, one of
them marked. For each key it takes the time until the handlers of the key have run and the page is
laid out. The texts are compared in the pause after a key, so that time is measured alone; it is the
longest that a key can wait. Both are measured after a change of one word and after every word was
replaced, the worst case of the comparison. The file of the second measurement has 2,853 items, the
published training set's number; its time ends when the first item is laid out.
"""

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel
from interface_html.tasks import feedback_of

WORDS = 1500
ITEMS = 2853
KEYS = 40
LIMIT = 300_000  # ms that a busy machine may take
OPENED = "#work:not([hidden])"

# milliseconds of each of `count` keys, and of one comparison of the texts afterwards
TYPE = """count => {
    const field = document.querySelector("#correction"), keys = [];
    field.focus();
    for (let i = 0; i < count; i++) {
        const start = performance.now();
        document.execCommand("insertText", false, "x");
        field.getBoundingClientRect();
        keys.push(performance.now() - start);
    }
    return keys;
}"""
COMPARE = """() => new Promise((resolve) => {
    const show = FG.showDiff;
    FG.showDiff = (page) => {
        FG.showDiff = show;
        const start = performance.now();
        show(page);
        document.body.getBoundingClientRect();
        resolve(performance.now() - start);
    };
    document.execCommand("insertText", false, "y");
})"""
# milliseconds of reading the text of a file, and of the SHA-256 of its items alone
PARTS = """text => {
    const start = performance.now(), items = FG.readItems(FG_SCHEMA, text);
    const middle = performance.now();
    for (const { row } of items) FG.sha256(JSON.stringify(FG_SCHEMA.row.map((key) => row[key])));
    const end = performance.now();
    return { "reading its text": middle - start, "SHA-256 of its items": end - middle };
}"""
WARNINGS = """rows => rows.filter((row) =>
    FG.correctionWarnings(FG_SCHEMA, row, row.feedback).length).length"""


class PagesSettings(StrictModel):
    rows: FilePath = Field(description="published feedback rows of qa-feedback")
    browser: str = Field(default="chromium", description="the program of a Chromium")


def open_file(tab: Any, folder: Path, rows: Sequence[dict[str, Any]]) -> float:
    """Open the page and these rows in it. Returns the seconds from the choice of the file on."""
    path = folder / "items.json"
    write_json(path, list(rows))
    tab.goto((feedback_of("qa_feedback").folder / "annotation.html").as_uri())
    tab.wait_for_selector("#name, #empty:not([hidden])")
    if tab.locator("#name").count():
        tab.fill("#name", "anna")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("#name", state="detached")
    start = time.perf_counter()
    tab.set_input_files("#file", path)
    tab.wait_for_selector(OPENED)
    tab.evaluate("document.body.getBoundingClientRect().height")
    return time.perf_counter() - start


def print_keys(tab: Any, what: str) -> None:
    comparison = tab.evaluate(COMPARE)
    keys = tab.evaluate(TYPE, KEYS)
    print(
        f"{what}: key median {statistics.median(keys):.1f} ms, largest {max(keys):.1f} ms;"
        f" comparison in the pause {comparison:.0f} ms"
    )


def measure(settings: PagesSettings) -> None:
    from playwright.sync_api import sync_playwright  # only here: it is a package for tests

    program = shutil.which(settings.browser)
    if program is None:
        raise UserError(f"there is no program {settings.browser}: set browser=... to a Chromium")
    task = feedback_of("qa_feedback")
    rows = read_json(settings.rows)
    texts = {key: rows[0][key] for key in task.schema.row}
    with sync_playwright() as play, tempfile.TemporaryDirectory() as name:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        folder = Path(name)
        tab = browser.new_context().new_page()
        tab.set_default_timeout(LIMIT)
        answer = " ".join(f"word{i}" for i in range(WORDS)) + "."
        open_file(tab, folder, [{**texts, task.schema.text: answer}])
        tab.click("#text .w[data-i='3']")
        tab.keyboard.press("1")
        tab.click("#correction")
        tab.keyboard.press("Home")
        print_keys(tab, f"{WORDS:,} words, one changed")
        tab.fill("#correction", " ".join(f"other{i}" for i in range(WORDS)))
        print_keys(tab, f"{WORDS:,} words, all replaced")
        many = []
        for number in range(ITEMS):
            row = rows[number % len(rows)]
            many.append({key: row[key] for key in task.schema.row} | {"id": f"i{number}"})
            many[-1]["question"] += f" {number}"
        tab = browser.new_context().new_page()
        tab.set_default_timeout(LIMIT)
        size = len(json.dumps(many)) / 1e6
        seconds = open_file(tab, folder, many)
        print(f"{ITEMS:,} items, {size:.0f} MB: open after {seconds:.1f} s")
        parts = tab.evaluate(PARTS, json.dumps(many))
        print(", ".join(f"{name} {value / 1000:.1f} s" for name, value in parts.items()))
        print(f"warnings: {tab.evaluate(WARNINGS, rows)} of {len(rows)} rows")
        browser.close()


def main(argv: Sequence[str] | None = None) -> None:
    usage = "usage: python -m benchmarks.pages rows=FILE"
    measure(settings_from(PagesSettings, argv, usage))


if __name__ == "__main__":
    run_main(main)

"""The report in a browser: contrast, phone, paper, keyboard and downloads."""

import csv

import pytest
from page_helpers import violations
from report_helpers import make_outputs

from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.report.page import write_report
from tasks.qa_feedback.display import DISPLAY

TEXT = 4.5  # WCAG 2.2, 1.4.3: smallest contrast of text
GRAPHICS = 3.0  # 1.4.11: of graphics, such as the symbols of lines

# For every text: its colour, its characters, and the backgrounds behind it from the innermost to
# the page's. A colour is [red, green, blue, alpha].
COLOURS = """() => {
    const rgba = text => {
        const numbers = text.match(/[\\d.]+/g).map(Number)
        return numbers.length < 4 ? [...numbers, 1] : numbers
    }
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    const seen = new Map()
    while (walker.nextNode()) {
        const text = walker.currentNode.textContent.trim()
        const element = walker.currentNode.parentElement
        if (!text || ["STYLE", "DEFS"].includes(element.tagName)) continue
        const style = getComputedStyle(element), behind = []
        for (let e = element; e; e = e.parentElement)
            behind.push(rgba(getComputedStyle(e).backgroundColor))
        const colour = rgba(element.closest("svg") ? style.fill : style.color)
        const isSymbol = element.className === "dot"
        const key = JSON.stringify([colour, behind, isSymbol])
        if (!seen.has(key)) seen.set(key, [colour, behind, isSymbol, text.slice(0, 40)])
    }
    return [...seen.values()]
}"""


def luminance(colour) -> float:
    """Relative luminance of an sRGB colour, 0 to 1 (WCAG 2.2)."""
    linear = []
    for channel in colour[:3]:
        value = channel / 255
        linear.append(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def over(top, below) -> list[float]:
    """A colour with an alpha over an opaque one."""
    return [top[3] * a + (1 - top[3]) * b for a, b in zip(top[:3], below[:3])]


def contrast(first, second) -> float:
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def background(behind) -> list[float]:
    """The colour behind a text: its backgrounds, painted from the outermost to the innermost."""
    colour = [255.0, 255.0, 255.0]
    for layer in reversed(behind):
        colour = over(layer, colour)
    return colour


def test_contrast_by_hand():
    black, white = (0, 0, 0), (255, 255, 255)
    assert contrast(black, white) == pytest.approx(21)
    assert contrast((118, 118, 118), white) == pytest.approx(4.54, abs=0.01)
    assert background([[0, 0, 0, 0.5], [0, 0, 0, 0], [255, 255, 255, 1]]) == [127.5] * 3


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A report with all sections."""
    folder = tmp_path_factory.mktemp("outputs")
    make_outputs(folder)
    write_jsonl(folder / "sft" / "metrics.jsonl", [{"step": 1, "loss": 2.0}])
    spans = [{"start": 0, "end": 4, "label": "Irrelevant"}]
    write_json(folder / "data" / "feedback.json", [{"spans": spans, "preferences": [1]}])
    write_json(
        folder / "data" / "agreement.json", {"alpha": {"mean": 0.5, "low": 0.4, "high": 0.6}}
    )
    write_report(folder, folder / "report.html", DISPLAY)
    return folder / "report.html"


def opened(chromium, path, width=1280, **options):
    page = chromium.new_page(viewport={"width": width, "height": 800}, **options)
    page.goto(path.as_uri())
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast(chromium, path, scheme):
    page = opened(chromium, path, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    pairs = page.evaluate(COLOURS)
    page.close()
    assert len(pairs) > 20
    low = []
    for colour, behind, is_symbol, text in pairs:
        ground = background(behind)
        ratio = contrast(over(colour, ground), ground)
        if ratio < (GRAPHICS if is_symbol else TEXT):
            low.append((text, colour, [round(x) for x in ground], round(ratio, 2)))
    assert not low


def test_the_fullest_colours_of_the_heat_maps_have_enough_contrast(chromium, path):
    """The colours depend on the data, so the strongest of both signs are made here."""
    for scheme in ("light", "dark"):
        page = opened(chromium, path, color_scheme=scheme)
        pairs = page.evaluate(
            """() => ["text pos", "text neg", "tokens pos", "tokens neg"].map(names => {
                const [outer, inner] = names.split(" ")
                const article = document.querySelector("article")
                const box = article.appendChild(document.createElement("p"))
                box.className = outer
                const span = box.appendChild(document.createElement("span"))
                span.className = inner
                span.style.setProperty("--a", "1")
                const colours = e => getComputedStyle(e).backgroundColor
                return [getComputedStyle(span).color, colours(span), colours(box.parentElement)]
            })"""
        )
        page.close()
        for text, fill, card in pairs:
            text, fill, card = map(channels, (text, fill, card))
            assert fill[3] > 0.4 and contrast(text, over(fill, card)) >= TEXT, (scheme, fill)


def channels(colour: str) -> list[float]:
    numbers = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")]
    return numbers if len(numbers) == 4 else [*numbers, 1.0]


# Pieces of a word in several lines, which only a break within the word makes.
BROKEN_WORDS = """() => {
    const broken = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (walker.nextNode()) {
        const node = walker.currentNode
        if (!node.parentElement.closest("td, th") || !node.parentElement.checkVisibility()) continue
        for (const match of node.textContent.matchAll(/[\\p{L}\\d.+]+/gu)) {
            const range = document.createRange()
            range.setStart(node, match.index)
            range.setEnd(node, match.index + match[0].length)
            const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)))
            if (tops.size > 1) broken.push(match[0])
        }
    }
    return broken
}"""


@pytest.mark.parametrize("width, media", [(680, "print"), (1280, "screen")])
def test_no_word_of_a_table_is_broken(chromium, path, width, media):
    page = opened(chromium, path, width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.emulate_media(media=media)
    assert page.evaluate(BROKEN_WORDS) == []
    page.close()


def test_long_names_and_open_tables_fit_a_phone(chromium, path, tmp_path):
    text = path.read_text(encoding="utf-8")
    assert "<dt>factuality</dt>" in text and ">line</th>" in text
    text = text.replace("<dt>factuality</dt>", f"<dt>{'factuality_' * 9}</dt>")
    longer = tmp_path / "longer.html"
    longer.write_text(text.replace(">line</th>", f">{'line_' * 30}</th>"))
    for width in (320, 390, 700, 768):
        page = opened(chromium, longer, width)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.close()


def test_four_reward_models_fit_side_by_side(chromium, path):
    page = opened(chromium, path, 1200)
    page.evaluate("""() => {
        const cards = document.querySelector("#models .cards")
        while (cards.children.length < 4) cards.append(cards.children[0].cloneNode(true))
    }""")
    assert page.locator("#models .cards small").count() >= 4
    assert page.evaluate("document.documentElement.scrollWidth") == 1200
    page.close()


def test_every_box_that_scrolls_has_a_name_and_is_reached_by_the_keyboard(chromium, path):
    page = opened(chromium, path, 390)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    boxes = page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter(e =>
            ["auto", "scroll"].includes(getComputedStyle(e).overflowX) && e.tagName !== "NAV")
            .map(e => [e.tabIndex, e.getAttribute("aria-label")])"""
    )
    assert len(boxes) > 20
    assert all(index == 0 and name for index, name in boxes)
    figure = page.locator("figure.wide")
    hint = figure.evaluate("e => getComputedStyle(e, '::before').content")
    assert "scroll it sideways" in hint
    figure.focus()
    scrolled = "addEventListener('scroll', () => done(figure.scrollLeft), {once: true})"
    page.evaluate(
        f"""() => {{
            const figure = document.querySelector("figure.wide")
            window.moved = new Promise(done => figure.{scrolled})
        }}"""
    )
    page.keyboard.press("ArrowRight")
    assert page.evaluate("window.moved") > 0
    assert violations(page) == []
    page.close()


def test_row_names_stay_in_view_on_a_phone(chromium, path):
    page = opened(chromium, path, 390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    table = page.locator("#results .scroll").first
    table.evaluate("box => box.scrollLeft = 1000")
    assert table.evaluate("box => box.scrollLeft") > 20
    name, edge = table.locator("tbody th").first, table.bounding_box()
    box = name.bounding_box()
    page.close()
    assert abs(box["x"] - edge["x"]) <= 2 and box["width"] >= 90


def test_no_header_is_empty_and_every_plot_has_a_table(chromium, path):
    page = opened(chromium, path)
    assert (
        page.locator("th").evaluate_all("all => all.filter(th => !th.textContent.trim()).length")
        == 0
    )
    figures = page.locator("figure")
    assert (
        figures.count()
        == page.locator("figure svg").count()
        == page.locator("figure table").count()
    )
    assert page.locator("figure tbody").evaluate_all("all => all.every(body => body.rows.length)")
    page.close()


def test_values_are_read_without_hovering(chromium, path):
    page = opened(chromium, path)
    filled = page.locator(
        "#responses .pos, #responses .neg, #rollouts .aspect:not(.more *) :is(.pos, .neg)"
    )
    numbers = filled.evaluate_all(
        "all => all.filter(e => e.checkVisibility()).map(e => e.nextElementSibling?.className)"
    )
    assert len(numbers) > 20 and set(numbers) == {"reward"}
    summary = page.locator("#rollouts summary", has_text="Tokens as a table").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("#rollouts .unprinted[open] table").first.is_visible()
    page.close()


def test_paper_has_the_open_parts_and_the_colours(chromium, path):
    page = opened(chromium, path, 680, color_scheme="dark")  # the width of A4 without its margins
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") == 680
    closed = page.locator("#responses details:not([open]) .reward")
    assert closed.count() > 5
    seen = "all => all.map(e => e.checkVisibility({contentVisibilityAuto: true}))"
    assert not any(closed.evaluate_all(seen))
    titles = page.locator("#responses .sample > summary")
    assert titles.count() > 1 and all(titles.evaluate_all(seen))
    assert all(
        page.locator("#responses .sample[open] article > .aspect .reward").evaluate_all(seen)
    )
    assert (
        page.locator("#responses .pos").first.evaluate("e => getComputedStyle(e).printColorAdjust")
        == "exact"
    )
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible() and page.locator(".paper").is_visible()
    page.close()


def test_the_numbers_can_be_downloaded_under_the_content_policy(chromium, path, tmp_path):
    page = opened(chromium, path)
    with page.expect_download() as started:
        page.get_by_role("link", name="fine_grained.csv").click()
    started.value.save_as(tmp_path / "numbers.csv")
    page.close()
    with open(tmp_path / "numbers.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert started.value.suggested_filename == "fine_grained.csv"
    assert len(rows) == 44 and rows[0]["eval/kl"] == "0"  # 40 steps, 4 of them evaluated

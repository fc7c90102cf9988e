"""The page of all samples in a browser: search, filters, order, differences; data stays text."""

import pytest
from page_helpers import LOOKS, PHONE, new_context, violations

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.report.browse import main, write_samples
from fgrlhf.report.page import main as report

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
PROMPTS = 25


def row(number, text, reward, sample=0):
    first = {"start": 0, "end": text.index(".") + 1, "value": reward, "label": "ok <b>"}
    return {
        "id": str(number),
        "sample": sample,
        "prompt": f"Question {number} {EVIL}",
        "response": text,
        "references": [f"Reference {number}"],
        "reward": reward,
        "length": len(text.split()),
        "segments": {"facts": [first]},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Policy a is better the later the prompt, b the earlier; a has two samples."""
    out = tmp_path_factory.mktemp("outputs")
    a = [
        row(n, f"😀 Early words {n}. {EVIL}", n + sample, sample)
        for n in range(PROMPTS)
        for sample in (0, 1)
    ]
    b = [row(n, f"😀 Later words {n}. {EVIL}", -float(n)) for n in range(PROMPTS)]
    for name, rows in {"a": a, "b": b}.items():
        write_jsonl(out / "eval" / f"{name}-test" / "rows.jsonl", rows)
    write_samples(out, out / "samples.html")
    return out


def opened(chromium, folder, **options):
    context = new_context(chromium, **options)
    page = context.new_page()
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.on("request", lambda request: request.url.startswith("file:") or pytest.fail(request.url))
    page.goto((folder / "samples.html").as_uri())
    return page


def titles(page):
    texts = page.locator(".sample > summary > span").all_inner_texts()
    return [int(text.split()[1]) for text in texts]


def test_texts_of_the_data_are_texts(chromium, folder):
    page = opened(chromium, folder)
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    assert EVIL in page.locator(".sample").first.locator("article p").first.inner_text()
    page.context.close()


def test_the_style_is_that_of_the_files(folder):
    style = (folder / "samples.html").read_text(encoding="utf-8").split("<style>")[1]
    assert ".sample > summary b {" in style.split("</style>")[0]


def test_prompts_are_searched_filtered_and_sorted(chromium, folder):
    page = opened(chromium, folder)
    assert titles(page) == list(range(20))  # a page
    page.click("#next")
    assert titles(page) == list(range(20, PROMPTS)) and page.is_disabled("#next")
    page.fill("#search", "REFERENCE 7")
    assert titles(page) == [7, 17]
    page.fill("#search", "")
    page.select_option("#order", "down")
    assert titles(page)[0] == PROMPTS - 1
    page.select_option("#of", "b")
    assert titles(page)[0] == 0
    page.fill("#low", "-4")
    page.fill("#high", "-2")
    assert titles(page) == [2, 3, 4]
    page.select_option("#of", "")  # the difference b - a: -n - (n + 1/2)
    assert titles(page) == [1]
    assert page.locator(".sample > summary b").all_inner_texts() == ["−2.5"]
    page.fill("#low", "1000")
    assert page.inner_text("#count") == "No prompt fits: change the search or the limits"
    page.click("text=Reset")
    page.locator(".sample").nth(19).wait_for()
    assert titles(page) == list(range(20))
    page.context.close()


def test_policies_are_compared_and_segments_coloured(chromium, folder):
    page = opened(chromium, folder)
    sample = page.locator(".sample").nth(1)
    assert sample.locator("article").count() == 3  # two samples of a
    assert "b − a: −2.5" in sample.locator(".hint").inner_text()
    page.check("#words")
    assert sample.locator(".added").all_inner_texts() == ["Later"]
    assert sample.locator(".removed").all_inner_texts() == ["Early"]
    page.uncheck("#words")
    page.select_option("#reward", "facts")
    assert sample.locator("article").nth(0).locator(".pos").inner_text() == "😀 Early words 1."
    assert sample.locator("article").nth(2).locator(".neg").get_attribute("title") == "ok <b>"
    page.uncheck("#shown input[value=a]")
    assert sample.locator("article header b").all_inner_texts() == ["b"]
    page.context.close()


@pytest.mark.parametrize("width, scheme", LOOKS)
def test_the_page_is_accessible(chromium, folder, width, scheme):
    page = opened(chromium, folder, viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.select_option("#reward", "facts")
    page.fill("#search", "words")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.context.close()


def test_the_page_fits_a_phone_and_is_used_by_keyboard(chromium, folder):
    page = opened(chromium, folder, **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["viewport"]["width"]
    page.focus("#search")
    page.keyboard.type("reference 3")
    page.keyboard.press("Enter")  # no form is sent
    assert titles(page) == [3, 13, 23]
    page.context.close()


def test_folders_without_evaluations_are_refused(tmp_path, folder, capsys):
    with pytest.raises(UserError, match="has no evaluation .*fgrlhf evaluate"):
        write_samples(tmp_path, tmp_path / "s.html")
    with pytest.raises(UserError, match="has no evaluation on `dev`; it has some on test"):
        main([str(folder), str(tmp_path / "s.html"), "split=dev"])
    assert not list(tmp_path.iterdir())
    main([str(folder), str(tmp_path / "s.html")])
    assert "s.html" in capsys.readouterr().out and (tmp_path / "s.html").exists()


@pytest.mark.parametrize("program", [main, report], ids=["samples", "report"])
def test_a_page_replaces_pages_only(folder, program, tmp_path):
    rows = folder / "eval" / "a-test" / "rows.jsonl"
    before = rows.read_bytes()
    for other in (rows, folder):
        with pytest.raises(UserError, match="exists and is no page, so it is not replaced"):
            program([str(folder), str(other)])
    assert rows.read_bytes() == before
    for _ in range(2):
        program([str(folder), str(tmp_path / "page.html")])
    with pytest.raises(UserError, match="`splt` is not a key"):
        program([str(folder), "splt=test"])

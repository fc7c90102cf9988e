"""comparison.html from disk: the order of answers, and pairs and ranks as the row's six values."""

import json

from page_helpers import ITEM, PHONE, QA, downloaded, opened, press, reload, state

PAIRS = QA.schema.pairs
QUALITY = [2, 0, 3, 2]  # of predictions 1..4; 1 and 4 are equally good
EXPECTED = [
    0 if QUALITY[i] == QUALITY[j] else 1 if QUALITY[i] > QUALITY[j] else 2 for i, j in PAIRS
]


def shown_quality(tab) -> list[int]:
    """The quality of the answers in the order shown, read from the page."""
    texts = [ITEM[f"prediction {i}"] for i in range(1, 5)]
    return [
        QUALITY[texts.index(text)] for text in tab.locator(".candidate .output").all_inner_texts()
    ]


def judge(tab):
    quality = shown_quality(tab)
    for i, j in PAIRS:
        yield 0 if quality[i] == quality[j] else 1 if quality[i] > quality[j] else 2


def test_pairs_by_keyboard_with_reloads(chromium, tmp_path):
    with opened(chromium, "comparison", tmp_path=tmp_path) as tab:
        assert tab.locator("#choices input:checked").count() == 0
        order = state(tab, "comparison")["order"]
        for number, value in enumerate(judge(tab)):
            press(tab, *["ArrowDown"] * number, str(value))
            reload(tab, ".pair")
        assert state(tab, "comparison")["order"] == order
        press(tab, "Control+Enter")
        assert json.loads(downloaded(tab))[0]["preference"] == EXPECTED


def test_keys(chromium, tmp_path):
    """Each part is about the next item."""
    items = [{**ITEM, "id": str(i), "question": f"Q{i}"} for i in range(5)]
    with opened(chromium, "comparison", items=items, tmp_path=tmp_path) as tab:
        checked = tab.locator("#choices input:checked")
        press(tab, "1", "Control+Enter")
        assert "A or C is not decided" in tab.inner_text("#message")
        assert tab.locator("#problems li").count() == 5
        press(tab, "Escape", "2")
        assert tab.locator("#problems li").count() == 4  # the list follows the work
        # A > B > C > A
        press(tab, "Escape", *["ArrowUp"] * 6, "1", "2", "1", "1", "0", "1", "Control+Enter")
        assert "go in a circle: " in tab.inner_text("#message")
        press(tab, "Escape", *["ArrowUp"] * 6, "0", "1", "1", "0", "1", "1")  # A = B = C, yet A > C
        assert "Is this what you mean?" in tab.inner_text("#warnings")
        press(tab, "Control+Enter")
        assert "Submitted." in tab.inner_text("#message")
        # undo goes back to nothing chosen
        press(tab, *"101201")
        reload(tab, ".pair")
        press(tab, *["Control+z"] * 6)
        assert checked.count() == 0
        press(tab, *["Control+Shift+Z"] * 6)
        assert checked.count() == 6
        press(tab, "]")
        for keys in ([], ["Control+z", "m"]):  # a held key decides once, also a rank
            press(tab, *keys)
            for _ in range(len(PAIRS)):
                tab.keyboard.down("1")  # the second one and later are repeats
            tab.keyboard.up("1")
            assert checked.count() == 1
        press(tab, "]")
        tab.check("input[value=ranks]")
        press(tab, "Escape")
        for quality in shown_quality(tab):
            press(tab, str(4 - quality))
        press(tab, "Control+Enter")
        assert tab.is_checked("input[value=ranks]")  # also for the next item, and after a reload
        reload(tab, "#choices .pair")
        assert tab.is_checked("input[value=ranks]")
        assert json.loads(downloaded(tab))[-1]["preference"] == EXPECTED


def test_every_order_is_mapped_back(chromium, tmp_path):
    orders = set()
    with opened(
        chromium,
        "comparison",
        items=[{**ITEM, "id": str(i), "question": f"Q{i}"} for i in range(24)],
        tmp_path=tmp_path,
    ) as tab:
        for _ in range(24):
            orders.add(tuple(tab.locator(".candidate .output").all_inner_texts()))
            press(tab, *map(str, judge(tab)), "Control+Enter")
        assert [row["preference"] for row in json.loads(downloaded(tab))] == [EXPECTED] * 24
    assert len(orders) > 8  # fewer than 9 different ones of 24 have probability 1e-6


def test_pairs_by_mouse_then_as_ranks(chromium, tmp_path):
    with opened(chromium, "comparison", tmp_path=tmp_path) as tab:
        for number, value in enumerate(judge(tab)):
            tab.locator(f"[data-card='{number}'] input").nth([1, 0, 2][value]).check()
        tab.check("input[value=ranks]")
        ranks = state(tab, "comparison")["doc"]["ranks"]
        assert ranks == [2, 4, 1, 2]
        tab.click("#submit")
        assert json.loads(downloaded(tab))[0]["preference"] == EXPECTED


def test_real_rows_come_back_byte_for_byte(chromium, qa_feedback):
    path = qa_feedback / "dev_feedback.json"
    with opened(chromium, "comparison", items=None) as tab:
        tab.set_input_files("#file", path)
        tab.wait_for_selector(".pair")
        assert downloaded(tab) == path.read_bytes()


def test_both_pages_make_one_row(chromium, tmp_path):
    with opened(chromium, "annotation", tmp_path=tmp_path) as tab:
        for page in ("annotation", "comparison"):
            if page == "comparison":
                tab.goto(tab.url.replace("annotation", page))
            press(tab, *(["n"] if page == "annotation" else map(str, judge(tab))), "Control+Enter")
        (row,) = json.loads(downloaded(tab))
        assert row["preference"] == EXPECTED
        assert row["feedback"]["corrected-prediction"] == ITEM["prediction 1"]


def test_the_next_item_begins_at_the_top_and_the_end_is_told_there(chromium, tmp_path):
    items = [{**ITEM, "id": str(i), "question": f"Q{i}"} for i in range(2)]
    with opened(
        chromium,
        "comparison",
        items=items,
        tmp_path=tmp_path,
        viewport={"width": 600, "height": 400},
    ) as tab:
        for last in (False, True):
            press(tab, *map(str, judge(tab)))
            tab.locator("#submit").scroll_into_view_if_needed()
            assert tab.evaluate("scrollY") > 0
            tab.click("#submit")
            assert tab.evaluate("scrollY") == 0
            assert tab.is_visible("#notice") == last
        assert "All items are done" in tab.inner_text("#notice")


def test_by_touch(chromium, tmp_path):
    with opened(chromium, "comparison", tmp_path=tmp_path, **PHONE) as tab:
        for number, value in enumerate(judge(tab)):
            tab.locator(f"[data-card='{number}'] label").nth([1, 0, 2][value]).tap()
        tab.locator("#submit").tap()
        assert json.loads(downloaded(tab))[0]["preference"] == EXPECTED


def test_choices_and_message_stay_in_view_of_long_answers(chromium, tmp_path):
    long = {f"prediction {number}": f"Answer {number}. " * 700 for number in range(1, 5)}
    with opened(chromium, "comparison", items=[{**ITEM, **long}], tmp_path=tmp_path) as tab:
        height = tab.viewport_size["height"]
        assert tab.locator("#outputs").bounding_box()["height"] > 2 * height
        for scroll in (0, height, 2 * height):
            tab.evaluate("y => scrollTo(0, y)", scroll)
            for selector in ("#choices", "#message"):
                box = tab.locator(selector).bounding_box()
                assert box["y"] >= 0 and box["y"] + box["height"] <= height, (selector, scroll)
        press(tab, *"11111")  # the active pair is in view, and was not before
        active = tab.locator(".pair.active").bounding_box()
        choices = tab.locator("#choices").bounding_box()
        assert active["y"] >= choices["y"] - 1
        assert active["y"] + active["height"] <= choices["y"] + choices["height"] + 1
        tab.focus("#submit")  # what gets focus is never under the choices
        box, choose = (tab.locator(id).bounding_box() for id in ("#submit", "#choose"))
        assert box["y"] >= choose["y"] + choose["height"]
        tab.locator("#differences button").first.focus()
        tab.locator("#compare h3").nth(3).scroll_into_view_if_needed()
        tab.locator("#compare h3").nth(3).evaluate("node => node.scrollIntoView({block: 'end'})")
        heading = tab.locator("#compare h3").nth(3).bounding_box()
        assert heading["y"] + heading["height"] <= tab.locator("#choose").bounding_box()["y"]


def test_hidden_characters_of_the_outputs_are_visible(chromium, tmp_path):
    items = [{**ITEM, "prediction 2": "a\u202eb c", "prediction 3": "a\u202eb d"}]
    with opened(chromium, "comparison", items=items, tmp_path=tmp_path) as tab:
        codes = "nodes => nodes.map((node) => node.dataset.code)"
        assert tab.locator("#outputs .control").evaluate_all(codes) == ["U+202E"] * 2
        press(tab, "d")  # the differences from one of them
        assert set(tab.locator("#outputs .control").evaluate_all(codes)) == {"U+202E"}

"""rating.html: ratings by keys, by mouse and by touch, from disk and from the server."""

import json
from pathlib import Path

import pytest
from page_helpers import PHONE, downloaded, opened, press, refused, reload, state, wait_until
from rating_tasks import CLARITY, QUALITY, rating_task, row, write_page, write_schema
from served_pages import kept, visiting
from server_helpers import Client, serving, write_export
from test_ratings import IN_ROW

from fgrlhf.base.files import read_json, write_json
from interface_html.stored import read_database
from interface_html.tasks import feedback_of

VALUES = {"first": (4, 80), "second": (2, 0)}  # quality and clarity of each output


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return rating_task(tmp_path_factory.mktemp("rated"))


def shown(tab) -> list[str]:
    """The outputs in the order in which the page shows them."""
    texts = tab.locator(".candidate .output").all_inner_texts()
    return [text.split()[1] for text in texts]


def rate(tab) -> None:
    """Rate everything by keys, as VALUES says."""
    for output in shown(tab):
        quality, clarity = VALUES[output]
        press(tab, str(quality), *str(clarity), "Enter")


def checked(tab) -> list[str]:
    return tab.evaluate("[...document.querySelectorAll('input:checked')].map((node) => node.value)")


def test_keys(chromium, task):
    """Each part is about the next item."""
    with opened(chromium, where=write_page(task, [row(i) for i in range(5)])) as tab:
        assert checked(tab) == [] and tab.locator("input.unset").count() == 2  # no preselection
        slider = tab.locator("input[type=range]")
        assert slider.nth(0).get_attribute("aria-valuetext") == "not rated"
        press(tab, "3", "1", "0", "1", "Control+Enter")
        assert "Text A, Clarity has “101”" in tab.inner_text("#message")
        assert tab.locator("[aria-invalid=true]").count() == 1
        problems = tab.locator("#problems li")
        assert problems.count() == 3
        problems.nth(2).locator("button").click()  # leads to its place
        press(tab, "7", "Escape")
        assert slider.nth(1).get_attribute("aria-valuetext") == "7"
        assert problems.count() == 2  # the list follows the work
        assert slider.nth(1).input_value() == "7"
        assert tab.inner_text("#rated") == "2 of 4 ratings given"
        reload(tab, ".pair")
        assert tab.locator("input.percent").nth(0).input_value() == "101"

        press(tab, "Escape", "]")
        for _ in range(4):
            tab.keyboard.down("5")  # the second one and later are repeats
        tab.keyboard.up("5")
        press(tab, "7")
        assert checked(tab) == ["5"]
        typed = tab.evaluate("[...document.querySelectorAll('input.percent')].map((x) => x.value)")
        assert typed == ["7", ""]

        press(tab, "Escape", "]")
        order = shown(tab)
        first = VALUES[order[0]]
        for keys in ([str(first[0])], ["ArrowDown", "7"], ["ArrowDown", "End", "5"]):
            press(tab, *keys)
            reload(tab, ".pair")
            assert shown(tab) == order
        stored = state(tab, "rating")["doc"]["ratings"]
        assert stored[order[0]] == {"quality": first[0], "clarity": 75}
        assert stored[order[1]] == {}

        press(tab, "Escape", "]")
        active, places = tab.locator(".pair.active"), []
        for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp"):
            press(tab, key)
            places.append(active.get_attribute("data-card"))
        assert places == ["1", "3", "3", "1", "0", "0"]
        press(tab, "5")
        assert checked(tab) == ["5"] and active.get_attribute("data-card") == "1"
        press(tab, "ArrowUp", "2")
        assert checked(tab) == ["2"]
        press(tab, "Control+z")
        assert checked(tab) == ["5"]
        press(tab, "Control+z")
        assert checked(tab) == []
        press(tab, "Control+Shift+Z")
        assert checked(tab) == ["5"]
        press(tab, "Escape", "ArrowUp", "Delete")
        assert checked(tab) == []
        press(tab, "6", "0")  # 0 and 6 are no values of the scale
        assert checked(tab) == [] and tab.inner_text("#rated").startswith("0 of 4")

        press(tab, "Escape", "]")
        field = tab.locator("input.percent").nth(0)
        slider.nth(0).focus()
        assert field.input_value() == ""  # focus alone sets no value
        press(tab, "Enter")
        assert field.input_value() == "50"
        press(tab, "ArrowRight", "ArrowUp")
        assert field.input_value() == "52" and tab.locator("input.unset").count() == 1
        press(tab, "End")
        assert field.input_value() == "100"
        press(tab, "Escape", "Control+z")
        assert active.get_attribute("data-card") == "1"


def test_by_keyboard_with_reloads_in_every_order(chromium, task):
    orders = set()
    with opened(chromium, where=write_page(task, [row(i) for i in range(10)])) as tab:
        for _ in range(10):
            orders.add(tuple(shown(tab)))
            rate(tab)
            press(tab, "Control+Enter")
        rows = json.loads(downloaded(tab))
        with tab.expect_download() as event:
            tab.click("#record")
        record = json.loads(Path(event.value.path()).read_text())
    assert [entry["ratings"] for entry in rows] == [IN_ROW] * 10
    assert rows[0] == row(0, ratings=IN_ROW)
    assert len(orders) == 2  # one order only has probability .002
    assert sorted({tuple(entry["rating order"]) for entry in record}) == [(0, 1), (1, 0)]
    assert all(entry["seconds"]["rating"] >= 0 and entry["order"] is None for entry in record)
    assert record[0]["revision"]["rating"] == 1 and record[0]["annotator"] == "anna"


def test_by_mouse(chromium, task):
    with opened(chromium, where=write_page(task, [row(0)])) as tab:
        for place, output in enumerate(shown(tab)):
            quality, clarity = VALUES[output]
            cards = [tab.locator(f"[data-card='{2 * place + scale}']") for scale in range(2)]
            cards[0].locator(".choice").nth(quality - 1).click()
            box = cards[1].locator("input[type=range]").bounding_box()
            x = box["x"] + (box["width"] - 1 if clarity else 1)
            tab.mouse.click(x, box["y"] + box["height"] / 2)
            value = cards[1].locator("input.percent").input_value()
            assert value == ("100" if clarity else "0")
        tab.click("#submit")
        (entry,) = json.loads(downloaded(tab))
        assert entry["ratings"] == [{"quality": 4, "clarity": 100}, {"quality": 2, "clarity": 0}]


def test_ratings_of_a_file_are_shown_and_saved_as_they_were(chromium, task, tmp_path):
    rows = [row(0, ratings=IN_ROW), row(1)]
    write_json(tmp_path / "file.json", rows)
    with opened(chromium, where=write_page(task, [row(5)])) as tab:
        tab.set_input_files("#file", tmp_path / "file.json")
        wait_until(tab, "() => document.querySelectorAll('input:checked').length === 2")
        assert "from the file" in tab.inner_text("#position")
        assert json.loads(downloaded(tab)) == rows[:1]
        for wrong in ([IN_ROW[0]], [IN_ROW[0], {"quality": 2}], {"a": 1}):
            assert "`ratings" in refused(tab, tmp_path / "file.json", [row(0, ratings=wrong)])


def test_by_touch_on_a_phone(chromium, task):
    with opened(chromium, where=write_page(task, [row(0)]), **PHONE) as tab:
        for place, output in enumerate(shown(tab)):
            quality, clarity = VALUES[output]
            tab.locator(f"[data-card='{2 * place}'] .choice").nth(quality - 1).tap()
            tab.locator("input.percent").nth(place).fill(str(clarity))
        position = tab.locator("#position").bounding_box()
        assert position["height"] < 60  # not one letter in each line
        tab.locator("#submit").tap()
        (entry,) = json.loads(downloaded(tab))
        assert entry["ratings"] == IN_ROW


# ---- with the server -----------------------------------------------------------------------------


def test_the_same_rows_as_from_disk(chromium, tmp_path, monkeypatch):
    package = tmp_path / "rated"
    write_schema(package / "interface_html", comparison="Which is better?")
    write_json(tmp_path / "items.json", [row(0)])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    with serving(tmp_path, items=tmp_path / "items.json", task="rated") as server:
        with visiting(chromium, server, "rating") as tab:
            order = shown(tab)
            for output in order:
                quality, clarity = VALUES[output]
                press(tab, str(quality), *str(clarity), "Enter")
                kept(tab)
                reload(tab, ".pair")
                assert shown(tab) == order
                press(tab, *["ArrowDown"] * 2)
            press(tab, "Control+Enter")
            tab.wait_for_selector("#empty:not([hidden])")
            press(tab, "[")
            tab.click("#previous")  # the submitted item again
            tab.wait_for_selector(".pair")
            assert tab.inner_text("#rated") == "4 of 4 ratings given"
        with visiting(chromium, server, "rating", who="ben") as tab:
            assert tab.is_visible("#empty")  # per_item=1: anna has it
        (submission,) = read_database(server.db, "rated").submissions
        assert submission.doc["order"] == submission.shown
        assert [["first", "second"][place] for place in submission.shown] == order
        out = tmp_path / "out.json"
        write_export(server.db, out, "rated", pages="rating")
        assert read_json(out) == [row(0, ratings=IN_ROW, decided={"rating": "single"})]


def test_the_server_refuses_ratings_that_break_the_rules(tmp_path):
    items = tmp_path / "items.json"
    responses = ["One.", "Two."]
    values = {"coherence": 5, "correctness": 1}
    given_row = {"id": "a", "prompt": "P", "references": ["R"], "responses": responses}
    write_json(items, [given_row | {"ratings": [values, values]}])
    task = feedback_of("totto")
    with serving(tmp_path, items=items, task="totto") as server:
        client = Client(server.port, "anna")
        given = client.next("rating")
        # earlier ratings are not shown to annotators
        assert set(given["item"]) == {"id", *task.schema.row}
        good = {
            "ratings": {output: values for output in task.schema.fields.outputs},
            "order": given["order"],
        }

        def fields(doc):
            body = client.submission(given, doc, page="rating", task=task)
            status, answer = client.call("POST", "/api/submissions", body)
            return status, [problem["field"] for problem in answer.get("problems", [])]

        assert fields({**good, "order": given["order"][::-1]}) == (422, ["order"])
        wrong = {**good["ratings"], "description 1": {"coherence": 6, "correctness": 1}}
        assert fields({**good, "ratings": wrong}) == (422, ["ratings.description 1.coherence"])
        assert fields({"preference": [1], "order": given["order"]})[0] == 422
        assert fields(good) == (201, [])


def test_the_default_of_points_is_five(tmp_path):
    task = rating_task(tmp_path, ratings=[QUALITY, {**CLARITY, "anchors": {}}])
    assert [scale.points for scale in task.schema.ratings] == [5, 5]


def test_one_text_and_only_likert(chromium, tmp_path):
    task = rating_task(tmp_path, outputs=["first"], ratings=[{**QUALITY, "points": 7}])
    with opened(chromium, where=write_page(task, [row(0, outputs=["first"])])) as tab:
        assert tab.inner_text("#rate-title") == "Rate the text"
        assert tab.locator(".candidate .badge").count() == 0
        press(tab, "8")
        assert checked(tab) == []
        press(tab, "7", "Control+Enter")
        (entry,) = json.loads(downloaded(tab))
        assert entry["ratings"] == [{"quality": 7}]

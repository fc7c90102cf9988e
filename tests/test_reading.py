"""The comparison page: "no answer is acceptable", and what was seen of the answers."""

import json

from made_tasks import saved
from page_helpers import ITEM, downloaded, opened, press, reload
from test_annotation_page import ROW as QA_ROW

LONG = {f"prediction {number}": f"Answer {number}. " * 700 for number in range(1, 5)}
WARNING = "You chose before you can have read"


def test_the_time_in_view_and_the_share_by_hand(chromium):
    with opened(chromium, "comparison", items=None) as tab:
        seen, unread = tab.evaluate("""() => {
            const seen = [0, 1, 2].map(() => ({ seconds: 0, share: 0 }));
            const reading = new FG.Reading(seen, 100, true);
            reading.look(100, [0.25, null, null], true);
            reading.look(102, [0.5, 0.4, null], true);  // 2 s of the first
            reading.look(142, [null, 1, null], true);  // 40 s count as 30, of both
            reading.look(143, [null, 1, 1], false);  // 1 s of the second; now hidden
            reading.look(190, [null, 0.5, null], true);
            reading.look(191, [null, 0.5, null], true);  // 1 s of the second
            return [seen, FG.unread(seen, ["a", "b".repeat(80 * 33), "c"])];
        }""")
    assert seen == [
        {"seconds": 32, "share": 0.5},
        {"seconds": 32, "share": 1},
        {"seconds": 0, "share": 0},
    ]
    assert unread == [0, 1, 2]  # not to the end; too short a time; never


def stop_the_clock(tab) -> None:
    tab.click("#guide-read")  # above the answers
    tab.evaluate("() => { window.seconds = 1000; FG.now = () => window.seconds; }")


def scroll(tab, top: float) -> None:
    """Scroll, and let the page know at once."""
    tab.evaluate("y => { scrollTo(0, y); document.dispatchEvent(new Event('scroll')); }", top)


def test_a_choice_before_the_answers_were_read_is_warned_about_once(chromium, tmp_path):
    with opened(chromium, "comparison", items=[{**ITEM, **LONG}], tmp_path=tmp_path) as tab:
        stop_the_clock(tab)
        press(tab, "1")
        assert f"{WARNING} to the end: A, B, C, D" in tab.inner_text("#message")
        tab.evaluate("FG.say('')")
        press(tab, "2")
        assert tab.inner_text("#message") == ""  # said once
        press(tab, *"0000", "Control+Enter")  # and never refused
        assert "Submitted" in tab.inner_text("#message")
        (entry,) = saved(tab, "#record")
        assert entry["seen"][entry["order"][3]] == {"seconds": 0, "share": 0}
        assert 0 < entry["seen"][entry["order"][0]]["share"] < 1
        assert json.loads(downloaded(tab))[0].keys() == {*QA_ROW, "preference"}


def test_answers_that_were_read_give_no_warning(chromium, tmp_path):
    with opened(chromium, "comparison", items=[{**ITEM, **LONG}], tmp_path=tmp_path) as tab:
        stop_the_clock(tab)
        end = tab.evaluate("document.documentElement.scrollHeight")
        for top in range(0, end, 300):
            scroll(tab, top)
            tab.evaluate("window.seconds += 20")
        scroll(tab, 0)
        press(tab, "1")
        assert tab.inner_text("#message") == ""
        press(tab, *"00000", "Control+Enter")
        (entry,) = saved(tab, "#record")
        assert [one["share"] for one in entry["seen"]] == [1] * 4
        assert all(one["seconds"] >= 100 for one in entry["seen"])


def test_scrolling_through_in_no_time_is_not_reading(chromium, tmp_path):
    with opened(chromium, "comparison", items=[{**ITEM, **LONG}], tmp_path=tmp_path) as tab:
        stop_the_clock(tab)
        for top in range(0, tab.evaluate("document.documentElement.scrollHeight"), 300):
            scroll(tab, top)
        press(tab, "m", "1")
        assert WARNING in tab.inner_text("#message")


def test_no_answer_is_acceptable(chromium, tmp_path):
    with opened(chromium, "comparison", tmp_path=tmp_path) as tab:
        press(tab, *"000000", "b")
        assert tab.is_checked("#all-bad")
        reload(tab, ".pair")
        assert tab.is_checked("#all-bad")
        press(tab, "Control+z")
        assert not tab.is_checked("#all-bad")
        press(tab, "Control+Enter")
        (entry,) = saved(tab, "#record")
        assert entry["all-bad"] is False
        tab.check("#all-bad")
        assert "changed since submitted" in tab.inner_text("#position")
        tab.click("#submit")
        (entry,) = saved(tab, "#record")
        assert entry["all-bad"] is True
        assert json.loads(downloaded(tab)) == [{**QA_ROW, "preference": [0] * 6}]

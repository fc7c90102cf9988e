"""The comparison page: "no answer is acceptable", and what was seen of the answers."""

import itertools
import json

import pytest
from made_tasks import saved
from page_helpers import ITEM, QA, downloaded, opened, press, reload, violations
from server_helpers import serving
from test_annotation_page import ROW as QA_ROW
from test_served_pages import visiting

from interface_html import export, submissions
from interface_html.rules import comparison_problems

COMPARED = {"preference": [0] * 6, "order": [0, 1, 2, 3]}
SEEN = {"seconds": 2.5, "share": 0.5}
LONG = {f"prediction {number}": f"Answer {number}. " * 700 for number in range(1, 5)}
WARNING = "You chose before you can have read"


def test_python_and_the_browser_have_the_same_rules(chromium):
    values = (0, 1, 0.5, 1e7, -1, 1.5, 2e7, True, "1", None, [], float("inf"))
    lists = [None, {}, [], [SEEN] * 3, [SEEN] * 4, [SEEN] * 5, [None, SEEN, SEEN, SEEN]]
    lists += [[{**SEEN, "more": 1}, *[SEEN] * 3], [{"seconds": 1}, *[SEEN] * 3], [[], *[SEEN] * 3]]
    for key, value in itertools.product(SEEN, values):
        lists.append([SEEN, {**SEEN, key: value}, SEEN, SEEN])
    docs = [{"seen": seen} for seen in lists]
    docs += [{"all-bad": value} for value in (True, False, 0, 1, "true", None)]
    docs += [{}, {"all-bad": 3, "seen": 3}]
    with opened(chromium, items=None) as tab:
        found = tab.evaluate(
            "docs => docs.map((doc) =>"
            " FG.readingProblems(FG_SCHEMA, doc).map(({ field, reason }) => [field, reason]))",
            docs,
        )
    accepted = 0
    for doc, problems in zip(docs, found):
        expected = comparison_problems(QA.schema, {**COMPARED, **doc})
        accepted += not expected
        assert [field for field, _ in problems] == [field for field, _ in expected], doc
    assert 8 <= accepted <= len(docs) / 2


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
        assert f"{WARNING} answer A, B, C, D to the end" in tab.inner_text("#message")
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
    with opened(chromium, "comparison", tmp_path=tmp_path, bypass_csp=True) as tab:
        press(tab, *"000000", "b")
        assert tab.is_checked("#all-bad") and violations(tab) == []
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


def test_the_server_stores_both_and_exports_neither(chromium, tmp_path):
    with serving(tmp_path, items=1) as server, visiting(chromium, server, "comparison") as tab:
        press(tab, *"000000", "b", "Control+Enter")
        tab.wait_for_selector("#empty:not([hidden])")
        tab.click("#previous")
        tab.wait_for_selector("#work:not([hidden])")
        assert tab.is_checked("#all-bad")
    out = tmp_path / "all.jsonl"
    settings = {"task": "qa_feedback", "db": str(server.db), "out": str(out)}
    submissions.write_submissions(submissions.Settings(**settings))
    (line,) = map(json.loads, out.read_text().splitlines())
    assert line["doc"]["all-bad"] is True and len(line["doc"]["seen"]) == 4
    export.export(export.Settings(**settings, pages="comparison"))
    (row,) = json.loads(out.read_text())
    assert set(row) == {*QA_ROW, "preference", "decided"}


@pytest.mark.parametrize("width", [320, 1280])
def test_the_choices_fit_the_window(chromium, tmp_path, width):
    view = {"width": width, "height": 800}
    with opened(chromium, "comparison", tmp_path=tmp_path, viewport=view) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= width

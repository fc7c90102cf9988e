"""Items that an annotator submits and flags for the lead of the study."""

import json

import pytest
from made_tasks import ROW, page_with, saved, task_with
from page_helpers import opened, press, reload, said, violations, wait_until
from rating_tasks import QUALITY
from server_helpers import serving
from test_annotation_page import ROW as QA_ROW
from test_comments import CLEAN, COMPARED
from test_served_pages import visiting

from interface_html import export, submissions
from interface_html.format import Item
from interface_html.ratings import rating_problems
from interface_html.rules import annotation_problems, comparison_problems
from interface_html.tasks import feedback_of

PAGES = {"annotation": "n", "comparison": "000000", "rating": "1234"}  # and the keys that judge


def test_a_flag_is_a_boolean_in_python_and_in_the_browser(chromium, tmp_path):
    task = task_with(tmp_path)
    row = task.format.item_row(task.schema, ROW, "")
    flags = [{}, *({"flag": value} for value in (True, False, None, 1, "true", []))]

    def fields(flag):
        rated = {"ratings": {}, "order": [0, 1, 2, 3], **flag}
        found = [
            annotation_problems(task.schema, row, {**CLEAN, **flag}),
            comparison_problems(task.schema, {**COMPARED, **flag}),
            rating_problems(task.schema, rated),
        ]
        return [[name for name, _ in problems if name.endswith("flag")] for problems in found]

    with opened(chromium, items=None) as tab:
        browser = tab.evaluate(
            "flags => flags.map((flag) => ['feedback.', '', ''].map((prefix) =>"
            " FG.noteProblems(FG_SCHEMA, flag, prefix).map(({ field }) => field)))",
            flags,
        )
    assert browser == [fields(flag) for flag in flags]
    assert browser[:3] == [[[], [], []]] * 3
    assert browser[3:] == [[["feedback.flag"], ["flag"], ["flag"]]] * 4


@pytest.mark.parametrize("page", PAGES)
def test_a_flag_is_in_the_record_and_in_no_row(chromium, tmp_path, page):
    task = task_with(tmp_path, ratings=[QUALITY])
    with opened(chromium, where=page_with(task, [ROW], page), bypass_csp=True) as tab:
        press(tab, *PAGES[page], "Control+Enter")
        (plain,) = saved(tab, "#download")
        assert saved(tab, "#record")[0]["flag"][page] is False
        tab.check("#flag")
        assert "changed since submitted" in tab.inner_text("#position") and violations(tab) == []
        reload(tab)
        assert tab.is_checked("#flag")
        press(tab, "Control+Enter")
        assert saved(tab, "#download") == [plain]
        assert saved(tab, "#record")[0]["flag"][page] is True
        press(tab, "Control+z")
        assert not tab.is_checked("#flag")


@pytest.mark.parametrize("page", ["annotation", "comparison"])
def test_the_server_stores_flags_and_exports_none(chromium, tmp_path, page):
    with serving(tmp_path, items=2) as server, visiting(chromium, server, page) as tab:
        tab.check("#flag")
        tab.click("#judge-title, #choose-title")
        press(tab, "Escape", *PAGES[page], "Control+Enter")
        said(tab, "Submitted")
        assert not tab.is_checked("#flag")
        press(tab, "[")
        wait_until(tab, "() => document.querySelector('#flag').checked")
    out = tmp_path / "all.jsonl"
    settings = {"task": "qa_feedback", "db": str(server.db), "out": str(out)}
    submissions.write_submissions(submissions.Settings(**settings))
    (line,) = map(json.loads, out.read_text().splitlines())
    assert line["doc"]["flag"] is True
    export.export(export.Settings(**settings, pages=page))
    assert "flag" not in out.read_text()


def test_rows_of_question_answering_keep_their_bytes():
    qa = feedback_of("qa_feedback")
    flagged, plain = (
        qa.format.feedback_row(qa.schema, Item("", {**QA_ROW, "feedback": {**CLEAN, **flag}}))
        for flag in ({"flag": True}, {})
    )
    assert json.dumps(flagged) == json.dumps(plain)

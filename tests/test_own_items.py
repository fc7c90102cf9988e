"""Served pages: names, links, own items, leases and stale windows."""

import http.client
import json
import re
import sqlite3
from contextlib import closing
from urllib.parse import quote

import pytest
from faulty_link import FaultyLink, fail, proceed
from page_helpers import new_context, press, push, said, wait_until
from served_pages import at_work, kept, titled, visiting
from served_pages import study as study  # a fixture
from server_helpers import Client, Server, serving, write_export

from interface_html.stored import read_database


def plain_tab(browser, server, page="annotation", fragment=""):
    tab = new_context(browser).new_page()
    tab.goto(f"http://127.0.0.1:{server.port}/templates/{page}.html{fragment}")
    tab.wait_for_selector("#work:not([hidden]), #empty:not([hidden])")
    return tab


def submissions_of(server):
    return read_database(server.db, "qa_feedback").submissions


# ---- who -----------------------------------------------------------------------------------------


def test_a_page_without_a_name_asks_for_it(chromium, study):
    for name in ("Zoe", "Yves"):
        tab = plain_tab(chromium, study)
        tab.fill("#name", name)
        press(tab, "Enter")
        tab.wait_for_selector("#work:not([hidden])")
        assert tab.inner_text("#position").startswith(f"{name}: 0 of 3 done")
        press(tab, "n", "Control+Enter")
        said(tab, "This is the next item")
        tab.context.close()
    given = [(entry.item, entry.annotator) for entry in submissions_of(study)]
    assert {("i0", "Zoe"), ("i0", "Yves")} <= set(given)
    # a name in a link that is no address code is taken as it stands
    tab = plain_tab(chromium, study, fragment="#annotator=50%")
    assert tab.inner_text("#position").startswith("50%: 0 of 3 done")
    tab.context.close()
    # requests without a name are refused
    body = {"page": "annotation"}
    assert Client(study.port, "").call("POST", "/api/next", body)[0] == 400
    wire = http.client.HTTPConnection("127.0.0.1", study.port)
    wire.request("POST", "/api/next", json.dumps(body), {"Content-Type": "application/json"})
    response = wire.getresponse()
    assert (response.status, json.loads(response.read())["needs"]) == (401, "name")
    wire.close()


def test_links_outlive_the_server_and_a_wrong_one_can_be_replaced(chromium, tmp_path):
    server = Server(tmp_path, items=1, annotators="anna").start()
    try:
        link = server.printed()[1].partition("anna: ")[2]
        server.kill()
        server.settings["annotators"] = "anna,ben"
        server.start()
        printed = server.printed()
        assert printed[1].startswith("anna: the link of an earlier start")
        assert "#token=" in printed[2] and printed[2].startswith("ben: ")
        tab = plain_tab(chromium, server, fragment="#token=wrong")
        assert "Your link is needed" in tab.inner_text("#empty")
        tab.fill("#name", link)
        press(tab, "Enter")
        tab.wait_for_selector("#work:not([hidden])")
        assert tab.inner_text("#position").startswith("anna: 0 of 1 done")
        tab.context.close()
        server.kill()
        server.settings |= {"new_tokens": "true", "annotators": "ben"}  # anna has left
        server.start()
        token = link.partition("#token=")[2]
        answer = Client(server.port, "x").call(
            "POST", "/api/next", {"page": "annotation"}, {"Authorization": f"Bearer {token}"}
        )
        assert answer[0] == 401 and answer[1]["needs"] == "token"
    finally:
        server.stop()


def test_a_server_that_is_down_can_be_tried_again(chromium, study):
    with FaultyLink(study) as link:
        tab = new_context(chromium).new_page()
        requests = link.at("/api/*", otherwise=fail)
        tab.goto(f"http://127.0.0.1:{link.port}/templates/annotation.html#annotator=anna")
        tab.wait_for_selector("#retry")
        assert "cannot be reached" in tab.inner_text("#empty")
        requests.otherwise = proceed
        push(tab, "#retry")
        tab.wait_for_selector("#work:not([hidden])")
        tab.context.close()


# ---- own items -----------------------------------------------------------------------------------


def test_a_submitted_item_is_reopened_and_submitted_again(chromium, tmp_path):
    with serving(tmp_path, items=2) as server, visiting(chromium, server) as tab:
        press(tab, "Escape", "Home", "1")
        tab.fill("#correction", "First.")
        press(tab, "Escape", "Control+Enter")
        said(tab, "This is the next item")
        press(tab, "n")  # the second item is begun, not submitted
        press(tab, "[")
        wait_until(tab, "() => document.querySelector('#item-title').textContent === 'Question 0?'")
        assert "1 of 2 done (this item: submitted)" in tab.inner_text("#position")
        assert tab.input_value("#correction") == "First."
        assert tab.locator("#errors > li").count() == 1
        tab.fill("#correction", "Second.")
        press(tab, "Escape")
        assert "changed since submitted" in tab.inner_text("#position")
        press(tab, "Control+Enter")
        said(tab, "This is the next item")
        assert tab.inner_text("#item-title") == "Question 1?"
        press(tab, "Control+Enter")
        tab.wait_for_selector("#empty:not([hidden])")
        assert "2 of 2 done" in tab.inner_text("#position")
        push(tab, "#previous")
        tab.wait_for_selector("#work:not([hidden])")
        assert tab.inner_text("#item-title") == "Question 1?"
        revisions = [
            (entry.item, entry.revision, entry.doc["corrected-prediction"])
            for entry in submissions_of(server)
        ]
        assert revisions[:2] == [("i0", 1, "First."), ("i0", 2, "Second.")]
        out = tmp_path / "out.json"
        assert write_export(server.db, out, pages="annotation") == 2
        assert json.loads(out.read_text())[0]["feedback"]["corrected-prediction"] == "Second."


@pytest.mark.parametrize("page", ["annotation", "comparison"])
def test_an_unchanged_item_is_not_submitted_again(chromium, study, page):
    judge = ["n"] if page == "annotation" else ["1"] * 6
    with at_work(chromium, study, page) as work:
        press(work.tab, "Escape", *judge, "Control+Enter")
        said(work.tab, "Submitted. This is the next item.")
        press(work.tab, "[")
        titled(work.tab, "Question 0?")
        push(work.tab, "#flag")
        kept(work.tab)  # a draft with a change, which is then undone
        push(work.tab, "#undo")
        press(work.tab, "Control+Enter")
        said(work.tab, "Unchanged: your earlier submission stays. This is the next item.")
        press(work.tab, "[")
        titled(work.tab, "Question 0?")
        assert "(this item: submitted)" in work.tab.inner_text("#position")
        push(work.tab, "#flag")
        press(work.tab, "Control+Enter")
        said(work.tab, "Submitted. This is the next item.")
        assert [entry.revision for entry in work.submissions] == [1, 2]


def test_the_times_of_revisions_add_up(chromium, study):
    with at_work(chromium, study, with_clock=True) as work:
        work.tab.mouse.move(300, 300)
        work.tab.clock.run_for(20_000)
        press(work.tab, "n")
        work.link.at("/api/next").next.append(fail)
        press(work.tab, "Control+Enter")
        said(work.tab, "could not be loaded")  # so the page still shows the item
        push(work.tab, "#flag")
        press(work.tab, "Control+Enter")
        said(work.tab, "This is the next item")
        assert all("ERR_" in line for line in work.tab.noise)
        work.tab.noise.clear()
        first, second = work.submissions
        assert first.seconds >= 20 and second.seconds < 20


# ---- windows and leases --------------------------------------------------------------------------


def test_a_stale_window_replaces_a_submission_only_if_confirmed(chromium, study):
    with at_work(chromium, study) as work, visiting(chromium, study, who=quote(work.who)) as first:
        stale = work.tab
        for tab, text in ((first, "First."), (stale, "Stale.")):
            press(tab, "Escape", "Home", "1")
            tab.fill("#correction", text)
            press(tab, "Escape", "Control+Enter")
            said(tab, "This is the next item" if tab is first else "already submitted")
        assert len(work.submissions) == 1
        work.link.at("/api/next").next.append(fail)
        push(stale, "#problems button")
        said(stale, "could not be loaded")  # so the page still shows the item
        assert work.corrections == ["First.", "Stale."]
        stale.fill("#correction", "Later.")  # nobody has submitted it meanwhile
        press(stale, "Escape", "Control+Enter")
        said(stale, "This is the next item")
        assert len(work.submissions) == 3
        assert all("409" in line or "ERR_" in line for line in stale.noise)
        stale.noise.clear()


def lease_of(server) -> float:
    with closing(sqlite3.connect(server.db)) as sql:
        return sql.execute("SELECT lease_until FROM assignments").fetchone()[0]


def end_leases(server) -> None:
    with closing(sqlite3.connect(server.db)) as sql, sql:
        sql.execute("UPDATE assignments SET lease_until=0")


def test_activity_keeps_the_lease_and_late_work_counts(chromium, tmp_path):
    with serving(tmp_path, items=1) as server:
        with visiting(chromium, server, with_clock=True) as tab:
            granted = lease_of(server)
            tab.clock.run_for(60_000)  # nothing was done
            tab.wait_for_load_state("networkidle")
            assert lease_of(server) == granted
            tab.mouse.move(300, 300)
            with tab.expect_response("**/active"):
                tab.clock.run_for(60_000)
            assert lease_of(server) > granted
            end_leases(server)  # as if anna had gone away
            ben = Client(server.port, "ben")
            assert ben.call("POST", "/api/submissions", ben.submission(ben.next()))[0] == 201
            press(tab, "n")
            tab.clock.run_for(1000)  # a draft is sent, and takes nothing back
            tab.wait_for_selector("#notice:not([hidden])")
            assert "counts as an extra judgement" in tab.inner_text("#notice")
            assert lease_of(server) == 0
            press(tab, "Control+Enter")
            tab.wait_for_selector("#empty:not([hidden])")
        assert [entry.annotator for entry in submissions_of(server)] == ["ben", "anna"]


def test_the_end_of_a_lease_is_counted_down_and_announced_once(chromium, tmp_path):
    with (
        serving(tmp_path, items=1, lease_minutes=60) as server,
        visiting(chromium, server, with_clock=True, bypass_csp=True) as tab,
    ):
        tab.clock.pause_at(tab.evaluate("Date.now()") / 1000 + 1)  # seconds
        tab.clock.run_for(54 * 60_000)  # ms: nothing is done
        assert tab.is_hidden("#lease") and tab.inner_text("#lease-said") == ""
        tab.evaluate(
            """() => {
            window.said = [];
            const node = document.querySelector("#lease-said");
            new MutationObserver(() => window.said.push(node.textContent)).observe(node, {
                childList: true });
        }"""
        )
        tab.clock.run_for(3 * 60_000)
        assert re.fullmatch(r"[23]:\d\d left for this item", tab.inner_text("#lease"))
        assert tab.get_attribute("#lease-said", "role") == "status"
        (text,) = tab.evaluate("window.said")
        assert re.match(r"[45]:\d\d left for this item\. Then others", text)
        with tab.expect_response("**/active"):
            tab.mouse.move(300, 300)  # activity renews it
            tab.clock.run_for(2000)
        wait_until(tab, "() => document.querySelector('#lease').hidden")
        for _ in range(2 * 60):  # minutes; a late message about the mouse may renew it once more
            tab.clock.run_for(60_000)
            if tab.is_visible("#lease"):
                break
        assert tab.is_visible("#lease")
        press(tab, "n", "Control+Enter")
        tab.wait_for_selector("#empty:not([hidden])")
        assert tab.is_hidden("#lease")


def test_a_draft_with_a_long_history_reaches_the_server(chromium, study):
    with at_work(chromium, study) as work:
        # two seconds later at every look, so that no two changes are one step
        work.tab.evaluate("FG.now = ((now) => () => (now += 2))(FG.now())")
        statuses = []
        work.tab.on("response", lambda response: statuses.append(response.status))
        for i in range(16):
            work.tab.fill("#correction", chr(97 + i) * 10_000 + "ä" * 5_000)
            press(work.tab, "Escape", "Escape")
        work.tab.wait_for_timeout(1000)  # ms: a draft is sent half a second after a change
        assert 413 not in statuses
        kept(work.tab)
        assert work.tab.is_hidden("#notice")

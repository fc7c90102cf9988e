"""Pages with the server: the same bytes as from disk, drafts, kills, lost answers and windows."""

from urllib.parse import quote

import pytest
from faulty_link import Reply, fail, lose, proceed
from page_helpers import ITEM, new_context, press, push, reload, rename, row_with, said, wait_until
from served_pages import (
    at_work,
    corrected,
    kept,
    noticed,
    positioned,
    reload_and_go_back,
    second_window,
    titled,
    unreached,
    visiting,
)
from served_pages import study as study  # a fixture
from server_helpers import Client, Server, serving, write_export
from test_annotation_page import EXPECTED, SCHEMA, by_keyboard
from test_comparison_page import EXPECTED as PREFERENCE
from test_comparison_page import judge

from interface_html.format import Item
from interface_html.items import rows_text
from interface_html.stored import read_database

UNCHANGED = ITEM["prediction 1"]


# ---- whole judgements ----------------------------------------------------------------------------


def test_the_same_bytes_as_from_disk(chromium, tmp_path):
    with serving(tmp_path, items=1) as server:
        with visiting(chromium, server) as tab:
            for step in by_keyboard(tab):
                step()
                kept(tab)
                tab.evaluate("localStorage.clear()")  # only the server has it
                tab.evaluate("localStorage.setItem('fgrlhf/served/qa_feedback/annotator', 'anna')")
                reload(tab)
            press(tab, "Control+Enter")
            tab.wait_for_selector("#empty:not([hidden])")
            assert "1 of 1 done" in tab.inner_text("#empty")
        with visiting(chromium, server, "comparison") as tab:
            press(tab, *map(str, judge(tab)), "b", "Control+Enter")
            tab.wait_for_selector("#empty:not([hidden])")
            push(tab, "#previous")  # a submitted comparison has its choices
            tab.wait_for_selector("#choices .pair")
            assert tab.locator("#choices input:checked").count() == 6
            assert tab.is_checked("#all-bad")
            assert "(this item: submitted)" in tab.inner_text("#position")
        write_export(server.db, tmp_path / "out.json")
        row = {key: ITEM[key] for key in SCHEMA.row} | {"question": "Question 0?"}
        decided = {"annotation": "single", "comparison": "single"}
        item = Item("", row | {"decided": decided})
        expected = rows_text([row_with(item, EXPECTED, PREFERENCE)])
        assert (tmp_path / "out.json").read_text() == expected
        marked, compared = read_database(server.db, "qa_feedback").submissions
        assert marked.seconds > 0
        assert [error["quote"] for error in marked.doc["errors"]] == [
            "cat sat",
            "😀 red.",
            "on it.",
        ]
        assert compared.doc["order"] == compared.shown and compared.doc["all-bad"] is True
        assert len(compared.doc["seen"]) == 4  # what the rows do not have


def test_a_killed_server_loses_nothing(chromium, tmp_path):
    server = Server(tmp_path, items=2).start()
    try:
        with visiting(chromium, server) as tab:
            press(tab, "Escape", "Home", "1")
            kept(tab)
            server.kill()
            press(tab, "Escape", "Home", "ArrowRight", "4")
            tab.fill("#correction", "Mended.")
            press(tab, "Escape", "Control+Enter")
            said(tab, "cannot be reached")
            server.start()
            press(tab, "Control+Enter")
            said(tab, "This is the next item")
            assert all("ERR_" in line or "Failed to load" in line for line in tab.noise)
            tab.noise.clear()
        (entry,) = read_database(server.db, "qa_feedback").submissions
        kinds = [error["error type"] for error in entry.doc["errors"]]
        assert kinds == ["Irrelevant", "Unverifiable"]
    finally:
        server.stop()


# ---- slow and lost answers -----------------------------------------------------------------------


def test_while_the_server_is_asked_nothing_can_be_changed(chromium, study):
    with at_work(chromium, study) as work:
        tab, submission, next_item = work.tab, *map(work.link.at, ("/api/submissions", "/api/next"))
        submission.hold_next()
        next_item.hold_next()
        press(tab, "Escape", "Home", "1")
        tab.fill("#correction", "Mended.")
        tab.focus("#correction")
        press(tab, "Control+Enter")
        submission.wait()
        press(tab, "Control+Enter")
        tab.keyboard.type(" Lost.")
        submission.release()
        next_item.wait()
        tab.keyboard.type(" Of the first item.")
        next_item.release()
        said(tab, "This is the next item")
        assert tab.inner_text("#item-title") == "Question 1?"
        assert tab.input_value("#correction") == UNCHANGED
        press(tab, "n")
        kept(tab)
        second = work.draft(1)
        assert second["corrected-prediction"] == UNCHANGED and second["no-error"]
        assert work.corrections == ["Mended."]


def test_a_server_that_does_not_answer_stops_nobody(chromium, study):
    with at_work(chromium, study, with_clock=True) as work:
        submission = work.link.at("/api/submissions")
        submission.hold_next()
        press(work.tab, "n", "Control+Enter")
        submission.wait()
        work.tab.clock.run_for(2000)
        assert work.tab.inner_text("#message") == "Waiting for the server…"
        work.tab.clock.run_for(30_000)
        said(work.tab, "cannot be reached")
        press(work.tab, "Control+Enter")
        titled(work.tab, "Question 1?")
        work.tab.noise.clear()


def test_a_lost_answer_makes_no_second_submission(chromium, study):
    """Whether the annotator submits again or reloads the page."""
    for is_reloaded in (False, True):
        with at_work(chromium, study) as work:
            # every time: the page may try again by itself
            submissions = work.link.at("/api/submissions", otherwise=lose)
            press(work.tab, "n", "Control+Enter")
            said(work.tab, "cannot be reached")
            submissions.otherwise = proceed
            if is_reloaded:
                work.link.at("/api/drafts/*", otherwise=fail)
                reload_and_go_back(work.tab)
                assert "(this item: submitted)" in work.tab.inner_text("#position")
            else:
                press(work.tab, "Control+Enter")
                said(work.tab, "This is the next item")
            assert len(work.submissions) == 1
            work.tab.noise.clear()


def test_what_could_not_be_submitted_becomes_a_draft_by_itself(chromium, study):
    with at_work(chromium, study, with_clock=True) as work:
        drafts, submissions = map(work.link.at, ("/api/drafts/*", "/api/submissions"))
        drafts.otherwise = submissions.otherwise = fail
        press(work.tab, "Escape", "Home", "1")
        work.tab.fill("#correction", "Mine.")
        press(work.tab, "Escape", "Control+Enter")
        said(work.tab, "cannot be reached")
        drafts.otherwise = proceed
        work.tab.clock.run_for(10_000)
        kept(work.tab)
        assert work.draft(0)["corrected-prediction"] == "Mine."
        assert work.tab.is_hidden("#notice")
        work.tab.noise.clear()


def test_the_page_finds_out_that_its_submission_is_stored(chromium, study):
    with at_work(chromium, study, with_clock=True) as work:
        submissions = work.link.at("/api/submissions", otherwise=lose)
        press(work.tab, "n", "Control+Enter")
        said(work.tab, "cannot be reached")
        submissions.otherwise = proceed
        work.tab.clock.run_for(10_000)
        said(work.tab, "Submitted.")
        positioned(work.tab, "this item: submitted")
        press(work.tab, "Control+Enter")
        titled(work.tab, "Question 1?")
        assert len(work.submissions) == 1
        work.tab.noise.clear()


def test_edits_after_a_submission_whose_answer_was_lost_survive_a_reload(chromium, study):
    with at_work(chromium, study) as work:
        tab = work.tab
        press(tab, "Escape", "Home", "1")
        tab.fill("#correction", "First.")
        kept(tab)  # a draft, which the submission ends
        submissions = work.link.at("/api/submissions", otherwise=lose)
        press(tab, "Escape", "Control+Enter")
        said(tab, "cannot be reached")
        submissions.otherwise = proceed
        tab.fill("#correction", "Second.")
        positioned(tab, "changed since submitted")  # the page finds out that it is stored
        assert tab.is_hidden("#notice")
        reload_and_go_back(tab)
        assert tab.input_value("#correction") == "Second."
        assert "changed since submitted" in tab.inner_text("#position")
        kept(tab)
        assert work.draft(0)["corrected-prediction"] == "Second."
        press(tab, "Escape", "Control+Enter")
        titled(tab, "Question 1?")
        assert work.corrections == ["First.", "Second."]
        tab.noise.clear()


def test_a_draft_whose_answer_was_lost_is_followed_by_the_next(chromium, study):
    with at_work(chromium, study) as work:
        tab, drafts = work.tab, work.link.at("/api/drafts/*")
        drafts.next.append(lose)
        tab.fill("#correction", "First.")
        unreached(tab)
        tab.fill("#correction", "Second.")
        kept(tab)
        assert tab.is_hidden("#notice")
        assert work.draft(0)["corrected-prediction"] == "Second."
        drafts.next.append(lose)
        tab.fill("#correction", "Third.")
        unreached(tab)
        drafts.otherwise = fail
        tab.fill("#correction", "Fourth.")  # only this browser has it
        reload(tab)
        drafts.otherwise = proceed
        assert tab.input_value("#correction") == "Fourth."
        kept(tab)
        assert work.draft(0)["corrected-prediction"] == "Fourth."
        tab.noise.clear()


def test_drafts_from_before_a_submission_are_not_the_newest(chromium, study):
    with at_work(chromium, study, with_clock=True) as work:
        drafts = work.link.at("/api/drafts/*")
        drafts.hold_next()
        press(work.tab, "n")
        drafts.wait()
        press(work.tab, "Control+Enter")
        work.tab.clock.run_for(31_000)  # the page gives the draft up
        titled(work.tab, "Question 1?")
        assert work.draft(0) is None
        drafts.release()  # it arrives after its submission
        assert work.draft(0) is None
        work.tab.noise.clear()
    with at_work(chromium, study) as work:
        work.link.at("/api/drafts/*", otherwise=fail)
        work.tab.fill("#correction", "Old.")
        unreached(work.tab)
        body = work.client.submission(work.assignment(0))  # from another browser
        assert work.client.call("POST", "/api/submissions", body)[0] == 201
        reload_and_go_back(work.tab)
        assert work.tab.input_value("#correction") == UNCHANGED
        assert "(this item: submitted)" in work.tab.inner_text("#position")
        work.tab.noise.clear()


def test_a_draft_is_sent_after_another_item_was_opened(chromium, study):
    with at_work(chromium, study) as work:
        tab = work.tab
        press(tab, "n", "Control+Enter")
        titled(tab, "Question 1?")
        drafts = work.link.at("/api/drafts/*", otherwise=fail)
        tab.fill("#correction", "Left.")
        unreached(tab)
        press(tab, "Escape", "[")
        titled(tab, "Question 0?")
        drafts.otherwise = proceed
        kept(tab)
        assert work.draft(1)["corrected-prediction"] == "Left."
        assert work.draft(0) is None
        assert tab.is_hidden("#notice")
        tab.noise.clear()


def test_a_copy_is_sent_at_the_next_start_but_only_for_its_annotator(chromium, study):
    with at_work(chromium, study) as work:
        tab = work.tab
        drafts = work.link.at("/api/drafts/*", otherwise=fail)
        tab.fill("#correction", "Again.")
        unreached(tab)
        number = work.assignment(0)["id"]
        asked = work.link.at(f"/api/assignments/{number}")
        rename(tab, f"{work.who} b")
        tab.wait_for_selector("#work:not([hidden])")
        drafts.otherwise = proceed
        asked.wait()  # for the second annotator, who does not get it
        tab.fill("#correction", "Of b.")
        press(tab, "Escape")
        client = Client(study.port, quote(f"{work.who} b"))
        stored = "part => !Object.keys(localStorage).some((key) => key.includes(part))"
        wait_until(tab, stored, f"/{client.next()['id']}/")
        assert client.next()["draft"]["state"]["doc"]["corrected-prediction"] == "Of b."
        assert work.draft(0) is None
        rename(tab, work.who)
        kept(tab)
        assert work.draft(0)["corrected-prediction"] == "Again."
        tab.noise.clear()


def refuse(forward) -> Reply:
    """The server refuses the request, and the page does not try again by itself."""
    return Reply(422, [("Content-Type", "application/json")], b'{"error": "no"}')


def test_a_draft_that_another_tab_sent_from_the_copy_is_followed_by_the_next(chromium, study):
    with at_work(chromium, study) as work:
        tab = work.tab
        press(tab, "n", "Control+Enter")
        titled(tab, "Question 1?")
        press(tab, "[")
        titled(tab, "Question 0?")
        work.link.at("/api/drafts/*").next.append(refuse)
        tab.fill("#correction", "First.")
        noticed(tab, "draft yet")
        other = tab.context.new_page()
        other.goto(tab.url)
        titled(other, "Question 1?")
        kept(other)
        assert work.draft(0)["corrected-prediction"] == "First."
        tab.fill("#correction", "Second.")
        kept(tab)
        assert work.draft(0)["corrected-prediction"] == "Second."
        tab.noise.clear()


def test_reading_keeps_no_copy_and_another_item_waits_for_one_draft_at_most(chromium, study):
    with at_work(chromium, study) as work:
        drafts = work.link.at("/api/drafts/*")
        drafts.hold_next()
        press(work.tab, "n")
        drafts.wait()
        work.tab.mouse.move(300, 300)  # counts as time
        drafts.release()
        kept(work.tab)
    with at_work(chromium, study, with_clock=True) as work:
        tab = work.tab
        press(tab, "n", "Control+Enter")
        titled(tab, "Question 1?")
        tab.clock.pause_at(tab.evaluate("Date.now()") / 1000 + 1)  # seconds
        drafts = work.link.at("/api/drafts/*")
        for _ in range(9):
            drafts.hold_next()
        tab.fill("#correction", "First.")
        tab.clock.run_for(1000)
        drafts.wait()
        tab.fill("#correction", "Second.")
        press(tab, "Escape", "[")
        tab.clock.run_for(31_000)
        titled(tab, "Question 0?")
        tab.noise.clear()


def test_a_draft_of_another_study_at_the_same_address_is_not_shown(chromium, tmp_path):
    first = Server(tmp_path, items=1).start()
    try:
        with visiting(chromium, first) as tab:
            first.kill()
            tab.fill("#correction", "Of the first study.")
            unreached(tab)
            folder = tmp_path / "second"
            folder.mkdir()
            with serving(folder, items=1, port=first.port) as second:
                client = Client(second.port, "anna")
                number = client.next()["id"]
                tab.fill("#correction", "Of the first study!")
                noticed(tab, "study")
                given = client.call("GET", f"/api/assignments/{number}")[1]["assignment"]
                assert given["draft"] is None
                reload(tab)
                assert tab.input_value("#correction") == UNCHANGED
            first.start()
            reload(tab)
            assert tab.input_value("#correction") == "Of the first study!"
            tab.noise.clear()
    finally:
        first.stop()


# ---- several pages ------------------------------------------------------------------------------


def test_one_link_opens_all_pages_of_an_annotator(chromium, tmp_path):
    with serving(tmp_path, items=1, annotators="anna,ben") as server:
        links = [line for line in server.printed() if line.startswith("anna: ")]
        assert len(links) == 1
        context = new_context(chromium)
        tab = context.new_page()
        tab.goto(links[0].removeprefix("anna: "))
        tab.wait_for_selector("#work:not([hidden])")
        tab.fill("#correction", "Mended.")
        tab.click("#pages a")
        tab.wait_for_selector("#choices")
        positioned(tab, "anna: 0 of 1 done")
        press(tab, *map(str, judge(tab)), "Control+Enter")
        tab.wait_for_selector("#empty:not([hidden])")
        tab.click("#empty a")
        tab.wait_for_selector("#correction")
        positioned(tab, "anna: 0 of 1 done")
        assert tab.input_value("#correction") == "Mended."  # it was sent before the page was left
        context.close()


def test_annotators_get_exactly_the_pages_that_are_listed(chromium, tmp_path):
    with serving(tmp_path, items=1, pages="comparison") as server:
        client = Client(server.port, "anna")
        answer = client.call("POST", "/api/next", {"page": "annotation"})[1]
        assert answer["assignment"] is None
        assert client.call("GET", "/templates/annotation.html")[0] == 404
        with visiting(chromium, server, "comparison") as tab:
            assert tab.is_hidden("#pages")


# ---- two windows ---------------------------------------------------------------------------------


def test_a_second_window_shows_marks_submissions_and_progress_at_once(chromium, study):
    with at_work(chromium, study) as work:
        tab, other = work.tab, second_window(work.tab)
        press(tab, "Escape", "Home", "1")
        other.wait_for_selector("#errors > li")
        tab.fill("#correction", "Of the first window.")
        corrected(other, "Of the first window.")
        assert "changed in another tab" in other.inner_text("#notice")
        press(tab, "Escape", "Control+Enter")
        titled(tab, "Question 1?")
        positioned(other, "this item: submitted")
        push(other, "#next")
        titled(other, "Question 1?")
        assert other.is_hidden("#notice")  # that was about the item before
        push(other, "#previous")
        titled(other, "Question 0?")
        positioned(other, "1 of 3 done")
        assert other.inner_text("#item-title") == "Question 0?"
        press(tab, "s", "1", "Enter")  # skip
        titled(tab, "Question 2?")
        other.focus("#next")
        press(other, "Enter")
        titled(other, "Question 1?")
        positioned(other, "this item: skipped")
        push(tab, "#previous")
        titled(tab, "Question 1?")
        push(other, "#skipped button")
        wait_until(tab, "() => document.querySelector('#skipped').hidden")
    with at_work(chromium, study, "comparison") as work:
        tab, other = work.tab, second_window(work.tab)
        checked = "n => document.querySelectorAll('#choices input:checked').length === n"
        press(tab, "1", "2")
        wait_until(other, checked, 2)
        press(other, "ArrowDown", "ArrowDown", "0")
        wait_until(tab, checked, 3)


def test_what_is_half_typed_in_two_windows_is_joined(chromium, study):
    """The windows have other parts of the item in hand, which neither has sent yet."""
    with at_work(chromium, study) as work:
        tab, other = work.tab, second_window(work.tab)
        drafts = work.link.at("/api/drafts/*")
        drafts.hold_next()
        tab.focus("#correction")
        press(tab, "ControlOrMeta+a")
        tab.keyboard.type("Half a corr")
        drafts.wait()
        press(other, "Escape", "Home", "1")
        kept(other)
        drafts.release()
        wait_until(tab, "() => document.querySelectorAll('#errors > li').length === 1")
        assert tab.input_value("#correction") == "Half a corr"
        tab.keyboard.type("ection")  # the caret is where it was
        corrected(tab, "Half a correction")
        corrected(other, "Half a correction")
        kept(tab)
        stored = work.draft(0)
        assert (stored["corrected-prediction"], len(stored["errors"])) == ("Half a correction", 1)
        press(tab, "Escape", "Control+z", "Control+z")  # of this window's steps
        wait_until(other, "() => document.querySelectorAll('#errors > li').length <= 1")
        tab.noise.clear()  # the browser logs the refusal


def test_work_of_another_computer_is_shown_when_the_annotator_comes_back(chromium, study):
    with at_work(chromium, study) as work:
        press(work.tab, "Escape", "Home", "1")
        kept(work.tab)
        given = work.assignment(0)
        draft = given["draft"]
        draft["state"]["doc"]["corrected-prediction"] = "Of the laptop."
        body = {"revision": draft["revision"], "submissions": 0, "state": draft["state"]}
        assert work.client.call("PUT", f"/api/drafts/{given['id']}", body)[0] == 200
        work.tab.evaluate("() => window.dispatchEvent(new Event('focus'))")
        corrected(work.tab, "Of the laptop.")
        assert work.tab.locator("#errors > li").count() == 1


@pytest.mark.parametrize("chosen", ["first", "second"])
def test_of_two_windows_one_is_chosen_and_no_work_is_lost_unasked(chromium, study, chosen):
    """If both have changed the same part, there is a button for the own and for the other work."""
    with at_work(chromium, study) as work:
        tab, other = work.tab, second_window(work.tab)
        drafts = work.link.at("/api/drafts/*")
        drafts.hold_next()
        tab.fill("#correction", "Of the first window.")
        drafts.wait()
        other.fill("#correction", "Of the second window.")
        kept(other)
        drafts.release()
        wait_until(tab, "() => document.querySelectorAll('#notice button').length === 2")
        assert tab.input_value("#correction") == "Of the first window."
        if chosen == "first":
            push(tab, "#notice button:last-child")
            wait_until(tab, "() => document.querySelector('#notice').hidden")
        else:
            with tab.expect_navigation():
                push(tab, "#notice button")
            tab.wait_for_selector("#work:not([hidden])")
        for window in (tab, other):
            corrected(window, f"Of the {chosen} window.")
        assert work.draft(0)["corrected-prediction"] == f"Of the {chosen} window."
        tab.noise.clear()  # the browser logs the refusal

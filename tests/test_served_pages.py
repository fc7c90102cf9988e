"""Pages with the server: the same bytes as from disk, drafts, kills and lost answers."""

import json
from contextlib import contextmanager

import pytest
from faulty_link import FaultyLink, Reply, fail, lose, proceed
from page_helpers import (
    ITEM,
    new_context,
    press,
    push,
    reload,
    rename,
    row_with,
    said,
    wait_until,
    watched,
    word,
)
from server_helpers import Client, Server, serving
from test_annotation_page import EXPECTED, SCHEMA, by_keyboard, write
from test_comparison_page import EXPECTED as PREFERENCE
from test_comparison_page import judge

from interface_html.export import Settings, export
from interface_html.format import Item
from interface_html.items import rows_text
from interface_html.stored import read_database


@contextmanager
def visiting(browser, server, page="annotation", who="anna", with_clock=False, **options):
    """A served page; its console must be clean at the end, unless failures are intended.

    `with_clock`: `tab.clock` controls its time, and it waits for a response as long as an
    annotator's page does. Other pages wait longer, since a test may hold a response back for long.
    """
    context = new_context(browser, **options)
    try:
        yield from _visiting_in(context, server, page, who, with_clock)
    finally:
        context.close()


def _visiting_in(context, server, page, who, with_clock):
    """The same in a given context; it yields the page once."""
    if not with_clock:
        context.add_init_script("window.FG = { longestWait: 600000 }")  # ms
    tab, outside, requests = context.new_page(), [], []
    if with_clock:
        tab.clock.install()
    own = f"http://127.0.0.1:{server.port}/"
    tab.on(
        "request",
        lambda request: outside.append(request.url) if not request.url.startswith(own) else None,
    )
    tab.on("requestfailed", lambda request: requests.append(f"{request.url} {request.failure}"))
    tab.on(
        "response",
        lambda answer: requests.append(f"{answer.request.method} {answer.url} {answer.status}"),
    )
    with watched(tab, requests=requests) as noise:
        tab.goto(f"{own}templates/{page}.html#annotator={who}")
        tab.wait_for_selector("#work:not([hidden]), #empty:not([hidden])")
        tab.noise = noise
        yield tab
    assert not outside, outside


def kept(tab):
    """Wait until the server has stored the draft."""
    wait_until(
        tab,
        "() => !Object.keys(localStorage).some((key) =>"
        " /served.*(annotation|comparison)\\/\\d/.test(key))",
    )


def unreached(tab) -> None:
    """Wait until the page says that the server cannot be reached."""
    wait_until(tab, "() => document.querySelector('#notice').textContent.includes('reached')")


def reload_and_go_back(tab) -> None:
    """Reload a page whose items are all done, and open the last one."""
    reload(tab, "#empty:not([hidden])")
    push(tab, "#previous")
    tab.wait_for_selector("#work:not([hidden])")


def titled(tab, title: str) -> None:
    """Wait until the page shows the item with this title."""
    shows = "title => document.querySelector('#item-title').textContent === title"
    wait_until(tab, shows, title)


def positioned(tab, text: str) -> None:
    """Wait until the bar says `text` about the item or the progress."""
    shows = "text => document.querySelector('#position').textContent.includes(text)"
    wait_until(tab, shows, text)


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
            press(tab, *map(str, judge(tab)), "Control+Enter")
            tab.wait_for_selector("#empty:not([hidden])")
        export(Settings(task="qa_feedback", db=str(server.db), out=str(tmp_path / "out.json")))
        row = {key: ITEM[key] for key in SCHEMA.row} | {"question": "Question 0?"}
        decided = {"annotation": "single", "comparison": "single"}
        item = Item("", row | {"decided": decided})
        expected = rows_text([row_with(item, EXPECTED, PREFERENCE)])
        assert (tmp_path / "out.json").read_text() == expected
        assert read_database(server.db, "qa_feedback").submissions[0].seconds > 0


def test_by_touch(chromium, tmp_path):
    phone = {"has_touch": True, "is_mobile": True, "viewport": {"width": 390, "height": 800}}
    with serving(tmp_path, items=1) as server:
        with visiting(chromium, server, **phone) as tab:
            for number in (1, 2):
                word(tab, number).tap()
            tab.locator("#types button", has_text="Irrelevant").tap()
            tab.fill("#correction", "Mended.")
            tab.locator("#submit").tap()
            tab.wait_for_selector("#empty:not([hidden])")
        with visiting(chromium, server, "comparison", **phone) as tab:
            for number, value in enumerate(judge(tab)):
                tab.locator(f"[data-card='{number}'] label").nth([1, 0, 2][value]).tap()
            tab.locator("#submit").tap()
            tab.wait_for_selector("#empty:not([hidden])")
        marked, compared = read_database(server.db, "qa_feedback").submissions
        (error,) = marked.doc["errors"]
        assert (error["error type"], error["quote"]) == ("Irrelevant", "cat sat")
        seen = compared.doc.pop("seen")
        assert compared.doc == {"preference": PREFERENCE, "order": compared.shown}
        assert len(seen) == 4


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
        assert [error["error type"] for error in entry.doc["errors"]] == [
            "Irrelevant",
            "Unverifiable",
        ]
    finally:
        server.stop()


def test_an_answer_that_was_lost_makes_no_second_submission(chromium, tmp_path):
    with (
        serving(tmp_path, items=2) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        # every time: the page may try again by itself
        submissions = link.at("/api/submissions", otherwise=lose)
        press(tab, "n", "Control+Enter")
        said(tab, "cannot be reached")
        submissions.otherwise = proceed
        press(tab, "Control+Enter")
        said(tab, "This is the next item")
        assert len(read_database(server.db, "qa_feedback").submissions) == 1
        tab.noise.clear()


def test_another_task_is_served_too(chromium, tmp_path):
    item = {"id": "t", "prompt": "Say", "response": "Hello there. You fool! Bye."}
    path = write(tmp_path, [item])
    with serving(tmp_path, task="detoxification", items=path) as server:
        with visiting(chromium, server) as tab:
            press(tab, "Escape", "Home", "ArrowRight", "1", "Control+Enter")
            tab.wait_for_selector("#empty:not([hidden])")
        export(Settings(task="detoxification", db=str(server.db), out=str(tmp_path / "out.json")))
    (row,) = json.loads((tmp_path / "out.json").read_text())
    marked = {**item, "spans": [{"start": 13, "end": 22, "label": "Insult"}]}
    assert row == {**marked, "decided": {"annotation": "single"}}


def test_two_annotators_work_at_once(chromium, tmp_path):
    with (
        serving(tmp_path, items=2) as server,
        visiting(chromium, server) as a,
        visiting(chromium, server, who="ben") as b,
    ):
        assert {a.inner_text("#item-title"), b.inner_text("#item-title")} == {
            "Question 0?",
            "Question 1?",
        }
        press(a, "n", "Control+Enter")
        press(b, "n", "Control+Enter")
        for tab in (a, b):
            tab.wait_for_selector("#empty:not([hidden])")
        assert sorted(
            entry.annotator for entry in read_database(server.db, "qa_feedback").submissions
        ) == [
            "anna",
            "ben",
        ]
        assert Client(server.port, "anna").next() is None


# ---- slow and lost answers -----------------------------------------------------------------------


def draft_of(server, number: int, who: str = "anna"):
    """The document of a stored draft; None without one."""
    answer = Client(server.port, who).call("GET", f"/api/assignments/{number}")[1]
    draft = answer["assignment"]["draft"]
    return None if draft is None else draft["state"]["doc"]


def test_while_the_server_is_asked_nothing_can_be_changed(chromium, tmp_path):
    with (
        serving(tmp_path, items=2) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        submission = link.at("/api/submissions")
        next_item = link.at("/api/next")
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
        assert tab.input_value("#correction") == ITEM["prediction 1"]
        press(tab, "n")
        kept(tab)
        second = draft_of(server, 2)
        assert second["corrected-prediction"] == ITEM["prediction 1"] and second["no-error"]
        (entry,) = read_database(server.db, "qa_feedback").submissions
        assert entry.doc["corrected-prediction"] == "Mended."


def test_a_server_that_does_not_answer_stops_nobody(chromium, tmp_path):
    with (
        serving(tmp_path, items=1) as server,
        FaultyLink(server) as link,
        visiting(chromium, link, with_clock=True) as tab,
    ):
        submission = link.at("/api/submissions")
        submission.hold_next()
        press(tab, "n", "Control+Enter")
        submission.wait()
        tab.clock.run_for(2000)
        assert tab.inner_text("#message") == "Waiting for the server…"
        tab.clock.run_for(30_000)
        said(tab, "cannot be reached")
        press(tab, "Control+Enter")
        tab.wait_for_selector("#empty:not([hidden])")
        tab.noise.clear()


def test_after_a_lost_answer_and_a_reload_the_item_is_submitted(chromium, tmp_path):
    with (
        serving(tmp_path, items=1) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        # every time: the page may try again by itself
        submissions = link.at("/api/submissions", otherwise=lose)
        drafts = link.at("/api/drafts/*")
        press(tab, "n", "Control+Enter")
        submissions.wait()
        submissions.otherwise = proceed
        drafts.otherwise = fail
        reload_and_go_back(tab)
        assert "(this item: submitted)" in tab.inner_text("#position")
        tab.noise.clear()


def test_edits_after_a_submission_whose_answer_was_lost_survive_a_reload(chromium, tmp_path):
    with (
        serving(tmp_path, items=1) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        press(tab, "Escape", "Home", "1")
        tab.fill("#correction", "First.")
        kept(tab)  # a draft, which the submission ends
        submissions = link.at("/api/submissions", otherwise=lose)
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
        assert draft_of(server, 1)["corrected-prediction"] == "Second."
        press(tab, "Escape", "Control+Enter")
        tab.wait_for_selector("#empty:not([hidden])")
        tab.noise.clear()
    first, second = read_database(server.db, "qa_feedback").submissions
    assert [entry.doc["corrected-prediction"] for entry in (first, second)] == ["First.", "Second."]


def test_a_draft_whose_answer_was_lost_is_followed_by_the_next(chromium, tmp_path):
    with (
        serving(tmp_path, items=1) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        drafts = link.at("/api/drafts/*")
        drafts.next.append(lose)
        tab.fill("#correction", "First.")
        unreached(tab)
        tab.fill("#correction", "Second.")
        kept(tab)
        assert tab.is_hidden("#notice")
        assert draft_of(server, 1)["corrected-prediction"] == "Second."
        drafts.next.append(lose)
        tab.fill("#correction", "Third.")
        unreached(tab)
        drafts.otherwise = fail
        tab.fill("#correction", "Fourth.")  # only this browser has it
        reload(tab)
        drafts.otherwise = proceed
        assert tab.input_value("#correction") == "Fourth."
        kept(tab)
        assert draft_of(server, 1)["corrected-prediction"] == "Fourth."
        tab.noise.clear()


def test_a_draft_that_arrives_after_its_submission_is_refused(chromium, tmp_path):
    with (
        serving(tmp_path, items=1) as server,
        FaultyLink(server) as link,
        visiting(chromium, link, with_clock=True) as tab,
    ):
        drafts = link.at("/api/drafts/*")
        drafts.hold_next()
        press(tab, "n")
        drafts.wait()
        press(tab, "Control+Enter")
        tab.clock.run_for(31_000)  # the page gives the draft up
        tab.wait_for_selector("#empty:not([hidden])")
        assert draft_of(server, 1) is None
        drafts.release()
        assert draft_of(server, 1) is None
        tab.noise.clear()


def test_a_copy_from_before_a_submission_is_not_the_newest(chromium, tmp_path):
    with (
        serving(tmp_path, items=1) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        link.at("/api/drafts/*", otherwise=fail)
        tab.fill("#correction", "Old.")
        unreached(tab)
        client = Client(server.port, "anna")  # another browser
        body = client.submission(client.next())
        assert client.call("POST", "/api/submissions", body)[0] == 201
        reload_and_go_back(tab)
        assert tab.input_value("#correction") == ITEM["prediction 1"]
        assert "(this item: submitted)" in tab.inner_text("#position")
        tab.noise.clear()


def test_a_draft_is_sent_after_another_item_was_opened(chromium, tmp_path):
    with (
        serving(tmp_path, items=2) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        press(tab, "n", "Control+Enter")
        titled(tab, "Question 1?")
        drafts = link.at("/api/drafts/*", otherwise=fail)
        tab.fill("#correction", "Left.")
        unreached(tab)
        press(tab, "Escape", "[")
        titled(tab, "Question 0?")
        drafts.otherwise = proceed
        kept(tab)
        assert draft_of(server, 2)["corrected-prediction"] == "Left."
        assert draft_of(server, 1) is None
        assert tab.is_hidden("#notice")
        tab.noise.clear()


def test_a_copy_is_sent_at_the_next_start_but_only_for_its_annotator(chromium, tmp_path):
    with (
        serving(tmp_path, items=1, per_item=2) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        press(tab, "n", "Control+Enter")
        tab.wait_for_selector("#empty:not([hidden])")
        push(tab, "#previous")
        tab.wait_for_selector("#work:not([hidden])")
        drafts = link.at("/api/drafts/*", otherwise=fail)
        tab.fill("#correction", "Again.")
        unreached(tab)
        asked = link.at("/api/assignments/1")
        rename(tab, "ben")
        tab.wait_for_selector("#work:not([hidden])")
        drafts.otherwise = proceed
        asked.wait()  # for ben, who does not get it
        tab.fill("#correction", "Of ben.")
        press(tab, "Escape")
        wait_until(tab, "() => !Object.keys(localStorage).some((key) => key.includes('/2/'))")
        assert draft_of(server, 2, "ben")["corrected-prediction"] == "Of ben."
        assert draft_of(server, 1) is None
        rename(tab, "anna")
        assert tab.is_visible("#empty")
        kept(tab)
        assert draft_of(server, 1)["corrected-prediction"] == "Again."
        tab.noise.clear()


def refuse(forward) -> Reply:
    """The server refuses the request, and the page does not try again by itself."""
    return Reply(422, [("Content-Type", "application/json")], b'{"error": "no"}')


def test_a_draft_that_another_tab_sent_from_the_copy_is_followed_by_the_next(chromium, tmp_path):
    with (
        serving(tmp_path, items=2) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        press(tab, "n", "Control+Enter")
        titled(tab, "Question 1?")
        press(tab, "[")
        titled(tab, "Question 0?")
        link.at("/api/drafts/*").next.append(refuse)
        tab.fill("#correction", "First.")
        wait_until(tab, "() => document.querySelector('#notice').textContent.includes('draft yet')")
        other = tab.context.new_page()
        other.goto(tab.url)
        titled(other, "Question 1?")
        kept(other)
        assert draft_of(server, 1)["corrected-prediction"] == "First."
        tab.fill("#correction", "Second.")
        kept(tab)
        assert draft_of(server, 1)["corrected-prediction"] == "Second."
        tab.noise.clear()


def test_reading_meanwhile_keeps_no_copy_of_a_draft(chromium, tmp_path):
    with (
        serving(tmp_path, items=1) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        drafts = link.at("/api/drafts/*")
        drafts.hold_next()
        press(tab, "n")
        drafts.wait()
        tab.mouse.move(300, 300)  # counts as time
        drafts.release()
        kept(tab)


def test_another_item_waits_for_one_draft_at_most(chromium, tmp_path):
    with (
        serving(tmp_path, items=2) as server,
        FaultyLink(server) as link,
        visiting(chromium, link, with_clock=True) as tab,
    ):
        press(tab, "n", "Control+Enter")
        titled(tab, "Question 1?")
        tab.clock.pause_at(tab.evaluate("Date.now()") / 1000 + 1)  # seconds
        drafts = link.at("/api/drafts/*")
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
                Client(second.port, "anna").next()
                tab.fill("#correction", "Of the first study!")
                wait_until(
                    tab, "() => document.querySelector('#notice').textContent.includes('study')"
                )
                assert draft_of(second, 1) is None
                reload(tab)
                assert tab.input_value("#correction") == ITEM["prediction 1"]
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


def second_window(tab, page="annotation"):
    """Another window of the browser in which the same annotator works on the same page."""
    other = tab.context.new_page()
    other.on("pageerror", lambda error: tab.noise.append(str(error)))
    other.goto(tab.url)
    other.wait_for_selector("#work:not([hidden])")
    return other


def corrected(tab, text: str) -> None:
    """Wait until the field of the correction has this text."""
    wait_until(tab, "text => document.querySelector('#correction').value === text", text)


def test_a_second_window_shows_marks_submissions_and_progress_at_once(chromium, tmp_path):
    with serving(tmp_path, items=3) as server, visiting(chromium, server) as tab:
        other = second_window(tab)
        press(tab, "Escape", "Home", "1")
        other.wait_for_selector("#errors > li")
        tab.fill("#correction", "Of the first window.")
        corrected(other, "Of the first window.")
        assert "changed in another tab" in other.inner_text("#notice")
        press(tab, "Escape", "Control+Enter")
        titled(tab, "Question 1?")
        positioned(other, "this item: submitted")
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


def test_comparisons_and_ratings_are_shown_in_the_second_window(chromium, tmp_path):
    with serving(tmp_path, items=1) as server, visiting(chromium, server, "comparison") as tab:
        other = second_window(tab)
        press(tab, "1", "2")
        wait_until(other, "() => document.querySelectorAll('#choices input:checked').length === 2")
        press(other, "ArrowDown", "ArrowDown", "0")
        wait_until(tab, "() => document.querySelectorAll('#choices input:checked').length === 3")


def test_what_is_half_typed_in_two_windows_is_joined(chromium, tmp_path):
    """The windows have other parts of the item in hand, which neither has sent yet."""
    with (
        serving(tmp_path, items=1) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        other = second_window(tab)
        drafts = link.at("/api/drafts/*")
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
        stored = draft_of(server, 1)
        assert (stored["corrected-prediction"], len(stored["errors"])) == ("Half a correction", 1)
        press(tab, "Escape", "Control+z", "Control+z")  # of this window's steps
        wait_until(other, "() => document.querySelectorAll('#errors > li').length <= 1")
        tab.noise.clear()  # the browser logs the refusal


def test_work_of_another_computer_is_shown_when_the_annotator_comes_back(chromium, tmp_path):
    with serving(tmp_path, items=1) as server, visiting(chromium, server) as tab:
        client = Client(server.port, "anna")
        press(tab, "Escape", "Home", "1")
        kept(tab)
        draft = client.call("GET", "/api/assignments/1")[1]["assignment"]["draft"]
        draft["state"]["doc"]["corrected-prediction"] = "Of the laptop."
        body = {"revision": draft["revision"], "submissions": 0, "state": draft["state"]}
        assert client.call("PUT", "/api/drafts/1", body)[0] == 200
        tab.evaluate("() => window.dispatchEvent(new Event('focus'))")
        corrected(tab, "Of the laptop.")
        assert tab.locator("#errors > li").count() == 1


@pytest.mark.parametrize("chosen", ["first", "second"])
def test_of_two_windows_one_is_chosen_and_no_work_is_lost_unasked(chromium, tmp_path, chosen):
    """If both have changed the same part, there is a button for the own and for the other work."""
    with (
        serving(tmp_path, items=1) as server,
        FaultyLink(server) as link,
        visiting(chromium, link) as tab,
    ):
        other = second_window(tab)
        drafts = link.at("/api/drafts/*")
        drafts.hold_next()
        tab.fill("#correction", "Of the first window.")
        drafts.wait()
        other.fill("#correction", "Of the second window.")
        kept_there = "() => !Object.keys(localStorage).some((key) => /annotation\\/1/.test(key))"
        wait_until(other, kept_there)
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
        assert draft_of(server, 1)["corrected-prediction"] == f"Of the {chosen} window."
        tab.noise.clear()  # the browser logs the refusal


def test_two_tabs_of_a_browser_work_for_two_annotators(chromium, tmp_path):
    with serving(tmp_path, items=2, per_item=2) as server, visiting(chromium, server) as tab:
        other = tab.context.new_page()
        other.goto(f"http://127.0.0.1:{server.port}/templates/annotation.html#annotator=ben")
        other.wait_for_selector("#work:not([hidden])")
        press(tab, "n", "Control+Enter")
        said(tab, "This is the next item")
        reload(tab)
        assert tab.inner_text("#who") == "anna"
        assert "anna: 1 of 2 done" in tab.inner_text("#position")
        assert "ben: 0 of 2 done" in other.inner_text("#position")
        (entry,) = read_database(server.db, "qa_feedback").submissions
        assert entry.annotator == "anna"

"""Served feedback pages in a browser, and a server for tests that need no study of their own."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from faulty_link import FaultyLink
from page_helpers import new_context, push, reload, wait_until, watched
from server_helpers import Client, Server, serving

from interface_html.stored import Submission, read_database


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


# ---- one server for many annotators --------------------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Iterator[Server]:
    """A server whose annotators all get the items 0, 1 and 2, in this order."""
    with serving(tmp_path_factory.mktemp("study"), items=3, per_item=1000) as server:
        yield server


@dataclass
class Work:
    """A new annotator of the study at work, behind a link that fails when a test wants it to."""

    tab: Any
    link: FaultyLink
    server: Server
    who: str

    @property
    def client(self) -> Client:
        return Client(self.server.port, quote(self.who))

    def assignment(self, place: int, page: str = "annotation") -> dict:
        """One of the annotator's assignments, counted from 0."""
        listed = self.client.call("GET", f"/api/assignments?page={page}")[1]["assignments"]
        return self.client.call("GET", f"/api/assignments/{listed[place]['id']}")[1]["assignment"]

    def draft(self, place: int) -> dict | None:
        """The document of a stored draft; None without one."""
        draft = self.assignment(place)["draft"]
        return None if draft is None else draft["state"]["doc"]

    @property
    def submissions(self) -> list[Submission]:
        stored = read_database(self.server.db, "qa_feedback").submissions
        return [entry for entry in stored if entry.annotator == self.who]

    @property
    def corrections(self) -> list[str]:
        return [entry.doc["corrected-prediction"] for entry in self.submissions]


_NUMBERS = itertools.count()


@contextmanager
def at_work(browser, server: Server, page="annotation", **options) -> Iterator[Work]:
    who = f"annotator {next(_NUMBERS)}"
    with ExitStack() as stack:
        link = stack.enter_context(FaultyLink(server))
        tab = stack.enter_context(visiting(browser, link, page, quote(who), **options))
        yield Work(tab, link, server, who)


# ---- what a page shows ---------------------------------------------------------------------------


def kept(tab):
    """Wait until the server has stored the draft."""
    wait_until(
        tab,
        "() => !Object.keys(localStorage).some((key) =>"
        " /served.*(annotation|comparison|rating)\\/\\d/.test(key))",
    )


def unreached(tab) -> None:
    """Wait until the page says that the server cannot be reached."""
    noticed(tab, "reached")


def noticed(tab, text: str) -> None:
    """Wait until the page's notice contains `text`."""
    condition = "text => document.querySelector('#notice').textContent.includes(text)"
    wait_until(tab, condition, text)


def titled(tab, title: str) -> None:
    """Wait until the page shows the item with this title."""
    shows = "title => document.querySelector('#item-title').textContent === title"
    wait_until(tab, shows, title)


def positioned(tab, text: str) -> None:
    """Wait until the bar says `text` about the item or the progress."""
    shows = "text => document.querySelector('#position').textContent.includes(text)"
    wait_until(tab, shows, text)


def corrected(tab, text: str) -> None:
    """Wait until the field of the correction has this text."""
    wait_until(tab, "text => document.querySelector('#correction').value === text", text)


def reload_and_go_back(tab) -> None:
    """Reload a page whose first item is submitted, and open that item."""
    reload(tab)
    titled(tab, "Question 1?")
    push(tab, "#previous")
    titled(tab, "Question 0?")


def second_window(tab):
    """Another window of the browser in which the same annotator works on the same page."""
    other = tab.context.new_page()
    other.on("pageerror", lambda error: tab.noise.append(str(error)))
    other.goto(tab.url)
    other.wait_for_selector("#work:not([hidden])")
    return other

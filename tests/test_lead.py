"""The lead's page: figures by hand, its token, releasing a lease, and the page in a browser."""

import json
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from hostile import HOSTILE
from page_helpers import ITEM, LOOKS, QA, new_context, violations
from rating_tasks import rating_task
from server_helpers import Client, serving
from test_database import Clock, submit
from test_rules import ROW, doc, error

from fgrlhf.base.files import write_json
from interface_html import lead
from interface_html.assignments import RefusedError
from interface_html.checks import Check
from interface_html.connections import reading
from interface_html.database import Database
from interface_html.format import Item
from interface_html.skips import Skip
from interface_html.stored import Study, Submission

NOW = 10_000.0
TAGS = {"SECTION", "H2", "P", "DIV", "SPAN", "BUTTON"}
TAGS |= {"TABLE", "CAPTION", "THEAD", "TBODY", "TR", "TH", "TD"}


def entry(annotator="anna", item="0", page="comparison", content=None, **changes):
    values = {
        **{"item": item, "annotator": annotator, "page": page, "shown": [3, 2, 1, 0]},
        "doc": content or {"preference": [1, 1, 1, 0, 2, 2]},
        **{"seconds": 4.0, "created": NOW, "wall": None},
        **{"revision": 1, "guideline": "1", "guideline_sha256": None},
    }
    return Submission(**values | changes)


def test_first_position_and_ties_by_hand():
    # pairs 01 02 03 12 13 23: outputs 0, 0, 0 win, a tie, 3, 3 win; 3 was shown first, 0 last
    assert lead.first_position(QA.schema, [entry()]) == (2, 5, 1)
    assert lead.first_position(QA.schema, [entry(shown=[0, 1, 2, 3])]) == (3, 5, 1)
    assert lead.first_position(QA.schema, []) == (0, 0, 0)


def test_an_annotators_pace_and_median_by_hand():
    given = [
        entry(item="0", seconds=90.0),
        entry(item="0", seconds=2.0, revision=2),  # replaces the first; their times add up
        entry(item="1", seconds=4.0, created=NOW - 3600),
        entry(item="2", seconds=9.0, created=NOW - 3601),
    ]
    row = lead.annotator_summary(QA.schema, "comparison", given, NOW)
    assert (row["done"], row["last_hour"], row["seconds"]) == (3, 2, 9.0)
    assert (row["ties"], row["first"], row["decided"]) == (3 / 18, 6 / 15, 15)
    nobody = lead.annotator_summary(QA.schema, "comparison", [], NOW)
    assert (nobody["seconds"], nobody["ties"], nobody["first"]) == (None, None, None)


def test_the_pace_by_day_by_hand():
    midnight = 86_400.0
    given = [
        entry(item="0", seconds=600.0, created=midnight - 2),
        entry(item="0", seconds=300.0, created=midnight + 2, revision=2),  # of the day before
        entry(item="1", seconds=900.0, created=midnight - 1),
        entry(item="2", seconds=None, created=midnight - 1),
        entry(item="3", seconds=0.0, created=midnight - 1),  # a time that nobody can have
        entry(item="4", seconds=60.0, created=midnight + 1),
        entry(item="4", seconds=None, created=midnight + 3, revision=2),  # part of its time
        entry("ben", page="annotation", content=doc(), created=midnight - 1, seconds=36.0),
    ]
    rows = lead.pace(given)
    keys = ("day", "annotator", "page", "items", "untimed", "hours", "per_hour")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ("1970-01-02", "anna", "comparison", 1, 1, 0.0, None),
        ("1970-01-01", "anna", "comparison", 4, 2, 0.5, 4.0),
        ("1970-01-01", "ben", "annotation", 1, 0, 0.01, 100.0),
    ]
    assert lead.pace([]) == []


def test_items_and_hidden_items_by_hand():
    items = [Item("0", ROW), Item("1", ROW), Item("2", ROW)]
    right = doc([error()])
    gold = Item("check-1", {**ROW, "question": "gold?", "feedback": right})
    submissions = [
        entry("anna", "0", "annotation", right),
        entry("ben", "0", "annotation", right),
        entry("ben", "1", "annotation", right),
        entry("ben", "check-1", "annotation", right),
        entry("ben", "2", "annotation", doc()),  # skipped later
    ]
    hidden = {"check-1": Check("gold", "g")}
    opened = [lead.Open(7, "1", None, "anna", "annotation", -60.0, True, False)]
    skips = [Skip("2", "ben", "annotation", "unsure", "", NOW)]
    study = Study([*items, gold], submissions, hidden, skips)
    content = lead.summary(QA, study, opened, 2, NOW)
    annotation = content["pages"][0]
    assert annotation["items"] == {
        "total": 3,
        "complete": 1,
        "by_count": {"0": 1, "1": 1, "2": 1},
        "unfinished": [{"item": "1", "annotators": ["ben"]}, {"item": "2", "annotators": []}],
    }
    rows = {row["name"]: row for row in annotation["annotators"]}
    assert (rows["ben"]["gold"], rows["anna"]["gold"]) == (1.0, None)
    assert (rows["ben"]["done"], rows["anna"]["done"]) == (2, 1)  # without the hidden one
    (pair,) = content["agreement"]
    assert (pair["annotated"], pair["span_f1"]) == (1, 1.0)
    assert content["open"][0]["number"] == 7


def opened_in(db, clock) -> list[lead.Open]:
    with reading(db.path) as sql:
        return lead.open_assignments(sql, clock.now)


def test_leases_are_listed_and_released(tmp_path):
    clock = Clock()
    db = Database(tmp_path / "f.sqlite", "t", lease_seconds=60, clock=clock)
    db.add_items([Item("0", {"text": "a"}), Item("1", {"text": "b"})])
    held = db.next("anna", "annotation", 4)
    db.save_draft(held, 0, {})
    submit(db, db.next("ben", "annotation", 4), 1)
    clock.now += 20
    (opened,) = opened_in(db, clock)
    assert (opened.annotator, opened.seconds_left, opened.has_draft) == ("anna", 40, True)
    assert db.next("ben", "annotation", 4) is None
    lead.release(db, held.id)
    assert opened_in(db, clock)[0].seconds_left < 0
    assert db.next("ben", "annotation", 4).item.id == held.item.id
    submit(db, held, 2)  # late work is an extra judgement
    with pytest.raises(RefusedError):
        lead.release(db, held.id)
    skipped = db.next("anna", "comparison", 4)
    db.skip(skipped, "unsure", "")
    with pytest.raises(RefusedError):
        lead.release(db, skipped.id)
    db.close()


@contextmanager
def led(tmp_path, **settings):
    """A server with the lead's page, and the token of the lead's link."""
    with serving(tmp_path, admin="true", **settings) as server:
        yield server, token_of(server, "lead")


def lead_of(browser, server, token, noise=None, with_clock=False, **options):
    """A new context with the lead's page of a server; what the page says is added to `noise`."""
    context = new_context(browser, **options)
    tab = context.new_page()
    if noise is not None:
        tab.on("console", lambda message: noise.append(message.text))
        tab.on("pageerror", lambda problem: noise.append(str(problem)))
        tab.on("dialog", lambda dialog: (noise.append(dialog.message), dialog.dismiss()))
    if with_clock:
        tab.clock.install()
    tab.goto(f"http://127.0.0.1:{server.port}/lead#token={token}")
    tab.wait_for_selector("#lead table")
    return context, tab


def token_of(server, name):
    """The token in the link that the server printed for the lead or for a reader."""
    (link,) = [line for line in server.printed() if line.startswith(f"{name}, until")]
    return link.partition("/lead#token=")[2]


def test_only_the_lead_reads_and_releases(tmp_path):
    with serving(tmp_path, items=2) as server:  # without admin=true
        client = Client(server.port, "anna")
        assert client.call("GET", "/lead")[0] == 404
        assert client.call("GET", "/api/lead")[0] == 404
    with led(tmp_path, items=2) as (server, token):
        client = Client(server.port, "anna")
        given = client.next()
        body = {"assignment": given["id"]}
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {token}"}):
            assert client.call("GET", "/api/lead", headers=headers)[0] == 401
            assert client.call("POST", "/api/lead/release", body, headers=headers)[0] == 401
        headers = {"Authorization": f"Bearer {token}"}
        status, content = client.call("GET", "/api/lead", headers=headers)
        assert status == 200 and content["open"][0]["annotator"] == "anna"
        assert client.call("POST", "/api/lead/release", body, headers=headers)[0] == 200
        other = client.call("POST", "/api/lead/release", {"assignment": 99}, headers=headers)
        assert other[0] == 404
        assert token not in server.db.read_bytes().decode("latin-1")


def test_a_reader_may_not_release(tmp_path, chromium):
    with led(tmp_path, items=2) as (server, admin):
        client = Client(server.port, "anna")
        given = client.next()
        token = token_of(server, "read only")
        assert token != admin
        headers = {"Authorization": f"Bearer {token}"}
        status, content = client.call("GET", "/api/lead", headers=headers)
        assert status == 200 and content["may_release"] is False
        body = {"assignment": given["id"]}
        status, answer = client.call("POST", "/api/lead/release", body, headers=headers)
        assert status == 403 and "reading only" in answer["error"]
        assert client.call("GET", "/api/assignments?page=annotation")[0] == 200
        context, tab = lead_of(chromium, server, token)
        assert "held for" in tab.text_content("#lead")
        assert not tab.locator("#lead button").count() and "Action" not in tab.text_content("#lead")
        # a study with ratings
        scales = [{"label": "Quality", "same": 0.5, "distance": 1.26}]
        content["ratings"] = [{"first": "anna", "second": "ben", "rated": 3, "scales": scales}]
        tab.route("**/api/lead", lambda route: route.fulfill(json=content))
        tab.reload()
        table = tab.locator("table:has(caption:text-is('Agreement of ratings'))")
        table.wait_for()
        cells = "Annotators Items Quality: same, mean distance anna and ben 3 50 %, 1.3"
        assert " ".join(table.locator("th, td").all_inner_texts()) == cells
        context.close()
        headers = {"Authorization": f"Bearer {admin}"}
        assert client.call("GET", "/api/lead", headers=headers)[1]["may_release"] is True


def test_notes_by_hand():
    """Skips, flags and comments, the latest first; a comment that was replaced does not count."""
    right = doc()
    submissions = [
        entry("anna", "0", "annotation", {**right, "comment": "old"}, created=1.0),
        entry("anna", "0", "annotation", {**right, "comment": "new"}, created=2.0, revision=2),
        entry("ben", "1", content={"preference": [0] * 6, "flag": True}, created=5.0),
        entry("ben", "0", "annotation", right, created=6.0),
        entry("ben", "check-1", "annotation", {**right, "flag": True, "comment": "gold?"}),
        entry("cleo", "0", "annotation", {**right, "flag": True}, created=7.0),  # skipped later
    ]
    skips = [
        Skip("0", "cleo", "annotation", "broken-text", "cut", 8.0),
        Skip("1", "cleo", "annotation", "a reason of an earlier schema", "", 4.0),
    ]
    items = [Item("0", ROW), Item("1", ROW)]
    gold = Item("check-1", {**ROW, "feedback": right})
    study = Study([*items, gold], submissions, {"check-1": Check("gold", "g")}, skips)
    found = lead.notes(QA.schema, study)
    assert [(n.item, n.annotator, n.reason, n.flagged, n.text, n.check) for n in found] == [
        ("g", "ben", None, True, "gold?", "gold"),
        ("0", "cleo", "The text is broken or cut off", False, "cut", None),
        ("1", "ben", None, True, "", None),
        ("1", "cleo", "a reason of an earlier schema", False, "", None),
        ("0", "anna", None, False, "new", None),
    ]


def test_agreement_of_ratings_by_hand(tmp_path):
    task = rating_task(tmp_path)
    items = [Item(str(i), {"prompt": "p", "first": "a", "second": "b"}) for i in range(2)]

    def rated(name, item, first, second):
        of_outputs = {"first": first, "second": second}
        pairs = {name: {"quality": q, "clarity": c} for name, (q, c) in of_outputs.items()}
        return entry(name, item, "rating", {"ratings": pairs})

    submissions = [
        rated("ben", "0", (1, 0), (5, 70)),
        rated("anna", "0", (3, 0), (5, 100)),
        rated("anna", "1", (3, 0), (5, 100)),  # alone
    ]
    content = lead.summary(task, Study(items, submissions, {}, []), [], 2, NOW)
    scales = [
        {"label": "Quality", "same": 0.5, "distance": 1},  # 2 and 0
        {"label": "Clarity", "same": 0.5, "distance": 15},  # 0 and 30
    ]
    pair = {"first": "anna", "second": "ben", "rated": 1, "scales": scales}
    assert content["ratings"] == [pair]
    alone = lead.summary(task, Study(items, submissions[1:], {}, []), [], 2, NOW)
    assert alone["ratings"] == []


def test_hostile_notes_stay_texts(chromium, tmp_path):
    rows = [{**ITEM, "id": text[:100] + str(i)} for i, text in enumerate(HOSTILE)]
    write_json(tmp_path / "items.json", rows)
    with led(tmp_path, items=tmp_path / "items.json") as (server, token):
        for number, text in enumerate(HOSTILE):
            name = text if text.isprintable() and 0 < len(text) <= 60 else f"anna {number}"
            client = Client(server.port, quote(name))
            given = client.next()
            if text.strip() and number % 2:
                body = client.submission(given)
                body["doc"]["comment"] = text
                status, answer = client.call("POST", "/api/submissions", body)
                assert status == 201, answer
            else:
                address = f"/api/assignments/{given['id']}/skip"
                body = {"reason": "cannot-be-judged", "text": text[:1000]}
                assert client.call("POST", address, body)[0] == 200
        noise = []
        context, tab = lead_of(chromium, server, token, noise)
        title = f"Skips, flags and comments: {len(HOSTILE)}"
        tab.wait_for_selector(f"caption:has-text('{title}')")
        table = tab.locator(f"table:has(caption:text-is('{title}'))")
        shown = set(table.locator(".text").all_text_contents())
        for text in HOSTILE:
            assert {text, text.strip(), text[:1000].strip()} & shown or not text.strip(), text
        tags = set(tab.locator("#lead *").evaluate_all("nodes => nodes.map(n => n.tagName)"))
        assert tags <= TAGS, tags - TAGS
        assert tab.evaluate("'hit' in window || 'hit' in Object.prototype") is False
        context.close()
        assert noise == []


def test_the_page_in_a_browser(chromium, tmp_path):
    hostile = "<img src=x onerror=alert(1)>"
    rows = [{**ITEM, "id": f"{hostile}{i}", "question": f"Question {i}?"} for i in range(3)]
    (tmp_path / "items.json").write_text(json.dumps(rows))
    with led(tmp_path, items=tmp_path / "items.json") as (server, token):
        # a new connection each time: the server closes one that is idle while the browser works
        def client(name):
            return Client(server.port, name)

        def submit_next():
            given = client("anna").next()
            body = client("anna").submission(given)
            body["doc"]["comment"] = hostile
            assert client("anna").call("POST", "/api/submissions", body)[0] == 201

        submit_next()
        submit_next()
        client("anna").next()
        for width, scheme in LOOKS:
            view = {"width": width, "height": 800}
            look = {"bypass_csp": True, "color_scheme": scheme, "viewport": view}
            context, tab = lead_of(chromium, server, token, **look)
            tab.wait_for_selector("text=annotation: 2 of 3 items complete")
            tab.wait_for_selector("text=Skips, flags and comments: 2")
            assert "Items per active hour" in tab.inner_text("section[aria-label='Pace']")
            assert "token" not in tab.url
            assert violations(tab) == []
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            context.close()
        noise = []
        # with the content security policy
        context, tab = lead_of(chromium, server, token, noise, with_clock=True)
        tab.wait_for_selector("[data-release]")
        assert hostile in tab.text_content("#lead") and not tab.locator("#lead img").count()
        tab.focus("[data-release]")
        tab.evaluate("window.kept = document.querySelector('table')")
        assert client("ben").next() is None
        submit_next()
        given = client("anna").next("comparison")
        tab.clock.run_for(6000)
        tab.wait_for_selector("text=annotation: 3 of 3 items complete")
        # refreshed in place: the same table and focus
        assert tab.evaluate("window.kept === document.querySelector('table')")
        assert tab.evaluate("document.activeElement.dataset.release") == str(given["id"])
        tab.click("[data-release]")
        tab.wait_for_selector("[data-release]", state="detached")
        ben = client("ben").next("comparison")
        assert ben["item"]["id"] == given["item"]["id"]
        context.close()
        assert noise == []


# ---- in another language -------------------------------------------------------------------------


def test_the_server_has_the_page_in_its_language(chromium, tmp_path):
    with led(tmp_path, items=1, language="de") as (server, token):
        noise = []
        context, tab = lead_of(chromium, server, token, noise)  # with the content security policy
        tab.wait_for_selector("text=0 von 1 Einträgen vollständig")
        assert tab.title() == "Stand der Studie"
        context.close()
        assert noise == []

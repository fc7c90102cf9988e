"""The server's responses: the full life of an item, and every refusal."""

import http.client
import json
import os
import socket
import sqlite3
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from page_helpers import ITEM, QA
from server_helpers import ROOT, SCHEMA, Client, free_port, serving, write_export

from fgrlhf.base.errors import UserError
from interface_html.database import Database
from interface_html.guard import MAX_BODY, json_problem
from interface_html.serve import ServeSettings, address_of, allowed_hosts, serve
from interface_html.server import create_app
from interface_html.votes import majority
from tasks.qa_feedback.feedback import read_feedback

ERROR = {"error type": "Irrelevant", "explanation": "", "start": 4, "end": 11, "quote": "cat sat"}
DOC = {"errors": [ERROR], "missing-info": [], "corrected-prediction": "The mat.", "no-error": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), items=6, per_item=2) as running:
        yield running


@pytest.fixture
def client(server, request):
    return Client(server.port, request.node.name[:60])


def test_an_item_from_beginning_to_file(tmp_path):
    with serving(tmp_path, items=1) as server:
        anna = Client(server.port, "anna")
        for page in ("annotation", "comparison"):
            given = anna.next(page)
            assert set(given["item"]) == {"id", *SCHEMA.row}
            choices = {"preference": [0, 1, 1, 1, 1, 0], "order": given["order"]}
            body = anna.submission(given, DOC if page == "annotation" else choices, page)
            assert anna.call("POST", "/api/submissions", body)[0] == 201
            stored = {"uuid": body["uuid"], "submissions": 1}
            assert anna.call("POST", "/api/submissions", body) == (200, stored)
            assert anna.next(page) is None
        for policy in ("first", "latest", "majority", "all"):  # also while the server is running
            out = tmp_path / f"{policy}.json"
            assert write_export(server.db, out, policy=policy) == 1
            (row,) = read_feedback(out)
            assert (row.corrected, row.preference) == ("The mat.", (0, 1, 1, 1, 1, 0))
            assert out.read_text() == json.dumps([row.raw], indent=2) and "id" not in row.raw


def with_error(**changes):
    return {"doc": {**DOC, "errors": [{**ERROR, **changes}]}}


UNQUOTED = {"doc": {**DOC, "errors": [{k: v for k, v in ERROR.items() if k != "quote"}]}}
UNCORRECTED = {"doc": {**DOC, "corrected-prediction": ITEM["prediction 1"]}}


@pytest.mark.parametrize(
    "change, field",
    [
        ({"text_sha256": "0" * 64}, "text_sha256"),
        ({"guideline": "0"}, "guideline"),
        (with_error(quote="cat"), "feedback.errors[0].quote"),
        (UNQUOTED, "feedback.errors[0].quote"),
        (with_error(end=10), "feedback.errors[0].end"),
        ({"doc": {**DOC, "no-error": True}}, "feedback.no-error"),
        (UNCORRECTED, "feedback.corrected-prediction"),
        ({"uuid": "1"}, "body.uuid"),
        ({"seconds": -1}, "body.seconds"),
        ({"more": 1}, "body.more"),
    ],
)
def test_every_rule_is_checked_again(client, change, field):
    body = client.submission(client.next(), **{"doc": DOC, **change})
    status, answer = client.call("POST", "/api/submissions", body)
    assert status == 422 and field in [entry["field"] for entry in answer["problems"]]


def test_the_order_shown_must_be_the_one_drawn(client):
    given = client.next("comparison")
    choices = {"preference": [0] * 6, "order": given["order"][::-1]}
    body = client.submission(given, choices, "comparison")
    status, answer = client.call("POST", "/api/submissions", body)
    assert status == 422 and answer["problems"][0]["field"] == "order"


def test_others_work_is_not_seen(client, server):
    given = client.next()
    other = Client(server.port, "other")
    assert other.call("PUT", f"/api/drafts/{given['id']}", {"revision": 0, "state": {}})[0] == 404
    assert other.call("POST", "/api/submissions", other.submission(given))[0] == 404


@pytest.mark.parametrize(
    "flag, same_uuid, statuses",
    [(False, True, [200, 201]), (False, False, [200, 201]), (True, False, [201, 409])],
)
def test_two_windows_at_the_same_moment(tmp_path, flag, same_uuid, statuses):
    """One annotator in two windows gets one item; no work is lost or stored twice."""
    with serving(tmp_path, items=2) as server, ThreadPoolExecutor(2) as pool:
        client, other = (Client(server.port, "anna") for _ in range(2))

        def both(method, path, *bodies):
            sent = [
                pool.submit(one.call, method, path, body)
                for one, body in zip((client, other), bodies)
            ]
            return [future.result() for future in sent]

        page = {"page": "annotation"}
        given, again = both("POST", "/api/next", page, page)
        assert given[1]["assignment"]["id"] == again[1]["assignment"]["id"]
        given = given[1]["assignment"]
        drafts = [{"revision": 0, "state": {"window": n}} for n in range(2)]
        answers = both("PUT", f"/api/drafts/{given['id']}", *drafts)
        assert sorted(status for status, _ in answers) == [200, 409]
        first, second = client.submission(given), client.submission(given)
        if flag:
            second["doc"]["flag"] = True
        if same_uuid:
            second = first
        answers = both("POST", "/api/submissions", first, second)
        assert sorted(status for status, _ in answers) == statuses
        assert {answer["submissions"] for _, answer in answers} == {1}


def test_a_page_hears_how_many_submissions_its_own_one_follows(tmp_path):
    with serving(tmp_path, items=1) as server:
        anna = Client(server.port, "anna")
        given = anna.next()
        first, second, stale = (anna.submission(given) for _ in range(3))
        second["doc"]["flag"] = True
        for number, body in enumerate([first, {**second, "submissions": 1}], start=1):
            answer = {"uuid": body["uuid"], "submissions": number}
            assert anna.call("POST", "/api/submissions", body) == (201, answer)
        status, answer = anna.call("POST", "/api/submissions", stale)
        assert (status, answer["submissions"]) == (409, 2)
        answer = {"uuid": stale["uuid"], "submissions": 3}
        confirmed = {**stale, "confirmed": True}
        assert anna.call("POST", "/api/submissions", confirmed) == (201, answer)
        # a repeated request hears of no submission that came after its own
        answer = {"uuid": first["uuid"], "submissions": 1}
        assert anna.call("POST", "/api/submissions", first) == (200, answer)


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Host": "evil.example"}, 421),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Host": ""}, 421),
        ({"X-Annotator": "x" * 61}, 400),
    ],
)
def test_requests_of_other_sites_and_hosts_are_refused(client, headers, status):
    assert client.call("POST", "/api/next", {"page": "annotation"}, headers)[0] == status


def test_the_page_itself_is_heard(client, server):
    for host in ("127.0.0.1", "localhost"):
        headers = {"Host": f"{host}:{server.port}", "Origin": f"http://{host}:{server.port}"}
        headers["Sec-Fetch-Site"] = "same-origin"
        assert client.call("POST", "/api/next", {"page": "annotation"}, headers)[0] == 200


@pytest.mark.parametrize(
    "body, status",
    [
        (b'{"page":"annotation","x":"' + b"x" * MAX_BODY + b'"}', 413),
        (b"[" * 33 + b"]" * 33, 400),
        (b"[" * 100_000, 400),
        (b'{"page":"\\ud800"}', 400),
        (b'{"page":NaN}', 400),
        (b'{"page":1e999}', 400),
        (b"{", 400),
        (b"\xff", 400),
        (b'{"page":' + b"9" * 5000 + b"}", 400),
        (b"", 422),
        (b"[]", 422),
        (b'{"page":"other"}', 422),
        (b"null", 422),
    ],
)
def test_bodies_that_are_refused(client, body, status):
    assert client.call("POST", "/api/next", raw=body)[0] == status


def test_depth_counts_brackets_outside_strings():
    assert json_problem(b'["' + b"[" * 100 + b'\\"[", {}]') is None
    assert json_problem(b"[" * 32 + b"]" * 32) is None
    assert "deeper" in json_problem(b"[" * 33 + b"]" * 33)


def test_a_string_that_does_not_end_is_read_once():
    """Reading it again from each of its quotes would take minutes, in which nobody is served."""
    for end in (b"", b"\\", b"[" * 100):
        body = b'"' + b'\\"' * (MAX_BODY // 2) + end
        assert json_problem(body) == "not valid JSON: JSONDecodeError"
    assert "deeper" in json_problem(b'["a", ' + b"[" * 33 + b'"b')


@pytest.mark.parametrize(
    "path",
    [
        "/../../../etc/passwd",
        "/templates/../schema.py",
        "/templates/%2e%2e/database.py",
        "/templates/..%2f..%2fREADME.md",
        "/templates/",
        "//etc/passwd",
        "/templates/annotation.html%00.js",
        "/schema.py",
        "/api",
        "/docs",
    ],
)
def test_only_the_pages_are_files(client, path):
    status, answer = client.call("GET", path)
    assert status == 404, answer


def test_an_answer_to_an_unexpected_error_has_the_headers(tmp_path, monkeypatch):
    def fail(*_):
        raise IndexError("nobody expected this")

    database = Database(tmp_path / "f.sqlite", "qa_feedback")
    monkeypatch.setattr(database, "progress", fail)
    app = create_app(QA, database, ["testserver"], tokens=False)
    client = TestClient(app, raise_server_exceptions=False)
    headers = {"X-Annotator": "anna"}
    answer = client.post("/api/next", json={"page": "annotation"}, headers=headers)
    database.close()
    assert answer.status_code == 500
    assert "the server failed" in answer.json()["error"] and "nobody" not in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["cache-control"] == "no-store"


def test_every_answer_has_the_headers(server):
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        for path in (b"/templates/annotation.html", b"/nothing"):
            wire.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            head = whole_answer(wire)
            assert b"content-security-policy: default-src 'none'" in head and b"nosniff" in head
            assert b"\r\nserver:" not in head


def whole_answer(wire: socket.socket) -> bytes:
    """The headers of an HTTP answer in small letters; its body is read too."""
    answer = http.client.HTTPResponse(wire)
    answer.begin()
    answer.read()
    lines = [f"\r\n{name}: {value}" for name, value in answer.getheaders()]
    return "".join(lines).lower().encode()


def test_slow_clients_hold_nobody_up(client, server):
    slow = []
    for i in range(40):
        wire = socket.create_connection(("127.0.0.1", server.port))
        head = (
            b"POST /api/next HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type:"
            b" application/json\r\nContent-Length: 20\r\n"
        )
        wire.sendall(head if i % 2 else head + b"\r\n{")
        slow.append(wire)
    # they never finish: the response comes before they do
    assert client.call("POST", "/api/next", {"page": "annotation"})[0] == 200
    for wire in slow:
        wire.close()


def asked(client, token=None):
    """Status and answer of a request for the next item."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return client.call("POST", "/api/next", {"page": "annotation"}, headers)


def test_tokens_are_needed_where_they_are_given(tmp_path):
    with serving(tmp_path, annotators="anna,ben") as server:
        link = server.printed()[1]
        token = link.partition("#token=")[2]
        client = Client(server.port, "ben")
        assert asked(client)[0] == asked(client, "x")[0] == 401
        status, answer = asked(client, token)
        assert (status, answer["annotator"]) == (200, "anna")
    with serving(tmp_path) as server:  # started again without `annotators`
        client = Client(server.port, "anna")
        assert asked(client)[0] == 401 and asked(client, token)[0] == 200
        assert "links of an earlier start are needed" in "".join(server.printed())
    with serving(tmp_path, new_tokens="true") as server:
        assert asked(Client(server.port, "anna"))[0] == 200


def test_other_machines_need_tokens(tmp_path):
    with pytest.raises(UserError, match="set annotators=anna,ben"):
        serve(ServeSettings(task="qa_feedback", db=str(tmp_path / "f.sqlite"), host="0.0.0.0"))
    with pytest.raises(UserError, match="has no items yet"):
        serve(ServeSettings(task="qa_feedback", db=str(tmp_path / "f.sqlite"), port=free_port()))


def test_a_port_in_use_is_told_before_links_are_given(tmp_path):
    db = tmp_path / "f.sqlite"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        settings = ServeSettings(task="qa_feedback", db=str(db), port=port, annotators="anna")
        with pytest.raises(UserError, match=f"port={port} of host=127.0.0.1 cannot be used"):
            serve(settings)
    assert not db.exists()


def test_addresses_of_ipv6_hosts_have_brackets():
    settings = ServeSettings(task="qa_feedback", host="::1", port=8000)
    assert "[::1]:8000" in allowed_hosts(settings)
    assert address_of(settings) == "http://[::1]:8000"


def test_spaces_make_no_other_annotator(tmp_path):
    with serving(tmp_path, items=2) as server:
        given = Client(server.port, "anna%20maria").next()
        for name in ("%20anna%20maria%20", "anna%E3%80%80maria"):
            assert Client(server.port, name).next()["id"] == given["id"]


def test_the_script_serves_the_task_of_its_environment(tmp_path):
    environment = os.environ | {
        "TASK": "detoxification",
        "VIRTUAL_ENV": sys.prefix,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    script = ["bash", ROOT / "interface_html" / "serve.sh", f"db={tmp_path}/f.sqlite"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert (done.returncode, "f.sqlite has no items yet" in done.stderr) == (2, True), done.stderr
    with sqlite3.connect(tmp_path / "f.sqlite") as sql:
        query = "SELECT value FROM meta WHERE key='task'"
        assert sql.execute(query).fetchall() == [("detoxification",)]


def test_the_majority():
    assert majority([[1, 1, 2], [1, 2, 0], [0, 2, 1]]) == [1, 2, 0]
    assert uuid.UUID(Client(0, "x").submission({"id": 1, "item": ITEM})["uuid"]).version == 4

"""Kills, crowds, full disks and random requests.

Short here; `make feedback-check` runs the long versions.
"""

import copy
import json
import random
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from page_helpers import TOXICITY
from server_helpers import LONG, Client, Server, full_document, serving, write_suggested_items

from interface_html.stored import read_database

KILLS = 200 if LONG else 3
ANNOTATORS, ITEMS = (32, 500) if LONG else (8, 24)
# seconds per item of a simulated annotator: a hundredth of a human's time
THINK = (0.1, 0.5)
EXAMPLES = 1700 if LONG else 25  # for each of the three operations with variable arguments


def together(count: int, work) -> None:
    """Run `work(0..count-1)` in threads and pass on the first failure."""
    failed = []

    def safely(number):
        try:
            work(number)
        except BaseException as error:  # raised again below
            failed.append(error)

    threads = [threading.Thread(target=safely, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_no_acknowledged_submission_is_lost_by_kills(tmp_path):
    """Nor is a part of one lost: a severity, a comment, or a decision on a suggestion."""
    items = write_suggested_items(tmp_path, 8)
    server = Server(tmp_path, items=items, task="detoxification", per_item=1).start()
    acknowledged, stop = {}, threading.Event()  # the documents by uuid

    def annotate(number):
        client, given, body = Client(server.port, f"a{number}"), None, None
        while not stop.is_set():
            try:
                given = given or client.next()
                # each submission after the first replaces the one before, as a revision
                if body is None:
                    comment = f"{client.name} {len(acknowledged)}"
                    doc = full_document(TOXICITY, given["item"], comment)
                    body = client.submission(given, doc, task=TOXICITY, confirmed=True)
                status, answer = client.call("POST", "/api/submissions", body)
            except Exception as error:
                if isinstance(error, (AssertionError, KeyError)):
                    stop.set()
                    raise
                client.connection = None
                time.sleep(0.02)
                continue
            if status not in (200, 201):
                stop.set()
                raise AssertionError(answer)
            acknowledged[body["uuid"]] = body["doc"]
            body = None

    def kill(_):
        for _ in range(KILLS):
            wait_for_more()
            time.sleep(random.uniform(0, 0.1))  # at any point of its work
            server.kill()
            server.start()
        wait_for_more()
        stop.set()

    def wait_for_more():
        enough = len(acknowledged) + 10
        while len(acknowledged) < enough and not stop.is_set():
            time.sleep(0.01)

    together(9, lambda number: kill(number) if number == 8 else annotate(number))
    server.kill()
    sql = sqlite3.connect(server.db)
    assert sql.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    rows = sql.execute("SELECT uuid, doc FROM submissions").fetchall()
    kept = Counter(uuid for uuid, _ in rows)
    documents = {uuid: json.loads(doc) for uuid, doc in rows}
    print(f"{KILLS} kills, {len(acknowledged)} acknowledged, {sum(kept.values())} kept")
    assert len(acknowledged) > 8 and not set(acknowledged) - set(kept) and max(kept.values()) == 1
    assert all(documents[uuid] == doc for uuid, doc in acknowledged.items())
    parts = {key for doc in documents.values() for key in (*doc, *doc["errors"][0])}
    assert {"severity", "origin", "comment", "suggestions"} <= parts


def test_a_crowd_shares_the_items_fairly(tmp_path):
    lease = 3.0
    seen: dict[int, list[str]] = {}
    sent = {}  # the documents that were accepted, by annotator and item
    items = write_suggested_items(tmp_path, ITEMS)
    settings = {"task": "detoxification", "per_item": 3, "lease_minutes": lease / 60}
    with serving(tmp_path, items=items, **settings) as server:

        def annotate(number):
            rng, client = random.Random(number), Client(server.port, f"a{number}")
            mine = seen.setdefault(number, [])
            idle = 0  # the bound is for items that are no longer assigned
            while sum(map(len, seen.values())) < 3 * ITEMS and idle < 400:
                page = {"page": "annotation"}
                status, answer = client.call("POST", "/api/next", page)
                assert status == 200, answer
                given = answer["assignment"]
                if given is None:  # other leases may still expire
                    idle += 1
                    time.sleep(lease / 4)
                    continue
                if rng.random() < 0.05:  # away for longer than the lease
                    time.sleep(lease * 1.2)
                    continue
                time.sleep(rng.uniform(*THINK) / 2)
                last = given["draft"]["revision"] if given["draft"] else 0
                draft = {"revision": last, "state": {"doc": "x" * 2000}}
                address = f"/api/drafts/{given['id']}"
                status, answer = client.call("PUT", address, draft)
                assert status == 200, answer
                time.sleep(rng.uniform(*THINK) / 2)
                doc = full_document(TOXICITY, given["item"], f"by {client.name}")
                body = client.submission(given, doc, task=TOXICITY)
                status, answer = client.call("POST", "/api/submissions", body)
                assert status in (201, 409), answer
                if status == 201:
                    mine.append(given["item"]["id"])
                    sent[client.name, given["item"]["id"]] = doc

        together(ANNOTATORS, annotate)
        study = read_database(server.db, "detoxification")
    assert {(entry.annotator, entry.item): entry.doc for entry in study.submissions} == sent
    who = {
        item.id: [entry.annotator for entry in study.submissions if entry.item == item.id]
        for item in study.items
    }
    assert all(len(names) == len(set(names)) == 3 for names in who.values())
    assert all(len(set(items)) == len(items) for items in seen.values())


def test_a_full_disk_is_told_and_loses_nothing(tmp_path):
    with serving(tmp_path, items=2) as server:
        client = Client(server.port, "a")
        given = client.next()
        missing = {"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [1]}
        doc = {"errors": [], "missing-info": [missing], "no-error": False}
        body = client.submission(given, {**doc, "corrected-prediction": "x" * 100_000})
        size = server.db.stat().st_size
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        status, answer = client.call("POST", "/api/submissions", body)
        assert status == 507 and "not saved" in answer["error"]
        if client.call("GET", "/api/health")[0] != 200:
            assert client.next()["id"] == given["id"]
        no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, no_limit)
        assert client.call("POST", "/api/submissions", body)[0] == 201
        assert len(read_database(server.db, "qa_feedback").submissions) == 1


def test_random_requests_find_no_server_error(tmp_path):
    program = Path(sys.executable).with_name("schemathesis")
    if not program.exists() and not shutil.which("schemathesis"):
        pytest.skip("schemathesis is not installed")
    with serving(tmp_path, items=5) as server:
        command = [program if program.exists() else "schemathesis", "run"]
        command += [f"http://127.0.0.1:{server.port}/openapi.json"]
        command += ["--checks", "not_a_server_error", "--max-examples", str(EXAMPLES)]
        command += ["--phases", "examples,fuzzing"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:]
        generated = int(re.search(r"(\d+) generated", done.stdout)[1])
        print(f"{generated} requests of schemathesis, no server error")
        assert generated >= (5000 if LONG else 3 * EXAMPLES)
        assert Client(server.port, "a").next() is not None


def test_random_bytes_find_no_server_error(tmp_path):
    """Almost valid bodies: every kind of value in every place."""
    values = [None, True, -1, 0, 2**60, 10**400, 1.5, "", "x", "\x00", "😀", "9" * 300]
    values += [[], {}, [[]], {"a": 1}]
    rng = random.Random(0)
    with serving(tmp_path, items=3) as server:
        client = Client(server.port, "a")
        given = client.next()
        error = {"error type": "Irrelevant", "explanation": "", "quote": "cat sat"}
        error |= {"start": 4, "end": 11}
        info = {"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [1]}
        doc = {"errors": [error], "missing-info": [info], "no-error": False}
        right = client.submission(given, {**doc, "corrected-prediction": "x"})
        for _ in range(5000 if LONG else 300):
            body = json.loads(json.dumps(right))
            for _ in range(rng.randint(1, 2)):
                node = body
                while True:
                    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
                    key = rng.choice(keys)
                    if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.8:
                        node = node[key]
                        continue
                    node[key] = copy.deepcopy(rng.choice(values))  # the next change may apply to it
                    break
            status, answer = client.call("POST", "/api/submissions", body)
            assert status < 500, (body, answer)

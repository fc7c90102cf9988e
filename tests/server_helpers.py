"""A feedback server in a separate process, which can be killed, and a small client."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

from page_helpers import ITEM, QA

from interface_html.export import FeedbackExportSettings, export
from interface_html.rules import sentences
from interface_html.server import judged_sha256
from interface_html.suggestions import shown_suggestions
from interface_html.tasks import FeedbackTask

ROOT = Path(__file__).parents[1]
SCHEMA = QA.schema
# set by `make feedback-check`: the long versions
LONG = bool(os.environ.get("FGRLHF_FEEDBACK_CHECK"))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def write_items(folder: Path, count: int) -> Path:
    path = folder / "items.json"
    path.write_text(
        json.dumps([{**ITEM, "id": f"i{n}", "question": f"Question {n}?"} for n in range(count)])
    )
    return path


def write_suggested_items(folder: Path, count: int) -> Path:
    """Items of the task detoxification, each with two suggestions, of which half show them."""
    suggestions = []
    for kind, start, end, score in (("Insult", 0, 9, 0.9), ("Threat", 10, 14, 0.5)):
        span = {"type": kind, "start": start, "end": end, "score": score}
        suggestions.append({**span, "explanation": "so it seems", "source": "tox_rm"})
    rows = []
    for n in range(count):
        texts = {"id": f"i{n}", "prompt": f"Say {n}.", "response": "You fool! Bye."}
        rows.append({**texts, "suggestions": suggestions, "suggestions_shown": n % 2 == 0})
    path = folder / "items.json"
    path.write_text(json.dumps(rows))
    return path


def full_document(task: FeedbackTask, item: dict, comment: str) -> dict:
    """An annotation with every field that the task allows: severity, flag, comment and decisions.

    Its error is the first suggestion, or the first sentence; the other suggestions are rejected.
    """
    schema = task.schema
    text = item[schema.text]
    shown = shown_suggestions(item)
    kind = next(kind for kind in schema.errors if kind.needs == "nothing").name
    start, end = sentences(text)[0]
    error: dict = {}
    if shown:
        first = shown[0]
        kind, start, end = first["type"], first["start"], first["end"]
        origin = {"index": 0, "source": first["source"], "score": first["score"]}
        error["origin"] = {**origin, "verdict": "accepted"}
    if schema.severities:
        error["severity"] = schema.severities[-1].name
    error |= {"error type": kind, "explanation": "", "start": start, "end": end}
    error["quote"] = text[start:end]
    doc: dict = {
        "errors": [error],
        "missing-info": [],
        "corrected-prediction": "Mended." if schema.correction else "",
        "no-error": False,
        "flag": True,
    }
    if shown:
        rejected = range(1, len(shown))
        doc["suggestions"] = [{"index": index, "verdict": "rejected"} for index in rejected]
    if schema.comment == "optional":
        doc["comment"] = comment
    return doc


class Server:
    """`serve.py` over a database; `start` waits until it answers."""

    def __init__(self, folder: Path, items: int | Path = 20, **settings):
        self.db = folder / "feedback.sqlite"
        self.port = settings.get("port") or free_port()
        path = write_items(folder, items) if isinstance(items, int) else items
        given = {"task": "qa_feedback", "db": self.db, "port": self.port, "items": path}
        self.settings = given | settings
        self.process = None
        self.log = folder / "server.log"

    def start(self) -> "Server":
        command = [sys.executable, "-m", "interface_html.serve"]
        command += [f"{key}={value}" for key, value in self.settings.items()]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        begun = time.monotonic()
        while time.monotonic() - begun < 1800:  # a generous limit, for a server that never answers
            try:
                if Client(self.port, "starter").call("GET", "/api/health")[0] == 200:
                    return self
            except OSError:
                time.sleep(0.05)
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text())
        raise RuntimeError("the server did not answer within half an hour")

    def printed(self) -> list[str]:
        """The lines that it has printed since its last start."""
        return self.log.read_text().splitlines()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=1800)


@contextmanager
def serving(folder: Path, **settings):
    server = Server(folder, **settings).start()
    try:
        yield server
    finally:
        server.stop()


class Client:
    """An annotator's client with one persistent connection."""

    def __init__(self, port: int, name: str, timeout: float = 600):
        self.port, self.name, self.timeout, self.connection = port, name, timeout, None

    def call(self, method: str, path: str, body=None, headers=(), raw: bytes | None = None):
        """Status and JSON of a response.

        A connection that was closed while idle is opened again, once.
        """
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", "X-Annotator": self.name, **dict(headers)}
        for last in (False, True):
            fresh = self.connection is None
            if fresh:
                self.connection = http.client.HTTPConnection(
                    "127.0.0.1", self.port, timeout=self.timeout
                )
            try:
                self.connection.request(method, path, data, sent)
                answer = self.connection.getresponse()
                text = answer.read()
                return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text
            except (OSError, http.client.HTTPException):
                self.connection.close()
                self.connection = None
                if fresh or last or method == "POST":
                    raise

    def next(self, page: str = "annotation"):
        return self.call("POST", "/api/next", {"page": page})[1]["assignment"]

    def submission(
        self, given, doc=None, page: str = "annotation", task: FeedbackTask = QA, **changes
    ) -> dict:
        """The body of a submission; without `doc` it reports no error."""
        row = given["item"]
        if doc is None:
            doc = {
                "errors": [],
                "missing-info": [],
                "corrected-prediction": row[task.schema.text],
                "no-error": True,
            }
        body = {
            "uuid": str(uuid.uuid4()),
            "assignment": given["id"],
            "text_sha256": judged_sha256(task.schema, row, page),
            "seconds": 2.5,
            "guideline": task.schema.guideline_version,
            "doc": doc,
        }
        return body | changes


def write_export(db: Path, out: Path | str, task: str = "qa_feedback", **settings) -> int:
    """Write the export of a study; the number of its rows."""
    return export(FeedbackExportSettings(task=task, db=str(db), out=str(out), **settings))

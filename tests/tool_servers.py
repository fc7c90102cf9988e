"""Servers of annotation tools in environments of their own, on loopback; see `make tools-check`."""

import json
import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest
import requests
from server_helpers import free_port

FOLDER = os.environ.get(
    "FGRLHF_TOOLS"
)  # the folder of the environments, which scripts/tools.py made
START_SECONDS = 300  # the first start fills a database
HOST = "http://127.0.0.1"
ADDRESS, PASSWORD, TOKEN = "a@example.com", "long-password-1", "0123456789" * 4  # of a test


def environment(tool: str) -> Path:
    """The environment of a tool. Skips the test if it did not install."""
    folder = Path(FOLDER or "") / tool
    if not (folder / "installed.txt").exists():
        failed = folder.parent / f"{tool}.failed"
        reason = failed.read_text().strip() if failed.exists() else "it is not installed"
        pytest.skip(f"{tool}: {reason}")
    return folder


def variables(home: Path, **more: str) -> dict[str, str]:
    """Environment variables of a tool: a home of its own, and no proxy or telemetry to reach."""
    home.mkdir(parents=True, exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(home), "OMP_NUM_THREADS": "1", **more}


@contextmanager
def running(
    command: Sequence[object], env: Mapping[str, str], log: Path, folder: Path
) -> Iterator[subprocess.Popen]:
    """A process with all its children, which are killed at the end."""
    words = [str(word) for word in command]
    with open(log, "ab") as out:
        process = subprocess.Popen(
            words, env=env, stdout=out, stderr=out, cwd=folder, start_new_session=True
        )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                break
            for _ in range(50):
                if process.poll() is not None and number == signal.SIGTERM:
                    break
                time.sleep(0.1)
        process.wait()


def run(command: Sequence[object], env: Mapping[str, str], folder: Path) -> str:
    """The output of a command that must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=env, cwd=folder, capture_output=True, text=True, timeout=START_SECONDS
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            if requests.get(url, timeout=5).ok:
                return
        except requests.RequestException:
            time.sleep(0.5)
    raise AssertionError(f"{url} does not answer: {log.read_text()[-2000:]}")


def done(answer: requests.Response) -> requests.Response:
    """An answer of a server that must not be an error."""
    assert answer.ok, f"{answer.url}: {answer.status_code} {answer.text[:1000]}"
    return answer


# ---- Label Studio --------------------------------------------------------------------------------


class LabelStudio:
    """Its API, as the first user."""

    def __init__(self, url: str):
        self.url = url
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Token {TOKEN}"

    def add_user(self, address: str) -> int:
        user = {"email": address, "username": address.partition("@")[0]}
        return done(self.session.post(f"{self.url}/api/users", json=user)).json()["id"]

    def new_project(self, config: str) -> int:
        values = {"title": "tools-check", "label_config": config}
        return done(self.session.post(f"{self.url}/api/projects", json=values)).json()["id"]

    def load(self, project: int, tasks: Path) -> requests.Response:
        rows = json.loads(tasks.read_text())
        return self.session.post(f"{self.url}/api/projects/{project}/import", json=rows)

    def export(self, project: int, out: Path, kind: str = "JSON") -> Path:
        query = {"exportType": kind, "download_all_tasks": "true"}
        address = f"{self.url}/api/projects/{project}/export"
        out.write_bytes(done(self.session.get(address, params=query)).content)
        return out


@contextmanager
def label_studio(folder: Path) -> Iterator[LabelStudio]:
    """A new server with one user."""
    programs = environment("label_studio") / "bin"
    # an address that refuses everything, so that nothing leaves the machine
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    env = variables(
        folder / "home",
        LABEL_STUDIO_BASE_DATA_DIR=str(folder / "data"),
        LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN="true",
        COLLECT_ANALYTICS="false",
        SENTRY_DSN="",
        FRONTEND_SENTRY_DSN="",
        no_proxy="127.0.0.1",
        **nowhere,
    )
    port, log = free_port(), folder / "label_studio.log"
    command = [programs / "label-studio", "start", "--no-browser", "--port", port]
    command += ["--internal-host", "127.0.0.1", "--username", ADDRESS]
    command += ["--password", PASSWORD, "--user-token", TOKEN]
    with running(command, env, log, folder) as process:
        wait_for(f"{HOST}:{port}/api/version", process, log)
        yield LabelStudio(f"{HOST}:{port}")


# ---- doccano -------------------------------------------------------------------------------------

RESOURCES = {
    "SequenceLabeling": "SequenceLabelingProject",
    "Seq2seq": "Seq2seqProject",
    "DocumentClassification": "TextClassificationProject",
}


class Doccano:
    """Its API, as the administrator."""

    def __init__(self, url: str):
        self.url = f"{url}/v1"
        self.session = requests.Session()
        self._post("auth/login/", json={"username": "admin", "password": PASSWORD})

    def _post(self, path: str, **arguments) -> requests.Response:
        token = self.session.cookies.get("csrftoken") or ""
        headers = {"X-CSRFToken": token}
        return done(self.session.post(f"{self.url}/{path}", headers=headers, **arguments))

    def _get(self, path: str, **query) -> requests.Response:
        return done(self.session.get(f"{self.url}/{path}", params=query))

    def _result(self, task: str) -> dict:
        """The result of a task of the queue."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            status = self._get(f"tasks/status/{task}").json()
            if status["ready"]:
                return status
            time.sleep(0.3)
        raise AssertionError("the queue of doccano does nothing")

    def new_project(self, kind: str) -> int:
        values = {"name": "tools-check", "description": "-", "guideline": "", "tags": []}
        values |= {"project_type": kind, "resourcetype": RESOURCES[kind]}
        values |= {"allow_overlapping": True, "grapheme_mode": False}
        return self._post("projects", json=values).json()["id"]

    def load(self, project: int, kind: str, rows: Path) -> dict:
        """Upload a file, as the page does. Returns what its import reports."""
        upload = self._post("fp/process/", files={"filepond": (rows.name, rows.read_bytes())}).text
        values = {"uploadIds": [upload], "format": "JSONL", "task": kind, "encoding": "utf_8"}
        values |= {"column_data": "text", "column_label": "label"}
        return self._result(self._post(f"projects/{project}/upload", json=values).json()["task_id"])

    def confirm_all(self, project: int) -> None:
        for example in self._get(f"projects/{project}/examples", limit=100).json()["results"]:
            self._post(f"projects/{project}/examples/{example['id']}/states")

    def export(self, project: int, folder: Path, kind: str = "JSONL") -> list[Path]:
        """The files of the confirmed rows, one for each member."""
        values = {"format": kind, "exportApproved": True}
        task = self._post(f"projects/{project}/download", json=values).json()["task_id"]
        assert self._result(task)["error"] is None
        archive = self._get(f"projects/{project}/download", taskId=task).content
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(BytesIO(archive)) as files:
            files.extractall(folder)
            return [folder / name for name in files.namelist()]


@contextmanager
def doccano(folder: Path) -> Iterator[Doccano]:
    """A new server with its queue. Its own program listens on all addresses, gunicorn on one."""
    home = environment("doccano")
    env = variables(
        folder / "home",
        DOCCANO_HOME=str(folder / "data"),
        DATABASE_URL=f"sqlite:///{folder}/data/db.sqlite3",
        MEDIA_ROOT=f"{folder}/data/media",
        DJANGO_SETTINGS_MODULE="config.settings.production",
        STANDALONE="True",
    )
    program, port, log = home / "bin" / "doccano", free_port(), folder / "doccano.log"
    run([program, "init"], env, folder)
    run([program, "createuser", "--username", "admin", "--password", PASSWORD], env, folder)
    backend = next(home.glob("lib/python*/site-packages/backend"))
    web = [home / "bin" / "gunicorn", "--bind", f"127.0.0.1:{port}", "--workers", 1]
    web += ["--threads", 2, "config.wsgi"]
    queue = [program, "task", "--concurrency", 1]
    with running(web, env, log, backend) as process, running(queue, env, log, folder):
        wait_for(f"{HOST}:{port}/", process, log)
        yield Doccano(f"{HOST}:{port}")


# ---- potato --------------------------------------------------------------------------------------

POTATO = """annotation_task_name: tools-check
task_dir: .
output_annotation_dir: out/
annotation_output_format: jsonl
data_files: [items.jsonl]
item_properties: {id_key: id, text_key: response}
user_config: {allow_all_users: true, users: []}
require_password: false
annotation_schemes:
  - {annotation_type: span, name: err, description: Errors, labels: [wrong, odd]}
  - {annotation_type: radio, name: tone, description: Tone, labels: [rude, kind]}
  - {annotation_type: text, name: fix, description: Correction}
site_dir: default
"""


class Potato:
    """Its pages, as any annotator."""

    def __init__(self, url: str, folder: Path):
        self.url, self.folder = url, folder
        self.sessions: dict[str, requests.Session] = {}

    def save(self, user: str, item: str, labels: Mapping, spans: Sequence[Mapping]) -> None:
        if user not in self.sessions:
            self.sessions[user] = requests.Session()
            form = {"email": user, "pass": PASSWORD, "action": "signup"}
            done(self.sessions[user].post(f"{self.url}/register", data=form))
            done(self.sessions[user].get(f"{self.url}/annotate"))
        answer = {"instance_id": item, "annotations": labels, "span_annotations": spans}
        done(self.sessions[user].post(f"{self.url}/updateinstance", json=answer))

    def export(self) -> Path:
        command = [environment("potato") / "bin" / "python", "-m", "potato.export"]
        command += ["-c", "config.yaml", "-f", "jsonl", "-o", "export"]
        run(command, variables(self.folder / "home"), self.folder)
        return self.folder / "export" / "annotations.jsonl"


@contextmanager
def potato(folder: Path) -> Iterator[Potato]:
    """A new server for the items in items.jsonl of the folder."""
    program, port = environment("potato") / "bin" / "potato", free_port()
    (folder / "config.yaml").write_text(POTATO)
    command = [program, "start", "config.yaml", "-p", port, "--host", "127.0.0.1"]
    env, log = variables(folder / "home"), folder / "potato.log"
    with running(command, env, log, folder) as process:
        wait_for(f"{HOST}:{port}/health", process, log)
        yield Potato(f"{HOST}:{port}", folder)

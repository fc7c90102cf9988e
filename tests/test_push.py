"""`fgrlhf push` against a hub on this machine."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import tiny
from huggingface_hub import HfApi

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.cli import push as program
from fgrlhf.cli.push import PushSettings, push


class Hub(BaseHTTPRequestHandler):
    """The parts of the hub's API that an upload of small files uses."""

    calls: list[tuple[str, dict]] = []
    files: dict[str, bytes] = {}
    refuses = False

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.refuses:
            return self.answer({"error": "You don't have the rights"}, 403)
        if self.path == "/api/repos/create":
            self.calls.append(("create", json.loads(body)))
            host = self.headers["Host"]
            return self.answer({"url": f"http://{host}/org/name", "name": "org/name"})
        if "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = [
                {"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths
            ]
            return self.answer({"files": modes})
        if self.path == "/api/validate-yaml":  # of the card
            return self.answer({"errors": [], "warnings": []})
        assert "/commit/" in self.path, self.path
        for line in body.decode().splitlines():
            item = json.loads(line)
            if item["key"] == "header":
                self.calls.append(("commit", item["value"]))
            else:
                self.files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
        return self.answer(
            {
                "commitUrl": f"http://{self.headers['Host']}/org/name/commit/1",
                "commitOid": "1",
                "success": True,
            }
        )

    def do_GET(self):
        self.answer({"id": "org/name", "sha": "0", "siblings": []})

    def answer(self, value: dict, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    kind = type("OneHub", (Hub,), {"calls": [], "files": {}, "refuses": False})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    api = HfApi(endpoint=f"http://127.0.0.1:{server.server_port}", token="hf_of_a_test")
    monkeypatch.setattr(program, "HfApi", lambda: api)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield kind
    server.shutdown()
    server.server_close()


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "run" / "best"
    tiny.policy("gpt2").save(folder)
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# card\n")
    write_json(folder / "best.json", {"step": 3})
    (folder / "notes.txt").write_text("private notes")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "optimizer.safetensors").write_text("large")
    return folder


def test_the_model_and_its_card_are_uploaded(hub, model, capsys):
    program.main([str(model), "org/name", "message=The first"])
    (create, made), (commit, header) = hub.calls
    assert (create, commit) == ("create", "commit")
    assert made == {"name": "name", "organization": "org", "visibility": "private"}
    assert header["summary"] == "The first"
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= hub.files.keys()
    assert not {"notes.txt", "checkpoints/optimizer.safetensors"} & hub.files.keys()
    for name, content in hub.files.items():
        assert content == (model / name).read_bytes()
    printed = capsys.readouterr().out
    assert "README.md" in printed and "pushed: " in printed and "hf_of_a_test" not in printed
    (model / "README.md").unlink()
    program.main([str(model), "org/name", "private=false"])
    assert hub.calls[2][1]["visibility"] == "public"
    assert "so the model has no card" in capsys.readouterr().out


def test_what_cannot_be_uploaded(hub, model, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no folder of a whole model. Its folders best have one"):
        push(model.parent, "org/name", PushSettings())
    with pytest.raises(UserError, match="no folder of a whole model.$"):
        push(tmp_path / "nowhere", "org/name", PushSettings())
    with pytest.raises(UserError, match="no name of a repository"):
        push(model, "org/name/more", PushSettings())
    with pytest.raises(UserError, match="usage: fgrlhf push FOLDER ORG/NAME"):
        program.main([str(model)])
    assert hub.calls == []
    hub.refuses = True
    with pytest.raises(UserError, match="the hub refused org/name: .*Check the name"):
        push(model, "org/name", PushSettings())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        push(model, "org/name", PushSettings())

"""The downloader against a local server that resumes, disconnects, sends wrong data, or is down."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import sha256, write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.data import download as module
from fgrlhf.data.download import DownloadConfig, blob_id
from tasks.qa_feedback.data import download as qa_feedback

CONTENTS = {"a.json": bytes(range(256)) * 2000, "b.json": b"[]\n"}


class Server(ThreadingHTTPServer):
    """Serves `contents`; closes the connection after `cut` bytes of a file; records requests."""

    def __init__(self):
        self.contents = dict(CONTENTS)
        self.ranges = []
        self.cut = {}
        self.continues = True
        self.busy = 0
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/data"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, name = self.server, self.path.removeprefix("/data/")
        wanted = self.headers.get("Range")
        server.ranges.append((name, wanted))
        if server.busy:
            server.busy -= 1
            return self.send_error(503)
        if name not in server.contents:
            return self.send_error(404)
        whole = server.contents[name]
        start = (
            int(wanted.removeprefix("bytes=").removesuffix("-"))
            if wanted and server.continues
            else 0
        )
        if start >= len(whole):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        self.send_header("Content-Length", str(len(whole) - start))
        self.end_headers()
        body = whole[start:]
        self.wfile.write(body[: server.cut.pop(name, len(body))])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        yield server
        server.shutdown()


# git's hashes of the two files (`git hash-object`), which replace published ones
BLOB_IDS = {
    "a.json": "85ca3d5aeed19f818566b9244ef5ad7d1d11174a",
    "b.json": "fe51488c7066f6687ef680d6bfaa4f7768ef205c",
}


def download(settings):
    return module.download(settings, BLOB_IDS)


def config(server, folder, **changes):
    return DownloadConfig(
        **{"data_dir": str(folder), "base_url": server.url, "timeout": 60.0, **changes}
    )


def names(folder: Path):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_blob_id_is_that_of_git(tmp_path):
    (tmp_path / "x").write_bytes(b"hello world\n")
    assert blob_id(tmp_path / "x") == "3b18e512dba79e4c8300dd08aeb37f8e728b8dad"
    (tmp_path / "x").write_bytes(b"")
    assert blob_id(tmp_path / "x") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


def test_fetches_into_a_new_folder_with_a_space_and_then_keeps(server, tmp_path, capsys):
    folder = tmp_path / "my data"
    assert [path.name for path in download(config(server, folder))] == ["a.json", "b.json"]
    assert {name: (folder / name).read_bytes() for name in names(folder)} == CONTENTS
    server.ranges.clear()
    assert download(config(server, folder)) == []
    assert server.ranges == []
    assert capsys.readouterr().out.count("already there, verified") == 2


def test_continues_within_a_run_when_the_connection_breaks(server, tmp_path):
    server.cut["a.json"] = 200_000
    download(config(server, tmp_path))
    assert server.ranges[:2] == [("a.json", None), ("a.json", "bytes=200000-")]
    assert (tmp_path / "a.json").read_bytes() == CONTENTS["a.json"]


def test_continues_a_part_of_an_earlier_run(server, tmp_path):
    server.cut["a.json"] = 1000
    message = (
        r"after 1000 of 512000 bytes.*a\.json\.part keeps the 1000 bytes.*run the same command"
    )
    with pytest.raises(UserError, match=f"{message} again"):
        download(config(server, tmp_path, attempts=1))
    assert names(tmp_path) == ["a.json.part"]
    server.ranges.clear()
    download(config(server, tmp_path))
    assert server.ranges[0] == ("a.json", "bytes=1000-")
    assert names(tmp_path) == ["a.json", "b.json"]
    assert (tmp_path / "a.json").read_bytes() == CONTENTS["a.json"]


def test_a_server_that_cannot_continue_is_read_from_the_start(server, tmp_path):
    (tmp_path / "a.json.part").write_bytes(CONTENTS["a.json"][:777])
    server.continues = False
    download(config(server, tmp_path))
    assert [name for name, _ in server.ranges] == ["a.json", "b.json"]
    assert (tmp_path / "a.json").read_bytes() == CONTENTS["a.json"]


@pytest.mark.parametrize("part", [b"rubbish", b"rubbish" * 100_000, CONTENTS["a.json"] + b"x"])
def test_a_spoilt_part_is_fetched_anew(server, tmp_path, part):
    (tmp_path / "a.json.part").write_bytes(part)
    download(config(server, tmp_path))
    assert names(tmp_path) == ["a.json", "b.json"]
    assert (tmp_path / "a.json").read_bytes() == CONTENTS["a.json"]


def test_a_whole_part_only_takes_its_name(server, tmp_path):
    (tmp_path / "a.json.part").write_bytes(CONTENTS["a.json"])
    download(config(server, tmp_path))
    assert (tmp_path / "a.json").read_bytes() == CONTENTS["a.json"]


def test_wrong_contents_are_refused_and_not_kept(server, tmp_path):
    server.contents["a.json"] = CONTENTS["a.json"][:-1] + b"?"
    message = "is not the published file: its git blob id is [0-9a-f]{40}, expected"
    with pytest.raises(UserError, match=message):
        download(config(server, tmp_path))
    assert names(tmp_path) == []


def test_a_file_of_ones_own_is_never_overwritten(server, tmp_path):
    (tmp_path / "b.json").write_text("mine")
    message = r"b\.json: exists already and is not the published file\. Move it away"
    with pytest.raises(UserError, match=message):
        download(config(server, tmp_path))
    assert names(tmp_path) == ["b.json"]
    assert (tmp_path / "b.json").read_text() == "mine"
    assert server.ranges == []


def test_a_missing_file_names_the_address(server, tmp_path):
    del server.contents["b.json"]
    message = r"/data/b\.json: the server answers 404 Not Found\. Give another address"
    with pytest.raises(UserError, match=message):
        download(config(server, tmp_path))
    assert names(tmp_path) == ["a.json"]


def test_a_busy_server_is_asked_again(server, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(module.time, "sleep", waits.append)
    server.busy = 2
    download(config(server, tmp_path))
    assert names(tmp_path) == ["a.json", "b.json"] and waits == [1.0, 2.0]


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be created"):
        download(config(server, tmp_path / "file"))


def test_offline_is_one_clear_message_and_exit_code_2(tmp_path, monkeypatch, capsys):
    arguments = [
        f"data_dir={tmp_path / 'd'}",
        "base_url=http://127.0.0.1:9/data",
        "attempts=2",
        "timeout=0.1",
    ]
    monkeypatch.setattr(sys, "argv", ["download", *arguments])
    with pytest.raises(SystemExit) as stopped:
        run_main(qa_feedback.main)
    printed = capsys.readouterr().err
    assert stopped.value.code == 2
    assert printed.startswith("error: http://127.0.0.1:9/data/train.json cannot be fetched: ")
    assert "Nothing was written; run the same command again" in printed
    assert names(tmp_path / "d") == []


@pytest.mark.parametrize("name", ["a.json", "b.json"])
@pytest.mark.parametrize("kind", ["folder", "link to nothing", "link to itself"])
def test_a_folder_or_link_at_the_target_is_refused(server, tmp_path, name, kind):
    if kind == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).symlink_to(tmp_path / (name if kind == "link to itself" else "nowhere"))
    message = rf"{name}: exists already and is not the published file\. Move it away"
    with pytest.raises(UserError, match=message):
        download(config(server, tmp_path))
    assert names(tmp_path) == [name] and server.ranges == []


def test_a_part_that_is_a_folder_is_no_network_error(server, tmp_path):
    (tmp_path / "a.json.part").mkdir()
    message = r"a\.json\.part cannot be written: Is a directory\. Make room, remove"
    with pytest.raises(UserError, match=message):
        download(config(server, tmp_path))
    assert names(tmp_path) == ["a.json.part"] and len(server.ranges) == 1


def test_a_full_disk_is_no_network_error(server, tmp_path, monkeypatch):
    def full(path, mode):
        if "w" in mode or "a" in mode:
            return open("/dev/full", "wb")
        return open(path, mode)

    monkeypatch.setattr(module, "open", full, raising=False)
    with pytest.raises(UserError, match="No space left on device. Make room"):
        download(config(server, tmp_path))
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"base_url": "file:///etc"}, "must begin with http:// or https:// and a host"),
        ({"base_url": "http://[::1"}, "is not a web address: Invalid IPv6 URL"),
        ({"base_url": "http://h:x/"}, "is not a web address: Port could not be cast"),
        ({"base_url": "http://h/é"}, "write white space and letters like é as %20"),
        ({"attempts": "0"}, "greater than or equal to 1"),
        ({"timeout": "1e30"}, "less than or equal to 3600"),
        ({"timeout": "0"}, "greater than 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, changes, reason):
    arguments = [f"{key}={value}" for key, value in {"data_dir": tmp_path / "d", **changes}.items()]
    with pytest.raises(UserError, match=reason):
        settings_from(qa_feedback.DownloadSettings, arguments)
    assert names(tmp_path / "d") == []


@pytest.mark.parametrize("length", ["x", "-5", "9" * 5000])
def test_a_server_that_lies_about_the_length(server, tmp_path, monkeypatch, length):
    send = Handler.send_header

    def lie(self, key, value):
        send(self, key, length if key == "Content-Length" else value)

    monkeypatch.setattr(Handler, "send_header", lie)
    download(config(server, tmp_path))
    assert names(tmp_path) == ["a.json", "b.json"]


# ---- the hub -------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that lists a SHA-256 and sends the text `sent`."""
    state = SimpleNamespace(sent="a row\n", listed="")
    write_text(tmp_path / "listed", state.sent)
    state.listed = sha256(tmp_path / "listed")

    class Api:
        def get_paths_info(self, name, paths, repo_type):
            return [SimpleNamespace(lfs=SimpleNamespace(sha256=state.listed))]

    def fetch(name, path, repo_type, local_dir):
        write_text(Path(local_dir) / path, state.sent)
        return str(Path(local_dir) / path)

    monkeypatch.setattr(module, "HfApi", Api)
    monkeypatch.setattr(module, "hf_hub_download", fetch)
    return state


def fetch(folder):
    return module.fetch_from_hub("org/set", "part/rows.jsonl", folder / "part" / "rows.jsonl")


def test_the_hub_file_is_verified(hub, tmp_path):
    path = fetch(tmp_path)
    assert path == tmp_path / "part" / "rows.jsonl" and path.read_text() == hub.sent
    assert [file.name for file in path.parent.iterdir()] == ["rows.jsonl"]
    hub.sent = "not asked for again"
    assert fetch(tmp_path).read_text() != hub.sent


def test_a_small_file_of_the_hub_is_verified_by_its_git_blob_id(hub, tmp_path, monkeypatch):
    listed = SimpleNamespace(lfs=None, blob_id=module.blob_id(tmp_path / "listed"))
    monkeypatch.setattr(module.HfApi, "get_paths_info", lambda *_, **__: [listed])
    assert fetch(tmp_path / "right").read_text() == hub.sent
    hub.sent = "changed"
    with pytest.raises(UserError, match="sent a part/rows.jsonl with git blob id .* but lists"):
        fetch(tmp_path / "wrong")
    assert not (tmp_path / "wrong" / "part" / "rows.jsonl").exists()


def test_another_file_of_the_hub_is_not_kept(hub, tmp_path):
    hub.sent = "changed"
    with pytest.raises(UserError, match="hub:org/set sent a part/rows.jsonl .* but lists"):
        fetch(tmp_path)
    assert not (tmp_path / "part" / "rows.jsonl").exists()


def test_a_hub_that_cannot_be_reached_is_an_error(tmp_path, monkeypatch):
    def unreachable(*arguments, **options):
        raise OSError("no route to host")

    monkeypatch.setattr(module, "hf_hub_download", unreachable)
    monkeypatch.setattr(module.HfApi, "get_paths_info", unreachable)
    with pytest.raises(UserError, match="no route to host. Is there a network"):
        fetch(tmp_path)

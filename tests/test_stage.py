import builtins
import contextlib
import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.configs.strict import StrictModel
from fgrlhf.runs import stage as module
from fgrlhf.runs.runlog import RunLog
from fgrlhf.runs.stage import begin, check_writable, digest, finish, folder_of, hold, stored_result


class Section(StrictModel):
    lr: float = 1e-5
    name: str | None = None


class Config(StrictModel):
    train: Section = Section()
    seed: int = 0


@pytest.fixture
def stage(tmp_path):
    """A finished stage in `tmp_path / "out"` that read `rows.json`."""
    (tmp_path / "rows.json").write_text("[1]")
    assert stored_result(tmp_path / "out", Config(), [tmp_path / "rows.json"]) is None
    assert not (tmp_path / "out").exists()  # checking writes nothing
    begin(tmp_path / "out", Config(), [tmp_path / "rows.json"])
    RunLog(tmp_path / "out", Config()).close()
    # started, not finished
    assert stored_result(tmp_path / "out", Config(), [tmp_path / "rows.json"]) is None
    finish(tmp_path / "out", {"best": 3})
    return tmp_path


def test_same_settings_and_inputs_are_reused(stage):
    assert stored_result(stage / "out", Config(), [stage / "rows.json"]) == {"best": 3}
    begin(stage / "out", Config(), [stage / "rows.json"])
    assert (stage / "out" / "config.yaml").exists()  # the work continues with its files


@pytest.mark.parametrize(
    "config, line",
    [
        (Config(seed=1), "seed: 0 there, 1 now"),
        (
            Config(train=Section(lr=2e-5, name="x")),
            "train.lr: 1e-05 there, 2e-05 now\n  train.name: None there, x now",
        ),
    ],
)
def test_other_settings_are_refused_or_redone(stage, config, line):
    with pytest.raises(UserError) as error:
        stored_result(stage / "out", config, [stage / "rows.json"])
    assert line in str(error.value)
    assert (stage / "out" / "result.json").exists()
    assert stored_result(stage / "out", config, [stage / "rows.json"], redo=True) is None
    assert (stage / "out" / "result.json").exists()  # kept until the new work begins
    begin(stage / "out", config, [stage / "rows.json"])
    assert [path.name for path in (stage / "out").iterdir()] == ["inputs.json"]


def test_inputs_that_come_and_go_are_refused_or_redone(stage):
    rows, more = stage / "rows.json", stage / "more.json"
    more.write_text("[1]")
    for inputs, lines in (
        ([more], f"{more}: is an input now\n  {rows}: was an input\n"),
        ([rows, more], f"\n  {more}: is an input now\nRemove"),
        ([], f"\n  {rows}: was an input\nRemove"),
    ):
        with pytest.raises(UserError) as error:
            stored_result(stage / "out", Config(), inputs)
        assert lines in str(error.value)
        assert stored_result(stage / "out", Config(), inputs, redo=True) is None
    assert stored_result(stage / "out", Config(), [rows, rows]) == {"best": 3}
    begin(stage / "out", Config(), [more])
    assert [path.name for path in (stage / "out").iterdir()] == ["inputs.json"]


def test_inputs_that_were_not_recorded_count_as_the_same(stage):
    (stage / "out" / "inputs.json").unlink()
    assert stored_result(stage / "out", Config(), [stage / "more.json"]) == {"best": 3}


def test_digest_of_a_checkpoint_is_that_of_its_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("a")
    before = digest(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("not part of the model")
    assert digest(tmp_path) == before
    (tmp_path / "model.safetensors").write_text("b")
    assert digest(tmp_path) != before
    # they change what the model reads and where it stops
    for name in ("chat_template.jinja", "tokenizer_config.json", "generation_config.json"):
        before = digest(tmp_path)
        (tmp_path / name).write_text("{}")
        assert digest(tmp_path) != before
    assert digest("t5-large") == "name:t5-large"


def test_digest_of_a_checkpoint_includes_its_vocabulary(tmp_path):
    (tmp_path / "model.safetensors").write_text("a")
    for name in ("vocab.json", "merges.txt", "spiece.model", "source.spm", "added_tokens.json"):
        before = digest(tmp_path)
        (tmp_path / name).write_text("{}")
        assert digest(tmp_path) != before
    # with this file, nobody reads the others
    (tmp_path / "tokenizer.json").write_text("{}")
    before = digest(tmp_path)
    (tmp_path / "vocab.json").write_text("changed")
    assert digest(tmp_path) == before


# ---- one process per folder ----------------------------------------------------------------------

DEAD = 2**22 + 1  # above the highest process id of Linux


def test_a_held_folder_is_refused_to_the_second_with_the_name_of_the_first(tmp_path, monkeypatch):
    command = ["python", "-m", "stage", "train.lr=1", "logging.api_key=abc"]
    monkeypatch.setattr(sys, "orig_argv", command)
    with hold(tmp_path / "run"):
        for refusing in (hold(tmp_path / "run"), hold(tmp_path / ".." / tmp_path.name / "run")):
            with pytest.raises(UserError) as refused, refusing:
                pytest.fail("both hold it")
            message = str(refused.value)
            for part in (
                f"{tmp_path}",
                f"process {os.getpid()} on {socket.gethostname()}, since 20",
                "Wait for it to end",
                f"kill {os.getpid()}",
                "`python -m stage train.lr=1 logging.api_key=***`",
            ):
                assert part in message
        with pytest.raises(UserError, match="another process works in"):
            check_writable(tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
        (tmp_path / "run" / "metrics.jsonl").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]
    with hold(tmp_path / "run"):
        pass


def test_a_process_that_is_killed_holds_nothing(tmp_path):
    """The lock is the kernel's: whatever the file contains, a dead process holds none."""
    code = f"""
import fcntl, os, time
lock = os.open({str(tmp_path / ".lock")!r}, os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(UserError, match="another process works in .* Wait for it to end"),
            hold(tmp_path),
        ):
            pass
    finally:
        other.kill()
        other.wait()
    assert (tmp_path / ".lock").exists()
    with hold(tmp_path):
        assert read_json(tmp_path / ".lock")["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_a_lock_whose_file_is_removed_meanwhile_is_taken_again(tmp_path, monkeypatch):
    """The previous owner removes the file between opening and locking it.

    A lock on a file without a name protects nothing.
    """
    real, calls = fcntl.flock, []

    def flock(descriptor, how):
        if not calls:
            (tmp_path / ".lock").unlink()
        calls.append(how)
        real(descriptor, how)

    monkeypatch.setattr(module.fcntl, "flock", flock)
    with hold(tmp_path):
        assert len(calls) == 2 and (tmp_path / ".lock").exists()
        with pytest.raises(UserError, match="another process"), hold(tmp_path):
            pass


def test_asking_and_failing_leave_no_folder(tmp_path):
    with pytest.raises(KeyError), hold(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
        raise KeyError
    check_writable(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_a_disk_without_locks_is_noted_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    def flock(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", flock)
    with hold(tmp_path):
        assert not list(tmp_path.iterdir())
    note = f"note: {tmp_path} is on a disk without locks: make sure that no other process writes"
    assert capsys.readouterr().out == f"{note} to it\n"


def test_only_the_first_rank_holds(tmp_path, monkeypatch):
    with hold(tmp_path):
        monkeypatch.setenv("RANK", "1")
        with hold(tmp_path), hold(tmp_path / "other"):
            assert not (tmp_path / "other").exists()


def no_right(path, *arguments):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


UNWRITABLE = {  # the folder below the test's own, and the reason
    "file": ("file", "in the place of a folder|File exists"),
    "file above": ("file/a", "Not a directory"),
    "long": ("x" * 300, "File name too long"),
    "NUL": ("a\0b", "not a valid folder name"),
    "surrogate": ("\ud800", "not a valid folder name"),
    "loop": ("loop", "symbolic link|File exists"),
    "dangling": ("dangling", "File exists"),
    "no right": ("no right", "Permission denied"),
    "full": ("full", "Make room"),
    "none": ("", "has no name"),
    "blank": ("  ", "has no name"),
}


@pytest.mark.parametrize("how", UNWRITABLE)
def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path, monkeypatch, how):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    if how == "no right":
        monkeypatch.setattr(module.os, "open", no_right)
    if how == "full":
        monkeypatch.setattr(module.os, "pwrite", full)
    name, reason = UNWRITABLE[how]
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=reason) as refused:
        check_writable(f"{tmp_path}/{name}" if name.strip() else name)
    assert str(refused.value).count("\n") == 0 and len(str(refused.value)) < 600
    assert sorted(tmp_path.iterdir()) == before


def test_an_output_folder_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    with hold(tmp_path / "out"), pytest.raises(UserError), hold(tmp_path / "disk"):
        pass
    RunLog(tmp_path / "out", Config()).close()
    begin(tmp_path / "out", Config(seed=1), [])
    assert (tmp_path / "out").is_symlink()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["inputs.json"]


def test_half_written_files_of_a_killed_process_are_removed(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    removed = [f".metrics.jsonl.{DEAD}.tmp", f"samples/.step-1.jsonl.{DEAD}.tmp"]
    removed += [f".a.{os.getpid()}.tmp", ".model-a1b2c3d_/x"]
    removed += [".best.tmp/x", "checkpoints/.step-3.tmp/x"]
    # other files, or those of a live process
    kept = [f".b.{other.pid}.tmp", ".model-mine/x", ".cache.tmp/x", "mine.tmp"]
    kept += [f"deeper/.a.{DEAD}.tmp"]
    try:
        for name in (*removed, *kept, ".final.old/x"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("half")
        with hold(tmp_path):
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            left = {str(path.relative_to(tmp_path)) for path in files}
    finally:
        other.communicate(b"\n")
    assert left == {*kept, ".lock", "final/x"}


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", range(6))
def test_clearing_that_is_cut_off_is_cleared_by_the_next_start(stage, at, monkeypatch):
    """What is left of the other settings' work is still recognised until all of it is gone."""
    for name in ("a-part", "samples/x", "z-part"):
        (stage / "out" / name).parent.mkdir(exist_ok=True)
        (stage / "out" / name).write_text("of seed 0")
    real, removed = os.unlink, []

    def killed_at(path, **options):
        if len(removed) == at:
            raise Killed
        removed.append(path)
        real(path, **options)

    real_scan = os.scandir  # worst order: the files that identify the settings first
    monkeypatch.setattr(module.shutil.os, "unlink", killed_at)
    monkeypatch.setattr(module.shutil.os, "scandir", lambda path: SortedScan(real_scan(path)))
    with contextlib.suppress(Killed):
        begin(stage / "out", Config(seed=1), [stage / "rows.json"])
    monkeypatch.undo()
    begin(stage / "out", Config(seed=1), [stage / "rows.json"])
    assert [path.name for path in (stage / "out").iterdir()] == ["inputs.json"]


class SortedScan:
    """A folder's entries, with config.yaml and inputs.json first."""

    def __init__(self, scan):
        with scan:
            self.entries = sorted(
                scan,
                key=lambda entry: (entry.name not in ("config.yaml", "inputs.json"), entry.name),
            )

    def __iter__(self):
        return iter(self.entries)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize(
    "name, text",
    [
        ("config.yaml", ""),
        ("config.yaml", "- 1"),
        ("config.yaml", "\0"),
        ("inputs.json", "[]"),
        ("inputs.json", "{"),
        ("result.json", ""),
        ("result.json", "["),
        ("../rows.json", "[2]"),
    ],
)
def test_a_damaged_stage_and_other_contents_are_refused_or_redone(stage, name, text):
    (stage / "out" / name).write_text(text)
    message = f"{name}[^$]*Remove that (folder|file)"
    if name == "../rows.json":
        message = "rows.json: its contents have changed since"
    with pytest.raises(UserError, match=message):
        stored_result(stage / "out", Config(), [stage / "rows.json"])
    assert stored_result(stage / "out", Config(), [stage / "rows.json"], redo=True) is None


def test_a_finished_stage_with_a_secret_is_known_again(tmp_path, monkeypatch):
    class Secret(StrictModel):
        name: str
        api_key: str = "k"

    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    config = Secret(name="https://hf_abcdefgh@host", api_key="other")
    inputs = [config.name]
    begin(tmp_path, config, inputs)
    RunLog(tmp_path, config).close()
    finish(tmp_path, {})
    assert (tmp_path / "config.yaml").read_text() == "name: https://***@host\napi_key: '***'\n"
    assert "hf_abcdefgh" not in (tmp_path / "inputs.json").read_text()
    assert stored_result(tmp_path, config, inputs) == {}
    with pytest.raises(UserError, match="name: https://.*@host there, x now"):
        stored_result(tmp_path, Secret(name="x", api_key="other"), inputs)


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"a" * 100)
    monkeypatch.setattr(module, "_SETTLED", -(10**18))  # long ago
    first, reads = digest(tmp_path), []
    real = builtins.open
    monkeypatch.setattr(builtins, "open", lambda *a, **k: (reads.append(a[0]), real(*a, **k))[1])
    assert digest(tmp_path) == first and not reads
    path.write_bytes(b"b" * 101)
    assert digest(tmp_path) != first and path in reads
    # just now: it may change again within one tick of the disk's clock
    monkeypatch.setattr(module, "_SETTLED", 10**18)
    path.write_bytes(b"c" * 101)
    digest(tmp_path)
    assert not [
        key
        for key in module._digests
        if key[0][2:]
        == tuple(getattr(path.stat(), n) for n in ("st_size", "st_mtime_ns", "st_ctime_ns"))
    ]


@pytest.mark.parametrize("name", ["../../evil", "a/b", "/etc", "..", ".", "", "a\0b"])
def test_names_do_not_lead_out_of_the_output_folder(name):
    with pytest.raises(UserError, match="cannot be the name of a folder"):
        folder_of("out", "eval", name)
    assert folder_of("out", "eval", "..a-test") == Path("out/eval/..a-test")
    with pytest.raises(UserError, match="no name"):
        folder_of("", "eval", "a")

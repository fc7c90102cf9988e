"""Processes that end together print a message that they share once, and all others."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from fgrlhf.base.shared_messages import VARIABLE, print_once

ROOT = Path(__file__).parents[1]
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from fgrlhf.base.errors import UserError
from fgrlhf.base.program import run_main
rank, end, marks = os.environ["RANK"], sys.argv[1], Path(sys.argv[2])

def wait_for_all():
    (marks / rank).touch()
    while len(list(marks.iterdir())) < 2:
        time.sleep(0.01)

def main():
    wait_for_all()
    if end == "interrupted":
        time.sleep(1800)
    raise UserError("train.lr is negative" if end == "same" else f"the disk of {rank} is full")

if end != "different":
    run_main(main)
else:  # the launcher stops the others as soon as one has ended, so none may end before the other
    try:
        run_main(main)
    finally:
        (marks / f"{rank} has printed").touch()
        while len(list(marks.iterdir())) < 4:
            time.sleep(0.01)
"""


def launch(folder: Path, end: str) -> subprocess.Popen:
    (folder / "program.py").write_text(PROGRAM)
    (folder / "marks").mkdir()
    launcher = (sys.executable, "-m", "fgrlhf.cli.torchrun", "--standalone", "--nproc_per_node")
    return subprocess.Popen(
        [*launcher, "2", str(folder / "program.py"), end, str(folder / "marks")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a test run in the background ignores SIGINT, and so would its programs
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(
    "end, messages",
    [
        ("same", ["error: train.lr is negative"]),
        ("different", ["error: the disk of 0 is full", "error: the disk of 1 is full"]),
    ],
)
def test_a_message_of_all_processes_is_printed_once(tmp_path, end, messages):
    process = launch(tmp_path, end)
    _, errors = process.communicate()
    assert process.returncode == 2
    assert sorted(errors.splitlines()) == messages
    assert not list(tmp_path.glob("fgrlhf_messages_*"))


def test_an_interrupt_of_all_processes_is_printed_once(tmp_path):
    process = launch(tmp_path, "interrupted")
    while len(list((tmp_path / "marks").iterdir())) < 2:
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal does
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.startswith("interrupted: run the same command again") and errors.count("\n") == 1


def test_without_a_folder_of_the_launcher_everything_is_printed(tmp_path, monkeypatch, capsys):
    for folder in ("", str(tmp_path / "removed")):
        monkeypatch.setenv(VARIABLE, folder)
        print_once("a")
        print_once("a")
        assert capsys.readouterr().err == "a\na\n"
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    for message in ("a", "a", "b", "a"):
        print_once(message)
    assert capsys.readouterr().err == "a\nb\n"


def test_a_line_is_written_at_once(monkeypatch):
    """Otherwise the line of another process could come before its end."""
    written = []
    stderr = mock.Mock(write=written.append)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.delenv(VARIABLE, raising=False)
    print_once("a")
    assert [text for text in written if text] == ["a\n"]

"""The end of a process that trained together with others."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from server_helpers import free_port

from fgrlhf.base.processes import environments_of_group
from fgrlhf.base.program import why_refused

PROGRAM = """
import atexit
import torch.distributed as distributed
from fgrlhf.base.program import run_main

class Late:
    def __del__(self):
        print("the interpreter has ended", flush=True)

late = Late()
atexit.register(print, "exit function")

def main():
    if {grouped}:
        distributed.init_process_group("gloo", rank=0, world_size=1)
    print("trained")

run_main(main)
print("after run_main")
"""


def output_of(grouped: bool) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(grouped=grouped)],
        env=os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_a_process_of_a_group_ends_before_the_interpreter():
    assert output_of(grouped=True) == ["trained", "exit function"]


def test_other_processes_end_as_usual():
    lines = ["trained", "after run_main", "exit function", "the interpreter has ended"]
    assert output_of(grouped=False) == lines


@pytest.mark.parametrize(
    "text",
    [
        "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:64172. This is",
        "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:5: Connection reset by peer.",
        "ncclRemoteError: NCCL detected that a remote process exited prematurely",
        "Connection reset by peer",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown",
        "The client socket has timed out after 6000ms while trying to connect to (127.0.0.1, 2).",
        "wait timeout after 6000ms, keys: /default_pg/0//cpu//0/1",
        "Timed out after 7 seconds waiting for clients. 1/2 clients joined.",
    ],
)
def test_a_lost_process_is_named(text):
    message = why_refused(RuntimeError(text))
    assert message is not None and "another process of this run has ended" in message
    assert "Run the same command again" in message
    assert why_refused(ValueError(text)) is None


MEETING = """
import os, signal
import torch.distributed as distributed
from fgrlhf.base.program import run_main

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def main():
    if os.environ["RANK"] == "0":  # it keeps the store at which they meet
        distributed.distributed_c10d._new_process_group_helper = die
    distributed.init_process_group("gloo")

run_main(main)
"""


def test_a_process_that_dies_while_they_meet_is_named():
    group = [
        subprocess.Popen(
            [sys.executable, "-c", MEETING],
            env=os.environ | variables,
            stderr=subprocess.PIPE,
            text=True,
        )
        for variables in environments_of_group(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in group]
    assert [process.returncode for process in group] == [-signal.SIGKILL, 2]
    assert "another process of this run has ended" in errors[1]
    assert "Traceback" not in errors[1]


def test_a_file_is_named_without_its_temporary_name():
    error = OSError(errno.ENOSPC, "full", "/a/.report.html.123.tmp")
    assert (why_refused(error) or "").startswith("/a/report.html could not be used: No space")


def test_a_link_without_its_folder_is_named(tmp_path):
    """Such as that of results on a disk that is not mounted."""
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    with pytest.raises(FileExistsError) as found:
        (tmp_path / "results").mkdir(parents=True, exist_ok=True)
    message = why_refused(found.value) or ""
    assert f"It is a symbolic link to {tmp_path}/disk, which is no folder: make that" in message


def test_other_errors_are_bugs():
    assert why_refused(RuntimeError("shapes differ")) is None

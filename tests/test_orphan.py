"""A stage ends with its killed pipeline, even with a shell script between them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fgrlhf.base import processes
from fgrlhf.base.processes import parent_mark, start_time

ROOT = Path(__file__).parents[1]
# seconds before a test fails; the events take one or two, and much longer on a busy machine
LIMIT = 1800.0
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="no /proc: nothing is watched"
)


def wait_for(condition) -> bool:
    end = time.monotonic() + LIMIT
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


STAGE = """
import os, sys
from pathlib import Path
from fgrlhf.base.processes import end_with_parent
end_with_parent()
Path(sys.argv[1]).write_text(f"{os.getpid()} {os.getppid()}\\n")
sys.stdin.read()
"""
PIPELINE = """
import sys
from pathlib import Path
from fgrlhf.pipeline.stages import Pipeline, Stage
root = Path(sys.argv[1])
# `true` keeps bash alive as the parent
script = 'python_of_test=%s; "$python_of_test" stage.py pids; true' % sys.executable
Pipeline([Stage("s", ("bash", "-c", script))], root, root / "out", {}).run()
"""


def test_a_killed_pipeline_takes_its_stages_with_it(tmp_path):
    # stdin of a stage is /dev/null, which ends at once; this one blocks forever
    (tmp_path / "stage.py").write_text(
        STAGE.replace("sys.stdin.read()", "import threading\nthreading.Event().wait()")
    )
    pipeline = subprocess.Popen(
        [sys.executable, "-c", PIPELINE, str(tmp_path)],
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    assert wait_for(
        lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n")
    )
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(map(start_time, pids)) and pipeline.pid not in pids
    pipeline.kill()
    pipeline.wait()
    assert wait_for(lambda: not any(map(start_time, pids)))
    assert (
        "the program that started this is gone" in (tmp_path / "out" / "logs" / "s.log").read_text()
    )


def test_without_a_pipeline_and_beside_a_live_one_a_stage_goes_on(tmp_path):
    (tmp_path / "stage.py").write_text(STAGE)
    for mark in (
        {processes.VARIABLE: ""},
        parent_mark(),
        {processes.VARIABLE: "another machine:1:2"},
        {processes.VARIABLE: "nonsense"},
    ):
        stage = subprocess.Popen(
            [sys.executable, str(tmp_path / "stage.py"), str(tmp_path / "pids")],
            env=environment(**mark),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        _, errors = stage.communicate(b"go on\n")
        assert (stage.returncode, errors) == (0, b"")


def test_a_process_number_that_is_used_again_is_another_process(tmp_path):
    (tmp_path / "stage.py").write_text(STAGE)
    mark = parent_mark()[processes.VARIABLE]
    stage = subprocess.Popen(
        [sys.executable, str(tmp_path / "stage.py"), str(tmp_path / "pids")],
        env=environment(**{processes.VARIABLE: mark + "0"}),
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert stage.wait(LIMIT) == -15
    stage.stdin.close()


def test_a_dead_process_has_no_start():
    child = subprocess.Popen(["true"])
    # not reaped: still in the process table, as a zombie
    assert wait_for(lambda: start_time(child.pid) is None)
    child.wait()
    assert start_time(child.pid) is None and start_time(os.getpid()) is not None

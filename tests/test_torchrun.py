"""Several processes: how they end, and what is printed then."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.distributed.run import parse_args

from fgrlhf.base.processes import parent_mark
from fgrlhf.base.shared_messages import share_messages
from fgrlhf.cli import torchrun as module

ROOT = Path(__file__).parents[1]
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from fgrlhf.base.errors import UserError
from fgrlhf.base.program import run_main
rank = os.environ["RANK"]

def main():
    Path(sys.argv[1], rank).write_text(str(os.getpid()))
    while len(list(Path(sys.argv[1]).iterdir())) < 2:
        time.sleep(0.05)
    if rank == "0" or sys.argv[2] == "done":
        return
    if sys.argv[2] == "error":
        raise UserError("the disk is full")
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1800)

run_main(main)
"""


@pytest.fixture
def start(tmp_path):
    """Start two processes of PROGRAM, in which process 1 has the fate `end`."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    marks = tmp_path / "pids"
    marks.mkdir()

    def popen(end: str) -> subprocess.Popen:
        launcher = (sys.executable, "-m", "fgrlhf.cli.torchrun", "--standalone")
        return subprocess.Popen(
            [*launcher, "--nproc_per_node", "2", str(script), str(marks), end],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    popen.marks = marks
    return popen


@pytest.mark.parametrize(
    "end, code, printed",
    [
        ("done", 0, ""),
        ("error", 2, "error: the disk is full\n"),
        ("killed", 2, "error: process 1 was ended by SIGKILL, which Linux sends when memory runs"),
    ],
)
def test_only_the_reason_is_printed(start, end, code, printed):
    process = start(end)
    out, errors = process.communicate()
    assert (process.returncode, out) == (code, "")
    assert errors.startswith(printed) and errors.count("\n") == bool(printed)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_the_processes_end_with_their_launcher(start, number, code):
    process = start("waits")
    while len(list(start.marks.iterdir())) < 2:
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate()  # until its processes have closed its output
    assert process.returncode == code


@pytest.mark.parametrize("gpus, on_cpu", [(False, "true"), (True, None)])
def test_processes_without_a_gpu_train_together_on_the_cpu(gpus, on_cpu, monkeypatch):
    for name in ("ACCELERATE_USE_CPU", *parent_mark(), *share_messages()):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpus)
    monkeypatch.setattr(module.logging, "disable", lambda level: None)
    seen = []
    monkeypatch.setattr(module, "run", lambda _: seen.append(os.environ.get("ACCELERATE_USE_CPU")))
    module.torchrun(["--standalone", "--nproc_per_node", "2", "-m", "fgrlhf.cli.rl"])
    assert seen == [on_cpu]


def test_a_command_of_fgrlhf_stands_for_its_program():
    settings = module.with_command(parse_args(["--nproc_per_node=2", "rl", "numbers", "a.yml"]))
    assert settings.module and settings.training_script == "fgrlhf.cli.main"
    assert settings.training_script_args == ["rl", "numbers", "a.yml"]
    script = module.with_command(parse_args(["-m", "rl", "a.yml"]))  # a module with this name
    assert script.training_script == "rl" and script.training_script_args == ["a.yml"]


def test_launch_runs_the_command_in_every_process(tmp_path):
    command = [sys.executable, "-m", "fgrlhf.cli.main", "launch", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc_per_node", "2", "completion", "fish"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("name the shell") == 1  # once for both processes

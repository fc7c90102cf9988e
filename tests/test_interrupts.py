"""Ctrl-C and SIGTERM, also while a program's modules are imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fgrlhf.base.interrupts import Terminated, end_at_interrupts, raise_at_interrupts

ROOT = Path(__file__).parents[1]
RUN = ["numbers", str(ROOT / "tasks/numbers/mini_rl_config.yml")]  # read before PyTorch is imported
# stands for PyTorch: the user presses Ctrl-C while it is imported
TORCH = "import os, signal\nos.kill(os.getpid(), signal.{})\n"


def heed_interrupts():
    """A test run in the background ignores SIGINT, and so would its programs."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


SETTINGS = {"capture_output": True, "text": True, "preexec_fn": heed_interrupts}


@pytest.mark.parametrize(
    "program, number",
    [
        (["fgrlhf.cli.rl", *RUN], signal.SIGINT),
        (["fgrlhf.cli.main", "rl", *RUN], signal.SIGINT),
        (["fgrlhf.cli.main", "rl", *RUN], signal.SIGTERM),
        (["sft.run_sft", "config.yml"], signal.SIGINT),
        (["reward_modeling.run_fg_rm", "config.yml"], signal.SIGINT),
        (["tasks.experiments.summary", "output_dir=o"], signal.SIGINT),
    ],
)
def test_an_interrupted_import_ends_without_a_traceback(tmp_path, program, number):
    (tmp_path / "torch.py").write_text(TORCH.format(number.name))
    folders = {"OUTPUT_DIR": str(tmp_path), "DATA_DIR": str(tmp_path)}
    environment = {**os.environ, **folders, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    ended = subprocess.run([sys.executable, "-m", *program], env=environment, **SETTINGS)
    if program[-1] == RUN[-1]:  # within `main`, which says that the run has stopped
        assert ended.returncode == 128 + number and "run the same command again" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1 and not ended.stdout
    else:
        assert (ended.returncode, ended.stderr, ended.stdout) == (-number, "", "")


def test_the_program_itself_is_interrupted_by_an_exception(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_at_interrupts()
        raise_at_interrupts()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # a second one ends the process
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        end_at_interrupts()
        raise_at_interrupts()
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN] * 2
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


def test_sigterm_ends_a_process_of_a_group_at_once(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        raise_at_interrupts()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


# a program that says when it works, and cleans up
PROGRAM = """
import time
from fgrlhf.base.program import run_main

def main():
    try:
        print("working", flush=True)
        time.sleep(600)
    finally:
        print("cleaned up", flush=True)

run_main(main)
"""


@pytest.mark.parametrize(
    "number, code, fact",
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped by SIGTERM")],
)
def test_a_stopped_program_prints_how_to_continue(number, code, fact):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, preexec_fn=heed_interrupts, **streams
    )
    assert program.stdout is not None and program.stdout.readline() == "working\n"
    program.send_signal(number)
    output, errors = program.communicate(timeout=600)
    assert (program.returncode, output) == (code, "cleaned up\n")
    assert errors == (
        f"{fact}: run the same command again; a training run continues from its last complete"
        " checkpoint\n"
    )


LOST = """
import os, signal, sys, time
from fgrlhf.base.program import run_main

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        time.sleep(0)  # the signal's exception is raised here, and Python drops it

def main():
    Dropped()
    time.sleep(60)
    print("went on")

run_main(main)
"""


@pytest.mark.parametrize("name, code", [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_in_a_destructor_is_not_lost(name, code):
    ended = subprocess.run([sys.executable, "-c", LOST, name], cwd=ROOT, **SETTINGS)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert "Traceback" not in ended.stderr and "run the same command again" in ended.stderr

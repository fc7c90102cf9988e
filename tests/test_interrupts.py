"""Ctrl-C while a program's modules are imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fgrlhf.runs.interrupts import end_at_interrupts, raise_at_interrupts

ROOT = Path(__file__).parents[1]
# stands for PyTorch: the user presses Ctrl-C while it is imported
TORCH = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize(
    "program",
    [
        ["fgrlhf.cli.rl", "numbers", "config.yml"],
        ["fgrlhf.cli.main", "rl", "numbers", "config.yml"],
        ["sft.run_sft", "config.yml"],
        ["reward_modeling.run_fg_rm", "config.yml"],
        ["tasks.qa_feedback.summary", "output_dir=o"],
    ],
)
def test_an_interrupted_import_ends_without_a_traceback(tmp_path, program):
    (tmp_path / "torch.py").write_text(TORCH)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    ended = subprocess.run(
        [sys.executable, "-m", *program],
        env=environment,
        capture_output=True,
        text=True,
        # a test run in the background ignores SIGINT, and so would its programs
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (ended.returncode, ended.stderr, ended.stdout) == (-signal.SIGINT, "", "")


def test_the_program_itself_is_interrupted_by_an_exception():
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end_at_interrupts()
        raise_at_interrupts()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_at_interrupts()
        raise_at_interrupts()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

"""Programs on a pretend GPU, which find tensors on the wrong device without a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# All tests of these programs, but of groups of processes, which cannot communicate on this device.
FILES = (
    "test_run_sft.py",
    "test_run_fg_rm.py",
    "test_run_pref_rm.py",
    "test_train_rl.py",
    "test_train_dpo.py",
    "test_generate.py",
    "test_evaluate.py",
    "test_best_of_n.py",
    "test_reward_models.py",
    "test_benchmarks.py",
    "test_gpu_benchmark.py",
)


def passed_on_a_pretend_gpu(*arguments: str) -> int:
    """Run pytest with the plugin `pretend_gpu`; the number of tests that passed, if none failed."""
    command = [sys.executable, "-m", "pytest", "-p", "pretend_gpu", "-p", "no:cacheprovider", "-q"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    done = subprocess.run(
        [*command, "-n", "0", *arguments],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found, done.stdout
    return int(found[1])


# The longest ones, and algorithms and architectures that share most of their code with others.
LEFT_OUT = (
    "trpo or interrupted or nlpo or a2c or rloo or gpg or reinforce or bart"
    " or grpo or settings or (adapters and t5)"
    " or ((architecture or bf16) and gpt2) or (wait and t5)"
)


def test_most_paths():
    assert passed_on_a_pretend_gpu(str(TESTS / "on_gpu.py"), "-k", f"not ({LEFT_OUT})") == 16


@pytest.mark.slow
def test_the_others():
    assert passed_on_a_pretend_gpu(str(TESTS / "on_gpu.py"), "-k", LEFT_OUT) == 15


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_all_tests_of(file):
    assert passed_on_a_pretend_gpu(str(TESTS / file), "-k", "not sharded_models") > 8

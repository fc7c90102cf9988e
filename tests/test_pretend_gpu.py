"""Programs on a pretend GPU, which find tensors on the wrong device without a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# All tests of these programs, but those in COMPARED.
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


def test_every_algorithm():
    assert passed_on_a_pretend_gpu(str(TESTS / "on_pretend_gpu.py")) == 21


# Tests that compare a trained model with one on the CPU.
COMPARED = (
    "test_adapters_are_merged_into_the_model_that_later_stages_load",
    "test_adapters_are_trained_through_the_entry_point",
    "test_the_best_checkpoint_is_kept",
)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_all_tests_of(file):
    others = " and ".join(f"not {name}" for name in COMPARED)
    assert passed_on_a_pretend_gpu(str(TESTS / file), "-k", others) > 10

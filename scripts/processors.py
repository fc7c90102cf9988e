"""Runs the tests that compare numbers as if on other processors: `make processors`.

    python -m scripts.processors [only=[avx2,sse]] [tests="-k gpt2"] [workers=2]

PyTorch, oneDNN and MKL choose their code by the processor's instructions, and each choice adds in
another order. Environment variables restrict them to older instructions, so one machine can stand
for several; it cannot stand for a newer one than it is. FGRLHF_KERNELS fixes the library that
multiplies large matrices, which is otherwise chosen by its speed, and so by chance.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from pydantic import Field, PositiveInt

from fgrlhf.base.errors import UserError, suggestion
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import StrictModel

ROOT = Path(__file__).parents[1]
ONEDNN = "FGRLHF_KERNELS=onednn"
PYTORCH = "FGRLHF_KERNELS=pytorch"
AVX2 = "ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2"
SSE = "ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2"
# name -> threads, variables
PROCESSORS = {
    "native": (1, ONEDNN),
    "threads": (2, ONEDNN),
    "pytorch": (2, PYTORCH),
    "avx512": (1, f"{ONEDNN} ONEDNN_MAX_CPU_ISA=AVX512_CORE"),
    "avx2": (1, f"{ONEDNN} {AVX2}"),
    "avx2-two": (2, f"{PYTORCH} {AVX2}"),
    "sse": (1, f"{ONEDNN} {SSE}"),
}
COMPARES = re.compile("assert_close|assert_equal_up_to_rounding")
OTHERS = ("test_plots.py", "test_quantized.py", "test_real_vllm.py")  # whose subject is no number


class Settings(StrictModel):
    only: list[str] = Field(default=[], description="names of processors; []: all")
    tests: str = Field(default="", description="further arguments of pytest")
    workers: PositiveInt = Field(default=2, description="processes that run tests")


def files() -> list[str]:
    """Every test file that compares tensors."""
    paths = sorted((ROOT / "tests").glob("test_*.py"))
    return [
        str(path) for path in paths if path.name not in OTHERS and COMPARES.search(path.read_text())
    ]


def tested(name: str, settings: Settings) -> tuple[int, str]:
    """The exit status of pytest as if on a processor, and its last line."""
    threads, variables = PROCESSORS[name]
    print(f"== {name}: OMP_NUM_THREADS={threads} {variables}", flush=True)
    added = dict(word.split("=") for word in variables.split())
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **added}
    workers = ["--numprocesses", str(settings.workers), "--dist", "loadfile"]
    command = [sys.executable, "-m", "pytest", "-q", *workers, *files()]
    done = subprocess.run(
        [*command, *shlex.split(settings.tests)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = done.stdout.splitlines() or [""]
    if done.returncode:
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        print("\n".join(failed or lines[-20:]))
    return done.returncode, lines[-1].strip("= ")


def run(settings: Settings) -> None:
    """Print a line for each processor, and exit with 1 if a test has failed."""
    names = settings.only or list(PROCESSORS)
    for name in names:
        if name not in PROCESSORS:
            raise UserError(f"only: `{name}` is unknown; {suggestion(name, list(PROCESSORS))}")
    results = {name: tested(name, settings) for name in names}
    print(f"\n{'processor':9} {'threads':8} tests")
    for name, (_, line) in results.items():
        print(f"{name:9} {PROCESSORS[name][0]:<8} {line}")
    sys.exit(any(status for status, _ in results.values()))


if __name__ == "__main__":
    run_program(run, Settings)

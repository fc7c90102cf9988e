"""Steps of one side in a fresh process: seconds and peak memory.

The process reads JSON on stdin and writes JSON to stdout.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from signal import SIGKILL

import torch

from benchmarks.measure import SIDES, PeakMemory, run_step
from benchmarks.workload import RMDims, Size, T5Dims
from fgrlhf.base.errors import UserError

ROOT = Path(__file__).parents[1]


def measured(
    size: Size, side: str, threads: int, responses: list[list[int]] | None = None, reps: int = 1
) -> dict:
    """Run this file on `size` and return its results.

    Returns:
      imports_mb, built_mb: before and after the models are built.
      seconds: {phase: s} per repetition; a repetition starts from the weights of the one before.
      peak_mb: {phase: MB}.

    Raises:
      UserError: the process failed or was killed.
    """
    spec = {
        "size": asdict(size),
        "side": side,
        "threads": threads,
        "responses": responses,
        "reps": reps,
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.child"],
        input=json.dumps(spec),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if done.returncode == -SIGKILL:
        raise UserError(
            f"{size.name}: the process of {side} was killed, most likely because memory ran out:"
            " free some, choose a smaller size or fewer prompts, or skip this measurement"
            " (memory=false)"
        )
    if done.returncode:
        raise UserError(f"{size.name}: the process of {side} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def size_of(tree: dict) -> Size:
    """The size of `asdict(size)`."""
    dims = {
        "policy": T5Dims(**tree["policy"]),
        "value": T5Dims(**tree["value"]),
        "reward": RMDims(**tree["reward"]),
    }
    return Size(**{**tree, **dims})


def main() -> None:
    spec = json.load(sys.stdin)
    torch.set_num_threads(spec["threads"])
    side = SIDES[spec["side"]]
    memory = PeakMemory()
    memory.reset()
    imports_mb = memory.peak_mb()
    state = side.build(size_of(spec["size"]), spec["responses"])
    built_mb = memory.peak_mb()
    seconds, peak_mb = [], {}
    for _ in range(spec["reps"]):
        step = run_step(side, state, memory)
        seconds.append(step.seconds)
        peak_mb = {name: max(peak, peak_mb.get(name, 0.0)) for name, peak in step.peak_mb.items()}
        del step
    print(
        json.dumps(
            {"imports_mb": imports_mb, "built_mb": built_mb, "seconds": seconds, "peak_mb": peak_mb}
        )
    )


if __name__ == "__main__":
    main()

"""What all benchmarks share: rounds in alternating order, ratios, clocks, processes, tables.

A comparison is a few sides that do equal work. They take turns on the same machine, so that other
load affects all of them, and every other round has the opposite order. The figures are medians,
and the median of the ratios of single rounds.
"""

import contextlib
import importlib
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
import transformers
from pydantic import Field
from transformers.utils import logging as transformers_logging

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_text
from fgrlhf.base.processes import end_process_of_group
from fgrlhf.base.program import run_main
from fgrlhf.configs.strict import StrictModel
from fgrlhf.runs.memory import own_peak_mb

ROOT = Path(__file__).parents[1]
MB = 2**20


class Progress:
    """Prints lines with the seconds since the start."""

    def __init__(self):
        self.started = perf_counter()

    def __call__(self, text: str) -> None:
        print(f"[{perf_counter() - self.started:5.0f} s] {text}", flush=True)


class ResultSettings(StrictModel):
    """Where a program leaves its results."""

    output_dir: str = "outputs"
    results: str | None = Field(
        None, description="a document whose part of this name is replaced by the results"
    )

    def publish(self, name: str, text: str, is_whole: bool = True) -> None:
        """Write `NAME.md` and print it; if nothing is missing, it replaces the document's part."""
        path = Path(self.output_dir) / f"{name}.md"
        write_text(path, text)
        print(f"\n{text}\n{path}", flush=True)
        if self.results and is_whole:
            replace_part(self.results, name, text)


def quiet_transformers() -> None:
    """No messages and bars while models are made and loaded."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


# ---- rounds --------------------------------------------------------------------------------------


def alternate(
    sides: Mapping[str, Callable[[], Mapping[str, float]]],
    rounds: int,
    warm_ups: int = 0,
    say: Callable[[str], None] = print,
) -> list[dict[str, Mapping[str, float]]]:
    """The seconds of each phase of every side, by round. Odd rounds begin with the last side.

    Args:
      sides: each runs the same work once, and returns {phase: seconds} with the sum as `step`.
      rounds: those that count.
      warm_ups: rounds before them.
    """
    done = []
    for i in range(-warm_ups, rounds):
        order = list(sides) if i % 2 == 0 else list(sides)[::-1]
        done.append({name: sides[name]() for name in order})
        latest = ", ".join(f"{name} {seconds['step']:.2f} s" for name, seconds in done[-1].items())
        say(f"round {i + 1} of {rounds}: {latest}" if i >= 0 else f"warm-up: {latest}")
    return done[warm_ups:]


def by_phase(
    rounds: Sequence[Mapping[str, Mapping[str, float]]], phases: Sequence[str]
) -> dict[str, dict[str, float]]:
    """`paired` of each phase, for rounds of `baseline` and `ours`."""
    times = {}
    for phase in phases:
        times[phase] = paired(*([r[side][phase] for r in rounds] for side in ("baseline", "ours")))
    return times


def paired(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Medians of both, and of the ratios of single rounds, with their range."""
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    return {
        "baseline_s": statistics.median(first),
        "ours_s": statistics.median(second),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def with_total(seconds: Mapping[str, float]) -> dict[str, float]:
    """The seconds of all phases, and `step`, their sum."""
    return {**seconds, "step": sum(seconds.values())}


# ---- clocks, memory, machine ---------------------------------------------------------------------


def synchronized_time() -> float:
    """Seconds of a clock, when the GPU has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter()


class PeakMemory:
    """Peak memory since `reset` in MB: GPU memory if there is a GPU, else the resident set.

    Linux resets the peak of the resident set when 5 is written to `clear_refs`. If that is not
    allowed, the peak covers the whole life of the process.
    """

    def reset(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            return
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak_mb(self) -> float:
        if torch.cuda.is_available():
            return torch.cuda.max_memory_allocated() / MB
        return own_peak_mb()


def machine() -> dict[str, Any]:
    """What a result depends on."""
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _processor() -> str:
    """The model that Linux states, otherwise the architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# ---- processes -----------------------------------------------------------------------------------


def in_processes(
    function: str,
    arguments: Mapping[str, Any],
    environments: Sequence[Mapping[str, str]] = ({},),
    seconds: float | None = None,
    shown: bool = False,
) -> list[Any]:
    """What a function returns in fresh processes, one for each environment, at the same time.

    Args:
      function: `module:name`. It gets `arguments` as keywords; they and its result are JSON.
      environments: further variables of each process.
      seconds: limit of the time; None: no limit.
      shown: whether what the processes print is shown.

    Raises:
      UserError: a process failed, was killed or was too slow. The last line says why.
    """
    processes = []
    with TemporaryDirectory() as folder:
        results = [Path(folder) / f"{number}.json" for number in range(len(environments))]
        for variables, result in zip(environments, results):
            call = result.with_suffix(".call")
            write_json(call, {"function": function, "arguments": arguments, "result": str(result)})
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.harness", str(call)],
                cwd=ROOT,
                env={**os.environ, **variables},
                stdout=None if shown else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            processes.append(process)
        try:
            errors = [process.communicate(timeout=seconds)[1] for process in processes]
        except subprocess.TimeoutExpired:
            raise UserError(f"not finished within {(seconds or 0) / 60:.1f} minutes") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for process, text in zip(processes, errors):
            _require_success(function, process.returncode, text)
        return [read_json(result) for result in results]


def _require_success(function: str, code: int, text: str) -> None:
    if code == -SIGKILL:
        raise UserError(
            f"the process of {function} was killed, most likely because memory ran out: free some,"
            " choose a smaller size or fewer prompts, or skip this measurement"
        )
    if code:
        raise UserError(f"the process of {function} ended with {code}:\n{text[-2000:].rstrip()}")


def _called(call: Mapping[str, Any]) -> None:
    module, _, name = call["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    write_json(call["result"], function(**call["arguments"]))
    end_process_of_group()


# ---- tables --------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table; the first column is text, the others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float) -> str:
    """A number with three significant digits and no exponent."""
    if value == 0:
        return "0"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - int(f'{value:e}'.partition('e')[2]))}f}"


def phase_rows(times: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Of `by_phase`: phase, the baseline's seconds, ours, their ratio."""
    rows = []
    for phase, row in times.items():
        seconds = [number(row["baseline_s"]), number(row["ours_s"])]
        rows.append([phase, *seconds, f"{row['ratio']:.2f}"])
    return rows


def replace_part(path: str | Path, name: str, text: str) -> None:
    """Put `text` between `<!-- name -->` and `<!-- /name -->` of a document."""
    before, opening, rest = Path(path).read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, closing, after = rest.partition(f"<!-- /{name} -->")
    if not closing:
        raise UserError(
            f"{path} has no place for `{name}`: add the lines `<!-- {name} -->` and `<!-- /{name}"
            " -->` where it belongs"
        )
    write_text(path, before + opening + text.rstrip() + "\n" + closing + after)


if __name__ == "__main__":
    run_main(lambda: _called(read_json(sys.argv[1])))

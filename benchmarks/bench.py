"""`make bench`: time, throughput and peak memory of one step, compared with the published code.

    make bench ARGS="sizes=tiny reps=5"       python -m benchmarks.bench --help lists the keys

Both sides have the same prompts, sampled tokens, dropout and number of optimiser steps. They
alternate in one process, and their results must agree to 1e-4 before anything is timed. Writes
`bench.json` and `bench.md`.
"""

import ctypes
import gc
import platform
import statistics
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Literal

import torch
import transformers
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from transformers.utils import logging as transformers_logging

from benchmarks import baseline, causal, ours, workload
from benchmarks.child import measured
from benchmarks.flops import padded_update_flops, step_flops
from benchmarks.measure import (
    PHASES,
    Equality,
    Weights,
    check,
    paired,
    response_tokens,
    run_step,
    with_total,
    workload_facts,
)
from benchmarks.tables import number, replace_part, table
from benchmarks.workload import CPU_SIZES, GPU_SIZES, SIZES, Size
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel

OF_SIZE = (
    "reps",
    "prompts",
    "samples",
    "epochs",
    "dropout",
    "baseline_attention",
    "onednn",
    "gradient_checkpointing",
)
# Of the equality check. The second epoch is needed because the ratio of the first is 1.
CHECKED_EPOCHS = 2
CHECKED_PROMPTS = 2


NAMES = (*SIZES, causal.NAME)


class Settings(StrictModel):
    """`make bench`. The options of a size do not apply to `smollm2` (benchmarks/causal.py)."""

    sizes: str = Field(
        "auto",
        description=f"comma-separated names out of {', '.join(NAMES)}; auto: by the hardware",
    )
    reps: PositiveInt | None = Field(
        None, description="timed steps of each side; null: the size's default"
    )
    prompts: PositiveInt | None = Field(None, description="null: the size's default")
    samples: PositiveInt | None = Field(None, description="per prompt; null: the size's default")
    epochs: PositiveInt | None = Field(None, description="null: the size's default")
    dropout: NonNegativeFloat = Field(
        0.1, description="of policy and critic in updates, on both sides; off in the check"
    )
    baseline_attention: Literal["eager", "sdpa"] = Field(
        "eager", description="of the baseline's T5s; the published code could only use eager"
    )
    onednn: bool = Field(
        True, description="false: ours multiplies matrices with MKL on a CPU, like the baseline"
    )
    gradient_checkpointing: bool = Field(
        False, description="ours recomputes activations in updates instead of keeping them"
    )
    threads: PositiveInt = Field(2, description="CPU threads")
    memory: bool = Field(True, description="measure peak memory, each side in a separate process")
    peak_tflops: PositiveFloat | None = Field(
        None, description="the GPU's peak, to report utilisation (MFU)"
    )
    output_dir: str = "outputs"
    results: str | None = Field(
        None, description="a document whose `bench` part is replaced by the table"
    )

    def names(self) -> list[str]:
        """The names in `sizes`. Raises `UserError` if one of them is unknown."""
        auto = (*CPU_SIZES, *GPU_SIZES) if torch.cuda.is_available() else CPU_SIZES
        names = [*auto, causal.NAME] if self.sizes == "auto" else self.sizes.split(",")
        unknown = [name for name in names if name not in NAMES]
        if unknown:
            raise UserError(f"unknown size {', '.join(unknown)}; choose from {', '.join(NAMES)}")
        return names

    def chosen(self) -> list[Size]:
        """The encoder-decoder sizes, with the changes of these settings."""
        changes = {name: getattr(self, name) for name in OF_SIZE if getattr(self, name) is not None}
        return [replace(SIZES[name], **changes) for name in self.names() if name in SIZES]


class Progress:
    """Prints lines with the seconds since the start."""

    def __init__(self):
        self.started = perf_counter()

    def __call__(self, text: str) -> None:
        print(f"[{perf_counter() - self.started:5.0f} s] {text}", flush=True)


# ---- one size ------------------------------------------------------------------------------------


def checked(size: Size, say: Progress) -> Equality:
    """Compare both sides in fp32 without dropout. Raises `UserError` if they differ."""
    prompts, epochs = min(size.prompts, CHECKED_PROMPTS), min(size.epochs, CHECKED_EPOCHS)
    equality = check(replace(size, prompts=prompts, epochs=epochs))
    differences = ", ".join(f"{name} {value:.1e}" for name, value in equality.differences.items())
    say(
        f"{size.name}: differences: {differences}; {equality.sampled_alike:.2%} of the sampled"
        " tokens agree"
    )
    equality.require(size.name)
    return equality


def timed(
    size: Size, say: Progress
) -> tuple[dict[str, list[dict[str, float]]], list[list[int]], list[int]]:
    """Run both sides alternately, each step from the same weights.

    Returns:
      side -> {phase: seconds} per repetition; the responses; tokens of the reward models' inputs.
    """
    trainer = ours.build(size)
    generated = ours.generate(trainer)
    responses = generated.responses()
    judged = ours.judged_tokens(trainer, ours.score(trainer, generated))
    sides = {"baseline": (baseline, baseline.build(size, responses)), "ours": (ours, trainer)}
    weights = {name: Weights(side.modules(state)) for name, (side, state) in sides.items()}
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    # The first step on a GPU selects kernels; on a CPU the check has warmed up.
    warm_ups = 1 if torch.cuda.is_available() else 0
    for rep in range(-warm_ups, size.reps):
        for name in list(sides)[:: 1 if rep % 2 == 0 else -1]:
            step = run_step(*sides[name])
            weights[name].restore()
            if step.generated.responses() != responses:
                raise UserError(
                    f"{size.name}: {name} sampled different tokens in this repetition, so the times"
                    " cannot be compared"
                )
            if rep >= 0:
                seconds[name].append(with_total(step.seconds))
            del step
        if rep >= 0:
            latest = ", ".join(
                f"{name} {steps[-1]['step']:.2f} s" for name, steps in seconds.items()
            )
            say(f"{size.name}: repetition {rep + 1} of {size.reps}: {latest}")
    return seconds, responses, judged


def memory_of(
    size: Size, responses: list[list[int]], threads: int, say: Progress
) -> dict[str, dict[str, float]]:
    """`peak_mb` and the peaks of each phase, with every side in a fresh process."""
    # Two epochs are enough: Adam's moments exist from the second one on.
    short = replace(size, epochs=min(size.epochs, 2))
    results = {side: measured(short, side, threads, responses) for side in ("baseline", "ours")}
    peaks = {
        side: {**result["peak_mb"], "step": max(result["peak_mb"].values())}
        for side, result in results.items()
    }
    imports = results["ours"]["imports_mb"]
    net = {
        side: max(peaks[side]["step"] - result["imports_mb"], 1.0)
        for side, result in results.items()
    }
    both = ", ".join(f"{side} {peak['step']:.0f} MB" for side, peak in peaks.items())
    say(f"{size.name}: peak memory: {both}, of which imports {imports:.0f} MB")
    phases = {
        name: {"baseline_peak_mb": peaks["baseline"][name], "ours_peak_mb": peaks["ours"][name]}
        for name in (*PHASES, "step")
    }
    total = {
        "baseline": peaks["baseline"]["step"],
        "ours": peaks["ours"]["step"],
        "ratio": peaks["baseline"]["step"] / peaks["ours"]["step"],
        "imports": imports,
        "ratio_without_imports": net["baseline"] / net["ours"],
        "models": results["ours"]["built_mb"] - imports,
    }
    return {**phases, "peak_mb": total}


def free_memory() -> None:
    """Release memory for the next process; glibc keeps freed memory until `malloc_trim`."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def bench_size(size: Size, settings: Settings, say: Progress) -> dict[str, dict]:
    """Benchmark one size.

    Returns `<phase|step>.{baseline_s, ours_s, ratio, ...}`, `peak_mb`, `workload` and `equality`.
    """
    prompts = workload.prompt_lengths(size)
    say(
        f"{size.name}: {size.samples} samples per prompt; prompt tokens:"
        f" {', '.join(map(str, prompts))}"
    )
    equality = checked(size, say)
    free_memory()
    seconds, responses, judged = timed(size, say)
    free_memory()
    memory = memory_of(size, responses, settings.threads, say) if settings.memory else {}
    lengths = [len(row) for row in responses]
    answers = [lengths[at : at + size.samples] for at in range(0, len(lengths), size.samples)]
    flops = step_flops(size, prompts, answers, judged)
    result: dict[str, dict] = {}
    for name in (*PHASES, "step"):
        times = paired(*([step[name] for step in seconds[side]] for side in ("baseline", "ours")))
        rates = {}
        for side in ("baseline", "ours"):
            rates[f"{side}_tokens_per_s"] = response_tokens(responses) / times[f"{side}_s"]
            rates[f"{side}_gflops"] = flops[name] / times[f"{side}_s"] / 1e9
            if settings.peak_tflops:
                rates[f"{side}_mfu"] = rates[f"{side}_gflops"] / 1e3 / settings.peak_tflops
        result[name] = {**times, **rates, **memory.get(name, {})}
    if "peak_mb" in memory:
        result["peak_mb"] = memory["peak_mb"]
    return {
        **result,
        "workload": {
            **workload_facts(size, responses),
            "baseline_flops": padded_update_flops(size) / flops["updates"],
        },
        "equality": {**equality.differences, "sampled_alike": equality.sampled_alike},
    }


# ---- tables --------------------------------------------------------------------------------------


def machine(threads: int) -> dict[str, object]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "gpu": gpu,
        "cpu": platform.processor() or platform.machine(),
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _row(name: str, row: dict[str, float]) -> list[str]:
    cells = [name, *(number(row[key]) for key in ("baseline_s", "ours_s")), f"{row['ratio']:.2f}"]
    for key in ("tokens_per_s", "gflops", "peak_mb"):
        cells += [
            number(row[f"{side}_{key}"]) if f"{side}_{key}" in row else ""
            for side in ("baseline", "ours")
        ]
    return cells


def size_table(name: str, result: dict[str, dict]) -> str:
    """The table of one size's phases, under a description of its workload."""
    header = [
        "phase",
        "baseline s",
        "ours s",
        "ratio",
        "baseline tokens/s",
        "ours tokens/s",
        "baseline GFLOP/s",
        "ours GFLOP/s",
        "baseline MB",
        "ours MB",
    ]
    facts = result["workload"]
    prompt, answer = (statistics.mean(facts[f"{kind}_tokens"]) for kind in ("prompt", "answer"))
    about = [
        f"**{name}**: {len(facts['prompt_tokens'])} prompts ({prompt:.0f} tokens on average) with"
        f" {facts['samples']} samples ({answer:.0f}), {facts['epochs']} epochs in micro-batches of"
        f" {facts['micro_batch']}, {facts['precision']}, dropout {facts['dropout']:g},"
        f" {facts['baseline_attention']} attention in the baseline.",
        f"The baseline computes {facts['baseline_flops']:.2g} times our FLOPs in updates.",
    ]
    if not facts["onednn"]:
        about.append("Ours without oneDNN.")
    if facts["gradient_checkpointing"]:
        about.append("Ours with gradient checkpointing.")
    about.append(f"Medians; steps timed per side: {facts['reps']}.")
    lines = [
        " ".join(about),
        "",
        table(header, [_row(phase, result[phase]) for phase in (*PHASES, "step")]),
    ]
    if "peak_mb" in result:
        peak = result["peak_mb"]
        lines += [
            "",
            (
                f"The baseline's peak memory is {peak['ratio']:.2f} times ours, or"
                f" {peak['ratio_without_imports']:.2f} times without the {peak['imports']:.0f} MB"
                " of imports."
            ),
        ]
    return "\n".join(lines)


def document(results: dict[str, dict]) -> str:
    about = results["about"]
    versions = f"torch {about['torch']}, transformers {about['transformers']}"
    where = f"{about['gpu'] or about['cpu']}, {about['threads']} CPU threads, {versions}"
    tables = []
    for name, result in results.items():
        if name == causal.NAME:
            tables.append(causal.size_table(result))
        elif name != "about":
            tables.append(size_table(name, result))
    return "\n\n".join([f"{where}.", *tables]) + "\n"


def run(settings: Settings) -> dict[str, dict]:
    """Measure; write `bench.json` after every size and `bench.md` at the end."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(settings.threads)
    folder = Path(settings.output_dir)
    say = Progress()
    results: dict[str, dict] = {"about": machine(settings.threads)}
    for size in settings.chosen():
        results[size.name] = bench_size(size, settings, say)
        write_json(folder / "bench.json", results)
    if causal.NAME in settings.names():
        results[causal.NAME] = causal.bench(say)
        write_json(folder / "bench.json", results)
    text = document(results)
    write_text(folder / "bench.md", text)
    if settings.results:
        replace_part(settings.results, "bench", text)
    print(f"\n{text}\n{folder / 'bench.json'}, {folder / 'bench.md'}", flush=True)
    return results


if __name__ == "__main__":
    run_main(lambda: run(settings_from(Settings)))

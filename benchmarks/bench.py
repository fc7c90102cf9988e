"""`make bench`: time, throughput and peak memory of one step, compared with the published code.

    make bench ARGS="sizes=tiny reps=5"       python -m benchmarks.bench --help lists the keys

Both sides have the same prompts, sampled tokens, dropout and number of optimiser steps. They
alternate in one process, and their results must agree to 1e-4 before anything is timed. Writes
`bench.json` and `bench.md`.
"""

import ctypes
import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, PositiveInt

from benchmarks import baseline, causal, ours, workload
from benchmarks.flops import padded_update_flops, step_flops
from benchmarks.harness import (
    Progress,
    ResultSettings,
    alternate,
    by_phase,
    machine,
    number,
    phase_rows,
    quiet_transformers,
    table,
    with_total,
)
from benchmarks.measure import PHASES, Equality, Weights, check, measured, run_step
from benchmarks.workload import CPU_SIZES, SIZES, Size
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.cli.command_line import run_program

OPTIONS = ("onednn", "gradient_checkpointing")
OF_SIZE = ("reps", "prompts", *OPTIONS)  # settings that change a size
# Of the equality check. The second epoch is needed because the ratio of the first is 1.
CHECKED_EPOCHS = 2
CHECKED_PROMPTS = 2
NAMES = (*SIZES, causal.NAME)


class BenchSettings(ResultSettings):
    """`make bench`. The options of a size do not apply to `smollm2` (benchmarks/causal.py)."""

    sizes: str = Field(
        "auto",
        description=f"comma-separated names out of {', '.join(NAMES)}; auto: by the hardware",
    )
    reps: PositiveInt | None = Field(
        None, description="timed steps of each side; null: the size's default"
    )
    prompts: PositiveInt | None = Field(None, description="null: the size's default")
    onednn: bool = Field(
        True, description="false: ours multiplies matrices with MKL on a CPU, like the baseline"
    )
    gradient_checkpointing: bool = Field(
        False, description="ours recomputes activations in updates instead of keeping them"
    )
    threads: PositiveInt = Field(2, description="CPU threads")
    memory: bool = Field(True, description="measure peak memory, each side in a separate process")

    def names(self) -> list[str]:
        """The names in `sizes`. Raises `UserError` if one of them is unknown."""
        auto = SIZES if torch.cuda.is_available() else CPU_SIZES
        names = [*auto, causal.NAME] if self.sizes == "auto" else self.sizes.split(",")
        unknown = [name for name in names if name not in NAMES]
        if unknown:
            raise UserError(f"unknown size {', '.join(unknown)}; choose from {', '.join(NAMES)}")
        return names

    def chosen(self) -> list[Size]:
        """The encoder-decoder sizes, with the changes of these settings."""
        changes = {name: getattr(self, name) for name in OF_SIZE if getattr(self, name) is not None}
        return [replace(SIZES[name], **changes) for name in self.names() if name in SIZES]


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
) -> tuple[list[dict[str, Mapping[str, float]]], list[list[int]], list[int]]:
    """Run both sides alternately, each step from the same weights.

    Returns:
      {side: {phase: seconds}} per repetition; the responses; tokens of the reward models' inputs.
    """
    trainer = ours.build(size)
    generated = ours.generate(trainer)
    responses = generated.responses()
    judged = ours.judged_tokens(trainer, ours.score(trainer, generated))
    plain = baseline.build(size, responses)
    sides: dict[str, Callable[[], Mapping[str, float]]] = {}
    for name, side, state in (("baseline", baseline, plain), ("ours", ours, trainer)):
        weights = Weights(side.modules(state))
        sides[name] = partial(_repetition, f"{size.name}: {name}", side, state, weights, responses)
    # the first step on a GPU selects kernels; on a CPU the check has warmed up
    warm_ups = 1 if torch.cuda.is_available() else 0
    rounds = alternate(sides, size.reps, warm_ups, lambda text: say(f"{size.name}: {text}"))
    return rounds, responses, judged


def _repetition(
    name: str, side: Any, state: Any, weights: Weights, responses: list[list[int]]
) -> dict[str, float]:
    """Seconds of each phase of a step, after which the weights are those from before it."""
    step = run_step(side, state)
    weights.restore()
    if step.generated.responses() != responses:
        raise UserError(
            f"{name} sampled different tokens in this repetition, so the times cannot be compared"
        )
    return with_total(step.seconds)


def memory_of(
    size: Size, responses: list[list[int]], threads: int, say: Progress
) -> dict[str, dict[str, float]]:
    """`peak_mb` and the peaks of each phase, with every side in a fresh process."""
    # Two epochs are enough: Adam's moments exist from the second one on.
    short = replace(size, epochs=min(size.epochs, 2))
    results = {side: measured(short, side, threads, responses) for side in ("baseline", "ours")}
    of_phases: dict[str, dict[str, float]] = {name: {} for name in (*PHASES, "step")}
    total, net = {}, {}
    for side, result in results.items():
        total[side] = max(result["peak_mb"].values())
        net[side] = max(total[side] - result["imports_mb"], 1.0)
        for name, peak in {**result["peak_mb"], "step": total[side]}.items():
            of_phases[name][f"{side}_peak_mb"] = peak
    imports = results["ours"]["imports_mb"]
    both = ", ".join(f"{side} {peak:.0f} MB" for side, peak in total.items())
    say(f"{size.name}: peak memory: {both}, of which imports {imports:.0f} MB")
    ratios = {
        "ratio": total["baseline"] / total["ours"],
        "ratio_without_imports": net["baseline"] / net["ours"],
    }
    models = results["ours"]["built_mb"] - imports
    return {**of_phases, "peak_mb": {**total, **ratios, "imports": imports, "models": models}}


def free_memory() -> None:
    """Release memory for the next process; glibc keeps freed memory until `malloc_trim`."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def bench_size(size: Size, settings: BenchSettings, say: Progress) -> dict[str, dict]:
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
    rounds, responses, judged = timed(size, say)
    free_memory()
    memory = memory_of(size, responses, settings.threads, say) if settings.memory else {}
    flops = step_flops(size, prompts, lengths_by_prompt(size, responses), judged)
    result: dict[str, dict] = {}
    for name, times in by_phase(rounds, (*PHASES, "step")).items():
        rates = {}
        for side in ("baseline", "ours"):
            rates[f"{side}_tokens_per_s"] = sum(map(len, responses)) / times[f"{side}_s"]
            rates[f"{side}_gflops"] = flops[name] / times[f"{side}_s"] / 1e9
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


def lengths_by_prompt(size: Size, responses: Sequence[Sequence[int]]) -> list[list[int]]:
    """Tokens of the responses to each prompt."""
    lengths = [len(row) for row in responses]
    return [lengths[at : at + size.samples] for at in range(0, len(lengths), size.samples)]


def workload_facts(size: Size, responses: Sequence[Sequence[int]]) -> dict[str, object]:
    """The facts about the workload that the tables print."""
    names = ("samples", "epochs", "micro_batch", "reps", "dropout")
    return {
        "prompt_tokens": workload.prompt_lengths(size),
        "answer_tokens": [len(row) for row in responses],
        "precision": "bf16" if size.bf16 else "fp32",
        **{name: getattr(size, name) for name in (*names, *OPTIONS)},
    }


# ---- tables --------------------------------------------------------------------------------------


def size_table(name: str, result: dict[str, dict]) -> str:
    """The table of one size's phases, under a description of its workload."""
    header = ["phase", "baseline s", "ours s", "ratio"]
    for unit in ("tokens/s", "GFLOP/s", "MB"):
        header += [f"baseline {unit}", f"ours {unit}"]
    facts = result["workload"]
    prompt, answer = (statistics.mean(facts[f"{kind}_tokens"]) for kind in ("prompt", "answer"))
    about = [
        f"**{name}**: {len(facts['prompt_tokens'])} prompts ({prompt:.0f} tokens on average) with"
        f" {facts['samples']} samples ({answer:.0f}), {facts['epochs']} epochs in micro-batches of"
        f" {facts['micro_batch']}, {facts['precision']}, dropout {facts['dropout']:g}.",
        f"The baseline computes {facts['baseline_flops']:.2g} times our FLOPs in updates.",
    ]
    if not facts["onednn"]:
        about.append("Ours without oneDNN.")
    if facts["gradient_checkpointing"]:
        about.append("Ours with gradient checkpointing.")
    times = {phase: result[phase] for phase in (*PHASES, "step")}
    rows = phase_rows(times)
    for row, figures in zip(rows, times.values()):
        for key in ("tokens_per_s", "gflops", "peak_mb"):
            for side in ("baseline", "ours"):
                value = figures.get(f"{side}_{key}")
                row.append("" if value is None else number(value))
    about.append(f"Medians; steps timed per side: {facts['reps']}.")
    parts = [" ".join(about), table(header, rows)]
    if "peak_mb" in result:
        peak = result["peak_mb"]
        parts.append(
            f"The baseline's peak memory is {peak['ratio']:.2f} times ours, or"
            f" {peak['ratio_without_imports']:.2f} times without the {peak['imports']:.0f} MB of"
            " imports."
        )
    return "\n\n".join(parts)


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


def run(settings: BenchSettings) -> dict[str, dict]:
    """Measure; write `bench.json` after every size and `bench.md` at the end."""
    quiet_transformers()
    torch.set_num_threads(settings.threads)
    folder = Path(settings.output_dir)
    say = Progress()
    results: dict[str, dict] = {"about": machine()}
    for size in settings.chosen():
        results[size.name] = bench_size(size, settings, say)
        write_json(folder / "bench.json", results)
    if causal.NAME in settings.names():
        results[causal.NAME] = causal.bench(say)
        write_json(folder / "bench.json", results)
    settings.publish("bench", document(results))
    return results


if __name__ == "__main__":
    run_program(run, BenchSettings)

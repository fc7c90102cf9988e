"""`make gpu`: everything that has to be measured on a GPU, in pieces that can be resumed.

    make gpu                                    all pieces; finished ones are not run again
    make gpu ARGS="minutes=9"                   stop after nine minutes; call it again to go on
    make gpu ARGS="rehearsal=true"              tiny models, also without a GPU

Each piece is a process of its own with at most nine minutes, so that a GPU that is lent for minutes
at a time is enough. Results are kept by GPU and commit in `output_dir`. When all pieces are done,
the table in `benchmarks/RESULTS.md` is replaced.

All weights are random; nothing is downloaded.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from types import ModuleType
from typing import Any, Literal
from unittest import mock

import torch
from pydantic import Field, PositiveFloat
from transformers import PreTrainedModel

from benchmarks import baseline, bench, causal, gpu_memory, ours, workload
from benchmarks.flops import step_flops
from benchmarks.harness import (
    PeakMemory,
    Progress,
    ResultSettings,
    in_processes,
    number,
    quiet_transformers,
    table,
    with_total,
)
from benchmarks.measure import PHASES, TOLERANCE, Step, run_loop_step, run_step
from benchmarks.workload import SIZES, RMDims, Size, T5Dims
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.base.processes import environments_of_group
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.sections import ParallelConfig
from fgrlhf.ppo import PPOTrainer
from fgrlhf.reward import CombinedReward, SegmentClassifierReward, SequenceScorerReward
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.runs.runlog import commit_of_code
from tasks.qa_feedback.feedback import rm_prefix

MINUTES = 9.0  # of a piece
THREADS = 2
# Dense bf16 peaks of the makers' data sheets in TFLOP/s.
PEAK_TFLOPS = {
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "A10": 125.0,
}
STRATEGIES: tuple[Literal["ddp", "fsdp2"], ...] = ("ddp", "fsdp2")
BF16_APART = 0.05  # nats per token; bf16 keeps 8 bits, so a logit of 10 is off by up to 0.04

_DIMS = T5Dims(32, 48, 8, 4, 2, 300)
REHEARSAL = Size(
    "rehearsal",
    _DIMS,
    _DIMS,
    RMDims(32, 48, 4, 1, 8),
    prompts=2,
    samples=2,
    epochs=2,
    micro_batch=2,
    input_limit=64,
    answer_tokens=12,
    prompt_tokens=40,
    bf16=True,
    reps=1,
)
# Responses per forward pass of our updates in `paper_step`. The baseline reads 4, as published, and
# needs a little more memory for them than ours for 32.
OUR_MICRO_BATCH = 32
# A decoder of 0.6 billion weights.
DECODER = replace(
    causal.SIZE,
    vocab=151_936,
    width=1152,
    layers=31,
    heads=12,
    tokens=128,
    prompts=8,
    steps=3,
    dtype="bf16",
)
DECODER_CHECK = replace(DECODER, vocab=2000, width=96, layers=4, heads=3)
REHEARSAL_DECODER = replace(
    causal.SIZE, vocab=300, width=24, layers=2, heads=3, prompt_tokens=20, tokens=5, dtype="bf16"
)


class GpuSettings(ResultSettings):
    """`make gpu`."""

    piece: str | None = Field(None, description="run only this piece, in this process")
    minutes: PositiveFloat | None = Field(
        None, description="stop after so many minutes; the next call continues. null: no limit"
    )
    rehearsal: bool = Field(
        False, description="tiny models, with or without a GPU, to see that everything runs"
    )
    output_dir: str = "outputs/gpu"


# ---- pieces --------------------------------------------------------------------------------------


def correctness(rehearsal: bool) -> dict[str, Any]:
    """What bf16 and a device can break. Raises `UserError` if a check fails."""
    size = REHEARSAL if rehearsal else replace(SIZES["t5_large"], prompts=2)
    values = {
        **policy_checks(size),
        "reward models, saved - loaded": reward_model_difference(size),
    }
    limits = {
        "policy - reference at step 0, nats": 0.0,
        "bf16 - fp32, mean nats per token": BF16_APART,
        "tensors on another device": 0.0,
        "weights that are not finite after a step": 0.0,
        "reward models, saved - loaded": 0.0,
    }
    wrong = [f"{name}: {values[name]:g}" for name in limits if not values[name] <= limits[name]]
    if not values["largest change of a weight"] > 0:
        wrong.append("a step changes no weight")
    if wrong:
        raise UserError(f"the checks fail on this device: {'; '.join(wrong)}")
    return {"checks": values}


@torch.no_grad()
def _use_reference_weights(trainer) -> None:
    """Make the policy equal to its reference, as at the start of a run."""
    trainer.actor_critic.policy.model.load_state_dict(trainer.reference.model.state_dict())


def policy_checks(size: Size) -> dict[str, float]:
    """Step 0 in bf16: the KL, the distance to fp32, devices, and whether an update is finite."""
    logprobs = {}
    values: dict[str, float] = {}
    for bf16 in (False, True):
        trainer = ours.build(replace(size, bf16=bf16, dropout=0.0))
        _use_reference_weights(trainer)
        if not bf16:
            generated = ours.generate(trainer)
        rollout = ours.score(trainer, generated)
        logprobs[bf16] = rollout.ref_logprobs_BT[rollout.response_mask_BT.bool()]
        apart = (rollout.logprobs_BT - rollout.ref_logprobs_BT).abs().max()
        values["policy - reference at step 0, nats"] = float(apart)
    values["bf16 - fp32, mean nats per token"] = float(
        (logprobs[True] - logprobs[False]).abs().mean()
    )
    device = trainer.accelerator.device.type
    tensors = [*trainer.actor_critic.parameters(), *trainer.reference.parameters()]
    tensors += [value for value in vars(rollout).values() if isinstance(value, torch.Tensor)]
    values["tensors on another device"] = sum(tensor.device.type != device for tensor in tensors)
    before = [parameter.detach().clone() for parameter in trainer.actor_critic.parameters()]
    ours.update(trainer, rollout, ours.rewards(trainer, rollout))
    after = list(trainer.actor_critic.parameters())
    values["weights that are not finite after a step"] = sum(
        int((~torch.isfinite(parameter)).sum()) for parameter in after
    )
    values["largest change of a weight"] = max(
        float((new.detach() - old).abs().max()) for new, old in zip(after, before)
    )
    return values


def reward_model_difference(size: Size) -> float:
    """The largest difference of bf16 logits of a reward model and of its saved and loaded copy."""
    trainer = ours.build(size)
    rollout = ours.score(trainer, ours.generate(trainer))
    largest = 0.0
    assert isinstance(trainer.reward, CombinedReward)
    for aspect in trainer.reward.aspects.values():
        assert isinstance(aspect, (SegmentClassifierReward, SequenceScorerReward))
        scorer = aspect.scorer
        assert isinstance(scorer.model, PreTrainedModel)
        with TemporaryDirectory() as folder:
            scorer.model.save_pretrained(folder)
            scorer.inputs.tokenizer.save_pretrained(folder)
            scorer.spec.save(folder)
            loaded = load_reward_model(folder, rm_prefix, str(trainer.accelerator.device), "bf16")
        inputs = scorer.encode(rollout.prompts, rollout.texts)
        for mine, other in zip(scorer.logits(inputs), loaded.logits(inputs), strict=True):
            largest = max(largest, float((mine - other).abs().max()))
    return largest


def paper_step(rehearsal: bool) -> dict[str, Any]:
    """A step at the paper's scale, of ours and then of the baseline, which samples our tokens.

    Seconds, tokens per second, utilisation, and memory by phase. `make bench` compares both sides
    more carefully, and takes several times as long.
    """
    size = REHEARSAL if rehearsal else SIZES["t5_large"]
    our_size = size if rehearsal else replace(size, micro_batch=OUR_MICRO_BATCH)
    memory = PeakMemory()
    phases: dict[str, dict[str, dict[str, float]]] = {}

    def measured(name: str, side: ModuleType, state) -> Step:
        set_epochs(state, 1)
        first = run_step(side, state)  # the first step on a GPU selects kernels
        print(f"{name}, first step with one epoch: {first.seconds}", flush=True)
        del first
        set_epochs(state, size.epochs)
        step = run_step(side, state, memory)
        phases[name] = {"seconds": step.seconds, "peak_mb": step.peak_mb}
        print(f"{name}: {phases[name]}", flush=True)
        return step

    memory.reset()
    trainer = ours.build(our_size)
    models_mb = memory.peak_mb()
    step = measured("ours", ours, trainer)
    responses = step.generated.responses()
    judged = ours.judged_tokens(trainer, step.scored)
    del trainer, step
    bench.free_memory()
    measured("baseline", baseline, baseline.build(size, responses))
    answers = bench.lengths_by_prompt(size, responses)
    return {
        "phases": phases,
        "tokens": sum(map(len, responses)),
        "flops": step_flops(size, workload.prompt_lengths(size), answers, judged),
        "models_mb": models_mb,
        "prompts": size.prompts,
        "samples": size.samples,
        "micro_batches": {"ours": our_size.micro_batch, "baseline": size.micro_batch},
    }


def set_epochs(state: PPOTrainer | baseline.State, epochs: int) -> None:
    """Change the number of epochs of the next updates."""
    train = state.config.train.model_copy(update={"n_ppo_epoch_per_rollout": epochs})
    state.config = state.config.model_copy(update={"train": train})


def decoder(rehearsal: bool) -> dict[str, Any]:
    """A GRPO step of a decoder of 0.6 billion weights, against transformers' own generate."""
    size = REHEARSAL_DECODER if rehearsal else DECODER
    memory = PeakMemory()
    memory.reset()
    check = REHEARSAL_DECODER if rehearsal else DECODER_CHECK
    responses = size.prompts * size.samples
    result = causal.bench(Progress(), size, check, micro=responses)
    return {"causal": result, "peak_mb": memory.peak_mb()}


def sharded(rehearsal: bool) -> dict[str, Any]:
    """`fsdp2` on one GPU, which then holds all parts, beside whole models.

    Raises:
      UserError: losses or gradient norms of a step in fp32 differ by more than `TOLERANCE`.
    """
    size = REHEARSAL if rehearsal else SIZES["t5_large"]
    small = replace(REHEARSAL, bf16=False, dropout=0.0)
    losses = {}
    measured = {}
    with _group_of_one():
        for strategy in STRATEGIES:
            losses[strategy] = run_loop_step(ours.build(small, strategy=strategy)).losses
            trainer = ours.build(replace(size, epochs=1), strategy=strategy)
            run_loop_step(trainer)
            step = run_loop_step(trainer)
            measured[strategy] = {"seconds": step.seconds, "peak_mb": step.peak_mb}
            del trainer
            bench.free_memory()
    apart = 0.0
    for name, whole in losses["ddp"].items():
        apart = max(apart, abs(whole - losses["fsdp2"][name]) / max(abs(whole), 1.0))
    if not apart <= TOLERANCE:
        raise UserError(f"the losses of whole and of sharded models differ by {apart:.2g}")
    return {"losses_apart": apart, "strategies": measured}


@contextmanager
def _group_of_one() -> Iterator[None]:
    """Make this process a group of its own, in which `fsdp2` shards models too."""
    (environment,) = environments_of_group(1)
    del environment["ACCELERATE_USE_CPU"]

    def shards(parallel: ParallelConfig, _) -> bool:
        return parallel.strategy == "fsdp2"

    with (
        mock.patch.dict(os.environ, environment),
        mock.patch("fgrlhf.base_trainer.shards_models", shards),
    ):
        try:
            yield
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


PIECES: dict[str, Callable[[bool], dict[str, Any]]] = {
    "correctness": correctness,
    "paper_step": paper_step,
    "decoder": decoder,
    "memory": gpu_memory.piece,
    "sharded": sharded,
}


# ---- running them --------------------------------------------------------------------------------


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def peak_tflops() -> float | None:
    """The GPU's dense bf16 peak; None if it is not in `PEAK_TFLOPS`."""
    for part, peak in PEAK_TFLOPS.items():
        if part.casefold() in device_name().casefold():
            return peak
    return None


def folder_of(rehearsal: bool, output_dir: str) -> Path:
    """Where results are kept: those of another GPU, commit or kind are never mixed with them."""
    commit = (commit_of_code() or "unknown")[:12]
    device = re.sub(r"[^A-Za-z0-9]+", "-", device_name())
    kind = "-rehearsal" if rehearsal else ""
    return Path(output_dir).resolve() / f"{device}-{commit}{kind}"


def run_piece(name: str, rehearsal: bool, folder: str) -> None:
    """Measure one piece in this process and write its file."""
    quiet_transformers()
    torch.set_num_threads(THREADS)
    write_json(Path(folder) / f"{name}.json", PIECES[name](rehearsal))


def run_pieces(settings: GpuSettings) -> dict[str, str]:
    """Run the pieces that have no result yet, each in its own process.

    Returns:
      piece -> why it has no result: it failed, or the time was up.
    """
    folder = folder_of(settings.rehearsal, settings.output_dir)
    end = monotonic() + 60 * settings.minutes if settings.minutes else float("inf")
    missing = {}
    for name in PIECES:
        if (folder / f"{name}.json").is_file():
            print(f"{name}: measured before", flush=True)
            continue
        seconds = min(60 * MINUTES, end - monotonic())
        if seconds <= 0:
            missing[name] = "the time was up: call `make gpu` again"
            continue
        print(f"{name}: at most {seconds / 60:.0f} minutes", flush=True)
        arguments = {"name": name, "rehearsal": settings.rehearsal, "folder": str(folder)}
        try:
            in_processes("benchmarks.gpu:run_piece", arguments, seconds=seconds, shown=True)
        except UserError as error:
            missing[name] = str(error).splitlines()[-1].rstrip(".")
            print(f"{name}: {missing[name]}", file=sys.stderr, flush=True)
    return missing


# ---- the document --------------------------------------------------------------------------------


def document(results: Mapping[str, dict], missing: Mapping[str, str]) -> str:
    """The results as markdown."""
    peak = peak_tflops()
    peak_text = f", peak {peak:,.0f} TFLOP/s in bf16" if peak else ""
    commit = (commit_of_code() or "unknown")[:12]
    parts = [
        f"{device_name()}{peak_text}, torch {torch.__version__}, commit {commit}. Random weights.",
    ]
    if "correctness" in results:
        rows = [[name, f"{value:.3g}"] for name, value in results["correctness"]["checks"].items()]
        parts.append(table(["check", "value"], rows))
    if "paper_step" in results:
        parts.append(paper_table(results["paper_step"], peak))
    if "decoder" in results:
        what = "a decoder of 0.6 billion weights"
        parts.append(causal.size_table(results["decoder"]["causal"], "decoder", what))
    if "memory" in results:
        parts.append(gpu_memory.document(results["memory"]))
    if "sharded" in results:
        parts.append(sharded_table(results["sharded"]))
    parts += [f"**{name}** has no result: {reason}." for name, reason in missing.items()]
    return "\n\n".join(parts) + "\n"


def paper_table(result: Mapping[str, Any], peak: float | None) -> str:
    both = result["phases"]
    header = ["phase", "baseline s", "ours s", "ratio", "ours tokens/s", "TFLOP/s", "utilisation"]
    header += ["baseline peak MB", "ours peak MB"]
    seconds = {name: with_total(sides["seconds"]) for name, sides in both.items()}
    rows = []
    for phase in (*PHASES, "step"):
        mine, other = seconds["ours"][phase], seconds["baseline"][phase]
        tflops = result["flops"][phase] / mine / 1e12
        peaks = [both[name]["peak_mb"] for name in ("baseline", "ours")]
        rows.append(
            [
                phase,
                number(other),
                number(mine),
                f"{other / mine:.2f}",
                number(result["tokens"] / mine),
                number(tflops),
                f"{tflops / peak:.1%}" if peak else "",
                *(number(max(mb.values()) if phase == "step" else mb[phase]) for mb in peaks),
            ]
        )
    responses = result["prompts"] * result["samples"]
    about = (
        f"**paper_step**: {result['prompts']} prompts with {result['samples']} samples of"
        f" {result['tokens'] / responses:.0f} tokens on average. Updates read"
        f" {result['micro_batches']['ours']} responses at a time, the baseline's"
        f" {result['micro_batches']['baseline']} as published. Our models take"
        f" {number(result['models_mb'])} MB. One timed step of each side, after one that warms up."
    )
    return f"{about}\n\n{table(header, rows)}"


def sharded_table(result: Mapping[str, Any]) -> str:
    about = (
        "**sharded**: the step of paper_step with one epoch, as one process of a group."
        f" In fp32, losses and gradient norms of a small step differ by at most"
        f" {result['losses_apart']:.1e}."
    )
    sides = result["strategies"]
    header = ["phase", *(f"{name} {unit}" for unit in ("s", "peak MB") for name in sides)]
    rows = []
    for phase in ("rollout", "update"):
        cells = [phase]
        for key in ("seconds", "peak_mb"):
            cells += [number(costs[key][phase]) for costs in sides.values()]
        rows.append(cells)
    return f"{about}\n\n{table(header, rows)}"


def run(settings: GpuSettings) -> None:
    """`make gpu`.

    Raises:
      UserError: there is no GPU, an unknown piece, or a piece without a result.
    """
    if settings.piece is not None and settings.piece not in PIECES:
        raise UserError(f"there is no piece {settings.piece}; choose from {', '.join(PIECES)}")
    if not torch.cuda.is_available() and not settings.rehearsal:
        raise UserError(
            "PyTorch sees no GPU here, so there is nothing to measure. `make gpu"
            ' ARGS="rehearsal=true"` runs all pieces with tiny models on the CPU'
        )
    folder = folder_of(settings.rehearsal, settings.output_dir)
    if settings.piece is not None:
        run_piece(settings.piece, settings.rehearsal, str(folder))
        return
    missing = run_pieces(settings)
    files = {name: folder / f"{name}.json" for name in PIECES}
    results = {name: read_json(file) for name, file in files.items() if file.is_file()}
    of_device = settings.model_copy(update={"output_dir": str(folder)})
    of_device.publish("gpu", document(results, missing), is_whole=not missing)
    if missing:
        raise UserError(f"no result: {', '.join(missing)}. Finished pieces are kept in {folder}")


if __name__ == "__main__":
    run_program(run, GpuSettings)

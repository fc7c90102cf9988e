"""`make profile`: seconds per phase of our step, and the operators with the largest shares.

make profile ARGS="size=t5_small prompts=1 top=20"
"""

from dataclasses import replace

import torch
from pydantic import Field, PositiveInt
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks import ours, workload
from benchmarks.harness import number, quiet_transformers, table
from benchmarks.measure import PHASES, SIDES, run_step
from benchmarks.workload import SIZES, Size
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel


class ProfileSettings(StrictModel):
    """`make profile`."""

    size: str = Field("tiny", description=f"one of {', '.join(SIZES)}")
    side: str = Field("ours", description="ours or baseline")
    prompts: PositiveInt | None = Field(None, description="null: the size's own")
    epochs: PositiveInt | None = Field(1, description="null: the size's own")
    top: PositiveInt = Field(12, description="operators shown per phase")
    threads: PositiveInt = Field(2, description="CPU threads")
    trace: str | None = Field(
        None, description="trace file for chrome://tracing or https://ui.perfetto.dev"
    )

    def chosen(self) -> Size:
        if self.size not in SIZES or self.side not in SIDES:
            raise UserError(
                f"size={self.size} side={self.side}: choose a size from {', '.join(SIZES)} and a"
                f" side from {', '.join(SIDES)}"
            )
        changes = {
            name: getattr(self, name)
            for name in ("prompts", "epochs")
            if getattr(self, name) is not None
        }
        return replace(SIZES[self.size], **changes)


# name of a side's function -> the phase it computes
PHASE_OF: dict[str, str] = dict(zip(("generate", "score", "rewards", "update"), PHASES))


class _Recorded:
    """A side whose phases are labelled in the profile."""

    def __init__(self, side):
        self.side = side

    def __getattr__(self, name: str):
        function = getattr(self.side, name)
        phase = PHASE_OF[name]

        def recorded(*arguments):
            with record_function(f"phase/{phase}"):
                return function(*arguments)

        return recorded


def _phase_of(event) -> str | None:
    """The phase an event ran in, or None for a backward pass, which runs in another thread."""
    while event is not None:
        if event.name.startswith("phase/"):
            return event.name.removeprefix("phase/")
        event = event.cpu_parent
    return None


def operators(events) -> dict[str, dict[str, tuple[float, int]]]:
    """Sum (own seconds, calls) by phase and operator; other events are the backward pass."""
    totals: dict[str, dict[str, tuple[float, int]]] = {phase: {} for phase in PHASES}
    gpu = torch.cuda.is_available()
    for event in events:
        # kernels are skipped: an operator includes the time of its kernels
        if event.name.startswith("phase/") or event.device_type != DeviceType.CPU:
            continue
        microseconds = event.self_device_time_total if gpu else event.self_cpu_time_total
        row = totals[_phase_of(event) or "updates"]
        seconds, calls = row.get(event.name, (0.0, 0))
        row[event.name] = (seconds + microseconds / 1e6, calls + 1)
    return totals


def operator_table(row: dict[str, tuple[float, int]], top: int) -> str:
    total = sum(seconds for seconds, _ in row.values()) or 1.0
    ranked = sorted(row.items(), key=lambda item: -item[1][0])[:top]
    return table(
        ["operator", "s", "share", "calls"],
        [
            [name, number(seconds), f"{seconds / total:.1%}", f"{calls:,}"]
            for name, (seconds, calls) in ranked
        ],
    )


def run(settings: ProfileSettings) -> str:
    """Warm up with one step, time one and profile one. Returns the printed text."""
    quiet_transformers()
    torch.set_num_threads(settings.threads)
    size, side = settings.chosen(), SIDES[settings.side]
    responses = None if side is ours else ours.generate(ours.build(size)).responses()
    state = side.build(size, responses)
    run_step(side, state)
    seconds = run_step(side, state).seconds
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiled:
        run_step(_Recorded(side), state)
    if settings.trace:
        profiled.export_chrome_trace(settings.trace)
    total = sum(seconds.values())
    prompts = ", ".join(map(str, workload.prompt_lengths(size)))
    parts = [
        (
            f"{settings.side}, {size.name}: prompts of {prompts} tokens, {size.samples} samples, "
            f"{size.epochs} epochs"
        ),
        table(
            ["phase", "s", "share"],
            [[name, number(s), f"{s / total:.1%}"] for name, s in seconds.items()],
        ),
    ]
    for phase, row in operators(profiled.events()).items():
        parts += [f"{phase}, by operators' own time:", operator_table(row, settings.top)]
    text = "\n\n".join(parts) + "\n"
    print(text, flush=True)
    return text


if __name__ == "__main__":
    run_main(lambda: write_text("outputs/profile.md", run(settings_from(ProfileSettings))))

"""Growth of cost: time and memory against lengths, K, batch, models and their number.

    python -m benchmarks.scaling axes=prompt_tokens,samples reps=3        --help lists the keys

One axis varies at a time around a common base; every point runs in a separate process. The slope of
log(cost) against log(x), fitted over the largest points of an axis, is the order of growth: 1 is
linear. Writes `scaling.json` and `scaling.md`.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field, PositiveInt

from benchmarks.harness import Progress, ResultSettings, number, table, with_total
from benchmarks.measure import PHASES, measured
from benchmarks.workload import RMDims, Size, T5Dims
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.cli.command_line import run_program


def _t5(width: int) -> T5Dims:
    return T5Dims(width, 4 * width, 16, width // 16, 2, 2000)


def _sized(size: Size, width: int) -> Size:
    return replace(
        size,
        policy=_t5(width),
        value=_t5(width),
        reward=RMDims(width, 2 * width, width // 16, 2, 128),
    )


BASE = _sized(
    Size(
        "scaling",
        _t5(64),
        _t5(64),
        RMDims(64, 128, 4, 2, 128),
        prompts=4,
        samples=4,
        epochs=1,
        prompt_tokens=512,
        answer_tokens=100,
        eos_every=None,
        dropout=0.0,
    ),
    128,
)

DEEP = replace(BASE.policy, layers=8)

# axis -> label and points
AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "prompt_tokens": ("tokens of a prompt", (128, 256, 512, 1024)),
    "answer_tokens": ("tokens of an answer", (50, 100, 200, 400)),
    "samples": ("samples of a prompt, K", (1, 2, 4, 8, 16)),
    "prompts": ("prompts in a batch", (1, 2, 4, 8, 16)),
    "width": ("weights of the policy", (64, 128, 256, 512)),
    "top_layers": ("trained layers, of 8", (1, 2, 4, 8)),
    "reward_models": ("reward models of sentences", (1, 2, 4, 8)),
}
FITTED = 3  # points at the end of an axis; fixed cost dominates small ones


class ScalingSettings(ResultSettings):
    """Settings of `python -m benchmarks.scaling`."""

    axes: str = Field("all", description=f"comma-separated names out of {', '.join(AXES)}")
    points: PositiveInt | None = Field(
        None, description="number of points per axis, from the smallest; null: all"
    )
    reps: PositiveInt = Field(3, description="steps per point; the first of several is not counted")
    threads: PositiveInt = Field(2, description="CPU threads")

    def chosen(self) -> list[str]:
        names = list(AXES) if self.axes == "all" else self.axes.split(",")
        if set(names) - set(AXES):
            raise UserError(f"unknown axes in `{self.axes}`; choose from {', '.join(AXES)}")
        return names


def at(axis: str, value: int) -> Size:
    """The base size with one value changed."""
    if axis == "width":
        return _sized(BASE, value)
    if axis == "top_layers":
        return replace(BASE, policy=DEEP, value=DEEP, top_layers=value)
    size = replace(BASE, **{axis: value})
    assert size.prompt_tokens is not None
    return replace(size, input_limit=max(size.input_limit, size.prompt_tokens))


def weights_of(dims: T5Dims) -> int:
    """Matrices and embedding: d V + L (4 d i + 2 d f) + L (8 d i + 2 d f)."""
    return dims.d_model * dims.vocab + dims.layers * (
        12 * dims.d_model * dims.inner + 4 * dims.d_model * dims.d_ff
    )


def measure_point(axis: str, value: int, settings: ScalingSettings) -> dict[str, float]:
    """x, the median CPU seconds of every phase, and the peak in MB without imports."""
    size = at(axis, value)
    result = measured(size, "ours", settings.threads, reps=settings.reps)
    steps = [with_total(seconds) for seconds in result["seconds"]]
    steps = steps[1:] or steps
    medians = {name: statistics.median(step[name] for step in steps) for name in (*PHASES, "step")}
    x = weights_of(size.policy) if axis == "width" else value
    return {"x": x, **medians, "peak_mb": max(result["peak_mb"].values()) - result["imports_mb"]}


def slope(points: Sequence[Mapping[str, float]], name: str) -> float:
    """Slope of the least-squares line through (log x, log y) of the last FITTED points."""
    last = points[-FITTED:]
    if len(last) < 2:
        return math.nan
    xs = [math.log(point["x"]) for point in last]
    ys = [math.log(max(point[name], 1e-9)) for point in last]
    return statistics.linear_regression(xs, ys).slope


def growth_table(results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """One row per axis: the cost at both ends, and the slopes."""
    header = ["against", "from .. to", "step, s", "memory, MB", *PHASES, "step", "memory"]
    rows = []
    for axis, points in results.items():
        ends = (points[0], points[-1])
        row = [AXES[axis][0], " .. ".join(f"{end['x']:,}" for end in ends)]
        row += [" .. ".join(number(end[cost]) for end in ends) for cost in ("step", "peak_mb")]
        rows.append(row + [f"{slope(points, cost):.2f}" for cost in (*PHASES, "step", "peak_mb")])
    return table(header, rows)


def document(results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """The table under a description of the base."""
    base = (
        f"Around {BASE.prompts} prompts of {BASE.prompt_tokens} tokens, {BASE.samples} samples of"
        f" {BASE.answer_tokens}, width {BASE.policy.d_model}, {BASE.epochs} epoch, ours. The last"
        " six columns are slopes; s are CPU seconds."
    )
    return f"{base}\n\n{growth_table(results)}\n"


def sweep(
    axes: Mapping[str, Sequence[int]],
    measure: Callable[[str, int], dict[str, float]],
    file: Path,
) -> dict[str, list[dict[str, float]]]:
    """Measure the points of all axes, and write the file after each: axis -> points."""
    say = Progress()
    results: dict[str, list[dict[str, float]]] = {}
    for axis, values in axes.items():
        results[axis] = []
        for value in values:
            point = measure(axis, value)
            results[axis].append(point)
            costs = [f"{name} {number(cost)}" for name, cost in point.items() if name != "x"]
            say(f"{axis} {point['x']:,}: {', '.join(costs)}")
        write_json(file, results)
    return results


def run(settings: ScalingSettings) -> dict[str, list[dict[str, float]]]:
    """Measure and write; returns axis -> points."""
    results = sweep(
        {axis: AXES[axis][1][: settings.points] for axis in settings.chosen()},
        lambda axis, value: measure_point(axis, value, settings),
        Path(settings.output_dir) / "scaling.json",
    )
    settings.publish("scaling", document(results))
    return results


if __name__ == "__main__":
    run_program(run, ScalingSettings)

"""Does active selection save labels? Uncertainty against random, on the mini world of `make demo`.

    python -m tasks.qa_feedback.active [seeds=0,1,2,3,4] [base_dir=outputs/qa_feedback/mini]

With every seed, the factuality model (R2) is trained on rows that were chosen at random, and on
rows that `fgrlhf feedback select` preferred (active_arm.py). The result is the number of rows with
which uncertainty first reaches random's AUC after its last round. Run it again to continue or to
add seeds.
"""

import sys
from pathlib import Path

from pydantic import Field, PositiveInt

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import FilePath
from fgrlhf.errors import UserError, run_main
from fgrlhf.files import read_json, write_json, write_text
from fgrlhf.pipeline.efficiency import Efficiency, efficiency
from fgrlhf.pipeline.experiment_settings import ExperimentSettings
from fgrlhf.pipeline.experiments import input_files
from fgrlhf.pipeline.scores import Point
from fgrlhf.pipeline.stages import Pipeline, Stage, stop_with_signals
from tasks.scripts import ROOT

ARMS = ("random", "uncertainty")
ARM_MODULE = "tasks.qa_feedback.active_arm"
# what an arm runs without importing it
TRAINING_MODULES = (
    "reward_modeling.run_fg_rm",
    "tasks.qa_feedback.task",
    "tasks.qa_feedback.feedback_format",
)


class Settings(ExperimentSettings):
    """The experiment."""

    seeds: str = Field(default="0,1,2,3,4", description="both arms are repeated with each seed")
    base_dir: FilePath = Field(
        default="outputs/qa_feedback/mini", description="the output folder of `make demo`"
    )
    output_dir: FilePath = Field(default="outputs/active", description="folder of the results")
    start: PositiveInt = Field(default=100, description="rows judged in the first round")
    step: PositiveInt = Field(default=100, description="rows judged in every later round")
    rounds: PositiveInt = Field(default=5, description="rounds in all")


def arm_stage(settings: Settings, by: str, seed: int) -> Stage:
    name = f"seed-{seed}/{by}"
    base = Path(settings.base_dir).absolute()
    command = (
        *(sys.executable, "-m", ARM_MODULE, f"by={by}", f"seed={seed}"),
        *(f"data_dir={base / 'data'}", f"base_model={base / 'base_model'}"),
        f"output_dir={settings.folder / name}",
        *(f"start={settings.start}", f"step={settings.step}", f"rounds={settings.rounds}"),
    )
    modules = (ARM_MODULE, *TRAINING_MODULES)
    return Stage(name, command, outputs=(name,), reads=files_of_arm(base), modules=modules)


def files_of_arm(base: Path) -> tuple[str, ...]:
    """What an arm reads that trains the factuality model.

    Args:
      base: the output folder of `make demo`.
    """
    return (
        "tasks/qa_feedback/reward_modeling/*fact_rm*",
        "tasks/qa_feedback/interface_html/schema.js",
        "scripts/env.sh",
        str(base / "data" / "train_feedback.json"),
        str(base / "data" / "dev_feedback.json"),
        *input_files(base / "base_model"),
    )


def curves(out: Path, seeds: list[int]) -> dict[str, list[list[Point]]]:
    """The AUC over the number of judged rows, by arm and seed."""
    result: dict[str, list[list[Point]]] = {}
    for arm in ARMS:
        result[arm] = []
        for seed in seeds:
            rounds = read_json(out / f"seed-{seed}" / arm / "result.json")
            points = [Point(r["labels"], seconds=0.0, score=r["auc"], kl=None) for r in rounds]
            result[arm].append(points)
    return result


def table(arms: dict[str, list[list[Point]]], saved: Efficiency) -> str:
    """The mean AUC of both arms after each round, and the rows that uncertainty needs."""
    seeds = len(arms["random"])
    lines = [f"| judged rows | {' | '.join(ARMS)} |", "|---|---|---|"]
    for number, point in enumerate(arms["random"][0]):
        means = []
        for arm in ARMS:
            scores = [points[number].score for points in arms[arm]]
            means.append(f"{sum(scores) / seeds:.4f}")
        lines.append(f"| {point.episodes:.0f} | {' | '.join(means)} |")
    last = arms["random"][0][-1].episodes
    when = "does not reach it"
    if saved.episodes is not None:
        low, high = (describe(bound) for bound in (saved.low, saved.high))
        when = (
            f"reaches it with {saved.episodes:.0f} rows, {saved.episodes / last:.0%} of them"
            f" (95% interval over seeds {low} to {high})"
        )
    lines += ["", f"Random's mean AUC with {last:.0f} rows, {seeds} seeds: uncertainty {when}."]
    return "\n".join(lines) + "\n"


def describe(rows: float | None) -> str:
    return "not reached" if rows is None else f"{rows:.0f}"


def active(settings: Settings) -> None:
    """Run both arms with all seeds, write active.json and active.md, and print the table."""
    base = Path(settings.base_dir)
    needed = (base / "base_model" / "model.safetensors", base / "data" / "train_feedback.json")
    if not all(path.exists() for path in needed):
        raise UserError(
            f"{base} has no feedback or no base model: run `make demo` first, or set base_dir=..."
            " to its output folder"
        )
    out = settings.folder
    seeds = settings.seed_list
    stages = [arm_stage(settings, arm, seed) for seed in seeds for arm in ARMS]
    Pipeline(stages, ROOT, out, {"OMP_NUM_THREADS": "1"}, settings.lane_count).run()
    arms = curves(out, seeds)
    saved = efficiency(arms["uncertainty"], arms["random"], higher_is_better=True)
    write_json(out / "active.json", {"seeds": seeds, "reached": vars(saved)})
    write_text(out / "active.md", table(arms, saved))
    print("\n" + table(arms, saved))


if __name__ == "__main__":
    stop_with_signals()
    run_main(lambda: active(settings_from(Settings)))

"""Does active selection save labels? Uncertainty against random, on the mini world of `make demo`.

    python -m tasks.qa_feedback.active [seeds=0,1,2,3,4] [base_dir=outputs/qa_feedback/mini] \\
        [policy=outputs/qa_feedback/mini/fine_grained/best]

The policy answers the questions of the demo. With every seed, the factuality model (R2) is trained
on judged answers that were chosen at random, and on answers that `fgrlhf feedback select` preferred
(active_arm.py). The result is the number of rows with which uncertainty first reaches random's AUC
after its last round. Run it again to continue or to add seeds.

By default the answers are those of the policy that was trained with fine-grained rewards. The
question which answers to judge next arises in a second round, when errors have become rare.
"""

import sys
from pathlib import Path

from pydantic import Field, PositiveInt

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath
from fgrlhf.pipeline.efficiency import Efficiency, efficiency
from fgrlhf.pipeline.experiment_settings import ExperimentSettings
from fgrlhf.pipeline.experiments import input_files, program
from fgrlhf.pipeline.scores import Point
from fgrlhf.pipeline.stages import Pipeline, Stage, stop_with_signals
from tasks.qa_feedback.demo import MINI, SAMPLES
from tasks.scripts import ROOT

ARMS = ("random", "uncertainty")
ARM_MODULE = "tasks.qa_feedback.active_arm"
ROWS_MODULE = "tasks.qa_feedback.second_round_rows"
FEEDBACK = "feedback"  # the stage that judges all answers, and the folder of its rows
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
    policy: FilePath | None = Field(
        default=None,
        description="folder of the policy whose answers are judged; null: base_dir's"
        " fine_grained/best",
    )
    output_dir: FilePath = Field(default="outputs/active", description="folder of the results")
    perturbed: float = Field(
        default=0, ge=0, le=1, description="share of answers perturbed before they are judged"
    )
    start: PositiveInt = Field(default=24, description="rows judged in the first round")
    step: PositiveInt = Field(default=24, description="rows judged in every later round")
    rounds: PositiveInt = Field(default=5, description="rounds in all")

    @property
    def base(self) -> Path:
        return Path(self.base_dir).absolute()

    @property
    def policy_folder(self) -> Path:
        return Path(self.policy or self.base / "fine_grained" / "best").absolute()


def answers_stage(settings: Settings, split: str) -> Stage:
    """Four answers of the policy to each question of a split."""
    command, modules = program(
        "qa_feedback",
        "generate",
        f"policy={settings.policy_folder}",
        f"data_dir={settings.base / 'data'}",
        f"output_dir={settings.folder}",
        "name=answers",
        f"split={split}",
        f"num_samples={SAMPLES}",
        f"max_examples={MINI.feedback_questions}",
        "max_input_len=512",
        f"max_generated_len={MINI.max_generated_len}",
    )
    name = f"generated/answers-{split}"
    reads = (str(settings.base / "data" / f"{split}.json"), *input_files(settings.policy_folder))
    return Stage(name, command, outputs=(name,), reads=reads, modules=modules)


def feedback_stage(settings: Settings) -> Stage:
    """The simulated annotator judges all answers. An arm then sees those that it chooses."""
    data = settings.base / "data"
    answers = {split: f"generated/answers-{split}" for split in ("train", "dev")}
    samples = {split: settings.folder / name / "samples.jsonl" for split, name in answers.items()}
    command = (
        *(sys.executable, "-m", ROWS_MODULE),
        *(f"questions={data / 'train.json'}", f"samples={samples['train']}"),
        *(f"dev_questions={data / 'dev.json'}", f"dev_samples={samples['dev']}"),
        f"output_dir={settings.folder / FEEDBACK}",
        *(f"perturbed={settings.perturbed}", "seed=0"),
    )
    reads = (
        str(data / "train.json"),
        str(data / "dev.json"),
        "tasks/qa_feedback/interface_html/schema.js",
    )
    modules = (ROWS_MODULE, "tasks.qa_feedback.feedback_format")
    needs = tuple(answers.values())
    return Stage(FEEDBACK, command, needs=needs, outputs=(FEEDBACK,), reads=reads, modules=modules)


def arm_stage(settings: Settings, by: str, seed: int) -> Stage:
    name = f"seed-{seed}/{by}"
    command = (
        *(sys.executable, "-m", ARM_MODULE, f"by={by}", f"seed={seed}"),
        f"data_dir={settings.folder / FEEDBACK}",
        f"base_model={settings.base / 'base_model'}",
        f"output_dir={settings.folder / name}",
        *(f"start={settings.start}", f"step={settings.step}", f"rounds={settings.rounds}"),
    )
    modules = (ARM_MODULE, *TRAINING_MODULES)
    reads = files_of_arm(settings.base)
    return Stage(name, command, needs=(FEEDBACK,), outputs=(name,), reads=reads, modules=modules)


def files_of_arm(base: Path) -> tuple[str, ...]:
    """What an arm reads that trains the factuality model, except the feedback.

    Args:
      base: the output folder of `make demo`.
    """
    return (
        "tasks/qa_feedback/reward_modeling/*fact_rm*",
        "tasks/qa_feedback/interface_html/schema.js",
        "scripts/env.sh",
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
    base = settings.base
    needed = (base / "base_model" / "model.safetensors", base / "data" / "train.json")
    if not all(path.exists() for path in needed):
        raise UserError(
            f"{base} has no questions or no base model: run `make demo` first, or set base_dir=..."
            " to its output folder"
        )
    if not (settings.policy_folder / "config.json").exists():
        raise UserError(
            f"{settings.policy_folder} is not the folder of a policy: run `make demo` first, or set"
            " policy=..."
        )
    out = settings.folder
    seeds = settings.seed_list
    stages = [answers_stage(settings, split) for split in ("train", "dev")]
    stages.append(feedback_stage(settings))
    stages += [arm_stage(settings, arm, seed) for seed in seeds for arm in ARMS]
    Pipeline(stages, ROOT, out, {"OMP_NUM_THREADS": "1"}, settings.lane_count).run()
    arms = curves(out, seeds)
    saved = efficiency(arms["uncertainty"], arms["random"], higher_is_better=True)
    write_json(out / "active.json", {"seeds": seeds, "reached": vars(saved)})
    write_text(out / "active.md", table(arms, saved))
    print("\n" + table(arms, saved))


if __name__ == "__main__":
    stop_with_signals()
    run_main(lambda: active(settings_from(Settings)))

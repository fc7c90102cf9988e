"""Does active selection save labels? Uncertainty against random, on the mini world of `make demo`.

    python -m tasks.experiments active [seeds=0,1,2,3,4] [base_dir=outputs/qa_feedback/mini] \\
        [policy=outputs/qa_feedback/mini/fine_grained/best]

The policy answers the questions of the demo. With every seed, the factuality model (R2) is trained
on judged answers that were chosen at random, and on answers that `fgrlhf feedback select` preferred
(active_arm.py). The result is the number of rows with which uncertainty first reaches random's AUC
after its last round.

By default the answers are those of the policy that was trained with fine-grained rewards. The
question which answers to judge next arises in a second round, when errors have become rare.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import FilePath
from fgrlhf.pipeline.efficiency import efficiency
from fgrlhf.pipeline.experiments import input_files, program
from fgrlhf.pipeline.scores import Point
from fgrlhf.pipeline.stages import Stage
from fgrlhf.pipeline.study import Plan, Study, markdown
from tasks.experiments import qa
from tasks.experiments.factuality import arm_stages, results_of
from tasks.experiments.stages import keys

ARMS = ("random", "uncertainty")
ARM_MODULE = "tasks.experiments.active_arm"
FEEDBACK = "feedback"  # the stage that judges all answers, and the folder of its rows


class ActiveSettings(qa.BaseSettings):
    """The experiment."""

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
    def policy_folder(self) -> Path:
        return Path(self.policy or self.base / "fine_grained" / "best").absolute()


def answers_stage(settings: ActiveSettings, split: str) -> Stage:
    """Four answers of the policy to each question of a split."""
    data = settings.base / "data"
    command, modules = program(
        qa.TASK,
        "generate",
        *keys(policy=settings.policy_folder, data_dir=data, output_dir=settings.folder),
        *keys(name="answers", split=split, num_samples=qa.SAMPLES),
        *keys(max_examples=qa.FEEDBACK_QUESTIONS, max_input_len=512),
        *keys(max_generated_len=qa.MAX_GENERATED_LEN),
    )
    name = f"generated/answers-{split}"
    reads = (str(data / f"{split}.json"), *input_files(settings.policy_folder))
    return Stage(name, command, outputs=(name,), reads=reads, modules=modules)


def feedback_stage(settings: ActiveSettings) -> Stage:
    """The simulated annotator judges all answers. An arm then sees those that it chooses."""
    files = {}
    for split in ("train", "dev"):
        samples = settings.folder / f"generated/answers-{split}/samples.jsonl"
        files[split] = (str(settings.base / "data" / f"{split}.json"), samples)
    return qa.rows_stage(
        FEEDBACK,
        settings.folder,
        [files["train"]],
        files["dev"],
        perturbed=settings.perturbed,
        seed=0,
        needs=("generated/answers-train", "generated/answers-dev"),
        reads=tuple(questions for questions, _ in files.values()),
    )


def plan(settings: ActiveSettings) -> Plan:
    experiment = settings.experiment("base_model/model.safetensors", "data/train.json")
    if not (settings.policy_folder / "config.json").exists():
        raise UserError(
            f"{settings.policy_folder} is not the folder of a policy: run `make demo` first, or set"
            " policy=..."
        )
    stages = [answers_stage(settings, split) for split in ("train", "dev")]
    stages.append(feedback_stage(settings))
    rounds = keys(start=settings.start, step=settings.step, rounds=settings.rounds)
    data = settings.folder / FEEDBACK
    stages += arm_stages(settings, ARM_MODULE, "by", ARMS, data, *rounds, needs=(FEEDBACK,))
    return Plan(experiment, stages, settings.lane_count)


Rounds = Sequence[Mapping[str, float]]  # the rows that were judged so far, and the AUC


def results(arms: Mapping[str, Sequence[Rounds]], seeds: Sequence[int]) -> dict[str, Any]:
    """The rounds of both arms, and the rows with which uncertainty reaches random's last AUC.

    Args:
      arms: arm -> its rounds with each seed.
    """
    curves = {}
    for arm, of_arm in arms.items():
        curves[arm] = [
            [Point(r["labels"], seconds=0.0, score=r["auc"], kl=None) for r in rounds]
            for rounds in of_arm
        ]
    saved = efficiency(curves["uncertainty"], curves["random"], higher_is_better=True)
    return {"seeds": seeds, "reached": vars(saved), "arms": arms}


def table(result: Mapping[str, Any]) -> str:
    """The mean AUC of both arms after each round, and the rows that uncertainty needs."""
    arms, reached = result["arms"], result["reached"]
    rows = []
    for number, first in enumerate(arms["random"][0]):
        row = [f"{first['labels']:.0f}"]
        for arm in ARMS:
            areas = [rounds[number]["auc"] for rounds in arms[arm]]
            row.append(f"{sum(areas) / len(areas):.4f}")
        rows.append(row)
    last = arms["random"][0][-1]["labels"]
    when = "does not reach it"
    if reached["episodes"] is not None:
        low, high = (describe(reached[bound]) for bound in ("low", "high"))
        when = (
            f"reaches it with {reached['episodes']:.0f} rows, {reached['episodes'] / last:.0%} of"
            f" them (95% interval over seeds {low} to {high})"
        )
    conclusion = (
        f"Random's mean AUC with {last:.0f} rows, {len(result['seeds'])} seeds: uncertainty {when}."
    )
    return "\n".join([markdown(["judged rows", *ARMS], rows), conclusion]) + "\n"


def describe(rows: float | None) -> str:
    return "not reached" if rows is None else f"{rows:.0f}"


STUDY = Study(
    ActiveSettings,
    plan,
    lambda settings, plan: results(results_of(settings, ARMS), settings.seed_list),
    table,
    "active",
)

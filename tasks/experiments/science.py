"""`make science`: several seeds of reward models and PPO on the mini world, with paired intervals.

    python -m tasks.experiments science [seeds=0,1,2,3,4] [base_dir=outputs/qa_feedback/mini] \\
        [output_dir=outputs/science]

It answers two questions. With the same number of episodes, does fine-grained feedback give a higher
true score than holistic feedback? Does the same true reward work better after every segment than as
one scalar at the end? Data, SFT policy and feedback are those of `make demo`; every seed trains its
own reward models and policies.
"""

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from fgrlhf.configs.strict import FilePath
from fgrlhf.pipeline.experiments import Experiment
from fgrlhf.pipeline.stages import Stage
from fgrlhf.pipeline.study import Plan, Study
from tasks.experiments import qa
from tasks.experiments.policies import (
    policies_table,
    results,
    rl_run,
    seed_reward_model,
    sft_evaluation,
)

# on dev, lambda 1 is better for a single scalar, 0.95 for dense rewards
END = ("reward.gold.place=end", "algorithm.gae.lam=1.0")


@dataclass(frozen=True)
class Arm:
    """An RL run of every seed.

    Args:
      models: name in the config -> the reward model.
    """

    config: str
    overrides: tuple[str, ...] = ()
    models: dict[str, str] = field(default_factory=dict)


FINE_GRAINED_MODELS = {
    "relevance_model": "rel_rm",
    "factuality_model": "fact_rm",
    "completeness_model": "comp_rm",
}
ARMS = {
    "fine_grained": Arm("mini_fine_grained_config.yml", models=FINE_GRAINED_MODELS),
    "holistic": Arm("mini_baseline_config.yml", models={"baseline_model": "baseline_rm"}),
    "true_dense": Arm("mini_oracle_config.yml"),
    "true_at_end": Arm("mini_oracle_config.yml", END),
}
COMPARED = (
    ("fine_grained", "sft"),
    ("holistic", "sft"),
    ("fine_grained", "holistic"),
    ("true_dense", "true_at_end"),
)


class ScienceSettings(qa.BaseSettings):
    """`make science`."""

    output_dir: FilePath = Field(default="outputs/science", description="folder of the results")
    lanes: int | None = Field(default=2, ge=1, le=1024, description="stages at the same time")


def seed_stages(experiment: Experiment, base: Path, seed: int) -> list[Stage]:
    """Four reward models, four PPO runs and their evaluations on the test questions."""
    folder = f"seed-{seed}"
    out = experiment.out / folder
    stages = []
    for name in qa.REWARD_MODELS:
        stages.append(seed_reward_model(experiment, f"{folder}/{name}", name, seed))
    for name, arm in ARMS.items():
        run = rl_run(
            experiment,
            f"{folder}/{name}",
            f"{qa.FOLDER}/training/{arm.config}",
            f"train.seed={seed}",
            f"logging.save_dir={out / name}",
            f"logging.run_name={name}",
            *arm.overrides,
            *(f"reward.{key}.ckpt={out / model}" for key, model in arm.models.items()),
            needs=tuple(f"{folder}/{model}" for model in arm.models.values()),
        )
        stages.append(run)
    for name in ARMS:
        needs = (f"{folder}/{name}",)
        policy = out / name / "best"
        stages.append(experiment.evaluation_stage(qa.plan_of(base), name, policy, needs, folder))
    return stages


def plan(settings: ScienceSettings) -> Plan:
    base = settings.base
    experiment = settings.experiment("sft/model.safetensors", "derived/COMP_sequence")
    stages = [sft_evaluation(experiment, base)]
    for seed in settings.seed_list:
        stages += seed_stages(experiment, base, seed)
    return Plan(experiment, stages, settings.lane_count)


STUDY = Study(
    ScienceSettings,
    plan,
    results=lambda settings, plan: results(settings.folder, settings.seed_list, ARMS, COMPARED),
    table=policies_table,
    name="science",
)

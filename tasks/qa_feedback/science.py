"""`make science`: several seeds of reward models and PPO on the mini world, with paired intervals.

    python -m tasks.qa_feedback.science [seeds=0,1,2,3,4] [base_dir=outputs/qa_feedback/mini] \\
        [output_dir=outputs/science]

It answers two questions. With the same number of episodes, does fine-grained feedback give a higher
true score than holistic feedback? Does the same true reward work better after every segment than as
one scalar at the end? Data, SFT policy and feedback are those of `make demo`; every seed trains its
own reward models and policies. Run it again to continue or to add seeds.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath
from fgrlhf.pipeline.experiment_settings import ExperimentSettings
from fgrlhf.pipeline.experiments import EvaluationPlan, Experiment, program
from fgrlhf.pipeline.scores import evaluation_rows, paired_scores
from fgrlhf.pipeline.stages import Stage, stop_with_signals
from fgrlhf.report.spread import ONE_RUN
from fgrlhf.stats import seed_interval
from tasks.qa_feedback.compare import experiment_of
from tasks.qa_feedback.demo import REWARD_MODELING, SAMPLES, TASK_MODULE, TRAINING
from tasks.scripts import script_stage

REWARD_MODELS = {
    "rel_rm": "run_fg_rm",
    "fact_rm": "run_fg_rm",
    "comp_rm": "run_pref_rm",
    "baseline_rm": "run_pref_rm",
}
# on dev, lambda 1 is better for a single scalar, 0.95 for dense rewards
END = ("reward.gold.place=end", "algorithm.lam=1.0")
# run -> (its config, overrides, the reward models it needs under their names in the config)
RUNS: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "fine_grained": (
        "mini_fine_grained_config.yml",
        (),
        {
            "relevance_model": "rel_rm",
            "factuality_model": "fact_rm",
            "completeness_model": "comp_rm",
        },
    ),
    "holistic": ("mini_baseline_config.yml", (), {"baseline_model": "baseline_rm"}),
    "true_dense": ("mini_oracle_config.yml", (), {}),
    "true_at_end": ("mini_oracle_config.yml", END, {}),
}
COMPARED = (
    ("fine_grained", "sft"),
    ("holistic", "sft"),
    ("fine_grained", "holistic"),
    ("true_dense", "true_at_end"),
)
METRICS = ("gold", "relevance", "factuality", "completeness")


class Settings(ExperimentSettings):
    """`make science`."""

    seeds: str = Field(default="0,1,2,3,4", description="every run is repeated with each seed")
    base_dir: FilePath = Field(
        default="outputs/qa_feedback/mini", description="the output folder of `make demo`"
    )
    output_dir: FilePath = Field(default="outputs/science", description="folder of the results")
    lanes: int | None = Field(default=2, ge=1, le=1024, description="stages at the same time")


def plan_of(base: Path) -> EvaluationPlan:
    """Sampled answers to the test questions, judged only by the oracle."""
    config = f"{TRAINING}/mini_fine_grained_config.yml"
    return EvaluationPlan(config, str(base / "data"), num_samples=SAMPLES, reward=False)


def seed_stages(experiment: Experiment, plan: EvaluationPlan, seed: int) -> list[Stage]:
    """Four reward models, four PPO runs and their evaluations on the test questions."""
    folder = f"seed-{seed}"
    out = experiment.out / folder
    stages = []
    for name in REWARD_MODELS:
        stages.append(reward_model_stage(experiment, name, f"{folder}/{name}", seed))
    stages += [run_stage(experiment, name, seed) for name in RUNS]
    for name in RUNS:
        policy = out / name / "best"
        stages.append(
            experiment.evaluation_stage(plan, name, policy, (f"{folder}/{name}",), folder)
        )
    return stages


def reward_model_stage(
    experiment: Experiment,
    name: str,
    folder: str,
    seed: int,
    *overrides: str,
    needs: tuple[str, ...] = (),
) -> Stage:
    """A stage that trains the reward model `name` and writes <out>/<folder>."""
    config = f"{REWARD_MODELING}/mini_{name}_config.yml"
    return script_stage(
        folder,
        f"{REWARD_MODELING}/train_{name}.sh",
        f"train.seed={seed}",
        f"logging.save_dir={experiment.out / folder}",
        *overrides,
        modules=(f"reward_modeling.{REWARD_MODELS[name]}", f"{TASK_MODULE}.task"),
        needs=needs,
        outputs=(folder,),
        reads=(config, *experiment.named_files(config)),
        variables=experiment.variables(config),
    )


def run_stage(experiment: Experiment, name: str, seed: int) -> Stage:
    folder = f"seed-{seed}"
    file, overrides, models = RUNS[name]
    config = f"{TRAINING}/{file}"
    checkpoints = [
        f"reward.{aspect}.ckpt={experiment.out / folder / model}"
        for aspect, model in models.items()
    ]
    command, modules = program(
        experiment.task,
        "rl",
        config,
        f"train.seed={seed}",
        f"logging.save_dir={experiment.out / folder / name}",
        f"logging.run_name={name}",
        *overrides,
        *checkpoints,
    )
    needs = tuple(f"{folder}/{model}" for model in models.values())
    return Stage(
        f"{folder}/{name}",
        command,
        needs=needs,
        outputs=(f"{folder}/{name}",),
        reads=(config, *experiment.named_files(config)),
        modules=modules,
        variables=experiment.variables(config),
    )


def results(
    out: Path, seeds: list[int], runs: Iterable[str], compared: Iterable[tuple[str, str]]
) -> dict:
    """Means of every run and the paired differences, over seeds and test questions.

    Args:
      out: the experiment's folder.
      seeds: of the runs.
      runs: names of the runs whose evaluations are in `out`/seed-<seed>, beside SFT's in `out`/sft.
      compared: pairs of them (or `sft`): the second is subtracted from the first.
    """
    rows = {"sft": [evaluation_rows(out / "sft", "sft", "test")] * len(seeds)}
    for name in runs:
        rows[name] = [evaluation_rows(out / f"seed-{seed}", name, "test") for seed in seeds]
    scores = {metric: paired_scores(rows, f"oracle/{metric}") for metric in METRICS}

    def differences(a: str, b: str, metric: str) -> list[np.ndarray]:
        return [x - y for x, y in zip(scores[metric][a], scores[metric][b])]

    means = {}
    for name in rows:
        means[name] = {metric: seed_interval(scores[metric][name]).as_dict() for metric in METRICS}
    paired = {}
    by_seed = {}
    for a, b in compared:
        paired[f"{a}_vs_{b}"] = {
            metric: seed_interval(differences(a, b, metric)).as_dict() for metric in METRICS
        }
        gold = differences(a, b, "gold")
        by_seed[f"{a}_vs_{b}"] = {
            str(seed): float(values.mean()) for seed, values in zip(seeds, gold)
        }
    return {"seeds": seeds, "means": means, "differences": paired, "gold_by_seed": by_seed}


def table(result: dict) -> str:
    """The results in Markdown."""
    lines = [
        f"{len(result['seeds'])} seeds, test questions, sampled answers.",
        "",
        f"| policy | {' | '.join(METRICS)} |",
        "|---" * 5 + "|",
    ]
    for name, row in result["means"].items():
        cells = [f"{row[metric]['mean']:.3f}" for metric in METRICS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        f"| paired difference | {' | '.join(METRICS)} | gold, by seed |",
        "|---" * 6 + "|",
    ]
    for name, row in result["differences"].items():
        cells = [_difference(row[metric]) for metric in METRICS]
        by_seed = " ".join(f"{value:+.3f}" for value in result["gold_by_seed"][name].values())
        lines.append(f"| {name.replace('_vs_', ' - ')} | {' | '.join(cells)} | {by_seed} |")
    if len(result["seeds"]) == 1:
        lines += ["", ONE_RUN]
    return "\n".join(lines) + "\n"


def _difference(interval: Mapping[str, float | None]) -> str:
    if interval["low"] is None:  # few questions, or the same difference for all
        return f"{interval['mean']:+.3f} (no interval)"
    return f"{interval['mean']:+.3f} [{interval['low']:+.3f}, {interval['high']:+.3f}]"


def science(settings: Settings) -> None:
    """Run all stages, write science.json and science.md, and print the table."""
    out = settings.folder
    base = Path(settings.base_dir).absolute()
    needed = (base / "sft" / "model.safetensors", base / "data" / "COMP_sequence")
    if not all(path.exists() for path in needed):
        raise UserError(
            f"{base} has no SFT policy or reward-model files: run `make demo` first, or set"
            " base_dir=... to its output folder"
        )
    experiment = experiment_of(base, out)
    plan = plan_of(base)
    stages = [experiment.evaluation_stage(plan, "sft", base / "sft", folder="sft")]
    for seed in settings.seed_list:
        stages += seed_stages(experiment, plan, seed)
    experiment.run(stages, settings.lane_count)
    result = results(out, settings.seed_list, RUNS, COMPARED)
    write_json(out / "science.json", result)
    write_text(out / "science.md", table(result))
    print("\n" + table(result))


if __name__ == "__main__":
    stop_with_signals()
    run_main(lambda: science(settings_from(Settings)))

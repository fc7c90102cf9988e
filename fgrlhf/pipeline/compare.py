"""Compare configs and algorithms over several seeds, and test which differences are significant.

    fgrlhf compare [TASK] CONFIG ... output_dir=DIR [algorithms=ppo,grpo] [seeds=0,1,2]

Every config is trained with every seed, and an RL config with every algorithm. The best policies on
dev and the initial policy are evaluated on the test prompts. Writes <output_dir>/summary.json and
index.html, and prints the table. Run it again to continue, or to add runs and seeds.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.base.files import write_json, write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import describe, settings_from
from fgrlhf.configs.names import current_key
from fgrlhf.configs.schema import types_at
from fgrlhf.configs.strict import Count, FilePath
from fgrlhf.configs.yaml_files import read_config
from fgrlhf.load import task_or_none
from fgrlhf.metrics.clusters import CLUSTER_HELP
from fgrlhf.metrics.config import MetricConfig
from fgrlhf.models.provenance import read_source
from fgrlhf.pipeline.comparison import RunComparison, compare_runs
from fgrlhf.pipeline.comparison_page import page, table
from fgrlhf.pipeline.experiment_settings import SubmittedSettings, check_settings, split_arguments
from fgrlhf.pipeline.experiments import (
    EvaluationPlan,
    Experiment,
    Run,
    check_overrides,
    parse_config,
)
from fgrlhf.pipeline.preflight import check_comparison
from fgrlhf.pipeline.scores import evaluation_rows, paired_scores
from fgrlhf.pipeline.stages import Stage, stop_with_signals
from fgrlhf.report.display import Display
from fgrlhf.task_config import rl_config

USAGE = """usage: fgrlhf compare [TASK] CONFIG ... output_dir=DIR [key=value ...]
  CONFIG: YAML of an RL run, or dpo:FILE, sft:FILE
  keys with a dot are overrides for every config that has them: train.total_episodes=2560"""

TRAINING_ONLY = ("train.", "algorithm.", "logging.")  # sections that an evaluation does not read

# overrides that a comparison with `algorithms` sets itself -> what to do instead
SET_BY_ALGORITHMS = {
    "algorithm": "algorithms=... sets it for every run, so override its keys one by one",
    "algorithm.name": "every run is trained with one of the algorithms in algorithms=...",
}


class CompareSettings(SubmittedSettings):
    """Settings of a comparison."""

    algorithms: str | None = Field(
        default=None, description="for every RL config, separated by commas; null: the config's own"
    )
    settings: FilePath | None = Field(
        default=None, description="YAML {run: {key: value}}: overrides for individual runs"
    )
    metric: str = Field(default="reward", description="the compared column of the evaluation")
    evaluation: FilePath | None = Field(
        default=None,
        description="YAML of an RL run with rewards and sampling; null: the first RL config",
    )
    reference: FilePath | None = Field(
        default=None, description="policy to compare with; null: the first config's initial policy"
    )
    reward: bool = Field(default=True, description="false: evaluate without reward models")
    data_dir: FilePath | None = Field(
        default=None, description="folder of the prompts; null: the task generates them"
    )
    split: str = Field(
        default="test", description="which prompts: <data_dir>/<split>.json, or .jsonl"
    )
    num_samples: Count = Field(default=1, description="responses per prompt")
    cluster: str | None = Field(default=None, description=CLUSTER_HELP)


def comparison_stages(
    experiment: Experiment,
    runs: Sequence[Run],
    seeds: Sequence[int],
    reference: str,
    plan: EvaluationPlan,
) -> list[Stage]:
    """The evaluation of the reference policy, then each run with each seed and its evaluation.

    Args:
      reference: folder or hub name of the policy to compare with, which need not be the one that
        the runs start from.

    Raises:
      UserError: a run has the name of the reference policy.
    """
    name = reference_name(reference)
    if name in [run.name for run in runs]:
        raise UserError(f"the reference policy and a run are both named {name}: rename the run")
    stages = [experiment.evaluation_stage(plan, name, reference)]
    for seed in seeds:
        for run in runs:
            trained = experiment.training_stage(run, seed)
            policy = run.policy(experiment.out, seed)
            stages.append(trained)
            stages.append(
                experiment.evaluation_stage(plan, run.evaluation(seed), policy, (trained.name,))
            )
    return stages


def conclude(
    experiment: Experiment,
    runs: Sequence[Run],
    seeds: Sequence[int],
    reference: str,
    split: str,
    metric: str,
    display: Display,
    metrics: Sequence[MetricConfig] = (),
) -> RunComparison:
    """Compare the finished runs, and write summary.json and index.html.

    Args:
      reference: as in `comparison_stages`.
      metrics: the `evaluation_metrics` of the first run.
    """
    name = reference_name(reference)
    result = compare_runs(experiment.out, name, runs, seeds, metric, split, metrics)
    write_json(experiment.out / "summary.json", result.as_dict())
    html = page(result, display, read_source(reference), experiment.origin)
    write_text(experiment.out / "index.html", html)
    return result


def reference_name(policy: str) -> str:
    """`outputs/numbers/mini/sft` -> `sft`, `outputs/numbers/mini/ppo/best` -> `ppo`."""
    parts = [part for part in Path(policy).parts if part not in ("best", "final")]
    return parts[-1] if parts else policy


def runs_of(
    experiment: Experiment,
    configs: Sequence[str],
    overrides: Sequence[str],
    settings: CompareSettings,
) -> list[Run]:
    """A run for every config, and for every algorithm of an RL config.

    A run is named after its algorithm if there is a single RL config, else after the config
    (`_names_of_configs`) and the algorithm. A program that does not have the key of an override is
    trained without it, if another one has it.

    Raises:
      UserError: a config cannot be read, an algorithm is named twice, two runs have the same name,
        `settings` names something else than a run, or an override is of a key that the comparison
        sets.
    """
    algorithms = []
    if settings.algorithms:
        algorithms = [name.strip() for name in settings.algorithms.split(",")]
    if len(set(algorithms)) < len(algorithms):
        raise UserError(f"algorithms={settings.algorithms}: name each algorithm once")
    parsed = [parse_config(config) for config in configs]
    programs = [program for program, _ in parsed]
    has_one_rl_config = programs.count("rl") == 1
    accepted = _overrides_by_program(experiment, programs, overrides)
    runs = []
    groups = _names_of_configs(experiment, parsed, accepted)
    for (program, path), group in zip(parsed, groups):
        given = accepted[program]
        if program != "rl" or not algorithms:
            runs.append(Run(group, program, path, given, group, algorithm=program))
            continue
        for algorithm in algorithms:
            name = algorithm if has_one_rl_config else f"{group}-{algorithm}"
            with_algorithm = (f"algorithm.name={algorithm}", *given)
            runs.append(Run(name, program, path, with_algorithm, group, algorithm))
    _check_names(runs, settings.settings)
    runs = [with_settings(run, settings.settings) for run in runs]
    for run in runs:
        if run.program == "rl" and algorithms:
            _, *given = run.overrides  # the first one names the run's algorithm
            check_overrides(given, SET_BY_ALGORITHMS)
        else:
            check_overrides(run.overrides)
    return runs


def _names_of_configs(
    experiment: Experiment,
    parsed: Sequence[tuple[str, str]],
    overrides: Mapping[str, Sequence[str]],
) -> list[str]:
    """The `logging.run_name` of each config; the file's name if it has none, or that of another.

    Configs with one `base:` have its `run_name`.
    """
    stems = [Path(path).stem for _, path in parsed]
    names = [
        experiment.config_value(path, overrides[program], "logging.run_name") or stem
        for (program, path), stem in zip(parsed, stems)
    ]
    return [stem if names.count(name) > 1 else name for name, stem in zip(names, stems)]


def _overrides_by_program(
    experiment: Experiment, programs: Sequence[str], overrides: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """The overrides for each program: those whose key it has, or that none has (a mistake)."""
    classes = {program: experiment.config_class(program) for program in programs}
    accepted: dict[str, list[str]] = {program: [] for program in classes}
    for override in overrides:
        path = current_key(override.partition("=")[0].strip()).split(".")
        known = [program for program, config in classes.items() if types_at(config, path)]
        for program in known or classes:
            accepted[program].append(override)
        without = [program for program in classes if known and program not in known]
        if without:
            print(
                f"note: {' and '.join(without)} {'has' if len(without) == 1 else 'have'} no key"
                f" {'.'.join(path)}: {override} is for {' and '.join(known)}",
                flush=True,
            )
    return {program: tuple(given) for program, given in accepted.items()}


def _check_names(runs: Sequence[Run], settings_file: str | None) -> None:
    """Raise `UserError` if two runs have one name, or the file has settings of an unknown run."""
    names = [run.name for run in runs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UserError(
            f"two runs have the same name: {', '.join(repeated)}. Give the configs different"
            " logging.run_name, or files of different names"
        )
    if settings_file is None:
        return
    for name in read_config(settings_file):
        if name not in names:
            raise UserError(
                f"{settings_file}: there is no run `{shorten(name)}`; {suggestion(name, names)}"
            )


def with_settings(run: Run, file: str | None) -> Run:
    """The run with its overrides in a YAML file {run: {key: value}}.

    A section, as in {run: {train: {lr: 1e-5}}}, is merged into the config's: it overrides the keys
    that it has.
    """
    if file is None:
        return run
    settings = read_config(file).get(run.name) or {}
    if not isinstance(settings, dict):
        raise UserError(f"{file}: `{run.name}` must be a mapping of keys to values")
    return replace(run, overrides=(*run.overrides, *_overrides_of(settings)))


def _overrides_of(settings: Mapping[str, Any], section: str = "") -> list[str]:
    """`key=value` for each key of a nested dict, with dotted keys."""
    overrides = []
    for key, value in settings.items():
        path = f"{section}{key}"
        if isinstance(value, Mapping):
            overrides += _overrides_of(value, f"{path}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            overrides.append(f"{path}={text}")
    return overrides


def _plan(configs: Sequence[str], settings: CompareSettings) -> EvaluationPlan:
    """How the policies are evaluated. Raises `UserError` if no config says so."""
    config = settings.evaluation
    if config is None:
        parsed = [parse_config(argument) for argument in configs]
        config = next((path for program, path in parsed if program == "rl"), None)
    if config is None:
        raise UserError(
            "no RL config is compared: give one with evaluation=FILE, which defines the sampling"
            " and the rewards of the evaluation"
        )
    return EvaluationPlan(
        config,
        settings.data_dir,
        settings.split,
        settings.num_samples,
        settings.reward,
        settings.cluster,
    )


def _print_unused_overrides(overrides: Sequence[str], plan: EvaluationPlan) -> None:
    """Print the overrides that the evaluation would use, but does not.

    One evaluation config measures all runs, and it need not have the keys of the trained configs,
    so the overrides stay out of it.
    """
    unused = [pair for pair in overrides if not pair.startswith(TRAINING_ONLY)]
    if unused:
        print(
            f"note: the evaluation uses {plan.config} without the overrides {' '.join(unused)}. If"
            " it needs them, write them into a copy of that file and give evaluation=COPY",
            flush=True,
        )


def _reference(experiment: Experiment, config: str, overrides: Sequence[str]) -> str:
    """The initial policy of a config. Raises `UserError` if it has none."""
    _, path = parse_config(config)
    policy = experiment.config_value(path, overrides, "model.ckpt")
    if policy is not None:
        return str(policy)
    raise UserError(f"{path} has no initial policy: give reference=FOLDER")


def main(argv: Sequence[str] | None = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print("\n".join([USAGE, "keys:", *describe(CompareSettings)]))
        return
    arguments = split_arguments(argv, USAGE)
    check_settings(CompareSettings, arguments, rl_config(task_or_none(arguments.task)))
    settings = settings_from(CompareSettings, arguments.settings)
    stop_with_signals()
    experiment = Experiment(arguments.task, settings.folder, submit=settings.submit)
    plan = _plan(arguments.configs, settings)
    runs = runs_of(experiment, arguments.configs, arguments.overrides, settings)
    seeds = settings.seed_list
    # a mistake in the last one is found before the first one is trained
    trained = [experiment.config_of(run, seeds[0]) for run in runs]
    _print_unused_overrides(arguments.overrides, plan)
    reference = settings.reference
    if reference is None:
        reference = _reference(experiment, arguments.configs[0], arguments.overrides)
    check_comparison(experiment, runs, trained, plan, reference, settings.metric)
    stages = comparison_stages(experiment, runs, seeds, reference, plan)
    experiment.announce(len(runs), seeds, settings.lane_count)
    reported: list[str] = []
    if settings.metric != "reward" or not plan.reward:
        # an unknown metric is an error before any training
        experiment.run(stages[:1], settings.lane_count)
        reported = [stages[0].name]
        rows = evaluation_rows(experiment.out, reference_name(reference), plan.split)
        paired_scores({reference_name(reference): [rows]}, settings.metric)
    experiment.run(stages, settings.lane_count, reported)
    display = task_or_none(arguments.task).display
    metrics = trained[0].evaluation_metrics
    result = conclude(
        experiment, runs, seeds, reference, plan.split, settings.metric, display, metrics
    )
    print(f"\n{table(result, display)}\npage: {experiment.out / 'index.html'}")


if __name__ == "__main__":
    run_main(main)

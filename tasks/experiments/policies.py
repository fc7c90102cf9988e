"""Arms that train policies with every seed: their stages, and paired differences of true scores."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fgrlhf.pipeline.experiments import Experiment, program
from fgrlhf.pipeline.scores import evaluation_rows, paired_scores
from fgrlhf.pipeline.stages import Stage
from fgrlhf.pipeline.study import markdown
from fgrlhf.report.spread import ONE_RUN
from fgrlhf.seed_stats import seed_interval
from tasks.experiments import qa

METRICS = ("gold", "relevance", "factuality", "completeness")


def sft_evaluation(experiment: Experiment, base: Path) -> Stage:
    """The SFT policy of the demo, which all arms are compared with."""
    return experiment.evaluation_stage(qa.plan_of(base), "sft", base / "sft", folder="sft")


def seed_reward_model(
    experiment: Experiment, name: str, model: str, seed: int, *overrides: str, **parts: Any
) -> Stage:
    """A stage that trains a reward model with this seed.

    Args:
      name: of the stage and of its folder.
      parts: further fields of `Stage`.
    """
    scripts = qa.QAScripts("mini")
    config = scripts.config(f"reward_modeling/{model}_config.yml")
    return scripts.reward_model(
        name,
        model,
        f"train.seed={seed}",
        f"logging.save_dir={experiment.out / name}",
        *overrides,
        output=name,
        reads=experiment.named_files(config),
        variables=experiment.variables(config),
        **parts,
    )


def rl_run(
    experiment: Experiment, name: str, config: str, *overrides: str, needs: tuple[str, ...]
) -> Stage:
    """A stage that trains a policy by RL; its name is also that of its folder."""
    command, modules = program(experiment.task, "rl", config, *overrides)
    return Stage(
        name,
        command,
        needs=needs,
        outputs=(name,),
        reads=(config, *experiment.named_files(config, overrides)),
        modules=modules,
        variables=experiment.variables(config),
    )


def results(
    out: Path, seeds: Sequence[int], runs: Iterable[str], compared: Iterable[tuple[str, str]]
) -> dict:
    """Means of every run and the paired differences, over seeds and test questions.

    Args:
      out: the experiment's folder.
      seeds: of the runs.
      runs: names of the runs whose evaluations are in `out`/seed-<seed>; SFT's is in `out`/sft.
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


def policies_table(result: Mapping[str, Any]) -> str:
    """The results in Markdown."""
    means = []
    for name, row in result["means"].items():
        means.append([name, *(f"{row[metric]['mean']:.3f}" for metric in METRICS)])
    paired = []
    for name, row in result["differences"].items():
        by_seed = " ".join(f"{value:+.3f}" for value in result["gold_by_seed"][name].values())
        cells = [_difference(row[metric]) for metric in METRICS]
        paired.append([name.replace("_vs_", " - "), *cells, by_seed])
    parts = [
        f"{len(result['seeds'])} seeds, test questions, sampled answers.\n",
        markdown(["policy", *METRICS], means),
        markdown(["paired difference", *METRICS, "gold, by seed"], paired),
    ]
    if len(result["seeds"]) == 1:
        parts.append(f"{ONE_RUN}\n")
    return "\n".join(parts)


def _difference(interval: Mapping[str, float | None]) -> str:
    if interval["low"] is None:  # few questions, or the same difference for all
        return f"{interval['mean']:+.3f} (no interval)"
    return f"{interval['mean']:+.3f} [{interval['low']:+.3f}, {interval['high']:+.3f}]"

"""Check everything that a comparison reads, before its first stage starts."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.configs.sections import files_of
from fgrlhf.configs.strict import load_config
from fgrlhf.configs.user_class import import_object
from fgrlhf.data.read import read_rows
from fgrlhf.load import prompts_file
from fgrlhf.metrics.config import ALWAYS_COMPUTED
from fgrlhf.pipeline.experiments import EvaluationPlan, Experiment, Run
from fgrlhf.rewards.kinds import Python
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.task import no_metrics
from fgrlhf.task_config import rl_config


def check_comparison(
    experiment: Experiment,
    runs: Sequence[Run],
    configs: Sequence[Any],
    plan: EvaluationPlan,
    reference: str,
    metric: str,
) -> None:
    """Raise `UserError` if a file, a model, a reward or the metric cannot be used.

    Args:
      configs: of the runs, in their order.
      reference: the policy to compare with.
      metric: the compared column.
    """
    task = experiment.loaded_task
    evaluation = load_config(rl_config(task), plan.config)
    task.prompts(prompts_file(plan.data_dir, plan.split), plan.split, key="data_dir")
    read: set[str | None] = set()
    for run, config in zip(runs, configs, strict=True):
        for key, file in _data_files(config):
            if file in read:
                continue
            read.add(file)
            if isinstance(config, RLConfig):
                task.prompts(file, key.removesuffix("_file"))
            elif file is not None:
                read_rows(file)
        for key, model in _models(config):
            _check_model(f"the run {run.name}: {key}", model)
    _check_model("reference", reference)
    if plan.reward:
        for key, model in _models(evaluation):
            _check_model(f"{plan.config}: {key}", model)
    _check_metric(metric, evaluation, plan.config, has_own=task.metrics is not no_metrics)


def _data_files(config: Any) -> Iterator[tuple[str, str | None]]:
    """Name of the key -> file, of the section `data`."""
    for key in ("train_file", "dev_file", "feedback_file"):
        if hasattr(config.data, key):
            file = getattr(config.data, key)
            for each in files_of(file) or [None]:
                yield key, each


def _models(config: Any) -> Iterator[tuple[str, str]]:
    """Key -> folder or hub name, of a run's models. Classes of users are imported."""
    yield "model.ckpt", config.model.ckpt
    if not isinstance(config, RLConfig):
        return
    critic = config.model.value_model.ckpt
    if config.needs_values and critic is not None:
        yield "model.value_model.ckpt", critic
    for name, reward in config.reward.items():
        if isinstance(reward, Python):
            import_object("reward", reward.of)
        for key, section in (("", reward), (".scorer", getattr(reward, "scorer", None))):
            folder = getattr(section, "ckpt", None)
            if isinstance(folder, str) and reward.weight:
                yield f"reward.{name}{key}.ckpt", folder


def _check_model(place: str, model: str) -> None:
    """Raise `UserError` if a path does not exist. A name of the hub may not be in the cache yet."""
    if os.path.exists(model):
        return
    first = Path(model).parts[0]
    is_path = model.count("/") != 1 or model.startswith((".", "~")) or os.path.isdir(first)
    if is_path and ("/" in model or model.startswith(".")):
        raise UserError(
            f"{place} is {shorten(model)}, and there is no such folder: run the stage that writes"
            " it first, or correct the path"
        )


def _check_metric(metric: str, evaluation: RLConfig, plan_config: str, has_own: bool) -> None:
    """Raise `UserError` if no evaluation has the column. A task's own metrics are not known yet."""
    columns = {*ALWAYS_COMPUTED, *(one.column for one in evaluation.evaluation_metrics)}
    if not has_own and metric.partition("/")[0] not in columns:
        raise UserError(
            f"metric={shorten(metric)}: evaluations do not compute it, unless it is in"
            f" `evaluation_metrics` of {plan_config}; {suggestion(metric, sorted(columns))}"
        )

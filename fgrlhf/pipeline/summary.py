"""Summarises a whole pipeline: writes `summary.json` and prints it as a table.

    fgrlhf summary TASK output_dir=outputs/small [split=test]

Reads an outputs folder: the evaluations of the policies (`eval/<policy>-<split>/rows.jsonl`), the
reward models' metrics on dev, seconds and memory of each stage.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import sha256, write_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import describe, settings_from
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.kernels.choice import processor_name
from fgrlhf.load import load_task
from fgrlhf.metrics.clusters import clusters_by_prompt
from fgrlhf.metrics.paired import paired_gain
from fgrlhf.metrics.rows import ROWS
from fgrlhf.metrics.summary import summarize
from fgrlhf.pipeline.scores import evaluation_rows
from fgrlhf.report.display import ASPECT_METRICS, TRUTH, Display
from fgrlhf.report.evaluations import in_order, split_of
from fgrlhf.report.records import (
    RewardModel,
    RewardModelMetrics,
    RunInfo,
    StageCost,
    read_record,
)
from fgrlhf.report.spread import ONE_RUN, known_spreads, spread_line
from fgrlhf.reward_models.spec import SPEC_FILE
from fgrlhf.runs.runlog import versions

USAGE = "usage: fgrlhf summary TASK output_dir=DIR [split=test]"
Rows = Sequence[Mapping[str, Any]]


class SummarySettings(StrictModel):
    """Settings of a summary."""

    output_dir: FilePath = Field(description="folder of the results")
    split: str = Field(
        default="test", description="which evaluations to read: eval/<policy>-<split>"
    )
    scale: str | None = Field(default=None, description="scale of the run, shown in the report")


# ---- policies ------------------------------------------------------------------------------------


def evaluated_policies(output: Path, split: str, display: Display) -> list[str]:
    """The policies with an evaluation on the split, in the order of a report.

    Raises:
      UserError: nothing was evaluated on the split.
    """
    ending = f"-{split}"
    evaluations = {}
    for path in output.glob(f"eval/*{ending}/{ROWS}"):
        # `rl-hard-test` may be the policy `rl` on the split `hard-test`
        if split_of(path.parent) == split:
            evaluations[path.parent.name.removesuffix(ending)] = path.parent
    if not evaluations:
        raise UserError(
            f"{output}/eval has no evaluation on {shorten(split)}: run `fgrlhf evaluate` on a"
            " policy first"
        )
    return in_order(evaluations, display)


def evaluation_digests(output: Path, split: str, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of the rows of each evaluation, by which a report notices an outdated summary."""
    return {name: sha256(output / "eval" / f"{name}-{split}" / ROWS) for name in names}


def policy_summary(rows: Rows) -> dict[str, Any]:
    """Every metric as {mean, low, high}; metrics of the truth are in the group `oracle`."""
    truth = {}
    others = {}
    for name, interval in summarize(rows).items():
        if name.startswith(TRUTH):
            truth[name.removeprefix(TRUTH)] = interval.as_dict()
        else:
            others[name] = interval.as_dict()
    return {TRUTH.removesuffix("/"): truth, **others} if truth else others


def gains(
    policies: Mapping[str, Rows], compared: Sequence[tuple[str, str]], headline: Sequence[str]
) -> dict[str, dict]:
    """{`a_vs_b`: {metric: paired difference}} on the prompts that both policies answered.

    Args:
      compared: pairs (a, b); pairs with a missing policy are left out.
      headline: metrics to compare if the truth is not known; those that a policy lacks are left
        out.
    """
    result = {}
    for a, b in compared:
        if a not in policies or b not in policies:
            continue
        of_b = _true_columns(policies[b])
        truth = [name for name in _true_columns(policies[a]) if name in of_b]
        differences = {}
        for metric in truth or headline:
            interval = paired_gain(policies[a], policies[b], metric)
            if interval is not None:
                differences[metric.removeprefix(TRUTH)] = interval.as_dict()
        result[f"{a}_vs_{b}"] = differences
    return result


def _true_columns(rows: Rows) -> list[str]:
    """The columns with judgements of the truth. A row may lack those that do not apply to it."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(name for name in row if name.startswith(TRUTH)))
    return list(names)


def compared_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each policy with the first one, then the last one with each of those in between."""
    with_first = [(name, names[0]) for name in names[1:]]
    with_last = [(names[-1], name) for name in names[1:-1]]
    return [*with_first, *with_last]


# ---- reward models, stages -----------------------------------------------------------------------

SEGMENT_METRICS = {"accuracy": "accuracy", "auc": "auc", "f1": "error_f1"}  # shown as -> on dev
PAIR_METRICS = {"pair_accuracy": "accuracy"}


def reward_models_on_dev(folders: Mapping[str, Path]) -> dict[str, dict]:
    """Metrics of the reward models on annotated dev rows, by name.

    Raises:
      UserError: a reward_model.json is damaged.
    """
    result = {}
    for name, folder in folders.items():
        spec = read_record(folder / SPEC_FILE, RewardModel)
        on_dev = spec.metrics or RewardModelMetrics()
        shown = PAIR_METRICS if spec.kind == "sequence" else SEGMENT_METRICS
        result[name] = {key: getattr(on_dev, dev_key) for key, dev_key in shown.items()}
    return result


def stages(output: Path) -> dict[str, dict]:
    """Seconds and peak memory by stage: from the pipeline, else from the stages' own folders.

    Raises:
      UserError: a stages.json is damaged.
    """
    paths = [output / "stages.json"]
    if not paths[0].exists():
        paths = []
        for pattern in ("*/stages.json", "eval/*/stages.json", "generated/*/stages.json"):
            paths += output.glob(pattern)
    costs = {}
    for path in sorted(paths):
        for name, cost in read_record(path, dict[str, StageCost]).items():
            costs[name] = cost.model_dump()
    return costs


def seed_of(output: Path, runs: Sequence[str]) -> Any:
    """The seed of the first run that exists; None if none does.

    Raises:
      UserError: its run.json is damaged.
    """
    for name in runs:
        path = output / name / "run.json"
        if path.exists():
            return read_record(path, RunInfo).seed
    return None


# ---- the whole -----------------------------------------------------------------------------------


def summarise(task: str, settings: SummarySettings, display: Display) -> dict[str, Any]:
    """Summarise the outputs folder, write <output_dir>/summary.json and return it.

    Raises:
      UserError: nothing was evaluated on the split, or a file is missing or broken.
    """
    output = Path(settings.output_dir)
    policies = evaluated_policies(output, settings.split, display)
    rows = {name: evaluation_rows(output, name, settings.split) for name in policies}
    folders = {path.parent.name: path.parent for path in output.glob(f"*/{SPEC_FILE}")}
    ordered = {name: folders[name] for name in sorted(folders, key=display.rank)}
    summary = summary_of(
        settings,
        display,
        rows,
        task=task,
        gains=gains(rows, compared_pairs(policies), display.headline),
        reward_models=reward_models_on_dev(ordered),
        reward_models_on="dev",
        seed=seed_of(output, policies[::-1]),
        data=data_of(rows, task, settings.split),
    )
    write_json(output / "summary.json", summary)
    return summary


def summary_of(
    settings: SummarySettings, display: Display, rows: Mapping[str, Rows], **parts: Any
) -> dict[str, Any]:
    """What summary.json has of every task.

    Args:
      rows: policy -> its evaluation.
      parts: the entries that depend on the task.
    """
    output = Path(settings.output_dir)
    evaluated = evaluated_policies(output, settings.split, display)
    return {
        "split": settings.split,
        "evaluations": evaluation_digests(output, settings.split, evaluated),
        "policies": {name: policy_summary(of_policy) for name, of_policy in rows.items()},
        "stages": stages(output),
        "versions": versions(),
        "processor": processor_name(),
        "scale": settings.scale,
        **parts,
    }


def data_of(rows: Mapping[str, Rows], source: str, split: str) -> str:
    """`<source>, 400 test prompts`, or `<source>, 400 test prompts in 100 clusters`.

    Clusters are the units of the intervals then.
    """
    every_row = [row for of_policy in rows.values() for row in of_policy]
    prompts = {row["id"] for row in every_row}
    clusters = clusters_by_prompt(every_row)
    units = "" if clusters is None else f" in {len(set(clusters.values()))} clusters"
    return f"{source}, {len(prompts)} {split} prompts{units}"


# ---- table ---------------------------------------------------------------------------------------


def table(summary: Mapping[str, Any], display: Display) -> str:
    """Policies, gains, reward models and stages as text."""
    units = "clusters" if summary["data"].endswith(" clusters") else "prompts"
    lines = [f"Policies on {summary['data']}: mean [95% interval over {units}]"]
    lines += grid(_policy_cells(summary["policies"], display))
    if any(summary["gains"].values()):
        lines += ["", "Paired differences", *grid(_gain_cells(summary["gains"], display))]
        lines += _spread_lines(summary, display)
    lines.append(f"  {ONE_RUN}")
    if summary["reward_models"]:
        against = {"dev": "the annotators of dev rows", "truth": "the truth"}
        lines += ["", f"Reward models against {against[summary['reward_models_on']]}"]
        lines += grid(_reward_model_cells(summary["reward_models"]))
    if summary["stages"]:
        lines += ["", "Stages", *grid(_stage_cells(summary["stages"]))]
        lines.append("  " + _time(summary["stages"], summary["processor"]))
    return "\n".join(lines)


def _spread_lines(summary: Mapping[str, Any], display: Display) -> list[str]:
    """The known spreads of the paired differences over other runs."""
    spreads = known_spreads(summary["gains"], display, summary.get("scale"), summary["data"])
    lines = []
    for (pair, _), spread in spreads.items():
        lines.append("  " + spread_line(pair.replace("_", " "), spread, display))
    return lines


def _time(stages: Mapping[str, Mapping], processor: str) -> str:
    """Minutes on the clock if the whole pipeline was measured, else the sum of its stages."""
    time = f"{minutes(stages):.1f} minutes"
    if "whole" not in stages and len(stages) > 1:
        time += " of stages, some of which may have run at the same time"
    return f"{time}, on {processor}"


def _policy_cells(policies: Mapping[str, Mapping], display: Display) -> list[list[str]]:
    """A row per metric: metrics of the truth, aspects, headline metrics and the length."""
    flat = {}
    for policy, metrics in policies.items():
        truth = metrics.get(TRUTH.removesuffix("/"), {})
        flat[policy] = {f"{TRUTH}{name}": value for name, value in truth.items()}
        flat[policy].update(metrics)
    shown = []
    for metrics in flat.values():
        shown += [name for name in metrics if name.startswith(TRUTH)]
        shown += [name for name in metrics if name.rpartition("/")[2] in ASPECT_METRICS]
    shown += [*display.headline, "length"]
    cells = [["", *policies]]
    for name in dict.fromkeys(shown):  # each once
        values = [metrics.get(name) for metrics in flat.values()]
        if any(values):
            cells.append([display.metric(name), *map(interval_text, values)])
    return cells


def _gain_cells(gains: Mapping[str, Mapping], display: Display) -> list[list[str]]:
    """A row per metric, a column per pair of policies."""
    names = list(dict.fromkeys(name for metrics in gains.values() for name in metrics))
    cells = [["", *(pair.replace("_", " ") for pair in gains)]]
    for name in names:
        values = [interval_text(metrics.get(name)) for metrics in gains.values()]
        cells.append([display.metric(display.metric_of_gain(name)), *values])
    return cells


def _reward_model_cells(reward_models: Mapping[str, Mapping]) -> list[list[str]]:
    """A row per reward model, with all its metrics in one cell."""
    cells = []
    for name, metrics in reward_models.items():
        numbers = [f"{key} {number(value)}" for key, value in metrics.items()]
        cells.append([name, ", ".join(numbers)])
    return cells


def _stage_cells(stages: Mapping[str, Mapping]) -> list[list[str]]:
    """A row per stage: its name, seconds and peak memory."""
    cells = []
    for name, stage in stages.items():
        cells.append([name, f"{stage['seconds']:.0f} s", f"{stage['peak_mb']:.0f} MB"])
    return cells


def minutes(stages: Mapping[str, Mapping]) -> float:
    """Minutes of all stages: the pipeline's own measurement if it exists."""
    return sum(stage["seconds"] for stage in counted(stages)) / 60


def counted(stages: Mapping[str, Mapping]) -> list[Mapping]:
    """The entries to add up: the pipeline's `whole` if it exists, else all stages.

    Stages run at the same time, so `whole` takes less time than the sum of the stages.
    """
    return [stages["whole"]] if "whole" in stages else list(stages.values())


def number(value: float | None) -> str:
    """A count in full, any other number with three digits; a dash if it is not known."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def interval_text(value: Mapping | None) -> str:
    """`0.594 [0.582, 0.605]`, or the mean alone; a dash if the mean is not known."""
    if value is None or value["mean"] is None:
        return "-"
    digits = 1 if abs(value["mean"]) >= 10 else 3
    # `z` writes a rounded -0.0004 as 0.000
    mean = f"{value['mean']:z.{digits}f}"
    if value["low"] is None or value["high"] is None:
        return mean
    return f"{mean} [{value['low']:z.{digits}f}, {value['high']:z.{digits}f}]"


def grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or {"-h", "--help"} & set(argv):
        print("\n".join([USAGE, "keys:", *describe(SummarySettings)]))
        sys.exit(0 if argv else 2)
    task, *rest = argv
    settings = settings_from(SummarySettings, rest)
    display = load_task(task).display
    print(table(summarise(task, settings, display), display))
    print(f"written to {Path(settings.output_dir) / 'summary.json'}")


if __name__ == "__main__":
    run_main(main)

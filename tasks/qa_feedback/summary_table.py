"""`summary.json` as a table to read, and what `make demo` must reach."""

from collections.abc import Mapping, Sequence

COLUMNS = {
    "gold": "oracle.gold",
    "relevance": "oracle.relevance",
    "factuality": "oracle.factuality",
    "completeness": "oracle.completeness",
    "reward": "reward",
    "RougeLsum": "rougeLsum",
    "words": "length",
    "KL to SFT": "kl",
}

ABOVE_ZERO = 1e-9  # a lower bound that zero itself does not pass

# what, where it stands in the summary, lowest and highest value
TARGETS = (
    ("SFT relevance", "policies.sft.oracle.relevance.mean", 0.5, 0.85),
    ("SFT factuality", "policies.sft.oracle.factuality.mean", 0.5, 0.85),
    ("SFT completeness", "policies.sft.oracle.completeness.mean", 0.5, 0.85),
    ("sub-sentences of gold answers", "gold_subsentences", 6, 10),
    ("R1 accuracy", "reward_models.relevance.accuracy", 0.85, None),
    ("R1 AUC", "reward_models.relevance.auc", 0.93, None),
    ("R2 accuracy", "reward_models.factuality.accuracy", 0.78, None),
    ("R2 AUC", "reward_models.factuality.auc", 0.85, None),
    ("R3 pair accuracy", "reward_models.completeness.pair_accuracy", 0.72, None),
    ("preference pair accuracy", "reward_models.preference.pair_accuracy", 0.62, None),
    ("fine-grained over SFT, gold", "gains.fine_grained_vs_sft.gold.mean", 0.08, None),
    (
        "fine-grained over SFT, gold, lower end",
        "gains.fine_grained_vs_sft.gold.low",
        ABOVE_ZERO,
        None,
    ),
    (
        "fine-grained over SFT, relevance",
        "gains.fine_grained_vs_sft.relevance.mean",
        ABOVE_ZERO,
        None,
    ),
    (
        "fine-grained over SFT, factuality",
        "gains.fine_grained_vs_sft.factuality.mean",
        ABOVE_ZERO,
        None,
    ),
    (
        "fine-grained over SFT, completeness",
        "gains.fine_grained_vs_sft.completeness.mean",
        -0.01,
        None,
    ),
    ("holistic over SFT, gold, lower end", "gains.holistic_vs_sft.gold.low", ABOVE_ZERO, None),
    ("peak memory in GB", "peak_gb", None, 4),
)


def look_up(tree, path: str):
    """The value at a dotted path of nested dicts, None where there is none."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def costs(stages: Mapping[str, Mapping]) -> tuple[float, float]:
    """(minutes, peak memory in MB) of all stages: what the pipeline measured of them together,
    where it is known.
    """
    # stages run beside each other: together they take less time and more memory than the stages say
    counted = [stages["whole"]] if "whole" in stages else list(stages.values())
    return sum(stage["seconds"] for stage in counted) / 60, max(
        stage["peak_mb"] for stage in counted
    )


def targets(summary: Mapping) -> list[tuple[str, float, str, bool]]:
    """(what, value, wanted, reached) for all of `TARGETS` that were measured. Time is none: it is
    the machine's.
    """
    if summary["stages"]:
        summary = {**summary, "peak_gb": costs(summary["stages"])[1] / 1024}
    results = []
    for what, path, low, high in TARGETS:
        value = look_up(summary, path)
        if value is not None:
            reached = (low is None or value >= low) and (high is None or value <= high)
            results.append((what, value, _wanted(low, high), reached))
    return results


def missed_targets(summary: Mapping) -> list[str]:
    """A line for each target that was not reached or could not be measured."""
    measured = {what: (value, wanted, reached) for what, value, wanted, reached in targets(summary)}
    lines = []
    for what, _, low, high in TARGETS:
        if what not in measured:
            lines.append(f"{what}: not measured, {_wanted(low, high)} is wanted")
            continue
        value, wanted, reached = measured[what]
        if not reached:
            lines.append(f"{what}: {_number(value)}, {wanted} is wanted")
    return lines


def table(summary: Mapping) -> str:
    """Policies, gains, reward models and stages; in the mini world what the demo must reach as
    well.
    """
    policies = summary["policies"]
    columns = {
        name: path
        for name, path in COLUMNS.items()
        if any(look_up(metrics, path) for metrics in policies.values())
    }
    lines = [f"Policies on {summary['data']}: mean [95% interval over questions]"]
    lines += _grid(
        [["", *policies]]
        + [
            [name, *(_interval(look_up(m, path)) for m in policies.values())]
            for name, path in columns.items()
        ]
    )
    if summary["gains"]:
        names = list(
            dict.fromkeys(name for metrics in summary["gains"].values() for name in metrics)
        )
        lines += ["", "Gains, paired by question"]
        lines += _grid(
            [["", *names]]
            + [
                [which.replace("_", " "), *(_interval(metrics.get(name)) for name in names)]
                for which, metrics in summary["gains"].items()
            ]
        )
    if summary["reward_models"]:
        lines += ["", "Reward models, on answers they were not trained on"]
        lines += _grid(
            [
                [name, ", ".join(f"{key} {_number(value)}" for key, value in metrics.items())]
                for name, metrics in summary["reward_models"].items()
            ]
        )
    if summary["stages"]:
        lines += ["", "Stages"]
        lines += _grid(
            [
                [name, f"{stage['seconds']:.0f} s", f"{stage['peak_mb']:.0f} MB"]
                for name, stage in summary["stages"].items()
            ]
        )
        minutes = costs(summary["stages"])[0]
        lines.append(f"  {minutes:.1f} minutes in all, on {summary['processor']}")
    if any("oracle" in metrics for metrics in policies.values()):
        lines += ["", "What the demo must reach"]
        lines += _grid(
            [
                [what, _number(value), wanted, "reached" if reached else "MISSED"]
                for what, value, wanted, reached in targets(summary)
            ]
        )
    return "\n".join(lines)


def _wanted(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high}"
    if high is None:
        return "above 0" if low == ABOVE_ZERO else f"at least {low}"
    return f"{low} to {high}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _interval(value: Mapping | None) -> str:
    if value is None:
        return "-"
    digits = 1 if abs(value["mean"]) >= 10 else 3
    return f"{value['mean']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


def _grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        for row in rows
    ]

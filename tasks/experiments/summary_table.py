"""The targets of `make demo` at both scales, and the table of `summary.json`.

A target is a limit that a correct pipeline meets with any seed and on any processor. Rounding alone
makes two processors train different models. At mini scale, every lower limit is below the mean
minus three standard deviations of the runs in RESULTS.md (different seeds, on two sets of
instructions; `target_spread.py` prints the table). The spread at small scale was not measured.
"""

from collections.abc import Mapping
from typing import Any

from fgrlhf.pipeline import summary as pipeline_summary
from fgrlhf.pipeline.summary import counted, grid, number
from tasks.qa_feedback.display import DISPLAY

ABOVE_ZERO = 1e-9  # a lower bound that excludes zero

# name, path in the summary, lowest and highest value
SFT_TARGETS = (
    ("SFT relevance", "policies.sft.oracle.relevance.mean", 0.5, 0.85),
    ("SFT factuality", "policies.sft.oracle.factuality.mean", 0.5, 0.9),
    ("sub-sentences of gold answers", "gold_subsentences", 6, 10),
)
MINI_TARGETS = (
    *SFT_TARGETS,
    ("SFT completeness", "policies.sft.oracle.completeness.mean", 0.3, 0.85),
    ("R1 accuracy", "reward_models.relevance.accuracy", 0.76, None),
    ("R1 AUC", "reward_models.relevance.auc", 0.84, None),
    ("R2 accuracy", "reward_models.factuality.accuracy", 0.78, None),
    ("R2 AUC", "reward_models.factuality.auc", 0.75, None),
    ("R3 pair accuracy", "reward_models.completeness.pair_accuracy", 0.72, None),
    ("preference pair accuracy", "reward_models.preference.pair_accuracy", 0.62, None),
    ("fine-grained over SFT, gold", "gains.fine_grained_vs_sft.gold.mean", 0.1, None),
    (
        "fine-grained over SFT, gold, lower end",
        "gains.fine_grained_vs_sft.gold.low",
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
    ("holistic over SFT, gold", "gains.holistic_vs_sft.gold.mean", -0.05, None),
    ("peak memory in GB", "peak_gb", None, 4),
)
SMALL_TARGETS = (
    *SFT_TARGETS,
    ("SFT completeness", "policies.sft.oracle.completeness.mean", 0.5, 0.85),
    ("R1 accuracy", "reward_models.relevance.accuracy", 0.85, None),
    ("R3 pair accuracy", "reward_models.completeness.pair_accuracy", 0.72, None),
    ("fine-grained over SFT, gold", "gains.fine_grained_vs_sft.gold.mean", 0.05, None),
    (
        "fine-grained over SFT, gold, lower end",
        "gains.fine_grained_vs_sft.gold.low",
        ABOVE_ZERO,
        None,
    ),
)
TARGETS = {"mini": MINI_TARGETS, "small": SMALL_TARGETS}


def look_up(tree: Any, path: str) -> Any:
    """The value at a dotted path of nested dicts; None if the path does not exist."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def targets(summary: Mapping) -> list[tuple[str, float, str, bool]]:
    """(name, value, target, reached) of the scale's `TARGETS` that were measured.

    There is no target for time, which depends on the machine.
    """
    if summary["stages"]:
        peak_mb = max(stage["peak_mb"] for stage in counted(summary["stages"]))
        summary = {**summary, "peak_gb": peak_mb / 1024}
    results = []
    for name, path, low, high in TARGETS.get(summary["scale"], ()):
        value = look_up(summary, path)
        if value is not None:
            reached = (low is None or value >= low) and (high is None or value <= high)
            results.append((name, value, target_text(low, high), reached))
    return results


def recorded_targets(summary: Mapping) -> list[dict[str, Any]]:
    """The targets as `summary.json` has them, for the report."""
    return [
        {"name": name, "value": value, "target": target, "reached": reached}
        for name, value, target, reached in targets(summary)
    ]


def missed_targets(summary: Mapping) -> list[str]:
    """A line for each target that was not reached or not measured."""
    measured = {name: (value, reached) for name, value, _, reached in targets(summary)}
    lines = []
    for name, _, low, high in TARGETS.get(summary["scale"], ()):
        target = target_text(low, high)
        if name not in measured:
            lines.append(f"{name}: not measured, the target is {target}")
            continue
        value, reached = measured[name]
        if not reached:
            lines.append(f"{name}: {number(value)}, the target is {target}")
    return lines


def table(summary: Mapping) -> str:
    """Policies, gains, reward models and stages; in the mini world also the targets."""
    text = pipeline_summary.table(summary, DISPLAY)
    if not any("oracle" in metrics for metrics in summary["policies"].values()):
        return text
    cells = []
    for name, value, target, reached in targets(summary):
        cells.append([name, number(value), target, "reached" if reached else "MISSED"])
    return "\n".join([text, "", "Targets of the demo", *grid(cells)])


def target_text(low: float | None, high: float | None) -> str:
    """How a target with these limits is written."""
    if low is None:
        return f"at most {high}"
    if high is None:
        return "above 0" if low == ABOVE_ZERO else f"at least {low}"
    return f"{low} to {high}"

"""How much does weighting of annotators recover? One noisy annotator of three, on the mini world.

    python -m tasks.qa_feedback.noisy_annotators [seeds=0,1,2,3,4] \\
        [base_dir=outputs/qa_feedback/mini]

With every seed, the factuality model (R2) is trained on three feedback files of the same rows:
from annotators with little noise, from annotators one of whom has more noise, and from the same
ones with weighted votes (noisy_annotators_arm.py). The result is the share of the AUC lost by the
noise that the weights recover. Run it again to continue or to add seeds.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from pydantic import Field, PositiveInt

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath
from fgrlhf.pipeline.experiment_settings import ExperimentSettings
from fgrlhf.pipeline.stages import Pipeline, Stage, stop_with_signals
from tasks.qa_feedback.active import TRAINING_MODULES, files_of_arm
from tasks.qa_feedback.noisy_annotators_arm import Arm
from tasks.scripts import ROOT

ARMS: tuple[str, ...] = get_args(Arm)
ARM_MODULE = "tasks.qa_feedback.noisy_annotators_arm"
Result = Mapping[str, float]  # wrong and auc: see noisy_annotators_arm.py


class Settings(ExperimentSettings):
    """The experiment."""

    seeds: str = Field(default="0,1,2,3,4", description="all arms are repeated with each seed")
    base_dir: FilePath = Field(
        default="outputs/qa_feedback/mini", description="the output folder of `make demo`"
    )
    output_dir: FilePath = Field(
        default="outputs/noisy_annotators", description="folder of the results"
    )
    noise: float = Field(default=0.3, ge=0, le=1, description="of the noisy annotator")
    gold: PositiveInt = Field(default=50, description="number of gold rows")
    rows: PositiveInt = Field(default=500, description="number of rows to train on")
    per_item: int = Field(default=2, ge=1, le=3, description="number of annotators for each row")


def arm_stage(settings: Settings, arm: str, seed: int) -> Stage:
    name = f"seed-{seed}/{arm}"
    base = Path(settings.base_dir).absolute()
    command = (
        *(sys.executable, "-m", ARM_MODULE, f"arm={arm}", f"seed={seed}"),
        *(f"data_dir={base / 'data'}", f"base_model={base / 'base_model'}"),
        f"output_dir={settings.folder / name}",
        *(f"noise={settings.noise}", f"gold={settings.gold}"),
        *(f"rows={settings.rows}", f"per_item={settings.per_item}"),
    )
    modules = (ARM_MODULE, *TRAINING_MODULES)
    feedback = [str(base / "data" / f"{split}_feedback.json") for split in ("train", "dev")]
    reads = (*files_of_arm(base), *feedback)
    return Stage(name, command, outputs=(name,), reads=reads, modules=modules)


def mean(results: Sequence[Result], key: str) -> float:
    return sum(result[key] for result in results) / len(results)


def recovered(arms: Mapping[str, Sequence[Result]]) -> float | None:
    """The share of the lost AUC that the weights recover; None if the noise lost nothing.

    (weighted - noisy) / (clean - noisy), of the means over seeds.
    """
    auc = {arm: mean(results, "auc") for arm, results in arms.items()}
    lost = auc["clean"] - auc["noisy"]
    if lost <= 0:
        return None
    return (auc["weighted"] - auc["noisy"]) / lost


def table(arms: Mapping[str, Sequence[Result]]) -> str:
    """The means of all arms, and the share that the weights recover."""
    lines = ["| arm | wrong sub-sentences | AUC | AUC by seed |", "|---|---|---|---|"]
    for arm, results in arms.items():
        by_seed = ", ".join(f"{result['auc']:.4f}" for result in results)
        wrong, auc = mean(results, "wrong"), mean(results, "auc")
        lines.append(f"| {arm} | {wrong:.1%} | {auc:.4f} | {by_seed} |")
    share = recovered(arms)
    text = "undefined: the noisy arm has lost no AUC" if share is None else f"{share:.0%}"
    lines += ["", f"Share of the lost AUC that the weights recover: {text}."]
    return "\n".join(lines) + "\n"


def noisy_annotators(settings: Settings) -> None:
    """Run all arms with all seeds, write noisy_annotators.json and .md, and print the table."""
    base = Path(settings.base_dir)
    needed = (base / "base_model" / "model.safetensors", base / "data" / "train_feedback.json")
    if not all(path.exists() for path in needed):
        raise UserError(
            f"{base} has no feedback or no base model: run `make demo` first, or set base_dir=..."
            " to its output folder"
        )
    out = settings.folder
    seeds = settings.seed_list
    stages = [arm_stage(settings, arm, seed) for seed in seeds for arm in ARMS]
    Pipeline(stages, ROOT, out, {"OMP_NUM_THREADS": "1"}, settings.lane_count).run()
    arms = {}
    for arm in ARMS:
        arms[arm] = [read_json(out / f"seed-{seed}" / arm / "result.json") for seed in seeds]
    write_json(
        out / "noisy_annotators.json", {"seeds": seeds, "recovered": recovered(arms), "arms": arms}
    )
    write_text(out / "noisy_annotators.md", table(arms))
    print("\n" + table(arms))


if __name__ == "__main__":
    stop_with_signals()
    run_main(lambda: noisy_annotators(settings_from(Settings)))

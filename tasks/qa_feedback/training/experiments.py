"""A row of the paper's tables: train it, then evaluate it on dev and test.

`experiments.sh` runs this program from the repository's root, with the variables of scripts/env.sh.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fgrlhf.base.errors import UserError, suggestion
from fgrlhf.base.program import run_main
from fgrlhf.cli.stage_script import StageScript, run

HERE = "tasks/qa_feedback/training"
WEIGHTS = {  # row -> the reward whose weight it changes, and the weight
    **{f"without_{name}": (name, "0") for name in ("relevance", "factuality", "completeness")},
    "relevance_low": ("relevance", "0.5"),
    "relevance_middle": ("relevance", "1.0"),
    "relevance_high": ("relevance", "2.0"),
}
# Seconds of an RL step by variant, measured at paper scale only, with random weights.
MEASURED = {
    "": ("4.0", "one H200, 32 responses per pass: benchmarks/RESULTS.md"),
    "published": ("20.6", "one H200, baseline: benchmarks/RESULTS.md"),
}


@dataclass(frozen=True)
class Row:
    """How a row is trained.

    Args:
      script: trains it; "": its policy is there already.
      policy: its folder in that of the results.
      has_variant: whether VARIANT=published trains another policy, in `published_...`.
    """

    script: str
    policy: str
    has_variant: bool = False


ROWS = {
    "sft": Row("", "sft"),
    "sft_full": Row("train_sft.sh", "sft_full"),
    "corrected_sft": Row("train_corrected_sft.sh", "corrected_sft"),
    "dpo": Row("train_dpo.sh", "dpo/best"),
    "fine_grained_dpo": Row("train_finegrained_dpo.sh", "fine_grained_dpo/best"),
    "holistic": Row("train_baseline.sh", "baseline/best", has_variant=True),
    "fine_grained": Row("train_finegrained.sh", "fine_grained/best", has_variant=True),
    **{name: Row("train_finegrained.sh", f"{name}/best", has_variant=True) for name in WEIGHTS},
}


def commands(name: str, stage: StageScript, arguments: Sequence[str]) -> list[list[str]]:
    """The commands that train a row, with these arguments, and evaluate it."""
    row = ROWS[name]
    prefix = "published_" if stage.variant and row.has_variant else ""
    overrides = []
    if name in WEIGHTS:
        reward, weight = WEIGHTS[name]
        overrides = [
            f"reward.{reward}_model.weight={weight}",
            f"logging.save_dir={stage.output}/{prefix}{name}",
            f"logging.run_name={prefix}{name}",
        ]
    elif name == "sft_full":  # on all training questions
        overrides = [
            f"data.train_file={stage.data}/train.json",
            f"logging.save_dir={stage.output}/sft_full",
        ]
    found = [["bash", f"{HERE}/{row.script}", *overrides, *arguments]] if row.script else []
    for split in ("dev", "test"):
        settings = [f"policy={stage.output}/{prefix}{row.policy}", f"name={prefix}{name}"]
        found.append(["bash", f"{HERE}/evaluate.sh", *settings, f"split={split}"])
    return found


def plan(stage: StageScript, arguments: Sequence[str]) -> list[str]:
    """The command that prints the steps, samples and GPU hours of every row; docs/runs.md."""
    of_models = {"rel": "segment", "fact": "segment", "comp": "sequence", "baseline": "sequence"}
    rows = [f"sft:{stage.config('training/sft_config.yml')}"]
    for model, kind in of_models.items():
        rows.append(f"{kind}:{stage.config(f'reward_modeling/{model}_rm_config.yml')}")
    rows.append(f"rl:{stage.config('training/baseline_config.yml')}@holistic")
    fine_grained = stage.config("training/fine_grained_config.yml")
    rows += [f"rl:{fine_grained}@{name}" for name in ("fine_grained", *WEIGHTS)]
    for name in ("dpo", "fine_grained_dpo"):
        rows.append(f"dpo:{stage.config(f'training/{name}_config.yml')}")
    if stage.scale == "paper":
        seconds, source = MEASURED[stage.variant]
        rows += [f"seconds.rl={seconds}", f"source={source}"]
    return ["python", "-m", "fgrlhf.cli.main", "plan", f"tasks.{stage.task}", *rows, *arguments]


def missing_data(stage: StageScript) -> str:
    """What makes the data that the steps of a plan depend on; "" if they are there."""
    if Path(stage.data, "train_feedback.json").exists():
        return ""
    task = f"SCALE={stage.scale} bash tasks/{stage.task}"
    return (
        f"the data, from which the other steps follow: {task}/{stage.data_script()}, then"
        f" {task}/reward_modeling/create_rm_train_files.sh"
    )


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    stage = StageScript.of(os.environ)
    if name not in ("plan", *ROWS):
        problem = f"`{name}` is not an experiment" if name else "name an experiment"
        raise UserError(f"{problem}; {suggestion(name, ['plan', *ROWS])}")
    found = [plan(stage, arguments)] if name == "plan" else commands(name, stage, arguments)
    for command in found:
        run(command)
    if name == "plan" and missing_data(stage):
        print(missing_data(stage), flush=True)


if __name__ == "__main__":
    run_main(main)

"""One arm of the experiment in active.py: rounds of choosing, judging and training, with one seed.

    python -m tasks.experiments.active_arm by=uncertainty seed=0 data_dir=... output_dir=...

The first round judges random rows. Every later one adds the rows that `by` prefers under the model
of the round before. After each round, the factuality model is trained from the start on all rows
that were judged so far, and its AUC is measured on the dev rows, whose true errors the oracle
knows. Writes <output_dir>/result.json, {labels, auc} for each round.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt

from fgrlhf.base.files import read_json, write_json
from fgrlhf.base.seeds import derive_seed
from fgrlhf.cli.command_line import run_program
from interface_html.select import SelectSettings, select
from tasks.experiments.factuality_arm import ArmSettings, oracle_auc, train


class ActiveArmSettings(ArmSettings):
    """An arm of the experiment."""

    by: Literal["uncertainty", "random"] = Field(description="how rows are chosen")
    start: PositiveInt = Field(default=100, description="rows judged in the first round")
    step: PositiveInt = Field(default=100, description="rows judged in every later round")
    rounds: PositiveInt = Field(default=5, description="rounds in all")


def run_arm(settings: ActiveArmSettings) -> list[dict[str, float]]:
    """Run all rounds and write result.json.

    Raises:
      UserError: a file is missing, there are too few rows, or training failed.
    """
    settings.pool(settings.start + (settings.rounds - 1) * settings.step)
    rows: list[Any] = []
    result = []
    model: Path | None = None
    for number in range(settings.rounds):
        folder = settings.out / f"round-{number}"
        rows += choose(settings, folder, rows, model)
        model = train(settings, folder, rows)
        result.append({"labels": len(rows), "auc": oracle_auc(settings, model)})
        print(f"{settings.by}: {len(rows)} rows, AUC {result[-1]['auc']:.4f}", flush=True)
    write_json(settings.out / "result.json", result)
    return result


def choose(
    settings: ActiveArmSettings, folder: Path, judged: list[Any], model: Path | None
) -> list[Any]:
    """The rows to judge in a round. The pool has the judgements already; they are revealed."""
    folder.mkdir(parents=True, exist_ok=True)
    choice: dict[str, Any] = {
        "task": "qa_feedback",
        "source": str(Path(settings.data_dir) / "train_feedback.json"),
        "out": str(folder / "chosen.json"),
        "n": settings.step if judged else settings.start,
        "by": "random",
        "seed": derive_seed(settings.seed, "active", folder.name),
    }
    if judged:
        write_json(folder / "judged.json", judged)
        choice["done"] = str(folder / "judged.json")
    if model is not None and settings.by != "random":
        choice["by"] = settings.by
        choice["models"] = str(model)
    select(SelectSettings(**choice))
    chosen = read_json(folder / "chosen.json")
    for row in chosen:
        del row["id"]  # its number in the pool, which feedback files do not have
    return chosen


if __name__ == "__main__":
    run_program(run_arm, ActiveArmSettings)

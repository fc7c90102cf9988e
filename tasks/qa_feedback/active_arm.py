"""One arm of the experiment in active.py: rounds of choosing, judging and training, with one seed.

    python -m tasks.qa_feedback.active_arm by=uncertainty seed=0 data_dir=... output_dir=...

The first round judges random rows. Every later one adds the rows that `by` prefers under the model
of the round before. After each round, the factuality model is trained from the start on all rows
that were judged so far, and its AUC is measured on the dev rows, whose true errors the oracle
knows. Writes <output_dir>/result.json, {labels, auc} for each round.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.base.program import run_main
from fgrlhf.base.seeds import derive_seed
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.text_types import Prompt
from interface_html.select import Settings as Selection
from interface_html.select import select
from tasks.qa_feedback.data.oracle import judge
from tasks.qa_feedback.feedback import read_feedback, rm_prefix
from tasks.qa_feedback.judged_scores import factuality_errors, segment_metrics
from tasks.qa_feedback.reward_modeling.create_rm_files import Settings as FileSettings
from tasks.qa_feedback.reward_modeling.create_rm_files import create_rm_files
from tasks.scripts import ROOT

TRAIN = "tasks/qa_feedback/reward_modeling/train_fact_rm.sh"


class Settings(StrictModel):
    """An arm of the experiment."""

    by: Literal["uncertainty", "random"] = Field(description="how rows are chosen")
    seed: int = Field(description="of the choice and of training")
    data_dir: FilePath = Field(
        description="folder with {train,dev}_feedback.json of the mini world"
    )
    base_model: str = Field(description="folder of the model that training starts from")
    output_dir: FilePath = Field(description="folder of the results")
    start: PositiveInt = Field(default=100, description="rows judged in the first round")
    step: PositiveInt = Field(default=100, description="rows judged in every later round")
    rounds: PositiveInt = Field(default=5, description="rounds in all")


def run_arm(settings: Settings) -> list[dict[str, float]]:
    """Run all rounds and write result.json.

    Raises:
      UserError: a file is missing, there are too few rows, or training failed.
    """
    out = Path(settings.output_dir)
    pool = Path(settings.data_dir) / "train_feedback.json"
    wanted = settings.start + (settings.rounds - 1) * settings.step
    available = len(read_json(pool))
    if available < wanted:
        raise UserError(f"{pool} has {available} rows, fewer than the {wanted} of all rounds")
    rows: list[Any] = []
    result = []
    model: Path | None = None
    for number in range(settings.rounds):
        folder = out / f"round-{number}"
        rows += choose(settings, pool, folder, rows, model)
        model = train(settings, folder, rows)
        result.append({"labels": len(rows), "auc": oracle_auc(settings, model)})
        print(f"{settings.by}: {len(rows)} rows, AUC {result[-1]['auc']:.4f}", flush=True)
    write_json(out / "result.json", result)
    return result


def choose(
    settings: Settings, pool: Path, folder: Path, judged: list[Any], model: Path | None
) -> list[Any]:
    """The rows to judge in a round. The pool has the judgements already; they are revealed."""
    folder.mkdir(parents=True, exist_ok=True)
    choice: dict[str, Any] = {
        "task": "qa_feedback",
        "source": str(pool),
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
    select(Selection(**choice))
    chosen = read_json(folder / "chosen.json")
    for row in chosen:
        del row["id"]  # its number in the pool, which feedback files do not have
    return chosen


def train(settings: Settings, folder: Path, rows: list[Any]) -> Path:
    """Train the factuality model on the rows. Returns its folder."""
    data = folder / "data"
    data.mkdir(exist_ok=True)
    write_json(data / "train_feedback.json", rows)
    shutil.copy(Path(settings.data_dir) / "dev_feedback.json", data / "dev_feedback.json")
    create_rm_files(FileSettings(data_dir=str(data)))
    environment = {
        **os.environ,
        "SCALE": "mini",
        "DATA_DIR": str(data.absolute()),
        "OUTPUT_DIR": str(folder.absolute()),
    }
    seed = f"train.seed={settings.seed}"
    start = f"model.ckpt={Path(settings.base_model).absolute()}"
    command = ["bash", TRAIN, seed, start]
    if subprocess.run(command, cwd=ROOT, env=environment).returncode != 0:
        raise UserError(f"{folder}: the factuality model was not trained; the reason is above")
    return folder / "fact_rm"


def oracle_auc(settings: Settings, model: Path) -> float:
    """The AUC of the model's P(error) of the sentences of dev answers, against the oracle."""
    prompts = []
    texts = []
    errors = []
    for number, row in enumerate(read_feedback(Path(settings.data_dir) / "dev_feedback.json")):
        text = row.predictions[0]
        texts.append(text)
        meta = {"question": row.question, "passages": row.passages}
        prompts.append(Prompt(str(number), row.question, meta=meta))
        errors.append(factuality_errors(judge(row.question, row.passages, text)))
    scorer: Any = load_reward_model(model, rm_prefix)
    area = segment_metrics(scorer, prompts, texts, errors)["auc"]
    if area is None:
        raise UserError("the dev rows have segments of one kind only, so no AUC can be measured")
    return area


if __name__ == "__main__":
    run_main(lambda: run_arm(settings_from(Settings)))

"""What arms share that train the factuality model (R2) on feedback of the mini world.

Their program measures the AUC of the model on the dev rows, whose true errors the oracle knows, and
writes it to <output_dir>/result.json.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.text_types import Prompt
from tasks.experiments.judged_scores import factuality_errors, segment_metrics
from tasks.qa_feedback.data.oracle import judge
from tasks.qa_feedback.feedback import read_feedback, rm_prefix
from tasks.qa_feedback.reward_modeling.create_rm_files import RMFileSettings, create_rm_files

ROOT = Path(__file__).parents[2]
TRAIN = "tasks/qa_feedback/reward_modeling/train_fact_rm.sh"


class ArmSettings(StrictModel):
    """Keys of every such arm."""

    seed: int = Field(description="of the arm's choices and of training")
    data_dir: FilePath = Field(
        description="folder with {train,dev}_feedback.json of the mini world"
    )
    base_model: str = Field(description="folder of the model that training starts from")
    output_dir: FilePath = Field(description="folder of the results")

    @property
    def out(self) -> Path:
        return Path(self.output_dir)

    def pool(self, wanted: int) -> list[dict[str, Any]]:
        """All training rows. Raises `UserError` if there are fewer than `wanted`."""
        path = Path(self.data_dir) / "train_feedback.json"
        rows = read_json(path)
        if len(rows) < wanted:
            raise UserError(
                f"{path} has {len(rows)} rows, fewer than the {wanted} of this arm: lower its"
                " number of rows or rounds"
            )
        return rows


def train(settings: ArmSettings, folder: Path, rows: Sequence[Any]) -> Path:
    """Train the factuality model on the rows. Returns its folder.

    Raises:
      UserError: training failed.
    """
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    write_json(data / "train_feedback.json", rows)
    shutil.copy(Path(settings.data_dir) / "dev_feedback.json", data / "dev_feedback.json")
    create_rm_files(RMFileSettings(data_dir=str(data), output_dir=str(folder / "derived")))
    folders = {"DATA_DIR": str(data.absolute()), "OUTPUT_DIR": str(folder.absolute())}
    environment = {**os.environ, "SCALE": "mini", **folders}
    start = f"model.ckpt={Path(settings.base_model).absolute()}"
    command = ["bash", TRAIN, f"train.seed={settings.seed}", start]
    if subprocess.run(command, cwd=ROOT, env=environment).returncode != 0:
        raise UserError(f"{folder}: the factuality model was not trained; the reason is above")
    return folder / "fact_rm"


def oracle_auc(settings: ArmSettings, model: Path) -> float:
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

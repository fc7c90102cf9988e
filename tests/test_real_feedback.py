"""The pipeline on people's feedback: halves of the feedback, stages, judges."""

from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.configs.strict import load_config
from fgrlhf.task_config import rl_config
from tasks.experiments import halves, real_feedback
from tasks.experiments.real_feedback import JUDGE, POLICIES, REWARD_MODELS, RealFeedbackConfig
from tasks.experiments.stages import ROOT
from tasks.qa_feedback.feedback import FeedbackRow, read_feedback, write_feedback
from tasks.qa_feedback.task import TASK


def row(question: str) -> FeedbackRow:
    return FeedbackRow.make(
        question=question,
        passages=[["Cat", "A cat sat."]],
        gold="The cat.",
        predictions=["a", "b", "c", "d"],
        errors=(),
        missing=(),
        corrected="",
        preference=[0, 1, 2, 0, 1, 2],
    )


def questions(path: Path) -> list[str]:
    return [row.raw["question"] for row in read_feedback(path)]


@pytest.fixture
def rows(tmp_path) -> Path:
    """A folder with all files: five training rows, two dev rows."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for split in ("train", "dev"):
        write_json(folder / f"{split}.json", [])
    write_feedback(folder / "train_feedback.json", [row(f"t{i}") for i in range(5)])
    write_feedback(folder / "dev_feedback.json", [row(f"d{i}") for i in range(2)])
    return folder


def test_no_training_row_is_in_both_halves(rows, tmp_path):
    halves.halve(halves.HalvesSettings(data_dir=str(rows), output_dir=str(tmp_path / "out")))
    first, second = (tmp_path / "out" / name for name in halves.HALVES)
    assert questions(first / "train_feedback.json") == ["t0", "t2", "t4"]
    assert questions(second / "train_feedback.json") == ["t1", "t3"]
    for half in (first, second):
        assert questions(half / "dev_feedback.json") == ["d0", "d1"]


def test_a_single_row_cannot_be_halved(rows, tmp_path):
    write_feedback(rows / "train_feedback.json", [row("alone")])
    with pytest.raises(UserError, match="two halves need at least two"):
        halves.halve(halves.HalvesSettings(data_dir=str(rows), output_dir=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def all_stages(rows, tmp_path):
    settings = RealFeedbackConfig(data_dir=str(rows), output_dir=str(tmp_path / "out"))
    stages = real_feedback.stages(settings, tmp_path / "model")
    return {stage.name: stage for stage in stages}


def test_policies_and_judges_learn_from_different_halves(rows, tmp_path):
    stages = all_stages(rows, tmp_path)
    first, second = halves.HALVES
    for name in REWARD_MODELS:
        assert any(f"/{first}/" in argument for argument in stages[f"train_{name}"].command)
        judge = " ".join(stages[f"train_{JUDGE}{name}"].command)
        assert f"/{second}/" in judge and f"/{first}/" not in judge
        assert f"model.ckpt={tmp_path / 'model'}" in judge
    assert any(f"/{first}/" in argument for argument in stages["train_dpo"].command)
    for policy in POLICIES:
        needed = set(stages[f"evaluate_{policy}"].needs)
        assert needed >= {f"train_{JUDGE}{name}" for name in REWARD_MODELS}


def test_the_judges_of_the_config_are_the_trained_ones(rows, tmp_path, monkeypatch):
    for variable in ("OUTPUT_DIR", "DATA_DIR", "FGRLHF_SMALL_MODEL"):
        monkeypatch.setenv(variable, str(tmp_path / "out"))
    folder = ROOT / "tasks" / "qa_feedback" / "training"
    judges = load_config(rl_config(TASK), folder / "small_judge_config.yml").model_dump()
    training = {}
    for run in ("fine_grained", "baseline"):
        config = load_config(rl_config(TASK), folder / f"small_{run}_config.yml").model_dump()
        training |= config["reward"]
        assert config["model"]["max_generated_len"] == judges["model"]["max_generated_len"]
    # the weights are those of training; only the folders differ
    used = set()
    for name, reward in judges["reward"].items():
        model = Path(training[name].pop("ckpt")).name
        assert Path(reward.pop("ckpt")).name == JUDGE + model
        assert reward == training[name]
        used.add(model)
    assert used == set(REWARD_MODELS)


def test_demonstrations_are_preferred_for_fine_tuning(rows, tmp_path):
    def train_file():
        command = all_stages(rows, tmp_path)["train_sft"].command
        return next(argument for argument in command if argument.startswith("data.train_file="))

    assert train_file() == f"data.train_file={rows / 'train.json'}"
    write_json(rows / "train_1k.json", [])
    assert train_file() == f"data.train_file={rows / 'train_1k.json'}"
    stages = all_stages(rows, tmp_path)
    for name in ("train_finegrained", "train_baseline", "train_dpo"):  # they read train.json
        assert {str(rows / "train.json"), str(rows / "dev.json")} <= set(stages[name].reads)


def test_missing_files_are_named(rows):
    (rows / "dev.json").unlink()
    (rows / "dev_feedback.json").unlink()
    with pytest.raises(UserError, match="lacks dev.json, dev_feedback.json: give the folder"):
        real_feedback.plan(RealFeedbackConfig(data_dir=str(rows)))

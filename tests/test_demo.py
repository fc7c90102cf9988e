"""The stages of `make demo` at both scales."""

import glob
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import load_config
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.task_config import rl_config
from reward_modeling.run_fg_rm import SegmentRMConfig
from reward_modeling.run_pref_rm import PreferenceRMConfig
from sft.config import SFTConfig
from tasks import scripts
from tasks.qa_feedback import demo
from tasks.qa_feedback.demo import MINI, SCALES, SMALL, DemoConfig, stages
from tasks.qa_feedback.task import TASK
from tasks.scripts import ROOT, pipeline_of

BOTH = pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)


@BOTH
def test_stages_name_scripts_and_files_that_exist(scale, tmp_path):
    listed = stages(scale, tmp_path, lanes=2)
    names = [stage.name for stage in listed]
    assert names[-1] == "report" and len(set(names)) == len(names)
    for place, stage in enumerate(listed):
        assert set(stage.needs) <= set(names[:place]), stage.name
        if stage.command[0] == "bash":
            assert (ROOT / stage.command[1]).is_file()
        for pattern in stage.reads:
            assert glob.glob(str(ROOT / pattern)), pattern
    outputs = [output for stage in listed for output in stage.outputs]
    assert len(set(outputs)) == len(outputs)


def test_a_seed_reaches_every_stage_that_trains_and_no_other(tmp_path):
    plain = stages(MINI, tmp_path, lanes=2)
    seeded = stages(MINI, tmp_path, lanes=2, seed=3)
    for stage, with_seed in zip(plain, seeded, strict=True):
        added = with_seed.command[len(stage.command) :]
        assert added == (("train.seed=3",) if stage.name.startswith("train_") else ())
    assert DemoConfig(seed=3).folder.name == "mini-seed-3"
    assert DemoConfig().folder.name == "mini"


def test_only_small_scale_compares_dpo_and_best_of_n(tmp_path):
    mini = {stage.name for stage in stages(MINI, tmp_path, lanes=2)}
    small = {stage.name for stage in stages(SMALL, tmp_path, lanes=2)}
    assert small - mini == {
        "make_small",
        "train_dpo",
        "evaluate_dpo",
        "evaluate_sft_samples",
        "best_of_n",
    }
    assert mini - small == {"make_mini"}
    needs = {stage.name: stage.needs for stage in stages(SMALL, tmp_path, lanes=2)}
    assert {"evaluate_dpo", "best_of_n"} <= set(needs["summary"])
    assert needs["best_of_n"] == ("evaluate_sft_samples",)


def test_fine_tuning_uses_all_lanes(tmp_path):
    """A pretrained model with threads, a tiny one in several processes."""
    for scale, threads, processes in ((MINI, None, 3), (SMALL, 3, None)):
        listed = stages(scale, tmp_path, lanes=3)
        (stage,) = (stage for stage in listed if stage.name == "train_sft")
        assert (stage.threads, stage.processes) == (threads, processes)
        assert not any(other.threads for other in listed if other is not stage)
    # all later stages wait for it
    waiting = {"train_sft"}
    for stage in listed:
        if waiting.intersection(stage.needs):
            waiting.add(stage.name)
    assert waiting == {stage.name for stage in listed} - {"make_small"}


def test_every_stage_reads_the_configs_of_its_scale(tmp_path):
    for scale, other in ((MINI, SMALL), (SMALL, MINI)):
        for stage in stages(scale, tmp_path, lanes=2):
            configs = [Path(read).name for read in stage.reads if read.endswith(".yml")]
            foreign = [name for name in configs if name.startswith(f"{other.name}_")]
            # train_sft.sh names the pre-training config of mini scale at every scale
            assert set(foreign) <= {"mini_pretrain_config.yml"}, stage.name


RL = rl_config(TASK)
CONFIGS = {
    "training/small_fine_grained_config.yml": RL,
    "training/small_baseline_config.yml": RL,
    "training/small_sft_config.yml": SFTConfig,
    "training/small_dpo_config.yml": DPOConfig,
    "reward_modeling/small_rel_rm_config.yml": SegmentRMConfig,
    "reward_modeling/small_fact_rm_config.yml": SegmentRMConfig,
    "reward_modeling/small_comp_rm_config.yml": PreferenceRMConfig,
    "reward_modeling/small_baseline_rm_config.yml": PreferenceRMConfig,
}


@pytest.mark.parametrize("path", CONFIGS)
def test_the_configs_of_small_scale_are_valid(path, monkeypatch):
    for variable in ("OUTPUT_DIR", "DATA_DIR", "FGRLHF_SMALL_MODEL"):
        monkeypatch.setenv(variable, variable.lower())
    load_config(CONFIGS[path], ROOT / "tasks" / "qa_feedback" / path)


class Line:
    """A pipeline that runs nothing."""

    environments: list[dict] = []
    whole = None

    def __init__(self, stages, root, folder, environment, lanes):
        Line.environments.append(environment)
        self.folder = folder

    def run(self):
        write_json(self.folder / "summary.json", {"stages": {}, "scale": "paper"})
        (self.folder / "logs").mkdir()
        (self.folder / "logs" / "summary.log").write_text("the table")


def test_small_scale_fetches_its_model_before_the_stages(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scripts, "Pipeline", Line)
    fetched = []
    monkeypatch.setattr(scripts, "run_script", lambda path, variables: fetched.append(path) or 0)
    assert demo.demo(DemoConfig(output_dir=str(tmp_path / "mini"))) == []
    assert not fetched and "FGRLHF_SMALL_MODEL" not in Line.environments[-1]
    demo.demo(DemoConfig(scale="small", output_dir=str(tmp_path / "small")))
    assert fetched == ["scripts/get_small_model.sh"]
    assert Line.environments[-1]["SCALE"] == "small"
    assert Line.environments[-1]["FGRLHF_SMALL_MODEL"] == str(ROOT / scripts.MODEL)
    assert read_json(tmp_path / "small" / "summary.json")["scale"] == "paper"


def test_another_model_runs_all_stages_again(tmp_path):
    def fingerprints(text: str) -> dict[str, str]:
        (tmp_path / "model.safetensors").write_text(text)
        all_stages = stages(SMALL, tmp_path / "out", 2)
        return pipeline_of(all_stages, tmp_path / "out", tmp_path, 2, model=tmp_path).fingerprints

    before, after = fingerprints("one"), fingerprints("another")
    assert before.keys() == after.keys()
    assert not before.items() & after.items()


def test_folders_and_mistakes():
    assert DemoConfig().folder == ROOT / "outputs" / "qa_feedback" / "mini"
    assert settings_from(DemoConfig, ["scale=small"]).folder.name == "small"
    with pytest.raises(UserError, match="model: is not used at mini scale"):
        settings_from(DemoConfig, ["model=somewhere"])
    with pytest.raises(UserError, match="scale"):
        settings_from(DemoConfig, ["scale=huge"])

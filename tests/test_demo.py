"""The stages of `make demo` at both scales."""

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.cli.command_line import settings_from
from fgrlhf.pipeline.stages import Pipeline
from tasks.experiments import demo, stages
from tasks.experiments.demo import MINI, SMALL, DemoConfig
from tasks.experiments.stages import MODEL, ROOT


def test_a_seed_reaches_every_stage_that_trains_and_no_other(tmp_path):
    plain = demo.stages(MINI, tmp_path, lanes=2)
    seeded = demo.stages(MINI, tmp_path, lanes=2, seed=3)
    for stage, with_seed in zip(plain, seeded, strict=True):
        added = with_seed.command[len(stage.command) :]
        assert added == (("train.seed=3",) if stage.name.startswith("train_") else ())
    assert DemoConfig(seed=3).folder.name == "mini-seed-3"
    assert DemoConfig().folder.name == "mini"


def test_only_small_scale_compares_dpo_and_best_of_n(tmp_path):
    mini = {stage.name for stage in demo.stages(MINI, tmp_path, lanes=2)}
    small = {stage.name for stage in demo.stages(SMALL, tmp_path, lanes=2)}
    assert small - mini == {
        "make_small",
        "train_dpo",
        "evaluate_dpo",
        "evaluate_sft_samples",
        "best_of_n",
    }
    assert mini - small == {"make_mini"}
    needs = {stage.name: stage.needs for stage in demo.stages(SMALL, tmp_path, lanes=2)}
    assert {"evaluate_dpo", "best_of_n"} <= set(needs["summary"])
    assert needs["best_of_n"] == ("evaluate_sft_samples",)


def test_fine_tuning_uses_all_lanes(tmp_path):
    """A pretrained model with threads, a tiny one in several processes."""
    for scale, threads, processes in ((MINI, None, 3), (SMALL, 3, None)):
        listed = demo.stages(scale, tmp_path, lanes=3)
        (stage,) = (stage for stage in listed if stage.name == "train_sft")
        assert (stage.threads, stage.processes) == (threads, processes)
        assert not any(other.threads for other in listed if other is not stage)
    # all later stages wait for it
    waiting = {"train_sft"}
    for stage in listed:
        if waiting.intersection(stage.needs):
            waiting.add(stage.name)
    assert waiting == {stage.name for stage in listed} - {"make_small"}


def test_small_scale_fetches_its_model_and_every_stage_depends_on_it(tmp_path, monkeypatch):
    fetched = []
    monkeypatch.setattr(stages, "run_script", lambda path, variables: fetched.append(path) or 0)
    plan = demo.plan(DemoConfig(output_dir=str(tmp_path / "mini")))
    assert not fetched and "FGRLHF_SMALL_MODEL" not in plan.experiment.environment
    environment = demo.plan(DemoConfig(scale="small")).experiment.environment
    assert fetched == ["scripts/get_small_model.sh"]
    assert environment["SCALE"] == "small"
    assert environment["FGRLHF_SMALL_MODEL"] == str(ROOT / MODEL)

    def fingerprints(text: str) -> dict[str, str]:
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "model.safetensors").write_text(text)
        given = DemoConfig(scale="small", model=str(tmp_path), output_dir=str(tmp_path / "out"))
        return Pipeline(demo.plan(given).stages, ROOT, tmp_path / "out", {}).fingerprints

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

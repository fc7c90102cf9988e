"""`make real`: the choice of the task, its stages, and the whole pipeline with a tiny model."""

from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.cli import tiny_model
from fgrlhf.configs.strict import load_config
from fgrlhf.load import load_task
from fgrlhf.task_config import rl_config
from tasks.experiments import real
from tasks.experiments import stages as scripts
from tasks.experiments.real import RealConfig

ROOT = scripts.ROOT


@pytest.fixture
def fetched(monkeypatch):
    """Scripts are not run: their exit statuses come from this dict, by name."""
    statuses = {"download.sh": 1, "get_small_model.sh": 0}
    for module in (real, scripts):
        monkeypatch.setattr(
            module, "run_script", lambda path, variables, *arguments: statuses[Path(path).name]
        )
    return statuses


def test_the_task_depends_on_its_data(fetched, tmp_path):
    settings = RealConfig(output_dir=str(tmp_path))
    assert real.choose_task(settings)[0] == "sentiment"
    assert real.choose_task(RealConfig(source="somewhere"))[0] == "detoxification"
    fetched["download.sh"] = 0
    task, reason = real.choose_task(settings)
    assert (task, reason) == ("detoxification", "since its data could be fetched")
    fetched["download.sh"] = 1
    for name in (real.RATED_FILE, real.SPANS_FILE):
        write_json(tmp_path / "data" / "source" / name, [])
    assert real.choose_task(settings)[0] == "detoxification"
    assert real.choose_task(RealConfig(task="sentiment"))[0] == "sentiment"


def test_the_model_is_fetched_or_given(fetched, tmp_path):
    assert scripts.small_model(None) == ROOT / scripts.MODEL
    fetched["get_small_model.sh"] = 2
    with pytest.raises(UserError, match="model=FOLDER"):
        scripts.small_model(None)
    with pytest.raises(UserError, match="it has no config.json"):
        scripts.small_model(str(tmp_path))
    write_json(tmp_path / "config.json", {})
    assert scripts.small_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    "name, aspect", [("detoxification", "toxicity"), ("sentiment", "sentiment")]
)
def test_the_configs_differ_in_where_the_reward_falls(name, aspect, tmp_path, monkeypatch):
    for variable in ("OUTPUT_DIR", "DATA_DIR", "FGRLHF_SMALL_MODEL"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    config_class = rl_config(load_task(name))
    folder = ROOT / "tasks" / name / "training"
    dense = load_config(config_class, folder / "small_fine_grained_config.yml").model_dump()
    holistic = load_config(config_class, folder / "small_holistic_config.yml").model_dump()
    assert dense["reward"][aspect].pop("level") == "sentence"
    assert holistic["reward"][aspect].pop("level") == "whole"
    assert dense.pop("logging") != holistic.pop("logging")
    assert dense == holistic


def test_the_episodes_to_the_holistic_level(tmp_path):
    scores = {"fine_grained": [0.4, 0.2, 0.1], "holistic": [0.4, 0.3, 0.2]}
    for run, values in scores.items():
        lines = []
        for step, value in enumerate(values):
            evaluated = {"eval/reward": -value, "eval/judge": value}
            lines.append({"step": step, "episodes": 48 * (step + 1), **evaluated})
        write_jsonl(tmp_path / run / "metrics.jsonl", lines)
    result = real.efficiencies("detoxification", tmp_path)
    assert real.table(result).splitlines()[1:] == [
        "  reward -0.200 of holistic after 96 episodes: fine-grained after 48",
        "  judge 0.200 of holistic after 96 episodes: fine-grained after 48",
    ]
    assert result["judge"]["episodes"] == 48


@pytest.mark.slow
def test_the_whole_pipeline_with_a_tiny_model(tmp_path, capsys):
    model = tmp_path / "model"
    arguments = ["tasks.sentiment", f"output_dir={model}", "width=16", "heads=2", "layers=12"]
    tiny_model.main([*arguments, "words=good bad lovely awful ."])
    settings = RealConfig(
        task="sentiment", model=str(model), output_dir=str(tmp_path / "out"), episodes=96
    )
    real.STUDY.run(settings)
    printed = capsys.readouterr().out
    assert "task: sentiment, as task=... demands" in printed
    assert "Episodes to holistic's final level" in printed
    assert (tmp_path / "out" / "report.html").is_file()
    real.STUDY.run(settings)
    assert "report: nothing changed, reused" in capsys.readouterr().out

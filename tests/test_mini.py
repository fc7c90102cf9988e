"""`make tasks`: every task has a mini scale, and the table shows what its evaluations contain."""

import re
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.report.spread import ONE_RUN
from tasks.experiments import mini
from tasks.experiments.mini import TASKS, MiniTask, chosen_tasks, results, stage, table

ROOT = Path(__file__).parents[1]
NOT_MINI = {"sentiment"}  # needs the pretrained model


def test_every_task_with_a_mini_scale_is_run():
    names = {path.parent.name for path in (ROOT / "tasks").glob("*/task.py")}
    assert set(TASKS) == names - NOT_MINI


def test_a_task_runs_again_after_a_change_of_any_of_its_parts():
    """All programs that its scripts start, its modules, and the data that it comes with."""
    for name in TASKS:
        of_task = stage(name, TASKS[name], Path("out"))
        scripts = [*(ROOT / "tasks" / name).rglob("*.sh"), *(ROOT / "scripts").glob("*.sh")]
        text = "\n".join(path.read_text() for path in scripts)
        started = set(re.findall(r"-m ((?:fgrlhf|sft|reward_modeling)\.[a-z_.]+)", text))
        shown = {"fgrlhf.report.page", "fgrlhf.pipeline.summary", "fgrlhf.cli.main"}
        starters = {"fgrlhf.cli.torchrun", "fgrlhf.cli.stage_script"}  # of the others
        unknown = started - {*of_task.modules, *shown, *starters}
        assert "fgrlhf/cli/stage_script.py" in of_task.reads
        assert not unknown, (name, unknown)
        assert f"tasks.{name}.task" in of_task.modules
        assert not any(".tests." in module for module in of_task.modules)
    assert "tasks/imdb/**/*.jsonl" in stage("imdb", TASKS["imdb"], Path("out")).reads


def test_chosen_tasks():
    assert list(chosen_tasks([])) == list(TASKS)
    assert list(chosen_tasks(["numbers", "hanoi"])) == ["hanoi", "numbers"]
    with pytest.raises(UserError, match="`hannoi` is not among these tasks; did you mean"):
        chosen_tasks(["hannoi"])


def test_results(tmp_path):
    interval = {"mean": 0.5, "low": 0.25, "high": 0.75}
    for policy, mean in (("sft", 0.5), ("ppo", 0.625)):
        path = tmp_path / mini.evaluation("words", policy)
        write_json(path, {"reward": {**interval, "mean": mean}})
    write_json(tmp_path / "stages.json", {"words": {"seconds": 90.0, "peak_mb": 1.0}})
    rows = results({"words": MiniTask("reward", "sft", "ppo")}, tmp_path)
    assert rows[0]["minutes"] == 1.5
    assert "0.500 [0.250, 0.750]" in table(rows)
    assert "0.625 [0.250, 0.750]" in table(rows)
    assert table(rows).endswith(f"\n  {ONE_RUN}")

"""`fgrlhf new-task`: the new task passes its tests and trains; bad names write nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.cli import new_task

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tasks(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").touch()
    return tmp_path / "tasks"


def run(folder: Path, *command: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_new_task_passes_its_tests_and_its_linters(tasks, monkeypatch, capsys):
    monkeypatch.chdir(tasks.parent)
    new_task.main(["word_puzzles"])
    assert "bash tasks/word_puzzles/run.sh" in capsys.readouterr().out
    folder = tasks / "word_puzzles"
    texts = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert len(texts) == 9 and not any("@NAME@" in text for text in texts.values())
    assert os.access(folder / "run.sh", os.X_OK)
    assert [path.name for path in tasks.iterdir() if path.name.startswith(".")] == []
    done = run(
        tasks.parent, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tasks"
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    config = ["--config", str(ROOT / "pyproject.toml"), str(folder)]
    for check in (["format", "--check"], ["check"]):
        done = run(tasks.parent, sys.executable, "-m", "ruff", *check, *config)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["", "../x", "a/b", "Words", "1a", "class", "a b", "a" * 60])
def test_a_bad_name_writes_nothing(tasks, monkeypatch, name):
    monkeypatch.chdir(tasks.parent)
    with pytest.raises(UserError, match="cannot name a task"):
        new_task.main([name])
    assert [path.name for path in tasks.iterdir()] == ["__init__.py"]


def test_a_task_is_never_overwritten(tasks, monkeypatch):
    monkeypatch.chdir(tasks.parent)
    (tasks / "mine").mkdir()
    (tasks / "other.py").touch()  # a folder would hide this module
    for name in ("mine", "other"):
        with pytest.raises(UserError, match="exists: choose another name"):
            new_task.main([name])
    monkeypatch.chdir(tasks)
    with pytest.raises(UserError, match="run this in the repository's root"):
        new_task.main(["other"])


@pytest.mark.slow
def test_a_new_task_learns(tmp_path):
    """In a copy of the repository, as for a user: the reward rises by more than .5."""
    for name in ("fgrlhf", "sft", "reward_modeling", "scripts", "tasks"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(tmp_path / name)], check=True)
    done = run(tmp_path, sys.executable, "-m", "fgrlhf.cli.main", "new-task", "letters")
    assert done.returncode == 0, done.stderr
    environment = {"VIRTUAL_ENV": sys.prefix, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "tasks/letters/run.sh"],
        cwd=tmp_path,
        env={**os.environ, **environment, "PYTHONPATH": str(tmp_path), "SCALE": "mini"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rights = [
        float(line.split()[1])
        for line in done.stdout.splitlines()
        if line.strip().startswith("right ")
    ]
    before, after = rights
    assert after > before + 0.5

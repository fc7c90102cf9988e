"""A user's own modules are found in the working directory, as the command `fgrlhf` runs too."""

import sys
from pathlib import Path

import pytest

from fgrlhf.algorithms.registry import import_algorithm
from fgrlhf.base.errors import UserError
from fgrlhf.configs.user_class import import_module, make_object
from fgrlhf.load import load_task

REWARD = """
class Politeness:
    def segment_scores(self, prompts, texts):
        return [[] for _ in texts]
"""


@pytest.fixture
def as_command(tmp_path, monkeypatch):
    """The search path of the command `fgrlhf`, in which the working directory is missing."""
    there = ("", str(tmp_path), str(Path.cwd()))
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in there])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_reward_in_the_working_directory(as_command):
    (as_command / "polite_words.py").write_text(REWARD)
    reward = make_object("reward", "polite_words.Politeness", {}, "segment_scores(prompts, texts)")
    assert reward.segment_scores([None], ["please"]) == [[]]


def test_a_task_in_the_working_directory(as_command):
    (as_command / "my_puzzles").mkdir()
    text = "from fgrlhf.task import Task\n\nTASK = Task(name='my_puzzles')\n"
    (as_command / "my_puzzles" / "task.py").write_text(text)
    assert load_task("my_puzzles").name == "my_puzzles"


def test_an_algorithm_in_the_working_directory(as_command):
    (as_command / "my_algorithm.py").write_text(
        "from fgrlhf.algorithms.reinforce import Reinforce\n\nclass Mine(Reinforce):\n    pass\n"
    )
    assert import_algorithm("my_algorithm.Mine").__name__ == "Mine"


def test_files_of_the_working_directory_hide_no_package(as_command):
    (as_command / "my_only_module.py").write_text("")
    import_module("my_only_module")
    import_module("my_only_module")
    assert sys.path[-1] == str(as_command)
    assert sys.path.count(str(as_command)) == 1


def test_what_is_wrong_with_a_users_class_is_said(as_command):
    (as_command / "my_services").mkdir()
    code = "from fgrlhf.scorers.service import RemoteSettings\n\nclass Mine:\n"
    code += "    def __init__(self, url):\n        RemoteSettings(url=url)\n"
    (as_command / "my_services" / "polite.py").write_text(code)
    with pytest.raises(UserError, match="`my_services.polite` is a module: add a dot and the name"):
        make_object("scorer", "my_services.polite", {}, "score(prompts, texts)")
    arguments = {"url": "http://scores.example.com"}
    with pytest.raises(UserError, match="refuses these `args`: url: http:// would send the token"):
        make_object("scorer", "my_services.polite.Mine", arguments, "score(prompts, texts)")

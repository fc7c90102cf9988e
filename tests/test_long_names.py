"""Messages about a user's names are short, however long the names are."""

import sys

import pytest

from fgrlhf import reward_utils
from fgrlhf.base.errors import UserError
from fgrlhf.cli import data
from fgrlhf.cli import main as cli
from fgrlhf.configs.user_class import import_object, make_object
from fgrlhf.data.published import _folder_split
from fgrlhf.load import load_task
from fgrlhf.pipeline.summary import evaluated_policies
from fgrlhf.report.display import Display
from interface_html import command as feedback
from interface_html.tasks import feedback_of
from reward_modeling import command as reward_models

LONG = "a" * 5000
MOST = 1200  # characters, without the usage of a command


def command(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["fgrlhf", LONG])
    cli.main()


CASES = {
    "command": command,
    "program of feedback": lambda *_: feedback.main([LONG]),
    "action of data": lambda *_: data.main([LONG]),
    "kind of reward model": lambda *_: reward_models.main([LONG]),
    "task": lambda *_: load_task(LONG),
    "task with pages": lambda *_: feedback_of(LONG),
    "task in a package": lambda *_: load_task(f"tasks.{LONG}"),
    "module": lambda *_: import_object("reward", f"{LONG}.Reward"),
    "class": lambda *_: import_object("reward", f"fractions.{LONG}"),
    "argument": lambda *_: make_object("reward", "fractions.Fraction", {LONG: 1}, "score()"),
    "split": lambda _, folder: _folder_split(folder, LONG),
    "split of evaluations": lambda _, folder: evaluated_policies(folder, LONG, Display()),
    "segmenter": lambda *_: reward_utils._pipeline(LONG),
    "pipeline": lambda *_: reward_utils._pipeline(f"en_{LONG}_sm"),
    "segmenter of a task": lambda *_: reward_utils.add_segmenters({LONG: len}),
    "level": lambda *_: reward_utils.load_segmenter().segments("a", LONG),
}


@pytest.mark.parametrize("name", CASES)
def test_a_long_name_is_cut_in_its_message(name, monkeypatch, tmp_path):
    with pytest.raises((UserError, ValueError)) as raised:
        CASES[name](monkeypatch, tmp_path)
    message = str(raised.value)
    assert "aaa ... aaa" in message and len(message) < MOST

"""Every training stage refuses a folder in use by another process before it does anything.

It reads, loads and writes nothing.
"""

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.cli import dpo, rl, training_program
from fgrlhf.runs.stage import hold
from reward_modeling import run_fg_rm, run_pref_rm
from sft import run_sft


class Section:
    """A config that allows access only to the folder."""

    def __init__(self, **values):
        self.__dict__.update(values)


def parser_of(stage):
    """The module in which a program parses its command line."""
    return training_program if stage in (run_sft, run_fg_rm, run_pref_rm) else stage


def arguments(stage) -> list:
    """A program for any task takes the task as its first argument."""
    return [["tasks.qa_feedback"]] if stage in (rl, dpo) else [["config.yml"]]


@pytest.mark.parametrize(
    "stage", [run_sft, run_fg_rm, run_pref_rm, rl, dpo], ids=lambda stage: stage.__name__
)
def test_a_folder_that_is_held_or_cannot_be_written_is_refused_first(stage, tmp_path, monkeypatch):
    config = Section(logging=Section(save_dir=str(tmp_path / "run")))
    monkeypatch.setattr(parser_of(stage), "parse_cli", lambda *_, **__: config)
    with hold(tmp_path / "run"):
        with pytest.raises(UserError, match="another process works in"):
            stage.main(*arguments(stage))
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    (tmp_path / "file").write_text("")
    config.logging.save_dir = str(tmp_path / "file" / "run")
    with pytest.raises(UserError, match="in the place of a folder"):
        stage.main(*arguments(stage))

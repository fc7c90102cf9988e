"""Every stage that trains refuses a folder in which another process works, before it reads, loads or writes anything."""

import pytest

from fgrlhf.stage import hold
from fgrlhf.utils import UserError
from reward_modeling import run_fg_rm, run_pref_rm
from sft import run_sft
from tasks.qa_feedback.training import train_dpo, train_rl


class Section:
    """Stands for a config of which only the folder may be read."""

    def __init__(self, **values):
        self.__dict__.update(values)


@pytest.mark.parametrize("stage", [run_sft, run_fg_rm, run_pref_rm, train_rl, train_dpo], ids=lambda stage: stage.__name__)
def test_a_folder_that_is_held_is_refused_first(stage, tmp_path, monkeypatch):
    config = Section(logging=Section(save_dir=str(tmp_path / "run")))
    monkeypatch.setattr(stage, "parse_cli", lambda *_, **__: config)
    with hold(tmp_path / "run"):
        with pytest.raises(UserError, match="another process works in"):
            stage.main()
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


@pytest.mark.parametrize("stage", [run_sft, run_fg_rm, run_pref_rm, train_rl, train_dpo], ids=lambda stage: stage.__name__)
def test_a_folder_that_cannot_be_written_is_refused_first(stage, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    config = Section(logging=Section(save_dir=str(tmp_path / "file" / "run")))
    monkeypatch.setattr(stage, "parse_cli", lambda *_, **__: config)
    with pytest.raises(UserError, match="in the place of a folder"):
        stage.main()

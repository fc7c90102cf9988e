import json

import pytest

from fgrlhf.config import StrictModel
from fgrlhf.runlog import RunLog
from fgrlhf.stage import begin, digest, finish, finished, last_complete_checkpoint
from fgrlhf.utils import UserError


class Section(StrictModel):
    lr: float = 1e-5
    name: str | None = None


class Config(StrictModel):
    train: Section = Section()
    seed: int = 0


@pytest.fixture
def stage(tmp_path):
    """A finished stage in `tmp_path / "out"` that read `rows.json`."""
    (tmp_path / "rows.json").write_text("[1]")
    assert finished(tmp_path / "out", Config(), [tmp_path / "rows.json"]) is None
    assert not (tmp_path / "out").exists()  # asking leaves nothing
    begin(tmp_path / "out", Config(), [tmp_path / "rows.json"])
    RunLog(tmp_path / "out", Config()).close()
    assert finished(tmp_path / "out", Config(), [tmp_path / "rows.json"]) is None  # begun, not finished
    finish(tmp_path / "out", {"best": 3})
    return tmp_path


def test_same_settings_and_inputs_are_reused(stage):
    assert finished(stage / "out", Config(), [stage / "rows.json"]) == {"best": 3}
    begin(stage / "out", Config(), [stage / "rows.json"])
    assert (stage / "out" / "config.yaml").exists()  # the same work goes on with what is there


@pytest.mark.parametrize(
    "config, line",
    [
        (Config(seed=1), "seed: 0 there, 1 now"),
        (
            Config(train=Section(lr=2e-5, name="x")),
            "train.lr: 1e-05 there, 2e-05 now\n  train.name: None there, x now",
        ),
    ],
)
def test_other_settings_are_refused_or_redone(stage, config, line):
    with pytest.raises(UserError) as error:
        finished(stage / "out", config, [stage / "rows.json"])
    assert line in str(error.value)
    assert (stage / "out" / "result.json").exists()
    assert finished(stage / "out", config, [stage / "rows.json"], redo=True) is None
    assert (stage / "out" / "result.json").exists()  # kept until the new work begins
    begin(stage / "out", config, [stage / "rows.json"])
    assert [path.name for path in (stage / "out").iterdir()] == ["inputs.json"]


def test_other_contents_are_refused_or_redone(stage):
    (stage / "rows.json").write_text("[2]")
    with pytest.raises(UserError, match="rows.json: its contents have changed since"):
        finished(stage / "out", Config(), [stage / "rows.json"])
    assert finished(stage / "out", Config(), [stage / "rows.json"], redo=True) is None


def test_digest_of_a_checkpoint_is_that_of_its_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("a")
    before = digest(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("not part of the model")
    assert digest(tmp_path) == before
    (tmp_path / "model.safetensors").write_text("b")
    assert digest(tmp_path) != before
    assert digest("t5-large") == "name:t5-large"


def test_last_complete_checkpoint(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (tmp_path / "checkpoint-11").mkdir()
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-10"
    (tmp_path / "checkpoint-12").mkdir()
    (tmp_path / "checkpoint-12" / "trainer_state.json").write_text('{"global_st')
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-10"

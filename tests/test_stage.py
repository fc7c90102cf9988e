import json
import shutil

import pytest

from fgrlhf.config import StrictModel
from fgrlhf.runlog import RunLog
from fgrlhf.stage import begin, digest, finish, finished, last_complete_checkpoint, write_digests
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


def checkpoint(folder, step, best=None):
    """A checkpoint as the Trainer stages write it."""
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (path / name).write_text(f"{name} of step {step}")
    state = {"global_step": step, "best_global_step": best}
    (path / "trainer_state.json").write_text(json.dumps(state))
    write_digests(path)
    return path


def test_last_complete_checkpoint(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    for step in (9, 10):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-11").mkdir()
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-10"
    (checkpoint(tmp_path, 12) / "sha256.json").unlink()  # interrupted before its end
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / "checkpoint-13").write_text("a file")
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-10"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"])
def test_a_changed_or_missing_file_is_noticed(tmp_path, name):
    checkpoint(tmp_path, 2)
    path = checkpoint(tmp_path, 4) / name
    content = path.read_bytes()
    for damaged in (content[:-1], bytes([content[0] ^ 1]) + content[1:], b"", b"[]"):
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match=rf"checkpoint-4 is damaged \({name} has changed\)"):
            assert last_complete_checkpoint(tmp_path).name == "checkpoint-2"
    path.unlink()
    with pytest.warns(UserWarning, match=rf"checkpoint-4 is damaged \({name} is missing"):
        assert last_complete_checkpoint(tmp_path).name == "checkpoint-2"


@pytest.mark.parametrize("text", ["", "[]", "{}", "{\"a", '{"trainer_state.json": 5}', '{"trainer_state.json": "x", "\\u0000": "y"}'])
def test_damaged_digests(tmp_path, text):
    (checkpoint(tmp_path, 4) / "sha256.json").write_text(text)
    with pytest.warns(UserWarning), pytest.raises(UserError, match="every checkpoint in .* is damaged .*delete that folder"):
        last_complete_checkpoint(tmp_path)


@pytest.mark.parametrize("state", [[], {}, None, {"global_step": "4"}, {"global_step": 5}])
def test_a_state_of_another_form_is_damage(tmp_path, state):
    path = checkpoint(tmp_path, 4)
    (path / "trainer_state.json").write_text(json.dumps(state))
    write_digests(path)
    with pytest.warns(UserWarning, match="trainer_state.json"), pytest.raises(UserError):
        last_complete_checkpoint(tmp_path)


def test_a_checkpoint_whose_best_one_is_damaged_is_not_used(tmp_path):
    best, last = checkpoint(tmp_path, 4, best=4), checkpoint(tmp_path, 6, best=4)
    assert last_complete_checkpoint(tmp_path) == last
    (best / "model.safetensors").write_text("other")
    with pytest.warns(UserWarning, match="the best checkpoint, of step 4: model.safetensors has changed"):
        with pytest.raises(UserError, match="every checkpoint"):
            last_complete_checkpoint(tmp_path)
    shutil.rmtree(best)
    checkpoint(tmp_path, 2, best=2)
    with pytest.warns(UserWarning, match="checkpoint-6 is damaged"):
        assert last_complete_checkpoint(tmp_path).name == "checkpoint-2"


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(UserError, match="is a file where the folder of checkpoints must be"):
        last_complete_checkpoint(tmp_path / "checkpoints")

"""No training replaces its own input, or a model or stage that it did not write."""

import pytest
import test_run_sft
import tiny

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_text
from fgrlhf.cli import rl, tiny_model
from fgrlhf.configs.strict import StrictModel
from fgrlhf.runs.checkpoint import new_folder
from fgrlhf.runs.occupied import check_own_run, check_own_stage, claim_model_folder
from fgrlhf.runs.runlog import RunLog
from sft.run_sft import train

world = test_run_sft.world


class Logging(StrictModel):
    run_name: str = "rl"


class Settings(StrictModel):
    lr: float = 1.0
    logging: Logging = Logging()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_model(folder):
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {})
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def check_run(folder, settings=Settings(), inputs=()):  # noqa: B008
    check_own_run(folder, settings, inputs)


def test_a_folder_of_a_model_is_refused(tmp_path):
    model = make_model(tmp_path / "pretrained")
    for check in (check_run, lambda folder: check_own_stage(folder, [])):
        with pytest.raises(UserError, match="pretrained has a model that this command did not"):
            check(model)


@pytest.mark.parametrize("name", [".", "best", "final"])
def test_an_input_is_not_written_to(name, tmp_path):
    folder = tmp_path / "run"
    (folder / name).mkdir(parents=True)
    write_text(folder / "config.yaml", "lr: 1.0\n")
    (tmp_path / "link").symlink_to(folder / name)
    for path in (folder / name, tmp_path / "link"):
        with pytest.raises(UserError, match="is an input of this run"):
            check_run(folder, inputs=["some/hub-name", path])
        with pytest.raises(UserError, match="is an input of this run"):
            check_own_stage(folder, [path])


@pytest.mark.parametrize("name", ["result.json", "inputs.json"])
def test_a_run_does_not_begin_in_the_folder_of_a_stage(name, tmp_path):
    write_json(tmp_path / "rm" / name, {})
    with pytest.raises(UserError, match=f"folder of another stage \\({name}\\)"):
        check_run(tmp_path / "rm")


def test_saved_policies_of_other_settings_are_kept(tmp_path):
    """If the checkpoints were removed, the settings are those of config.yaml."""
    make_model(tmp_path / "final")
    with pytest.raises(UserError, match=r"final has a model that this command did not write"):
        check_run(tmp_path)
    RunLog(tmp_path, Settings()).close()
    check_run(tmp_path)
    check_run(tmp_path, Settings(logging=Logging(run_name="again")))
    with pytest.raises(UserError, match=r"other settings.*\n  lr: 1.0 there, 2.0 now"):
        check_run(tmp_path, Settings(lr=2.0))
    (tmp_path / "checkpoints" / "step-8").mkdir(parents=True)
    check_run(tmp_path, Settings(lr=2.0))  # compared with the checkpoint's settings


def test_records_and_files_of_other_programs_are_kept(tmp_path):
    (tmp_path / "best").mkdir()
    check_run(tmp_path)
    write_text(tmp_path / "best" / "notes.txt", "mine")
    with pytest.raises(UserError, match="best has files of another program"):
        check_run(tmp_path)
    write_text(tmp_path / "other" / "metrics.jsonl", "{}")
    for check in (check_run, lambda folder: check_own_stage(folder, [])):
        with pytest.raises(UserError, match=r"metrics.jsonl that this command did not write"):
            check(tmp_path / "other")
    write_text(tmp_path / "other" / "config.yaml", "lr: 1\nseed: 2\ndefaults: []\n")
    with pytest.raises(UserError, match=r"config of another program \(defaults, seed\)"):
        check_run(tmp_path / "other")
    write_text(tmp_path / "other" / "config.yaml", "lr: 1\n")
    check_run(tmp_path / "other")


def test_a_folder_behind_a_link_is_replaced(tmp_path):
    """Such as best/ on a larger disk."""
    write_text(tmp_path / "disk" / "old.txt", "old")
    (tmp_path / "best").symlink_to(tmp_path / "disk")
    with new_folder(tmp_path / "best") as folder:
        write_text(folder / "new.txt", "new")
    assert (tmp_path / "best").is_symlink() and contents(tmp_path / "disk") == {"new.txt": b"new"}


def test_data_and_new_folders_are_free(tmp_path):
    write_json(tmp_path / "data" / "train.json", [])
    for folder in (tmp_path / "data", tmp_path / "new"):
        check_run(folder, inputs=[tmp_path / "data" / "train.json"])
        check_own_stage(folder, [tmp_path / "data" / "train.json"])


def test_a_made_model_is_replaced_only_by_its_program(tmp_path):
    claim_model_folder(tmp_path, "tiny_model.json", Settings())
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    claim_model_folder(tmp_path, "tiny_model.json", Settings(lr=2.0))
    with pytest.raises(UserError, match="has a model that this command did not write"):
        claim_model_folder(tmp_path, "mini_model.json", Settings())


def test_sft_refuses_the_folder_of_its_model_or_of_another(world):
    tiny.t5().save(world / "other")
    for name, reason in [("base", "is an input of this run"), ("other", "that this command did")]:
        before = contents(world / name)
        with pytest.raises(UserError, match=reason):
            train(test_run_sft.config(world, f"logging.save_dir={world}/{name}"))
        assert contents(world / name) == before


def test_rl_refuses_the_folder_of_its_model_and_a_random_model_replaces_no_other(tmp_path):
    folder = tmp_path / "sft"
    before = contents(make_model(folder))
    model = [f"model.ckpt={folder}", f"logging.save_dir={folder}"]
    with pytest.raises(UserError, match="is an input of this run"):
        rl.main(["numbers", "tasks/numbers/mini_rl_config.yml", *model])
    with pytest.raises(UserError, match="set another output_dir"):
        tiny_model.main(["tasks.numbers", f"output_dir={folder}"])
    assert contents(folder) == before

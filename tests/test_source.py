"""Where pretrained weights come from: every stage carries it along, run.json and report show it."""

import pytest
import rl_helpers as rl
import rm_helpers as rm
import tiny

from fgrlhf.base.files import read_json, write_json, write_jsonl
from fgrlhf.configs.strict import validate
from fgrlhf.models.provenance import SOURCE_FILE, ModelSource, read_source, sources_in
from fgrlhf.policy import load_policy
from fgrlhf.report.page import write_report
from fgrlhf.runs.runlog import RunLog
from reward_modeling import run_fg_rm
from sft import run_sft
from sft.config import SFTConfig

SOURCE = ModelSource("org/tiny", "wheel tiny 1.0, 4-bit weights de-quantised")
TEXT = "org/tiny (wheel tiny 1.0, 4-bit weights de-quantised)"


@pytest.fixture
def base(tmp_path):
    """A pretrained model that `fgrlhf data model` wrote."""
    folder = tmp_path / "base"
    tiny.gpt2().save(folder)
    assert not (folder / SOURCE_FILE).exists()
    write_json(
        folder / SOURCE_FILE,
        {"model": SOURCE.model, "source": SOURCE.source, "files": {"config.json": "12"}},
    )
    return folder


def test_a_file_is_read_as_it_was_written(tmp_path):
    assert read_source(tmp_path) is None
    SOURCE.save(tmp_path)
    assert read_source(tmp_path) == SOURCE and str(SOURCE) == TEXT
    assert read_source("org/tiny") is None  # a name on the hub


@pytest.mark.parametrize(
    "contents",
    ["", "{", "[]", "{}", '{"model": 1, "source": "a"}', '{"model": "a"}', "[" * 100_000, "\0"],
)
def test_a_damaged_file_is_ignored(tmp_path, contents):
    (tmp_path / SOURCE_FILE).write_text(contents)
    assert read_source(tmp_path) is None


def test_a_long_text_is_cut(tmp_path):
    ModelSource("a" * 9000, "b\nc").save(tmp_path)
    source = read_source(tmp_path)
    assert source is not None and len(source.model) <= 200 and source.source == "b c"


def test_all_models_of_a_config_are_found(base):
    config = {"model": {"ckpt": str(base)}, "rewards": [{"ckpt": str(base), "weight": 1.0}]}
    assert sources_in(config) == {str(base): TEXT}
    assert sources_in({"a": "b\0c", "d": None, "e": 3}) == {}


def test_a_policy_carries_its_source(base, tmp_path):
    load_policy(base).save(tmp_path / "trained")
    # without the files' digests, which are those of the pretrained weights
    assert read_json(tmp_path / "trained" / SOURCE_FILE) == {
        "model": SOURCE.model,
        "source": SOURCE.source,
    }
    assert read_source(tmp_path / "trained") == SOURCE


def test_run_json_names_the_source(base, tmp_path):
    with RunLog(tmp_path / "run", {"policy": str(base)}):
        pass
    assert read_json(tmp_path / "run" / "run.json")["models"] == {str(base): TEXT}


def test_sft_carries_the_source(base, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "the cat", "response": "sees a dog ."}] * 4)
    tree = {
        "model": {"ckpt": str(base)},
        "data": {"train_file": str(tmp_path / "rows.jsonl")},
        "train": {"max_steps": 1},
        "logging": {"run_name": "sft", "save_dir": str(tmp_path / "sft")},
    }
    folder = run_sft.train(validate(SFTConfig, tree, "test"))
    assert read_source(folder) == SOURCE


def test_a_reward_model_carries_the_source(tmp_path):
    start = rm.start(tmp_path, "causal")
    SOURCE.save(start)
    tree = {
        "model": {"ckpt": str(start), "shape": "causal", "max_input_len": 128},
        "data": {
            "train_file": str(rm.segment_file(tmp_path / "train.json", 8, 0)),
            "dev_file": str(rm.segment_file(tmp_path / "dev.json", 4, 1)),
            "level": "subsentence",
            "with_context": False,
        },
        "labels": {"error": "NF-ERR"},
        "train": {"max_steps": 1},
        "logging": {"run_name": "rm", "save_dir": str(tmp_path / "rm")},
    }
    folder = run_fg_rm.train(validate(run_fg_rm.SegmentRMConfig, tree, "test"))
    assert read_source(folder) == SOURCE


def test_rl_carries_the_source_and_the_report_shows_it(base, tmp_path):
    folder = tmp_path / "outputs" / "rl"
    config = rl.config(folder, train__total_episodes=8, model__ckpt=str(base))
    trainer = rl.trainer(config, "gpt2")
    trainer.policy.source = read_source(base)
    trainer.train()
    assert read_source(folder / "final") == SOURCE
    write_report(tmp_path / "outputs", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count(TEXT) == 1 and "<dt>pretrained model</dt>" in page


def test_a_report_without_pretrained_models(tmp_path):
    folder = tmp_path / "outputs" / "rl"
    rl.trainer(rl.config(folder, train__total_episodes=8), "gpt2").train()
    assert "models" not in read_json(folder / "run.json")
    write_report(tmp_path / "outputs", tmp_path / "report.html")
    assert "pretrained model" not in (tmp_path / "report.html").read_text()

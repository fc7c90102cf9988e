"""Stages without a task folder and without a YAML file: one line each."""

import json
from pathlib import Path

import pytest
import tiny

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl, write_text
from fgrlhf.cli import evaluate, generate, rl
from fgrlhf.configs.yaml_files import dump_yaml
from fgrlhf.pipeline import compare, sweep
from fgrlhf.pipeline.experiments import Experiment


def test_rl_generate_and_evaluate_need_no_task_and_no_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.gpt2().save("model")
    for split in ("train", "test"):
        write_jsonl(f"{split}.jsonl", [{"prompt": f"the red cat {i}"} for i in range(4)])
    reward = "{kind: length, min_words: 9, value: -0.1}"
    rl.main(
        [
            *("--model.ckpt", "model", "--model.max_generated_len", "6"),
            *("--data.train_file", "train.jsonl", "--data.dev_file", "test.jsonl"),
            f"--reward.brevity={reward}",
            *("--algorithm.name", "rloo", "--env.train_num_samples_per_input", "2"),
            *("--train.total_episodes", "4", "--train.sampling_batch_size_per_card", "2"),
            *("--train.micro_batch_size", "4", "--logging.save_dir", "run"),
        ]
    )
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run.get("task") is None
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    (step,) = [line for line in map(json.loads, lines) if "reward/brevity" in line]
    assert step["reward/brevity"] < 0
    sampling = ["data_dir=.", "output_dir=out", "policy=run/final"]
    generate.main([*sampling, "num_samples=2", "max_generated_len=4"])
    rows = (tmp_path / "out/generated/run-train/samples.jsonl").read_text().splitlines()
    assert len(rows) == 4 and len(json.loads(rows[0])["responses"]) == 2
    evaluate.main([*sampling, "config=run/config.yaml", "split=test"])
    assert json.loads((tmp_path / "out/eval/run-test/summary.json").read_text())["reward"]


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """Two configs that differ in a reward, with all that they name."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    for split in ("train", "test"):
        write_jsonl(f"{split}.jsonl", [{"prompt": f"the red cat {i}"} for i in range(4)])
    for name, words in (("short", 3), ("long", 9)):
        tree = {
            "model": {"ckpt": "model"},
            "data": {"train_file": "train.jsonl", "dev_file": "test.jsonl"},
            "reward": {"brevity": {"kind": "length", "min_words": words, "value": -0.1}},
            "algorithm": {"name": "rloo"},
            "logging": {"save_dir": "unused", "run_name": name},
        }
        write_text(f"{name}.yml", dump_yaml(tree))
    return ["short.yml", "long.yml", "output_dir=out", "data_dir=.", "seeds=0"]


def stages_of(monkeypatch, main, arguments) -> list:
    """The stages that a comparison or sweep would run."""

    class StoppedError(Exception):
        pass

    def stop(self, stages, *_):
        raise StoppedError(stages)

    monkeypatch.setattr(Experiment, "run", stop)
    with pytest.raises(StoppedError) as stopped:
        main(arguments)
    return stopped.value.args[0]


def test_compare_and_sweep_need_no_task(compared, monkeypatch):
    stages = stages_of(monkeypatch, compare.main, compared)
    assert [stage.name for stage in stages] == [
        "evaluate-model",
        *("short/seed-0", "evaluate-short-seed-0", "long/seed-0", "evaluate-long-seed-0"),
    ]
    assert stages[1].command[2:4] == ("fgrlhf.cli.rl", "short.yml")
    assert stages[2].command[2] == "fgrlhf.cli.evaluate" and "=" in stages[2].command[3]
    swept = ["short.yml", "train.lr=1e-5,3e-5", "output_dir=out", "seeds=0"]
    stages = stages_of(monkeypatch, sweep.main, swept)
    assert [stage.command[3] for stage in stages] == ["short.yml", "short.yml"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["metric=rewrd"], "did you mean `reward`"),
        (["split=tset"], "tset.json does not exist"),
        (["model.ckpt=outputs/none/best"], "the run short: model.ckpt is outputs/none/best"),
        (["reference=outputs/none/best"], "reference is outputs/none/best"),
        (["data.train_file=trian.jsonl"], "did you mean `train.jsonl`"),
        (["reward.mine={kind: python, of: nowhere.Mine}"], "`nowhere.Mine` cannot be imported"),
        (["train.lrr=1"], "did you mean `train.lr`"),
    ],
)
def test_a_comparison_checks_everything_before_its_first_stage(
    compared, monkeypatch, change, message
):
    def no_stage(*_):
        raise AssertionError("a stage was started")

    monkeypatch.setattr(Experiment, "run", no_stage)
    with pytest.raises(UserError, match=message):
        compare.main([*compared, *change])

"""`fgrlhf plan`: steps, samples and hours of configs, by hand."""

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl, write_text
from fgrlhf.cli import plan
from fgrlhf.configs.yaml_files import dump_yaml


@pytest.fixture
def configs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{i}", "response": "yes"} for i in range(10)]
    write_jsonl("rows.jsonl", rows)
    model = {"ckpt": "none"}
    rl = {
        "model": model,
        "reward": {"brevity": {"kind": "length", "max_words": 3, "value": -1}},
        "algorithm": {"name": "rloo"},
        "train": {"total_episodes": 1000, "sampling_batch_size_per_card": 8},
        "logging": {"save_dir": "out", "run_name": "dense"},
    }
    sft = {
        "model": model,
        "data": {"train_file": "rows.jsonl"},
        "train": {"epochs": 2, "batch_size": 4},
        "logging": {"save_dir": "out", "run_name": "demos"},
    }
    for name, tree in (("rl", rl), ("sft", sft)):
        write_text(f"{name}.yml", dump_yaml(tree))
    return tmp_path


def test_figures_by_hand(configs, capsys):
    """1,000 / (8 x 4) responses are 32 steps; 10 rows by 4 are 3 steps of each of 2 epochs."""
    plan.main(["rl.yml", "rl.yml@again", "sft:sft.yml", "seconds.rl=9", "source=my GPU"])
    assert capsys.readouterr().out.splitlines() == [
        "stage  program  steps  samples     GPU hours",
        "dense  rl          32    1,024           0.1",
        "again  rl          32    1,024           0.1",
        "demos  sft          6       20  not measured",
        "sum of the measured: 0.2 GPU hours",
        "assumed: a step of rl 9 s (my GPU); without loading, dev evaluations and what is not"
        " measured",
    ]
    # two processes sample twice as much in a step: half the steps on twice the GPUs
    settings = plan.PlanSettings(seconds={"rl": 9.0}, processes=2)
    stage = plan.planned("rl.yml", plan.task_or_none(""), settings)
    assert (stage.steps, stage.samples, stage.hours) == (16, 1024, 16 * 9 * 2 / 3600)


def test_missing_rows_are_named_and_mistakes_refused(configs, capsys):
    (configs / "rows.jsonl").unlink()
    plan.main(["sft:sft.yml"])
    assert "?  not measured  needs rows.jsonl" in capsys.readouterr().out
    for arguments, message in [
        (["ppo:rl.yml"], "there is no program `ppo`"),
        (["seconds.rl=1"], "name a config"),
        (["sft:rl.yml"], "rl.yml has"),
        (["rl.yml", "seconds.rl=0"], "seconds"),
    ]:
        with pytest.raises(UserError, match=message):
            plan.main(arguments)

"""The entry point of RLHF with every algorithm, as the scripts call it."""

from pathlib import Path

import pytest
import tiny
from rl_helpers import metrics

from fgrlhf.algorithms import ALGORITHMS
from fgrlhf.config import load_config
from fgrlhf.policy import load_policy
from fgrlhf.utils import write_json
from tasks.qa_feedback.data import mini_world
from tasks.qa_feedback.training import train_rl
from tasks.qa_feedback.training.reward import QAConfig

TRAINING = Path(train_rl.__file__).parent
SHIPPED = ["fine_grained_config", "baseline_config", "mini_fine_grained_config", "mini_baseline_config"]


@pytest.mark.parametrize("yml", SHIPPED)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_word_changes_the_algorithm_of_every_shipped_file(name, yml, monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", "o")
    monkeypatch.setenv("DATA_DIR", "d")
    ppo = load_config(QAConfig, TRAINING / f"{yml}.yml")
    made = load_config(QAConfig, TRAINING / f"{yml}.yml", [f"algorithm.name={name}"])
    assert made.algorithm.name == name
    assert made.model_dump(exclude={"algorithm"}) == ppo.model_dump(exclude={"algorithm"})


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_entry_point_trains(name, kind, tmp_path, monkeypatch, capsys):
    for split in ("train", "dev"):
        write_json(tmp_path / f"{split}.json", [mini_world.make_row(0, split, i) for i in range(4)])
    tiny.policy(kind).save(tmp_path / "sft")
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    critic = [] if name in ("ppo", "a2c", "trpo", "nlpo") else ["model.value_model.ckpt=no/such/model"]
    train_rl.main([
        str(TRAINING / "mini_oracle_config.yml"), f"algorithm.name={name}", "env.max_generated_len=6", "env.max_input_len=64",
        "env.train_num_samples_per_input=2", "train.sampling_batch_size_per_card=2", "train.training_batch_size_per_card=4",
        "train.total_episodes=8", f"logging.save_dir={tmp_path}/out", *critic,
    ])  # fmt: skip
    rows = metrics(tmp_path / "out")
    assert len([row for row in rows if "kl" in row]) == 2 and any("eval/reward" in row for row in rows)
    assert type(load_policy(tmp_path / "out" / "best")) is type(tiny.policy(kind))
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: " + name)]
    assert notes == ([] if name in ("ppo", "a2c", "trpo", "nlpo") else [f"note: {name} has no use for ppo.lam"])

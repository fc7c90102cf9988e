"""The entry point of RLHF with every algorithm, as the scripts call it."""

import itertools
from pathlib import Path

import pytest
import tiny
import torch
from rl_helpers import CountWord, metrics
from slow import with_slow

from fgrlhf import train_rl
from fgrlhf.algorithms.registry import ALGORITHMS
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.cli import rl
from fgrlhf.configs.strict import load_config
from fgrlhf.kernels import choice as kernels
from fgrlhf.models.lora import has_adapters
from fgrlhf.policy import load_policy
from fgrlhf.reward import CombinedReward
from fgrlhf.task import Task
from fgrlhf.task_config import rl_config
from tasks.qa_feedback.data import mini_world
from tasks.qa_feedback.task import TASK

QAConfig = rl_config(TASK)

TRAINING = Path(__file__).parents[1] / "tasks/qa_feedback/training"
SHIPPED = [
    "fine_grained_config",
    "baseline_config",
    "mini_fine_grained_config",
    "mini_baseline_config",
]


WITH_CRITIC = ("ppo", "a2c", "trpo", "nlpo")
ONE_EPOCH = ("a2c", "reinforce", "rloo", "gpg")


def train(tmp_path, monkeypatch, policy, *changes):
    """Run the entry point on four prompts. Returns the folder of the run."""
    for split in ("train", "dev"):
        write_json(tmp_path / f"{split}.json", [mini_world.make_row(0, split, i) for i in range(4)])
    policy.save(tmp_path / "sft")
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    changes = ["model.max_input_len=64", f"logging.save_dir={tmp_path}/out", *changes]
    rl.main(["tasks.qa_feedback", str(TRAINING / "mini_oracle_config.yml"), *changes])
    return tmp_path / "out"


@pytest.mark.parametrize("yml", SHIPPED)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_word_changes_the_algorithm_of_every_shipped_file(name, yml, monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", "o")
    monkeypatch.setenv("DATA_DIR", "d")
    ppo = load_config(QAConfig, TRAINING / f"{yml}.yml")
    loaded = load_config(QAConfig, TRAINING / f"{yml}.yml", [f"algorithm.name={name}"])
    assert loaded.algorithm.name == name
    assert loaded.model_dump(exclude={"algorithm"}) == ppo.model_dump(exclude={"algorithm"})


KINDS = ["t5", "gpt2", "bart with adapters", "llama with adapters"]


def is_trained_in_slow_tests(name: str, kind: str) -> bool:
    """By default PPO trains an encoder-decoder and adapters, NLPO and GRPO one kind each."""
    by_default = [("ppo", "t5"), ("ppo", "llama with adapters"), ("nlpo", "t5"), ("grpo", "gpt2")]
    return (name, kind) not in by_default


@pytest.mark.parametrize(
    "name, kind", with_slow(itertools.product(ALGORITHMS, KINDS), is_trained_in_slow_tests)
)
def test_the_entry_point_trains(name, kind, tmp_path, monkeypatch, capsys):
    kind, _, adapters = kind.partition(" with ")
    critic = [] if name in WITH_CRITIC else ["model.value_model.ckpt=no/such/model"]
    lengths = ["model.max_generated_len=6", "env.train_num_samples_per_input=2"]
    batches = ["train.sampling_batch_size_per_card=2", "train.micro_batch_size=4"]
    changes = [f"algorithm.name={name}", *lengths, *batches, "train.total_episodes=8", *critic]
    changes += ["model.lora.r=2"] if adapters else []
    folder = train(tmp_path, monkeypatch, tiny.policy(kind), *changes)
    rows = metrics(folder)
    assert len([row for row in rows if "kl" in row]) == 2
    assert any("eval/reward" in row for row in rows)
    assert type(load_policy(folder / "best")) is type(tiny.policy(kind))
    printed = capsys.readouterr().out.splitlines()
    notes = [line for line in printed if line.startswith("note: " + name)]
    keys = [] if name in WITH_CRITIC else ["model.value_model.ckpt", "train.value_lr"]
    keys += ["train.n_ppo_epoch_per_rollout"] if name in ONE_EPOCH else []
    keys += ["algorithm.kl"] if name == "online_dpo" else []
    assert notes == ([f"note: {name} does not read {', '.join(sorted(keys))}"] if keys else [])


BANDIT = [
    "model.max_generated_len=8",
    "model.train_generation_kwargs.temperature=1.0",
    "model.train_generation_kwargs.top_k=0",
    "train.sampling_batch_size_per_card=8",
    "train.total_episodes=960",
    "train.lr=1e-2",
    "train.value_lr=3e-3",
    "train.kl_threshold=1e6",
    "algorithm.kl.coef=0",
    "evaluation.examples=2",
]


def bandit(tmp_path, monkeypatch, policy, *overrides):
    """Train with a reward for each `cat`. Returns the metrics of the steps and the folder."""
    monkeypatch.setattr(train_rl, "build_reward", lambda *_: CombinedReward({"gold": CountWord()}))
    folder = train(tmp_path, monkeypatch, policy, *BANDIT, *overrides)
    return [row for row in metrics(folder) if "kl" in row], folder


SHARED_HEAD = ("model.value_model.policy_value_sharing=true", "model.value_model.ckpt=null")


@pytest.mark.parametrize(
    "kind, critic",
    [
        ("chat", SHARED_HEAD),
        pytest.param("chat", (), marks=pytest.mark.slow),
        pytest.param("t5", SHARED_HEAD, marks=pytest.mark.slow),
        pytest.param("bart", (), marks=pytest.mark.slow),
    ],
)
def test_adapters_learn_a_bandit_through_the_entry_point(kind, critic, tmp_path, monkeypatch):
    policy = tiny.chat() if kind == "chat" else tiny.policy(kind)
    with (
        torch.no_grad()
    ):  # adapters change hidden states; an output layer of almost zero would hide it
        policy.model.get_output_embeddings().weight.mul_({"chat": 8, "t5": 10}.get(kind, 1))
    rows, folder = bandit(tmp_path, monkeypatch, policy, "model.lora.r=4", *critic)
    curve = [row["reward/total"] for row in rows]
    start, end = sum(curve[:3]) / 3, sum(curve[-3:]) / 3
    assert len(curve) == 30 and end > 2 and end > 3 * start, (start, end)
    assert abs(rows[0]["kl"]) < 1e-5 and rows[-1]["kl"] > 0.1
    best = load_policy(folder / "best")  # the model that later stages load
    assert not has_adapters(best.model) and (best.chat is not None) == (kind == "chat")
    assert {path.suffix for path in (folder / "best").iterdir() if path.is_file()} <= {
        ".json",
        ".safetensors",
        ".jinja",
        ".md",
        ".txt",
    }


def test_mistakes_are_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    def nothing(*args, **kwargs):
        raise AssertionError("something was loaded")

    with monkeypatch.context() as patched:
        patched.setattr(train_rl, "build_reward", nothing)
        patched.setattr(Task, "prompts", nothing)
        (tmp_path / "a").mkdir()
        with pytest.raises(UserError, match="target_modules names `query`.*k, o, q, v"):
            bandit(tmp_path / "a", patched, tiny.t5(), "model.lora.target_modules=[query]")
        with pytest.raises(UserError, match="has no chat template"):
            bandit(tmp_path / "a", patched, tiny.t5(), "model.chat_template=true")
        with pytest.raises(UserError, match="input_padding_side"):
            bandit(tmp_path / "a", patched, tiny.gpt2(), "model.input_padding_side=right")
    message = "lora.dropout is 0.1, but train.dropout is false.*train.dropout=true"
    with pytest.raises(UserError, match=message):
        bandit(tmp_path / "a", monkeypatch, tiny.t5(), "model.lora.dropout=0.1")
    with pytest.raises(UserError, match="lora.*r"):
        bandit(tmp_path / "a", monkeypatch, tiny.t5(), "model.lora.r=0")


@pytest.mark.parametrize("setting, library", [("auto", "onednn"), ("off", "off")])
def test_the_config_says_who_multiplies_and_the_run_records_it(
    setting, library, tmp_path, monkeypatch
):
    monkeypatch.delenv("FGRLHF_KERNELS")
    monkeypatch.setattr(kernels, "_chosen", None)
    measured = dict.fromkeys(kernels.SIZES, "onednn")
    monkeypatch.setattr(kernels, "_remembered_or_measured", lambda: measured)
    monkeypatch.setattr(kernels, "onednn_available", lambda: True)
    changes = (f"model.kernels={setting}", "train.total_episodes=64", "model.max_generated_len=2")
    _, folder = bandit(tmp_path, monkeypatch, tiny.t5(), *changes)
    run = read_json(folder / "run.json")
    assert run["kernels"] == dict.fromkeys(kernels.SIZES, library) and run["task"]

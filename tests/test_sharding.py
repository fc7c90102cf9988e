"""FSDP2 (`parallel.strategy: fsdp2`) in real processes: it trains as one process does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import dpo_helpers
import fsdp_worker
import pytest
import tiny
import torch
from fsdp_worker import HALF, STEPS
from rl_helpers import config, metrics
from safetensors.torch import load_file
from slow import with_slow
from test_distributed import rank_environments, wait_for_all
from transformers import T5ForConditionalGeneration

from fgrlhf.base.errors import UserError
from fgrlhf.models.sharding import is_sharded, shard, unsharded
from fgrlhf.runs import checkpoint

TOLERANCE = 1e-5
AS_ONE = ["t5", "llama", "gpt2", "grpo", "grpo-llama", "frozen-critic", "loaded-t5"]
AS_ONE += ["online-dpo", "sdpo", "sdpo-llama", "teacher"]
AS_ONE += ["loaded-llama", "lora", "lora-llama", "dpo", "dpo-llama", "dpo-lora"]
AS_ONE += ["dpo-judged", "dpo-orpo"]
STILL = ["still", "grpo-still", "llama-still", "dpo-still"]
RESUMED = [  # case, and the uninterrupted one
    ("interrupted", "t5"),
    ("grpo-interrupted", "grpo"),
    ("llama-interrupted", "llama"),
    ("lora-interrupted", "lora"),
    ("dpo-interrupted", "dpo"),
]
ALL = [*AS_ONE, *STILL, "bf16", "lora-bf16", *(name for name, _ in RESUMED), "from-one"]
EVERYTHING = [*ALL, *fsdp_worker.COMMANDS]
SLOW = [  # minutes together
    *("online-dpo", "sdpo", "sdpo-llama", "teacher", "dpo-judged", "dpo-orpo"),
    *("llama", "bf16", "gpt2", "dpo", "grpo", "grpo-llama", "frozen-critic", *STILL),
    *("loaded-t5", "loaded-llama", "lora", "lora-llama", "from-one", "dpo-llama", "dpo-lora"),
    *("lora-bf16", "grpo-interrupted", "llama-interrupted", "lora-interrupted"),
    *("dpo-interrupted", "dpo-pairs", "rl-lora", "dpo-pairs-lora"),
]


def cases(names) -> list:
    """Parameters of a test: those of SLOW are marked."""
    return with_slow(names, lambda name: name in SLOW)


def start_ranks(world: int, *arguments, script: str = fsdp_worker.__file__) -> None:
    """Run a script on `world` processes, and fail if one of them does.

    Args:
      arguments: of the script; the first one is a folder.
    """
    folder = Path(arguments[0])
    folder.mkdir(exist_ok=True)
    command = [sys.executable, script, *map(str, arguments)]
    ranks = []
    logs = [folder / f"rank{rank}.log" for rank in range(world)]
    for path, environment in zip(logs, rank_environments(world)):
        with open(path, "wb") as log:
            output = {"stdout": log, "stderr": subprocess.STDOUT}
            ranks.append(subprocess.Popen(command, env=environment, **output))
    wait_for_all(ranks)
    codes = [rank.returncode for rank in ranks]
    assert codes == [0] * world, "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> Path:
    """Results of two ranks, which have trained the cases that are not in SLOW."""
    folder = tmp_path_factory.mktemp("two")
    fsdp_worker.prepare_commands(folder)
    start_ranks(2, folder, *(name for name in EVERYTHING if name not in SLOW))
    return folder


@pytest.fixture(scope="module")
def slow_cases(two_processes) -> None:
    """Train the cases of SLOW in the same folder; this process trains the first steps of one."""
    fsdp_worker.trainer("from-one", two_processes, world=1).train(until=HALF)
    start_ranks(2, two_processes, *SLOW)


@pytest.fixture(autouse=True)
def train_slow_cases(request) -> None:
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("slow_cases")


@pytest.mark.parametrize("name", cases(AS_ONE))
def test_two_processes_train_as_one(name, two_processes, tmp_path):
    """Losses and other metrics of every step, the first gradients, and the weights after ten steps.

    Later gradients are not compared one by one: if they differed, so would the last weights.
    """
    check_against_one_process(name, two_processes, tmp_path, world=2)


def check_against_one_process(name: str, folder: Path, tmp_path: Path, world: int) -> None:
    run = fsdp_worker.trainer(name, tmp_path, world=1)
    assert not run.sharded and run.total_steps == STEPS
    alone = fsdp_worker.train(run)
    for part, tensors in alone.items():
        for rank in range(world):
            together = load_file(folder / f"{name}-{part}-rank{rank}.safetensors")
            assert together.keys() == tensors.keys()
            for key, tensor in tensors.items():
                difference = float((together[key] - tensor).abs().max())
                assert difference <= TOLERANCE, (part, rank, key, difference)
    moved = [alone["after"][key] - tensor for key, tensor in alone["before"].items()]
    assert max(float(change.abs().max()) for change in moved) > 1e-3
    if name not in fsdp_worker.DPO_CASES:
        rewards = [row["reward/total"] for row in metrics(tmp_path / name) if "kl" in row]
        assert len(rewards) == STEPS and rewards[0] > 0
    check_same_curves(tmp_path / name, folder / name)


def check_same_curves(alone: Path, together: Path) -> None:
    curves = metrics(alone), metrics(together)
    assert len(curves[0]) == len(curves[1]) > 2
    for one, two in zip(*curves):
        if one["step"] == 0 and "dpo/accuracy" in one:  # all margins are 0 except for rounding
            one["dpo/accuracy"] = two["dpo/accuracy"]
        assert two == pytest.approx(one, abs=TOLERANCE, rel=TOLERANCE), one["step"]


@pytest.mark.parametrize("name", cases(STILL))
def test_with_learning_rate_0_nothing_changes(name, two_processes):
    for rank in (0, 1):
        before, gradients, after = (
            load_file(two_processes / f"{name}-{part}-rank{rank}.safetensors")
            for part in ("before", "gradients", "after")
        )
        assert max(float(gradient.abs().max()) for gradient in gradients.values()) > 1e-3
        assert before.keys() == after.keys()
        assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())


@pytest.mark.parametrize("name", cases(ALL))
def test_a_process_stores_its_part(name, two_processes):
    ranks = [json.loads((two_processes / f"{name}-rank{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0]["stored"] + ranks[1]["stored"] == ranks[0]["total"]
    assert 0.4 < ranks[0]["stored"] / ranks[0]["total"] < 0.6
    assert ranks[0]["step"] == STEPS and ranks[0]["best"] == ranks[1]["best"]


@pytest.mark.parametrize("name", cases(fsdp_worker.COMMANDS))
def test_the_entry_points_train_as_one_process(name, two_processes, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    fsdp_worker.run_command(name, two_processes, tmp_path / name, world=1)
    check_same_curves(tmp_path / name, two_processes / f"{name}-command")
    folders = (tmp_path / name, two_processes / f"{name}-command")
    finals = (load_file(folder / "final" / "model.safetensors") for folder in folders)
    for tensor, other in zip(*(weights.values() for weights in finals), strict=True):
        assert float((tensor - other).abs().max()) <= TOLERANCE


# ---- checkpoints ---------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("name, straight", with_slow(RESUMED, lambda name, _: name in SLOW))
def test_a_resumed_run_is_the_uninterrupted_one(name, straight, two_processes):
    has_best = name not in fsdp_worker.DPO_CASES  # those are not evaluated
    straight, resumed = two_processes / straight, two_processes / name
    kept = {path.name for path in (resumed / "checkpoints").iterdir()}
    assert kept == {f"step-{HALF}", f"step-{STEPS}"}
    for name in (f"checkpoints/step-{STEPS}", "final", *(["best"] if has_best else [])):
        assert files_of(straight / name) and files_of(straight / name) == files_of(resumed / name)
    assert metrics(straight) == metrics(resumed)


def test_one_process_continues_a_run_of_two(two_processes, tmp_path):
    folder = shutil.copytree(two_processes / "interrupted", tmp_path / "interrupted")
    shutil.rmtree(folder / "checkpoints" / f"step-{STEPS}")
    run = fsdp_worker.trainer("interrupted", tmp_path, world=1)
    assert checkpoint.load_latest(run) and run.step == HALF
    saved = load_file(folder / "checkpoints" / f"step-{HALF}" / "model.safetensors")
    loaded = checkpoint.weights(run.actor_critic)
    assert loaded.keys() == saved.keys()
    assert all(t.tolist() == saved[name].tolist() for name, t in loaded.items())
    run.train()
    assert run.step == STEPS
    check_weights(run, two_processes / "t5-after-rank0.safetensors")


@pytest.mark.slow
def test_two_processes_continue_a_run_of_one(two_processes, tmp_path):
    run = fsdp_worker.trainer("t5", tmp_path, world=1)
    run.train()
    check_weights(run, two_processes / "from-one-after-rank1.safetensors")
    steps = [row["step"] for row in metrics(two_processes / "from-one") if "kl" in row]
    assert steps == list(range(STEPS))


def check_weights(run, path: Path) -> None:
    others = load_file(path)
    for name, tensor in run.actor_critic.state_dict().items():
        assert float((tensor - others[name]).abs().max()) <= TOLERANCE, name


def test_the_saved_policy_is_an_ordinary_folder(two_processes):
    model = T5ForConditionalGeneration.from_pretrained(two_processes / "t5" / "final")
    trained = load_file(two_processes / "t5-after-rank0.safetensors")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[f"policy.model.{name}"]), name
    names = sorted(path.name for path in (two_processes / "t5" / "final").iterdir())
    tokenizer = ["tokenizer.json", "tokenizer_config.json"]
    weights = ["config.json", "critic", "generation_config.json", "model.safetensors"]
    assert names == ["README.md", *weights, *tokenizer]


# ---- adapters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases(["lora", "dpo-lora"]))
def test_only_adapters_are_trained_and_they_are_merged_when_saved(name, two_processes, tmp_path):
    paths = [two_processes / f"{name}-{when}-rank1.safetensors" for when in ("before", "after")]
    before, after = map(load_file, paths)
    in_policy = [key for key in after if key.startswith("policy.")]
    moved = {key for key in in_policy if not torch.equal(before[key], after[key])}
    assert moved and all(".lora_" in key for key in moved)
    saved = load_file(two_processes / name / "checkpoints" / f"step-{STEPS}" / "model.safetensors")
    adapters = {key for key in in_policy if ".lora_" in key}
    assert {key for key in saved if key.startswith("policy.")} == adapters
    alone = fsdp_worker.trainer(name, tmp_path, world=1)
    alone.train()
    finals = [folder / name / "final" for folder in (tmp_path, two_processes)]
    policies = [load_file(final / "model.safetensors") for final in finals]
    start = fsdp_worker.policy(fsdp_worker.DPO_CASES.get(name) or fsdp_worker.CASES[name][0])
    assert policies[0].keys() == policies[1].keys() <= start.model.state_dict().keys()
    merged = 0.0
    for key, tensor in policies[0].items():
        assert float((policies[1][key] - tensor).abs().max()) <= TOLERANCE, key
        change = float((tensor - start.model.state_dict()[key]).abs().max())
        merged = max(merged, change)
    assert merged > 1e-3


@pytest.mark.parametrize("name", cases(["lora", "lora-llama", "lora-bf16"]))
def test_the_reference_is_the_policy_without_adapters(name, two_processes):
    """The KL is that of the same policy at first, also in bf16, and grows with the adapters."""
    kl = [row["kl"] for row in metrics(two_processes / name) if "kl" in row]
    assert abs(kl[0]) < 1e-6 and abs(kl[-1]) > 1e-5


# ---- precision -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_bf16_rounds_policy_and_reference_alike(two_processes):
    rows = [row for row in metrics(two_processes / "bf16") if "kl" in row]
    assert rows[0]["kl"] == 0.0 and rows[-1]["kl"] != 0.0
    exact = [row for row in metrics(two_processes / "t5") if "kl" in row]
    assert rows[0]["entropy"] == pytest.approx(exact[0]["entropy"], rel=1e-2)
    assert rows[0]["entropy"] != exact[0]["entropy"]
    weights = load_file(
        two_processes / "bf16" / "checkpoints" / f"step-{STEPS}" / "model.safetensors"
    )
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    moved = load_file(two_processes / "bf16-before-rank0.safetensors")
    assert any(not torch.equal(tensor, moved[name]) for name, tensor in weights.items())


# ---- what is refused -----------------------------------------------------------------------------

REFUSED = {
    "model.train_top_layers": {"model__train_top_layers": 1},
    "model.value_model.train_top_layers": {
        "model__value_model": {"ckpt": "tiny", "train_top_layers": 1}
    },
    "algorithm.name=trpo": {"algorithm__name": "trpo", "model__value_model": {"ckpt": "tiny"}},
    "algorithm.name=nlpo": {"algorithm__name": "nlpo"},
}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_is_not_supported_is_refused(setting, tmp_path):
    config(tmp_path, **REFUSED[setting])
    with pytest.raises(UserError, match=f"fsdp2, which does not support {setting} yet"):
        config(tmp_path, **REFUSED[setting], parallel__strategy="fsdp2")


def test_dpo_refuses_frozen_layers(tmp_path):
    dpo_helpers.config(tmp_path, model__train_top_layers=1)
    with pytest.raises(UserError, match="does not support model.train_top_layers yet"):
        dpo_helpers.config(tmp_path, model__train_top_layers=1, parallel__strategy="fsdp2")
    with pytest.raises(UserError, match="does not support dpo.reference.sync_every yet"):
        reference = {"sync_every": 5}
        dpo_helpers.config(tmp_path, dpo__reference=reference, parallel__strategy="fsdp2")


@pytest.mark.parametrize("strategy", ["fsdp", "FSDP2", "deepspeed", None])
def test_other_strategies_are_refused(strategy, tmp_path):
    for make_config in (config, dpo_helpers.config):
        with pytest.raises(UserError, match="parallel.strategy"):
            make_config(tmp_path, parallel__strategy=strategy)


def test_a_model_without_known_layers_is_refused():
    model = tiny.policy("t5").model
    model.encoder = model.decoder = None
    with pytest.raises(UserError, match="cannot divide T5For.*parallel.strategy=ddp"):
        shard(model, mesh=None)


def test_unsharded_leaves_whole_models_alone():
    policy = tiny.policy("t5")
    with unsharded(policy):
        assert torch.is_grad_enabled() and not is_sharded(policy)

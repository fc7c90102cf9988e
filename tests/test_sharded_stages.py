"""FSDP2 in SFT and reward models, in real processes: they train as one process does.

The engine is that of RL, which tests/test_sharding.py also tests with four processes.
"""

import shutil
from pathlib import Path

import fsdp_stage_worker as worker
import pytest
import torch
from rl_helpers import metrics
from safetensors.torch import load_file
from slow import with_slow
from test_sharding import files_of, start_ranks

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.policy import load_policy
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.runs import checkpoint

AS_ONE = [
    "sft-t5",
    "sft-llama",
    "sft-marian",
    "sft-lora",
    "segment-t5",
    "segment-llama",
    "segment-encoder",
    "pairs-llama",
    "pairs-t5",
    "pairs-lora",
]
RESUMED = [  # uninterrupted case, others' prefix
    ("sft-t5", "sft"),
    ("segment-llama", "segment"),
    ("pairs-lora", "pairs-lora"),
]
SLOW = [  # minutes together
    "sft-lora",
    "sft-llama",
    "sft-marian",
    "sft-bf16",
    "sft-from-one",
    "sft-to-one",
    "segment-t5",
    "segment-llama",
    "segment-interrupted",
    "segment-from-one",
    "segment-to-one",
    "pairs-llama",
    "pairs-t5",
    "pairs-lora-interrupted",
    "pairs-lora-from-one",
    "pairs-lora-to-one",
]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> Path:
    """Results of two ranks, which have trained the cases that are not in SLOW."""
    folder = tmp_path_factory.mktemp("two")
    worker.prepare(folder)
    names = [name for name in worker.CASES if name not in SLOW]
    train_in_two_processes(folder, names)
    return folder


@pytest.fixture(scope="module")
def slow_cases(two_processes) -> None:
    """Train the cases of SLOW in the same folder."""
    train_in_two_processes(two_processes, SLOW)


def train_in_two_processes(folder: Path, names: list[str]) -> None:
    """Train these cases; this process trains the first steps of some of them."""
    for name in names:
        if name.endswith("from-one"):
            worker.run(name, folder, folder, interrupt=True)
    start_ranks(2, folder, *names, script=worker.__file__)


@pytest.fixture(autouse=True)
def train_slow_cases(request) -> None:
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("slow_cases")


def cases(names) -> list:
    """Parameters of a test: those of SLOW are marked."""
    return with_slow(names, lambda name: name in SLOW)


def resumed_cases(ending: str):
    """Parameters of a test of the cases with this ending: those of SLOW are marked."""
    return pytest.mark.parametrize(
        "straight, prefix", with_slow(RESUMED, lambda _, prefix: f"{prefix}-{ending}" in SLOW)
    )


@pytest.fixture(scope="module")
def alone(two_processes, tmp_path_factory):
    """A function: name of a case -> its results in this process, and the folder of its run."""
    folder = tmp_path_factory.mktemp("one")
    results: dict[str, dict] = {}

    def train(name: str) -> tuple[dict, Path]:
        if name not in results:
            changes = {}
            if "evaluation__batch_size" in worker.CASES[name][2]:  # that of both processes
                changes["evaluation__batch_size"] = 2 * worker.DEV_BATCH
            results[name] = worker.run(name, two_processes, folder, **changes)
        return results[name], folder / name

    return train


def largest_difference(tensors: dict, others: dict) -> float:
    assert tensors.keys() == others.keys() and tensors
    return max(float((tensor - others[key]).abs().max()) for key, tensor in tensors.items())


def check_same_curves(one: Path, other: Path) -> None:
    curves = metrics(one), metrics(other)
    assert len(curves[0]) == len(curves[1]) > worker.STEPS
    for line, other_line in zip(*curves):
        for key in ("padding", "fill", "fill_unpacked"):  # of the first process
            line.pop(key, None)
            other_line.pop(key, None)
        assert other_line == pytest.approx(line, abs=TOLERANCE, rel=TOLERANCE), line["step"]
    assert any("eval/loss" in line for line in curves[0])


@pytest.mark.parametrize("name", cases(AS_ONE))
def test_two_processes_train_as_one(name, two_processes, alone):
    """Losses and other metrics of every step, the first gradients, and the weights after ten steps.

    Later gradients are not compared one by one: if they differed, so would the last weights.
    """
    one, one_folder = alone(name)
    for part in worker.PARTS:
        for rank in (0, 1):
            together = load_file(two_processes / f"{name}-{part}-rank{rank}.safetensors")
            assert largest_difference(one[part], together) <= TOLERANCE, (part, rank)
    assert largest_difference(one["before"], one["after"]) > 1e-3
    check_same_curves(one_folder, two_processes / name)
    names = {path.name for path in one_folder.iterdir()}
    assert names == {path.name for path in (two_processes / name).iterdir()}
    weights = [load_file(f / "model.safetensors") for f in (one_folder, two_processes / name)]
    assert largest_difference(*weights) <= TOLERANCE


@pytest.mark.parametrize("name", cases(AS_ONE))
def test_a_process_stores_its_part(name, two_processes):
    ranks = [read_json(two_processes / f"{name}-rank{rank}.json") for rank in (0, 1)]
    assert ranks[0]["stored"] + ranks[1]["stored"] == ranks[0]["total"] == ranks[1]["total"]
    assert 0.4 < ranks[0]["stored"] / ranks[0]["total"] < 0.6
    assert ranks[0]["steps"] == worker.STEPS


@pytest.mark.parametrize("name", cases(["sft-lora", "pairs-lora"]))
def test_only_adapters_are_trained_and_they_are_merged_when_saved(name, two_processes):
    before, after = (
        load_file(two_processes / f"{name}-{when}-rank1.safetensors")
        for when in ("before", "after")
    )
    moved = {key for key in after if not torch.equal(before[key], after[key])}
    assert moved and all(".lora_" in key or key.startswith("head.") for key in moved)
    saved = load_file(two_processes / name / "model.safetensors")
    assert not any("lora" in key or "base_layer" in key for key in saved)
    if name == "sft-lora":
        load_policy(two_processes / name)


def test_the_saved_models_are_ordinary_folders(two_processes):
    policy = load_policy(two_processes / "sft-t5")
    saved = load_file(two_processes / "sft-t5" / "model.safetensors")
    assert torch.equal(policy.model.state_dict()["shared.weight"], saved["shared.weight"])
    for name in ("segment-encoder", "pairs-lora"):
        load_reward_model(two_processes / name, lambda prompt, with_context: [])


@pytest.mark.slow
def test_bf16_weights_are_stored_in_fp32(two_processes):
    weights = load_file(two_processes / "sft-bf16" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert any(not torch.equal(t, t.bfloat16().float()) for t in weights.values())
    exact, rounded = (
        [line["loss"] for line in metrics(two_processes / name) if "loss" in line]
        for name in ("sft-t5", "sft-bf16")
    )
    assert rounded == pytest.approx(exact, rel=2e-2) and rounded != exact


# ---- checkpoints ---------------------------------------------------------------------------------


@resumed_cases("interrupted")
def test_a_resumed_run_is_the_uninterrupted_one(straight, prefix, two_processes):
    resumed = two_processes / f"{prefix}-interrupted"
    rank = read_json(two_processes / f"{prefix}-interrupted-rank0.json")
    assert rank["steps"] == worker.LATER
    assert files_of(two_processes / straight) == files_of(resumed) != {}
    for rank in (0, 1):
        last, of_resumed = (
            load_file(two_processes / f"{name}-after-rank{rank}.safetensors")
            for name in (straight, f"{prefix}-interrupted")
        )
        assert largest_difference(last, of_resumed) == 0
    assert metrics(two_processes / straight) == metrics(resumed)


@resumed_cases("from-one")
def test_two_processes_continue_a_run_of_one(straight, prefix, two_processes, alone):
    expected, _ = alone(straight)
    for rank in (0, 1):
        name = f"{prefix}-from-one"
        assert read_json(two_processes / f"{name}-rank{rank}.json")["steps"] == worker.LATER
        after = load_file(two_processes / f"{name}-after-rank{rank}.safetensors")
        assert largest_difference(expected["after"], after) <= TOLERANCE


@resumed_cases("to-one")
def test_one_process_continues_a_run_of_two(straight, prefix, two_processes, alone, tmp_path):
    """Also with whole models: the strategy may change."""
    expected, _ = alone(straight)
    name = f"{prefix}-to-one"
    copy = shutil.copytree(two_processes / name, tmp_path / name)
    recorded = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(recorded.replace(str(two_processes / name), str(copy)))
    resumed = worker.run(name, two_processes, tmp_path, parallel__strategy="ddp")
    assert resumed["steps"] == worker.LATER
    assert largest_difference(expected["after"], resumed["after"]) <= TOLERANCE


@resumed_cases("to-one")
def test_checkpoints_are_those_of_one_process(straight, prefix, two_processes, tmp_path):
    name = f"{prefix}-from-one"
    worker.run(name, two_processes, tmp_path, interrupt=True)
    one = tmp_path / name / "checkpoints" / f"step-{worker.CHECKPOINT}"
    two = two_processes / f"{prefix}-to-one" / "checkpoints" / f"step-{worker.CHECKPOINT}"

    assert {path.name for path in one.iterdir()} == {path.name for path in two.iterdir()}
    for file in checkpoint.FILES:
        tensors = [load_file(folder / file) for folder in (one, two)]
        assert largest_difference(*tensors) <= TOLERANCE
    states = [read_json(folder / "state.json") for folder in (one, two)]
    assert states[0]["optimizer_groups"] == states[1]["optimizer_groups"]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sft-t5", "segment-t5", "pairs-llama"])
@pytest.mark.parametrize(
    "setting, change",
    [
        ("model.train_top_layers", {"model__train_top_layers": 1}),
        ("model.lora.quantize", {"model__lora": {"quantize": "nf4"}}),
        ("train.optimizer=adamw_8bit", {"train__optimizer": "adamw_8bit"}),
    ],
)
def test_what_needs_whole_models_is_refused(name, setting, change, tmp_path):
    worker.config(name, tmp_path, tmp_path, **change, parallel__strategy="ddp")
    with pytest.raises(UserError, match=f"does not support {setting} yet.*=ddp"):
        worker.config(name, tmp_path, tmp_path, **change)

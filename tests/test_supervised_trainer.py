"""What SFT and reward models share: learning rate, parts of a batch, checkpoints, launchers."""

import os
from types import SimpleNamespace

import pytest
import tiny
import torch
from transformers import get_scheduler

from fgrlhf.base.errors import UserError
from fgrlhf.base_trainer import tie_note
from fgrlhf.runs.batching import micro_batches
from fgrlhf.runs.checkpoint import model_to_install, steps_to_keep
from fgrlhf.runs.distributed import check_environment
from fgrlhf.runs.optimizer import decayed
from fgrlhf.supervised_trainer import SupervisedTrainer


@pytest.mark.parametrize(
    "steps, best, kept",
    [
        ([2], None, {2}),
        ([2, 4, 6], None, {4, 6}),
        ([2, 4, 6], 2, {2, 6}),
        ([2, 4, 6], 6, {4, 6}),
        ([2, 4, 6], 3, {4, 6}),  # the best checkpoint is gone
        ([], None, set()),
    ],
)
def test_the_last_and_the_best_checkpoint_are_kept(steps, best, kept):
    assert steps_to_keep(steps, best) == kept


class Schedule(SupervisedTrainer):
    """Its learning rate only, of 20 steps."""

    total_steps = 20

    def __init__(self, kind: str, warmup: int):
        self.config = SimpleNamespace(
            train=SimpleNamespace(lr_schedule=kind, warmup_steps=float(warmup))
        )


Schedule.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("warmup", [0, 1, 5, 20, 30])
@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_the_learning_rate_is_that_of_transformers(kind, warmup):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    name = "constant_with_warmup" if kind == "constant" else kind
    theirs = get_scheduler(name, optimizer, warmup, 20)
    schedule = Schedule(kind, warmup)
    for step in range(20):
        assert schedule.lr_factor(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("n, size, world", [(8, 8, 1), (8, 3, 1), (8, 2, 2), (7, 2, 3), (1, 4, 2)])
def test_processes_make_as_many_passes_over_all_rows(n, size, world):
    indices = list(range(10, 10 + n))
    dealt = [micro_batches(indices, size, rank, world) for rank in range(world)]
    assert len({len(parts) for parts in dealt}) == 1
    read = [i for parts in dealt for part, weight in parts if weight for i in part]
    assert sorted(read) == indices
    assert all(len(part) <= size for parts in dealt for part, _ in parts)
    assert all(len(part) == 1 for parts in dealt for part, weight in parts if not weight)


def test_biases_and_norms_do_not_decay():
    model = tiny.gpt2().model
    groups = decayed(model, 0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decay, other = ({names[id(p)] for p in group["params"]} for group in groups)
    assert other and all(name.endswith("bias") or ".ln_" in name for name in other)
    assert decay | other == set(names.values()) and not any("bias" in name for name in decay)


def test_a_model_is_placed_whole_or_not_at_all(tmp_path):
    (tmp_path / "config.json").write_text("old")
    (tmp_path / ".model-killed").mkdir()
    (tmp_path / ".model-killed" / "config.json").write_text("half")
    with pytest.raises(OSError), model_to_install(tmp_path) as temporary:
        (temporary / "config.json").write_text("hal")
        raise OSError("no space left")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == "old"
    with model_to_install(tmp_path) as temporary:
        (temporary / "config.json").write_text("new")
        (temporary / "model.safetensors").write_text("weights")
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]
    assert (tmp_path / "config.json").read_text() == "new"


def test_a_folder_of_chat_templates_is_replaced(tmp_path):
    for names in (["tool", "rag"], ["tool"]):
        with model_to_install(tmp_path) as temporary:
            (temporary / "additional_chat_templates").mkdir()
            for name in names:
                (temporary / "additional_chat_templates" / name).write_text(str(names))
    (template,) = (tmp_path / "additional_chat_templates").iterdir()
    assert template.name == "tool" and template.read_text() == "['tool']"


MIXED = "ACCELERATE_MIXED_PRECISION"
DEEPSPEED = "enables DeepSpeed .*`accelerate launch --multi_gpu`"


@pytest.mark.parametrize(
    "dtype, environment, message",
    [
        ("fp32", {}, None),
        ("bf16", {MIXED: "no"}, None),
        ("bf16", {MIXED: "bf16"}, None),
        ("fp32", {"ACCELERATE_USE_FSDP": "false", "ACCELERATE_USE_CPU": "true"}, None),
        ("fp32", {MIXED: "bf16"}, "mixed precision bf16, but model.dtype is fp32"),
        ("bf16", {MIXED: "fp16"}, "mixed precision fp16, but model.dtype is bf16"),
        ("fp32", {"ACCELERATE_USE_DEEPSPEED": "true"}, DEEPSPEED),
        ("fp32", {"ACCELERATE_USE_FSDP": "True"}, "enables FSDP"),
        ("fp32", {"ACCELERATE_USE_MEGATRON_LM": "true"}, "enables Megatron-LM"),
        ("fp32", {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}, "enables a parallelism config"),
    ],
)
def test_launchers(dtype, environment, message):
    if message is None:
        check_environment(dtype, environment)
    else:
        with pytest.raises(UserError, match=message):
            check_environment(dtype, environment)


def test_a_metric_that_ties_is_named():
    note = tie_note("rougeLsum", [0.0, 0.0, 0.0], "the first one")
    assert note is not None and "dev rougeLsum is 0 at all 3 evaluations" in note
    assert tie_note("rougeLsum", [0.0, 1.0, 0.0], "the first one") is None
    assert tie_note("rougeLsum", [0.0], "the first one") is None

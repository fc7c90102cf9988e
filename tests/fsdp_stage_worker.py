"""One rank of tests/test_sharded_stages.py: SFT and reward models (RANK and WORLD_SIZE are set)."""

import gc
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import rm_helpers
import torch
from accelerate.state import AcceleratorState
from fsdp_worker import policy
from safetensors.torch import save_file

from fgrlhf.config import validate
from fgrlhf.files import write_json
from fgrlhf.models.sharding import local, whole
from fgrlhf.runs import hf_trainer
from fgrlhf.runs.hf_trainer import StageTrainer
from fgrlhf.runs.process_group import end_process_of_group
from reward_modeling import run_fg_rm, run_pref_rm, training
from reward_modeling.run_fg_rm import SegmentRMConfig
from reward_modeling.run_pref_rm import PreferenceRMConfig
from sft import run_sft
from sft.config import SFTConfig

STEPS = 7
PROGRAMS: dict[str, Any] = {
    "sft": (run_sft, SFTConfig),
    "segment": (run_fg_rm, SegmentRMConfig),
    "pairs": (run_pref_rm, PreferenceRMConfig),
}
LORA = {"r": 2, "alpha": 8.0}
CASES: dict[str, tuple[str, str, dict]] = {  # name: (program, start, changed settings)
    "sft-t5": ("sft", "t5", {}),
    "sft-llama": ("sft", "llama", {"train__gradient_checkpointing": True}),
    "sft-marian": ("sft", "marian", {}),  # transformers does not name its layers
    "sft-lora": (
        "sft",
        "llama",
        {"model__lora": LORA, "train__packing": True, "train__gradient_checkpointing": True},
    ),
    "sft-still": ("sft", "t5", {}),  # with learning rate 0
    "sft-bf16": ("sft", "t5", {"train__bf16": True}),
    "sft-interrupted": ("sft", "t5", {}),  # in step 6, and continued from the checkpoint of step 4
    "sft-from-one": ("sft", "t5", {}),  # interrupted in one process, continued in several
    "sft-to-one": ("sft", "t5", {}),  # interrupted in several, to be continued in one
    "segment-t5": ("segment", "t5", {"model__lm_logprob_feature": True}),
    "segment-encoder": ("segment", "encoder", {}),
    "segment-still": ("segment", "t5", {}),
    "pairs-llama": ("pairs", "llama", {"train__gradient_checkpointing": True}),
    "pairs-lora": ("pairs", "t5", {"model__lora": LORA}),
    "pairs-lora-interrupted": ("pairs", "t5", {"model__lora": LORA}),
    "pairs-lora-from-one": ("pairs", "t5", {"model__lora": LORA}),
    "pairs-lora-to-one": ("pairs", "t5", {"model__lora": LORA}),
}
INTERRUPT_IN = 6
PARTS = ("gradients", "before", "after")


class StopHereError(Exception):
    pass


def prepare(folder: Path, segment_rows: int = 45) -> None:
    """Write the files that all cases read.

    Args:
      segment_rows: of the segment reward models. One of them has no judged segment, so that by
        default 44 are used, and the last of their batches of 8 is not full.
    """
    rows = []
    for i in range(45):  # the last batch of a pass is filled up
        colour = ("red", "blue", "green")[i % 3]
        prompt = f"question: {'the ' * (i % 4)}{colour} answer:"
        rows.append({"prompt": prompt, "response": f"the {colour} cat {'dog ' * (i % 3)}."})
    write_json(folder / "sft-train.json", rows)
    write_json(folder / "sft-dev.json", rows[:7])
    rm_helpers.segment_file(folder / "segment-train.json", segment_rows, 0)
    rm_helpers.segment_file(folder / "segment-dev.json", 11, 1)
    write_json(folder / "pairs-train.json", rm_helpers.comparison_rows(45, 0))
    write_json(folder / "pairs-dev.json", rm_helpers.comparison_rows(11, 1))
    for kind in ("t5", "llama", "marian"):
        policy(kind).save(folder / f"start-{kind}")
    rm_helpers.start(folder, "encoder")


def config(name: str, data: Path, folder: Path, **changes):
    """The case's config.

    Args:
      data: the folder that `prepare` filled.
      folder: the run is written into a folder in it.
    """
    program, start, own_changes = CASES[name]
    tree: dict[str, dict] = {
        "model": {"ckpt": str(data / f"start-{start}")},
        "data": {
            "train_file": str(data / f"{program}-train.json"),
            "dev_file": str(data / f"{program}-dev.json"),
        },
        "train": {"max_steps": STEPS, "batch_size": 8, "micro_batch_size": 2, "lr": 1e-2},
        "evaluation": {"every_steps": 4, "batch_size": 3},
        "parallel": {"strategy": "fsdp2"},
        "logging": {"run_name": name, "save_dir": str(folder / name)},
    }
    if program == "sft":
        tree["model"] |= {"max_input_len": 32, "max_generated_len": 8}
    else:
        tree["model"]["max_length"] = 64
    if program == "segment":
        tree["data"] |= {"level": "subsentence", "with_context": False}
        tree["labels"] = {"error": "NF-ERR"}
    for path, value in {**own_changes, **changes}.items():
        section, key = path.split("__")
        tree[section][key] = value
    return validate(PROGRAMS[program][1], tree, "test config")


def run(name: str, data: Path, folder: Path, interrupt: bool = False, **changes) -> dict[str, Any]:
    """Train a case.

    Returns:
      whole tensors: `gradients` of the first step before clipping, and weights `before` the first
      step and `after` the last one; numbers of weights: those `stored` in this process, and
      `total`; `steps`.
    """
    program = PROGRAMS[CASES[name][0]][0]
    seen: dict[str, Any] = {"steps": 0}
    clip = StageTrainer._clip_grad_norm
    load_best = StageTrainer._load_best_model

    def clip_and_record(trainer, model):
        seen["steps"] += 1
        if interrupt and seen["steps"] == INTERRUPT_IN:
            raise StopHereError
        if seen["steps"] == 1:
            named = dict(trainer.model.named_parameters())
            gradients = {key: p.grad for key, p in named.items() if p.grad is not None}
            seen["gradients"] = copies(gradients)
            seen["before"] = copies(named)
            seen["stored"] = sum(local(p).numel() for p in named.values())
            seen["total"] = sum(p.numel() for p in named.values())
        return clip(trainer, model)

    def record_and_load_best(trainer):
        seen["after"] = copies(dict(trainer.model.named_parameters()))
        load_best(trainer)

    # Adam would turn the rounding error of a tiny gradient into a full step
    settings = {"adam_epsilon": 1e-2}
    if name.endswith("still"):
        settings["learning_rate"] = 0.0
    arguments = partial(hf_trainer.training_arguments, **settings)
    with (
        mock.patch.object(StageTrainer, "_clip_grad_norm", clip_and_record),
        mock.patch.object(StageTrainer, "_load_best_model", record_and_load_best),
        mock.patch.object(hf_trainer, "training_arguments", arguments),
        mock.patch.object(training, "training_arguments", arguments),
    ):
        try:
            program.train(config(name, data, folder, **changes))
        except StopHereError:
            assert interrupt
    return seen


def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Whole tensors, which later steps do not change."""
    return {key: tensor.detach().clone() for key, tensor in whole(tensors, keep=True).items()}


def run_on_this_rank(name: str, folder: Path) -> None:
    AcceleratorState._reset_state()
    if name.endswith(("interrupted", "to-one")):
        run(name, folder, folder, interrupt=True)
    if name.endswith("to-one"):
        return
    seen = run(name, folder, folder)
    rank = os.environ["RANK"]
    for part in PARTS:
        save_file(seen.pop(part), folder / f"{name}-{part}-rank{rank}.safetensors")
    (folder / f"{name}-rank{rank}.json").write_text(json.dumps(seen))


def main() -> None:
    gc.freeze()  # see `pytest_collection_finish` in conftest.py
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        run_on_this_rank(name, folder)
    end_process_of_group()


if __name__ == "__main__":
    main()

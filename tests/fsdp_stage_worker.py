"""One rank of tests/test_sharded_stages.py: SFT and reward models (RANK and WORLD_SIZE are set)."""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import rm_helpers
import torch
from accelerate.state import AcceleratorState
from fsdp_worker import policy
from safetensors.torch import save_file

from fgrlhf import supervised_trainer
from fgrlhf.base.files import write_json
from fgrlhf.base.processes import end_process_of_group
from fgrlhf.configs.strict import validate
from fgrlhf.models.sharding import local, whole
from fgrlhf.runs.optimizer import make_optimizer
from fgrlhf.supervised_trainer import SupervisedTrainer
from reward_modeling import run_fg_rm, run_pref_rm
from reward_modeling.run_fg_rm import SegmentRMConfig
from reward_modeling.run_pref_rm import PreferenceRMConfig
from sft import run_sft
from sft.config import SFTConfig

STEPS = 10
ADAM_EPS = 1e-2
PROGRAMS: dict[str, Any] = {
    "sft": (run_sft, SFTConfig),
    "segment": (run_fg_rm, SegmentRMConfig),
    "pairs": (run_pref_rm, PreferenceRMConfig),
}
LORA = {"r": 2, "alpha": 8.0}
# dev rows with unequal numbers of labels, which fill the batches of up to four processes
DEV_BATCH = 3
IN_BATCHES = {"evaluation__batch_size": DEV_BATCH}
CASES: dict[str, tuple[str, str, dict]] = {  # name: (program, start, changed settings)
    "sft-t5": ("sft", "t5", {}),
    "sft-llama": ("sft", "llama", {"train__gradient_checkpointing": True, **IN_BATCHES}),
    "sft-marian": ("sft", "marian", {}),  # transformers does not name its layers
    "sft-lora": (
        "sft",
        "llama",
        {"model__lora": LORA, "train__packing": True, "train__gradient_checkpointing": True},
    ),
    "sft-bf16": ("sft", "t5", {"model__dtype": "bf16"}),
    "sft-interrupted": ("sft", "t5", {}),  # in step 6, and continued from the checkpoint of step 4
    "sft-from-one": ("sft", "t5", {}),  # interrupted in one process, continued in several
    "sft-to-one": ("sft", "t5", {}),  # interrupted in several, to be continued in one
    "segment-t5": ("segment", "t5", {"model__lm_logprob_feature": True}),
    "segment-llama": ("segment", "llama", IN_BATCHES),
    "segment-encoder": ("segment", "encoder", {}),
    "segment-interrupted": ("segment", "llama", IN_BATCHES),
    "segment-from-one": ("segment", "llama", IN_BATCHES),
    "segment-to-one": ("segment", "llama", IN_BATCHES),
    "pairs-llama": ("pairs", "llama", {"train__gradient_checkpointing": True}),
    "pairs-t5": ("pairs", "t5", IN_BATCHES),
    "pairs-lora": ("pairs", "t5", {"model__lora": LORA}),
    "pairs-lora-interrupted": ("pairs", "t5", {"model__lora": LORA}),
    "pairs-lora-from-one": ("pairs", "t5", {"model__lora": LORA}),
    "pairs-lora-to-one": ("pairs", "t5", {"model__lora": LORA}),
}
CHECKPOINT = 4
INTERRUPT_IN = 6
LATER = STEPS - CHECKPOINT  # steps of a run that was interrupted and is continued
PARTS = ("gradients", "before", "after")


class StopHereError(Exception):
    pass


def prepare(folder: Path) -> None:
    """Write the files that all cases read.

    The rows of the usual dev files have equally many labels and do not divide evenly among
    processes. One of the 45 rows of segments has no judged one, so the last of their batches of 8
    has 4 rows.
    """
    rows = []
    for i in range(45):  # the last batch of a pass is filled up
        colour = ("red", "blue", "green")[i % 3]
        prompt = f"question: {'the ' * (i % 4)}{colour} answer:"
        rows.append({"prompt": prompt, "response": f"the {colour} cat {'dog ' * (i % 3)}."})
    write_json(folder / "sft-train.json", rows)
    equal = [row | {"response": row["response"].replace("dog ", "")} for row in rows]
    write_json(folder / "sft-dev.json", equal[:7])
    write_json(folder / "sft-dev-batches.json", rows[:12])
    rm_helpers.segment_file(folder / "segment-train.json", 45, 0)
    lines = rm_helpers.segment_file(folder / "segments.json", 60, 1).read_text().splitlines()
    of_two = [line for line in lines if count_labels(line) == 2]
    (folder / "segment-dev.json").write_text("\n".join(of_two[:11]) + "\n")
    rm_helpers.segment_file(folder / "segment-dev-batches.json", 12, 1)
    write_json(folder / "pairs-train.json", rm_helpers.comparison_rows(45, 0))
    compared = [row for row in rm_helpers.comparison_rows(100, 1) if row["preferences"]]
    of_two = [row for row in compared if len(row["preferences"]) == 2]
    write_json(folder / "pairs-dev.json", of_two[:7])
    write_json(folder / "pairs-dev-batches.json", compared[:12])
    for kind in ("t5", "llama", "marian"):
        policy(kind).save(folder / f"start-{kind}")
    rm_helpers.start(folder, "encoder")


def count_labels(line: str) -> int:
    """Judged segments of a line of a segment file."""
    return sum(tag != "Ignore" for tag in json.loads(line)["feedback_tags"])


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
        "evaluation": {"every_steps": CHECKPOINT, "batch_size": 1},
        "parallel": {"strategy": "fsdp2"},
        "logging": {"run_name": name, "save_dir": str(folder / name)},
    }
    if program == "sft":
        tree["model"] |= {"max_input_len": 32, "max_generated_len": 8}
    else:
        tree["model"]["max_input_len"] = 64
    if program == "segment":
        tree["data"] |= {"level": "subsentence", "with_context": False}
        tree["labels"] = {"error": "NF-ERR"}
    if "evaluation__batch_size" in own_changes:
        tree["data"]["dev_file"] = str(data / f"{program}-dev-batches.json")
    for path, value in {**own_changes, **changes}.items():
        section, key = path.split("__")
        tree[section][key] = value
    return validate(PROGRAMS[program][1], tree, "test config")


def with_large_eps(name, module, groups, eps, betas):
    return make_optimizer(name, module, groups, ADAM_EPS, betas)


def run(name: str, data: Path, folder: Path, interrupt: bool = False, **changes) -> dict[str, Any]:
    """Train a case.

    Returns:
      whole tensors: `gradients` of the first step before clipping, and weights `before` the first
      step and `after` the last one; numbers of weights: those `stored` in this process, and
      `total`; `steps`.
    """
    program = PROGRAMS[CASES[name][0]][0]
    seen: dict[str, Any] = {"steps": 0}
    clip = SupervisedTrainer.clip_and_step
    load_best = SupervisedTrainer.load_best

    def clip_and_record(trainer):
        seen["steps"] += 1
        if interrupt and seen["steps"] == INTERRUPT_IN:
            raise StopHereError
        if seen["steps"] == 1:
            named = dict(trainer.module.named_parameters())
            gradients = {key: p.grad for key, p in named.items() if p.grad is not None}
            seen["gradients"] = copies(gradients)
            seen["before"] = copies(named)
            seen["stored"] = sum(local(p).numel() for p in named.values())
            seen["total"] = sum(p.numel() for p in named.values())
        return clip(trainer)

    def record_and_load_best(trainer):
        seen["after"] = copies(dict(trainer.module.named_parameters()))
        load_best(trainer)

    # Adam would turn the rounding error of a tiny gradient into a full step
    with (
        mock.patch.object(SupervisedTrainer, "clip_and_step", clip_and_record),
        mock.patch.object(SupervisedTrainer, "load_best", record_and_load_best),
        mock.patch.object(supervised_trainer, "make_optimizer", with_large_eps),
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
    rank = os.environ["RANK"]
    ends_early = name.endswith("to-one")
    if ends_early or name.endswith("interrupted"):
        run(name, folder, folder, interrupt=True)
    if ends_early:
        return
    seen = run(name, folder, folder)
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

"""One rank of tests/test_distributed.py: trains every case (RANK and WORLD_SIZE are set)."""

import gc
import json
import os
import sys
from pathlib import Path
from unittest import mock

import dpo_helpers
import torch
from accelerate import Accelerator
from rl_helpers import config, trainer

from fgrlhf.base.processes import end_process_of_group
from fgrlhf.configs.sections import LoRAConfig
from fgrlhf.kernels import choice as kernels

STEPS = 4
STOP = {"train__lr": 2e-2, "train__kl_threshold": 0.01, "train__kl_patience": 2}
STOP["algorithm__kl__coef"] = 0.0
PUBLISHED = {
    "train__n_minibatches": 1,
    "train__minibatches": "published",
    "algorithm__whiten__divides_by": "sqrt_std",
    "algorithm__gae__start": "longest",
}
TRPO = {"algorithm__name": "trpo", "algorithm__cg_steps": 3}
TRPO["model__value_model"] = {"ckpt": "tiny"}
# at first old and new values are equal except for rounding
TRPO["algorithm__cliprange_value"] = None
# what a response's place in a micro-batch could change: divisors, left out responses, segments
CONSTANT = {"algorithm__loss": {"type": "constant", "leave_out": ["truncated"]}}
CONSTANT["algorithm__kl__reference"] = {"sync_every": 2}
CISPO = {"algorithm__loss": {"type": "cispo", "importance_level": "segment"}}
TURNS = {"env__kind": "python", "env__of": "rl_helpers.Echo", "env__max_turns": 3}
CASES = {  # name: (policy, whether the critic has a trunk, changed settings)
    "t5": ("t5", True, {}),
    "gpt2": ("gpt2", False, {"train__n_minibatches": 1, "train__micro_batch_size": 3}),
    "published": ("t5", False, PUBLISHED),
    "stop": ("gpt2", False, STOP),
    "grpo": ("t5", False, {"algorithm__name": "grpo", **CONSTANT}),
    "rloo": ("gpt2", False, {"algorithm__name": "rloo", **CISPO}),
    "nlpo": ("gpt2", False, {"algorithm__name": "nlpo", "algorithm__sync_every": 3}),
    "lora": ("t5", True, {}),
    "lora-llama": ("llama", False, {}),
    "bart": ("bart", True, {}),
    "flan": ("flan", True, {}),
    "trpo": ("t5", True, TRPO),
    "turns": ("gpt2", False, {**TURNS, "algorithm__name": "grpo"}),
}


def run(name: str, folder: Path, world: int, until: int | None = None):
    """Train the case with its global batch divided among `world` processes."""
    kind, own_value, changes = CASES[name]
    settings = {
        "env__train_num_samples_per_input": 4,
        "train__total_episodes": 16 * STEPS,
        "train__sampling_batch_size_per_card": 4 // world,
        "train__micro_batch_size": 4,
        "train__save_every_steps": 3,
        # Adam would turn the rounding error of a tiny gradient into a full step
        "train__adam_eps": 1e-4,
        **changes,
    }
    # its loss scales with the number of micro-batches per process, which is two either way
    if name == "published":
        settings["train__micro_batch_size"] = 8 // world
    cfg, lora = config(folder / name, **settings), LoRAConfig(r=2) if "lora" in name else None
    accelerator = Accelerator(cpu=True)
    training = trainer(cfg, kind, own_value=own_value, accelerator=accelerator, lora=lora)
    training.actor_critic.policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
    training.train(until)
    return training


def run_dpo(name: str, folder: Path):
    """Train DPO with its global batch divided: four answers per question, five questions.

    With `dpo-marks`, also KTO on marks: pairs, good and bad answers, and questions without pairs.
    """
    settings, comparisons = {}, dpo_helpers.fours()
    if name == "dpo-marks":
        settings = {"dpo__loss": ["sigmoid", "kto_spans"], "dpo__reference": {"sync_every": 3}}
        comparisons = [*dpo_helpers.pairs(marked=True)[:2], *dpo_helpers.judged()[:3]]
    cfg = dpo_helpers.config(folder / name, train__micro_batch_size=1, **settings)
    run = dpo_helpers.trainer(cfg, "t5", comparisons)
    run.train()
    return run


def agree_on_kernels(folder: Path) -> None:
    """Record the library this rank uses when each rank's measurement would choose another one."""
    rank = Accelerator(cpu=True).process_index
    set_before = os.environ.pop("FGRLHF_KERNELS", "pytorch")
    library = "pytorch" if rank == 0 else "onednn"
    with mock.patch.object(
        kernels, "_remembered_or_measured", lambda: dict.fromkeys(kernels.SIZES, library)
    ):
        kernels.use_kernels("auto")
    (folder / f"kernels-rank{rank}.json").write_text(json.dumps(kernels.choices()))
    os.environ["FGRLHF_KERNELS"] = set_before
    kernels.use_kernels()


def main() -> None:
    gc.freeze()  # see `pytest_collection_finish` in conftest.py
    torch.set_num_threads(int(os.environ.get("FGRLHF_TEST_THREADS", "1")))
    folder = Path(sys.argv[1])
    agree_on_kernels(folder)
    for name in sys.argv[2:]:
        trained = (
            run_dpo(name, folder)
            if name.startswith("dpo")
            else run(name, folder, world=2, until=3 if name == "t5" else None)
        )
        if name == "t5":  # both ranks continue from what rank 0 wrote
            trained = run(name, folder, world=2)
        digest = {
            n: float(t.double().abs().sum()) for n, t in trained.actor_critic.state_dict().items()
        }
        result = {
            "step": trained.step,
            "stopped": getattr(trained, "stopped", False),
            "weights": digest,
        }
        (folder / f"{name}-rank{trained.accelerator.process_index}.json").write_text(
            json.dumps(result)
        )
    end_process_of_group()


if __name__ == "__main__":
    main()

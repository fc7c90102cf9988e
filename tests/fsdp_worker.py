"""One rank of tests/test_sharding.py: trains every case (RANK and WORLD_SIZE are set)."""

import gc
import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import dpo_helpers
import tiny
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from rl_helpers import PROMPTS, CountWord, config
from safetensors.torch import save_file

from fgrlhf import train_rl
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.base.processes import end_process_of_group
from fgrlhf.cli import dpo, rl
from fgrlhf.configs.sections import LoRAConfig, Sampling
from fgrlhf.data.token_comparisons import encode_comparisons
from fgrlhf.dpo import DPOTrainer
from fgrlhf.models import encoder_decoder
from fgrlhf.models.lora import AdapterFree, add_adapters
from fgrlhf.models.sharding import whole
from fgrlhf.policy import load_policy
from fgrlhf.reward import CombinedReward
from fgrlhf.trainer import make_trainer
from fgrlhf.value import ActorCritic, Value
from tasks.qa_feedback.data import mini_world

STEPS = 10
HALF = 5
EMBEDDINGS = 27  # not divisible by the number of processes
FROZEN = {"model__value_model": {"ckpt": "tiny", "train_top_layers": 0}}
RECOMPUTED = {"train__gradient_checkpointing": True}
CASES = {  # name: (policy, whether the critic has a trunk, changed settings)
    "t5": ("t5", True, {}),
    "llama": ("llama", True, {"train__micro_batch_size": 4}),
    "gpt2": ("gpt2", False, RECOMPUTED),
    "grpo": ("t5", False, {"algorithm__name": "grpo"}),
    "grpo-llama": ("llama", False, {"algorithm__name": "grpo", "algorithm__kl__part_of": "loss"}),
    "online-dpo": ("t5", False, {"algorithm__name": "online_dpo", "train__micro_batch_size": 4}),
    "sdpo": ("t5", False, {"train__micro_batch_size": 4, "train__lr": 1e-2}),
    "sdpo-llama": ("llama", False, {}),
    "teacher": ("llama", False, {}),
    "frozen-critic": ("flan", True, FROZEN),
    "still": ("t5", True, {}),  # with learning rate 0
    "grpo-still": ("t5", False, {"algorithm__name": "grpo"}),
    "llama-still": ("llama", True, {}),
    "loaded-t5": ("t5", True, {}),  # as fgrlhf/train_rl.py does: only the first process reads files
    "loaded-llama": ("llama", True, {}),
    "lora": ("t5", True, {}),
    "lora-llama": ("llama", False, {"algorithm__name": "grpo", **RECOMPUTED}),
    "bf16": ("t5", True, {"model__dtype": "bf16"}),
    "lora-bf16": ("t5", True, {"model__dtype": "bf16"}),
    "lora-interrupted": ("t5", True, {}),
    "interrupted": ("t5", True, {}),  # after step HALF, and resumed
    "grpo-interrupted": ("t5", False, {"algorithm__name": "grpo"}),
    "llama-interrupted": ("llama", True, {"train__micro_batch_size": 4}),
    "from-one": ("t5", True, {}),  # one process trains to step HALF, several continue
}
# a word that the policy writes: without a reward, whitening makes advantages of rounding errors
REWARDED = {"frozen-critic": "answer"}
COMMANDS = ("rl", "dpo-pairs", "rl-lora", "dpo-pairs-lora")
TRAINING = Path(__file__).parents[1] / "tasks/qa_feedback/training"
PRECISIONS = {"fp32": "no", "bf16": "bf16"}
DPO_CASES = {
    "dpo": "t5",
    "dpo-llama": "llama",
    "dpo-lora": "llama",
    "dpo-still": "llama",
    "dpo-interrupted": "t5",
    "dpo-judged": "llama",
    "dpo-orpo": "t5",
    "dpo-from-two": "t5",  # as from-one, but two processes train to step HALF
}


DPO_LOSSES = {"dpo-judged": ["kto", "kto_spans"], "dpo-orpo": ["orpo", "ipo"]}


def policy(kind: str, seed: int = 0, lora: bool = False):
    """A tiny policy with an odd number of embeddings."""
    result = tiny.policy(kind, seed=seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        result.model.resize_token_embeddings(EMBEDDINGS, mean_resizing=False)
        if lora:
            add_adapters(result.model, LoRAConfig(r=2, alpha=8.0))
    result.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
    return result


def saved(root: Path, kind: str, seed: int) -> Path:
    """The folder of a policy, which the first process writes."""
    state = PartialState()
    folder = root / f"start-{kind}-{seed}"
    if state.is_main_process:
        policy(kind, seed).save(folder)
    state.wait_for_everyone()
    return folder


def loaded(root: Path, kind: str, seed: int = 0):
    """The same policy from a folder; processes other than the first do not read its weights."""
    folder = saved(root, kind, seed)
    empty = not PartialState().is_main_process
    result = load_policy(folder, max_input_len=64, empty=empty)
    assert (result.device.type == "meta") == empty
    return result


def dev_metrics(accelerator: Accelerator):
    """A function policy -> a metric of its greedy responses; ranks do unequal work."""

    def evaluate(current) -> dict[str, float]:
        for _ in range(1 + accelerator.process_index):
            ids, mask = current.encode([prompt.text for prompt in PROMPTS])
            response = current.generate(ids, mask, Sampling(8, do_sample=False))
        return {"reward": float(response.logprobs_BT.sum())}

    return evaluate


def trainer(name: str, folder: Path, world: int):
    """The case's trainer, with its global batch divided among `world` processes."""
    run = dpo_trainer(name, folder) if name in DPO_CASES else rl_trainer(name, folder, world)
    if name.endswith("still"):
        for group in run.optimizer.param_groups:
            group["peak_lr"] = 0.0
    return run


def rl_trainer(name: str, folder: Path, world: int):
    kind, own_value, own_changes = CASES[name]
    settings = {
        "env__train_num_samples_per_input": 4,
        "train__total_episodes": 16 * STEPS,
        "train__sampling_batch_size_per_card": 4 // world,
        "train__micro_batch_size": 8,
        "train__n_minibatches": 1,
        "evaluation__every_steps": HALF,
        # Adam would turn the rounding error of a tiny gradient into a full step
        "train__adam_eps": 1e-2,
        "parallel__strategy": "fsdp2",
        **own_changes,
    }
    if name.startswith("sdpo"):
        settings["algorithm"] = {"name": "sdpo"}
    elif name == "teacher":
        settings["algorithm"] = {"name": "distill", "teacher": str(saved(folder, kind, seed=5))}
    cfg = config(folder / name, **settings)
    AcceleratorState._reset_state()  # a process has only one precision, unless it is forgotten
    accelerator = Accelerator(cpu=True, mixed_precision=PRECISIONS[cfg.model.dtype])
    load = partial(loaded, folder) if name.startswith("loaded") else policy
    if name.startswith("lora"):
        trained = policy(kind, lora=True)
        reference: Any = AdapterFree(trained)
    else:
        trained = load(kind)
        reference = load(kind)
    trunk = load(kind, seed=1) if own_value else None
    torch.manual_seed(0)
    value = None
    if cfg.needs_values:
        value = Value(trained.hidden_size, trunk, cfg.model.value_model.train_top_layers == 0)
    reward = CombinedReward({"count": CountWord(REWARDED.get(name, "cat"))})
    models = (ActorCritic(trained, value), reference)
    prompts = [replace(prompt, references=("a dog",)) for prompt in PROMPTS]  # of sdpo's teacher
    return make_trainer(cfg, *models, reward, prompts, dev_metrics(accelerator), accelerator)


def dpo_trainer(name: str, folder: Path):
    """DPO of four answers per question, five questions: the last batch is uneven."""
    changes = {"train__micro_batch_size": 1, "train__adam_eps": 1e-2}
    changes |= {"dpo__loss": DPO_LOSSES.get(name, "sigmoid"), "parallel__strategy": "fsdp2"}
    cfg = dpo_helpers.config(folder / name, **changes)
    trained = policy(DPO_CASES[name], lora=name == "dpo-lora")
    rows = dpo_helpers.judged() if name == "dpo-judged" else dpo_helpers.fours()
    encoded = encode_comparisons(trained, rows, cfg.model.max_generated_len)
    return DPOTrainer(cfg, trained, encoded, None, Accelerator(cpu=True))


def gradients_of_first_step(run) -> dict[str, torch.Tensor]:
    """The whole gradients of the first optimiser step before clipping, by parameter."""
    recorded = {}
    clip_and_step = run.clip_and_step

    def record():
        if not recorded:
            parameters = run.actor_critic.named_parameters()
            gradients = {name: p.grad for name, p in parameters if p.grad is not None}
            recorded.update({n: t.clone() for n, t in whole(gradients, keep=True).items()})
        return clip_and_step()

    run.clip_and_step = record
    return recorded


def train(run, until: int | None = None) -> dict[str, dict[str, torch.Tensor]]:
    """Train; return whole gradients of the first step, and whole weights before and after."""
    gradients = gradients_of_first_step(run)
    before = whole_weights(run)
    run.train(until)
    return {"gradients": gradients, "before": before, "after": whole_weights(run)}


def whole_weights(run) -> dict[str, torch.Tensor]:
    tensors = whole(run.actor_critic.state_dict(), keep=True)
    return {name: tensor.clone() for name, tensor in tensors.items()}


def prepare_commands(folder: Path) -> None:
    """Write the files that `run_command` reads."""
    for split in ("train", "dev"):
        rows = [mini_world.make_row(0, split, i) for i in range(4)]
        write_json(folder / f"{split}.json", rows)
    pairs = []
    for text, better, worse in zip(dpo_helpers.TEXTS, dpo_helpers.BETTER, dpo_helpers.WORSE):
        pairs.append({"prompt": text, "chosen": better, "rejected": worse})
    write_jsonl(folder / "pairs.jsonl", pairs)
    policy("t5").save(folder / "sft")


def run_command(name: str, data: Path, save_dir: Path, world: int) -> None:
    """`fgrlhf rl` or `fgrlhf dpo` with whole models or, in several processes, sharded ones."""
    os.environ |= {"OUTPUT_DIR": str(data), "DATA_DIR": str(data)}
    changes = ["parallel.strategy=fsdp2", "model.max_generated_len=6", "model.max_input_len=64"]
    changes += ["train.micro_batch_size=2", "train.adam_eps=1e-2", f"logging.save_dir={save_dir}"]
    command = name.removesuffix("-lora")
    if command != name:
        changes += ["model.lora={r: 2, alpha: 8}", "train.lr=1e-2"]
    if command == "rl":
        changes += ["env.train_num_samples_per_input=2", "train.total_episodes=16"]
        changes += [f"train.sampling_batch_size_per_card={4 // world}"]
        # with equal rewards, whitening would turn rounding errors into advantages
        reward = CombinedReward({"gold": CountWord("d")})
        with mock.patch.object(train_rl, "build_reward", lambda *_: reward):
            rl.main(["tasks.qa_feedback", str(TRAINING / "mini_oracle_config.yml"), *changes])
    else:
        changes += ["train.batch_size=4", "data.pairs=comparisons", "data.train_file=null"]
        changes += [f"data.feedback_file={data}/pairs.jsonl"]
        dpo.main(["tasks.qa_feedback", str(TRAINING / "mini_dpo_config.yml"), *changes])


def run_case(name: str, folder: Path, world: int):
    """Train a case from its start to its end, with an interruption if its name asks for one."""
    if name.endswith("interrupted"):
        trainer(name, folder, world).train(until=HALF)
    run = trainer(name, folder, world)
    return run, train(run)


def main() -> None:
    gc.freeze()  # see `pytest_collection_finish` in conftest.py
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    names = sys.argv[2:]
    train_cases(folder, names)
    end_process_of_group()


def train_cases(folder: Path, names: list[str]) -> None:
    accelerator = Accelerator(cpu=True)
    rank, world = accelerator.process_index, accelerator.num_processes
    # one process encodes the prompts in several passes, but the other in one
    encoder_decoder.ENCODED_AT_ONCE = 8
    for name in names:
        if name in COMMANDS:
            AcceleratorState._reset_state()
            run_command(name, folder, folder / f"{name}-command", world)
            continue
        run, results = run_case(name, folder, world)
        for part, tensors in results.items():
            save_file(tensors, folder / f"{name}-{part}-rank{rank}.safetensors")
        parameters = list(run.actor_critic.parameters())
        stored = sum(parameter.to_local().numel() for parameter in parameters)
        total = sum(parameter.numel() for parameter in parameters)
        (folder / f"{name}-rank{rank}.json").write_text(
            json.dumps({"step": run.step, "best": run.best, "stored": stored, "total": total})
        )


if __name__ == "__main__":
    main()

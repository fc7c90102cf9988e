"""Small runs of the RL loop: a toy reward, hand-made rollouts, a trainer of tiny models."""

import json
from pathlib import Path

import tiny
import torch
from accelerate import Accelerator

from fgrlhf.configs.sections import LoRAConfig
from fgrlhf.configs.strict import validate
from fgrlhf.models.lora import AdapterFree
from fgrlhf.ppo import PPOTrainer
from fgrlhf.reward import CombinedReward
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.text_types import Prompt, Reply, SegmentScore
from fgrlhf.trainer import make_trainer
from fgrlhf.types import Rollout
from fgrlhf.value import ActorCritic, Value

PROMPTS = [
    Prompt(str(i), text)
    for i, text in enumerate(["the red cat", "a dog sees", "question: one two three and a bird"])
]


class CountWord:
    """1 for each occurrence of a word: a dense reward that a tiny model can learn."""

    def __init__(self, word: str = "cat"):
        self.word = word

    def segment_scores(self, prompts, texts):
        n = len(self.word)
        return [
            [SegmentScore(i, i + n, 1.0, "hit") for i in range(len(t)) if t[i : i + n] == self.word]
            for t in texts
        ]


def config(folder: Path, **changes) -> RLConfig:
    """Settings of a fast run; changes are given as section__key=value."""
    short = {"sampling_batch_size_per_card": 4, "n_ppo_epoch_per_rollout": 2, "kl_threshold": 1e6}
    short |= {"total_episodes": 64, "micro_batch_size": 8, "n_minibatches": 2}
    value = {"policy_value_sharing": True}
    tree = {
        "model": {"ckpt": "tiny", "max_generated_len": 8, "value_model": value},
        "reward": {"cat": {"kind": "count"}},
        "env": {"train_num_samples_per_input": 2},
        "algorithm": {"kl": {"coef": 0.1}},
        "train": {**short, "lr": 1e-3, "warmup_steps": 0},
        "evaluation": {"every_steps": 1000},
        "logging": {"save_dir": str(folder), "n_samples": 2},
    }
    for path, value in changes.items():
        *parents, leaf = path.split("__")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return validate(RLConfig, tree, "test config")


def trainer(
    cfg: RLConfig,
    kind: str = "t5",
    reward=None,
    evaluate=None,
    prompts=PROMPTS,
    dropout: float = 0.0,
    own_value=False,
    accelerator=None,
    lora: LoRAConfig | None = None,
    reference=None,
):
    """A trainer of tiny random models; the same arguments give the same models."""
    noise = {"dropout": dropout} if dropout else {}
    policy = tiny.policy(kind, lora=lora, **noise)
    if reference is None:
        reference = tiny.policy(kind) if lora is None else AdapterFree(policy)
    trunk = tiny.policy(kind, seed=1, **noise) if own_value else None
    torch.manual_seed(0)
    value = None
    if cfg.needs_values:
        value = Value(policy.hidden_size, trunk, aspects=cfg.critic_aspects)
    reward = reward or CombinedReward({"cat": CountWord()})
    accelerator = accelerator or Accelerator(cpu=True)
    make = PPOTrainer if cfg.algorithm.name == "ppo" else make_trainer
    actor_critic = ActorCritic(policy, value)
    return make(cfg, actor_critic, reference, reward, prompts, evaluate, accelerator)


def metrics(folder: Path, timings: bool = False) -> list[dict]:
    """The lines of metrics.jsonl, by default without the timings, which differ between runs."""
    rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if timings or not k.startswith("time/")} for row in rows]


class Echo:
    """Repeats the first word of a turn and rewards its length; ends after `turns` turns."""

    def __init__(self, turns=9):
        self.turns = turns

    def reply(self, prompt, messages):
        first = (messages[-1][1].split() or ["a"])[0]
        n = (len(messages) + 1) // 2
        return Reply(f"the {first}", float(len(messages[-1][1])), done=n == self.turns)


def rollout(mask_BT, **tensors) -> Rollout:
    """A rollout with given tensors, the others zero; texts are empty."""
    mask_BT = torch.as_tensor(mask_BT)
    B, T = mask_BT.shape
    zeros_BT = torch.zeros(B, T)
    values = {
        "prompts": tuple(Prompt(str(b), "") for b in range(B)),
        "prompt_ids_BP": torch.zeros(B, 1, dtype=torch.long),
        "prompt_mask_BP": torch.ones(B, 1, dtype=torch.long),
        "response_ids_BT": torch.zeros(B, T, dtype=torch.long),
        "response_mask_BT": mask_BT,
        "logprobs_BT": zeros_BT,
        "ref_logprobs_BT": zeros_BT,
        "values_BT": zeros_BT,
        "texts": ("",) * B,
        "char_ends": tuple((0,) * int(n) for n in mask_BT.sum(1)),
        "group_B": torch.arange(B),
        "left_padded": False,
    }
    return Rollout(**{**values, **tensors})


def lengths_mask(lengths, T=None) -> torch.Tensor:
    """mask_BT with `lengths[b]` ones in row b."""
    T = max(lengths) if T is None else T
    return torch.tensor([[1] * n + [0] * (T - n) for n in lengths])

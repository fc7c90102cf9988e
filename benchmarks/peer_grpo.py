"""TRL's GRPOTrainer compared with our on-policy loop (`algorithm.name: grpo`).

Both train the same model in fp32 on the same prompts in the same order with K responses to each
prompt. They sample the same number of tokens (the end of sequence is never among the `TOP_K`), use
the same cheap reward function and the same reference for the KL, and make one optimiser step per
rollout. TRL samples with transformers' `generate`, without vLLM. All prompts have the same length,
because TRL counts padding in a GPT-2's position ids. The samples differ, but not their number of
tokens; to show that both sides compute the same, `check` trains TRL on our samples.

The row `grpo` trains a random GPT-2, the row `smollm2` SmolLM2-135M-Instruct on longer prompts
(`fgrlhf data model smollm2`; its folder is outputs/models/smollm2, or FGRLHF_SMALL_MODEL).
"""

import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, Trainer

from benchmarks import workload
from benchmarks.harness import quiet_transformers
from benchmarks.measure import gradients, gradients_apart
from benchmarks.peer_common import (
    LR,
    TOLERANCE,
    Clock,
    ModelSize,
    Start,
    gpt2,
    train_trl,
    trl_settings,
)
from benchmarks.peers import Choice, Measured, PeerComparison, Side
from fgrlhf.algorithms.grpo import GRPO
from fgrlhf.base.errors import UserError
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.strict import validate
from fgrlhf.models.tiny import save_model
from fgrlhf.policy import Policy, load_policy
from fgrlhf.reward import CombinedReward
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.text_types import Prompt, SegmentScore
from fgrlhf.trainer import OnPolicyTrainer
from fgrlhf.value import ActorCritic

TOP_K = 20
BETA = 0.04
SMOLLM2 = "outputs/models/smollm2"


@dataclass(frozen=True)
class Size(ModelSize):
    """A step has `prompts`, each with `samples` responses of `tokens` tokens."""

    prompt_tokens: int = 450
    tokens: int = 64
    prompts: int = 4
    samples: int = 4
    steps: int = 3
    dtype: str = "fp32"

    @property
    def responses(self) -> int:
        return self.prompts * self.samples


@dataclass(frozen=True)
class Work(Start):
    """The input of both sides: the checkpoint, and the prompts in training order."""

    size: Size
    prompts: Sequence[Prompt]


# ---- the work ------------------------------------------------------------------------------------


def work_of(folder: Path, size: Size, model: Any, tokenizer: Any, words: Sequence[str]) -> Work:
    """Write the model, and draw prompts of equal length from words of one token each.

    Special tokens get the logit 0, which is never among the largest, so every response has its full
    length. The embeddings are tied, so their rows are the output layer's.
    """
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer.all_special_ids] = 0
    save_model(folder / "start", model, tokenizer)
    draw = random.Random(derive_seed("benchmark", "prompts"))
    prompts = []
    for i in range(size.prompts * size.steps):
        chosen = draw.choices(words, k=size.prompt_tokens)
        prompts.append(Prompt(str(i), "".join(" " + word for word in chosen)))
    return Work(folder, size, prompts)


def prepare(folder: Path, size: Size) -> Work:
    """A random GPT-2."""
    return work_of(folder, size, *gpt2(size), workload.words(size.vocab))


def prepare_smollm2(folder: Path, size: Size) -> Work:
    """The real model, without its chat template."""
    quiet_transformers()
    datasets.disable_progress_bars()
    source = os.environ.get("FGRLHF_SMALL_MODEL", SMOLLM2)
    if not (Path(source) / "config.json").is_file():
        raise UserError(
            f"{source} does not contain SmolLM2: run `fgrlhf data model smollm2`, or set"
            " FGRLHF_SMALL_MODEL to its folder"
        )
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = None
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    words = []
    for token in range(1000, 20_000):
        word = tokenizer.decode([token])
        if word.startswith(" ") and word[1:].isascii() and word[1:].isalpha():
            words.append(word[1:])
    return work_of(folder, size, model, tokenizer, words)


def reward_of(text: str) -> float:
    """A reward that costs nothing and differs between responses."""
    return sum(map(ord, text)) % 101 / 10


class _Letters:
    def segment_scores(self, prompts, texts):
        return [[SegmentScore(0, None, reward_of(text))] for text in texts]


# ---- the two trainers ----------------------------------------------------------------------------


class _Ours(OnPolicyTrainer):
    """The library's loop, with prompts in their given order and a timer.

    `sampled` keeps the response ids of each step.
    """

    clock: Clock
    sampled: list[list[list[int]]]

    def batch(self, step: int) -> list[Prompt]:
        return list(self.prompts[step * self.prompts_per_step : (step + 1) * self.prompts_per_step])

    def collect_and_score(self):
        rollout, rewards = super().collect_and_score()
        self.sampled.append(rollout.response_ids_BT.tolist())
        if not bool(rollout.response_mask_BT.all()):
            raise UserError(
                "a response ended early, so the sides would sample different numbers of tokens"
            )
        return rollout, rewards

    def _log_step(self, *args) -> None:
        super()._log_step(*args)
        self.clock.on_step_end()


def our_config(work: Work, micro: int) -> RLConfig:
    size = work.size
    tree = {
        "model": {
            "ckpt": work.ckpt,
            "max_generated_len": size.tokens,
            "train_generation_kwargs": {"top_k": TOP_K},
            "value_model": {"policy_value_sharing": True},  # unused: grpo has no critic
            "dtype": size.dtype,
        },
        "reward": {"letters": {"kind": "letters"}},
        "env": {"train_num_samples_per_input": size.samples},
        "algorithm": {"name": "grpo", "credit": "response", "kl": {"coef": BETA}},
        "train": {
            "total_episodes": size.responses * size.steps,
            "sampling_batch_size_per_card": size.prompts,
            "micro_batch_size": micro,
            "n_ppo_epoch_per_rollout": 1,
            "warmup_steps": 0,
            "lr": LR,
            "adam_eps": 1e-8,
            "max_grad_norm": 1.0,
            "kl_threshold": 1e9,
        },
        "evaluation": {"every_steps": 1000},
        "logging": {"save_dir": str(work.folder / "ours"), "log_interval": 1000, "n_samples": 0},
    }
    return validate(RLConfig, tree, "the benchmark's settings")


def our_trainer(
    work: Work,
    choice: Choice,
    policy: Policy | None = None,
    reference: nn.Module | None = None,
) -> _Ours:
    """The library's trainer.

    Args:
      choice: `choice["micro"]` is the number of responses per forward pass.
      policy: the policy to train; None: that of `work.ckpt`.
      reference: its reference; None: that of `work.ckpt`.
    """
    # otherwise the previous run would be continued
    shutil.rmtree(work.folder / "ours", ignore_errors=True)
    config = our_config(work, choice["micro"])
    AcceleratorState._reset_state(reset_partial_state=True)  # runs may differ in precision
    trainer = _Ours(
        config,
        GRPO(config.algorithm),
        ActorCritic(policy or load_policy(work.ckpt), None),
        reference or load_policy(work.ckpt),
        CombinedReward({"letters": _Letters()}),
        work.prompts,
        None,
        Accelerator(
            mixed_precision="bf16" if work.size.dtype == "bf16" else "no",
            cpu=not torch.cuda.is_available(),
        ),
    )
    trainer.clock = Clock()
    trainer.sampled = []
    return trainer


def trl_trainer(work: Work, choice: Choice, replay: Sequence | None = None) -> Trainer:
    """`choice["micro"]`: responses per forward pass.

    replay: response ids of every step, used instead of sampling.
    """
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]

    size = work.size
    arguments = trl_settings(
        GRPOConfig,
        work,
        choice["micro"],
        size.responses,
        num_generations=size.samples,
        max_completion_length=size.tokens,
        shuffle_dataset=False,
        temperature=1.0,
        top_k=TOP_K,
        beta=BETA,
        loss_type="dapo",  # the mean over all tokens, like ours
        lr_scheduler_type="linear",
        warmup_steps=0,
    )
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(work.ckpt),
        lambda completions, **_: [reward_of(text) for text in completions],
        args=arguments,
        train_dataset=datasets.Dataset.from_list([{"prompt": p.text} for p in work.prompts]),
        processing_class=load_policy(work.ckpt).tokenizer,
    )
    if replay is not None:
        steps = iter(replay)
        trainer._generate_single_turn = lambda *_, **__: (next(steps), None)
    return trainer


def run_ours(work: Work, choice: Choice) -> Measured:
    trainer = our_trainer(work, choice)
    trainer.train()
    return trainer.clock.measured(work.size.responses)


def run_trl(work: Work, choice: Choice) -> Measured:
    measured = train_trl(trl_trainer(work, choice), work, work.size.responses)
    return replace(measured, loss=None)  # of other samples than ours


# ---- equal work ----------------------------------------------------------------------------------


def require_equal_gradients(
    mine: tuple[nn.Module, Any], other: tuple[nn.Module, Any], what: str
) -> float:
    """|g - g'| / |g| of the first steps of two (policy, optimiser).

    Raises:
      UserError: they differ by more than `TOLERANCE`.
    """
    both = [gradients({"policy": policy}, optimizer) for policy, optimizer in (mine, other)]
    apart = gradients_apart(*both)
    if not apart <= TOLERANCE:
        raise UserError(
            f"{what}: the gradients from the same samples differ by {apart:.2g} of their norm, so"
            " the two cannot be compared"
        )
    return apart


def check(work: Work) -> dict[str, Any]:
    """Check that both sides compute the same gradients in the first step from the same samples.

    Only the first step is compared: the advantages of a group sum to 0, so the gradients of unused
    words are rounding errors, which Adam scales up. After three steps this amounts to 0.3 % of the
    gradients.
    """
    work = replace(work, size=replace(work.size, steps=1))
    ours = our_trainer(work, {"micro": work.size.samples})
    ours.train()
    peer = trl_trainer(work, {"micro": work.size.samples}, ours.sampled)
    peer.remove_callback(PrinterCallback)
    peer.train()
    peer_policy = peer.accelerator.unwrap_model(peer.model)
    apart = require_equal_gradients(
        (ours.policy.model, ours.optimizer), (peer_policy, peer.optimizer), "ours and TRL"
    )
    return {
        **asdict(work.size),
        "gradients apart": apart,
        "parameters": sum(p.numel() for p in ours.policy.parameters()),
    }


def check_short(work: Work) -> dict[str, Any]:
    """`check` on one short prompt: a whole step of the real model takes minutes."""
    short = replace(work.size, prompts=1, tokens=16)
    return check(replace(work, size=short, prompts=work.prompts[:1]))


def _comparison(name: str, model: str, size: Size, goal: float, prepare, check) -> PeerComparison:
    micros = [m for m in (4, 8, 16) if size.responses % m == 0 and m % size.samples == 0]
    choices = [{"micro": m} for m in micros]
    return PeerComparison(
        name=name,
        package="trl",
        unit="responses",
        at_least=goal,
        what=(
            f"TRL's GRPOTrainer and ours, {model}, fp32, {size.samples} responses of {size.tokens}"
            f" tokens to each of {size.prompts} prompts of {size.prompt_tokens}, one update, no"
            " vLLM"
        ),
        prepare=lambda folder: prepare(folder, size),
        check=check,
        ours=Side(run_ours, choices),
        peer=Side(run_trl, choices),
    )


def comparison(size: Size = Size()) -> PeerComparison:
    model = f"GPT-2 of {size.layers} layers, d {size.width}"
    return _comparison("grpo", model, size, 1.3, prepare, check)


def comparison_smollm2() -> PeerComparison:
    size = Size(prompt_tokens=700, tokens=64, prompts=2, samples=4, steps=2)
    model = "SmolLM2-135M-Instruct"
    return _comparison("smollm2", model, size, 3.0, prepare_smollm2, check_short)

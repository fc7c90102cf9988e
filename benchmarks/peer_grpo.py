"""TRL's GRPOTrainer compared with our on-policy loop (`algorithm.name: grpo`).

Both train the same GPT-2 in fp32 on the same prompts in the same order with K responses to each
prompt. They sample the same number of tokens (the end of sequence is never among the `TOP_K`), use
the same cheap reward function and the same reference for the KL, and make one optimiser step per
rollout. TRL samples with transformers' `generate`, without vLLM. All prompts have the same length,
because TRL counts padding in a GPT-2's position ids. The samples differ, but not their number of
tokens; to show that both sides compute the same, `check` trains TRL on our samples.
"""

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
from transformers import AutoModelForCausalLM, PrinterCallback, Trainer
from transformers.utils import logging as transformers_logging

from benchmarks.measure import gradients, gradients_apart
from benchmarks.peer_common import Clock, Words, gpt2_checkpoint
from benchmarks.peers import Choice, Comparison, Measured, Side
from fgrlhf.algorithms.grpo import GRPO
from fgrlhf.base.errors import UserError
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.strict import validate
from fgrlhf.policy import Policy, load_policy
from fgrlhf.reward import CombinedReward
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.text_types import Prompt, SegmentScore
from fgrlhf.trainer import OnPolicyTrainer
from fgrlhf.value import ActorCritic

TOLERANCE = 1e-4  # relative difference of the gradients
TOP_K = 20
BETA = 0.04
LR = 1e-4


@dataclass(frozen=True)
class Size:
    """Sizes of the workload.

    A step has `prompts`, each with `samples` responses of `tokens` tokens. The first of `steps` is
    not timed.
    """

    vocab: int = 8192
    width: int = 256
    layers: int = 4
    heads: int = 4
    prompt_tokens: int = 450
    tokens: int = 64
    prompts: int = 4
    samples: int = 4
    steps: int = 3
    words: int = 12_000
    dtype: str = "fp32"

    @property
    def responses(self) -> int:
        return self.prompts * self.samples


@dataclass(frozen=True)
class Work:
    """The input of both sides: the checkpoint, and the prompts in training order."""

    folder: Path
    size: Size
    prompts: Sequence[Prompt]

    @property
    def ckpt(self) -> str:
        return str(self.folder / "start")


def prepare(folder: Path, size: Size) -> Work:
    """Write the model and draw the prompts.

    Special tokens have the logit 0, which is never among the largest, so every response has its
    full length.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    gpt2_checkpoint(folder / "start", size)
    model = AutoModelForCausalLM.from_pretrained(folder / "start")
    with torch.no_grad():
        embeddings = model.get_input_embeddings()
        assert isinstance(embeddings, nn.Embedding)
        embeddings.weight[:3] = 0
    model.save_pretrained(folder / "start")
    draw = random.Random(derive_seed("peers", "grpo"))
    tokenizer = load_policy(folder / "start").tokenizer
    words = Words(size, draw).words
    one_token_words = [word for word in words if len(tokenizer(" " + word)["input_ids"]) == 1]
    prompts = []
    for i in range(size.prompts * size.steps):
        chosen = draw.choices(one_token_words, k=size.prompt_tokens)
        prompts.append(Prompt(str(i), "".join(" " + word for word in chosen)))
    return Work(folder, size, prompts)


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
            "policy_model": {"ckpt": work.ckpt, "train_generation_kwargs": {"top_k": TOP_K}},
            "value_model": {"policy_value_sharing": True},  # unused: grpo has no critic
            "dtype": size.dtype,
        },
        "reward": {"letters": {"kind": "letters"}},
        "env": {"max_generated_len": size.tokens, "train_num_samples_per_input": size.samples},
        "algorithm": {"name": "grpo", "credit": "response", "kl_coef": BETA},
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
            "eval_interval": 1000,
            "save_interval": 1000,
            "shuffle": False,
        },
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
    arguments = GRPOConfig(
        output_dir=str(work.folder / "peer"),
        per_device_train_batch_size=choice["micro"],
        gradient_accumulation_steps=size.responses // choice["micro"],
        num_generations=size.samples,
        max_completion_length=size.tokens,
        max_steps=size.steps,
        shuffle_dataset=False,
        temperature=1.0,
        top_k=TOP_K,
        beta=BETA,
        loss_type="dapo",  # the mean over all tokens, like ours
        learning_rate=LR,
        lr_scheduler_type="linear",
        warmup_steps=0,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        bf16=False,
        activation_checkpointing=False,  # TRL turns it on by default
        eval_strategy="no",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        dataloader_num_workers=0,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)
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
    return Measured(work.size.responses * (work.size.steps - 1), *trainer.clock.seconds())


def run_trl(work: Work, choice: Choice) -> Measured:
    trainer = trl_trainer(work, choice)
    clock = Clock()
    trainer.add_callback(clock)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    assert len(clock.ends) == work.size.steps
    return Measured(work.size.responses * (work.size.steps - 1), *clock.seconds())


# ---- equal work ----------------------------------------------------------------------------------


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
    assert isinstance(peer.optimizer, torch.optim.Optimizer)
    our_gradients = gradients({"policy": ours.policy.model}, ours.optimizer)
    peer_policy = peer.accelerator.unwrap_model(peer.model)
    peer_gradients = gradients({"policy": peer_policy}, peer.optimizer)
    apart = gradients_apart(our_gradients, peer_gradients)
    if not apart <= TOLERANCE:
        raise UserError(
            f"the gradients from the same samples differ by {apart:.2g} of their norm, so the rates"
            " cannot be compared"
        )
    return {
        **asdict(work.size),
        "gradients apart": apart,
        "parameters": sum(p.numel() for p in ours.policy.parameters()),
    }


def comparison(size: Size = Size()) -> Comparison:
    micros = [{"micro": m} for m in (4, 8, 16) if size.responses % m == 0 and m % size.samples == 0]
    return Comparison(
        name="grpo",
        package="trl",
        unit="responses",
        at_least=1.3,
        what=(
            f"TRL's GRPOTrainer and ours, GPT-2 of {size.layers} layers, d {size.width}, fp32,"
            f" {size.samples} responses of {size.tokens} tokens to each of {size.prompts} prompts,"
            " one update, no vLLM"
        ),
        prepare=lambda folder: prepare(folder, size),
        check=check,
        ours=Side(run_ours, micros),
        peer=Side(run_trl, micros),
    )

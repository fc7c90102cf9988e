"""Shared by the comparisons with TRL: models, made-up texts, a timer, TRL's settings, equality."""

import random
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import datasets
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
)

from benchmarks import workload
from benchmarks.harness import quiet_transformers
from benchmarks.peers import Measured
from fgrlhf.base.errors import UserError
from fgrlhf.models.tiny import save_model
from fgrlhf.utils import seeded

TOLERANCE = 1e-4  # of losses, of log-probabilities per token, and of gradients relative to theirs
LR = 1e-4


@dataclass(frozen=True)
class ModelSize:
    """A GPT-2, and the number of optimiser steps; the first is not timed."""

    vocab: int = 8192
    width: int = 256
    layers: int = 4
    heads: int = 4
    steps: int = 4


@dataclass(frozen=True)
class Start:
    """The folder of a comparison, which has the checkpoint that both sides start from."""

    folder: Path

    @property
    def ckpt(self) -> str:
        return str(self.folder / "start")


# ---- texts and models ----------------------------------------------------------------------------


def text_of(draw: random.Random, size: ModelSize, words: int) -> str:
    """So many words of the vocabulary, of one token each."""
    return " ".join(draw.choices(workload.words(size.vocab), k=words))


def gpt2(size: ModelSize) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """A random GPT-2 and a tokenizer.

    Dropout is 0, because TRL turns it off and ours uses the checkpoint's value.
    """
    quiet_transformers()
    datasets.disable_progress_bars()
    config = GPT2Config(
        vocab_size=size.vocab,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        n_positions=1024,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    with seeded("peers", "gpt2"):
        return GPT2LMHeadModel(config), workload.tokenizer(size.vocab, add_eos=False)


def save_gpt2(start: Start, size: ModelSize) -> None:
    """Write the checkpoint of both sides."""
    save_model(Path(start.ckpt), *gpt2(size))


# ---- the two trainers ----------------------------------------------------------------------------


class Clock(TrainerCallback):
    """Wall and CPU seconds from the end of the first optimiser step to the end of the last."""

    def __init__(self):
        self.ends: list[tuple[float, float]] = []

    def on_step_end(self, args=None, state=None, control=None, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append((perf_counter(), process_time()))

    def measured(self, units: int, loss: float | None = None) -> Measured:
        """What was timed. `units`: of one step."""
        first_wall, first_cpu = self.ends[0]
        last_wall, last_cpu = self.ends[-1]
        timed = len(self.ends) - 1
        return Measured(units * timed, last_wall - first_wall, last_cpu - first_cpu, loss)


def trl_settings(kind: Any, work: Any, micro: int, per_step: int, **own: Any) -> Any:
    """A config of TRL without anything that takes time beside the work.

    Args:
      kind: the class of the config.
      micro: examples per forward pass, of `per_step` in a step.
      own: further settings, of this trainer.
    """
    arguments = kind(
        output_dir=str(work.folder / "peer"),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=per_step // micro,
        max_steps=work.size.steps,
        learning_rate=LR,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        bf16=False,
        # Called `gradient_checkpointing` before 5.23. TRL turns it on by default.
        activation_checkpointing=False,
        eval_strategy="no",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        dataloader_num_workers=0,
        **own,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def train_trl(trainer: Trainer, work: Any, units: int) -> Measured:
    """Train one of TRL's trainers. `units`: of work in a step."""
    clock = Clock()
    trainer.add_callback(clock)
    trainer.remove_callback(PrinterCallback)
    loss = trainer.train().training_loss
    assert len(clock.ends) == work.size.steps
    return clock.measured(units, loss)


# ---- equal work ----------------------------------------------------------------------------------


def require_equal(what: str, ours: float | None, peer: float | None, tolerance=TOLERANCE) -> None:
    """Raises `UserError` if a value of both sides differs."""
    assert ours is not None and peer is not None
    if not abs(ours - peer) <= tolerance:
        raise UserError(
            f"{what} differ (ours {ours:.6f}, TRL {peer:.6f}), so the rates cannot be compared"
        )

"""Time of reward-model training on comparisons: CPU seconds of an optimiser step.

    python -m benchmarks.reward_training [work=mini] [steps=12] [threads=1]

The work is that of run_pref_rm.py on random words: forward, backward and optimiser step on prompts
with four answers and six pairs each, without evaluation, checkpoints and logging.

- mini: the encoder-decoder of the mini world, with its lengths
- causal: a decoder-only model with prompts of 700 tokens and answers of 100

The first step is not timed. To compare two releases, run the program of each on the same machine.
"""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.peer_common import Clock
from benchmarks.peer_reward_trainer import load, pair_config, pair_rows, pair_trainer, read_examples
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel
from fgrlhf.models.tiny import save_model, tiny_encoder_decoder, word_tokenizer
from fgrlhf.utils import seeded
from reward_modeling.run_pref_rm import with_features
from reward_modeling.training import place, start

WORDS = [f"w{i}" for i in range(900)]


@dataclass(frozen=True)
class Work:
    """Bounds of lengths in words, and prompts per optimiser step."""

    shape: str
    prompt_words: tuple[int, int]
    answer_words: tuple[int, int]
    prompts: int
    feature: bool


WORKS = {
    "mini": Work("seq2seq", (85, 125), (30, 55), prompts=6, feature=True),
    "causal": Work("causal", (700, 700), (100, 100), prompts=1, feature=False),
}


class RewardTrainingSettings(StrictModel):
    """Options of the program."""

    work: Literal["mini", "causal"] = Field(default="mini", description="model and lengths")
    steps: PositiveInt = Field(default=12, description="optimiser steps; the first is not timed")
    threads: PositiveInt = Field(default=1, description="of PyTorch")


def save_checkpoint(folder: Path, work: Work) -> None:
    tokenizer: Any = word_tokenizer([" ".join(WORDS)], add_eos=work.shape == "seq2seq")
    if work.shape == "seq2seq":
        model: Any = tiny_encoder_decoder(tokenizer, seed=0)
    else:
        # the layers of SmolLM2-135M, fewer of them
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=4,
            num_attention_heads=9,
            num_key_value_heads=3,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        with seeded(0, "model"):
            model = LlamaForCausalLM(config)
    save_model(folder / "start", model, tokenizer)


def measure(settings: RewardTrainingSettings, folder: Path) -> list[float]:
    """CPU seconds of every timed step."""
    work = WORKS[settings.work]
    save_checkpoint(folder, work)
    draw = random.Random(0)
    rows = pair_rows(
        work.prompts * settings.steps,
        lambda: " ".join(draw.choices(WORDS, k=draw.randint(*work.prompt_words))),
        lambda: " ".join(draw.choices(WORDS, k=draw.randint(*work.answer_words))),
        draw,
    )
    model = {"shape": work.shape, "max_input_len": 1200, "lm_logprob_feature": work.feature}
    train = {"max_steps": settings.steps, "batch_size": work.prompts}
    config = pair_config(folder, rows, model, train)
    accelerator = start(config)
    network, inputs = load(config)
    examples = read_examples(config, inputs)
    place(network, config, accelerator)
    examples = with_features(network, inputs, examples)
    clock = Clock()
    pair_trainer(config, network, inputs, examples, accelerator).train_steps(clock)
    return [end - begin for (_, begin), (_, end) in pairwise(clock.ends)]


def main(argv: Sequence[str] | None = None) -> None:
    settings = settings_from(RewardTrainingSettings, argv)
    torch.set_num_threads(settings.threads)
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(settings, Path(folder))
    print(
        f"{settings.work}: median {median(seconds):.3f} CPU s a step, {min(seconds):.3f} to"
        f" {max(seconds):.3f}, {len(seconds)} steps, {settings.threads} threads"
    )


if __name__ == "__main__":
    run_main(main)

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
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt
from transformers import LlamaConfig, LlamaForCausalLM

from fgrlhf.base.files import write_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel, validate
from fgrlhf.models.tiny import save_model, tiny_encoder_decoder, word_tokenizer
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.reward_models.scoring import inputs_of, shape_of
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.utils import seeded
from reward_modeling.data import PairCollator, read_pair_rows
from reward_modeling.network import load_network
from reward_modeling.run_pref_rm import (
    PairTrainer,
    PreferenceRMConfig,
    encode,
    with_features,
)
from reward_modeling.training import place, start

WORDS = [f"w{i}" for i in range(900)]
ANSWERS = 4


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


class BenchmarkConfig(StrictModel):
    work: Literal["mini", "causal"] = Field(default="mini", description="model and lengths")
    steps: PositiveInt = Field(default=12, description="optimiser steps; the first is not timed")
    threads: PositiveInt = Field(default=1, description="of PyTorch")


def comparisons(work: Work, n: int) -> list[dict[str, Any]]:
    """Rows of a pair file with every pair decided."""
    draw = random.Random(0)
    rows = []
    for _ in range(n):
        prompt = draw.choices(WORDS, k=draw.randint(*work.prompt_words))
        answers = []
        for _ in range(ANSWERS):
            answers.append(" ".join(draw.choices(WORDS, k=draw.randint(*work.answer_words))))
        pairs = [[i, j] for i in range(ANSWERS) for j in range(i + 1, ANSWERS)]
        rows.append({"prompt": " ".join(prompt), "responses": answers, "preferences": pairs})
    return rows


def checkpoint(folder: Path, work: Work) -> Path:
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
    return folder / "start"


def trainer_of(settings: PreferenceRMConfig) -> PairTrainer:
    """The trainer of run_pref_rm.py, without dev rows."""
    accelerator = start(settings)
    with seeded(settings.train.seed, "head"):
        network, tokenizer = load_network(settings.model, "sequence")
    spec = RewardModelSpec(
        "sequence",
        shape_of(network),
        "sequence",
        settings.data.with_context,
        settings.model.max_length,
        mean=0.0,
        std=1.0,
    )
    inputs = inputs_of(network, tokenizer, spec)
    rows = read_pair_rows(settings.data.train_file)
    examples = encode(inputs, rows, text_prefix, settings.data.with_context)
    place(network, settings, accelerator)
    examples = with_features(network, inputs, examples)
    no_dev: Any = None
    return PairTrainer(
        settings, network, examples, [], PairCollator(inputs), tokenizer, no_dev, accelerator
    )


def measure(config: BenchmarkConfig, folder: Path) -> list[float]:
    """Seconds of every timed step."""
    work = WORKS[config.work]
    file = folder / "pairs.json"
    write_json(file, comparisons(work, work.prompts * config.steps))
    tree = {
        "model": {
            "ckpt": str(checkpoint(folder, work)),
            "shape": work.shape,
            "max_length": 1200,
            "lm_logprob_feature": work.feature,
        },
        "data": {"train_file": str(file), "dev_file": str(file)},
        "train": {"max_steps": config.steps, "batch_size": work.prompts, "lr": 1e-4},
        "logging": {"save_dir": str(folder / "out")},
    }
    settings = validate(PreferenceRMConfig, tree, "the benchmark's settings")
    trainer = trainer_of(settings)
    ends = []
    for step in range(config.steps):
        trainer.update(trainer.batch_indices(step))
        trainer.step += 1
        ends.append(time.process_time())
    return [end - begin for begin, end in zip(ends, ends[1:])]


def main(argv: Sequence[str] | None = None) -> None:
    config = settings_from(BenchmarkConfig, argv)
    torch.set_num_threads(config.threads)
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(config, Path(folder))
    print(
        f"{config.work}: median {median(seconds):.3f} CPU s a step, {min(seconds):.3f} to"
        f" {max(seconds):.3f}, {len(seconds)} steps, {config.threads} threads"
    )


if __name__ == "__main__":
    run_main(main)

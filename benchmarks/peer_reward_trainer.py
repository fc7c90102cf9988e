"""TRL's RewardTrainer compared with `reward_modeling/run_pref_rm.py` on all pairs of four answers.

Both train the same GPT-2 with a linear head in fp32 on the same token ids (pretokenised for TRL,
cut by our `RMInputs`), with the same optimiser settings and the same pairs in every step. Dropout,
evaluation, checkpoints, logging and activation checkpointing are off. TRL reads both texts of every
pair, 12 per prompt; ours reads the prompt once with its four answers and uses all six differences
of their scores.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from datasets import Dataset
from torch import nn
from transformers import GPT2ForSequenceClassification, PreTrainedModel, Trainer

from benchmarks.peer_common import (
    LR,
    Clock,
    ModelSize,
    Start,
    require_equal,
    save_gpt2,
    text_of,
    train_trl,
    trl_settings,
)
from benchmarks.peers import Choice, Measured, PeerComparison, Side
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.strict import validate
from fgrlhf.data.mixture import read_files
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.reward_models.scoring import inputs_of, shape_of
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.utils import seeded
from reward_modeling.data import PairCollator, read_pair_rows
from reward_modeling.network import load_network
from reward_modeling.run_pref_rm import Example, PairTrainer, PreferenceRMConfig, encode
from reward_modeling.training import start

ANSWERS = 4
PAIRS = [(i, j) for i in range(ANSWERS) for j in range(i + 1, ANSWERS)]


@dataclass(frozen=True)
class Size(ModelSize):
    """`prompt_words` and `answer_words` are bounds of a length. `prompts` belong to one step."""

    max_length: int = 640
    prompt_words: tuple[int, int] = (320, 600)
    answer_words: tuple[int, int] = (70, 135)
    prompts: int = 2

    @property
    def pairs(self) -> int:
        """Pairs per optimiser step."""
        return self.prompts * len(PAIRS)


@dataclass(frozen=True)
class Work(Start):
    """The input of both sides. examples: (four RMInputs, six pairs) of every prompt."""

    size: Size
    config: PreferenceRMConfig
    inputs: RMInputs
    examples: Sequence[Example]


# ---- the work ------------------------------------------------------------------------------------


def pair_rows(size: Size) -> list[dict[str, Any]]:
    """Rows of a pair file with every pair decided by random merits of the four answers."""
    draw = random.Random(derive_seed("peers", "rows"))
    rows = []
    for _ in range(size.prompts * size.steps):
        prompt = text_of(draw, size, draw.randint(*size.prompt_words))
        row: dict[str, Any] = {"prompt": prompt}
        lengths = [draw.randint(*size.answer_words) for _ in range(ANSWERS)]
        row["responses"] = [text_of(draw, size, length) for length in lengths]
        merit = draw.sample(range(ANSWERS), ANSWERS)
        row["preferences"] = [[i, j] if merit[i] > merit[j] else [j, i] for i, j in PAIRS]
        rows.append(row)
    return rows


def pair_config(folder: Path, size: Size) -> PreferenceRMConfig:
    """The config of run_pref_rm.py on `pair_rows`. The checkpoint is in the folder."""
    file = folder / "pairs.json"
    write_json(file, pair_rows(size))
    tree = {
        "model": {
            "ckpt": str(folder / "start"),
            "shape": "causal",
            "max_input_len": size.max_length,
        },
        "data": {"train_file": str(file), "dev_file": str(file)},
        "train": {
            "lr": LR,
            "max_steps": size.steps,
            "batch_size": size.prompts,
            "warmup_steps": 1,
        },
        "logging": {"save_dir": str(folder / "ours")},
    }
    return validate(PreferenceRMConfig, tree, "the benchmark's settings")


def load(config: PreferenceRMConfig) -> tuple[Any, RMInputs]:
    """Our network with a fresh head, the same at every call, and its inputs."""
    with seeded(config.train.seed, "head"):
        network, tokenizer = load_network(config.model, "sequence")
    spec = RewardModelSpec(
        "sequence",
        shape_of(network),
        "sequence",
        config.data.with_context,
        config.model.max_input_len,
        mean=0.0,
        std=1.0,
    )
    return network, inputs_of(network, tokenizer, spec)


class OurTrainer(PairTrainer):
    """The trainer of run_pref_rm.py without dev rows, with the prompts in the order of the file."""

    def epoch_batches(self, epoch: int) -> list[list[int]]:
        size = self.config.train.batch_size
        starts = range(0, len(self.rows), size)
        return [list(range(start, start + size)) for start in starts]

    def train_steps(self, clock: Clock) -> None:
        """All optimiser steps, without logs, evaluation and checkpoints."""
        for step in range(self.config.train.max_steps or 0):
            self.update(self.batch_indices(step))
            self.step += 1
            clock.on_step_end()


# ---- the two trainers ----------------------------------------------------------------------------


def prepare(folder: Path, size: Size) -> Work:
    """Write checkpoint and pair file, and read them as run_pref_rm.py does."""
    save_gpt2(Start(folder), size)
    config = pair_config(folder, size)
    _, inputs = load(config)
    rows = read_files(config.data.train_file, read_pair_rows)
    examples = encode(inputs, rows, text_prefix, config.data.with_context)
    return Work(folder, size, config, inputs, examples)


def our_trainer(work: Work, choice: Choice) -> OurTrainer:
    """`choice["micro"]`: prompts per forward pass."""
    train = work.config.train.model_copy(update={"micro_batch_size": choice["micro"]})
    config = work.config.model_copy(update={"train": train})
    accelerator = start(config)
    network, _ = load(config)
    inputs, no_dev = work.inputs, cast(Any, None)
    collator = PairCollator(inputs)
    return OurTrainer(
        config, network, work.examples, [], collator, inputs.tokenizer, no_dev, [], accelerator
    )


def trl_rows(work: Work) -> list[dict[str, Any]]:
    """The examples in TRL's pretokenised form, prompt by prompt.

    TRL's collator reads the ids, its sampler the lengths.
    """
    rows = []
    for read, pairs in work.examples:
        for chosen, rejected, _ in pairs:
            row = {
                "chosen_ids": read[chosen].input_ids,
                "rejected_ids": read[rejected].input_ids,
                "length": max(read[chosen].length, read[rejected].length),
            }
            rows.append(row)
    return rows


def _same_start(work: Work) -> GPT2ForSequenceClassification:
    """The transformers network that TRL would load, with the same initial weights as ours."""
    network, _ = load(work.config)
    peer = GPT2ForSequenceClassification.from_pretrained(work.ckpt, num_labels=1)
    peer.transformer.load_state_dict(network.trunk.state_dict())
    peer.score.load_state_dict(network.head.state_dict())
    return peer


def trl_trainer(work: Work, choice: Choice) -> Trainer:
    """`choice["micro"]`: pairs per forward pass; `choice["sampling"]`: their order.

    The order `sequential` is prompt by prompt.
    """
    from trl import RewardConfig, RewardTrainer  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]

    train = work.config.train
    arguments = trl_settings(
        RewardConfig,
        work,
        choice["micro"],
        work.size.pairs,
        warmup_steps=train.warmup_steps,
        weight_decay=train.weight_decay,
        adam_beta2=train.adam_beta2,
        seed=train.seed,
        train_sampling_strategy=choice["sampling"],
        remove_unused_columns=False,  # the sampler needs the lengths
        max_length=None,  # TRL drops longer texts; our prompts are already cut
    )
    return RewardTrainer(
        _same_start(work),
        arguments,
        train_dataset=Dataset.from_list(trl_rows(work)),
        processing_class=work.inputs.tokenizer,
    )


def _run_ours(trainer: OurTrainer, work: Work) -> Measured:
    clock = Clock()
    trainer.train_steps(clock)
    return clock.measured(work.size.pairs, fmean(trainer.losses))


# ---- equal work ----------------------------------------------------------------------------------


@torch.no_grad()
def _our_first_loss(trainer: OurTrainer) -> tuple[float, int]:
    """Loss of the first step's prompts in one forward pass; its tokens without padding."""
    rows = [trainer.rows[i] for i in trainer.batch_indices(0)]
    batch = trainer.on_device(trainer.collate(rows))
    loss = trainer.mean_loss(trainer.module, batch)
    return loss.item(), int(batch["attention_mask"].sum())


@torch.no_grad()
def _peer_first_loss(trainer: Trainer, rows: int) -> tuple[float, int]:
    """The same of the first step's pairs in TRL's trainer."""
    assert trainer.train_dataset is not None and isinstance(trainer.model, nn.Module)
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(rows)])
    batch = trainer._prepare_inputs(batch)
    loss = trainer.compute_loss(trainer.model, batch)
    assert isinstance(loss, torch.Tensor)
    return loss.item(), int(batch["attention_mask"].sum())


def check(work: Work) -> dict[str, Any]:
    """Check that the losses agree before training and over all steps."""
    size = work.size
    ours = our_trainer(work, {"micro": 1})
    peer = trl_trainer(work, {"micro": 1, "sampling": "sequential"})
    our_loss, our_tokens = _our_first_loss(ours)
    peer_loss, peer_tokens = _peer_first_loss(peer, size.pairs)
    require_equal("the losses before training", our_loss, peer_loss)
    our_mean = _run_ours(ours, work).loss
    peer_mean = train_trl(peer, work, size.pairs).loss
    require_equal(f"the losses over {size.steps} steps", our_mean, peer_mean)
    assert isinstance(peer.model, PreTrainedModel)
    if peer.model.is_activation_checkpointing:
        raise UserError("TRL recomputes its activations, so the rates cannot be compared")
    lengths = [rm_input.length for answers, _ in work.examples for rm_input in answers]
    return {
        **asdict(size),
        "pairs_per_step": size.pairs,
        "loss": {"ours": our_loss, "peer": peer_loss},
        "loss_over_steps": {"ours": our_mean, "peer": peer_mean},
        "tokens_of_first_step": {"ours": our_tokens, "peer": peer_tokens},
        "text_tokens_mean": fmean(lengths),
        "parameters": {
            "ours": sum(p.numel() for p in ours.network.parameters()),
            "peer": sum(p.numel() for p in peer.model.parameters()),
        },
    }


def comparison(size: Size = Size()) -> PeerComparison:
    choices_of_trl = []
    for sampling in ("sequential", "group_by_length"):
        for micro in (1, 2, 3, 6, 12):
            if size.pairs % micro == 0:
                choices_of_trl.append({"micro": micro, "sampling": sampling})
    return PeerComparison(
        name="reward_trainer",
        package="trl",
        unit="pairs",
        at_least=1.3,
        what=(
            f"TRL's RewardTrainer and run_pref_rm, GPT-2 of {size.layers} layers, d {size.width},"
            f" fp32, six decided pairs of four answers to a prompt, {size.pairs} pairs a step"
        ),
        prepare=lambda folder: prepare(folder, size),
        check=check,
        ours=Side(
            lambda work, choice: _run_ours(our_trainer(work, choice), work),
            [{"micro": m} for m in (1, 2, 4) if size.prompts % m == 0],
        ),
        peer=Side(
            lambda work, choice: train_trl(trl_trainer(work, choice), work, work.size.pairs),
            choices_of_trl,
        ),
    )

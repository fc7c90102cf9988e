"""TRL's RewardTrainer compared with `reward_modeling/run_pref_rm.py` on all pairs of four answers.

Both train the same GPT-2 with a linear head in fp32 on the same token ids (pretokenised for TRL,
cut by our `RMInputs`), with the same optimiser settings and the same pairs in every step. Dropout,
evaluation, checkpoints, logging and activation checkpointing are off. TRL reads both texts of every
pair, 12 per question; ours reads the question once with its four answers and uses all six
differences of their scores.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from transformers import GPT2ForSequenceClassification, PreTrainedModel, PrinterCallback, Trainer
from transformers.utils import logging as transformers_logging

from benchmarks.peer_common import Clock, Words, gpt2_checkpoint
from benchmarks.peers import Choice, Comparison, Measured, Side
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.strict import validate
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.utils import seeded
from reward_modeling.data import PairCollator
from reward_modeling.network import load_network
from reward_modeling.run_pref_rm import (
    Example,
    PairTrainer,
    PreferenceRMConfig,
    encode,
)
from reward_modeling.training import start
from tasks.qa_feedback.feedback import PAIRS, rm_prefix
from tasks.qa_feedback.reward_modeling.pairs import read_pairs

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Size:
    """Sizes of the workload.

    `prompt_words` and `answer_words` are bounds of a length. `questions` belong to one optimiser
    step; the first of `steps` is not timed.
    """

    vocab: int = 8192
    width: int = 256
    layers: int = 4
    heads: int = 4
    max_length: int = 640
    prompt_words: tuple[int, int] = (240, 470)
    answer_words: tuple[int, int] = (55, 105)
    questions: int = 2
    steps: int = 4
    words: int = 12_000


@dataclass(frozen=True)
class Work:
    """The input of both sides. examples: (four RMInputs, six pairs) of every question."""

    folder: Path
    size: Size
    config: PreferenceRMConfig
    inputs: RMInputs
    examples: Sequence[Example]

    @property
    def pairs(self) -> int:
        """Pairs per optimiser step."""
        return self.size.questions * len(PAIRS)


# ---- the work ------------------------------------------------------------------------------------


def feedback_rows(size: Size) -> list[dict[str, Any]]:
    """Rows of a pair file with every pair decided by random merits of the four answers."""
    draw = random.Random(derive_seed("peers", "rows"))
    words = Words(size, draw)
    rows = []
    for _ in range(size.questions * size.steps):
        left = draw.randint(*size.prompt_words) - 12
        passages = []
        while left > 0:
            passages.append(["title " + words.text(2), words.text(min(left, 110))])
            left -= 110
        merit = draw.sample(range(4), 4)
        row: dict[str, Any] = {"question": words.text(12), "passages": passages}
        for i in range(4):
            row[f"prediction {i + 1}"] = words.text(draw.randint(*size.answer_words))
        row["preference"] = [1 if merit[i] > merit[j] else 2 for i, j in PAIRS]
        rows.append(row)
    return rows


def prepare(folder: Path, size: Size) -> Work:
    """Write checkpoint and pair file, and read them as run_pref_rm.py does."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    file = folder / "pairs.json"
    write_json(file, feedback_rows(size))
    tree = {
        "model": {
            "ckpt": str(gpt2_checkpoint(folder / "start", size)),
            "shape": "causal",
            "max_length": size.max_length,
        },
        "data": {"train_file": str(file), "dev_file": str(file)},
        "train": {
            "max_steps": size.steps,
            "batch_size": size.questions,
            "lr": 1e-4,
            "warmup_steps": 1,
        },
        "logging": {"save_dir": str(folder / "ours")},
    }
    config = validate(PreferenceRMConfig, tree, "the benchmark's settings")
    network, tokenizer = load_network(config.model, "sequence")
    inputs = RMInputs(
        tokenizer,
        "causal",
        "sequence",
        size.max_length,
        shared_width=network.shared_width,  # pyright: ignore[reportArgumentType]
    )
    examples = encode(inputs, read_pairs(file), rm_prefix, with_context=True)
    return Work(folder, size, config, inputs, examples)


# ---- the two trainers ----------------------------------------------------------------------------


def _network(work: Work):
    """Our network with a fresh head, the same at every call."""
    with seeded(work.config.train.seed, "head"):
        return load_network(work.config.model, "sequence")


class OurTrainer(PairTrainer):
    """The trainer of run_pref_rm.py, with the questions in the order of the file as in TRL."""

    def epoch_batches(self, epoch: int) -> list[list[int]]:
        size = self.config.train.batch_size
        starts = range(0, len(self.rows), size)
        return [list(range(start, start + size)) for start in starts]


def our_trainer(work: Work, choice: Choice) -> OurTrainer:
    """`choice["micro"]`: questions per forward pass."""
    train = work.config.train.model_copy(update={"micro_batch_size": choice["micro"]})
    config = work.config.model_copy(update={"train": train})
    accelerator = start(config)
    network, tokenizer = _network(work)
    collator = PairCollator(work.inputs)
    no_dev: Any = None
    return OurTrainer(
        config,
        network,
        work.examples,
        [],
        collator,
        tokenizer,
        no_dev,
        accelerator,
    )


def trl_rows(work: Work) -> list[dict[str, Any]]:
    """The examples in TRL's pretokenised form, question by question.

    TRL's collator reads the ids, its sampler the lengths.
    """
    rows = []
    for read, pairs in work.examples:
        for chosen, rejected, _ in pairs:
            rows.append(
                {
                    "chosen_ids": read[chosen].input_ids,
                    "rejected_ids": read[rejected].input_ids,
                    "length": max(read[chosen].length, read[rejected].length),
                }
            )
    return rows


def _same_start(work: Work) -> GPT2ForSequenceClassification:
    """The transformers network that TRL would load, with the same initial weights as ours."""
    network, _ = _network(work)
    assert isinstance(network.trunk, nn.Module) and isinstance(network.head, nn.Module)
    peer = GPT2ForSequenceClassification.from_pretrained(work.config.model.ckpt, num_labels=1)
    peer.transformer.load_state_dict(network.trunk.state_dict())
    peer.score.load_state_dict(network.head.state_dict())
    return peer


def trl_trainer(work: Work, choice: Choice) -> Trainer:
    """`choice["micro"]`: pairs per forward pass; `choice["sampling"]`: their order.

    The order `sequential` is question by question.
    """
    from trl import RewardConfig, RewardTrainer  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]

    train = work.config.train
    arguments = RewardConfig(
        output_dir=str(work.folder / "peer"),
        max_steps=train.max_steps,
        learning_rate=train.lr,
        warmup_steps=train.warmup_steps,
        weight_decay=train.weight_decay,
        adam_beta2=train.adam_beta2,
        max_grad_norm=train.max_grad_norm,
        optim="adamw_torch_fused",
        seed=train.seed,
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=torch.accelerator.is_available(),
        eval_strategy="no",
        save_strategy="no",
        logging_strategy="no",
        per_device_train_batch_size=choice["micro"],
        gradient_accumulation_steps=work.pairs // choice["micro"],
        train_sampling_strategy=choice["sampling"],
        remove_unused_columns=False,  # the sampler needs the lengths
        max_length=None,  # TRL drops longer texts; our prompts are already cut
        bf16=False,
        # Called `gradient_checkpointing` before 5.23. TRL turns it on by default.
        activation_checkpointing=False,
        dataloader_num_workers=0,
        report_to="none",
        disable_tqdm=True,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return RewardTrainer(
        _same_start(work),
        arguments,
        train_dataset=Dataset.from_list(trl_rows(work)),
        processing_class=work.inputs.tokenizer,
    )


def _run_ours(trainer: OurTrainer, work: Work) -> Measured:
    clock = Clock()
    for step in range(work.size.steps):
        trainer.update(trainer.batch_indices(step))
        trainer.step += 1
        clock.on_step_end()
    pairs = work.pairs * (work.size.steps - 1)
    return Measured(pairs, *clock.seconds(), loss=fmean(trainer.losses))


def _run_peer(trainer: Trainer, work: Work) -> Measured:
    clock = Clock()
    trainer.add_callback(clock)
    trainer.remove_callback(PrinterCallback)
    loss = trainer.train().training_loss
    assert len(clock.ends) == work.size.steps
    return Measured(work.pairs * (work.size.steps - 1), *clock.seconds(), loss=loss)


# ---- equal work ----------------------------------------------------------------------------------


def _our_first_loss(trainer: OurTrainer) -> tuple[float, int]:
    """Loss of the first step's questions in one forward pass; its tokens without padding."""
    rows = [trainer.rows[i] for i in trainer.batch_indices(0)]
    batch = trainer.on_device(trainer.collate(rows))
    with torch.no_grad():
        loss = trainer.mean_loss(trainer.module, batch)
    return loss.item(), int(batch["attention_mask"].sum())


def _peer_first_loss(trainer: Trainer, rows: int) -> tuple[float, int]:
    """The same of the first step's pairs in TRL's trainer."""
    assert trainer.train_dataset is not None and isinstance(trainer.model, nn.Module)
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(rows)])
    batch = trainer._prepare_inputs(batch)
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, batch)
    assert isinstance(loss, torch.Tensor)
    return loss.item(), int(batch["attention_mask"].sum())


def _mean_loss(measured: Measured) -> float:
    assert measured.loss is not None
    return measured.loss


def check(work: Work) -> dict[str, Any]:
    """Check that the losses agree before training and over all steps."""
    size = work.size
    ours = our_trainer(work, {"micro": 1})
    peer = trl_trainer(work, {"micro": 1, "sampling": "sequential"})
    first_loss = {}
    tokens = {}
    first_loss["ours"], tokens["ours"] = _our_first_loss(ours)
    first_loss["peer"], tokens["peer"] = _peer_first_loss(peer, work.pairs)
    mean_loss = {
        "ours": _mean_loss(_run_ours(ours, work)),
        "peer": _mean_loss(_run_peer(peer, work)),
    }
    assert isinstance(peer.model, PreTrainedModel)
    if peer.model.is_activation_checkpointing:
        raise UserError("TRL recomputes its activations, so the rates cannot be compared")
    parameters = {
        side: sum(p.numel() for p in model.parameters())
        for side, model in (("ours", ours.network), ("peer", peer.model))
    }
    losses = (("before training", first_loss), (f"over {size.steps} steps", mean_loss))
    for when, loss in losses:
        if not abs(loss["ours"] - loss["peer"]) <= TOLERANCE:
            raise UserError(
                f"the losses {when} differ (ours {loss['ours']:.6f}, TRL {loss['peer']:.6f}), so"
                " the rates cannot be compared"
            )
    return {
        **asdict(size),
        "pairs_per_step": work.pairs,
        "loss": first_loss,
        "loss_over_steps": mean_loss,
        "tokens_of_first_step": tokens,
        "text_tokens_mean": (
            sum(x.length for four, _ in work.examples for x in four) / len(work.examples) / 4
        ),
        "parameters": parameters,
    }


def comparison(size: Size = Size()) -> Comparison:
    micros = [m for m in (1, 2, 4) if size.questions % m == 0]
    pairs = size.questions * len(PAIRS)
    choices_of_trl = []
    for sampling in ("sequential", "group_by_length"):
        for micro in (1, 2, 3, 6, 12):
            if pairs % micro == 0:
                choices_of_trl.append({"micro": micro, "sampling": sampling})
    return Comparison(
        name="reward_trainer",
        package="trl",
        unit="pairs",
        at_least=1.3,
        what=(
            f"TRL's RewardTrainer and run_pref_rm, GPT-2 of {size.layers} layers, d {size.width},"
            f" fp32, six decided pairs of four answers to a question, {pairs} pairs a step"
        ),
        prepare=lambda folder: prepare(folder, size),
        check=check,
        ours=Side(
            lambda work, choice: _run_ours(our_trainer(work, choice), work),
            [{"micro": m} for m in micros],
        ),
        peer=Side(
            lambda work, choice: _run_peer(trl_trainer(work, choice), work),
            choices_of_trl,
        ),
    )

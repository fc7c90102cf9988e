"""TRL's DPOTrainer compared with `fgrlhf/dpo.py`, with precomputed reference log-probabilities.

Both train the same GPT-2 in fp32 on the same texts, with the same optimiser settings and the same
pairs in every step, ordered so that pairs of similar length are together. Dropout, evaluation,
logging and activation checkpointing are off, and no second model is held. TRL reads prompt and
answer once for each answer of a pair; ours reads the prompt once, followed by both answers.
"""

import random
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import datasets
import torch
from accelerate import Accelerator
from transformers import GPT2LMHeadModel, Trainer

from benchmarks.peer_common import (
    LR,
    TOLERANCE,
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
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.strict import validate
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.token_comparisons import encode_comparisons
from fgrlhf.dpo import DPOTrainer
from fgrlhf.policy import load_policy
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.text_types import Prompt

BETA = 0.1


@dataclass(frozen=True)
class Size(ModelSize):
    """`prompt_words` and `answer_words` are bounds of a length. `pairs` belong to one step."""

    prompt_words: tuple[int, int] = (320, 600)
    answer_words: tuple[int, int] = (70, 135)
    pairs: int = 8


@dataclass(frozen=True)
class Work(Start):
    """The input of both sides: the checkpoint, and the pairs in training order."""

    size: Size
    comparisons: Sequence[Comparison]


def prepare(folder: Path, size: Size) -> Work:
    """Write the checkpoint and draw the texts.

    An answer begins with a space, so that it has the same tokens alone and after its prompt.
    """
    save_gpt2(Start(folder), size)
    draw = random.Random(derive_seed("peers", "dpo"))
    comparisons = []
    for i in range(size.pairs * size.steps):
        prompt = Prompt(str(i), text_of(draw, size, draw.randint(*size.prompt_words)))
        lengths = [draw.randint(*size.answer_words) for _ in range(2)]
        texts = [" " + text_of(draw, size, length) for length in lengths]
        comparisons.append(Comparison(prompt, tuple(Answer(text) for text in texts), ((0, 1),)))
    comparisons.sort(key=lambda c: len(c.prompt.text))
    return Work(folder, size, comparisons)


# ---- the two trainers ----------------------------------------------------------------------------


class _Ours(DPOTrainer):
    """The library's trainer, with pairs in their given order and a timer."""

    clock: Clock
    step_losses: list[float]

    def batch(self, step: int) -> list[int]:
        size = self.config.train.batch_size
        return list(range(step * size, (step + 1) * size))

    def _log_step(self, metrics, bar) -> None:
        super()._log_step(metrics, bar)
        self.clock.on_step_end()
        self.step_losses.append(metrics["loss/total"])


def our_trainer(work: Work, choice: Choice) -> _Ours:
    """`choice["micro"]`: pairs per forward pass."""
    size = work.size
    save_dir = work.folder / "ours"
    shutil.rmtree(save_dir, ignore_errors=True)  # otherwise the previous run would be continued
    tree = {
        "model": {"ckpt": work.ckpt, "max_generated_len": 1024},
        "dpo": {"beta": BETA},
        "train": {
            "batch_size": size.pairs,
            "micro_batch_size": choice["micro"],
            "lr": LR,
            "save_every_steps": size.steps,
        },
        "data": {"dev_file": "none", "feedback_file": "none"},
        "logging": {"save_dir": str(save_dir), "log_interval": size.steps + 1, "n_samples": 0},
    }
    config = validate(DPOConfig, tree, "the benchmark's settings")
    policy = load_policy(work.ckpt)
    encoded = encode_comparisons(policy, work.comparisons, config.model.max_generated_len)
    trainer = _Ours(config, policy, encoded, None, Accelerator(cpu=not torch.cuda.is_available()))
    trainer.clock = Clock()
    trainer.step_losses = []
    return trainer


def trl_trainer(work: Work, choice: Choice) -> Trainer:
    """`choice["micro"]`: pairs per forward pass."""
    from trl import DPOConfig as TRLConfig  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]
    from trl import DPOTrainer as TRLTrainer  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]

    arguments = trl_settings(
        TRLConfig,
        work,
        choice["micro"],
        work.size.pairs,
        lr_scheduler_type="linear",
        warmup_steps=0,
        beta=BETA,
        precompute_ref_log_probs=True,
        train_sampling_strategy="sequential",
        max_length=None,
    )
    rows = [
        {"prompt": c.prompt.text, "chosen": c.answers[0].text, "rejected": c.answers[1].text}
        for c in work.comparisons
    ]
    return TRLTrainer(
        GPT2LMHeadModel.from_pretrained(work.ckpt),
        args=arguments,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=load_policy(work.ckpt).tokenizer,
    )


def run_ours(work: Work, choice: Choice) -> Measured:
    trainer = our_trainer(work, choice)
    trainer.train()
    return trainer.clock.measured(work.size.pairs, fmean(trainer.step_losses))


def run_trl(work: Work, choice: Choice) -> Measured:
    return train_trl(trl_trainer(work, choice), work, work.size.pairs)


# ---- equal work ----------------------------------------------------------------------------------


def check(work: Work) -> dict[str, Any]:
    """Check that tokens, reference log-probabilities and the loss over all steps agree."""
    ours = our_trainer(work, {"micro": 1})
    peer = trl_trainer(work, {"micro": 1})
    assert isinstance(peer.train_dataset, datasets.Dataset)
    rows = peer.train_dataset.to_list()
    reference = ours.reference_logprobs(ours.comparisons)
    for row, comparison, logprobs in zip(rows, ours.comparisons, reference, strict=True):
        same_prompt = row["prompt_ids"] == comparison.prompt_ids
        same_answers = [row["chosen_ids"], row["rejected_ids"]] == comparison.answer_ids
        if not (same_prompt and same_answers):
            raise UserError("the sides read different tokens, so their rates cannot be compared")
        for name, logprobs_T in zip(("ref_chosen_logps", "ref_rejected_logps"), logprobs):
            tolerance = TOLERANCE * len(logprobs_T)
            require_equal(name, float(logprobs_T.sum()), row[name], tolerance)
    our_loss = run_ours(work, {"micro": 1}).loss
    peer_loss = run_trl(work, {"micro": 1}).loss
    require_equal(f"the losses over {work.size.steps} steps", our_loss, peer_loss)
    answers = [ids for c in ours.comparisons for ids in c.answer_ids]
    return {
        **asdict(work.size),
        "loss_over_steps": {"ours": our_loss, "peer": peer_loss},
        "prompt_tokens_mean": fmean(len(c.prompt_ids) for c in ours.comparisons),
        "answer_tokens_mean": fmean(map(len, answers)),
        "parameters": sum(p.numel() for p in ours.policy.parameters()),
    }


def comparison(size: Size = Size()) -> PeerComparison:
    micros = [{"micro": m} for m in (1, 2, 4, 8) if size.pairs % m == 0]
    return PeerComparison(
        name="dpo",
        package="trl",
        unit="pairs",
        at_least=1.3,
        what=(
            f"TRL's DPOTrainer and ours, GPT-2 of {size.layers} layers, d {size.width}, fp32,"
            f" reference log-probabilities computed before, {size.pairs} pairs a step"
        ),
        prepare=lambda folder: prepare(folder, size),
        check=check,
        ours=Side(run_ours, micros),
        peer=Side(run_trl, micros),
    )

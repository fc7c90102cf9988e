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
from typing import Any

import datasets
import torch
from accelerate import Accelerator
from transformers import GPT2LMHeadModel, PrinterCallback, Trainer
from transformers.utils import logging as transformers_logging

from benchmarks.peer_common import Clock, Words, gpt2_checkpoint
from benchmarks.peers import Choice, Comparison, Measured, Side
from fgrlhf.base.errors import UserError
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.strict import validate
from fgrlhf.data.comparisons import Answer
from fgrlhf.data.comparisons import Comparison as Compared
from fgrlhf.data.token_comparisons import encode_comparisons
from fgrlhf.dpo import DPOTrainer
from fgrlhf.policy import load_policy
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.text_types import Prompt

TOLERANCE = 1e-4  # of losses, and of log-probabilities per token
BETA = 0.1
LR = 1e-4


@dataclass(frozen=True)
class Size:
    """Sizes of the workload.

    `prompt_words` and `answer_words` are bounds of a length. `pairs` belong to one optimiser step;
    the first of `steps` is not timed.
    """

    vocab: int = 8192
    width: int = 256
    layers: int = 4
    heads: int = 4
    prompt_words: tuple[int, int] = (240, 470)
    answer_words: tuple[int, int] = (55, 105)
    pairs: int = 8
    steps: int = 4
    words: int = 12_000


@dataclass(frozen=True)
class Work:
    """The input of both sides: the checkpoint, and the pairs in training order."""

    folder: Path
    size: Size
    comparisons: Sequence[Compared]

    @property
    def ckpt(self) -> str:
        return str(self.folder / "start")


def prepare(folder: Path, size: Size) -> Work:
    """Write the checkpoint and draw the texts.

    An answer begins with a space, so that it has the same tokens alone and after its prompt.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    gpt2_checkpoint(folder / "start", size)
    draw = random.Random(derive_seed("peers", "dpo"))
    words = Words(size, draw)
    comparisons = []
    for i in range(size.pairs * size.steps):
        prompt = words.text(draw.randint(*size.prompt_words))
        answers = [words.text(draw.randint(*size.answer_words)) for _ in range(2)]
        comparisons.append(
            Compared(
                Prompt(str(i), prompt), tuple(Answer(" " + text) for text in answers), ((0, 1),)
            )
        )
    comparisons.sort(key=lambda c: len(c.prompt.text))
    return Work(folder, size, comparisons)


# ---- the two trainers ----------------------------------------------------------------------------


class _Ours(DPOTrainer):
    """The library's trainer, with pairs in their given order and a timer."""

    clock: Clock
    losses: list[float]

    def batch(self, step: int) -> list[int]:
        size = self.config.train.batch_size
        return list(range(step * size, (step + 1) * size))

    def _log_step(self, metrics, bar) -> None:
        super()._log_step(metrics, bar)
        self.clock.on_step_end()
        self.losses.append(metrics["loss/total"])


def our_trainer(work: Work, choice: Choice) -> _Ours:
    """`choice["micro"]`: pairs per forward pass."""
    size = work.size
    # otherwise the previous run would be continued
    shutil.rmtree(work.folder / "ours", ignore_errors=True)
    tree = {
        "model": {"policy_model": {"ckpt": work.ckpt}},
        "dpo": {"beta": BETA},
        "env": {"max_input_len": 1024, "max_generated_len": 1024},
        "train": {
            "batch_size": size.pairs,
            "micro_batch_size": choice["micro"],
            "lr": LR,
            "save_interval": size.steps,
        },
        "data": {"dev_file": "none", "feedback_file": "none"},
        "logging": {
            "save_dir": str(work.folder / "ours"),
            "log_interval": size.steps + 1,
            "n_samples": 0,
        },
    }
    config = validate(DPOConfig, tree, "the benchmark's settings")
    policy = load_policy(work.ckpt)
    encoded = encode_comparisons(policy, work.comparisons, config.env.max_generated_len)
    trainer = _Ours(config, policy, encoded, None, Accelerator(cpu=not torch.cuda.is_available()))
    trainer.clock = Clock()
    trainer.losses = []
    return trainer


def trl_trainer(work: Work, choice: Choice) -> Trainer:
    """`choice["micro"]`: pairs per forward pass."""
    from trl import DPOConfig as TRLConfig  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]
    from trl import DPOTrainer as TRLTrainer  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]

    size = work.size
    arguments = TRLConfig(
        output_dir=str(work.folder / "peer"),
        per_device_train_batch_size=choice["micro"],
        gradient_accumulation_steps=size.pairs // choice["micro"],
        max_steps=size.steps,
        learning_rate=LR,
        lr_scheduler_type="linear",
        warmup_steps=0,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        beta=BETA,
        precompute_ref_log_probs=True,
        train_sampling_strategy="sequential",
        max_length=None,
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
    return Measured(
        work.size.pairs * (work.size.steps - 1),
        *trainer.clock.seconds(),
        loss=sum(trainer.losses) / len(trainer.losses),
    )


def run_trl(work: Work, choice: Choice) -> Measured:
    trainer = trl_trainer(work, choice)
    clock = Clock()
    trainer.add_callback(clock)
    trainer.remove_callback(PrinterCallback)
    loss = trainer.train().training_loss
    assert len(clock.ends) == work.size.steps
    return Measured(work.size.pairs * (work.size.steps - 1), *clock.seconds(), loss=loss)


# ---- equal work ----------------------------------------------------------------------------------


def check(work: Work) -> dict[str, Any]:
    """Check that tokens, reference log-probabilities and the loss over all steps agree."""
    ours = our_trainer(work, {"micro": 1})
    peer = trl_trainer(work, {"micro": 1})
    assert isinstance(peer.train_dataset, datasets.Dataset)
    rows = peer.train_dataset.to_list()
    reference = ours.reference_logprobs()
    for row, comparison, logprobs in zip(rows, ours.comparisons, reference, strict=True):
        same_prompt = row["prompt_ids"] == comparison.prompt_ids
        same_answers = [row["chosen_ids"], row["rejected_ids"]] == comparison.answer_ids
        if not (same_prompt and same_answers):
            raise UserError("the sides read different tokens, so their rates cannot be compared")
        for name, logprobs_T in zip(("ref_chosen_logps", "ref_rejected_logps"), logprobs):
            if abs(row[name] - float(logprobs_T.sum())) > TOLERANCE * len(logprobs_T):
                raise UserError(
                    f"{name} differ (ours {float(logprobs_T.sum()):.6f}, TRL {row[name]:.6f}), so"
                    " the rates cannot be compared"
                )
    our_loss = run_ours(work, {"micro": 1}).loss
    peer_loss = run_trl(work, {"micro": 1}).loss
    assert our_loss is not None and peer_loss is not None
    if not abs(our_loss - peer_loss) <= TOLERANCE:
        raise UserError(
            f"the losses over {work.size.steps} steps differ (ours {our_loss:.6f}, TRL"
            f" {peer_loss:.6f}), so the rates cannot be compared"
        )
    answers = [ids for c in ours.comparisons for ids in c.answer_ids]
    prompts = sum(len(c.prompt_ids) for c in ours.comparisons)
    return {
        **asdict(work.size),
        "loss_over_steps": {"ours": our_loss, "peer": peer_loss},
        "prompt_tokens_mean": prompts / len(ours.comparisons),
        "answer_tokens_mean": sum(map(len, answers)) / len(answers),
        "parameters": sum(p.numel() for p in ours.policy.parameters()),
    }


def comparison(size: Size = Size()) -> Comparison:
    micros = [{"micro": m} for m in (1, 2, 4, 8) if size.pairs % m == 0]
    return Comparison(
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

"""Supervised fine-tuning of a language model on {text, answer} rows.

    python -m sft.run_sft config.yml key=value ...

The folder `logging.save_dir` then holds the best model (by RougeLsum of generated dev answers, or
by dev loss) as an ordinary transformers folder, with metrics.jsonl, samples/, config.yaml and
run.json beside it. An interrupted run continues from its last complete checkpoint; a finished one
is reused.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from accelerate.utils import gather_object
from pydantic import Field, model_validator
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.utils import logging as transformers_logging

from fgrlhf.config import (
    BatchSize,
    Count,
    FilePath,
    Kernels,
    NonNegativeCount,
    Positive,
    Rate,
    Seed,
    StrictModel,
    Tokens,
    parse_cli,
)
from fgrlhf.errors import UserError, run_main
from fgrlhf.evaluators import RougeLsum
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.models.decoding import Sampling
from fgrlhf.policy import Policy, load_policy
from fgrlhf.rollout import generate_texts
from fgrlhf.runs.distributed import share_of
from fgrlhf.runs.hf_trainer import (
    Decay,
    Epochs,
    StageTrainer,
    check_environment,
    forget_last_call,
    model_to_place,
    use_run_log,
)
from fgrlhf.runs.rl_config import LoggingConfig
from fgrlhf.runs.runlog import RunLog, is_main_rank, say
from fgrlhf.runs.stage import begin, finish, finished, hold, last_complete_checkpoint
from fgrlhf.types import Prompt
from sft.data import IGNORED, Collator, Order, count_cuts, encode, read_examples


class ModelSection(StrictModel):
    ckpt: FilePath = Field(
        description="folder or hub name of an encoder-decoder or decoder-only model"
    )
    max_input_len: Tokens = Field(1024, description="tokens; longer inputs are cut")
    max_generated_len: Tokens = Field(200, description="tokens; longer answers are cut")
    kernels: Kernels = "auto"


class DataSection(StrictModel):
    train_file: FilePath
    dev_file: FilePath | None = Field(
        None, description="null: no evaluation, the last model is kept"
    )
    dev_examples: Count | None = Field(None, description="dev rows used, the first ones; null: all")


class TrainSection(StrictModel):
    epochs: Epochs = 10.0
    max_steps: Count | None = Field(None, description="optimiser steps; null: `epochs` decides")
    batch_size: BatchSize = Field(4, description="examples per optimiser step, over all processes")
    micro_batch_size: BatchSize | None = Field(
        None, description="examples per forward pass and process; null: its whole share"
    )
    lr: Rate = 5e-5
    lr_schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    warmup_steps: NonNegativeCount = 0
    weight_decay: Decay = 0.0
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    max_grad_norm: Positive = 1.0
    group_by_length: bool = Field(
        False, description="batches of answers of like length: less padding is computed"
    )
    bf16: bool = Field(False, description="mixed precision; weights stay fp32")
    seed: Seed = 42


class EvaluationSection(StrictModel):
    every_steps: Count | None = Field(
        None, description="steps between evaluations and checkpoints; null: every epoch"
    )
    metric: Literal["rougeLsum", "loss"] = Field(
        "rougeLsum", description="picks the best checkpoint; with `loss` nothing is generated"
    )
    batch_size: BatchSize = 64


class SFTConfig(StrictModel):
    """A whole run."""

    model: ModelSection
    data: DataSection
    train: TrainSection = TrainSection()
    evaluation: EvaluationSection = EvaluationSection()
    logging: LoggingConfig

    @model_validator(mode="after")
    def _micro_batches(self):
        micro = self.train.micro_batch_size
        if micro is not None and self.train.batch_size % micro:
            raise ValueError(
                f"train.batch_size={self.train.batch_size} is no multiple of"
                f" train.micro_batch_size={micro}; change one of them"
            )
        return self


class SFTTrainer(StageTrainer, Seq2SeqTrainer):
    """Seq2SeqTrainer whose evaluation adds RougeLsum of greedily generated answers to the loss.

    Answers come from `generate_texts`, the sampler of every other stage, so decoder-only models
    work alike.
    """

    def __init__(
        self, config: SFTConfig, policy: Policy, dev: Sequence[Prompt], log: RunLog, **kwargs
    ):
        super().__init__(model=policy.model, **kwargs)
        self.config, self.policy, self.dev, self.log_folder = config, policy, dev, log
        self.rouge = RougeLsum() if dev and config.evaluation.metric == "rougeLsum" else None
        self.model_accepts_loss_kwargs = (
            True  # so that `compute_loss` is told the tokens of the whole batch
        )

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Mean over the answer tokens of the whole batch, however micro-batches and processes split
        it.

        The Trainer takes a model's loss for one divided by `num_items_in_batch` already. T5's is
        the micro-batch's own mean, so the gradients of all micro-batches would be added up instead
        of averaged.
        """
        output = model(**inputs)
        share = (inputs["labels"] != IGNORED).sum() / num_items_in_batch
        loss = output.loss * share * self.args.world_size  # DDP averages gradients over processes
        return (loss, output) if return_outputs else loss

    def _get_train_sampler(self, train_dataset=None):
        rows, train = self.train_dataset, self.config.train
        lengths = (
            [(len(row["labels"]), len(row["input_ids"])) for row in rows]
            if train.group_by_length
            else None
        )
        return Order(
            len(rows), train.batch_size, train.seed, lambda: int(self.state.epoch or 0), lengths
        )

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        if self.rouge is not None:
            self.refuse_divergence(
                {"the dev loss": output.metrics["eval_loss"]}, self.state.global_step
            )
            output.metrics.update(
                {f"eval_{name}": value for name, value in self.generated_metrics().items()}
            )
        return output

    def generated_metrics(self) -> dict[str, float]:
        """RougeLsum and length (words) of answers to the dev prompts, which the processes share."""
        sampling = Sampling(self.config.model.max_generated_len, do_sample=False)
        mine = share_of(self.dev, self.args.process_index, self.args.world_size)
        if not sys.stderr.isatty():  # else a bar says so
            say(
                f"{self.config.logging.run_name}: step {self.state.global_step}, answering"
                f" {len(self.dev)} dev prompts"
            )
        with self.accelerator.autocast():
            texts = generate_texts(
                self.policy,
                mine,
                sampling,
                batch_size=self.config.evaluation.batch_size,
                progress=self.args.process_index == 0 and sys.stderr.isatty(),
            )
        rows = [
            {
                "id": prompt.id,
                "prompt": prompt.text,
                "response": text,
                "references": list(prompt.references),
                "rougeLsum": self.rouge(text, prompt.references),
            }
            for prompt, (text,) in zip(mine, texts)
        ]
        rows = gather_object(rows) if self.args.world_size > 1 else rows
        self.log_folder.samples(self.state.global_step, rows[: self.config.logging.n_samples])
        return {
            "rougeLsum": sum(row["rougeLsum"] for row in rows) / len(rows),
            "length": sum(len(row["response"].split()) for row in rows) / len(rows),
        }


def training_arguments(config: SFTConfig, folder: Path) -> Seq2SeqTrainingArguments:
    """The Trainer's settings. Raises `UserError` where the batch cannot be shared out over the
    processes.
    """
    train, evaluated = config.train, config.data.dev_file is not None
    check_environment(train.bf16)
    world = int(os.environ.get("WORLD_SIZE", 1))
    if train.batch_size % world:
        raise UserError(
            f"train.batch_size={train.batch_size} cannot be shared out over {world} processes: "
            f"make it a multiple of {world}, or start fewer processes"
        )
    share = train.batch_size // world
    micro = min(train.micro_batch_size or share, share)
    if share % micro:
        raise UserError(
            f"each of {world} processes has {share} examples per step, no multiple of "
            f"train.micro_batch_size={train.micro_batch_size}; make it a divisor of {share}"
        )
    when = "epoch" if config.evaluation.every_steps is None else "steps"
    try:
        arguments = Seq2SeqTrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=share // micro,
            per_device_eval_batch_size=config.evaluation.batch_size,
            num_train_epochs=train.epochs,
            max_steps=train.max_steps or -1,
            learning_rate=train.lr,
            lr_scheduler_type=train.lr_schedule,
            warmup_steps=train.warmup_steps,
            weight_decay=train.weight_decay,
            adam_beta1=train.adam_beta1,
            adam_beta2=train.adam_beta2,
            max_grad_norm=train.max_grad_norm,
            logging_nan_inf_filter=False,  # it would log other losses in place of NaN
            bf16=train.bf16,
            seed=train.seed,
            eval_strategy=when if evaluated else "no",
            save_strategy=when,
            eval_steps=config.evaluation.every_steps,
            save_steps=config.evaluation.every_steps or 500,
            load_best_model_at_end=evaluated,
            metric_for_best_model=config.evaluation.metric if evaluated else None,
            greater_is_better=config.evaluation.metric == "rougeLsum" if evaluated else None,
            prediction_loss_only=True,
            logging_steps=config.logging.log_interval,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=torch.accelerator.is_available(),
            # else CPU processes do not find each other
            use_cpu=not torch.accelerator.is_available(),
            ddp_find_unused_parameters=False,
        )
    except ValueError as error:  # e.g. bf16 on a GPU that has none
        raise UserError(f"transformers refuses these settings: {error}") from None
    # one device per process; else the Trainer would wrap the model in DataParallel
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def place_model(policy: Policy, folder: Path) -> None:
    """Write the model's files into `folder`, beside what is there; each appears whole or not at
    all.
    """
    forget_last_call(policy.tokenizer)
    with model_to_place(folder) as temporary:
        policy.save(temporary)


def train(config: SFTConfig) -> Path:
    """Run the stage and return the folder of the best model. See the module's docstring."""
    with hold(config.logging.save_dir):
        return _train(config)


def _train(config: SFTConfig) -> Path:
    folder = Path(config.logging.save_dir)
    files = [path for path in (config.data.train_file, config.data.dev_file) if path is not None]
    examples = read_examples(config.data.train_file)
    dev = (
        read_examples(config.data.dev_file, config.data.dev_examples)
        if config.data.dev_file
        else []
    )
    inputs = [*files, config.model.ckpt]
    known = finished(folder, config, inputs)
    if known is not None:
        say(f"{config.logging.run_name}: finished before, reusing {folder}")
        if is_main_rank():  # a process that was killed right after it had finished
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return folder
    arguments = training_arguments(config, folder / "checkpoints")
    use_kernels(config.model.kernels, folder)
    policy = load_policy(config.model.ckpt, max_input_len=config.model.max_input_len)
    if is_main_rank():
        begin(folder, config, inputs)
    checkpoint = last_complete_checkpoint(folder / "checkpoints")
    resume_step = None if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    log = RunLog(folder, config, resume_step, **config.logging.trackers())
    with log, log.stage(config.logging.run_name):
        trainer = SFTTrainer(
            config,
            policy,
            dev,
            log,
            args=arguments,
            data_collator=Collator(policy.tokenizer.pad_token_id),
            train_dataset=encode(policy, examples, config.model.max_generated_len),
            eval_dataset=encode(policy, dev, config.model.max_generated_len) if dev else None,
        )
        use_run_log(trainer, log, config.logging.run_name)
        for note in config.logging.notes():
            say(note)
        parameters = policy.model.num_parameters()
        say(
            f"{len(examples)} training examples, {len(dev)} dev examples, {parameters:,} parameters"
            + (f", continuing from step {resume_step}" if checkpoint else "")
        )
        cuts = count_cuts(policy, examples, config.model.max_generated_len)
        say(cuts.describe(config.model.max_input_len, config.model.max_generated_len))
        trainer.train(resume_from_checkpoint=checkpoint)
        # all have loaded the best checkpoint, which is removed now
        trainer.accelerator.wait_for_everyone()
        if trainer.is_world_process_zero():
            place_model(policy, folder)
    if is_main_rank():  # once stages.json has the stage's seconds: complete means that all is there
        finish(
            folder,
            {
                "steps": trainer.state.global_step,
                "best_step": trainer.state.best_global_step,
                "metric": config.evaluation.metric,
                "best": trainer.state.best_metric,
                "cut_prompts": cuts.prompts,
                "cut_answers": cuts.answers,
            },
        )
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    config = parse_cli(SFTConfig, argv, "usage: fgrlhf sft config.yml [section.key=value ...]")
    say(f"the model is in {train(config)}")


if __name__ == "__main__":
    run_main(main)

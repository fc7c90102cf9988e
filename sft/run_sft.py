"""Supervised fine-tuning of a language model on demonstrations.

    python -m sft.run_sft [TASK] config.yml key=value ...

The rows of `data.train_file` are `{prompt, response}`, or any format that fgrlhf/data/formats.py
reads as a demonstration.

Writes the best model (by `evaluation.metric`) to `logging.save_dir` as an ordinary transformers
folder, together with metrics.jsonl, samples/, config.yaml and run.json. With a task, the dev
responses are also judged by its metrics. An interrupted run continues from its last complete
checkpoint; a finished one is reused.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from transformers import PretrainedConfig, PreTrainedModel, Seq2SeqTrainer, Seq2SeqTrainingArguments

from fgrlhf.base.errors import UserError
from fgrlhf.base.program import run_main
from fgrlhf.cli.training_program import NO_TASK, run_program
from fgrlhf.data.formats import DEMONSTRATIONS, Demonstration
from fgrlhf.evaluation import Metric, check_metrics_fit, metric_columns, reference_notes
from fgrlhf.evaluators import RougeLsum
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.metrics.config import models_of
from fgrlhf.metrics.registry import build_metrics
from fgrlhf.metrics.summary import summarize
from fgrlhf.models.decoding import Sampling
from fgrlhf.models.recompute import recompute_layers
from fgrlhf.models.trunk import require_trained
from fgrlhf.policy import Policy, load_policy
from fgrlhf.rollout import generate_texts
from fgrlhf.runs import hf_trainer
from fgrlhf.runs.distributed import shards_models, share_of, stop_together, strategy_notes
from fgrlhf.runs.hf_checkpoints import model_to_install
from fgrlhf.runs.hf_log import use_run_log
from fgrlhf.runs.hf_trainer import StageTrainer
from fgrlhf.runs.occupied import check_own_stage
from fgrlhf.runs.progress import progress_bar
from fgrlhf.runs.runlog import RunLog, is_main_rank, say
from fgrlhf.runs.stage import begin, finish, hold, last_complete_checkpoint, stored_result
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt
from fgrlhf.utils import seeded
from fgrlhf.words import count_words
from sft.config import SFTConfig
from sft.data import (
    IGNORED,
    Collator,
    Order,
    Unseen,
    check_lengths,
    count_unseen,
    encode,
    every_turn,
    keeps_logits,
    response_loss,
)
from sft.packing import EXAMPLES, check_packing, pack, packed_loss


class SFTTrainer(StageTrainer, Seq2SeqTrainer):
    """A Seq2SeqTrainer whose evaluation also measures greedily generated answers.

    Answers are sampled by `generate_texts`, as in every other stage, so decoder-only models work
    too.
    """

    def __init__(
        self,
        config: SFTConfig,
        policy: Policy,
        dev: Sequence[Prompt],
        log: RunLog,
        metrics: Sequence[Metric] = (),
        **kwargs,
    ):
        super().__init__(model=policy.model, parallel=config.parallel, **kwargs)
        self.config = config
        self.policy = policy
        self.dev = dev
        self.run_log = log
        self.metrics = metrics
        self.generates = bool(dev) and (bool(metrics) or config.evaluation.metric != "loss")
        self.rouge = RougeLsum()
        is_encoder_decoder = cast(PretrainedConfig, policy.model.config).is_encoder_decoder
        self.responses_only = not is_encoder_decoder and keeps_logits(policy.model)
        # of this process since the last line of the log, with `train.packing`
        self._tokens_real = 0
        self._tokens_packed = 0
        self._tokens_unpacked = 0
        # so that `compute_loss` receives the number of tokens of the whole batch
        self.model_accepts_loss_kwargs = True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The mean over the response tokens of the whole batch, over micro-batches and processes.

        The dev loss is the mean over the response tokens of all dev rows (`StageTrainer`).

        The Trainer expects a loss that is already divided by `num_items_in_batch`. T5's loss is the
        mean over the micro-batch, so the gradients of micro-batches would be summed instead of
        averaged.
        """
        output: Any = {}  # nothing reads it: the evaluation needs the loss only
        if EXAMPLES in inputs:
            mean_loss = packed_loss(model, inputs)
        elif self.responses_only:
            mean_loss = response_loss(model, self.policy, inputs)
        else:
            output = model(**inputs, use_cache=False)
            mean_loss = output.loss
        tokens = (inputs["labels"] != IGNORED).sum()
        if not model.training:  # a process may have no rows of the last batch, whose mean is NaN
            mean_loss = torch.where(tokens > 0, mean_loss, 0.0)
        tokens_of_batch = tokens if num_items_in_batch is None else num_items_in_batch
        share = tokens / tokens_of_batch
        # the sum over processes is needed, but gradients are averaged over them
        loss = mean_loss * share * self.args.world_size
        return (loss, output) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        if self.config.train.packing:
            self._tokens_unpacked += inputs["attention_mask"].numel()
            pad_id = self.policy.tokenizer.pad_token_id
            inputs = pack(inputs, pad_id, self.policy.hidden_size)
            self._tokens_packed += inputs["attention_mask"].numel()
            self._tokens_real += int(inputs["attention_mask"].sum())
        return super().training_step(model, inputs, num_items_in_batch)

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        """Add the share of real tokens in the rows since the last such line, if they are packed."""
        if "loss" in logs and self._tokens_packed:
            logs["fill"] = self._tokens_real / self._tokens_packed
            logs["fill_unpacked"] = self._tokens_real / self._tokens_unpacked
            self._tokens_real = 0
            self._tokens_packed = 0
            self._tokens_unpacked = 0
        super().log(logs, *args, **kwargs)

    def _get_train_sampler(self, train_dataset=None):
        train = self.config.train
        rows = cast(list[dict[str, list[int]]], self.train_dataset)
        lengths = None
        if train.group_by_length:
            lengths = [(len(row["labels"]), len(row["input_ids"])) for row in rows]
        return Order(
            len(rows), train.batch_size, train.seed, lambda: int(self.state.epoch or 0), lengths
        )

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        metrics = output.metrics
        if self.generates and metrics is not None:
            self.refuse_divergence({"the dev loss": metrics["eval_loss"]}, self.state.global_step)
            for name, value in self.generated_metrics().items():
                metrics[f"eval_{name}"] = value
        return output

    def check_metric(self) -> None:
        """Raise `UserError` before training if nothing computes `evaluation.metric`.

        Only a trial shows what a task's metrics compute: the first reference is judged.
        """
        metric = self.config.evaluation.metric
        names = {"loss", "rougeLsum", "length"}
        if not self.generates or metric in names:
            return
        prompt = self.dev[0]
        names |= summarize(self._judged([prompt], [prompt.references[0]])).keys()
        if metric not in names:
            raise UserError(
                f"evaluation.metric is `{metric}`, which the evaluation does not compute; it"
                f" computes {', '.join(sorted(names))}"
            )

    def generated_metrics(self) -> dict[str, float]:
        """RougeLsum, length in words and the metrics of responses to the dev prompts.

        The processes share the prompts.
        """
        prompts = share_of(self.dev, self.args.process_index, self.args.world_size)
        rows = self._judged(prompts, self._answers(prompts))
        if self.args.world_size > 1:
            rows = gather_object(rows)
        self.run_log.samples(self.state.global_step, rows[: self.config.logging.n_samples])
        named = {name: interval.mean for name, interval in summarize(rows).items()}
        return named | {
            "rougeLsum": sum(row["rougeLsum"] for row in rows) / len(rows),
            "length": sum(count_words(row["response"]) for row in rows) / len(rows),
        }

    def _answers(self, prompts: Sequence[Prompt]) -> list[str]:
        """Greedy responses to the prompts of one process. A bar or a line shows the progress."""
        sampling = Sampling(self.config.model.max_generated_len, do_sample=False)
        if not sys.stderr.isatty():  # on a terminal there is a progress bar
            say(
                f"{self.config.logging.run_name}: step {self.state.global_step}, answering"
                f" {len(self.dev)} dev prompts"
            )
        is_first = self.args.process_index == 0
        bar = progress_bar(len(prompts), "answering", "prompt", enabled=is_first)
        with bar, self.accelerator.autocast():
            texts = generate_texts(
                self.policy,
                prompts,
                sampling,
                batch_size=self.config.evaluation.batch_size,
                bar=bar,
            )
        return [text for (text,) in texts]  # one sample for each prompt

    def _judged(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[dict]:
        """A row for each response: prompt, response, references, RougeLsum and other metrics."""
        rows: list[dict] = []
        for prompt, text in zip(prompts, texts):
            rows.append(
                {
                    "id": prompt.id,
                    "prompt": prompt.text,
                    "response": text,
                    "references": list(prompt.references),
                    "rougeLsum": self.rouge(text, prompt.references),
                }
            )
        for metric in self.metrics:
            columns = metric_columns(metric, prompts, texts)
            for row, more in zip(rows, columns, strict=True):
                row.update(more)
        return rows


def training_arguments(config: SFTConfig, folder: Path) -> Seq2SeqTrainingArguments:
    """The Trainer's settings.

    Raises:
      UserError: the processes cannot share the batch, or transformers rejects a value.
    """
    train = config.train
    settings = {}
    if config.data.dev_file is None:
        settings["eval_strategy"] = "no"
    else:
        settings["load_best_model_at_end"] = True
        settings["metric_for_best_model"] = config.evaluation.metric
        settings["greater_is_better"] = config.evaluation.metric != "loss"
    return hf_trainer.training_arguments(
        Seq2SeqTrainingArguments,
        folder,
        train,
        config.evaluation,
        config.logging.log_interval,
        lr_scheduler_type=train.lr_schedule,
        warmup_steps=train.warmup_steps,
        adam_beta1=train.adam_beta1,
        prediction_loss_only=True,
        ddp_find_unused_parameters=False,
        **settings,
    )


def install_model(trainer: SFTTrainer, folder: Path) -> None:
    """Write the model's files into `folder`, each of them atomically. Every process calls it."""
    policy = trainer.policy
    weights = None
    if trainer.sharded:
        weights = trainer.whole_tensors(policy.model.state_dict(keep_vars=True))
    if not trainer.is_world_process_zero():
        return
    with model_to_install(folder) as temporary:
        policy.save(temporary, weights)


def load_start(config: SFTConfig, empty: bool = False) -> Policy:
    """The policy from which training starts, with new adapters if the config asks for them.

    Args:
      empty: do not read its weights, as in `load_policy`.

    Raises:
      UserError: it cannot be loaded, or `train.packing` does not suit it.
    """
    with seeded(config.train.seed, "init"):  # of new adapters
        policy = load_policy(
            config.model.ckpt,
            max_input_len=config.model.max_input_len,
            lora=config.model.lora,
            top_layers=config.model.train_top_layers,
            decoder_prefix=config.model.decoder_prefix,
            empty=empty,
        )
    require_trained(policy.model)
    if config.train.packing:
        check_packing(policy)
    if config.train.gradient_checkpointing:
        recompute_layers(policy.model)
    return policy


def described_parameters(policy: Policy, has_adapters: bool) -> str:
    """How many parameters the policy has and, with adapters, how many of them are trained."""
    model = cast(PreTrainedModel, policy.model)
    text = f"{model.num_parameters():,} parameters"
    if has_adapters:
        text += f", of which {model.num_parameters(only_trainable=True):,} are trained"
    return text


def train(config: SFTConfig, task: Task = NO_TASK) -> Path:
    """Run the stage and return the folder of the best model. See the module's docstring."""
    with hold(config.logging.save_dir):
        return _train(config, task)


def _train(config: SFTConfig, task: Task) -> Path:
    folder = Path(config.logging.save_dir)
    examples, dev = _read_examples(config)
    inputs = _inputs(config)
    check_own_stage(folder, inputs)
    if stored_result(folder, config, inputs) is not None:
        say(f"{config.logging.run_name}: finished before, reusing {folder}")
        if is_main_rank():  # in case the stage was killed just after it was complete
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return folder
    arguments = training_arguments(config, folder / "checkpoints")
    use_kernels(config.model.kernels, folder)
    processes: Any = arguments.distributed_state
    # the first process sends the others their parts of a sharded model
    empty = shards_models(config.parallel, processes) and not processes.is_main_process
    policy = stop_together(processes, lambda: load_start(config, empty))
    train_rows, dev_rows = _encoded(config, policy, examples, dev)
    dev_prompts = [example.prompt for example in dev]
    _check_dev_prompts(config, policy, dev_prompts)
    metrics = _metrics(config, task, dev_prompts, str(arguments.device))
    if is_main_rank():
        begin(folder, config, inputs)
    checkpoint = last_complete_checkpoint(folder / "checkpoints")
    resume_step = None if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    named = None if task is NO_TASK else task.name
    log = RunLog(folder, config, resume_step, task=named, **config.logging.trackers())
    with log, log.stage(config.logging.run_name):
        trainer = SFTTrainer(
            config,
            policy,
            dev_prompts,
            log,
            metrics,
            args=arguments,
            data_collator=Collator(
                policy.tokenizer.pad_token_id, left=policy.tokenizer.padding_side == "left"
            ),
            train_dataset=train_rows,
            eval_dataset=dev_rows,
        )
        use_run_log(trainer, log, config.logging.run_name)
        trainer.check_metric()
        unseen = count_unseen(policy, examples, config.model.max_generated_len)
        for note in strategy_notes(config.parallel, processes):
            say(note)
        _announce(config, policy, len(examples), len(dev), unseen, resume_step)
        trainer.train(resume_from_checkpoint=checkpoint)
        # wait until all processes have loaded the best checkpoint, which is removed below
        trainer.accelerator.wait_for_everyone()
        install_model(trainer, folder)
        note = trainer.tie_note()
        if note is not None:
            say(f"{note}; or choose another evaluation.metric")
    if is_main_rank():
        result = {
            "steps": trainer.state.global_step,
            "best_step": trainer.state.best_global_step,
            "metric": config.evaluation.metric,
            "best": trainer.state.best_metric,
            "cut_prompts": unseen.prompts,
            "cut_answers": unseen.answers,
        }
        # after the log has written stages.json, because result.json marks the stage as complete
        finish(folder, result)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    return folder


def _encoded(
    config: SFTConfig,
    policy: Policy,
    examples: Sequence[Demonstration],
    dev: Sequence[Demonstration],
) -> tuple[list[dict[str, list[int]]], list[dict[str, list[int]]] | None]:
    """The training rows and the dev rows as token ids; None instead of no dev rows.

    Raises:
      UserError: a row is too long for the model.
    """
    train_rows = encode(policy, examples, config.model.max_generated_len)
    dev_rows = encode(policy, dev, config.model.max_generated_len) if dev else None
    check_lengths(policy, [*train_rows, *(dev_rows or ())])
    return train_rows, dev_rows


def _check_dev_prompts(config: SFTConfig, policy: Policy, dev_prompts: Sequence[Prompt]) -> None:
    """Raise `UserError` if the longest dev prompt leaves no room for a generated answer."""
    longest = max(policy.prompt_lengths(dev_prompts), default=0)
    policy.check_fits(min(longest, policy.max_input_len), config.model.max_generated_len)


def _metrics(
    config: SFTConfig, task: Task, dev_prompts: Sequence[Prompt], device: str
) -> list[Metric]:
    """The metrics of the config and of the task.

    Raises:
      UserError: a metric cannot be built, or the dev prompts lack what it needs.
    """
    metrics = [
        *build_metrics(config.evaluation_metrics, device, prefix=task.rm_prefix),
        *task.metrics(dev_prompts),
    ]
    check_metrics_fit(metrics, dev_prompts, config.data.dev_file or "dev")
    for note in reference_notes(metrics, dev_prompts):
        say(note)
    return metrics


def _announce(
    config: SFTConfig,
    policy: Policy,
    n_train: int,
    n_dev: int,
    unseen: Unseen,
    resume_step: int | None,
) -> None:
    """Say what is trained on what, and how much of the examples the model cannot see."""
    for note in config.logging.notes():
        say(note)
    parameters = described_parameters(policy, config.model.lora is not None)
    continuing = "" if resume_step is None else f", continuing from step {resume_step}"
    say(f"{n_train} training examples, {n_dev} dev examples, {parameters}{continuing}")
    say(unseen.describe(config.model.max_input_len, config.model.max_generated_len))


def _inputs(config: SFTConfig) -> list[str]:
    """Files and checkpoints that the stage reads."""
    files = [config.data.train_file]
    if config.data.dev_file is not None:
        files.append(config.data.dev_file)
    return [*files, config.model.ckpt, *models_of(config.evaluation_metrics)]


def _read_examples(config: SFTConfig) -> tuple[list[Demonstration], list[Demonstration]]:
    """The training examples and the dev examples."""
    data = config.data
    examples = DEMONSTRATIONS.read(data.train_file, data.columns)
    if data.turns == "all":
        examples = [turn for example in examples for turn in every_turn(example)]
    dev = []
    if data.dev_file is not None:
        dev = DEMONSTRATIONS.read(data.dev_file, data.columns, data.dev_examples)
    return examples, dev


def main(argv: Sequence[str] | None = None) -> None:
    run_program("sft", "model", SFTConfig, train, argv)


if __name__ == "__main__":
    run_main(main)

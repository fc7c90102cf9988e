"""Supervised fine-tuning of a language model on demonstrations.

    python -m sft.run_sft [TASK] config.yml key=value ...

The rows of `data.train_file` are `{prompt, response}`, or any format that fgrlhf/data/formats.py
reads as a demonstration.

Writes the best model (by `evaluation.metric`) to `logging.save_dir` as an ordinary transformers
folder, together with metrics.jsonl, samples/, config.yaml and run.json; with `train.ema` also the
average of the weights, in the folder `ema`. With a task, the dev responses are also judged by its
metrics. An interrupted run continues from its last complete
checkpoint; a finished one is reused.
"""

import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.program import run_main
from fgrlhf.cli.training_program import run_program
from fgrlhf.data.formats import DEMONSTRATIONS, Demonstration
from fgrlhf.data.mixture import of_each, read_files
from fgrlhf.data.stream import mapped
from fgrlhf.evaluation import Metric, check_metrics_fit, metric_columns, reference_notes
from fgrlhf.evaluators import RougeLsum
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.metrics.registry import build_metrics
from fgrlhf.metrics.summary import summarize
from fgrlhf.models.provenance import policy_card, write_card
from fgrlhf.models.sharding import whole
from fgrlhf.policy import Policy, trained_policy
from fgrlhf.rollout import generate_texts
from fgrlhf.runs.batching import shuffled_batches
from fgrlhf.runs.checkpoint import model_to_install
from fgrlhf.runs.distributed import (
    shards_models,
    share_of,
    stage_accelerator,
    stop_together,
)
from fgrlhf.runs.precision import dtype_of_run
from fgrlhf.runs.progress import progress_bar
from fgrlhf.runs.runlog import command_line, say
from fgrlhf.runs.stage import hold
from fgrlhf.supervised_trainer import (
    SupervisedTrainer,
    complete,
    micro_batch_size,
    reuse,
    trained,
)
from fgrlhf.task import NO_TASK, Task
from fgrlhf.text_types import Prompt
from fgrlhf.utils import IGNORED, seeded
from fgrlhf.words import count_words
from sft.config import SFTConfig
from sft.data import (
    Collator,
    Row,
    Unseen,
    check_lengths,
    count_unseen,
    encode,
    every_turn,
    keeps_logits,
    response_loss,
)
from sft.packing import EXAMPLES, check_packing, pack, packed_loss


class SFTTrainer(SupervisedTrainer):
    """Trains a policy on demonstrations. On dev, it also measures greedily generated answers.

    Answers are sampled by `generate_texts`, as in every other stage, so decoder-only models work
    too.

    Args:
      rows, dev_rows: the encoded examples.
      dev: the prompts of the dev rows.
      metrics: of generated answers.
    """

    config: SFTConfig

    def __init__(
        self,
        config: SFTConfig,
        policy: Policy,
        rows: Sequence[Row],
        dev_rows: Sequence[Row],
        dev: Sequence[Prompt],
        metrics: Sequence[Metric],
        accelerator: Accelerator,
    ):
        metric = config.evaluation.metric
        super().__init__(config, policy.model, rows, dev_rows, accelerator)
        self.policy = policy
        self.dev = dev
        self.metrics = metrics
        self.generates = bool(dev) and (bool(metrics) or metric != "loss")
        self.rouge = RougeLsum()
        pad_id = policy.tokenizer.pad_token_id
        self.collator = Collator(pad_id, left=policy.tokenizer.padding_side == "left")
        is_encoder_decoder = cast(PretrainedConfig, policy.model.config).is_encoder_decoder
        self.responses_only = not is_encoder_decoder and keeps_logits(policy.model)
        # of this process since the last line of the log, with `train.packing`
        self._tokens_real = 0
        self._tokens_packed = 0
        self._tokens_unpacked = 0

    def epoch_batches(self, epoch: int) -> list[list[int]]:
        train = self.config.train
        lengths = self.lengths if train.group_by_length else None
        return shuffled_batches(
            len(self.rows), train.batch_size, train.seed, epoch, lengths, self.mixture
        )

    @cached_property
    def lengths(self) -> list[tuple[int, int]]:
        """Of each row, the tokens of the answer and of the input."""
        return [(len(row["labels"]), len(row["input_ids"])) for row in self.rows]

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return self.collator(rows)

    def labels_of(self, row: Row) -> int:
        return sum(label != IGNORED for label in row["labels"])

    def mean_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """The mean over the response tokens of a batch."""
        if EXAMPLES in batch:
            return packed_loss(model, batch)
        if self.responses_only:
            return response_loss(model, self.policy, batch)
        return model(**batch, use_cache=False).loss

    def training_batch(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        batch = super().training_batch(rows)
        if not self.config.train.packing:
            return batch
        self._tokens_unpacked += batch["attention_mask"].numel()
        packed = pack(batch, self.policy.tokenizer.pad_token_id, self.policy.hidden_size)
        self._tokens_packed += packed["attention_mask"].numel()
        self._tokens_real += int(packed["attention_mask"].sum())
        return packed

    def fill_metrics(self) -> dict[str, float]:
        """The share of padding and, if rows are packed, of real tokens in them."""
        metrics = super().fill_metrics()
        if self._tokens_packed:
            metrics["fill"] = self._tokens_real / self._tokens_packed
            metrics["fill_unpacked"] = self._tokens_real / self._tokens_unpacked
            self._tokens_real = 0
            self._tokens_packed = 0
            self._tokens_unpacked = 0
        return metrics

    def dev_metrics(self) -> dict[str, float]:
        """The mean loss over the response tokens of all dev rows, and `generated_metrics`."""
        total = 0.0
        for rows in self.dev_batches():
            loss = self.mean_loss(self.module, self.on_device(self.collate(rows)))
            total += float(loss) * sum(map(self.labels_of, rows))
        metrics = {"loss": self.mean_over_dev(total)}
        if self.generates:
            self.refuse_divergence({"the dev loss": metrics["loss"]}, self.step)
            metrics |= self.generated_metrics()
        return metrics

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
                f"evaluation.metric is `{shorten(metric)}`, which the evaluation does not compute;"
                f" it computes {', '.join(sorted(names))}"
            )

    def generated_metrics(self) -> dict[str, float]:
        """RougeLsum, length in words and the metrics of responses to the dev prompts.

        The processes share the prompts.
        """
        prompts = share_of(self.dev, self.accelerator.process_index, self.accelerator.num_processes)
        rows = self._judged(prompts, self._answers(prompts))
        if self.accelerator.num_processes > 1:
            rows = gather_object(rows)
        self.log.samples(self.step, rows[: self.config.logging.n_samples])
        named = {name: interval.mean for name, interval in summarize(rows).items()}
        return named | {
            "rougeLsum": sum(row["rougeLsum"] for row in rows) / len(rows),
            "length": sum(count_words(row["response"]) for row in rows) / len(rows),
        }

    def _answers(self, prompts: Sequence[Prompt]) -> list[str]:
        """Responses to the prompts of one process. A bar or a line shows the progress."""
        model = self.config.model
        sampling = model.eval_sampling
        if not sys.stderr.isatty():  # on a terminal there is a progress bar
            say(
                f"{self.config.logging.run_name}: step {self.step}, answering"
                f" {len(self.dev)} dev prompts"
            )
        bar = progress_bar(len(prompts), "answering", "prompt", enabled=not self._quiet())
        with bar:
            texts = generate_texts(
                self.policy,
                prompts,
                sampling,
                seed=self.config.train.seed,
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


def install_model(trainer: SFTTrainer, folder: Path, best: dict | None = None) -> None:
    """Write the model's files into `folder`, each of them atomically. Every process calls it.

    Args:
      best: its evaluation on dev, if it has one.
    """
    is_main = trainer.accelerator.is_main_process
    weights = None
    if trainer.sharded:
        weights = whole(trainer.module.state_dict(keep_vars=True), keep=is_main)
    if is_main:
        best = best or {"step": trainer.step}
        folder.mkdir(exist_ok=True)
        columns = {f"eval/{best['metric']}": best["value"]} if "metric" in best else {}
        is_causal = not cast(PreTrainedModel, trainer.policy.model).config.is_encoder_decoder
        card = policy_card(trainer.config, command_line(), columns, best["step"], is_causal)
        with model_to_install(folder) as temporary:
            trainer.policy.save(temporary, weights)
            write_card(temporary, folder, card)


def _load_start(config: SFTConfig, empty: bool = False) -> Policy:
    """The policy from which training starts, with new adapters if the config asks for them.

    Args:
      empty: do not read its weights, as in `load_policy`.

    Raises:
      UserError: it cannot be loaded, or `train.packing` does not suit it.
    """
    with seeded(config.train.seed, "init"):  # of new adapters
        policy = trained_policy(config.model, empty)
    if config.train.packing:
        check_packing(policy)
    return policy


def _described_parameters(policy: Policy, has_adapters: bool) -> str:
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
    examples, dev = _read_examples(config)
    folder = reuse(config)
    if folder is not None:
        return folder
    folder = Path(config.logging.save_dir)
    accelerator = stage_accelerator(dtype_of_run(config.model, folder))
    micro_batch_size(config.train, accelerator.num_processes)  # before a model is loaded
    use_kernels(config.model.kernels, folder)
    # the first process sends the others their parts of a sharded model
    empty = shards_models(config.parallel, accelerator) and not accelerator.is_main_process
    with stop_together(accelerator):
        policy = _load_start(config, empty)
    rows, dev_rows = _encoded(config, policy, examples, dev)
    dev_prompts = [example.prompt for example in dev]
    _check_dev_prompts(config, policy, dev_prompts)
    metrics = _metrics(config, task, dev_prompts, str(accelerator.device))
    trainer = SFTTrainer(config, policy, rows, dev_rows, dev_prompts, metrics, accelerator)
    trainer.check_metric()
    unseen = count_unseen(policy, examples, config.model.max_generated_len)
    messages = _start_messages(config, policy, len(examples), len(dev), unseen)
    with trained(trainer, messages, task.name or None):
        install_model(trainer, folder, trainer.best)
        trainer.save_average(lambda folder: install_model(trainer, folder))
        note = trainer.tie_note()
        if note is not None:
            say(f"{note}; or choose another evaluation.metric")
    best = trainer.best or {}
    result = {
        "steps": trainer.step,
        "best_step": best.get("step"),
        "metric": config.evaluation.metric,
        "best": best.get("value"),
        "cut_prompts": unseen.prompts,
        "cut_answers": unseen.answers,
    }
    complete(trainer, result)
    return folder


def _encoded(
    config: SFTConfig,
    policy: Policy,
    examples: Sequence[Demonstration],
    dev: Sequence[Demonstration],
) -> tuple[Sequence[Row], Sequence[Row]]:
    """The training rows and the dev rows as token ids.

    Raises:
      UserError: a row is too long for the model.
    """
    longest = config.model.max_generated_len

    def encoded(part: Sequence[Demonstration]) -> Sequence[Row]:
        return mapped(part, lambda some: encode(policy, some, longest))

    train_rows = of_each(examples, encoded)
    dev_rows = encode(policy, dev, longest) if dev else []
    for rows in (train_rows, dev_rows):
        check_lengths(policy, rows)
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


def _start_messages(
    config: SFTConfig, policy: Policy, n_train: int, n_dev: int, unseen: Unseen
) -> list[str]:
    """What is trained on what, and how much of the examples the model cannot see."""
    parameters = _described_parameters(policy, config.model.lora is not None)
    return [
        f"{n_train} training examples, {n_dev} dev examples, {parameters}",
        unseen.describe(config.model.max_input_len, config.model.max_generated_len),
    ]


def _read_examples(config: SFTConfig) -> tuple[Sequence[Demonstration], list[Demonstration]]:
    """The training examples and the dev examples."""
    data = config.data

    def read(file: str) -> Sequence[Demonstration]:
        if data.turns == "all":
            return DEMONSTRATIONS.stream(file, data.columns, every_turn)
        return DEMONSTRATIONS.stream(file, data.columns)

    examples = read_files(data.train_file, read)
    dev = []
    if data.dev_file is not None:
        dev = DEMONSTRATIONS.read(data.dev_file, data.columns, config.evaluation.examples)
    return examples, dev


def main(argv: Sequence[str] | None = None) -> None:
    """The program: read the config, and train."""
    run_program("sft", "model", SFTConfig, train, argv)


if __name__ == "__main__":
    run_main(main)

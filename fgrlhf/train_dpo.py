"""Stage `fgrlhf dpo`: load what a config names, and train with the loop of fgrlhf/dpo.py."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from accelerate import Accelerator
from torch import nn
from transformers.utils import logging as transformers_logging

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.configs.sections import names_of
from fgrlhf.data.comparisons import Comparison, ComparisonSource
from fgrlhf.data.mixture import of_each, read_files
from fgrlhf.data.stream import chosen, mapped
from fgrlhf.data.token_comparisons import WITHOUT_MARKS, TokenComparison, encode_comparisons
from fgrlhf.dpo import DPOTrainer
from fgrlhf.dpo_rows import Sizes, select_usable
from fgrlhf.evaluation import dev_evaluation
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.kernels.copies import keep_copies
from fgrlhf.models import frozen_layers
from fgrlhf.models.base import Policy
from fgrlhf.models.lora import AdapterFree
from fgrlhf.models.trunk import text_config
from fgrlhf.policy import check_prompts_fit, trained_policy
from fgrlhf.policy_trainer import announce
from fgrlhf.preference_terms import BAD_ANSWERS, GOOD_ANSWERS, PAIRS
from fgrlhf.runs.distributed import (
    mixed_precision,
    shard_over_processes,
    shards_models,
    stop_together,
)
from fgrlhf.runs.dpo_config import ROW_FORMATS, DPOConfig, DPOSettings
from fgrlhf.runs.occupied import check_own_run, note_changed_code
from fgrlhf.runs.precision import dtype_of_run
from fgrlhf.runs.runlog import say
from fgrlhf.runs.stage import check_writable, hold
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt
from fgrlhf.utils import seeded


def load_comparisons(
    config: DPOConfig,
    sources: Mapping[str, ComparisonSource],
    read_prompts: Callable[[str | None, str], Sequence[Prompt]],
) -> Sequence[Comparison]:
    """Load the comparisons to train on, from the library's format or from a task's source.

    Args:
      config: `data.pairs` names the source.
      sources: the task's sources by name.
      read_prompts: (file or None, split) -> prompts, for the task's sources: `Task.prompts`.

    Raises:
      UserError: there is no such source, it has no pairs, or `dpo` reads marks and no characters
        are marked.
    """
    data = config.data
    if data.pairs in ROW_FORMATS:
        comparisons = read_files(data.feedback_file, lambda file: _read_rows(config, file))
    elif data.pairs in sources:
        prompts = read_prompts(data.train_file, "train")
        source = sources[data.pairs]
        comparisons = read_files(data.feedback_file, lambda file: source(file, prompts))
    else:
        raise UserError(
            f"data.pairs: there is no source of pairs `{shorten(data.pairs, 60)}`;"
            f" {suggestion(data.pairs, [*ROW_FORMATS, *sources])}"
        )
    answers = (answer for comparison in comparisons for answer in comparison.answers)
    if config.dpo.reads_marks and not any(answer.marked for answer in answers):
        raise UserError(
            f"{_mark_readers(config.dpo)}, but data.pairs={data.pairs} marks no characters in the"
            f" answers of {names_of(data.feedback_file)}: {WITHOUT_MARKS}, or choose"
            " another data.pairs"
        )
    return comparisons


def _read_rows(config: DPOConfig, file: str) -> Sequence[Comparison]:
    """The comparisons of a file that have something to learn from."""
    data = config.data
    counts: Counter[str] = Counter()

    def decided(row: Comparison) -> tuple[Comparison, ...]:
        return (row,) if row.pairs or row.labels else ()

    comparisons = ROW_FORMATS[data.pairs].stream(file, data.columns, decided, counts)
    for what, count in counts.items():
        say(f"{file}: {what}: {count:,}")
    if not comparisons:
        raise UserError(
            f"{file} has no pairs to learn from: all of its rows are ties. Choose another file with"
            " data.feedback_file=..."
        )
    return comparisons


def _mark_readers(settings: DPOSettings) -> str:
    """The settings because of which marks are read, for messages."""
    for key in ("span_weight", "unmarked_weight"):
        if getattr(settings, key) != 1:
            return f"dpo.{key} is {getattr(settings, key):g}"
    return f"dpo.loss is {' and '.join(settings.losses)}"


def build_trainer(task: Task, config: DPOConfig) -> DPOTrainer:
    """Load everything that a run needs. Nothing is written yet.

    Raises:
      UserError: pairs, files or checkpoints are missing or broken.
    """
    data = config.data
    comparisons = load_comparisons(config, task.comparisons, task.prompts)
    dev_prompts = task.prompts(data.dev_file, "dev")
    dtype = dtype_of_run(config.model, config.logging.save_dir)
    accelerator = Accelerator(mixed_precision=mixed_precision(dtype))
    use_kernels(config.model.kernels, config.logging.save_dir)
    sharded = shards_models(config.parallel, accelerator)

    # the first process sends the others their parts of sharded models
    empty = sharded and not accelerator.is_main_process
    with stop_together(accelerator), seeded(config.train.seed, "init"):  # of new adapters
        policy = trained_policy(config.model, empty)
    if not sharded:
        policy.to(accelerator.device)
    train_prompts = _distinct_prompts(comparisons)
    train_file = data.train_file or names_of(data.feedback_file)
    dev_file = data.dev_file or "dev"
    evaluated_prompts = dev_prompts[: config.evaluation.examples]
    quiet = not accelerator.is_main_process
    longest = config.model.max_generated_len
    check_prompts_fit(policy, train_prompts, task.core_text, train_file, quiet)
    check_prompts_fit(policy, evaluated_prompts, task.core_text, dev_file, quiet, longest)
    reads_marks = config.dpo.reads_marks
    encoded = of_each(
        comparisons, lambda part: encode_comparisons(policy, part, longest, reads_marks)
    )
    encoded = select_usable(config.dpo, encoded)
    # without the pass of a fixed reference over all data, no states of frozen layers are kept
    is_fixed = config.dpo.needs_reference and config.dpo.reference.sync_every is None
    if not (is_fixed and keeps_frozen_states(policy, encoded, accelerator.num_processes)):
        policy.frozen_layers = None
    reference: nn.Module | None = None
    if not config.dpo.needs_reference:
        pass
    elif config.model.lora is None:
        reference = policy.copy_sharing_frozen().eval().requires_grad_(False)
    else:
        reference = AdapterFree(policy)
    if reference is not None:
        if sharded:
            shard_over_processes(reference, accelerator, dtype)
        elif dtype == "bf16":
            keep_copies(reference, policy)
    evaluate = dev_evaluation(task, config, dev_prompts, None, reference, accelerator)
    with seeded(config.train.seed, "init"):
        trainer = DPOTrainer(config, policy, encoded, evaluate, accelerator)
    for prompt, longest in trainer.sizes:
        policy.check_fits(prompt, longest)
    for row in trainer.mismatched:
        policy.check_fits(len(row.prompt_ids), len(row.answer_ids[0]))
    if accelerator.is_main_process:
        print(what_is_learned(trainer.sizes), flush=True)
    return trainer


def _distinct_prompts(comparisons: Sequence[Comparison]) -> Sequence[Prompt]:
    """The first prompt with each id."""
    seen: set[int] = set()  # hashes, since the ids of many rows would take much memory

    def is_new(prompt: Prompt) -> bool:
        known = len(seen)
        seen.add(hash(prompt.id))
        return len(seen) > known

    return chosen(mapped(comparisons, lambda part: [row.prompt for row in part]), is_new)


def what_is_learned(sizes: Sizes) -> str:
    """Numbers of pairs, answers and prompts, to print."""
    counts, answers = sizes.units, len(sizes.answers)
    prompts = len(set(sizes.prompt_keys))
    if counts[PAIRS]:
        return f"{counts[PAIRS]} pairs of {answers} answers to {prompts} prompts"
    good, bad = counts[GOOD_ANSWERS], counts[BAD_ANSWERS]
    return f"{good} good and {bad} bad answers to {prompts} prompts"


def keeps_frozen_states(
    policy: Policy, comparisons: Sequence[TokenComparison], num_processes: int
) -> bool:
    """Whether what the frozen layers compute is kept from the reference's pass for training.

    All states must fit: forgotten ones would be computed again in other batches, which differ by
    rounding, and a resumed run would not continue bit for bit. For the same reason there must be
    one process. Each of several processes reads only a part of the data in the reference's pass.
    """
    if policy.frozen_layers is None or num_processes > 1:
        return False
    tokens = 0
    for comparison in comparisons:
        tokens += len(comparison.prompt_ids) + sum(map(len, comparison.answer_ids))
    # the width between layers, which is not that of the last hidden states in OPT-350M
    width = getattr(text_config(policy.model), "hidden_size", policy.hidden_size)
    bytes_per_token = width * policy.model.dtype.itemsize
    return tokens * bytes_per_token <= frozen_layers.CAPACITY


def train(task: Task, config: DPOConfig) -> None:
    """Run the stage.

    Raises:
      UserError: a file or checkpoint is missing or broken, or the folder cannot be written or
        holds something else.
    """
    folder = Path(config.logging.save_dir)
    check_writable(folder)
    check_own_run(folder, config, config.inputs)
    transformers_logging.disable_progress_bar()
    trainer = build_trainer(task, config)
    trainer.task = task.name or None
    announce(trainer)
    note_changed_code(task, config, folder)
    with hold(folder):
        trainer.train()

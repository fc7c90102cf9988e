"""DPO on a task: `fgrlhf dpo TASK dpo_config.yml [key=value ...]`.

Reads a file of feedback or comparisons; no reward model is trained or loaded. Ordinary and
fine-grained DPO differ only in their YAML.
"""

from collections.abc import Sequence

from accelerate import Accelerator
from transformers.utils import logging as transformers_logging

from fgrlhf.cli.command_line import parse_cli, task_and_rest
from fgrlhf.cli.rl import dev_evaluation, dtype_notes
from fgrlhf.data.prompts import check_prompts_fit
from fgrlhf.data.token_comparisons import encode_comparisons
from fgrlhf.dpo import DPOTrainer, load_comparisons
from fgrlhf.errors import run_main
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.policy import Policy, load_policy
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.runs.stage import check_writable
from fgrlhf.task import Task
from fgrlhf.utils import seeded

USAGE = "usage: fgrlhf dpo TASK config.yml [section.key=value ...]"


def build_trainer(task: Task, config: DPOConfig) -> DPOTrainer:
    """Load everything that a run needs. Nothing is written yet.

    Raises:
      UserError: pairs, files or checkpoints are missing or broken.
    """
    data = config.data
    comparisons = load_comparisons(config, task.comparisons, task.prompts)
    dev_prompts = task.prompts(data.dev_file, "dev")
    accelerator = Accelerator(mixed_precision="bf16" if config.model.dtype == "bf16" else "no")
    use_kernels(config.model.kernels, config.logging.save_dir)
    policy = _load_policy(config).to(accelerator.device)
    reference = _load_policy(config).to(accelerator.device)
    train_prompts = list({c.prompt.id: c.prompt for c in comparisons}.values())
    train_file = data.train_file or data.feedback_file
    dev_used = dev_prompts[: config.train.eval_examples]
    quiet = not accelerator.is_main_process
    check_prompts_fit(policy, train_prompts, task.core_text, train_file, quiet)
    check_prompts_fit(policy, dev_used, task.core_text, data.dev_file or "dev", quiet)
    evaluate = dev_evaluation(
        task, config, dev_prompts, None, reference.eval().requires_grad_(False), accelerator
    )
    encoded = encode_comparisons(
        policy, comparisons, config.env.max_generated_len, config.dpo.span_weight
    )
    if accelerator.is_main_process:
        pairs = sum(len(comparison.pairs) for comparison in encoded)
        answers = sum(len(comparison.answer_ids) for comparison in encoded)
        print(f"{pairs} pairs of {answers} answers to {len(encoded)} prompts", flush=True)
    with seeded(config.train.seed, "init"):
        return DPOTrainer(config, policy, encoded, evaluate, accelerator)


def _load_policy(config: DPOConfig) -> Policy:
    settings = config.model.policy_model
    policy = load_policy(
        settings.ckpt,
        "fp32",
        config.env.max_input_len,
        settings.input_padding_side,
        top_layers=settings.train_top_layers,
    )
    policy.frozen = None  # a batch is read once per epoch, so its lower states are not kept
    return policy


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: a task, a YAML file and key=value overrides."""
    task, rest = task_and_rest(argv, USAGE)
    config = parse_cli(DPOConfig, rest, USAGE)
    check_writable(config.logging.save_dir)
    transformers_logging.disable_progress_bar()
    trainer = build_trainer(task, config)
    if trainer.accelerator.is_main_process:
        for note in (*config.logging.notes(), *dtype_notes(config.model.dtype, trainer)):
            print(note, flush=True)
    trainer.train()


if __name__ == "__main__":
    run_main(main)

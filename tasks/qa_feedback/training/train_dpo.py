"""DPO on long-form QA: `python -m tasks.qa_feedback.training.train_dpo dpo_config.yml [key=value
...]`.

Reads the feedback file itself; no reward model is trained or loaded. Ordinary and fine-grained DPO
differ by their YAML alone.
"""

from collections.abc import Sequence

from accelerate import Accelerator
from transformers.utils import logging as transformers_logging

from fgrlhf.config import parse_cli
from fgrlhf.data.token_comparisons import encode_comparisons
from fgrlhf.dpo import DPOTrainer, load_comparisons
from fgrlhf.errors import run_main
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.policy import load_policy
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.runs.stage import check_writable
from fgrlhf.utils import seeded
from tasks.qa_feedback.feedback import load_examples
from tasks.qa_feedback.training.comparisons import SOURCES
from tasks.qa_feedback.training.prompts import check_prompts_fit
from tasks.qa_feedback.training.train_rl import dev_evaluation

USAGE = "usage: python -m tasks.qa_feedback.training.train_dpo config.yml [section.key=value ...]"

QADPOConfig = DPOConfig  # its sources of pairs are in comparisons.py


def build_trainer(config: DPOConfig) -> DPOTrainer:
    """Everything a run needs, loaded. Raises `UserError` for missing pairs, files or checkpoints
    before anything is written.
    """
    comparisons = load_comparisons(config, SOURCES, load_examples)
    dev_prompts = load_examples(config.data.dev_file)
    accelerator = Accelerator(mixed_precision="bf16" if config.model.dtype == "bf16" else "no")
    use_kernels(config.model.kernels, config.logging.save_dir)
    chosen = config.model.policy_model
    policy, reference = (
        load_policy(chosen.ckpt, "fp32", config.env.max_input_len, chosen.input_padding_side).to(
            accelerator.device
        )
        for _ in range(2)
    )
    asked = list({c.prompt.id: c.prompt for c in comparisons}.values())
    for prompts, file in (
        (asked, config.data.train_file or config.data.feedback_file),
        (dev_prompts[: config.train.eval_examples], config.data.dev_file),
    ):
        check_prompts_fit(policy, prompts, file, quiet=not accelerator.is_main_process)
    evaluate = dev_evaluation(
        config, dev_prompts, None, reference.eval().requires_grad_(False), accelerator
    )
    encoded = encode_comparisons(
        policy, comparisons, config.env.max_generated_len, config.dpo.span_weight
    )
    if accelerator.is_main_process:
        pairs, answers = (
            sum(len(x) for x in xs) for xs in zip(*((c.pairs, c.answer_ids) for c in encoded))
        )
        print(f"{pairs} pairs of {answers} answers to {len(encoded)} questions", flush=True)
    with seeded(config.train.seed, "init"):
        return DPOTrainer(config, policy, encoded, evaluate, accelerator)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: a YAML file and key=value overrides."""
    config = parse_cli(DPOConfig, argv, USAGE)
    check_writable(config.logging.save_dir)
    transformers_logging.disable_progress_bar()
    trainer = build_trainer(config)
    if trainer.accelerator.is_main_process:
        for note in config.logging.notes():
            print(note, flush=True)
    trainer.train()


if __name__ == "__main__":
    run_main(main)

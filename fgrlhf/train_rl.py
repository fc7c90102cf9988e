"""Stage `fgrlhf rl`: load what a config names, and train with the loop of fgrlhf/trainer.py."""

from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from transformers.utils import logging as transformers_logging

from fgrlhf.dev_evaluation import dev_evaluation
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.models.base import Policy
from fgrlhf.models.lora import AdapterFree
from fgrlhf.policy import check_prompts_fit, load_value, trained_policy, whole_policy
from fgrlhf.policy_trainer import dtype_notes, start_line
from fgrlhf.rewards.build import build_reward
from fgrlhf.runs.distributed import (
    mixed_precision,
    shards_models,
    stop_together,
    strategy_notes,
)
from fgrlhf.runs.occupied import check_own_run, note_changed_code
from fgrlhf.runs.precision import dtype_of_run
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.runs.stage import check_writable
from fgrlhf.samplers.make import make_sampler
from fgrlhf.scorers.base import RewardContext
from fgrlhf.task import Task
from fgrlhf.trainer import OnPolicyTrainer, make_trainer
from fgrlhf.utils import seeded
from fgrlhf.value import ActorCritic, Value


def _load_models(config: RLConfig, empty: bool) -> tuple[Policy, Value | None, nn.Module]:
    """Policy, critic (if the algorithm has one) and reference. `empty`: without weights."""
    value = None
    with seeded(config.train.seed, "init"):
        policy = trained_policy(config.model, empty)
        if config.needs_values:
            critic = config.model.value_model
            value = load_value(
                critic.ckpt,
                policy,
                critic.freeze_value_model,
                critic.policy_value_sharing,
                top_layers=critic.train_top_layers,
                same_ckpt=critic.ckpt == config.model.ckpt,
                empty=empty,
            )
    return policy, value, _make_reference(config, policy, empty)


def _make_reference(config: RLConfig, policy: Policy, empty: bool) -> nn.Module:
    """The policy before training. It shares with the policy what is not trained."""
    if config.model.lora is not None:
        return AdapterFree(policy)
    if config.model.train_top_layers is not None:
        return policy.copy_sharing_frozen()
    # fp32 weights under autocast, like the policy: with bf16 weights the KL would not be 0 at the
    # first step
    return whole_policy(config.model, config.model.ckpt, empty=empty)


def build_trainer(task: Task, config: RLConfig) -> OnPolicyTrainer:
    """Load everything that a run needs. Nothing is written yet.

    Raises:
      UserError: a file or checkpoint is missing or broken.
    """
    dtype = dtype_of_run(config.model, config.logging.save_dir)
    accelerator = Accelerator(mixed_precision=mixed_precision(dtype))
    use_kernels(config.model.kernels, config.logging.save_dir)
    if config.train.cuda_deterministic:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False

    # without weights, to find mistakes before anything large is loaded
    unloaded = trained_policy(config.model, empty=True)
    sampler = make_sampler(config.sampler, unloaded)
    stop_together(accelerator, sampler.check)

    data = config.data
    train_prompts = task.prompts(data.train_file, "train", data.seed)
    dev_prompts = task.prompts(data.dev_file, "dev", data.seed)
    evaluated_prompts = dev_prompts[: config.evaluation.examples]
    train_file = data.train_file or "train"
    dev_file = data.dev_file or "dev"
    quiet = not accelerator.is_main_process
    longest = config.model.max_generated_len
    check_prompts_fit(unloaded, train_prompts, task.core_text, train_file, quiet, longest)
    check_prompts_fit(unloaded, evaluated_prompts, task.core_text, dev_file, quiet, longest)

    context = RewardContext(task.rm_prefix, str(accelerator.device), dtype)
    reward = build_reward(config.reward, context)
    sharded = shards_models(config.parallel, accelerator)
    # the trainer sends the other processes their parts of sharded models
    empty = sharded and not accelerator.is_main_process
    policy, value, reference = stop_together(accelerator, lambda: _load_models(config, empty))
    if not sharded:
        policy.to(accelerator.device)
        reference.to(accelerator.device)

    evaluate = dev_evaluation(task, config, dev_prompts, reward, reference, accelerator)
    return make_trainer(
        config, ActorCritic(policy, value), reference, reward, train_prompts, evaluate, accelerator
    )


def train(task: Task, config: RLConfig) -> None:
    """Run the stage.

    Raises:
      UserError: a file or checkpoint is missing or broken, or the folder cannot be written or
        holds something else.
    """
    check_writable(config.logging.save_dir)
    check_own_run(Path(config.logging.save_dir), config, config.inputs)
    transformers_logging.disable_progress_bar()
    trainer = build_trainer(task, config)
    trainer.task = task.name
    if trainer.accelerator.is_main_process:
        print(start_line(trainer), flush=True)
        unused = config.unused_settings()
        if unused:
            print(f"note: {config.algorithm.name} does not read {', '.join(unused)}", flush=True)
        notes = (
            *strategy_notes(config.parallel, trainer.accelerator),
            *config.logging.notes(),
            *dtype_notes(trainer),
        )
        for note in notes:
            print(note, flush=True)
    folder = Path(config.logging.save_dir)
    note_changed_code(task, config, folder)
    trainer.train()

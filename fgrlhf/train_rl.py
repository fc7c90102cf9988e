"""Stage `fgrlhf rl`: load what a config names, and train with the loop of fgrlhf/trainer.py."""

from pathlib import Path

import torch
from accelerate import Accelerator
from transformers.utils import logging as transformers_logging

from fgrlhf.configs.sections import names_of
from fgrlhf.evaluation import dev_evaluation
from fgrlhf.kernels.choice import choices, use_kernels
from fgrlhf.models.lora import AdapterFree
from fgrlhf.policy import check_prompts_fit, load_value, trained_policy
from fgrlhf.policy_trainer import announce
from fgrlhf.reward import CombinedReward
from fgrlhf.rewards.build import build_reward
from fgrlhf.runs.distributed import mixed_precision, shards_models, stop_together
from fgrlhf.runs.occupied import check_own_run, note_changed_code
from fgrlhf.runs.precision import dtype_of_run
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.runs.stage import check_writable, hold
from fgrlhf.samplers.sampler import make_sampler
from fgrlhf.scorers.base import RewardContext
from fgrlhf.task import Task
from fgrlhf.trainer import OnPolicyTrainer, make_trainer
from fgrlhf.utils import seeded
from fgrlhf.value import ActorCritic, saved_critic


def build_trainer(task: Task, config: RLConfig) -> OnPolicyTrainer:
    """Load everything that a run needs. Nothing is written yet.

    Raises:
      UserError: a file or checkpoint is missing or broken.
    """
    dtype = dtype_of_run(config.model, config.logging.save_dir)
    accelerator = Accelerator(mixed_precision=mixed_precision(dtype))
    use_kernels(config.model.kernels, config.logging.save_dir)
    choices()  # measured before anything is computed
    torch.backends.cudnn.deterministic = True

    # without weights, to find mistakes before anything large is loaded
    unloaded = trained_policy(config.model, empty=True)
    sampler = make_sampler(config.sampler, unloaded)
    with stop_together(accelerator):
        sampler.check()
    conversations = config.env.build(unloaded)

    critic = config.model.value_model
    if config.needs_values and critic.ckpt is not None:
        saved_critic(critic.ckpt, critic.policy_value_sharing, config.critic_aspects)

    data = config.data
    train_prompts = task.train_prompts(data.train_file, data.seed)
    dev_prompts = task.prompts(data.dev_file, "dev", data.seed)
    evaluated_prompts = dev_prompts[: config.evaluation.examples]
    train_file = names_of(data.train_file) or "train"
    dev_file = data.dev_file or "dev"
    quiet = not accelerator.is_main_process
    longest = config.model.max_generated_len
    check_prompts_fit(unloaded, train_prompts, task.core_text, train_file, quiet, longest)
    check_prompts_fit(unloaded, evaluated_prompts, task.core_text, dev_file, quiet, longest)

    context = RewardContext(task.rm_prefix, str(accelerator.device), dtype)
    reward = CombinedReward({})  # who follows a teacher needs none
    if config.reward or config.algorithm.reads_rewards:
        reward = build_reward(config.reward, context)
    sharded = shards_models(config.parallel, accelerator)
    # the trainer sends the other processes their parts of sharded models
    empty = sharded and not accelerator.is_main_process
    value = None
    with stop_together(accelerator), seeded(config.train.seed, "init"):
        policy = trained_policy(config.model, empty)
        if config.needs_values:
            value = load_value(
                critic.ckpt,
                policy,
                critic.train_top_layers == 0,
                critic.policy_value_sharing,
                top_layers=critic.train_top_layers or None,
                same_ckpt=critic.ckpt == config.model.ckpt,
                empty=empty,
                aspects=config.critic_aspects,
            )
    # The policy before training: it shares with the policy what is not trained. Its weights are
    # fp32 under autocast, like the policy's, so the KL is 0 at the first step.
    has_adapters = config.model.lora is not None
    reference = AdapterFree(policy) if has_adapters else policy.copy_sharing_frozen()
    if not sharded:
        policy.to(accelerator.device)
        reference.to(accelerator.device)

    evaluate = dev_evaluation(
        task,
        config,
        dev_prompts,
        reward if config.reward else None,
        reference,
        accelerator,
        conversations,
    )
    return make_trainer(
        config, ActorCritic(policy, value), reference, reward, train_prompts, evaluate, accelerator
    )


def train(task: Task, config: RLConfig) -> None:
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
    unused = ", ".join(config.unused_settings())
    name = getattr(config.algorithm, "of", config.algorithm.name)
    announce(trainer, [f"note: {name} does not read {unused}"] if unused else [])
    note_changed_code(task, config, folder)
    with hold(folder):
        trainer.train()

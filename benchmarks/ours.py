"""Our side: the library's step in the four timed phases.

All calls into the training loop are here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks import workload
from benchmarks.workload import Size
from fgrlhf.configs.sections import ParallelConfig, Sampling
from fgrlhf.models.decoding import draw, uniform_rows
from fgrlhf.policy import T5Policy
from fgrlhf.ppo import PPOTrainer
from fgrlhf.reward import (
    AspectReward,
    BasicReward,
    CombinedReward,
    SegmentClassifierReward,
    SequenceScorerReward,
)
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.scoring import SegmentScorer
from fgrlhf.rollout import response_seeds
from fgrlhf.rollout import score as score_responses
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.types import Response, Rollout, TokenReward
from fgrlhf.value import ActorCritic, Value
from tasks.qa_feedback.feedback import rm_prefix


@dataclass(frozen=True)
class Generated:
    """Sampled responses, the K of one prompt side by side (G prompts, B = G * K)."""

    prompt_ids_GP: Tensor
    prompt_mask_GP: Tensor
    response: Response

    def responses(self) -> list[list[int]]:
        """The tokens of each response, without padding."""
        lengths = self.response.mask_BT.sum(1).tolist()
        return [row[:length] for row, length in zip(self.response.ids_BT.tolist(), lengths)]


def build(
    size: Size,
    responses: list[list[int]] | None = None,
    strategy: Literal["ddp", "fsdp2"] = "ddp",
) -> PPOTrainer:
    """A trainer at step 0.

    Args:
      responses: ignored; only the baseline needs them.
      strategy: how several processes hold the models. They share the prompts of the size.
    """
    AcceleratorState._reset_state(reset_partial_state=True)  # one process builds several trainers
    torch.backends.mkldnn.set_flags(size.onednn)
    accelerator = Accelerator(
        mixed_precision="bf16" if size.bf16 else "no", cpu=not torch.cuda.is_available()
    )
    share = size.prompts // accelerator.num_processes
    config = workload.config(replace(size, prompts=share))
    config = config.model_copy(update={"parallel": ParallelConfig(strategy=strategy)})
    tokenizer = workload.tokenizer(size.policy.vocab)
    policy = T5Policy(workload.policy_model(size), tokenizer, size.input_limit)
    reference = T5Policy(workload.reference_model(size), tokenizer, size.input_limit)
    trunk, head = workload.value_model(size)
    critic = T5Policy(trunk, tokenizer, size.input_limit)
    value = Value(size.value.d_model, critic)
    value.head = head
    if size.top_layers is not None:
        policy.train_top_layers(size.top_layers)
        critic.train_top_layers(size.top_layers)
    return PPOTrainer(
        config,
        ActorCritic(policy, value),
        reference,
        _reward(size, tokenizer, accelerator),
        workload.prompts(size),
        None,
        accelerator,
    )


def _reward(size: Size, tokenizer, accelerator: Accelerator) -> BasicReward:
    """The combined reward; its reward models are saved and loaded, as in a real run."""
    aspects: dict[str, AspectReward] = {}
    for seed, (name, (spec, amount)) in enumerate(workload.aspects(size).items()):
        with TemporaryDirectory() as own_folder:
            # transformers saves in the first process only
            (folder,) = broadcast_object_list([own_folder])
            model = workload.reward_model(size, spec.kind, seed)
            assert isinstance(model, PreTrainedModel)
            if accelerator.is_main_process:
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
                spec.save(folder)
            accelerator.wait_for_everyone()
            dtype = "bf16" if size.bf16 else "fp32"
            scorer = load_reward_model(folder, rm_prefix, str(accelerator.device), dtype)
            accelerator.wait_for_everyone()
        if isinstance(scorer, SegmentScorer):
            aspects[name] = SegmentClassifierReward(scorer, {"ok": amount, "error": -amount})
        else:
            assert spec.mean is not None and spec.std is not None
            aspects[name] = SequenceScorerReward(scorer, spec.mean, spec.std, amount)
    return CombinedReward(aspects)


def _sampling(config: RLConfig) -> Sampling:
    return config.model.train_generation_kwargs.sampling(config.model.max_generated_len)


def drawing(size: Size) -> Callable[[int, Tensor], Tensor]:
    """A function (step t, logits_BV) -> ids_B that draws with our sampler from any logits."""
    uniform_BT = uniform_rows(
        response_seeds(0, 0, 0, size.prompts, size.samples), size.answer_tokens
    )
    sampling = _sampling(workload.config(size))
    return lambda step, logits_BV: draw(
        logits_BV, sampling, uniform_BT[:, step].to(logits_BV.device)
    )


def generate(trainer: PPOTrainer) -> Generated:
    """The first half of `fgrlhf.rollout.collect`."""
    config = trainer.config
    policy = trainer.actor_critic.policy
    samples = config.env.train_num_samples_per_input
    seeds = response_seeds(0, 0, 0, len(trainer.prompts), samples)
    trainer.actor_critic.train(config.dropout_in_rollouts)
    with trainer.accelerator.autocast():
        prompt_GP = policy.encode([prompt.text for prompt in trainer.prompts])
        return Generated(
            *prompt_GP,
            policy.generate(
                *prompt_GP, _sampling(config), seeds, samples, config.logprob_temperature
            ),
        )


def score(trainer: PPOTrainer, generated: Generated) -> Rollout:
    """The second half of `fgrlhf.rollout.collect`."""
    config = trainer.config
    with trainer.accelerator.autocast():
        return score_responses(
            trainer.actor_critic,
            trainer.reference,
            trainer.prompts,
            generated.prompt_ids_GP,
            generated.prompt_mask_GP,
            generated.response,
            config.env.train_num_samples_per_input,
            config.logprob_temperature,
        )


def rewards(trainer: PPOTrainer, rollout: Rollout) -> TokenReward:
    return trainer.reward.token_rewards(rollout)


def update(trainer: PPOTrainer, rollout: Rollout, token_rewards: TokenReward) -> dict[str, float]:
    """Advantages and all epochs. Returns the losses' mean over the epochs."""
    rewards_BT = trainer.reward.penalized(token_rewards, rollout, trainer.kl.coef)
    return trainer.update(rollout, trainer.algorithm.advantages(rollout, rewards_BT, token_rewards))


def judged_tokens(trainer: PPOTrainer, rollout: Rollout) -> list[int]:
    """The length of every reward-model input."""
    assert isinstance(trainer.reward, CombinedReward)
    lengths = []
    for aspect in trainer.reward.aspects.values():
        assert isinstance(aspect, (SegmentClassifierReward, SequenceScorerReward))
        inputs = aspect.scorer.encode(rollout.prompts, rollout.texts)
        lengths += [encoded.length for encoded in inputs]
    return lengths


def modules(trainer: PPOTrainer) -> dict[str, nn.Module]:
    """The trained modules: same names and weights on both sides."""
    critic = trainer.actor_critic.value
    assert critic is not None and critic.trunk is not None
    return {
        "policy": trainer.actor_critic.policy.model,
        "value": critic.trunk.model,
        "head": critic.head,
    }

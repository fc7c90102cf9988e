"""Our side: the library's own step in the four phases that are timed. All calls into the loop are here."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from benchmarks import workload
from benchmarks.workload import ASPECTS, Size
from fgrlhf.policy import InverseCdfSampler, Sampling, T5Policy, uniform_rows
from fgrlhf.ppo import PPOTrainer
from fgrlhf.reward import BasicReward, CombinedReward, SegmentClassifierReward, SequenceScorerReward
from fgrlhf.reward_models import SegmentScorer, SequenceScorer
from fgrlhf.rl_config import RLConfig
from fgrlhf.rollout import decode, response_seeds
from fgrlhf.types import Rollout, TokenReward
from fgrlhf.value import ActorCritic, Value
from tasks.qa_feedback.feedback import rm_prefix


@dataclass(frozen=True)
class Generated:
    """Sampled responses, the K of one prompt side by side (G prompts, B = G * K)."""

    prompt_ids_GP: Tensor
    prompt_mask_GP: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor

    def responses(self) -> list[list[int]]:
        """The tokens of each response, without padding."""
        lengths = self.response_mask_BT.sum(1).tolist()
        return [row[:length] for row, length in zip(self.response_ids_BT.tolist(), lengths)]


def build(size: Size, responses: list[list[int]] | None = None) -> PPOTrainer:
    """A trainer at step 0. `responses` is for the other side: here they are sampled."""
    AcceleratorState._reset_state(reset_partial_state=True)  # one process builds several trainers
    accelerator = Accelerator(
        mixed_precision="bf16" if size.bf16 else "no", cpu=not torch.cuda.is_available()
    )
    config, tokenizer = workload.config(size), workload.tokenizer(size.policy.vocab)
    policy, reference = (
        T5Policy(model, tokenizer, size.input_limit)
        for model in (workload.policy_model(size), workload.reference_model(size))
    )
    trunk, head = workload.value_model(size)
    value = Value(size.value.d_model, T5Policy(trunk, tokenizer, size.input_limit))
    value.head = head
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
    aspects = {}
    dtype = torch.bfloat16 if size.bf16 else torch.float32
    for seed, (name, (spec, amount)) in enumerate(ASPECTS.items()):
        model = workload.reward_model(size, spec.kind, seed).to(accelerator.device, dtype)
        scorer = (SegmentScorer if spec.kind == "segment" else SequenceScorer)(
            model, tokenizer, spec, rm_prefix
        )
        aspects[name] = (
            SegmentClassifierReward(scorer, amount, -amount)
            if spec.kind == "segment"
            else SequenceScorerReward(scorer, spec.mean, spec.std, amount)
        )
    return CombinedReward(aspects)


def _sampling(config: RLConfig) -> Sampling:
    return config.model.policy_model.train_generation_kwargs.sampling(config.env.max_generated_len)


def drawing(size: Size) -> Callable[[int, Tensor], Tensor]:
    """A function (step t, logits_BV) -> ids_B: what our sampler draws from another's logits."""
    uniform_BT = uniform_rows(response_seeds(0, 0, 0, size.prompts, size.samples), size.answer_tokens)
    sampler = InverseCdfSampler(_sampling(workload.config(size)), uniform_BT, prefix_length=0)
    return lambda step, logits_BV: sampler(logits_BV[:, :step], logits_BV).argmax(-1)


def generate(trainer: PPOTrainer) -> Generated:
    """As `fgrlhf.rollout.collect` begins."""
    config, policy = trainer.config, trainer.actor_critic.policy
    samples = config.env.train_num_samples_per_input
    seeds = response_seeds(0, 0, 0, len(trainer.prompts), samples)
    trainer.actor_critic.train(config.dropout_in_rollouts)
    with trainer.accelerator.autocast():
        prompt_GP = policy.encode([prompt.text for prompt in trainer.prompts])
        return Generated(*prompt_GP, *policy.generate(*prompt_GP, _sampling(config), seeds, samples))


@torch.no_grad()
def score(trainer: PPOTrainer, generated: Generated) -> Rollout:
    """As `fgrlhf.rollout.collect` ends."""
    policy, samples = trainer.actor_critic.policy, trainer.config.env.train_num_samples_per_input
    temperature = trainer.config.logprob_temperature
    prompt_BP = [x.repeat_interleave(samples, 0) for x in (generated.prompt_ids_GP, generated.prompt_mask_GP)]
    response_BT = (generated.response_ids_BT, generated.response_mask_BT)
    with trainer.accelerator.autocast():
        output = trainer.actor_critic(*prompt_BP, *response_BT, temperature=temperature)
        ref_output, _ = trainer.reference(*prompt_BP, *response_BT, temperature=temperature)
    texts, ends = decode(policy.tokenizer, *response_BT)
    return Rollout(
        prompts=tuple(prompt for prompt in trainer.prompts for _ in range(samples)),
        prompt_ids_BP=prompt_BP[0],
        prompt_mask_BP=prompt_BP[1],
        response_ids_BT=response_BT[0],
        response_mask_BT=response_BT[1],
        logprobs_BT=output.logprobs_BT,
        ref_logprobs_BT=ref_output.logprobs_BT,
        values_BT=output.values_BT,
        texts=texts,
        char_ends=ends,
        group_B=torch.arange(len(trainer.prompts), device=policy.device).repeat_interleave(samples),
    )


def rewards(trainer: PPOTrainer, rollout: Rollout) -> TokenReward:
    return trainer.reward.token_rewards(rollout)


def update(trainer: PPOTrainer, rollout: Rollout, token_rewards: TokenReward) -> dict[str, float]:
    """Advantages and all epochs. Returns the losses' mean over the epochs."""
    rewards_BT = trainer.reward.penalized(token_rewards, rollout, trainer.kl.coef)
    return trainer.update(rollout, trainer.algorithm.advantages(rollout, rewards_BT))


def judged_tokens(trainer: PPOTrainer, rollout: Rollout) -> list[int]:
    """Tokens of every input of every reward model."""
    scorers = [aspect.scorer for aspect in trainer.reward.aspects.values()]
    return [read.length for scorer in scorers for read in scorer.encode(rollout.prompts, rollout.texts)]


def modules(trainer: PPOTrainer) -> dict[str, nn.Module]:
    """What training changes: the same names and weights on both sides."""
    critic = trainer.actor_critic.value
    return {"policy": trainer.actor_critic.policy.model, "value": critic.trunk.model, "head": critic.head}

"""Monte Carlo values of a rollout's segments, in place of a critic (algorithm.critic=monte_carlo).

VinePPO, Kazemnejad et al. 2024, arXiv 2410.01679.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fgrlhf.algorithms.advantages import reward_to_go
from fgrlhf.alignment import segment_starts
from fgrlhf.base.seeds import derive_seed
from fgrlhf.rollout import SCORED_AT_ONCE, score
from fgrlhf.types import Rollout, TokenReward

if TYPE_CHECKING:
    from fgrlhf.trainer import OnPolicyTrainer


def with_values(
    trainer: "OnPolicyTrainer", rollout: Rollout, rewards: TokenReward, seeds: Sequence[int]
) -> Rollout:
    """The rollout with values_BT: on all tokens of a segment, the value of its start.

    It is the mean return, from there on, of K further responses with the same beginning, where K is
    `env.train_num_samples_per_input`.

    Args:
      seeds: those of the rollout's responses.
    """
    config = trainer.config
    K, T = config.env.train_num_samples_per_input, config.model.max_generated_len
    mask_BT = rollout.response_mask_BT
    starts_BT = segment_starts(rewards.segments.values(), rollout.char_ends, mask_BT)
    values_BT = torch.zeros_like(rollout.logprobs_BT)
    states = starts_BT.nonzero().tolist()  # (response, token), in this order
    at_once = max(SCORED_AT_ONCE // (K * (rollout.prompt_ids_BP.shape[1] + T)), 1)
    for first in range(0, len(states), at_once):
        part = states[first : first + at_once]
        continued = _continued(trainer, rollout, part, seeds)
        _, penalized_BT = trainer.penalized(continued, trainer.reward.token_rewards(continued))
        to_go_BT = reward_to_go(penalized_BT, continued.response_mask_BT, config.algorithm.gamma)
        for i, (b, t) in enumerate(part):
            values_BT[b, t:] = to_go_BT[i * K : (i + 1) * K, t].mean()
    return replace(rollout, values_BT=values_BT * mask_BT)


def _continued(
    trainer: "OnPolicyTrainer",
    rollout: Rollout,
    states: Sequence[tuple[int, int]],
    seeds: Sequence[int],
) -> Rollout:
    """K sampled responses for each state (b, t) that begin with the first t tokens of b."""
    config = trainer.config
    K, temperature = config.env.train_num_samples_per_input, trainer.logprob_temperature
    given_GT = torch.full((len(states), config.model.max_generated_len), -1)
    given_GT = given_GT.to(rollout.response_ids_BT.device)
    row_seeds = []
    for i, (b, t) in enumerate(states):
        given_GT[i, :t] = rollout.response_ids_BT[b, :t]
        row_seeds += [derive_seed(seeds[b], "value", t, k) for k in range(K)]
    rows = [b for b, _ in states]
    prompts = [rollout.prompts[b] for b in rows]
    encoded = (rollout.prompt_ids_BP[rows], rollout.prompt_mask_BP[rows])
    policy, sampling = trainer.actor_critic.policy, trainer.sampling
    with trainer.precision():
        response = policy.generate(*encoded, sampling, row_seeds, K, temperature, given_GT=given_GT)
        models = (trainer.actor_critic, trainer.reference)
        continued = score(*models, prompts, *encoded, response, K, temperature, sampling=sampling)
        return trainer.algorithm.after_rollout(continued, temperature, K)

"""Values of segments that are means over further samples: the advantages, and runs with them."""

from itertools import product

import pytest
import tiny
import torch
from rl_helpers import PROMPTS, CountWord, config, metrics, trainer

from fgrlhf.algorithms.advantages import segment_start_advantages
from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.reward import CombinedReward

LENGTH = 3


def test_by_hand():
    rewards_BT = torch.tensor([[1.0, 2.0, 4.0, 9.0]])
    values_BT = torch.tensor([[3.0, 3.0, 5.0, 0.0]])  # the segments are tokens 0 and 1, and 2
    starts_BT = torch.tensor([[True, False, True, False]])
    mask_BT = torch.tensor([[1, 1, 1, 0]])
    advantages_BT, returns_BT = segment_start_advantages(
        rewards_BT, values_BT, starts_BT, mask_BT, gamma=0.5
    )
    # R_1 = 2 + 0.5 * 5, R_0 = 1 + 0.5 * R_1
    assert returns_BT.tolist() == [[3.25, 4.5, 4.0, 0.0]]
    assert advantages_BT.tolist() == [[0.25, 1.5, -1.0, 0.0]]


def test_the_gradient_is_unbiased():
    """All responses of a small world, with every set of samples that can estimate their values."""
    generator = torch.Generator().manual_seed(0)
    prefixes = [p for n in range(LENGTH) for p in product((0, 1), repeat=n)]
    place = {prefix: i for i, prefix in enumerate(prefixes)}
    logits_N = torch.randn(len(prefixes), generator=generator, dtype=torch.float64)
    logits_N.requires_grad_(True)
    responses = list(product((0, 1), repeat=LENGTH))
    reward_of = torch.randn(2, 2, 2, LENGTH, generator=generator, dtype=torch.float64)
    reward_of[..., 0] = reward_of[:, :1, :1, 0]  # a reward depends on nothing that comes later
    reward_of[..., 1] = reward_of[:, :, :1, 1]
    gamma = 0.9

    def logprob(response, t):
        sign = 1 if response[t] else -1
        return torch.nn.functional.logsigmoid(sign * logits_N[place[response[:t]]])

    def probability(response, first):
        return float(sum(logprob(response, t) for t in range(first, LENGTH)).detach().exp())

    def to_go(response, first):
        return sum(gamma ** (t - first) * reward_of[response][t] for t in range(first, LENGTH))

    exact = estimated = torch.zeros((), dtype=torch.float64)
    for response in responses:
        logprobs_T = torch.stack([logprob(response, t) for t in range(LENGTH)])
        weight = probability(response, 0)
        returns_T = torch.stack([to_go(response, t) for t in range(LENGTH)])
        exact = exact + weight * (returns_T * logprobs_T).sum()
        # token 1 ends a segment
        starts = [t for t in range(LENGTH) if t == 0 or response[t - 1] == 1]
        continuations = [[r for r in responses if r[:t] == response[:t]] for t in starts]
        for samples in product(*continuations):
            values_1T = torch.zeros(1, LENGTH, dtype=torch.float64)
            chance = weight
            for t, sample in zip(starts, samples):
                values_1T[0, t:] = to_go(sample, t)
                chance *= probability(sample, t)
            starts_1T = torch.tensor([[t in starts for t in range(LENGTH)]])
            advantages_1T, _ = segment_start_advantages(
                reward_of[response][None], values_1T, starts_1T, torch.ones(1, LENGTH), gamma
            )
            estimated = estimated + chance * (advantages_1T[0] * logprobs_T).sum()
    (expected_N,) = torch.autograd.grad(exact, logits_N, retain_graph=True)
    (found_N,) = torch.autograd.grad(estimated, logits_N)
    torch.testing.assert_close(found_N, expected_N, atol=1e-12, rtol=0)
    assert expected_N.abs().max() > 0.01


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_responses_go_on_from_given_tokens(kind):
    policy = tiny.policy(kind)
    prompt = policy.encode([p.text for p in PROMPTS[:2]])
    given_GT = torch.tensor([[7, 8, 9, -1, -1, -1], [-1] * 6])
    sampling = Sampling(6, do_sample=True)
    response = policy.generate(*prompt, sampling, [1, 2, 3, 4], 2, given_GT=given_GT)
    assert response.ids_BT[:2, :3].tolist() == [[7, 8, 9]] * 2
    free = policy.generate(*prompt, sampling, [1, 2, 3, 4], 2)
    assert torch.equal(response.ids_BT[2:], free.ids_BT[2:])
    output, _ = policy(
        *(x.repeat_interleave(2, 0) for x in prompt), response.ids_BT, response.mask_BT
    )
    torch.testing.assert_close(response.logprobs_BT, output.logprobs_BT.detach(), atol=1e-4, rtol=0)


def run(folder, until=None):
    settings = {"train__total_episodes": 24, "evaluation__every_steps": 1}
    settings = config(folder, algorithm__critic="monte_carlo", **settings)
    reward = CombinedReward({"cat": CountWord("a")})
    made = trainer(settings, kind="gpt2", reward=reward)
    made.train(until)
    return made, metrics(folder)


def test_a_run_has_values_without_a_critic_and_continues_exactly(tmp_path):
    whole, rows = run(tmp_path / "whole")
    assert whole.actor_critic.value is None
    assert {"value/mean", "value/explained_variance"} <= rows[-1].keys()
    assert "loss/value" not in rows[-1]
    run(tmp_path / "parts", until=1)
    parts, continued = run(tmp_path / "parts")
    assert continued == rows
    for name, tensor in whole.actor_critic.state_dict().items():
        assert torch.equal(parts.actor_critic.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm__normalize_aspects": "batch"}, "normalize_aspects: the samples of a value"),
        ({"algorithm__whiten": {"rewards": True}}, r"whiten\.rewards: the samples of a value"),
        ({"algorithm__gamma": {"cat": 0.5}}, "gamma: .*needs critic=per_aspect"),
        ({"algorithm__name": "trpo"}, "whose update trains a critic"),
        ({"model__train_generation_kwargs": {"do_sample": False}}, "do_sample is false"),
    ],
)
def test_what_does_not_fit_is_refused(changes, reason, tmp_path):
    with pytest.raises(UserError, match=reason):
        config(tmp_path, algorithm__critic="monte_carlo", **changes)


def test_settings_that_are_not_read_are_named(tmp_path):
    given = config(tmp_path, algorithm={"critic": "monte_carlo", "vf_coef": 2.0})
    assert "algorithm.vf_coef" in given.unused_settings() and not given.needs_values

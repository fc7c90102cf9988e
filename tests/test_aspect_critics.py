"""A critic with an output per reward: its GAE, its targets, and runs with it."""

from itertools import product

import pytest
import tiny
import torch
from rl_helpers import CountWord, config, lengths_mask, metrics, rollout, trainer

from fgrlhf.algorithms.advantages import aspect_gae, gae
from fgrlhf.algorithms.config import PPOConfig
from fgrlhf.algorithms.ppo import PPO
from fgrlhf.base.errors import UserError
from fgrlhf.policy import load_value
from fgrlhf.reward import CombinedReward, with_kl
from fgrlhf.rewards.build import RewardWeights
from fgrlhf.runs.distributed import join_rollouts
from fgrlhf.types import PolicyOutput, TokenReward
from fgrlhf.value import Value

MASK = lengths_mask([5, 2, 3])
PER_ASPECT = {"critic": "per_aspect"}


def random_values(seed: int, aspects: int = 2, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values_BTA = torch.randn(*MASK.shape, aspects, generator=generator, dtype=dtype)
    return values_BTA * MASK[..., None]


def two_aspects(dtype=torch.float64):
    """Rewards and rollout of a step: the aspects a and b, of weight 1, and the critic's values."""
    rewards_BTA, values_BTA = random_values(0, dtype=dtype), random_values(1, dtype=dtype)
    rewards = TokenReward({"a": rewards_BTA[..., 0], "b": rewards_BTA[..., 1]}, {}, MASK)
    old = rollout(MASK, values_BT=values_BTA.sum(-1), values_BTA=values_BTA)
    return rewards_BTA, values_BTA, rewards, old


# ---- identities ----------------------------------------------------------------------------------


def test_by_hand():
    rewards_BTA = torch.tensor([[[0.0, 0.0], [1.0, 2.0]]])
    values_BTA = torch.tensor([[[0.5, 1.0], [0.25, 0.5]]])
    advantages_BTA, returns_BTA = aspect_gae(
        rewards_BTA, values_BTA, torch.ones(1, 2), [0.0, 1.0], [0.95, 0.5]
    )
    # a looks at nothing but the next reward: r - V
    assert advantages_BTA[0, :, 0].tolist() == [-0.5, 0.75]
    # b: delta = (0.5 - 1, 2 - 0.5), A_0 = -0.5 + 0.5 * 1.5
    assert advantages_BTA[0, :, 1].tolist() == [0.25, 1.5]
    assert torch.equal(returns_BTA, advantages_BTA + values_BTA)


@pytest.mark.parametrize("start", ["own_end", "longest"])
def test_equal_lambdas_equal_the_critic_of_the_sum(start):
    rewards_BTA, values_BTA, *_ = two_aspects()
    numbers = ([0.9, 0.9], [0.8, 0.8])
    advantages_BTA, returns_BTA = aspect_gae(rewards_BTA, values_BTA, MASK, *numbers, start)
    expected = gae(rewards_BTA.sum(-1), values_BTA.sum(-1), MASK, 0.9, 0.8, start)
    torch.testing.assert_close(advantages_BTA.sum(-1), expected[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(returns_BTA.sum(-1), expected[1], atol=1e-12, rtol=0)


def test_one_aspect_is_the_scalar_critic_bit_for_bit():
    rewards_BTA, values_BTA = random_values(0, 1, torch.float32), random_values(1, 1, torch.float32)
    rewards = TokenReward({"a": rewards_BTA[..., 0]}, {}, MASK)
    old = rollout(MASK, values_BT=values_BTA[..., 0])
    scalar = PPO(PPOConfig()).advantages(old, rewards.total_BT, rewards)
    old = rollout(MASK, values_BT=values_BTA[..., 0], values_BTA=values_BTA)
    one = PPO(PPOConfig(critic="per_aspect")).advantages(old, rewards.total_BT, rewards)
    assert torch.equal(one.advantages_BT, scalar.advantages_BT)
    assert torch.equal(one.returns_BT, scalar.returns_BT)


def test_a_loss_is_the_sum_of_the_losses_of_the_aspects():
    _, values_BTA, rewards, old = two_aspects(torch.float32)
    algorithm = PPO(PPOConfig(critic="per_aspect", gae={"lam": {"a": 0.0}}, cliprange_value=0.1))
    advantages = algorithm.advantages(old, rewards.total_BT, rewards)
    new_BTA = values_BTA + 0.3 * MASK[..., None]
    new = PolicyOutput(old.logprobs_BT, new_BTA.sum(-1), old.logprobs_BT, values_BTA=new_BTA)
    loss_BT, logged = algorithm.value_loss(new, old, advantages)
    expected_BT = torch.zeros(MASK.shape)
    for a, lam in enumerate((0.0, 0.95)):
        alone = PPO(PPOConfig(gae={"lam": lam}, cliprange_value=0.1))
        one = rollout(MASK, values_BT=values_BTA[..., a])
        target = alone.advantages(one, list(rewards.by_aspect.values())[a], rewards)
        output = PolicyOutput(old.logprobs_BT, new_BTA[..., a], old.logprobs_BT)
        expected_BT += alone.value_loss(output, one, target)[0]
    torch.testing.assert_close(loss_BT, expected_BT)
    assert logged["clipfrac/value"].max() <= 1


# ---- weights and the KL --------------------------------------------------------------------------


def test_weights_of_a_step_act_on_advantages_and_leave_the_targets_alone():
    rewards_BTA, values_BTA, rewards, old = two_aspects()
    algorithm = PPO(PPOConfig(critic="per_aspect"))
    plain = algorithm.advantages(old, rewards.total_BT, rewards)
    weights = RewardWeights({})
    weights.base, weights.multipliers = {"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 3.0}
    now = weights.applied(rewards, step=0)
    weighted = algorithm.advantages(old, now.total_BT, now)
    assert torch.equal(weighted.returns_BTA, plain.returns_BTA)
    only_b = TokenReward({"b": rewards_BTA[..., 1]}, {}, MASK)
    alone = rollout(MASK, values_BT=values_BTA[..., 1])
    expected = PPO(PPOConfig()).advantages(alone, only_b.total_BT, only_b)
    torch.testing.assert_close(weighted.advantages_BT, expected.advantages_BT)  # 3 is whitened away


def test_the_kl_is_an_aspect_whose_targets_do_not_follow_its_coefficient():
    _, _, rewards, old = two_aspects(torch.float32)
    old = rollout(MASK, logprobs_BT=torch.ones(MASK.shape))
    now = with_kl(rewards, old, kl_coef=0.6, logged_coef=0.2)
    assert list(now.by_aspect) == ["a", "b", "kl"]
    torch.testing.assert_close(now.by_aspect["kl"], -0.6 * MASK)
    assert now.logged is not None
    torch.testing.assert_close(now.logged.by_aspect["kl"], -0.2 * MASK)
    assert now.weight("kl") / now.logged.weight("kl") == pytest.approx(3)


# ---- configs -------------------------------------------------------------------------------------


def test_the_outputs_are_the_rewards_and_the_penalty(tmp_path):
    rewards = {"a": {"kind": "count"}, "off": {"kind": "count", "weight": 0}}
    given = config(tmp_path, reward=rewards, algorithm__critic="per_aspect")
    assert given.critic_aspects == {"a": 1.0, "kl": 0.1}
    in_loss = {"algorithm__kl__part_of": "loss", "algorithm__gamma": {"a": 0.5}}
    given = config(tmp_path, reward=rewards, algorithm__critic="per_aspect", **in_loss)
    assert given.critic_aspects == {"a": 1.0}
    assert isinstance(given.algorithm, PPOConfig)
    assert given.algorithm.gamma_of("a") == 0.5 and given.algorithm.gamma_of("b") == 1.0
    assert config(tmp_path).critic_aspects is None
    assert config(tmp_path, algorithm__name="grpo", algorithm__critic="per_aspect").algorithm.unused


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm__lam": {"cat": 0.5}}, r"algorithm\.gae\.lam: .*needs critic=per_aspect"),
        ({"algorithm": {**PER_ASPECT, "gamma": {"dog": 0.5}}}, r"gamma\.dog: .*only cat, kl"),
        (
            {"algorithm": {**PER_ASPECT, "lam": {"cat": 1.5}}},
            r"1 mistake:\n  algorithm\.gae\.lam\.cat",
        ),
        ({"algorithm": {**PER_ASPECT, "whiten_rewards": True}}, "whiten.rewards: it divides"),
        ({"algorithm": PER_ASPECT, "reward": {"kl": {"kind": "count"}}}, r"reward\.kl: .*penalty"),
    ],
)
def test_what_does_not_fit_is_refused(changes, reason, tmp_path):
    with pytest.raises(UserError, match=reason):
        config(tmp_path, **changes)


# ---- runs ----------------------------------------------------------------------------------------


def run(folder, until=None, own_value=False, aspects=1, **changes):
    settings = {"train__total_episodes": 32, "evaluation__every_steps": 2, **changes}
    words = ["cat", "dog"][:aspects]
    settings["reward"] = {word: {"kind": "count"} for word in words}
    reward = CombinedReward({word: CountWord(word[0]) for word in words})
    made = trainer(config(folder, **settings), reward=reward, own_value=own_value)
    made.train(until)
    return made, metrics(folder)


@pytest.mark.parametrize("own_value", [True, False])
def test_a_run_with_one_reward_is_that_of_the_scalar_critic(own_value, tmp_path):
    settings = {
        "own_value": own_value,
        "algorithm__kl__part_of": "loss",
        "train__total_episodes": 16,
    }
    made, rows = run(tmp_path / "one", algorithm__critic="per_aspect", **settings)
    scalar, expected = run(tmp_path / "scalar", **settings)
    by_name = [row.pop("value/explained_variance/cat", None) for row in rows]
    assert by_name == [row.get("value/explained_variance") for row in rows]
    assert rows == expected
    for name, tensor in scalar.actor_critic.state_dict().items():
        assert torch.equal(made.actor_critic.state_dict()[name], tensor), name


def test_a_resumed_run_continues_bit_for_bit(tmp_path):
    settings = {"aspects": 2, "algorithm": {"gamma": {"cat": 0.5}, "lam": {"kl": 0}, **PER_ASPECT}}
    settings["reward"] = {"cat": {"kind": "count", "weight": {"from": 0, "to": 1, "steps": 2}}}
    whole, rows = run(tmp_path / "whole", **settings)
    run(tmp_path / "parts", until=2, **settings)
    parts, continued = run(tmp_path / "parts", **settings)
    assert continued == rows
    for name, tensor in whole.actor_critic.state_dict().items():
        assert torch.equal(parts.actor_critic.state_dict()[name], tensor), name
    assert {"value/explained_variance/cat", "value/explained_variance/kl"} <= rows[-1].keys()


def test_values_of_two_processes_are_joined():
    _, values_BTA, rewards, old = two_aspects()
    short = rollout(MASK[1:2, :2], values_BTA=values_BTA[1:2, :2])
    of_short = TokenReward(
        {name: r[1:2, :2] for name, r in rewards.by_aspect.items()}, {}, MASK[1:2, :2]
    )
    joined, _ = join_rollouts([(old, rewards), (short, of_short)], pad_id=0)
    assert joined.values_BTA is not None
    torch.testing.assert_close(joined.values_BTA, torch.cat([values_BTA, values_BTA[1:2]]))
    assert joined.rows(torch.tensor([3])).values_BTA.shape == (1, 2, 2)


def learned(gammas: list[float]) -> list[float]:
    """Probability of the right action at each of three steps, after policy gradients.

    The first aspect pays at the end for the first action, the second at once for the other two.
    The expectation is exact: all sequences, weighted by their probability.
    """
    actions_BT = torch.tensor(list(product([0, 1], repeat=3)))
    rewards_BTA = torch.zeros(8, 3, 2, dtype=torch.float64)
    rewards_BTA[:, 2, 0] = actions_BT[:, 0]
    rewards_BTA[:, 1:, 1] = actions_BT[:, 1:]
    logits_T = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    for _ in range(60):
        chosen_BT = torch.where(actions_BT.bool(), logits_T, -logits_T)
        logprobs_BT = torch.nn.functional.logsigmoid(chosen_BT)
        probability_B = logprobs_BT.detach().sum(1).exp()
        advantages_BTA, _ = aspect_gae(
            rewards_BTA, torch.zeros_like(rewards_BTA), torch.ones(8, 3), gammas, [1.0, 1.0]
        )
        gain = (probability_B[:, None] * advantages_BTA.sum(-1) * logprobs_BT).sum()
        (gradient_T,) = torch.autograd.grad(gain, logits_T)
        logits_T = (logits_T + gradient_T).detach().requires_grad_(True)
    return torch.sigmoid(logits_T).tolist()


def test_aspects_with_different_horizons_are_both_learned():
    assert min(learned([1.0, 0.0])) > 0.9
    first, *others = learned([0.0, 0.0])  # one short horizon never sees what the first action earns
    assert first == pytest.approx(0.5) and min(others) > 0.9


# ---- saved critics -------------------------------------------------------------------------------


@pytest.mark.parametrize("own_value", [True, False])
def test_a_run_saves_its_critic_and_another_starts_from_it(own_value, tmp_path):
    settings = {"algorithm__critic": "per_aspect", "train__total_episodes": 8}
    made, _ = run(tmp_path, own_value=own_value, **settings)
    folder, critic = tmp_path / "final" / "critic", made.actor_critic.value
    assert critic is not None
    torch.nn.init.normal_(critic.head.layers[2].weight)
    critic.save(folder, critic.head.state_dict())
    loaded = load_value(folder, made.policy, share=not own_value, aspects=critic.aspects)
    for name, tensor in critic.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    # in another order, and of other weights: the same values of the rewards
    other = {"kl": 0.2, "cat": 1.0}
    loaded = load_value(folder, made.policy, share=not own_value, aspects=other)
    hidden_BTD = torch.randn(2, 3, made.policy.hidden_size)
    values_BTA = critic.head(hidden_BTD)
    expected = torch.stack([2 * values_BTA[..., 1], values_BTA[..., 0]], -1)
    torch.testing.assert_close(loaded.head(hidden_BTD), expected)


def test_a_saved_critic_of_another_kind_is_refused(tmp_path):
    policy = tiny.policy("t5")
    critic = Value(policy.hidden_size, aspects={"a": 1.0, "kl": 0.1})
    folder = tmp_path / "critic"
    critic.save(folder, critic.head.state_dict())

    def refusal(share=True, aspects=critic.aspects, ckpt=folder) -> str:
        with pytest.raises(UserError) as caught:
            load_value(ckpt, policy, share=share, aspects=aspects)
        return str(caught.value)

    assert "policy_value_sharing=true" in refusal(share=False)
    assert "an output for each of a, kl, but this run's has one output" in refusal(aspects=None)
    assert "this run's has an output for each of a, b" in refusal(aspects={"a": 1.0, "b": 1.0})
    assert "critic.json is missing" in refusal(ckpt=tmp_path)
    wide = Value(policy.hidden_size + 1, aspects=critic.aspects)
    wide.save(folder, wide.head.state_dict())
    assert f"of the width {policy.hidden_size + 1}" in refusal()
    (folder / "critic.json").write_text('{"trunk": "policy", "hidden_size": 8}')
    assert "aspects" in refusal()
    critic.save(folder, critic.head.state_dict())
    (folder / "head.safetensors").write_bytes(b"cut")
    assert "damaged" in refusal()


def test_a_shared_trunk_takes_a_saved_critic(tmp_path):
    shared = {"policy_value_sharing": True, "ckpt": "run/best/critic"}
    assert config(tmp_path, model__value_model=shared).model.value_model.ckpt == "run/best/critic"

import json
import math
from pathlib import Path

import pytest
import reference
import torch
from rl_helpers import config, lengths_mask, rollout, trainer

from fgrlhf.algorithms.config import PPOConfig
from fgrlhf.algorithms.ppo import PPO
from fgrlhf.configs.yaml_files import read_config
from fgrlhf.ppo import PPOTrainer
from fgrlhf.reward import BasicReward
from fgrlhf.types import PolicyOutput, TokenReward
from fgrlhf.update import optimizer_step
from fgrlhf.utils import masked_mean, masked_var

# The values that select the published arithmetic.
PUBLISHED = {"divides_by": "sqrt_std", "gae_start": "longest"}
SETTINGS = ("gamma", "cliprange_value", "pg_coef", "vf_coef")


def golden_case(golden, number):
    """One published batch, cut to its longest answer, as in our rollouts."""
    return tensors_of(json.loads((golden / "ppo_numbers.json").read_text())["cases"][number])


def tensors_of(case):
    mask_BT = torch.tensor(case["mask"])
    B, T = len(mask_BT), int(mask_BT.sum(1).max())
    tensors = {
        name: torch.tensor(case[name])[:, :T]
        for name in ("logprobs", "ref_logprobs", "values", "new_logprobs", "new_values")
    }
    expected = {
        name: torch.tensor(value)[:, :T] if isinstance(value, list) else value
        for name, value in case["expect"].items()
    }
    raw_BT = torch.zeros(B, T)
    for b, row in enumerate(case["raw_rewards"]):
        raw_BT[b, : len(row)] = torch.tensor(row)
    old = rollout(
        mask_BT[:, :T],
        logprobs_BT=tensors["logprobs"],
        ref_logprobs_BT=tensors["ref_logprobs"],
        values_BT=tensors["values"],
    )
    new = PolicyOutput(tensors["new_logprobs"], tensors["new_values"], torch.zeros(B, T))
    return case, old, new, TokenReward({"raw": raw_BT}, {}, old.response_mask_BT), expected


def all_cases(golden):
    """`golden_case` of every available case."""
    count = len(json.loads((golden / "ppo_numbers.json").read_text())["cases"])
    return [golden_case(golden, number) for number in range(count)]


def ppo_of(case, divides_by="std", gae_start="own_end"):
    """PPO with the settings of a case."""
    whiten = {"rewards": case["whiten_rewards"], "divides_by": divides_by}
    given = {name: case[name] for name in SETTINGS}
    gae = {"lam": case["lam"], "start": gae_start}
    loss = {"cliprange": case["cliprange"]}
    return PPO(PPOConfig(**given, whiten=whiten, gae=gae, loss=loss))


def run(ppo, case, old, new, rewards):
    penalized_BT = BasicReward.penalized(rewards, old, case["kl_coef"])
    advantages = ppo.advantages(old, penalized_BT, rewards)
    token_loss = ppo.loss(new, old, advantages)
    means = {
        name: float(masked_mean(x_BT, old.response_mask_BT))
        for name, x_BT in token_loss.metrics.items()
    }
    return (
        penalized_BT,
        advantages,
        float(masked_mean(token_loss.loss_BT, old.response_mask_BT)),
        means,
    )


def shipped(name: str) -> dict:
    """The switches of a published variant at paper scale."""
    folder = Path(__file__).parents[1] / "tasks" / "qa_feedback" / "training"
    tree = read_config(folder / f"published_{name}_config.yml")
    section = PPOConfig(**tree["algorithm"])
    return {"divides_by": section.whiten.divides_by, "gae_start": section.gae.start}


@pytest.mark.parametrize("name", ["fine_grained", "baseline"])
def test_the_published_files_have_the_published_values(name):
    assert shipped(name) == PUBLISHED


def check_numbers(case, old, new, rewards, expected, switches):
    ppo = ppo_of(case, **switches)
    penalized_BT, advantages, loss, means = run(ppo, case, old, new, rewards)
    torch.testing.assert_close(
        old.logprobs_BT - old.ref_logprobs_BT, expected["kl"], atol=1e-5, rtol=0
    )
    torch.testing.assert_close(penalized_BT, expected["penalized"], atol=1e-5, rtol=0)
    torch.testing.assert_close(
        advantages.advantages_BT, expected["whitened_advantages"], atol=1e-5, rtol=0
    )
    torch.testing.assert_close(advantages.returns_BT, expected["returns"], atol=1e-5, rtol=0)
    assert loss == pytest.approx(expected["loss_total"], abs=1e-5)
    assert means["loss/policy"] == pytest.approx(expected["loss_policy"], abs=1e-5)
    assert means["loss/value"] == pytest.approx(expected["loss_value"], abs=1e-5)


@pytest.mark.parametrize("name", ["fine_grained", "baseline"])
def test_published_values_give_the_published_numbers(golden, name):
    """With every switch of the shipped file; each case contains its own coefficients."""
    switches = shipped(name)
    cases = all_cases(golden)
    assert len(cases) >= 3
    for case in cases:
        check_numbers(*case, switches)


@pytest.mark.parametrize("number", range(len(reference.PPO_CASES)))
def test_defaults_give_the_numbers_of_plain_arithmetic(number):
    case = reference.ppo_case(reference.PPO_CASES[number])
    case["expect"] = reference.ppo_expected(reference.PPO_CASES[number], published=False)
    check_numbers(*tensors_of(case), {})


def test_plain_arithmetic_by_hand():
    """Two tokens, gamma = lam = 1.

    A_2 = r_2 - V_2 = 1 - .5, A_1 = r_1 + V_2 - V_1 + A_2 = .5 - .25 + .5.
    """
    case = {
        "lengths": [2],
        "whiten_rewards": False,
        "lam": 1.0,
        "gamma": 1.0,
        "kl_coef": 0.5,
        "cliprange": 0.2,
        "cliprange_value": 0.1,
        "pg_coef": 1.0,
        "vf_coef": 2.0,
        "logprobs": [[-1.0, -1.0]],
        "ref_logprobs": [[-1.0, -2.0]],
        "values": [[0.25, 0.5]],
        "raw_rewards": [[0.0, 1.5]],
        "new_logprobs": [[-1.0, 0.0]],
        "new_values": [[0.25, 1.0]],
    }
    expected = reference.ppo_expected(case, published=False)
    assert expected["kl"] == [[0.0, 1.0]] and expected["penalized"] == [[0.0, 1.0]]
    # advantages .75 and .5: mean .625, standard deviation .125
    assert expected["returns"] == [[1.0, 1.0]]
    assert expected["whitened_advantages"] == [[1.0, -1.0]]
    # the ratio e is not clipped if A < 0
    assert expected["loss_policy"] == pytest.approx((-1.0 + math.e) / 2)
    # .5 + .1 differs by .4
    assert expected["loss_value"] == pytest.approx((0.5 * 0.75**2 + 0.5 * max(0.0, 0.4**2)) / 2)
    published = reference.ppo_expected(case, published=True)
    assert published["whitened_advantages"][0] == pytest.approx([0.125**0.5, -(0.125**0.5)])
    assert published["returns"] == expected["returns"]


@pytest.mark.parametrize("kept", PUBLISHED)
def test_both_switches_are_needed_for_the_published_numbers(golden, source, kept):
    case, old, new, rewards, expected = golden_case(golden, 0 if source == "published" else 1)
    ppo = ppo_of(case, **{kept: PUBLISHED[kept]})
    _, advantages, _, _ = run(ppo, case, old, new, rewards)
    assert (advantages.returns_BT - expected["returns"]).abs().max() > 0.01


MASK = lengths_mask([5, 2, 3])


def random_batch(padding: float):
    g = torch.Generator().manual_seed(0)

    def draw():
        x_BT = torch.randn(3, 5, generator=g)
        return torch.where(MASK.bool(), x_BT, torch.full_like(x_BT, padding))

    old = rollout(MASK, logprobs_BT=draw(), ref_logprobs_BT=draw(), values_BT=draw())
    return old, PolicyOutput(draw(), draw(), draw()), TokenReward({"r": draw()}, {}, MASK)


def test_by_default_padding_never_matters():
    results = [
        run(PPO(PPOConfig()), {"kl_coef": 0.2}, *random_batch(padding))
        for padding in (0.0, 7.0, float("nan"))
    ]
    for other in results[1:]:
        assert torch.equal(results[0][0], other[0])
        assert torch.equal(results[0][1].advantages_BT, other[1].advantages_BT)
        assert torch.equal(results[0][1].returns_BT, other[1].returns_BT)
        assert results[0][2:] == other[2:]


def test_published_gae_does_let_padding_matter():
    """Deviation D3: whitened values on padding reach the last tokens of short answers."""
    one_more_column = lengths_mask([5, 2, 3], T=6)
    published = PPOConfig(
        gae={"start": "longest"}, whiten={"rewards": True, "divides_by": "sqrt_std"}
    )
    results = []
    for mask_BT in (MASK, one_more_column):
        r_BT = torch.zeros(mask_BT.shape)
        r_BT[:, :5] = torch.arange(15.0).view(3, 5) * MASK
        rewards = TokenReward({"raw": r_BT}, {}, mask_BT)
        returns = []
        for settings in (PPOConfig(), published):
            advantages = PPO(settings).advantages(rollout(mask_BT), r_BT, rewards)
            returns.append(advantages.returns_BT[:, :5])
        results.append(returns)
    assert torch.equal(results[0][0], results[1][0])
    assert (results[0][1] - results[1][1]).abs().max() > 1e-3


def test_advantages_are_whitened_and_returns_are_not():
    old, _, rewards = random_batch(0.0)
    plain = PPO(PPOConfig()).advantages(old, rewards.total_BT, rewards)
    assert masked_mean(plain.advantages_BT, MASK) == pytest.approx(0, abs=1e-6)
    assert masked_var(plain.advantages_BT, MASK) == pytest.approx(1, abs=1e-5)
    whitening = PPO(PPOConfig(whiten={"rewards": True}))
    scaled = whitening.advantages(old, 100 * rewards.total_BT + 0.0, rewards)
    again = whitening.advantages(old, rewards.total_BT, rewards)
    torch.testing.assert_close(scaled.returns_BT, again.returns_BT, atol=1e-4, rtol=1e-4)
    assert plain.returns_BT[1, 2:].abs().max() == 0


def test_coefficients_weigh_the_two_losses():
    old, new, rewards = random_batch(0.0)
    advantages = PPO(PPOConfig()).advantages(old, rewards.total_BT, rewards)
    losses = {}
    for pg, vf in [(1, 0), (0, 1), (2, 3)]:
        losses[pg, vf] = PPO(PPOConfig(pg_coef=pg, vf_coef=vf)).loss(new, old, advantages).loss_BT
    torch.testing.assert_close(losses[2, 3], 2 * losses[1, 0] + 3 * losses[0, 1])


def test_the_trainer_hands_its_settings_to_ppo(tmp_path):
    run = trainer(config(tmp_path, algorithm__lam=0.5, algorithm__cliprange=0.1))
    assert isinstance(run, PPOTrainer)
    assert run.algorithm.config.gae.lam == 0.5
    assert run.algorithm.needs_values
    assert run.kl.coef == 0.1


# ---- clipping of gradients -----------------------------------------------------------------------


@pytest.mark.parametrize("own_value", [True, False])
def test_policy_and_critic_are_clipped_each_by_itself(own_value, tmp_path):
    critic = {"ckpt": "tiny"} if own_value else {"policy_value_sharing": True}
    run = trainer(
        config(tmp_path, train__max_grad_norm=2.0, model__value_model=critic), own_value=own_value
    )
    policy, value = ([p for p in group["params"]] for group in run.optimizer.param_groups)
    assert {id(p) for p in value} == {
        id(p) for p in run.actor_critic.value.parameters() if p.requires_grad
    }
    for parameters, size in ((policy, 0.001), (value, 7.0)):
        for p in parameters:
            p.grad = torch.full_like(p, size)
    run.optimizer.step = lambda: None
    n_policy, n_value = (sum(p.numel() for p in parameters) for parameters in (policy, value))
    norms = run.clip_and_step()
    assert norms["grad_norm"] == pytest.approx(0.001 * n_policy**0.5, rel=1e-4)
    assert norms["grad_norm"] < 2
    assert norms["grad_norm/value"] == pytest.approx(7 * n_value**0.5, rel=1e-4)
    # a small gradient is not changed
    assert all(torch.equal(p.grad, torch.full_like(p, 0.001)) for p in policy)
    assert float(value[0].grad.flatten()[0]) == pytest.approx(2 / n_value**0.5, rel=1e-4)


def test_the_critics_gradient_does_not_shorten_the_policys_step(tmp_path):
    weights, norms = [], []
    for vf_coef in (0.1, 1000.0):
        changes = {"algorithm__vf_coef": vf_coef, "train__max_grad_norm": 0.05}
        changes["model__value_model"] = {"ckpt": "tiny"}
        cfg = config(tmp_path / str(vf_coef), **changes)
        run = trainer(cfg, own_value=True)
        rollout, rewards = run.collect_and_score()
        _, advantages = run.compute_advantages(rollout, rewards)
        metrics = optimizer_step(run, rollout, advantages, torch.arange(8), 1)
        weights.append(torch.cat([p.detach().flatten() for p in run.policy.parameters()]))
        norms.append((metrics["grad_norm"], metrics["grad_norm/value"]))
    assert torch.equal(*weights) and norms[0][0] == norms[1][0] and norms[1][1] > 5000 * norms[0][1]

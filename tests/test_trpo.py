import pytest
import torch
from rl_helpers import metrics
from test_algorithms import make

from fgrlhf.algorithms.kl import token_divergence
from fgrlhf.algorithms.trpo import TrustRegionStep, conjugate_gradient, flatten
from fgrlhf.utils import masked_sum

KINDS = ["t5", "gpt2"]


def test_conjugate_gradient_solves_in_as_many_steps_as_dimensions():
    g = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=g, dtype=torch.double)
    A, b = root @ root.T + 0.1 * torch.eye(6), torch.randn(6, generator=g, dtype=torch.double)
    torch.testing.assert_close(
        conjugate_gradient(lambda v: A @ v, b, 6), torch.linalg.solve(A, b), atol=1e-8, rtol=1e-6
    )
    by_hand = conjugate_gradient(
        lambda v: torch.tensor([2.0, 4.0]) * v, torch.tensor([2.0, 0.0]), 5
    )
    assert by_hand.tolist() == [1, 0]
    assert (
        conjugate_gradient(lambda v: A @ v, torch.zeros(6, dtype=torch.double), 6).abs().max() == 0
    )


def begun(tmp_path, kind, **changes):
    run = make(tmp_path, "trpo", kind, train__micro_batch_size=3, **changes)
    # answers of different lengths
    run.actor_critic.policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
    rollout, rewards = run.collect_and_score()
    _, advantages = run.compute_advantages(rollout, rewards)
    return run, rollout, advantages


def test_the_average_follows_the_policy(tmp_path):
    run = make(tmp_path, "trpo", "t5", train__ema=0.5)
    start = {name: tensor.clone() for name, tensor in run.average.tensors.items()}
    run.train(until=2)
    of_policy = [name for name in start if name.startswith("policy")] or list(start)
    assert any(not torch.equal(run.average.tensors[name], start[name]) for name in of_policy)


def step_of(made, rollout, advantages):
    return TrustRegionStep(made.algorithm.config, made, rollout, advantages)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fisher_product_is_the_fisher_matrix(kind, tmp_path):
    """v^T F v = mean over tokens of Var_{a ~ pi}(grad log pi(a) . v).

    The derivative along v is computed by differences.
    """
    result, rollout, advantages = begun(tmp_path, kind)
    result.actor_critic.eval().double()
    policy, parameters = result.actor_critic.policy, list(result.actor_critic.policy.parameters())
    step = step_of(result, rollout, advantages)
    g = torch.Generator().manual_seed(0)
    v = torch.randn(sum(p.numel() for p in parameters), generator=g, dtype=torch.double)
    product = step.fisher_product(v)

    def logprobs(shift):
        start = 0
        with torch.no_grad():
            for p in parameters:
                p += shift * v[start : start + p.numel()].view_as(p)
                start += p.numel()
            return [step.logits(policy, old).double().log_softmax(-1) for old, _ in step.batches]

    here, up = logprobs(0.0), logprobs(1e-3)
    down = logprobs(-2e-3)
    expected = sum(
        (a.exp() * ((b - c) / 2e-3) ** 2).sum() - ((a.exp() * (b - c) / 2e-3).sum(-1) ** 2).sum()
        for a, b, c in zip(here, up, down)
    )
    assert float(v @ product) == pytest.approx(float(expected / step.n_tokens), rel=1e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", [1e-3, 0.05])
def test_a_step_keeps_the_kl_under_its_bound_and_raises_the_objective(kind, bound, tmp_path):
    result, rollout, advantages = begun(tmp_path, kind, algorithm__max_kl=bound)
    batch = (
        rollout.prompt_ids_BP,
        rollout.prompt_mask_BP,
        rollout.response_ids_BT,
        rollout.response_mask_BT,
    )
    real_BT, policy = rollout.response_mask_BT.bool(), result.actor_critic.policy

    def look():
        with torch.no_grad():
            return policy.project(policy.hidden(*batch)[real_BT]), policy(*batch)[0].logprobs_BT

    logits, before_BT = look()
    logged = result.update(rollout, advantages)
    moved_logits, after_BT = look()
    kl = float(token_divergence(moved_logits, logits, beta=0).mean())
    assert 0.2 * bound < kl <= bound * 1.001
    assert kl == pytest.approx(logged["trpo/kl"], rel=1e-3, abs=1e-7)
    n = real_BT.sum()
    gain = (
        masked_sum(
            ((after_BT - before_BT).exp() - 1) * advantages.advantages_BT, rollout.response_mask_BT
        )
        / n
    )
    assert gain > 0 and logged["trpo/step"] in {0.5**i for i in range(10)}


def test_micro_batches_do_not_change_the_step(tmp_path):
    results = []
    for size in (8, 3):
        result, rollout, advantages = begun(tmp_path / str(size), "t5")
        result.config.train.__dict__["micro_batch_size"] = size
        result.actor_critic.eval()
        step = step_of(result, rollout, advantages)
        assert len(step.batches) == -(-8 // size)
        _, gradient = step.loss_and_gradient()
        results.append((gradient, step.fisher_product(gradient)))
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_where_no_step_helps_the_policy_stays(tmp_path, monkeypatch):
    result, rollout, advantages = begun(tmp_path, "gpt2")
    parameters = list(result.actor_critic.policy.parameters())
    before = flatten(parameters, parameters).clone()
    # every attempted step is too long
    monkeypatch.setattr(TrustRegionStep, "mean_kl", lambda step: 1.0)
    logged = result.update(rollout, advantages)
    assert logged["trpo/step"] == 0 and logged["trpo/kl"] == 0
    assert torch.equal(before, flatten(parameters, parameters))


def test_the_critic_can_learn_alone_and_every_later_step_keeps_the_bound(tmp_path):
    run = make(tmp_path, "trpo", train__n_critic_warmup_steps=2, train__total_episodes=48)
    run.train()
    rows = metrics(tmp_path)
    assert [row["trpo/step"] > 0 for row in rows] == [False] * 2 + [True] * 4
    assert all(row["trpo/kl"] <= 0.01 for row in rows)
    assert all(row["loss/value"] > 0 for row in rows)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-5)
    assert rows[2]["kl"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("size", [1.0, 1e-4, 5e-6, 1e3])
def test_conjugate_gradient_does_not_depend_on_the_size_of_the_gradient(size):
    g = torch.Generator().manual_seed(0)
    root = torch.randn(20, 20, generator=g, dtype=torch.double)
    A = root @ root.T / 20 + torch.eye(20, dtype=torch.double)
    b = torch.randn(20, generator=g, dtype=torch.double)
    b = size * b / b.norm()
    expected = torch.linalg.solve(A, b)
    got = conjugate_gradient(lambda v: A.float() @ v, b.float(), 20).double()
    assert float((got - expected).norm() / expected.norm()) < 1e-4

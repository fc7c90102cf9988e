import numpy as np
import pytest
import torch
from rl_helpers import lengths_mask

from fgrlhf.advantages import gae, kl_penalized, reward_to_go

LENGTHS = [7, 4, 1, 3]
MASK = lengths_mask(LENGTHS)


def random_BT(seed: int, mask_BT=MASK, poison: float = 0.0) -> torch.Tensor:
    x_BT = torch.randn(mask_BT.shape, generator=torch.Generator().manual_seed(seed))
    return torch.where(mask_BT.bool(), x_BT, torch.full_like(x_BT, poison))


def brute_gae(rewards_BT, values_BT, lengths, gamma, lam):
    """A_t = sum_l (gamma lam)^l delta_(t+l), written out in float64."""
    result = np.zeros(rewards_BT.shape)
    for b, n in enumerate(lengths):
        r, v = rewards_BT[b].double().numpy(), values_BT[b].double().numpy()
        delta = [r[t] + gamma * (v[t + 1] if t + 1 < n else 0.0) - v[t] for t in range(n)]
        for t in range(n):
            result[b, t] = sum((gamma * lam) ** (s - t) * delta[s] for s in range(t, n))
    return result


def test_gae_by_hand():
    rewards_BT, values_BT = torch.tensor([[0.0, 1.0, 9.0]]), torch.tensor([[0.5, 0.25, 9.0]])
    mask_BT = torch.tensor([[1, 1, 0]])
    # delta_1 = 1 - .25 = .75; delta_0 = 0 + .9 * .25 - .5 = -.275; A_0 = -.275 + .9 * .8 * .75 = .265
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT, gamma=0.9, lam=0.8)
    torch.testing.assert_close(advantages_BT, torch.tensor([[0.265, 0.75, 0.0]]))
    torch.testing.assert_close(returns_BT, torch.tensor([[0.765, 1.0, 0.0]]))
    # "longest" lets in what padding holds: delta_2 = 9 - 9 = 0, delta_1 = 1 + .9 * 9 - .25 = 8.85
    advantages_BT, _ = gae(rewards_BT, values_BT, mask_BT, 0.9, 0.8, start="longest")
    torch.testing.assert_close(advantages_BT, torch.tensor([[-0.275 + 0.72 * 8.85, 8.85, 0.0]]))
    with pytest.raises(ValueError, match="own_end"):
        gae(rewards_BT, values_BT, mask_BT, 1.0, 1.0, start="end")


@pytest.mark.parametrize("gamma, lam", [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.97, 0.0)])
def test_gae_equals_the_sum_written_out(gamma, lam):
    rewards_BT, values_BT = random_BT(1), random_BT(2)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, MASK, gamma, lam)
    expected = brute_gae(rewards_BT, values_BT, LENGTHS, gamma, lam)
    np.testing.assert_allclose(advantages_BT.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(returns_BT.numpy(), expected + (values_BT * MASK).numpy(), atol=1e-5)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_ends_of_lambda(gamma):
    rewards_BT, values_BT = random_BT(3), random_BT(4)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, MASK, gamma, lam=1.0)
    to_go_BT = reward_to_go(rewards_BT, MASK, gamma)
    torch.testing.assert_close(advantages_BT, to_go_BT - values_BT)  # lambda 1: return less value
    torch.testing.assert_close(returns_BT, to_go_BT)
    advantages_BT, _ = gae(rewards_BT, values_BT, MASK, gamma, lam=0.0)
    following_BT = torch.cat([values_BT[:, 1:], torch.zeros(4, 1)], 1)
    torch.testing.assert_close(
        advantages_BT, (rewards_BT + gamma * following_BT - values_BT) * MASK
    )  # lambda 0: TD error


def test_a_perfect_critic_leaves_no_advantage():
    rewards_BT = random_BT(5)
    values_BT = reward_to_go(rewards_BT, MASK, 0.9)
    assert gae(rewards_BT, values_BT, MASK, 0.9, 0.7)[0].abs().max() < 1e-5


@pytest.mark.parametrize("poison", [1e6, float("nan"), float("inf")])
def test_padding_changes_nothing(poison):
    clean = gae(random_BT(6), random_BT(7), MASK, 0.99, 0.9)
    dirty = gae(random_BT(6, poison=poison), random_BT(7, poison=poison), MASK, 0.99, 0.9)
    for a, b in zip(clean, dirty):
        assert torch.equal(a, b)
    assert torch.equal(
        reward_to_go(random_BT(6), MASK, 0.9), reward_to_go(random_BT(6, poison=poison), MASK, 0.9)
    )
    logprobs = [random_BT(8, poison=p) for p in (0.0, poison)]
    assert torch.equal(*(kl_penalized(random_BT(6), x, -x, MASK, 0.3) for x in logprobs))


def test_reward_to_go_by_hand():
    rewards_BT = torch.tensor([[1.0, 2.0, 4.0], [8.0, 7.0, 7.0]])
    mask_BT = torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert reward_to_go(rewards_BT, mask_BT, 0.5).tolist() == [[3, 4, 4], [8, 0, 0]]
    assert reward_to_go(rewards_BT, mask_BT)[:, 0].tolist() == [7, 8]
    dense, scalar = (
        torch.tensor([[1.0, 2.0, 4.0]]),
        torch.tensor([[0.0, 0.0, 7.0]]),
    )  # the same reward, given at the end
    assert reward_to_go(dense, torch.ones(1, 3))[0, 0] == reward_to_go(scalar, torch.ones(1, 3))[0, 0]


def test_kl_penalty_by_hand():
    penalized_BT = kl_penalized(
        torch.tensor([[1.0, 0.0, 5.0]]),
        torch.tensor([[-1.0, -2.0, 0.0]]),
        torch.tensor([[-1.5, -1.0, 0.0]]),
        torch.tensor([[1, 1, 0]]),
        0.2,
    )
    torch.testing.assert_close(penalized_BT, torch.tensor([[1 - 0.2 * 0.5, 0.2 * 1.0, 0.0]]))

import itertools

import numpy as np
import pytest
import torch
from rl_helpers import lengths_mask

from fgrlhf.algorithms.advantages import (
    gae,
    group_mean,
    group_normalized,
    group_spread,
    group_std,
    group_sum,
    kl_penalized,
    leave_one_out,
    position_mean,
    response_advantages,
    reward_to_go,
    segment_advantages,
    segment_baseline,
)
from fgrlhf.algorithms.metrics import response_weights

LENGTHS = [7, 4, 1, 3]
MASK = lengths_mask(LENGTHS)


def random_tensor(seed: int, mask_BT=MASK, poison: float = 0.0) -> torch.Tensor:
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
    # delta_1 = 1 - .25 = .75; delta_0 = 0 + .9 * .25 - .5 = -.275; A_0 = -.275 + .9 * .8 * .75 =
    # .265
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT, gamma=0.9, lam=0.8)
    torch.testing.assert_close(advantages_BT, torch.tensor([[0.265, 0.75, 0.0]]))
    torch.testing.assert_close(returns_BT, torch.tensor([[0.765, 1.0, 0.0]]))
    # "longest" includes the padding: delta_2 = 9 - 9 = 0, delta_1 = 1 + .9 * 9 - .25 = 8.85
    advantages_BT, _ = gae(rewards_BT, values_BT, mask_BT, 0.9, 0.8, start="longest")
    torch.testing.assert_close(advantages_BT, torch.tensor([[-0.275 + 0.72 * 8.85, 8.85, 0.0]]))
    with pytest.raises(ValueError, match="own_end"):
        gae(rewards_BT, values_BT, mask_BT, 1.0, 1.0, start="end")


@pytest.mark.parametrize("gamma, lam", [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.97, 0.0)])
def test_gae_equals_the_sum_written_out(gamma, lam):
    rewards_BT, values_BT = random_tensor(1), random_tensor(2)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, MASK, gamma, lam)
    expected = brute_gae(rewards_BT, values_BT, LENGTHS, gamma, lam)
    np.testing.assert_allclose(advantages_BT.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(returns_BT.numpy(), expected + (values_BT * MASK).numpy(), atol=1e-5)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_ends_of_lambda(gamma):
    rewards_BT, values_BT = random_tensor(3), random_tensor(4)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, MASK, gamma, lam=1.0)
    to_go_BT = reward_to_go(rewards_BT, MASK, gamma)
    torch.testing.assert_close(advantages_BT, to_go_BT - values_BT)  # lambda 1: return less value
    torch.testing.assert_close(returns_BT, to_go_BT)
    advantages_BT, _ = gae(rewards_BT, values_BT, MASK, gamma, lam=0.0)
    following_BT = torch.cat([values_BT[:, 1:], torch.zeros(4, 1)], 1)
    # lambda 0: TD error
    torch.testing.assert_close(
        advantages_BT, (rewards_BT + gamma * following_BT - values_BT) * MASK
    )


def test_a_perfect_critic_leaves_no_advantage():
    rewards_BT = random_tensor(5)
    values_BT = reward_to_go(rewards_BT, MASK, 0.9)
    assert gae(rewards_BT, values_BT, MASK, 0.9, 0.7)[0].abs().max() < 1e-5


@pytest.mark.parametrize("poison", [1e6, float("nan"), float("inf")])
def test_padding_changes_nothing(poison):
    clean = gae(random_tensor(6), random_tensor(7), MASK, 0.99, 0.9)
    dirty = gae(random_tensor(6, poison=poison), random_tensor(7, poison=poison), MASK, 0.99, 0.9)
    for a, b in zip(clean, dirty):
        assert torch.equal(a, b)
    assert torch.equal(
        reward_to_go(random_tensor(6), MASK, 0.9),
        reward_to_go(random_tensor(6, poison=poison), MASK, 0.9),
    )
    logprobs = [random_tensor(8, poison=p) for p in (0.0, poison)]
    assert torch.equal(*(kl_penalized(random_tensor(6), x, -x, MASK, 0.3) for x in logprobs))


def test_reward_to_go_by_hand():
    rewards_BT = torch.tensor([[1.0, 2.0, 4.0], [8.0, 7.0, 7.0]])
    mask_BT = torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert reward_to_go(rewards_BT, mask_BT, 0.5).tolist() == [[3, 4, 4], [8, 0, 0]]
    assert reward_to_go(rewards_BT, mask_BT)[:, 0].tolist() == [7, 8]
    # the same reward, given at the end
    dense, scalar = (torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0, 0.0, 7.0]]))
    assert (
        reward_to_go(dense, torch.ones(1, 3))[0, 0] == reward_to_go(scalar, torch.ones(1, 3))[0, 0]
    )


def test_kl_penalty_by_hand():
    rewards, kept = torch.tensor([[1.0, 0.0, 5.0]]), torch.tensor([[1, 1, 0]])
    logprobs, others = torch.tensor([[-1.0, -2.0, 0.0], [-1.5, -1.0, 0.0]]).split(1)
    penalized_BT = kl_penalized(rewards, logprobs, others, kept, 0.2)
    torch.testing.assert_close(penalized_BT, torch.tensor([[1 - 0.2 * 0.5, 0.2 * 1.0, 0.0]]))


GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])
RETURNS = torch.tensor([1.0, 2.0, 6.0, 0.0, 0.0, 3.0])


def test_group_statistics_by_hand():
    assert group_mean(RETURNS, GROUPS).tolist() == [3, 3, 3, 1, 1, 1]
    assert leave_one_out(RETURNS, GROUPS).tolist() == [4, 3.5, 1.5, 1.5, 1.5, 0]
    assert group_std(RETURNS, GROUPS).tolist() == pytest.approx([7**0.5] * 3 + [3**0.5] * 3)
    shuffled = torch.tensor([3, 0, 4, 1, 5, 2])  # groups need not be contiguous
    assert torch.equal(
        leave_one_out(RETURNS[shuffled], GROUPS[shuffled]), leave_one_out(RETURNS, GROUPS)[shuffled]
    )


def test_the_spread_of_whole_responses_is_their_standard_deviation():
    mask_BT = lengths_mask([1, 2, 3, 3, 2, 1])
    rewards_BT = torch.zeros(6, 3)
    rewards_BT[:, 0] = RETURNS
    centred_BT = (RETURNS - group_mean(RETURNS, GROUPS))[:, None] * mask_BT
    spread_B = group_spread(centred_BT, rewards_BT, mask_BT, GROUPS)
    torch.testing.assert_close(spread_B, group_std(RETURNS, GROUPS))
    noise_BT = 1e-7 * centred_BT
    assert group_spread(noise_BT, rewards_BT, mask_BT, GROUPS).max() == 0


@pytest.mark.parametrize("B", [4, 4096])
def test_the_spread_of_a_large_batch_is_no_rounding_error(B):
    """Rounding is relative to the sum over a response, however many responses there are."""
    mask_BT, one = torch.ones(B, 1), torch.zeros(B, dtype=torch.long)
    rewards_BT = 3000 + (torch.arange(B) % 2 - 0.5)[:, None]
    centred_BT = rewards_BT - 3000
    result = group_normalized(centred_BT, rewards_BT, mask_BT, one)
    assert result.abs().min() > 0.8
    assert group_normalized(1e-4 * centred_BT, rewards_BT, mask_BT, one).abs().max() == 0


def test_leave_one_out_is_the_group_mean_made_larger():
    """R - mean over all K = (K - 1) / K (R - mean over the others).

    With K = 2 this is the difference of the pair.
    """
    torch.testing.assert_close(
        RETURNS - group_mean(RETURNS, GROUPS), 2 / 3 * (RETURNS - leave_one_out(RETURNS, GROUPS))
    )
    pair = torch.tensor([5.0, 2.0])
    assert (pair - leave_one_out(pair, torch.zeros(2, dtype=torch.long))).tolist() == [3, -3]


def test_position_mean_by_hand():
    mean_T = position_mean(
        torch.tensor([[1.0, 5.0, 9.0], [3.0, 7.0, 9.0]]), lengths_mask([1, 2], T=3)
    )
    assert mean_T.tolist() == [2, 7, 0]


# Three responses to one prompt. Segments end on the tokens marked by a reward; the third ends
# before its second segment.
SEGMENTED = torch.tensor([[0.0, 1.0, 2.0, 0.0], [3.0, 0.0, 0.0, 4.0], [0.0, 5.0, 0.0, 0.0]])
BEFORE = torch.tensor([[0, 0, 1, 2], [0, 1, 1, 1], [0, 0, 0, 0]])
SEGMENT_MASK = lengths_mask([4, 4, 2])


def test_segment_advantages_by_hand():
    one = torch.zeros(3, dtype=torch.long)
    to_go_BT = reward_to_go(SEGMENTED, SEGMENT_MASK)
    assert to_go_BT.tolist() == [[3, 3, 2, 0], [7, 4, 4, 4], [5, 5, 0, 0]]
    # from segment 0 on: 3, 7, 5; from segment 1 on: 2, 4, not reached; from segment 2 on: 0 for the
    # first alone
    out_BT = segment_baseline(to_go_BT, BEFORE, SEGMENT_MASK, one, leave_out=True)
    assert out_BT.tolist() == [[6, 6, 4, 0], [4, 2, 2, 2], [5, 5, 0, 0]]
    all_BT = segment_baseline(to_go_BT, BEFORE, SEGMENT_MASK, one, leave_out=False)
    assert all_BT.tolist() == [[5, 5, 3, 0], [5, 3, 3, 3], [5, 5, 0, 0]]
    made_BT = segment_advantages(SEGMENTED, BEFORE, SEGMENT_MASK, one, 1.0, leave_out=True)
    assert made_BT.tolist() == [[-3, -3, -2, 0], [3, 2, 2, 2], [0, 0, 0, 0]]


@pytest.mark.parametrize("leave_out", [True, False])
def test_a_response_to_which_a_reward_does_not_apply_is_left_out(leave_out):
    """Four responses, the last not judged: the others get the values of a group of three."""
    rewards_BT = torch.cat([SEGMENTED, torch.full((1, 4), 9.0)])
    before_BT = torch.cat([BEFORE, torch.zeros(1, 4, dtype=torch.long)])
    mask_BT = torch.cat([SEGMENT_MASK, torch.zeros(1, 4, dtype=torch.long)])
    four, three = torch.zeros(4, dtype=torch.long), torch.zeros(3, dtype=torch.long)
    made_BT = segment_advantages(rewards_BT, before_BT, mask_BT, four, 1.0, leave_out)
    expected_BT = segment_advantages(SEGMENTED, BEFORE, SEGMENT_MASK, three, 1.0, leave_out)
    assert torch.equal(made_BT[:3], expected_BT) and made_BT[3].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("leave_out", [True, False])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_one_segment_is_the_whole_response(leave_out, gamma):
    """A reward at the end, with gamma 1, gives the same by segment and by response.

    So does the first token of any response.
    """
    mask_BT = lengths_mask([3, 5, 1, 4, 4, 2])
    end_BT = torch.zeros(6, 5).scatter(1, mask_BT.sum(1, keepdim=True) - 1, RETURNS[:, None])
    nothing_before = torch.zeros_like(mask_BT)
    segment_BT = segment_advantages(end_BT, nothing_before, mask_BT, GROUPS, gamma, leave_out)
    response_BT = response_advantages(end_BT, mask_BT, GROUPS, gamma, leave_out)
    torch.testing.assert_close(segment_BT[:, 0], response_BT[:, 0])
    if gamma == 1:
        torch.testing.assert_close(segment_BT, response_BT)


def test_empty_responses_and_padding():
    mask_BT = lengths_mask([0, 3], T=3)
    for poison in (0.0, float("nan")):
        rewards_BT = torch.tensor([[poison] * 3, [0.0, 1.0, 1.0]])
        one = torch.zeros(2, dtype=torch.long)
        result = segment_advantages(rewards_BT, BEFORE[:2, :3], mask_BT, one, 1.0, True)
        # two zeros are compared
        assert result.tolist() == [[0, 0, 0], [2, 2, 1]]


def small_world(K: int):
    """All K-tuples of responses of at most 3 tokens.

    Token 0 continues, 1 ends a segment (rewarded by its prefix), 2 stops.
    """
    responses = [p + (2,) for n in range(3) for p in itertools.product((0, 1), repeat=n)]
    responses += list(itertools.product((0, 1), repeat=3))
    g = torch.Generator().manual_seed(0)
    prefixes = [p for n in range(3) for p in itertools.product((0, 1), repeat=n)]
    logits = {p: torch.randn(3, generator=g, dtype=torch.double).requires_grad_() for p in prefixes}
    reward = {p + (1,): float(torch.randn(1, generator=g)) for p in prefixes}
    rows = []
    for y in responses:
        logprobs = [logits[y[:t]].log_softmax(0)[y[t]] for t in range(len(y))]
        padding = [torch.zeros((), dtype=torch.double)] * (3 - len(y))
        rows.append(torch.stack([*logprobs, *padding]))
    logprob_NT = torch.stack(rows)
    rewards_NT = torch.tensor(
        [[reward.get(y[: t + 1], 0.0) for t in range(3)] for y in responses], dtype=torch.double
    )
    before_NT = torch.tensor([[y[:t].count(1) for t in range(3)] for y in responses])
    mask_NT = lengths_mask([len(y) for y in responses], T=3)
    groups = torch.tensor(list(itertools.product(range(len(responses)), repeat=K)))
    return list(logits.values()), logprob_NT, rewards_NT, before_NT, mask_NT, groups


def expected_gradient(K, leave_out, form, mean="constant"):
    """The mean of the estimator over all groups, and the gradient of the expected return.

    Both are vectors, and a group has K responses, whose losses are averaged as a minibatch's.
    """
    parameters, logprob_NT, rewards_NT, before_NT, mask_NT, groups_GK = small_world(K)
    chance_N = logprob_NT.sum(1).exp()
    assert chance_N.sum().item() == pytest.approx(1)
    exact = torch.autograd.grad((chance_N * rewards_NT.sum(1)).sum(), parameters, retain_graph=True)
    rows_B, group_B = groups_GK.flatten(), torch.arange(len(groups_GK)).repeat_interleave(K)
    rewards_BT, before_BT, mask_BT = rewards_NT[rows_B], before_NT[rows_B], mask_NT[rows_B]
    if form == "segment":
        advantages_BT = segment_advantages(rewards_BT, before_BT, mask_BT, group_B, 1.0, leave_out)
    else:
        advantages_BT = response_advantages(rewards_BT, mask_BT, group_B, 1.0, leave_out)
    chance_B = chance_N.detach()[groups_GK].prod(1).repeat_interleave(K)
    lengths_GK = mask_NT.sum(1).double()[groups_GK]
    weight_B = chance_B * torch.cat([response_weights(mean, row_K, 1) for row_K in lengths_GK])
    estimate = torch.autograd.grad(
        (weight_B[:, None] * advantages_BT * logprob_NT[rows_B]).sum(), parameters
    )
    variance = (weight_B[:, None] * advantages_BT**2 * mask_BT).sum()
    return torch.cat(estimate), torch.cat(exact), float(variance)


@pytest.mark.parametrize("form", ["segment", "response"])
@pytest.mark.parametrize("K", [2, 3])
def test_leaving_one_out_is_unbiased(form, K):
    """The mean of the estimator over all groups is the gradient of the expected return."""
    estimate, exact, _ = expected_gradient(K, True, form)
    torch.testing.assert_close(estimate, exact, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("mean", ["token", "response"])
def test_only_a_constant_divisor_is_unbiased(mean):
    """With one that depends on the lengths, it has another direction."""
    estimate, exact, _ = expected_gradient(2, True, "response", mean)
    assert torch.nn.functional.cosine_similarity(estimate, exact, 0) < 0.9999


def test_the_mean_over_all_samples_shrinks_the_gradient():
    estimate, exact, _ = expected_gradient(3, False, "response")
    torch.testing.assert_close(estimate, 2 / 3 * exact, atol=1e-12, rtol=1e-9)
    # late segments, reached by fewer responses, shrink more: no single factor
    estimate, exact, _ = expected_gradient(3, False, "segment")
    factor = (estimate @ exact) / (exact @ exact)
    assert 0.4 < factor < 2 / 3 and torch.nn.functional.cosine_similarity(estimate, exact, 0) > 0.97


def test_segments_have_smaller_advantages_than_responses():
    """Rewards before a token are noise for it; the segment form subtracts them."""
    assert (
        expected_gradient(3, True, "segment")[2] < 0.8 * expected_gradient(3, True, "response")[2]
    )


# ---- shapes --------------------------------------------------------------------------------------

GROUP_OF_TWO = torch.zeros(2, dtype=torch.long)


@pytest.mark.parametrize(
    "function, arguments",
    [
        (
            lambda *tensors: kl_penalized(*tensors, 0.2),
            ["rewards_BT", "logprobs_BT", "ref_logprobs_BT", "mask_BT"],
        ),
        (lambda *tensors: gae(*tensors, 1.0, 0.95), ["rewards_BT", "values_BT", "mask_BT"]),
        (
            lambda *tensors: gae(*tensors, 1.0, 0.95, "longest"),
            ["rewards_BT", "values_BT", "mask_BT"],
        ),
        (reward_to_go, ["rewards_BT", "mask_BT"]),
        (position_mean, ["values_BT", "mask_BT"]),
        (
            lambda *tensors: segment_baseline(*tensors, GROUP_OF_TWO, True),
            ["to_go_BT", "index_BT", "mask_BT"],
        ),
        (
            lambda *tensors: response_advantages(*tensors, GROUP_OF_TWO, 1.0, True),
            ["rewards_BT", "mask_BT"],
        ),
    ],
)
def test_shapes_that_would_broadcast_are_refused(function, arguments):
    def tensors():
        return [
            torch.zeros(2, 3, dtype=torch.long if name == "index_BT" else torch.float)
            for name in arguments
        ]

    function(*tensors())
    for wrong in range(len(arguments)):
        changed = tensors()
        changed[wrong] = changed[wrong][:1]
        with pytest.raises(ValueError) as refused:
            function(*changed)
        right = (wrong + 1) % len(arguments)
        assert f"{arguments[wrong]} (1, 3)" in str(refused.value)
        assert f"{arguments[right]} (2, 3)" in str(refused.value)


@pytest.mark.parametrize("function", [group_sum, group_mean, group_std, leave_one_out])
def test_every_return_needs_its_group(function):
    with pytest.raises(ValueError, match=r"_B \(1,\), group_B \(2,\)"):
        function(torch.ones(1), GROUP_OF_TWO)


def test_every_response_needs_its_group():
    rewards_BT = torch.zeros(3, 4)
    mask_BT = torch.ones(3, 4)
    index_BT = torch.zeros(3, 4, dtype=torch.long)
    message = r"group_B has shape \(2,\), expected \(3,\)"
    with pytest.raises(ValueError, match=message):
        response_advantages(rewards_BT, mask_BT, GROUP_OF_TWO, 1.0, True)
    with pytest.raises(ValueError, match=message):
        segment_baseline(rewards_BT, index_BT, mask_BT, GROUP_OF_TWO, True)
    with pytest.raises(ValueError, match=message):
        segment_advantages(rewards_BT, index_BT, mask_BT, GROUP_OF_TWO, 1.0, True)

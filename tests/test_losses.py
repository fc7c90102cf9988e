import pytest
import torch

from fgrlhf.algorithms.losses import (
    cispo_loss,
    clipped_policy_loss,
    clipped_value_loss,
    policy_gradient_loss,
    surrogate_loss,
)
from fgrlhf.algorithms.preference_losses import weighted_log_ratio


@pytest.mark.parametrize(
    "ratio, advantage, loss, clipped, slope",
    [
        (1.0, 2.0, -2.0, 0, -2.0),  # at the start: the policy gradient
        (1.1, 2.0, -2.2, 0, -2.2),
        (1.5, 2.0, -2.4, 1, 0.0),  # far enough in the good direction: clipped
        (0.5, 2.0, -1.0, 0, -1.0),  # less likely although good: not clipped
        (0.5, -2.0, 1.6, 1, 0.0),
        (1.5, -2.0, 3.0, 0, 3.0),  # more likely although bad: not clipped
    ],
)
def test_policy_loss_by_hand(ratio, advantage, loss, clipped, slope):
    old = torch.tensor([[-1.0]])
    new = (old + torch.tensor(ratio).log()).requires_grad_()
    loss_BT, ratio_BT, clipped_BT = clipped_policy_loss(new - old, torch.tensor([[advantage]]), 0.2)
    loss_BT.sum().backward()
    assert loss_BT.item() == pytest.approx(loss, abs=1e-5)
    assert ratio_BT.item() == pytest.approx(ratio, abs=1e-5)
    assert clipped_BT.item() == clipped and new.grad.item() == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize(
    "new, old, target, loss, clipped",
    [
        (1.0, 1.0, 2.0, 0.5, 0),
        # only .2 of the step counts, so the error is .8, not .5
        (1.5, 1.0, 2.0, 0.5 * 0.8**2, 1),
        (0.5, 1.0, 2.0, 0.5 * 1.5**2, 0),  # a step away from the target counts in full
        (3.0, 1.0, 2.0, 0.5 * 1.0**2, 0),  # so does an overshoot past the target
        (1.5, 1.0, 0.0, 0.5 * 1.5**2, 0),
    ],
)
def test_value_loss_by_hand(new, old, target, loss, clipped):
    loss_BT, clipped_BT = clipped_value_loss(
        *(torch.tensor([[x]]) for x in (new, old, target)), 0.2
    )
    assert loss_BT.item() == pytest.approx(loss, abs=1e-6) and clipped_BT.item() == clipped


def test_a_clipped_value_has_no_gradient():
    new = torch.tensor([[1.5, 0.5]], requires_grad=True)
    clipped_value_loss(new, torch.ones(1, 2), torch.full((1, 2), 2.0), 0.2)[0].sum().backward()
    assert new.grad.tolist() == [[0.0, -1.5]]


def test_an_unclipped_value_loss_is_the_squared_error():
    loss_BT, clipped_BT = clipped_value_loss(
        torch.tensor([[1.5, 0.5]]), torch.ones(1, 2), torch.full((1, 2), 2.0), None
    )
    assert loss_BT.tolist() == [[0.125, 1.125]] and clipped_BT.tolist() == [[0, 0]]


def test_a_wide_clip_is_no_clip():
    g = torch.Generator().manual_seed(0)
    new, old, advantages = (torch.randn(3, 5, generator=g) for _ in range(3))
    loss_BT, ratio_BT, clipped_BT = clipped_policy_loss(new - old, advantages, 1e6)
    torch.testing.assert_close(loss_BT, -advantages * torch.exp(new - old))
    torch.testing.assert_close(
        clipped_value_loss(new, old, advantages, 1e6)[0], 0.5 * (new - advantages) ** 2
    )
    assert clipped_BT.sum() == 0
    tight, _, _ = clipped_policy_loss(new - old, advantages, 0.1)
    assert (tight >= loss_BT - 1e-6).all()  # the surrogate is a pessimistic bound


def test_values_within_the_clip_range_never_count_as_clipped():
    torch.manual_seed(0)
    old, target = torch.randn(50, 20), torch.randn(50, 20)
    new = old + (torch.rand(50, 20) - 0.5) * 0.39  # old + (new - old) is not exactly new
    assert not clipped_value_loss(new, old, target, 0.2)[1].any()
    far = old + 0.21 * (target - old).sign()
    nearer = (target - old).abs() > 0.205  # than the value at distance .2
    assert torch.equal(clipped_value_loss(far, old, target, 0.2)[1].bool(), nearer)


@pytest.mark.parametrize(
    "loss, arguments",
    [
        (policy_gradient_loss, ["new_logprobs_BT", "advantages_BT"]),
        (surrogate_loss, ["new_logprobs_BT", "old_logprobs_BT", "advantages_BT"]),
        (
            lambda *tensors: clipped_policy_loss(*tensors, 0.2),
            ["log_ratio_BT", "advantages_BT"],
        ),
        (
            lambda *tensors: cispo_loss(*tensors, 0.2),
            ["log_ratio_BT", "new_logprobs_BT", "advantages_BT"],
        ),
        (
            lambda *tensors: clipped_value_loss(*tensors, 0.2),
            ["new_values_BT", "old_values_BT", "returns_BT"],
        ),
        (
            lambda *tensors: clipped_value_loss(*tensors, None),
            ["new_values_BT", "old_values_BT", "returns_BT"],
        ),
        (weighted_log_ratio, ["logprobs_BT", "ref_logprobs_BT", "weights_BT"]),
    ],
)
def test_shapes_that_would_broadcast_are_refused(loss, arguments):
    for wrong in range(len(arguments)):
        tensors = [torch.zeros(2, 3) for _ in arguments]
        loss(*tensors)
        tensors[wrong] = torch.zeros(1, 3)
        with pytest.raises(ValueError) as refused:
            loss(*tensors)
        right = (wrong + 1) % len(arguments)
        assert f"{arguments[wrong]} (1, 3)" in str(refused.value)
        assert f"{arguments[right]} (2, 3)" in str(refused.value)

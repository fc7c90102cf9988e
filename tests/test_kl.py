import pytest
import torch

from fgrlhf.algorithms.kl import KLController, kl_k1, kl_k3


def test_without_a_target_the_coefficient_is_fixed():
    kl = KLController(0.3)
    kl.update(100.0, 64)
    assert kl.coef == 0.3


@pytest.mark.parametrize(
    "measured, factor",
    [
        (6.0, 1.0),
        (6.6, 1 + 0.1 * 100 / 1000),  # error (6.6 - 6) / 6 = .1
        (60.0, 1 + 0.2 * 100 / 1000),  # clipped at .2
        (0.0, 1 - 0.2 * 100 / 1000),
    ],
)
def test_one_update_by_hand(measured, factor):
    kl = KLController(0.2, target=6.0, horizon=1000)
    kl.update(measured, episodes=100)
    assert kl.coef == pytest.approx(0.2 * factor)


@pytest.mark.parametrize(
    "episodes, factor",
    [
        (24, 1 - 0.2 * 2.4),  # as in the paper
        (25, 0.5),
        (100, 0.5),  # 1 - 0.2 * 10 = -1
        (10**9, 0.5),
    ],
)
def test_the_coefficient_stays_positive(episodes, factor):
    kl = KLController(0.2, target=1.0, horizon=10)
    kl.update(0.0, episodes)
    assert kl.coef == pytest.approx(0.2 * factor)


def test_it_steers_towards_the_target():
    kl, response = KLController(1.0, target=2.0, horizon=100), None
    for _ in range(400):
        response = 1.0 / kl.coef  # a policy whose KL falls as the penalty grows
        kl.update(response, episodes=64)
    assert response == pytest.approx(2.0, rel=1e-2) and kl.coef == pytest.approx(0.5, rel=1e-2)


def test_kl_estimators_have_the_right_mean():
    p = torch.tensor([0.5, 0.3, 0.2])
    q = torch.tensor([0.2, 0.2, 0.6])
    exact = (p * (p / q).log()).sum()
    assert kl_k1(p.log(), q.log()).tolist() == pytest.approx((p / q).log().tolist())
    assert (p * kl_k1(p.log(), q.log())).sum() == pytest.approx(exact.item(), abs=1e-6)
    assert (p * kl_k3(p.log(), q.log())).sum() == pytest.approx(exact.item(), abs=1e-6)
    assert (kl_k3(p.log(), q.log()) > 0).all() and kl_k3(p.log(), p.log()).abs().max() < 1e-6
    assert kl_k3(torch.zeros(1), torch.full((1,), 2.0).log()).item() == pytest.approx(
        1 - torch.tensor(2.0).log().item(), abs=1e-6
    )


@pytest.mark.parametrize("estimator", [kl_k1, kl_k3])
def test_log_probabilities_of_other_shapes_are_refused(estimator):
    with pytest.raises(ValueError, match=r"logprobs_BT \(2, 3\), ref_logprobs_BT \(1, 3\)"):
        estimator(torch.zeros(2, 3), torch.zeros(1, 3))

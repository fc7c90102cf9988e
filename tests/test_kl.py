import pytest

from fgrlhf.algorithms.kl import KLController


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


def test_it_steers_towards_the_target():
    kl, response = KLController(1.0, target=2.0, horizon=100), None
    for _ in range(400):
        response = 1.0 / kl.coef  # a policy whose KL falls as the penalty grows
        kl.update(response, episodes=64)
    assert response == pytest.approx(2.0, rel=1e-2) and kl.coef == pytest.approx(0.5, rel=1e-2)

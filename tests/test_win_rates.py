"""Win rates by hand, by a known model of length, and by judges with known mistakes."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from benchmarks.judged_coverage import (
    SimulatedJudge,
    coverage,
    judge_of_lengths,
    raw_rate_of_lengths,
)
from fgrlhf.stats import share_interval
from fgrlhf.win_rates import (
    JudgedPair,
    agreement_figures,
    controlled_rate,
    order_figures,
    outcome_figures,
    position_bias,
)


def pair(prompt, *orders, a="aa", b="bb", cluster=None):
    name = str(prompt)
    return JudgedPair(name, name if cluster is None else cluster, a, b, orders)


def test_a_win_needs_both_orders():
    outcomes = [pair(0, *orders).outcome for orders in ((1, 1), (1, 0), (0, 0), (1, 0.5), (0.5,))]
    assert outcomes == [1, 0.5, 0, 0.5, 0.5]


def test_shares_by_hand_are_means_over_prompts():
    # prompt 0: win, win, tie, lose; the others win
    pairs = [pair(0, 1), pair(0, 1), pair(0, 0.5), pair(0, 0), *(pair(i, 1) for i in range(1, 20))]
    figures = outcome_figures(pairs)
    assert figures["win"].mean == pytest.approx((0.5 + 19) / 20)
    assert figures["tie"].mean == pytest.approx(0.25 / 20)
    assert figures["win_rate"].mean == pytest.approx((0.625 + 19) / 20)
    single = outcome_figures([pair(i, 1) for i in range(20)])
    assert single["win"] == share_interval(20, 20)  # exact at 1
    assert single["length_controlled_win_rate"].mean == 1  # one outcome: the raw rate


def test_clusters_are_the_units():
    outcomes = np.random.default_rng(0).integers(0, 2, 40).tolist()
    alone = outcome_figures([pair(i, outcome) for i, outcome in enumerate(outcomes)])
    copies = [  # four prompts that agree are one unit
        pair(f"{i} {k}", outcome, cluster=i) for i, outcome in enumerate(outcomes) for k in range(4)
    ]
    together = outcome_figures(copies)
    assert together["win"].mean == alone["win"].mean
    assert together["win"].high == pytest.approx(alone["win"].high, abs=1e-9)


def test_few_differing_prompts_do_not_decide():
    # 4 wins, 96 ties: the sign test has p = .125
    pairs = [pair(i, 1) for i in range(4)] + [pair(i, 0.5) for i in range(4, 100)]
    rate = outcome_figures(pairs)["win_rate"]
    assert rate.mean == pytest.approx(0.52) and rate.low <= 0.5
    more = [pair(i, 1) for i in range(30)] + [pair(i, 0.5) for i in range(30, 100)]
    assert outcome_figures(more)["win_rate"].low > 0.5


# ---- length --------------------------------------------------------------------------------------


def test_the_controlled_rate_maximises_the_likelihood():
    pairs = judge_of_lengths(np.random.default_rng(3), 60, 0.4, 0.5)
    differences = np.array([len(one.a) - len(one.b) for one in pairs], dtype=float)
    x = np.tanh(differences / differences.std())
    y = np.array([one.outcome for one in pairs])

    def loss(beta):
        z = beta[0] + beta[1] * x
        prior = beta[0] ** 2 / 2e6 + beta[1] ** 2 / 200
        return (np.logaddexp(0, z) - y * z).sum() + prior

    best = minimize(loss, [0, 0], tol=1e-12).x
    assert controlled_rate(pairs).mean == pytest.approx(1 / (1 + math.exp(-best[0])), abs=1e-5)


def test_one_step_without_a_cluster_is_nearly_a_new_fit():
    pairs = judge_of_lengths(np.random.default_rng(3), 60, 0.4, 0.5)
    whole = controlled_rate(pairs)
    rates = np.array([controlled_rate(pairs[:i] + pairs[i + 1 :]).mean for i in range(60)])
    error = math.sqrt(59 / 60 * ((rates - rates.mean()) ** 2).sum())
    half = (whole.high - whole.low) / 2
    assert half == pytest.approx(2 * error, rel=0.15)


def test_a_longer_policy_wins_only_by_its_length():
    rng = np.random.default_rng(1)
    raw, controlled = [], []
    covered = 0
    for _ in range(200):
        pairs = judge_of_lengths(rng, 200, 0.0, 0.8)
        figures = outcome_figures(pairs)
        raw.append(figures["win_rate"].mean)
        interval = figures["length_controlled_win_rate"]
        controlled.append(interval.mean)
        covered += interval.low <= 0.5 <= interval.high
    assert np.mean(raw) == pytest.approx(raw_rate_of_lengths(0.0, 0.8), abs=0.01)
    assert np.mean(raw) > 0.7
    assert np.mean(controlled) == pytest.approx(0.5, abs=0.015)
    assert 0.92 <= covered / 200 <= 0.98


def test_outcomes_that_length_separates_have_a_finite_rate():
    longer = [pair(i, 1, a="x" * (i + 2)) for i in range(15)]
    shorter = [pair(-i, 0, b="x" * (i + 2)) for i in range(1, 16)]
    assert 0.2 < controlled_rate(longer + shorter).mean < 0.8


# ---- the judge -----------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", [SimulatedJudge(0.1, 0.0), SimulatedJudge(0.2, 0.3)])
def test_intervals_of_a_judge_with_known_mistakes(judge):
    shares = coverage(judge, 50, 2, 200, 0)
    named = shares.pop("bias named")
    assert all(0.91 <= share <= 0.99 for share in shares.values()), shares
    assert named > 0.95 if judge.bias else named < 0.05


def test_position_bias_by_hand():
    # always the first: a by the first query, b by the second
    first = [pair(i, 1, 0) for i in range(20)]
    figures = order_figures(first)
    assert figures["first_preferred"].mean == 1 and figures["same_in_both_orders"].mean == 0
    assert position_bias(figures["first_preferred"]) == "the judge prefers the response shown first"
    second = order_figures([pair(i, 0, 1) for i in range(20)])["first_preferred"]
    assert position_bias(second) == "the judge prefers the response shown second"
    none = order_figures([pair(i, i % 2, i % 2) for i in range(20)])
    assert none["first_preferred"].mean == 0.5 and none["same_in_both_orders"].mean == 1
    assert position_bias(none["first_preferred"]) == "none found"
    ties = order_figures([pair(i, 0.5, 0.5) for i in range(20)])["first_preferred"]
    assert position_bias(ties) == "not known (undefined: every answer is a tie)"
    assert order_figures([pair(0, 1)]) == {}


def test_agreement_by_hand():
    pairs = [pair(i, 1, 1) for i in range(6)] + [pair(i, 0, 0) for i in range(6, 12)]
    pairs += [pair(i, 0.5, 0.5) for i in range(12, 16)]
    votes = [(2, 1)] * 6 + [(0, 3)] * 6 + [(3, 0)] * 4
    figures = agreement_figures(pairs, votes)
    assert figures["agreement"].mean == pytest.approx((6 * 2 + 6 * 3) / 36)
    assert figures["decided"].mean == pytest.approx(36 / 48)
    assert "undefined" in agreement_figures(pairs[12:], votes[12:])["agreement"]

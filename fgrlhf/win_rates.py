"""Win rates of two policies on the same prompts, also without the influence of length.

An outcome is 1 if the response of policy a wins, 0 if it loses and 1/2 if it ties. All figures are
means over the pairs of a prompt, then over prompts; intervals are those of fgrlhf/stats.py, over
prompts or clusters of them.

A judge that sees both responses is asked in both orders. A response wins if it is preferred in both
(Zheng et al. 2023, Judging LLM-as-a-Judge, arXiv 2306.05685); everything else is a tie. So a judge
that always prefers the response shown first yields ties, not wins.

Axes here: N pairs, Q prompts or clusters of them, C coefficients.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from fgrlhf.data.comparisons import FIRST, SECOND, TIE
from fgrlhf.paired_stats import sign_p, with_zero
from fgrlhf.stats import (
    FEWEST_UNITS,
    Clusters,
    Figure,
    Interval,
    clustered,
    interval_of,
    jackknifed,
    ratio_interval,
    share_of_prompts,
    too_few,
)

WIN, DRAW, LOSS = 1.0, 0.5, 0.0  # outcomes for policy a
VALUE = {FIRST: WIN, TIE: DRAW, SECOND: LOSS}
PRIOR_SD = (1000.0, 10.0)  # of the intercept and of the slope: finite also if all pairs agree
STEPS = 50  # of Newton's method; it needs about six


@dataclass(frozen=True)
class JudgedPair:
    """Two responses to a prompt, and what a judge says about them.

    Attributes:
      prompt: its id.
      cluster: what the prompt shares with others, or the prompt itself.
      a, b: the responses.
      orders: the outcome for a by each query: a shown first, then b shown first. One outcome if the
        judge saw one response at a time, or if both are the same text.
    """

    prompt: str
    cluster: Hashable
    a: str
    b: str
    orders: tuple[float, ...]

    @property
    def outcome(self) -> float:
        """WIN or LOSS if all orders say so, else DRAW."""
        return self.orders[0] if len(set(self.orders)) == 1 else DRAW


def outcome_figures(pairs: Sequence[JudgedPair]) -> dict[str, Figure]:
    """The shares of wins, ties and losses of policy a, and its win rate.

    The win rate is the share of wins plus half the share of ties. Its interval contains 1/2 if the
    exact test by signs (`fgrlhf.paired_stats.sign_p`) does not reject that both policies are equal.

    Returns:
      name -> interval: `win`, `tie`, `lose`, `win_rate`, `length_controlled_win_rate`.
    """
    _, units = _by_prompt(pairs)
    outcomes = np.array([pair.outcome for pair in pairs])
    figures: dict[str, Figure] = {}
    for name, value in (("win", WIN), ("tie", DRAW), ("lose", LOSS)):
        figures[name] = share_of_prompts(_means(pairs, outcomes == value), units)
    rates_Q = _means(pairs, outcomes)
    figures["win_rate"] = _around_half(share_of_prompts(rates_Q, units), rates_Q, units)
    figures["length_controlled_win_rate"] = controlled_rate(pairs)
    return figures


def _by_prompt(pairs: Sequence[JudgedPair]) -> tuple[dict[str, list[int]], Clusters]:
    """The places of each prompt's pairs, and the cluster of each prompt."""
    places: dict[str, list[int]] = {}
    for place, pair in enumerate(pairs):
        places.setdefault(pair.prompt, []).append(place)
    return places, [pairs[of_prompt[0]].cluster for of_prompt in places.values()]


def _means(pairs: Sequence[JudgedPair], values_N: np.ndarray) -> np.ndarray:
    """The mean over the pairs of each prompt."""
    places, _ = _by_prompt(pairs)
    return np.array([values_N[of_prompt].mean() for of_prompt in places.values()])


def _around_half(interval: Interval, rates_Q: np.ndarray, clusters: Clusters) -> Interval:
    """The interval of a rate; it reaches 1/2 if few prompts decide that it is not."""
    shifted = replace(
        interval,
        mean=interval.mean - DRAW,
        low=interval.low - DRAW,
        high=interval.high - DRAW,
    )
    widened = with_zero(shifted, sign_p(clustered(rates_Q - DRAW, clusters)))
    if widened is shifted:
        return interval
    return replace(interval, low=widened.low + DRAW, high=widened.high + DRAW)


# ---- without the influence of length -------------------------------------------------------------


def controlled_rate(pairs: Sequence[JudgedPair]) -> Figure:
    """The win rate that policy a would have if both responses to every prompt were equally long.

    A logistic model of the outcome y of a pair with the difference d of its lengths in characters:

        P(a wins) = logistic(u + v tanh(d / s)),   s = standard deviation of d over the pairs
        length-controlled win rate = logistic(u)

    It is the idea of AlpacaEval 2 (Dubois et al. 2024, Length-Controlled AlpacaEval, arXiv
    2404.04475; its metrics/glm_winrate.py at 1020da21 has the same tanh of the same d / s, in
    characters). Its terms for the difficulty of each prompt are left out, since they need outcomes
    of many policies, and so is its L1 penalty towards baselines that were made long or short. u and
    v maximise

        sum w (y log P + (1 - y) log (1 - P)) - u^2 / (2 1000^2) - v^2 / (2 10^2)

    where a pair weighs w = 1 / number of pairs of its prompt, and the last terms keep u and v
    finite. The interval is the jackknife's: leaving out the cluster q with gradient g_q and Hessian
    H_q changes (u, v) by -(H - H_q)^-1 g_q, one step of Newton's method.

    The raw rate is returned if all pairs have the same difference of lengths, or one outcome.
    """
    y_N = np.array([pair.outcome for pair in pairs])
    differences_N = np.array([float(len(pair.a) - len(pair.b)) for pair in pairs])
    size = differences_N.std()
    places, units = _by_prompt(pairs)
    if size == 0 or np.all(y_N == y_N[0]):
        return share_of_prompts(_means(pairs, y_N), units)
    w_N = np.zeros(len(pairs))
    for of_prompt in places.values():
        w_N[of_prompt] = 1 / len(of_prompt)
    x_NC = np.stack([np.ones_like(y_N), np.tanh(differences_N / size)], axis=1)
    solution_C = _fit(x_NC, y_N, w_N)
    rate = float(expit(solution_C[0]))
    names = [pair.cluster for pair in pairs]
    p_N = expit(x_NC @ solution_C)
    gradients_QC = clustered((w_N * (y_N - p_N))[:, None] * x_NC, names)
    if len(gradients_QC) < FEWEST_UNITS:
        return too_few(rate, len(gradients_QC))
    hessians_QCC = clustered(_hessians(x_NC, p_N, w_N), names)
    without_QCC = hessians_QCC.sum(0) + np.diag(_prior()) - hessians_QCC
    without_QC = solution_C - np.linalg.solve(without_QCC, gradients_QC[..., None])[..., 0]
    return interval_of(rate, jackknifed(rate, expit(without_QC[:, 0])), (0.0, 1.0))


def _prior() -> np.ndarray:
    """The precision of each coefficient's prior."""
    return 1 / np.square(PRIOR_SD)


def _hessians(x_NC: np.ndarray, p_N: np.ndarray, w_N: np.ndarray) -> np.ndarray:
    """Of the negative log-likelihood of each pair [N, C, C]."""
    return (w_N * p_N * (1 - p_N))[:, None, None] * x_NC[:, :, None] * x_NC[:, None, :]


def _fit(x_NC: np.ndarray, y_N: np.ndarray, w_N: np.ndarray) -> np.ndarray:
    """The coefficients [C], by Newton's method with halved steps where a whole one is too long."""

    def loss(beta_C: np.ndarray) -> float:
        z_N = x_NC @ beta_C
        return float((w_N * (np.logaddexp(0, z_N) - y_N * z_N)).sum() + _prior() @ beta_C**2 / 2)

    beta_C = np.zeros(x_NC.shape[1])
    for _ in range(STEPS):
        p_N = expit(x_NC @ beta_C)
        gradient_C = x_NC.T @ (w_N * (y_N - p_N)) - _prior() * beta_C
        hessian_CC = _hessians(x_NC, p_N, w_N).sum(0) + np.diag(_prior())
        step_C = np.linalg.solve(hessian_CC, gradient_C)
        while loss(beta_C + step_C) > loss(beta_C) and np.abs(step_C).max() > 1e-12:
            step_C = step_C / 2
        beta_C = beta_C + step_C
        if np.abs(step_C).max() < 1e-10:
            break
    return beta_C


# ---- the judge -----------------------------------------------------------------------------------


def order_figures(pairs: Sequence[JudgedPair]) -> dict[str, Figure]:
    """How much a judge that sees both responses depends on their order.

    Returns:
      `first_preferred`: of the answers that name a response, the share that names the one shown
        first, 1/2 without bias. `same_in_both_orders`: of the pairs, the share with one outcome.
        {} if no pair was judged in both orders.
    """
    both = [pair for pair in pairs if len(pair.orders) == 2]
    if not both:
        return {}
    names = [pair.cluster for pair in both]
    firsts = []
    decided = []
    same = []
    for pair in both:
        a_first, b_first = pair.orders
        firsts.append((a_first == WIN) + (b_first == LOSS))
        decided.append((a_first != DRAW) + (b_first != DRAW))
        same.append(a_first == b_first)
    if not any(decided):
        first: Figure = "undefined: every answer is a tie"
    else:
        first = ratio_interval(firsts, decided, names)
    return {
        "first_preferred": first,
        "same_in_both_orders": ratio_interval(same, [1] * len(both), names),
    }


def position_bias(first_preferred: Figure) -> str:
    """The bias in words: which place the judge prefers, if the interval says so."""
    if isinstance(first_preferred, str):
        return f"not known ({first_preferred})"
    if not first_preferred.has_bounds:
        return f"not known ({first_preferred.reason})"
    if first_preferred.low > DRAW:
        return "the judge prefers the response shown first"
    if first_preferred.high < DRAW:
        return "the judge prefers the response shown second"
    return "none found"


def agreement_figures(
    pairs: Sequence[JudgedPair], votes: Sequence[tuple[int, int]]
) -> dict[str, Figure]:
    """How often a judge agrees with people.

    Args:
      pairs: the judge's.
      votes: of each pair, the number of people who prefer a, and who prefer b.

    Returns:
      `agreement`: of the votes on pairs that the judge decides, the share for the judge's choice.
      `decided`: of all votes, the share on such pairs.
    """
    names = [pair.cluster for pair in pairs]
    agreeing = []
    decided = []
    total = []
    for pair, (for_a, for_b) in zip(pairs, votes, strict=True):
        total.append(for_a + for_b)
        decided.append(0 if pair.outcome == DRAW else for_a + for_b)
        agreeing.append({WIN: for_a, LOSS: for_b}.get(pair.outcome, 0))
    if not any(decided):
        agreement: Figure = "undefined: the judge decides no pair with votes"
    else:
        agreement = ratio_interval(agreeing, decided, names)
    return {"agreement": agreement, "decided": ratio_interval(decided, total, names)}

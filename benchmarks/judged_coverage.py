"""What the 95% intervals of win rates cover, by simulation of judges with known mistakes.

    python -m benchmarks.judged_coverage runs=1000 seed=0

The tables are in docs/metrics.md. A judge names the response shown first with probability `bias`,
whatever it is; otherwise it is wrong with probability `error`. Prompts differ in how often policy a
is better, and the lengths of the responses matter or not. The truth follows from these numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pydantic import Field, PositiveInt
from scipy.integrate import quad
from scipy.special import ndtr

from benchmarks.coverage import CoverageSettings, Covered, rounded, show
from fgrlhf.cli.command_line import run_program
from fgrlhf.win_rates import JudgedPair, order_figures, outcome_figures, position_bias

STRENGTH, SPREAD = 0.3, 0.8  # of a's advantage over prompts, where that of a response has 1
SHORTEST, LONGEST = 50, 150  # characters
NAMES = ("win", "tie", "lose", "win_rate", "length_controlled_win_rate")


@dataclass(frozen=True)
class SimulatedJudge:
    """A judge by its mistakes."""

    error: float
    bias: float

    def names(self, better: bool, is_first: bool) -> float:
        """The probability that it prefers a response that is better or not, shown first or not."""
        right = 1 - self.error if better else self.error
        return (1 - self.bias) * right + (self.bias if is_first else 0.0)

    def truth(self) -> dict[str, float]:
        """The expected figures."""
        better = float(ndtr(STRENGTH / np.hypot(1, SPREAD)))
        win = lose = 0.0
        for share, a_is_better in ((better, True), (1 - better, False)):
            win += share * self.names(a_is_better, True) * self.names(a_is_better, False)
            lose += share * self.names(not a_is_better, True) * self.names(not a_is_better, False)
        rate = win + (1 - win - lose) / 2
        return dict(zip(NAMES, (win, 1 - win - lose, lose, rate, rate), strict=True))

    def pairs(self, rng: np.random.Generator, prompts: int, samples: int) -> list[JudgedPair]:
        """What it says about two policies whose lengths do not matter."""
        pairs = []
        for prompt in range(prompts):
            advantage = STRENGTH + SPREAD * rng.normal()
            for _ in range(samples):
                a_is_better = advantage + rng.normal() > 0
                shown_first = rng.random() < self.names(a_is_better, True)
                shown_second = rng.random() < self.names(a_is_better, False)
                a, b = ("x" * int(n) for n in rng.integers(SHORTEST, LONGEST, 2))
                orders = (float(shown_first), float(shown_second))
                pairs.append(JudgedPair(str(prompt), prompt, a, b, orders))
        return pairs


def judge_of_lengths(
    rng: np.random.Generator, prompts: int, preference: float, longer: float
) -> list[JudgedPair]:
    """Pairs that a judge decides by logistic(preference + 3 tanh(d / s)), where a is longer.

    d is the difference of lengths, normal with the mean `longer` s.
    """
    size = 100
    differences = rng.normal(longer * size, size, prompts)
    chances = 1 / (1 + np.exp(-preference - 3 * np.tanh(differences / size)))
    outcomes = (rng.random(prompts) < chances).astype(float)
    pairs = []
    for prompt, (difference, outcome) in enumerate(zip(differences.tolist(), outcomes.tolist())):
        a = "x" * (1000 + int(difference))
        pairs.append(JudgedPair(str(prompt), prompt, a, "x" * 1000, (outcome,)))
    return pairs


def raw_rate_of_lengths(preference: float, longer: float) -> float:
    """The win rate of a in `judge_of_lengths`, which its length decides."""

    def density(z: float) -> float:
        chance = 1 / (1 + np.exp(-preference - 3 * np.tanh(z)))
        return chance * np.exp(-((z - longer) ** 2) / 2) / np.sqrt(2 * np.pi)

    return float(quad(density, longer - 8, longer + 8)[0])


def coverage(
    judge: SimulatedJudge, prompts: int, samples: int, runs: int, seed: int
) -> dict[str, float]:
    """The share of intervals that contain the truth, and of runs that name the position bias."""
    rng = np.random.default_rng([seed, prompts, samples])
    truth = judge.truth()
    covered, named = Covered(), 0
    for _ in range(runs):
        pairs = judge.pairs(rng, prompts, samples)
        figures = outcome_figures(pairs)
        for name in NAMES:
            covered.check(name, figures[name], truth[name])
        found = position_bias(order_figures(pairs)["first_preferred"])
        named += found == "the judge prefers the response shown first"
    return {**covered.shares(NAMES), "bias named": named / runs}


class JudgedCoverageSettings(CoverageSettings):
    runs: PositiveInt = Field(default=1000, description="simulated evaluations of each row")


def table(settings: JudgedCoverageSettings) -> Iterator[str]:
    """The rows of the table in docs/metrics.md."""
    yield "| prompts x samples | error | bias | win | tie | lose | rate | controlled | bias named |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for prompts, samples in ((20, 1), (50, 1), (50, 4), (200, 1)):
        for judge in (SimulatedJudge(0.1, 0.0), SimulatedJudge(0.2, 0.3)):
            shares = coverage(judge, prompts, samples, settings.runs, settings.seed)
            cells = " | ".join(map(rounded, shares.values()))
            place = f"{prompts} x {samples} | {judge.error:g} | {judge.bias:g}"
            yield f"| {place} | {cells} |"


if __name__ == "__main__":
    run_program(lambda settings: show(table(settings)), JudgedCoverageSettings)

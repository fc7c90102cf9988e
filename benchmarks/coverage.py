"""What the 95% intervals of `fgrlhf/stats.py` cover, by simulation.

    python -m benchmarks.coverage runs=2000 seed=0

The table is in docs/metrics.md. A cell is the share of simulated evaluations whose interval has the
truth; evaluations without an interval do not count, and a cell in which most have none is `none`.
Those of shares of prompts, one response to each, are exact sums of binomial probabilities.

Marks: `*`, no interval could cover the share between .93 and .97, whatever numbers of successes it
includes; `†`, further outside than two standard errors.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from pydantic import Field, PositiveInt
from scipy.special import betainc, ndtri
from scipy.stats import binom

from fgrlhf.auc import auc_interval
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import StrictModel
from fgrlhf.data.agreement.alpha import alpha
from fgrlhf.paired_stats import paired_interval
from fgrlhf.stats import (
    Interval,
    f1_interval,
    mean_interval,
    ratio_interval,
    share_interval,
    share_of_prompts,
)

PROMPTS = (5, 10, 20, 50, 100, 400)
ALLOWED = (0.93, 0.97)
SHARES = (0.01, 0.05, 0.2, 0.5)
ALIKE = 0.3  # correlation of two responses to a prompt
SKEW = 1.2  # standard deviation of the logarithm
SHIFT = 0.3  # of the logarithm
# share of positives, AUC
AREAS = ((0.5, 0.76), (0.2, 0.76), (0.2, 0.92), (0.05, 0.76), (0.5, 0.99), (0.2, 0.99))
SKEWED = ((0.2, 0.76), (0.2, 0.92), (0.5, 0.99), (0.2, 0.99))  # likewise, of skewed scores
WORDS = 20  # of an item
Sample = Callable[[np.random.Generator, int], Interval]  # of a number of prompts
Passages = Callable[[np.random.Generator, int], np.ndarray]  # the passage of each prompt


class CoverageSettings(StrictModel):
    """The size of the simulation."""

    runs: PositiveInt = Field(default=2000, description="simulated evaluations of each cell")
    seed: int = Field(default=0, ge=0, description="of the random numbers")


class Covered:
    """How many intervals there were, and how many of them had the truth, by what they are of."""

    def __init__(self):
        self.intervals: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()

    def check(self, what: str, figure: object, truth: float) -> None:
        """Count a figure, if it is an interval with bounds."""
        if isinstance(figure, Interval) and figure.has_bounds:
            self.intervals[what] += 1
            self.hits[what] += figure.low <= truth <= figure.high

    def shares(self, names: Iterable[str] | None = None) -> dict[str, float]:
        """The share of intervals that had the truth; 0 without intervals."""
        names = self.intervals if names is None else names
        return {what: self.hits[what] / max(self.intervals[what], 1) for what in names}


def _rates(rng: np.random.Generator, p: float, prompts: int) -> np.ndarray:
    """The rate of each prompt, from the beta distribution of mean p with correlation ALIKE."""
    size = (1 - ALIKE) / ALIKE
    return rng.beta(p * size, (1 - p) * size, prompts)


def _responses(p: float) -> Sample:
    """Four responses to each prompt."""
    return lambda rng, prompts: share_of_prompts(rng.binomial(4, _rates(rng, p, prompts)) / 4)


def _segments(p: float) -> Sample:
    """Segments with an error, of 1 to 11."""

    def sample(rng: np.random.Generator, prompts: int) -> Interval:
        segments = rng.integers(1, 12, prompts)
        return ratio_interval(rng.binomial(segments, _rates(rng, p, prompts)), segments)

    return sample


def _ratio(draw: Callable[[np.random.Generator, int], np.ndarray]) -> Sample:
    """Seconds per mark, of 1 to 11 marks, with this distribution over prompts."""

    def sample(rng: np.random.Generator, prompts: int) -> Interval:
        marks = rng.integers(1, 12, prompts)
        return ratio_interval(marks * draw(rng, prompts), marks)

    return sample


def _difference(rng: np.random.Generator, prompts: int) -> Interval:
    """Of lognormal values with correlation one half of their logarithms; the second are greater."""
    shared = rng.normal(size=prompts)
    a, b = (np.sqrt(0.5) * (shared + rng.normal(size=prompts)) for _ in range(2))
    return paired_interval(np.exp(SKEW * a), np.exp(SKEW * b + SHIFT))


def _alike(rng: np.random.Generator, passages_Q: np.ndarray) -> np.ndarray:
    """Normal values with a correlation of ALIKE within a passage."""
    shared = rng.normal(size=passages_Q.max() + 1)[passages_Q] * np.sqrt(ALIKE)
    return shared + rng.normal(size=passages_Q.size) * np.sqrt(1 - ALIKE)


def _even(rng: np.random.Generator, prompts: int) -> np.ndarray:
    """The passage of each prompt: four prompts to a passage."""
    return np.arange(prompts) // 4


def _uneven(rng: np.random.Generator, prompts: int) -> np.ndarray:
    """Likewise, with one to seven prompts to a passage."""
    sizes = rng.integers(1, 8, prompts)
    return np.repeat(np.arange(prompts), sizes)[:prompts]


def _of_passages(
    passages: Passages, of: Callable[[np.ndarray], np.ndarray] = lambda values: values
) -> Sample:
    """The mean over the prompts of passages of a function of normal values."""

    def sample(rng: np.random.Generator, prompts: int) -> Interval:
        passages_Q = passages(rng, prompts)
        return mean_interval(of(_alike(rng, passages_Q)), passages_Q.tolist())

    return sample


def _share_of_passages(p: float) -> Sample:
    """Prompts that are 0 or 1, four to a passage."""

    def sample(rng: np.random.Generator, prompts: int) -> Interval:
        passages_Q = _even(rng, prompts)
        rates = _rates(rng, p, passages_Q.max() + 1)[passages_Q]
        return mean_interval(rng.random(prompts) < rates, passages_Q.tolist())

    return sample


def _difference_of_passages(rng: np.random.Generator, prompts: int) -> Interval:
    """Exact matches of two policies, .5 and .6 right, four prompts to a passage."""
    passages_Q = _even(rng, prompts)
    own = [_alike(rng, passages_Q) for _ in range(2)]
    shared = _alike(rng, passages_Q)
    a, b = (np.sqrt(0.5) * (shared + one) < z for one, z in zip(own, (ndtri(0.6), 0.0)))
    return paired_interval(a.astype(float), b.astype(float), passages_Q.tolist())


def _auc_of_segments(share: float, area: float) -> Sample:
    """Five segments to a prompt, with a correlation of ALIKE of their kinds and of their scores."""
    distance = math.sqrt(2) * float(ndtri(area))

    def sample(rng: np.random.Generator, prompts: int) -> Interval:
        units = np.repeat(np.arange(prompts), 5)
        positive = rng.random(units.size) < _rates(rng, share, prompts)[units]
        shared = rng.normal(size=prompts)[units] * np.sqrt(ALIKE)
        own = rng.normal(size=units.size) * np.sqrt(1 - ALIKE)
        figure = auc_interval(shared + own + distance * positive, positive, units.tolist())
        return figure if isinstance(figure, Interval) else Interval(math.nan, math.nan, math.nan)

    return sample


def _auc(share: float, area: float, is_skewed: bool = False) -> Sample:
    """Normal scores, of which this share is of positives; skewed ones are exponential."""
    distance = math.sqrt(2) * float(ndtri(area))

    def sample(rng: np.random.Generator, prompts: int) -> Interval:
        positive = rng.random(prompts) < share
        if is_skewed:
            scores = rng.exponential(size=prompts) * np.where(positive, area / (1 - area), 1)
        else:
            scores = rng.normal(size=prompts) + distance * positive
        figure = auc_interval(scores, positive)
        return figure if isinstance(figure, Interval) else Interval(math.nan, math.nan, math.nan)

    return sample


def _f1(share: float, accuracy: float) -> tuple[Sample, float]:
    """F1 of errors that are found with this accuracy, and its truth."""

    def sample(rng: np.random.Generator, prompts: int) -> Interval:
        is_error = rng.random(prompts) < share
        found = (rng.random(prompts) < accuracy) == is_error
        return f1_interval(2 * (found & is_error), found.astype(int) + is_error)

    right = share * accuracy
    return sample, 2 * right / (share + right + (1 - share) * (1 - accuracy))


def _f1_of_segments(share: float) -> tuple[Sample, float]:
    """F1 of segments with an error, of 1 to 11: 80% are found, and 5% of the others."""

    def sample(rng: np.random.Generator, prompts: int) -> Interval:
        segments = rng.integers(1, 12, prompts)
        errors = rng.binomial(segments, _rates(rng, share, prompts))
        hits = rng.binomial(errors, 0.8)
        return f1_interval(2 * hits, hits + rng.binomial(segments - errors, 0.05) + errors)

    return sample, 1.6 * share / (1.8 * share + 0.05 * (1 - share))


def _marked_words(rng: np.random.Generator, prompts: int) -> Interval:
    """Alpha of two annotators' words: a third is marked, and an annotator errs in a tenth."""
    is_marked = rng.random((prompts, WORDS)) < 1 / 3
    given = [is_marked ^ (rng.random(is_marked.shape) < 0.1) for _ in range(2)]
    items = np.stack(given, axis=2).astype(int).tolist()
    figure = alpha(items)
    return figure if isinstance(figure, Interval) else Interval(math.nan, math.nan, math.nan)


def _alpha_truth() -> float:
    """Alpha of infinitely many such words."""
    marked = 1 / 3 * 0.9 + 2 / 3 * 0.1
    return 1 - 2 * 0.9 * 0.1 / (2 * marked * (1 - marked))


SETTINGS: dict[str, tuple[Sample, float]] = {
    "normal mean": (lambda rng, prompts: mean_interval(rng.normal(size=prompts)), 0.0),
    "exponential mean": (lambda rng, prompts: mean_interval(rng.exponential(size=prompts)), 1.0),
    "lognormal mean, as of perplexity": (
        lambda rng, prompts: mean_interval(rng.lognormal(0, SKEW, prompts)),
        math.exp(SKEW**2 / 2),
    ),
    "exponential ratio": (_ratio(lambda rng, prompts: rng.exponential(size=prompts)), 1.0),
    "lognormal ratio": (
        _ratio(lambda rng, prompts: rng.lognormal(0, SKEW, prompts)),
        math.exp(SKEW**2 / 2),
    ),
    "lognormal difference": (_difference, math.exp(SKEW**2 / 2) * (1 - math.exp(SHIFT))),
    "normal mean, 4 prompts to a passage": (_of_passages(_even), 0.0),
    "normal mean, 1 to 7 prompts to a passage": (_of_passages(_uneven), 0.0),
    "lognormal mean, 1 to 7 prompts to a passage": (
        _of_passages(_uneven, lambda values: np.exp(SKEW * values)),
        math.exp(SKEW**2 / 2),
    ),
    **{f"share {p}, 4 prompts to a passage": (_share_of_passages(p), p) for p in SHARES},
    "difference of matches, 4 prompts to a passage": (_difference_of_passages, 0.1),
    **{f"share {p}, 4 responses": (_responses(p), p) for p in SHARES},
    **{f"share {p} of segments": (_segments(p), p) for p in (0.05, 0.2, 0.5)},
    **{f"AUC {area}, {share:.0%} positive": (_auc(share, area), area) for share, area in AREAS},
    **{
        f"AUC {area}, {share:.0%} positive, skewed": (_auc(share, area, True), area)
        for share, area in SKEWED
    },
    **{
        f"AUC {area}, {share:.0%} positive, of segments": (_auc_of_segments(share, area), area)
        for share, area in ((0.2, 0.76), (0.2, 0.92), (0.5, 0.99))
    },
    **{f"F1, {share:.0%} errors": _f1(share, 0.8) for share in (0.05, 0.2, 0.5)},
    **{f"F1, {share:.0%} errors of segments": _f1_of_segments(share) for share in (0.05, 0.2)},
    "alpha of words": (_marked_words, _alpha_truth()),
}


def coverage(sample: Sample, truth: float, prompts: int, runs: int, seed: int) -> float:
    """The share of intervals that contain the truth; NaN if most evaluations have none."""
    covered = Covered()
    for run in range(runs):
        covered.check("", sample(np.random.default_rng([seed, run]), prompts), truth)
    return covered.shares([""])[""] if 2 * covered.intervals[""] > runs else math.nan


def share_coverage(p: float, prompts: int) -> float:
    """The exact probability that the interval of a share of prompts contains it."""
    counts = np.arange(prompts + 1)
    bounds = [share_interval(count, prompts) for count in counts.tolist()]
    contains = np.array([one.low <= p <= one.high for one in bounds])
    return float(binom.pmf(counts, prompts, p)[contains].sum())


def mean_share_coverage(prompts: int) -> float:
    """The mean of `share_coverage` over all shares from 0 to 1.

    The integral of a binomial probability over the share is one of the beta distribution.
    """
    counts = np.arange(prompts + 1)
    bounds = [share_interval(count, prompts) for count in counts.tolist()]
    up_to = [
        betainc(counts + 1, prompts - counts + 1, [getattr(one, side) for one in bounds])
        for side in ("low", "high")
    ]
    return float((up_to[1] - up_to[0]).mean())


def can_be_covered(p: float, prompts: int) -> bool:
    """Whether some interval could cover a share of prompts as often as ALLOWED says.

    An interval that includes a share for two numbers of successes does so for those between. One
    that treats success and failure alike includes .5 for as many successes as failures.
    """
    below = np.concatenate([[0.0], binom.cdf(np.arange(prompts + 1), prompts, p)])
    chances = below[None, :] - below[:, None]  # of the successes from the row's to the column's
    if p == 0.5:
        chances = np.diagonal(chances[:, ::-1])
    return bool(((chances >= ALLOWED[0]) & (chances <= ALLOWED[1])).any())


def _cell(covered: float, runs: int) -> str:
    """A simulated cell with its mark."""
    if math.isnan(covered):
        return "none"
    error = math.sqrt(covered * (1 - covered) / runs)
    is_outside = not ALLOWED[0] - 2 * error <= covered <= ALLOWED[1] + 2 * error
    return rounded(covered) + "†" * is_outside


def rounded(covered: float) -> str:
    """A share as `.953`."""
    return f"{covered:.3f}".removeprefix("0")


def exact_rows() -> dict[str, list[str]]:
    """The cells of shares of prompts, which need no simulation."""
    rows = {"share, mean of 0 to 1": [rounded(mean_share_coverage(n)) for n in PROMPTS]}
    for p in SHARES:
        marks = ["" if can_be_covered(p, prompts) else "*" for prompts in PROMPTS]
        cells = [rounded(share_coverage(p, prompts)) for prompts in PROMPTS]
        rows[f"share {p}"] = [cell + mark for cell, mark in zip(cells, marks, strict=True)]
    return rows


def table(settings: CoverageSettings) -> Iterator[str]:
    """All cells as Markdown, row by row."""
    yield f"| | {' | '.join(f'{prompts} prompts' for prompts in PROMPTS)} |"
    yield f"|---|{'---|' * len(PROMPTS)}"
    for name, cells in exact_rows().items():
        yield f"| {name} | {' | '.join(cells)} |"
    for name, (sample, truth) in SETTINGS.items():
        cells = []
        for prompts in PROMPTS:
            covered = coverage(sample, truth, prompts, settings.runs, settings.seed)
            cells.append(_cell(covered, settings.runs))
        yield f"| {name} | {' | '.join(cells)} |"


def show(lines: Iterable[str]) -> None:
    """Print the lines of a table, each as soon as it is known."""
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    run_program(lambda settings: show(table(settings)), CoverageSettings)

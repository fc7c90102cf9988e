"""What the 95% intervals of `fgrlhf/stats.py` cover, by simulation.

    python -m benchmarks.coverage runs=2000 seed=0

The table is in docs/metrics.md. A cell is the share of simulated evaluations whose interval has the
truth; evaluations without an interval do not count.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.data.krippendorff import alpha
from fgrlhf.errors import run_main
from fgrlhf.stats import Interval, mean_interval, ratio_interval, share_of_prompts

PROMPTS = (5, 10, 20, 50, 100, 400)
ALIKE = 0.3  # correlation of two responses to a prompt
SKEW = 1.2  # standard deviation of the logarithm
WORDS = 20  # of an item
Sample = Callable[[np.random.Generator, int], Interval]  # of a number of prompts


class Settings(StrictModel):
    """The size of the simulation."""

    runs: int = Field(default=2000, ge=1, description="simulated evaluations of each cell")
    seed: int = Field(default=0, ge=0, description="of the random numbers")


def _rates(rng: np.random.Generator, p: float, prompts: int) -> np.ndarray:
    """The rate of each prompt, from the beta distribution of mean p with correlation ALIKE."""
    size = (1 - ALIKE) / ALIKE
    return rng.beta(p * size, (1 - p) * size, prompts)


def _binary(p: float) -> Sample:
    return lambda rng, prompts: mean_interval((rng.random(prompts) < p).astype(float))


def _responses(p: float) -> Sample:
    """Four responses to each prompt."""
    return lambda rng, prompts: share_of_prompts(rng.binomial(4, _rates(rng, p, prompts)) / 4)


def _segments(p: float) -> Sample:
    """Segments with an error, of 1 to 11."""

    def sample(rng: np.random.Generator, prompts: int) -> Interval:
        segments = rng.integers(1, 12, prompts)
        return ratio_interval(rng.binomial(segments, _rates(rng, p, prompts)), segments)

    return sample


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
    **{f"share {p}": (_binary(p), p) for p in (0.01, 0.05, 0.2, 0.5)},
    **{f"share {p}, 4 responses": (_responses(p), p) for p in (0.01, 0.05, 0.2, 0.5)},
    **{f"share {p} of segments": (_segments(p), p) for p in (0.05, 0.2, 0.5)},
    "alpha of words": (_marked_words, _alpha_truth()),
}


def coverage(sample: Sample, truth: float, prompts: int, runs: int, seed: int) -> float:
    """The share of intervals that contain the truth; NaN if there is no interval."""
    intervals = [sample(np.random.default_rng([seed, run]), prompts) for run in range(runs)]
    covered = [one.low <= truth <= one.high for one in intervals if one.has_bounds]
    return sum(covered) / len(covered) if covered else math.nan


def table(settings: Settings) -> str:
    """All cells as Markdown."""
    lines = [
        f"| | {' | '.join(f'{prompts} prompts' for prompts in PROMPTS)} |",
        f"|---|{'---|' * len(PROMPTS)}",
    ]
    for name, (sample, truth) in SETTINGS.items():
        cells = []
        for prompts in PROMPTS:
            covered = coverage(sample, truth, prompts, settings.runs, settings.seed)
            cells.append(f"{covered:.3f}".removeprefix("0"))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    print(table(settings_from(Settings, argv, "usage: python -m benchmarks.coverage [key=value]")))


if __name__ == "__main__":
    run_main(main)

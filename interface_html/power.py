"""How many items and annotators a blind human evaluation needs to find a difference.

    fgrlhf human-eval power d=0.1
    fgrlhf human-eval power of=errors d=0.05 share=0.3

`of=comparisons`: d is the share of wins minus that of losses. `of=errors`: d is the difference of
two policies' shares of segments with an error, each marked on the same number of prompts.

A value that an annotator gives is right with the others: two annotators of one item have the
correlation `agreement`, and with `of=errors` two segments of a response the correlation `alike`.
The mean of m annotators of s segments then has the variance

    v = sigma^2 / (s m) (1 + (m - 1) agreement + (s - 1) m agreement alike)

with s = 1 and sigma^2 = 1 - ties - d^2 for comparisons, where sigma^2 is p (1 - p) for each policy
for errors, and both are added. The number of items, or of prompts of both policies, is

    n = (z_.975 + z_power)^2 v / d^2

which holds for the normal distribution (Cohen 1988, Statistical Power Analysis, section 2.4). So
the same design is simulated, and the share of simulations whose interval excludes zero is printed
beside it; n is raised by a tenth until that share reaches the power.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt, model_validator
from scipy.special import ndtri

from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel, refuse
from fgrlhf.paired_stats import paired_interval, unpaired_ratio_interval
from fgrlhf.stats import FEWEST_UNITS, LEVEL, Interval

USAGE = "usage: fgrlhf human-eval power d=0.1 [key=value ...]"
MOST_RAISES = 12  # of n, by a tenth each
MOST_SIMULATED = 20_000  # judgements; the normal distribution holds for more, and time runs out
Share = Annotated[float, Field(ge=0, lt=1)]


class PowerSettings(StrictModel):
    """The difference to find, and how annotators judge."""

    d: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="the difference: of the shares of wins and losses, or of segments with an error"
    )
    of: Literal["comparisons", "errors"] = Field(
        default="comparisons", description="what the annotators do"
    )
    ties: Share = Field(default=0.2, description="share of ties, of comparisons")
    share: Share = Field(
        default=0.3, description="share of segments with an error of the worse policy, of errors"
    )
    segments: PositiveInt = Field(default=5, description="segments of a response, of errors")
    alike: Share = Field(
        default=0.2, description="correlation of two segments of a response, of errors"
    )
    agreement: Share = Field(
        default=0.5, description="correlation of two annotators of an item: about their alpha"
    )
    annotators: list[PositiveInt] = Field(
        default=[1, 2, 3, 5], description="numbers of annotators of each item"
    )
    power: Annotated[float, Field(gt=0.5, lt=1)] = Field(
        default=0.8, description="how often the difference should be found"
    )
    runs: PositiveInt = Field(default=1000, description="simulated evaluations of each line")
    seed: int = Field(default=0, ge=0, description="of the simulation")

    @model_validator(mode="after")
    def _possible(self):
        if self.of == "comparisons" and self.d > 1 - self.ties:
            refuse([("d", f"{self.d:g} is impossible with ties={self.ties:g}: set at most 1-ties")])
        if self.of == "errors" and self.d > self.share:
            refuse([("d", f"{self.d:g} is above share={self.share:g}: the better policy has none")])
        return self


def variance(settings: PowerSettings, annotators: int) -> float:
    """The variance of an item's difference: v of the module's equation."""
    s = 1 if settings.of == "comparisons" else settings.segments
    rho = settings.agreement
    shared = 1 + (annotators - 1) * rho + (s - 1) * annotators * rho * settings.alike
    if settings.of == "comparisons":
        sigma_2 = 1 - settings.ties - settings.d**2
    else:
        worse, better = settings.share, settings.share - settings.d
        sigma_2 = worse * (1 - worse) + better * (1 - better)
    return sigma_2 * shared / (s * annotators)


def items_needed(settings: PowerSettings, annotators: int) -> int:
    """The number n of the module's equation, and not less than intervals need."""
    z = float(ndtri((1 + LEVEL) / 2) + ndtri(settings.power))
    n = math.ceil(z**2 * variance(settings, annotators) / settings.d**2)
    return max(n, FEWEST_UNITS)


def _copies(rng: np.random.Generator, values: np.ndarray, correlation: float, fresh: np.ndarray):
    """`fresh`, where each value is replaced by that of `values` with probability sqrt(correlation).

    Two of them then have this correlation.
    """
    copied = rng.random(fresh.shape) < math.sqrt(correlation)
    return np.where(copied, values, fresh)


def simulated(
    settings: PowerSettings, items: int, annotators: int, rng: np.random.Generator
) -> Interval:
    """The difference of a simulated evaluation, with the interval that human-eval prints."""
    if settings.of == "comparisons":
        win = (1 - settings.ties + settings.d) / 2
        shares = [win, settings.ties, 1 - win - settings.ties]

        def draw(*shape: int) -> np.ndarray:
            return rng.choice([1.0, 0.0, -1.0], shape, p=shares)

        given = _copies(rng, draw(items, 1), settings.agreement, draw(items, annotators)).mean(1)
        return paired_interval(given, np.zeros(items))
    counts = []
    for share in (settings.share, settings.share - settings.d):

        def errors(*shape: int, share: float = share) -> np.ndarray:
            return (rng.random(shape) < share).astype(float)

        of_response = errors(items, 1, 1)
        true = _copies(rng, of_response, settings.alike, errors(items, settings.segments, 1))
        fresh = errors(items, settings.segments, annotators)
        given = _copies(rng, true, settings.agreement, fresh)
        counts.append((given.mean(2).sum(1), np.full(items, settings.segments)))
    prompts = list(range(items))
    return unpaired_ratio_interval(*counts, clusters=(prompts, prompts))


def simulated_power(settings: PowerSettings, items: int, annotators: int) -> float:
    """The share of simulated evaluations whose interval is above zero."""
    rng = np.random.default_rng([settings.seed, items, annotators])
    found = 0
    for _ in range(settings.runs):
        interval = simulated(settings, items, annotators, rng)
        found += interval.has_bounds and interval.low > 0
    return found / settings.runs


def report(settings: PowerSettings) -> Iterator[str]:
    """The lines that the program prints, each as soon as it is known: simulations take a while."""
    what = {
        "comparisons": "share of wins minus share of losses",
        "errors": "difference of the shares of segments with an error",
    }[settings.of]
    unit = "items" if settings.of == "comparisons" else "prompts (each with both policies)"
    yield f"{what}: {settings.d:g}, to be found in {settings.power:.0%} of evaluations"
    yield f"  {unit} by number of annotators:"
    yield "  annotators  by equation     needed  judgements  simulated power"
    policies = 1 if settings.of == "comparisons" else 2
    for annotators in settings.annotators:
        first = n = items_needed(settings, annotators)
        judgements = n * annotators * policies
        if judgements > MOST_SIMULATED:
            yield f"  {annotators:>10}  {n:>11,}  {n:>9,}  {judgements:>10,}  {'–':>15}"
            continue
        found = simulated_power(settings, n, annotators)
        for _ in range(MOST_RAISES):
            if found >= settings.power:
                break
            n = math.ceil(1.1 * n)
            found = simulated_power(settings, n, annotators)
        judgements = n * annotators * policies
        yield f"  {annotators:>10}  {first:>11,}  {n:>9,}  {judgements:>10,}  {found:>15.3f}"
    yield (
        f"  by {settings.runs:,} simulations of each line, with agreement={settings.agreement:g}."
        " Take ties, share and agreement from a pilot study (`fgrlhf human-eval`)"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The program `fgrlhf human-eval power`."""
    for line in report(settings_from(PowerSettings, argv, USAGE)):
        print(line, flush=True)


if __name__ == "__main__":
    run_main(main)

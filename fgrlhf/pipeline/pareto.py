"""The front of evaluated policies over several metrics, its hypervolume, and a choice.

    fgrlhf pareto policies='{fine: [DIR/s0/eval, DIR/s1/eval], base: [DIR/b0/eval]}' \
        metrics='[facts/ratio, length]' output_dir=outputs/pareto

A policy is on the front if no other is at least as good in every metric and better in one. The
hypervolume is that of all points between the front and the worst point (Zitzler and Thiele 1999);
larger is better. Intervals are percentiles of a bootstrap that draws prompts (or their clusters),
the same for all policies, and for each policy its seeds.

Axes: P policies, S seeds, Q prompts or clusters, M metrics, R bootstrap samples.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from markupsafe import Markup
from pydantic import Field, model_validator

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.base.files import write_json, write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import Amount, Count, FilePath, Seed, StrictModel, refuse
from fgrlhf.metrics.clusters import clusters_by_prompt, clusters_of
from fgrlhf.metrics.config import is_higher_better
from fgrlhf.metrics.paired import by_prompt
from fgrlhf.metrics.pooled import CORPUS, ERROR_FREE, RATIO, TOTAL
from fgrlhf.metrics.rows import ROWS, read_rows
from fgrlhf.report.page import page_template, stylesheet
from fgrlhf.report.plots import scatter
from fgrlhf.runs.checkpoint import new_folder
from fgrlhf.stats import FEWEST_UNITS, LEVEL, Interval, clustered, too_few

USAGE = (
    "usage: fgrlhf pareto policies='{NAME: [EVALUATION, ...], ...}' metrics='[M, M]' output_dir=DIR"
)
HERE = Path(__file__).parent


class ParetoSettings(StrictModel):
    """What is compared, the preference, and where the result goes."""

    policies: Annotated[dict[str, list[FilePath]], Field(min_length=2)] = Field(
        description="name -> folders of evaluations on the same prompts, one for each seed"
    )
    metrics: Annotated[list[str], Field(min_length=2)] = Field(
        description="columns of the rows, or ratios such as facts/ratio"
    )
    lower: list[str] | None = Field(
        default=None, description="metrics that are better when lower; null: those known to be so"
    )
    worst: dict[str, Amount] | None = Field(
        default=None,
        description="metric -> where its hypervolume begins; null: at the worst of the policies",
    )
    weights: dict[str, Amount] | None = Field(
        default=None, description="choose the policy with the highest sum of weight x metric"
    )
    bounds: dict[str, Amount] | None = Field(
        default=None, description="choose among policies at least as good: metric -> value"
    )
    samples: Count = Field(default=2000, description="of the bootstrap")
    seed: Seed = Field(default=0, description="of the bootstrap")
    output_dir: FilePath = Field(description="folder of the result")

    @model_validator(mode="after")
    def _known_metrics(self):
        mistakes = []
        for key in ("lower", "worst", "weights", "bounds"):
            for name in getattr(self, key) or ():
                if name not in self.metrics:
                    mistakes.append((key, f"`{shorten(name, 60)}` is not among the metrics"))
        missing = [name for name in self.metrics if name not in (self.worst or self.metrics)]
        if missing:
            mistakes.append(("worst", f"it lacks {', '.join(missing)}"))
        if len(set(self.metrics)) < len(self.metrics):
            mistakes.append(("metrics", "one is there twice"))
        if not all(self.policies.values()):
            mistakes.append(("policies", "one has no evaluation"))
        if any(weight < 0 for weight in (self.weights or {}).values()):
            mistakes.append(("weights", "one is below 0: name the metric in `lower` instead"))
        refuse(mistakes)
        return self

    @property
    def signs(self) -> np.ndarray:
        """1 for metrics that are better when higher, else -1."""
        lower = self.lower
        if lower is None:
            lower = [name for name in self.metrics if is_higher_better(name) is False]
        return np.array([-1.0 if name in lower else 1.0 for name in self.metrics])


# ---- geometry: higher is better ------------------------------------------------------------------


def front(points_PM: np.ndarray) -> np.ndarray:
    """on_front_P: whether no other point is at least as good everywhere and better somewhere."""
    at_least_PP = (points_PM[:, None] >= points_PM[None]).all(-1)
    better_PP = (points_PM[:, None] > points_PM[None]).any(-1)
    return np.logical_not(np.asarray(at_least_PP & better_PP).any(0))


def hypervolume(points_PM: np.ndarray, worst_M: np.ndarray) -> float:
    """The volume of the union of the boxes between the worst point and each point.

    By slices along the last axis (While et al. 2006, hypervolume by slicing objectives). Points
    that are not better than the worst in every metric add nothing.
    """
    sides_PM = points_PM - worst_M
    sides_PM = sides_PM[(sides_PM > 0).all(1)]
    return _volume(sides_PM) if len(sides_PM) else 0.0


def _volume(sides_PM: np.ndarray) -> float:
    """The volume of the union of boxes with these sides at the origin."""
    if sides_PM.shape[1] == 1:
        return float(sides_PM.max())
    sides_PM = sides_PM[front(sides_PM)]
    order = np.argsort(-sides_PM[:, -1], kind="stable")
    heights = np.append(sides_PM[order, -1], 0.0)
    volume = 0.0
    for i in range(len(order)):
        height = heights[i] - heights[i + 1]
        if height > 0:
            volume += height * _volume(sides_PM[order[: i + 1], :-1])
    return volume


def choose(
    points_PM: np.ndarray, weights_M: np.ndarray | None, bounds_M: np.ndarray | None
) -> int | None:
    """The policy with the highest weighted sum among those that keep the bounds; None if none does.

    Args:
      weights_M: None: all 1.
      bounds_M: -inf where there is none; None: no bounds.
    """
    allowed_P = np.ones(len(points_PM), dtype=bool)
    if bounds_M is not None:
        allowed_P = (points_PM >= bounds_M).all(1)
    if not allowed_P.any():
        return None
    weights_M = np.ones(points_PM.shape[1]) if weights_M is None else weights_M
    return int(np.where(allowed_P, points_PM @ weights_M, -np.inf).argmax())


# ---- values of the policies ----------------------------------------------------------------------


def sums_of(
    policies: Mapping[str, Sequence[Sequence[Mapping]]], metrics: Sequence[str]
) -> tuple[list[np.ndarray], int]:
    """For each policy sums_SQM2, whose quotient of sums over Q is a metric; and the prompts.

    A column's sums are its values over the prompts and their number, a ratio's the error-free
    segments and all segments. Prompts count for which every evaluation has every metric.

    Args:
      policies: name -> the rows of the evaluation of each seed.

    Raises:
      UserError: an evaluation lacks a metric, or the evaluations share no prompts.
    """
    pairs = [
        [[_pairs(seed_rows, metric, name) for metric in metrics] for seed_rows in seeds]
        for name, seeds in policies.items()
    ]
    every = [pair for seeds in pairs for of_seed in seeds for pair in of_seed]
    prompts = [prompt for prompt in every[0] if all(prompt in pair for pair in every)]
    if not prompts:
        raise UserError(
            "the evaluations have no prompt in common that has every metric: evaluate all policies"
            " on the same prompts"
        )
    all_rows = [row for seeds in policies.values() for rows in seeds for row in rows]
    clusters = clusters_of(prompts, clusters_by_prompt(all_rows))
    result = []
    for seeds in pairs:
        by_prompt_QSM2 = []
        for prompt in prompts:
            by_prompt_QSM2.append([[pair[prompt] for pair in of_seed] for of_seed in seeds])
        result.append(clustered(np.array(by_prompt_QSM2), clusters).swapaxes(0, 1))
    return result, len(prompts)


def _pairs(rows: Sequence[Mapping], metric: str, name: str) -> dict[str, tuple[float, float]]:
    """Prompt -> numerator and denominator of the metric."""
    base = metric.removesuffix(RATIO)
    if base != metric and any(base + ERROR_FREE in row for row in rows):
        sums: dict[str, tuple[float, float]] = {}
        for row in rows:
            if row.get(base + TOTAL) is not None:
                free, total = sums.get(row["id"], (0.0, 0.0))
                sums[row["id"]] = (free + row[base + ERROR_FREE], total + row[base + TOTAL])
        return sums
    columns = {
        key
        for row in rows
        for key, value in row.items()
        if isinstance(value, int | float) and key not in ("id", "sample")
    }
    values = by_prompt(rows, metric) if metric in columns and not metric.endswith(CORPUS) else {}
    if not values:
        ratios = {
            key.removesuffix(ERROR_FREE) + RATIO for key in columns if key.endswith(ERROR_FREE)
        }
        names = ", ".join(sorted(columns | ratios))
        raise UserError(
            f"an evaluation of {shorten(name, 60)} has no values of `{shorten(metric, 60)}` for"
            f" each prompt. It has {names}"
        )
    return {prompt: (value, 1.0) for prompt, value in values.items()}


def values_of(sums_SQM2: np.ndarray) -> np.ndarray:
    """values_M of a policy: the mean over seeds of each metric."""
    totals_SM2 = sums_SQM2.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (totals_SM2[..., 0] / totals_SM2[..., 1]).mean(0)


def bootstrap(sums: Sequence[np.ndarray], samples: int, seed: int) -> np.ndarray:
    """values_RPM: the policies' values in samples of prompts and, for each policy, of seeds."""
    random = np.random.default_rng(seed)
    units = sums[0].shape[1]
    counts_RQ = random.multinomial(units, np.full(units, 1 / units), size=samples)
    values = []
    for sums_SQM2 in sums:
        totals_RSM2 = np.einsum("rq,sqmk->rsmk", counts_RQ, sums_SQM2)
        with np.errstate(invalid="ignore", divide="ignore"):
            values_RSM = totals_RSM2[..., 0] / totals_RSM2[..., 1]
        seeds = len(sums_SQM2)
        chosen_RS = random.integers(seeds, size=(samples, seeds))
        values.append(np.take_along_axis(values_RSM, chosen_RS[..., None], 1).mean(1))
    return np.stack(values, 1)


# ---- the result ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParetoPolicy:
    """A policy: its metrics, and how sure it is that it is on the front.

    Attributes:
      on_front_share: of the bootstrap samples.
    """

    seeds: int
    values: dict[str, Interval]
    on_front: bool
    on_front_share: float


@dataclass(frozen=True)
class Pareto:
    """Everything in pareto.json and index.html.

    Attributes:
      prompts: for which every evaluation has every metric.
      all_prompts: of any evaluation.
      chosen: by the preference; None without one, or if no policy keeps the bounds.
      chosen_share: of the bootstrap samples in which the choice is the same.
    """

    policies: dict[str, ParetoPolicy]
    worst: dict[str, float]
    hypervolume: Interval
    prompts: int
    all_prompts: int
    chosen: str | None
    chosen_share: float | None


def pareto(settings: ParetoSettings) -> Pareto:
    """Compare the evaluations. Raises `UserError` if they cannot be compared."""
    rows = {
        name: [read_rows(Path(folder) / ROWS) for folder in folders]
        for name, folders in settings.policies.items()
    }
    sums, prompts = sums_of(rows, settings.metrics)
    signs_M = settings.signs
    points_PM = signs_M * np.array([values_of(of_policy) for of_policy in sums])
    if not np.isfinite(points_PM).all():
        raise UserError("a policy has no segment at all, so that a ratio is not defined")
    samples_RPM = signs_M * bootstrap(sums, settings.samples, settings.seed)
    samples_RPM = samples_RPM[np.isfinite(samples_RPM).all((1, 2))]
    if settings.worst is None:
        worst_M = points_PM.min(0)
    else:
        worst_M = signs_M * np.array([settings.worst[name] for name in settings.metrics])
    volumes_R = np.array([hypervolume(sample_PM, worst_M) for sample_PM in samples_RPM])
    fronts_RP = np.array([front(sample_PM) for sample_PM in samples_RPM])
    units = sums[0].shape[1]
    on_front_P = front(points_PM)
    policies = {}
    for p, (name, folders) in enumerate(settings.policies.items()):
        values = {}
        for m, metric in enumerate(settings.metrics):
            samples_R = signs_M[m] * samples_RPM[:, p, m]
            values[metric] = _percentiles(signs_M[m] * points_PM[p, m], samples_R, units)
        share = float(fronts_RP[:, p].mean())
        policies[name] = ParetoPolicy(len(folders), values, bool(on_front_P[p]), share)
    chosen, chosen_share = _choice(settings, points_PM, samples_RPM)
    volume = _percentiles(hypervolume(points_PM, worst_M), volumes_R, units)
    worst = dict(zip(settings.metrics, (signs_M * worst_M).tolist()))
    every = {row["id"] for seeds in rows.values() for of_seed in seeds for row in of_seed}
    return Pareto(policies, worst, volume, prompts, len(every), chosen, chosen_share)


def _percentiles(estimate: float, samples_R: np.ndarray, units: int) -> Interval:
    """The estimate with the middle 95% of the samples, if there are enough prompts or clusters."""
    if units < FEWEST_UNITS:
        return too_few(estimate, units)
    low, high = np.quantile(samples_R, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(float(estimate), float(low), float(high))


def _choice(
    settings: ParetoSettings, points_PM: np.ndarray, samples_RPM: np.ndarray
) -> tuple[str | None, float | None]:
    if settings.weights is None and settings.bounds is None:
        return None, None
    signs = dict(zip(settings.metrics, settings.signs))
    weights_M = bounds_M = None
    if settings.weights is not None:
        weights_M = np.array([settings.weights.get(name, 0.0) for name in settings.metrics])
    if settings.bounds is not None:
        bounds = {name: signs[name] * bound for name, bound in settings.bounds.items()}
        bounds_M = np.array([bounds.get(name, -np.inf) for name in settings.metrics])
    chosen = choose(points_PM, weights_M, bounds_M)
    if chosen is None:
        return None, None
    again = [choose(sample_PM, weights_M, bounds_M) == chosen for sample_PM in samples_RPM]
    return list(settings.policies)[chosen], float(np.mean(again))


# ---- output --------------------------------------------------------------------------------------


def as_json(result: Pareto) -> dict:
    """The contents of pareto.json."""
    policies = {}
    for name, policy in result.policies.items():
        values = {metric: value.as_dict() for metric, value in policy.values.items()}
        policies[name] = {**asdict(policy), "values": values}
    return {
        **asdict(result),
        "policies": policies,
        "hypervolume": result.hypervolume.as_dict(),
    }


def prompts_text(result: Pareto) -> str:
    """The number of prompts, and of all prompts if some are left out."""
    if result.prompts == result.all_prompts:
        return counted(result.prompts, "prompt")
    all_prompts = counted(result.all_prompts, "prompt")
    return f"{result.prompts} of {all_prompts}, for which every evaluation has every metric"


def as_text(result: Pareto) -> str:
    """The result as lines of text."""
    lines = []
    for name, policy in result.policies.items():
        values = ", ".join(f"{metric} {value}" for metric, value in policy.values.items())
        place = "on the front" if policy.on_front else "not on the front"
        lines.append(f"{name}: {values}; {place} ({policy.on_front_share:.0%} of samples)")
    worst = ", ".join(f"{metric} {value:.4g}" for metric, value in result.worst.items())
    lines.append(f"hypervolume above {worst}: {result.hypervolume}; {prompts_text(result)}")
    return "\n".join(lines)


def directions_text(settings: ParetoSettings) -> str:
    """Which values of each metric count as better."""
    words = []
    for name, sign in zip(settings.metrics, settings.signs, strict=True):
        words.append(f"{name} {'higher' if sign > 0 else 'lower'}")
    return f"counted as better: {', '.join(words)} (lower=[...] changes this)"


def choice_text(settings: ParetoSettings, result: Pareto) -> str | None:
    """The choice in words; None without a preference."""
    if settings.weights is None and settings.bounds is None:
        return None
    if result.chosen is None:
        return "no policy keeps the bounds"
    return f"chosen: {result.chosen} (the choice in {result.chosen_share:.0%} of samples)"


def write_page(settings: ParetoSettings, result: Pareto, folder: Path) -> None:
    """Write index.html: the table, and a plot for each pair of metrics."""
    names = list(result.policies)
    plots = {}
    for j, y in enumerate(settings.metrics):
        for x in settings.metrics[:j]:
            points = [(policy.values[x], policy.values[y]) for policy in result.policies.values()]
            on_front = [policy.on_front for policy in result.policies.values()]
            title = f"{y} over {x}"
            plots[title] = Markup(scatter(title, x, y, names, points, on_front))
    page = page_template(HERE, "pareto.html.j2").render(
        title="Pareto front of " + ", ".join(settings.metrics),
        style=stylesheet(),
        metrics=settings.metrics,
        result=result,
        samples=settings.samples,
        prompts=prompts_text(result),
        directions=directions_text(settings),
        choice=choice_text(settings, result),
        plots=plots,
    )
    write_text(folder / "index.html", page)


def main(argv: Sequence[str] | None = None) -> None:
    settings = settings_from(ParetoSettings, argv, USAGE)
    output = Path(settings.output_dir)
    if os.path.lexists(output):
        raise UserError(f"{shorten(output)} exists: remove it, or name another one with output_dir")
    result = pareto(settings)
    with new_folder(output) as folder:
        write_json(folder / "pareto.json", as_json(result))
        write_page(settings, result, folder)
    print(directions_text(settings))
    print(as_text(result))
    choice = choice_text(settings, result)
    if choice:
        print(choice)
    print(f"{output / 'index.html'}", flush=True)


if __name__ == "__main__":
    run_main(main)

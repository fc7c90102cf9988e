"""The sections of a report: results, learning curves, reward models, time and memory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fgrlhf.metrics.paired import paired_gain
from fgrlhf.report.data import Outputs, Run
from fgrlhf.report.display import ASPECT_METRICS, NOT_APPLICABLE, TRUTH, Display
from fgrlhf.report.plots import Mark, Series, calibration, curves, intervals
from fgrlhf.report.records import Gain, Interval, RewardModel, RewardModelMetrics
from fgrlhf.report.samples import minus, signed

POLICY_CURVES = {
    "kl": "KL from the reference, per response",
    "length": "Length in tokens",
    "value/error": "Value error |V − return|",
    "value/explained_variance": "Explained variance of the critic",
    "entropy": "Entropy per token",
    "clipfrac/policy": "Clipped share of tokens",
    "dpo/margin": "Margin of the implied rewards, better − worse",
    "dpo/accuracy": "Accuracy on pairs",
}
# display name, key in the model's own metrics, key in the comparison with the truth
SEGMENT_NUMBERS = (
    ("accuracy", "accuracy", "accuracy"),
    ("AUC", "auc", "auc"),
    ("F1, error", "error_f1", "f1"),
    ("F1, no error", "ok_f1", ""),
    ("accuracy of “all wrong”", "all_error_accuracy", ""),
    ("accuracy of “all right”", "all_ok_accuracy", ""),
)
SEQUENCE_NUMBERS = (
    ("pair accuracy", "accuracy", "pair_accuracy"),
    ("first response is better", "first_accuracy", ""),
)
# names of the baselines in reward_modeling/baselines.py
BASELINES = {
    "majority": "most frequent label",
    "length": "number of words",
    "features": "linear model of ten hand-made features",
    "tfidf": "linear model of TF-IDF weights",
}


class Naming:
    """Names and colours of everything in one report."""

    def __init__(self, outputs: Outputs, display: Display):
        runs = [run.name for run in outputs.runs]
        self.display = display
        self.colours = display.colour_numbers([*outputs.policies, *runs, *outputs.evaluations])

    def pair(self, name: str, separator: str) -> str:
        """`a_vs_b` with display names."""
        return separator.join(self.display.name(policy) for policy in name.split("_vs_"))


# ---- paired differences --------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A paired difference as text. `is_sure`: its 95% interval excludes zero."""

    mean: str
    bounds: str
    is_sure: bool

    @property
    def verdict(self) -> str:
        relation = "excludes" if self.is_sure else "includes"
        return f"{self.bounds} · interval {relation} zero"


@dataclass(frozen=True)
class Tile:
    title: str
    difference: Difference


def gains(outputs: Outputs, display: Display) -> dict[str, dict[str, Gain]]:
    """{`a_vs_b`: {metric: paired difference}}, from summary.json or else from the evaluations.

    In summary.json the metrics of the truth have no prefix: `gold` is `oracle/gold`.
    """
    if outputs.summary.gains is None:
        return _gains_of_evaluations(outputs, display)
    return {name: metrics for name, metrics in outputs.summary.gains.items() if metrics}


def _gains_of_evaluations(outputs: Outputs, display: Display) -> dict[str, dict[str, Gain]]:
    """Every policy compared with the first one, by the headline metrics."""
    rows: dict[str, list[dict]] = {}
    for name, policy_rows in outputs.evaluations.items():
        rows[name] = [{"id": row.id, **row.numbers} for row in policy_rows]
    first, *others = rows or [""]
    differences: dict[str, dict[str, Gain]] = {}
    for name in others:
        metrics = {}
        for metric in display.headline:
            interval = paired_gain(rows[name], rows[first], metric)
            if interval is not None:
                metrics[metric] = Gain(**interval.as_dict())
        if metrics:
            differences[f"{name}_vs_{first}"] = metrics
    return differences


def tiles(compared: Mapping[str, Mapping[str, Gain]], naming: Naming) -> list[Tile]:
    """The headline of every comparison, which is its first metric."""
    shown = []
    for name, metrics in compared.items():
        metric, gain = next(iter(metrics.items()))
        title = f"{naming.pair(name, ' over ')}, {_gain_name(metric, naming.display)}"
        shown.append(Tile(title, _difference(gain)))
    return shown


def _gain_name(metric: str, display: Display) -> str:
    return display.metric(TRUTH + metric if TRUTH + metric in display.metrics else metric)


def _difference(gain: Gain) -> Difference:
    bounds = f"{signed(gain.low, 3)} to {signed(gain.high, 3)}"
    return Difference(signed(gain.mean, 3), bounds, is_sure=gain.low > 0 or gain.high < 0)


# ---- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    mean: str
    bounds: str = ""


@dataclass(frozen=True)
class Row:
    name: str
    cells: list[Cell]


@dataclass(frozen=True)
class Results:
    policies: list[str]
    rows: list[Row]
    plot: Markup | None
    pairs: list[str]  # headings of the paired differences
    gains: dict[str, list[Difference | None]]  # metric -> a difference for each pair


def results(
    outputs: Outputs, compared: Mapping[str, Mapping[str, Gain]], naming: Naming
) -> Results:
    display = naming.display
    policies = {name: _flat(metrics) for name, metrics in outputs.policies.items()}
    keys = list(dict.fromkeys(key for metrics in policies.values() for key in metrics))
    rows = []
    for key in keys:
        values = [metrics.get(key) for metrics in policies.values()]
        digits = 1 if any(_is_large(value) for value in values) else 3
        rows.append(Row(display.metric(key), [_cell(value, digits) for value in values]))
    shares = [key for key in keys if _is_share(key, policies.values())]
    marks = [(display.metric(key), _marks(key, policies, naming)) for key in shares]
    metrics = dict.fromkeys(metric for values in compared.values() for metric in values)
    differences = {}
    for metric in metrics:
        given = [values.get(metric) for values in compared.values()]
        differences[_gain_name(metric, display)] = [gain and _difference(gain) for gain in given]
    return Results(
        policies=list(policies),
        rows=rows,
        plot=Markup(intervals("Shares, with 95% intervals", marks)) if marks else None,
        pairs=[naming.pair(name, " − ") for name in compared],
        gains=differences,
    )


def _flat(tree: Mapping[str, Interval | dict[str, Interval]]) -> dict[str, Interval]:
    """Join nested names: {"oracle": {"gold": interval}} -> {"oracle/gold": interval}."""
    flat: dict[str, Interval] = {}
    for key, value in tree.items():
        if isinstance(value, Interval):
            flat[key] = value
        else:
            flat |= {f"{key}/{name}": interval for name, interval in value.items()}
    return flat


def _is_share(key: str, policies: Iterable[Mapping[str, Interval]]) -> bool:
    """Whether a metric is a share between 0 and 1, judging by its name and values."""
    if key == "kl" or key.startswith("reward") or key.endswith(("/score", NOT_APPLICABLE)):
        return False
    values = [metrics[key] for metrics in policies if key in metrics]
    return all(value.mean is not None and 0 <= value.mean <= 1 for value in values)


def _marks(key: str, policies: Mapping[str, Mapping[str, Interval]], naming: Naming) -> list[Mark]:
    marks = []
    for name, metrics in policies.items():
        value = metrics.get(key)
        if value is None or value.mean is None:
            continue
        low = value.mean if value.low is None else value.low
        high = value.mean if value.high is None else value.high
        marks.append((value.mean, low, high, naming.colours[name]))
    return marks


def _is_large(value: Interval | None) -> bool:
    return value is not None and value.mean is not None and abs(value.mean) >= 10


def _cell(value: Interval | None, digits: int) -> Cell:
    if value is None:
        return Cell("–")
    if value.low is None or value.high is None:
        return Cell(_number(value.mean, digits))
    bounds = f"{_number(value.low, digits)} to {_number(value.high, digits)}"
    return Cell(_number(value.mean, digits), bounds)


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else minus(f"{value:.{digits}f}")


# ---- learning curves -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    runs: list[str]
    groups: dict[str, list[Markup]]


def learning_curves(outputs: Outputs, naming: Naming) -> Curves:
    display = naming.display
    logged = list(dict.fromkeys(key for run in outputs.runs for key in run.keys))

    def shared(title: str, key: str, marks: bool = False) -> Markup:
        """A metric of all runs that have it."""
        runs = [run for run in outputs.runs if key in run.keys]
        lines = [Series(*run.series(key), naming.colours[run.name], marks) for run in runs]
        return Markup(curves(title, lines, "episodes"))

    def single(title: str, key: str, run: Run, marks: bool = False) -> Markup:
        """A metric of a single run: rewards of different runs have different units."""
        lines = [Series(*run.series(key), naming.colours[run.name], marks)]
        return Markup(curves(f"{display.name(run.name)}: {title}", lines, "episodes"))

    last_first = list(reversed(outputs.runs))
    by_aspect = []
    for run in last_first:
        for key in _reward_keys(run):
            by_aspect.append(single(display.name(key.removeprefix("reward/")), key, run))
    policy = [shared(title, key) for key, title in POLICY_CURVES.items() if key in logged]
    on_dev = []
    for metric in _dev_metrics(logged, display):
        on_dev.append(shared(display.metric(metric), f"eval/{metric}", marks=True))
    for run in last_first:
        if "eval/reward" in run.keys:
            on_dev.append(single("reward", "eval/reward", run, marks=True))
    groups = {
        "Reward by aspect": by_aspect,
        "Policy and critic": policy,
        "On dev prompts": on_dev,
    }
    return Curves([run.name for run in outputs.runs], groups)


def _reward_keys(run: Run) -> list[str]:
    """The keys of the aspects' rewards, with the total first if there are several aspects."""
    not_aspects = ("reward/total", "reward/penalized")
    aspects = [key for key in run.keys if key.startswith("reward/") and key not in not_aspects]
    return ["reward/total", *aspects] if len(aspects) > 1 else aspects


def _dev_metrics(logged: Sequence[str], display: Display) -> list[str]:
    """The dev metrics to show: those of the truth or else of the reward models, then the others.

    Rewards and KL are not among them.
    """
    metrics = [key.removeprefix("eval/") for key in logged if key.startswith("eval/")]
    truth = [metric for metric in metrics if metric.startswith(TRUTH)]
    judged = [metric for metric in metrics if metric.split("/")[-1] in ASPECT_METRICS]
    others = []
    for metric in metrics:
        is_reward = metric.split("/")[0] == "reward"
        is_shown_first = metric in (*truth, *judged)
        if not (is_reward or is_shown_first or metric == "kl" or metric.endswith(NOT_APPLICABLE)):
            others.append(metric)
    headline = [metric for metric in display.headline if metric in others]
    return list(dict.fromkeys([*(truth or judged), *headline, *others]))


# ---- reward models -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelNumber:
    name: str
    dev: str
    truth: str


@dataclass(frozen=True)
class ModelCard:
    name: str
    facts: dict[str, str | None]
    numbers: list[ModelNumber]
    plot: Markup | None


def model_cards(outputs: Outputs, display: Display) -> list[ModelCard]:
    """A card per reward model. summary.json names it by its folder or its display name."""
    summary = outputs.summary
    truth = (summary.reward_models or {}) if summary.reward_models_on == "truth" else {}
    cards = []
    for place, (folder, model) in enumerate(outputs.reward_models.items()):
        name = display.name(folder)
        numbers = truth.get(folder) or truth.get(name.lower()) or {}
        cards.append(_model_card(name, model, numbers, colour=2 + place))
    return cards


def _model_card(
    name: str, model: RewardModel, truth: Mapping[str, float | None], colour: int
) -> ModelCard:
    moments = None
    if model.mean is not None and model.std is not None:
        moments = f"{_number(model.mean)}, {_number(model.std)}"
    facts = {
        "model": model.shape,
        "judges": model.level or "whole responses",
        "labels": ", ".join(model.labels or []),
        "context": {True: "yes", False: "no", None: None}[model.with_context],
        "segmenter": " ".join(str(part) for part in (model.segmenter or {}).values()),
        "mean, std": moments,
    }
    dev = model.metrics or RewardModelMetrics()
    facts["against baselines"] = against_baselines(dev)
    numbers = []
    shown = SEQUENCE_NUMBERS if model.kind == "sequence" else SEGMENT_NUMBERS
    for text, dev_key, truth_key in shown:
        if dev_key in dev.model_fields_set or truth_key in truth:
            on_dev = _number(getattr(dev, dev_key))
            numbers.append(ModelNumber(text, on_dev, _number(truth.get(truth_key))))
    for name_of_baseline, baseline in (dev.baselines or {}).items():
        text = f"accuracy of the {BASELINES.get(name_of_baseline, name_of_baseline)}"
        numbers.append(ModelNumber(text, _number(baseline.accuracy), _number(None)))
    points = [(case.predicted, case.observed, case.count) for case in dev.calibration or []]
    plot = Markup(calibration(f"{name}: calibration", points, colour)) if points else None
    return ModelCard(name, facts, numbers, plot)


def against_baselines(metrics: RewardModelMetrics) -> str | None:
    """Whether a reward model is more accurate than its baselines; None if that is not known."""
    accuracies = {}
    for name, baseline in (metrics.baselines or {}).items():
        if baseline.accuracy is not None:
            accuracies[name] = baseline.accuracy
    if metrics.accuracy is None or not accuracies:
        return None
    best = max(accuracies, key=lambda name: accuracies[name])
    relation = "beats" if metrics.accuracy > accuracies[best] else "does NOT beat"
    return f"{relation} the best of them, the {BASELINES.get(best, best)}, on dev"


# ---- time and memory -----------------------------------------------------------------------------


@dataclass(frozen=True)
class StageRow:
    name: str
    share: str  # of the longest stage's seconds, in percent
    seconds: str
    peak_mb: str


def stage_rows(outputs: Outputs) -> list[StageRow]:
    longest = max(stage.seconds for stage in outputs.stages.values()) or 1
    rows = []
    for name, stage in outputs.stages.items():
        share = f"{100 * stage.seconds / longest:.1f}"
        rows.append(StageRow(name, share, f"{stage.seconds:.1f}", f"{stage.peak_mb:.0f}"))
    return rows

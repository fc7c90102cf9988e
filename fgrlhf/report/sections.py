"""The sections of a report: results, reward models, time and memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fgrlhf.metrics.config import METRICS
from fgrlhf.metrics.paired import paired_gain
from fgrlhf.report.charts import Chart, calibration_chart, interval_chart
from fgrlhf.report.data import Outputs
from fgrlhf.report.display import NOT_APPLICABLE, Display
from fgrlhf.report.plots import Mark
from fgrlhf.report.records import Gain, Interval, RewardModel, RewardModelMetrics, StageCost
from fgrlhf.report.text import decimal, signed

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
SHARES = "Shares, with 95% intervals"
WHOLE = "whole"  # entry of stages.json: the pipeline itself
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
    metric: str
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
        rows[name] = [
            {"id": row.id, "response": row.response, **row.numbers, **row.counts}
            for row in policy_rows
        ]
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
        key = naming.display.metric_of_gain(metric)
        title = f"{naming.pair(name, ' over ')}, {naming.display.metric(key)}"
        shown.append(Tile(key, title, _difference(gain)))
    return shown


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
    chart: Chart | None
    pairs: list[str]  # headings of the paired differences
    gains: dict[str, list[Difference | None]]  # metric -> a difference for each pair
    definitions: dict[str, str]  # display name of a metric -> what it measures


def results(
    outputs: Outputs, compared: Mapping[str, Mapping[str, Gain]], naming: Naming
) -> Results:
    display = naming.display
    policies = {name: flat_metrics(metrics) for name, metrics in outputs.policies.items()}
    keys = list(dict.fromkeys(key for metrics in policies.values() for key in metrics))
    rows = []
    for key in keys:
        values = [metrics.get(key) for metrics in policies.values()]
        digits = 1 if any(_is_large(value) for value in values) else 3
        rows.append(Row(display.metric(key), [_cell(value, digits) for value in values]))
    rows_of_policies = [
        row.numbers for of_policy in outputs.evaluations.values() for row in of_policy
    ]
    shares = [key for key in keys if _is_share(key, policies.values(), rows_of_policies)]
    marks = []
    names = []
    for key in shares:
        of_metric = _marks(key, policies, naming)
        marks.append((display.metric(key), list(of_metric.values())))
        names.append([display.name(policy) for policy in of_metric])
    metrics = dict.fromkeys(metric for values in compared.values() for metric in values)
    differences = {}
    for metric in metrics:
        given = [values.get(metric) for values in compared.values()]
        name = display.metric(display.metric_of_gain(metric))
        differences[name] = [gain and _difference(gain) for gain in given]
    return Results(
        policies=list(policies),
        rows=rows,
        chart=interval_chart(SHARES, marks, names, "share") if marks else None,
        pairs=[naming.pair(name, " − ") for name in compared],
        gains=differences,
        definitions=definitions(keys, display),
    )


def definitions(metrics: Iterable[str], display: Display) -> dict[str, str]:
    """What the metrics measure, by their display names; metrics without a definition are left out.

    Metrics with the same definition are in one entry.
    """
    names: dict[str, list[str]] = {}
    for metric in metrics:
        text = display.definition(metric)
        if text:
            names.setdefault(text, []).append(display.metric(metric))
    return {"; ".join(of_text): text for text, of_text in names.items()}


def flat_metrics(tree: Mapping[str, Interval | dict[str, Interval]]) -> dict[str, Interval]:
    """Join nested names: {"oracle": {"gold": interval}} -> {"oracle/gold": interval}."""
    flat: dict[str, Interval] = {}
    for key, value in tree.items():
        if isinstance(value, Interval):
            flat[key] = value
        else:
            flat |= {f"{key}/{name}": interval for name, interval in value.items()}
    return flat


def _is_share(
    key: str,
    policies: Iterable[Mapping[str, Interval]],
    responses: Iterable[Mapping[str, float]],
) -> bool:
    """Whether a metric is a share between 0 and 1.

    A low BLEU in points has a mean below 1, so the scale of a metric of the library is that of its
    definition. For other metrics, all values of single responses count.

    Args:
      policies: the summary of each policy.
      responses: the metrics of each response.
    """
    if key == "kl" or key.startswith("reward") or key.endswith(("/score", NOT_APPLICABLE)):
        return False
    facts = METRICS.get(key.partition("/")[0])
    if facts is not None and facts.is_share is not None:
        return facts.is_share
    values = [metrics[key] for metrics in policies if key in metrics]
    are_within = all(value.mean is not None and 0 <= value.mean <= 1 for value in values)
    return are_within and all(0 <= metrics.get(key, 0) <= 1 for metrics in responses)


def _marks(
    key: str, policies: Mapping[str, Mapping[str, Interval]], naming: Naming
) -> dict[str, Mark]:
    """The mark of each policy that has the metric."""
    marks = {}
    for name, metrics in policies.items():
        value = metrics.get(key)
        if value is None or value.mean is None:
            continue
        low = value.mean if value.low is None else value.low
        high = value.mean if value.high is None else value.high
        marks[name] = (value.mean, low, high, naming.colours[name])
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
    return "–" if value is None else decimal(value, digits)


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
    chart: Chart | None


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
    chart = calibration_chart(f"{name}: calibration", points, colour) if points else None
    return ModelCard(name, facts, numbers, chart)


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


@dataclass(frozen=True)
class Stages:
    """The stages, and the pipeline as a whole if it was measured."""

    rows: list[StageRow]
    whole: StageRow | None


def stages(outputs: Outputs) -> Stages:
    own = {name: stage for name, stage in outputs.stages.items() if name != WHOLE}
    longest = max((stage.seconds for stage in own.values()), default=0) or 1
    rows = [_stage_row(name, stage, longest) for name, stage in own.items()]
    whole = outputs.stages.get(WHOLE)
    return Stages(rows, None if whole is None else _stage_row(WHOLE, whole, longest))


def _stage_row(name: str, stage: StageCost, longest: float) -> StageRow:
    share = f"{100 * stage.seconds / longest:.1f}"
    return StageRow(name, share, f"{stage.seconds:.1f}", f"{stage.peak_mb:.0f}")

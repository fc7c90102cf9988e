"""The sections of a report: results, reward models, time and memory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fgrlhf.metrics.config import METRICS
from fgrlhf.metrics.paired import own_metrics, paired_gain
from fgrlhf.metrics.pooled import NOT_APPLICABLE
from fgrlhf.report.charts import Chart, calibration_chart, interval_chart
from fgrlhf.report.data import Outputs
from fgrlhf.report.display import Display
from fgrlhf.report.plots import Mark
from fgrlhf.report.records import (
    Gain,
    RecordedInterval,
    RewardModel,
    RewardModelMetrics,
    StageCost,
    Target,
)
from fgrlhf.report.spread import known_spreads, spread_line, spread_text
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
SHARES = "Each policy, with its 95% interval"
WHOLE = "whole"  # entry of stages.json: the pipeline itself
FIRST_MODEL_COLOUR = 2  # series colour of the first reward model
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
        """The display names of the two policies in `a_vs_b`, with the separator between them."""
        return separator.join(self.display.name(policy) for policy in name.split("_vs_"))


# ---- paired differences --------------------------------------------------------------------------


@dataclass(frozen=True)
class ShownDifference:
    """A paired difference as text.

    Args:
      bounds: of its 95% interval; empty if there is none.
      is_sure: whether the interval excludes zero.
    """

    mean: str
    bounds: str
    is_sure: bool

    @property
    def verdict(self) -> str:
        if not self.bounds:
            return "no interval"
        relation = "excludes" if self.is_sure else "includes"
        return f"{self.bounds} · interval {relation} zero"


@dataclass(frozen=True)
class Tile:
    """A headline.

    Attributes:
      spread: of the difference in other runs; empty if it is not known.
    """

    metric: str
    title: str
    difference: ShownDifference
    spread: str


def gains(outputs: Outputs, display: Display) -> dict[str, dict[str, Gain]]:
    """{`a_vs_b`: {metric: paired difference}}, from summary.json or else from the evaluations.

    In summary.json the metrics of the truth have no prefix: `gold` is `oracle/gold`.
    """
    if outputs.summary.gains is None:
        return _gains_of_evaluations(outputs, display)
    return {name: metrics for name, metrics in outputs.summary.gains.items() if metrics}


def _gains_of_evaluations(outputs: Outputs, display: Display) -> dict[str, dict[str, Gain]]:
    """Every policy compared with the first one: the headline metrics, then the task's others."""
    rows: dict[str, list[dict]] = {}
    for name, policy_rows in outputs.evaluations.items():
        rows[name] = [
            {"id": row.id, "response": row.response, **row.numbers, **row.counts}
            for row in policy_rows
        ]
    if not rows:
        return {}
    first, *others = rows
    differences: dict[str, dict[str, Gain]] = {}
    for name in others:
        metrics = {}
        for metric in dict.fromkeys([*display.headline, *own_metrics(rows[first])]):
            interval = paired_gain(rows[name], rows[first], metric)
            if interval is not None:
                bounds = interval.as_dict()
                metrics[metric] = Gain(mean=interval.mean, low=bounds["low"], high=bounds["high"])
        if metrics:
            differences[f"{name}_vs_{first}"] = metrics
    return differences


def tiles(
    outputs: Outputs, compared: Mapping[str, Mapping[str, Gain]], naming: Naming
) -> list[Tile]:
    """The headline of every comparison, which is its first metric."""
    summary = outputs.summary
    spreads = known_spreads(compared, naming.display, summary.scale, summary.data)
    tiles_shown = []
    for name, metrics in compared.items():
        first_metric, gain = next(iter(metrics.items()))
        metric = naming.display.metric_of_gain(first_metric)
        title = f"{naming.pair(name, ' over ')}, {naming.display.metric(metric)}"
        spread = spreads.get((name, metric))
        text = "" if spread is None else spread_text(spread)
        tiles_shown.append(Tile(metric, title, _difference(gain), text))
    return tiles_shown


def _difference(gain: Gain) -> ShownDifference:
    if gain.low is None or gain.high is None:
        return ShownDifference(signed(gain.mean, 3), "", is_sure=False)
    bounds = f"{signed(gain.low, 3)} to {signed(gain.high, 3)}"
    return ShownDifference(signed(gain.mean, 3), bounds, is_sure=gain.low > 0 or gain.high < 0)


# ---- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    mean: str
    bounds: str = ""


@dataclass(frozen=True)
class ResultRow:
    name: str
    cells: list[Cell]


@dataclass(frozen=True)
class Results:
    policies: list[str]
    folders: dict[str, str]  # display name of a policy -> its folder or hub name, if recorded
    rows: list[ResultRow]
    chart: Chart | None
    pairs: list[str]  # headings of the paired differences
    gains: dict[str, list[ShownDifference | None]]  # metric -> a difference for each pair
    spreads: list[str]  # known spreads of the differences in other runs
    definitions: dict[str, str]  # display name of a metric -> what it measures
    targets: list[Target]  # what the pipeline had to reach; the missed ones first


def results(
    outputs: Outputs, compared: Mapping[str, Mapping[str, Gain]], naming: Naming
) -> Results:
    """The metrics of every policy as a table and a chart, and the paired differences.

    Args:
      compared: what `gains` returns.
    """
    policies = {name: flat_metrics(metrics) for name, metrics in outputs.policies.items()}
    keys = list(dict.fromkeys(key for metrics in policies.values() for key in metrics))
    return Results(
        policies=list(policies),
        folders=_folders(outputs.evaluated, naming.display),
        rows=[_result_row(key, policies, naming.display) for key in keys],
        chart=_shares_chart(keys, policies, outputs, naming),
        pairs=[naming.pair(name, " − ") for name in compared],
        gains=_differences_by_metric(compared, naming.display),
        spreads=_spread_lines(outputs, compared, naming),
        definitions=definitions(keys, naming.display),
        targets=sorted(outputs.summary.targets, key=lambda target: target.reached),
    )


def _spread_lines(
    outputs: Outputs, compared: Mapping[str, Mapping[str, Gain]], naming: Naming
) -> list[str]:
    """`Results.spreads`."""
    summary = outputs.summary
    spreads = known_spreads(compared, naming.display, summary.scale, summary.data)
    lines = []
    for (pair, _), spread in spreads.items():
        lines.append(spread_line(naming.pair(pair, " − "), spread, naming.display))
    return lines


def _folders(evaluated: Mapping[str, str], display: Display) -> dict[str, str]:
    """`Results.folders`.

    The names are those of the evaluations. A task's summary may have other ones, but the same
    display names.
    """
    return {display.name(name): folder for name, folder in evaluated.items() if folder}


def _result_row(
    key: str, policies: Mapping[str, Mapping[str, RecordedInterval]], display: Display
) -> ResultRow:
    """A metric of all policies. The cells of a row have the same number of digits."""
    values = [metrics.get(key) for metrics in policies.values()]
    digits = 1 if any(_is_large(value) for value in values) else 3
    return ResultRow(display.metric(key), [_cell(value, digits) for value in values])


def _shares_chart(
    keys: Sequence[str],
    policies: Mapping[str, Mapping[str, RecordedInterval]],
    outputs: Outputs,
    naming: Naming,
) -> Chart | None:
    """The metrics that are shares, which have a common axis; None if there are none."""
    responses = []
    for rows in outputs.evaluations.values():
        responses += [row.numbers for row in rows]
    chart_rows = []
    policy_names = []
    for key in keys:
        if _is_share(key, policies.values(), responses):
            marks = _marks(key, policies, naming)
            chart_rows.append((naming.display.metric(key), list(marks.values())))
            policy_names.append([naming.display.name(policy) for policy in marks])
    if not chart_rows:
        return None
    return interval_chart(SHARES, chart_rows, policy_names, "share")


def _differences_by_metric(
    compared: Mapping[str, Mapping[str, Gain]], display: Display
) -> dict[str, list[ShownDifference | None]]:
    """For each metric, by its display name, the difference of each pair of policies."""
    metrics = dict.fromkeys(metric for pair in compared.values() for metric in pair)
    differences = {}
    for metric in metrics:
        of_pairs = []
        for gains_of_pair in compared.values():
            gain = gains_of_pair.get(metric)
            of_pairs.append(None if gain is None else _difference(gain))
        judged = display.metric_of_gain(metric)  # as evaluation rows name it
        differences[display.metric(judged)] = of_pairs
    return differences


def definitions(metrics: Iterable[str], display: Display) -> dict[str, str]:
    """What the metrics measure, by their display names; metrics without a definition are left out.

    Metrics with the same definition are in one entry.
    """
    names_by_text: dict[str, list[str]] = {}
    for metric in metrics:
        text = display.definition(metric)
        if text:
            names_by_text.setdefault(text, []).append(display.metric(metric))
    return {"; ".join(names): text for text, names in names_by_text.items()}


def flat_metrics(
    tree: Mapping[str, RecordedInterval | dict[str, RecordedInterval]],
) -> dict[str, RecordedInterval]:
    """Join nested names: {"oracle": {"gold": interval}} -> {"oracle/gold": interval}."""
    flat: dict[str, RecordedInterval] = {}
    for key, value in tree.items():
        if isinstance(value, RecordedInterval):
            flat[key] = value
        else:
            flat |= {f"{key}/{name}": interval for name, interval in value.items()}
    return flat


def _is_share(
    key: str,
    policies: Iterable[Mapping[str, RecordedInterval]],
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
    key: str, policies: Mapping[str, Mapping[str, RecordedInterval]], naming: Naming
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


def _is_large(value: RecordedInterval | None) -> bool:
    return value is not None and value.mean is not None and abs(value.mean) >= 10


def _cell(value: RecordedInterval | None, digits: int) -> Cell:
    return _with_bounds(None if value is None else value.mean, value, digits)


def _with_bounds(value: float | None, interval: RecordedInterval | None, digits: int = 3) -> Cell:
    """A value with the bounds of its interval, if it has one."""
    if interval is None or interval.low is None or interval.high is None:
        return Cell(_number(value, digits))
    bounds = f"{_number(interval.low, digits)} to {_number(interval.high, digits)}"
    return Cell(_number(value, digits), bounds)


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else decimal(value, digits)


# ---- reward models -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelNumber:
    name: str
    dev: Cell
    truth: str


@dataclass(frozen=True)
class ModelCard:
    name: str
    facts: dict[str, str | None]
    numbers: list[ModelNumber]
    chart: Chart | None


def model_cards(outputs: Outputs, display: Display) -> list[ModelCard]:
    """A card per reward model. summary.json names it by its folder or its display name."""
    against_truth = {}
    if outputs.summary.reward_models_on == "truth":
        against_truth = outputs.summary.reward_models or {}
    cards = []
    for colour, (folder, model) in enumerate(outputs.reward_models.items(), FIRST_MODEL_COLOUR):
        name = display.name(folder)
        truth = against_truth.get(folder) or against_truth.get(name.lower()) or {}
        cards.append(_model_card(name, model, truth, colour))
    return cards


def _model_card(
    name: str, model: RewardModel, truth: Mapping[str, float | None], colour: int
) -> ModelCard:
    on_dev = model.metrics or RewardModelMetrics()
    bins = [(case.predicted, case.observed, case.count) for case in on_dev.calibration or []]
    return ModelCard(
        name=name,
        facts=_model_facts(model, on_dev),
        numbers=_model_numbers(model, on_dev, truth),
        chart=calibration_chart(f"{name}: calibration", bins, colour) if bins else None,
    )


def _model_facts(model: RewardModel, on_dev: RewardModelMetrics) -> dict[str, str | None]:
    """What the model is and judges. The page leaves out facts that are None or empty."""
    context = None
    if model.with_context is not None:
        context = "yes" if model.with_context else "no"
    mean_and_std = None
    if model.mean is not None and model.std is not None:
        mean_and_std = f"{_number(model.mean)}, {_number(model.std)}"
    return {
        "model": model.shape,
        "judges": model.level or "whole responses",
        "labels": ", ".join(model.labels or []),
        "context": context,
        "segmenter": " ".join(str(part) for part in (model.segmenter or {}).values()),
        "mean, std": mean_and_std,
        "against baselines": against_baselines(on_dev),
        "not known": "; ".join(f"{name}: {text}" for name, text in _reasons(on_dev).items()),
        "to consider": ". ".join(on_dev.notes),
    }


def _reasons(on_dev: RewardModelMetrics) -> dict[str, str]:
    """Why figures that the page shows are undefined or have no interval, by their names."""
    shown = (*SEGMENT_NUMBERS, *SEQUENCE_NUMBERS)
    names = {dev_key: name for name, dev_key, _ in shown[::-1]}
    return {names[key]: text for key, text in on_dev.reasons.items() if key in names}


def _model_numbers(
    model: RewardModel, on_dev: RewardModelMetrics, truth: Mapping[str, float | None]
) -> list[ModelNumber]:
    """The measures on dev or against the truth; then the baselines, and groups of dev cases."""
    measures = SEQUENCE_NUMBERS if model.kind == "sequence" else SEGMENT_NUMBERS
    numbers = []
    for name, dev_key, truth_key in measures:
        if dev_key in on_dev.model_fields_set or truth_key in truth:
            dev = _with_bounds(getattr(on_dev, dev_key), on_dev.intervals.get(dev_key))
            numbers.append(ModelNumber(name, dev, _number(truth.get(truth_key))))
    for name, baseline in (on_dev.baselines or {}).items():
        text = f"accuracy of the {BASELINES.get(name, name)}"
        numbers.append(ModelNumber(text, Cell(_number(baseline.accuracy)), _number(None)))
    for key in type(model.errors).model_fields:
        for group in getattr(model.errors, key):
            text = f"accuracy {key.replace('_', ' ')}, {group.name} (n={group.cases})"
            accuracy = _with_bounds(group.accuracy.mean, group.accuracy)
            numbers.append(ModelNumber(text, accuracy, _number(None)))
    return numbers


def against_baselines(metrics: RewardModelMetrics) -> str | None:
    """Whether a reward model is more accurate than its baselines; None if that is not known."""
    accuracies = {}
    for name, baseline in (metrics.baselines or {}).items():
        if baseline.accuracy is not None:
            accuracies[name] = baseline.accuracy
    if metrics.accuracy is None or not accuracies:
        return None
    best = max(accuracies, key=lambda name: accuracies[name])
    gain = (metrics.baselines or {})[best].difference
    by = _with_bounds(metrics.accuracy - accuracies[best], gain)
    shown = f", by {by.mean} ({by.bounds})" if by.bounds else f", by {by.mean}"
    if metrics.accuracy == accuracies[best] == 1:
        relation, shown = "equals", ""  # nothing can beat it
    elif gain is not None and gain.low is not None and gain.low > 0:
        relation = "beats"
    elif gain is not None and gain.high is not None and gain.high < 0:
        relation = "is LESS accurate than"
    else:  # it covers zero, or there is none
        relation = "is not distinguishable from"
    return f"{relation} the best of them, the {BASELINES.get(best, best)}, on dev{shown}"


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
    """Seconds and memory of every stage, each compared with the longest one."""
    costs = dict(outputs.stages)
    whole = costs.pop(WHOLE, None)
    longest = max((cost.seconds for cost in costs.values()), default=0)
    if longest == 0:
        longest = 1  # all bars are empty
    rows = [_stage_row(name, cost, longest) for name, cost in costs.items()]
    return Stages(rows, None if whole is None else _stage_row(WHOLE, whole, longest))


def _stage_row(name: str, cost: StageCost, longest: float) -> StageRow:
    share = f"{100 * cost.seconds / longest:.1f}"
    return StageRow(name, share, f"{cost.seconds:.1f}", f"{cost.peak_mb:.0f}")

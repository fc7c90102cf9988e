"""Curves of a report: RL runs, gold score against reward, and supervised training."""

from collections.abc import Callable, Sequence
from math import sqrt

from fgrlhf.metrics.pooled import NOT_APPLICABLE
from fgrlhf.report.charts import MOST_POINTS, Chart, Group, Legend, line_chart
from fgrlhf.report.data import Outputs, Run, TrainingLog
from fgrlhf.report.display import ASPECT_METRICS, TRUTH, Display
from fgrlhf.report.plots import Point, Series
from fgrlhf.report.sections import Naming

POLICY_CURVES = {
    "kl": "KL from the reference, per response",
    "length": "Length in tokens",
    "value/error": "Value error |V − return|",
    "value/explained_variance": "Explained variance of the critic",
    "entropy": "Entropy per token",
    "clipfrac/policy": "Clipped share of tokens",
    "dpo/margin": "Margin of the implied rewards, better − worse",
    "dpo/accuracy": "Accuracy on pairs",
    "dpo/good": "Implied reward of good answers",
    "dpo/bad": "Implied reward of bad answers",
    "dpo/kl": "KTO's KL from the reference",
}
# keys with the name of a reward after the slash -> titles
REWARD_CURVES = {
    "value/explained_variance/": "Explained variance of the critic: {}",
    "weight/": "Weight of {}",
    "constraint/": "{}: the value that its bound is about",
}
GUARD = (
    "How far a monitor of train.guard is beyond what is allowed, in halves of its 95% interval on"
    " dev: above 1.5 is an alarm, above 0.5 a policy is not saved as the best."
)
EVERY_STEP = "Faint: every training step; bold: moving average."
INTERVALS = "Vertical bars: 95% intervals over the dev prompts, where the run logged them."
OWN_UNITS = (
    "Every reward has its own unit and its own weight, so its level cannot be compared with that of"
    " another reward. Compare the shapes."
)
DRIFT = (
    "Each marker is an evaluation on dev; a line joins those of a run in the order of training. To"
    " the right, the policy is further away from the reference (an estimated KL below 0 is drawn at"
    " 0). If a reward rises and the true quality falls, the policy exploits the reward model"
    " (over-optimisation)."
)
# metrics of supervised stages on dev, all between 0 and 1 -> display names
DEV_SHARES = {"eval/accuracy": "accuracy", "eval/auc": "AUC", "eval/error_f1": "F1, error"}
DEV_SCORES = {"eval/rougeLsum": "RougeLsum"}
TRAIN_COLOUR, DEV_COLOUR = 0, 2


# ---- runs ----------------------------------------------------------------------------------------


def learning_curves(outputs: Outputs, naming: Naming) -> list[Group]:
    """Metrics of the RL runs over episodes: in training, then on dev prompts."""
    runs = outputs.runs
    groups = [_training_rewards(run, naming) for run in runs]
    groups.append(_policy_curves(runs, naming))
    groups.append(_dev_curves(runs, naming))
    groups.append(_dev_rewards(runs, naming))
    groups.append(_guard(runs, naming))
    return [group for group in groups if group.charts]


def _training_rewards(run: Run, naming: Naming) -> Group:
    """A chart for the reward of each aspect of a run."""
    run_name = naming.display.name(run.name)
    charts = []
    for key in _reward_keys(run):
        reward_name = naming.display.name(key.removeprefix("reward/"))
        charts.append(_chart(f"{run_name}: {reward_name}", key, [run], naming))
    note = f"{EVERY_STEP} {OWN_UNITS}"
    return _group(f"Rewards in training, {run_name}", note, [run], charts, naming)


def _policy_curves(runs: Sequence[Run], naming: Naming) -> Group:
    """The metrics of `POLICY_CURVES` and `REWARD_CURVES` that a run has logged."""
    logged = _logged(runs)
    charts = []
    for key, title in POLICY_CURVES.items():
        if key in logged:
            charts.append(_chart(title, key, runs, naming))
    for prefix, title in REWARD_CURVES.items():
        for key in logged:
            if key.startswith(prefix):
                reward = naming.display.name(key.removeprefix(prefix))
                charts.append(_chart(title.format(reward), key, runs, naming))
    return _group("Policy and critic", EVERY_STEP, runs, charts, naming)


def _dev_curves(runs: Sequence[Run], naming: Naming) -> Group:
    """A chart for each dev metric, with all runs."""
    charts = []
    for metric in _dev_metrics(_logged(runs), naming.display):
        title = naming.display.metric(metric)
        charts.append(_chart(title, f"eval/{metric}", runs, naming, marks=True))
    return _group("On dev prompts", INTERVALS, runs, charts, naming)


def _dev_rewards(runs: Sequence[Run], naming: Naming) -> Group:
    """A chart for each run: the totals of different runs cannot be compared."""
    charts = []
    for run in runs:
        if "eval/reward" in run.keys:
            title = f"{naming.display.name(run.name)}: reward"
            charts.append(_chart(title, "eval/reward", [run], naming, marks=True))
    note = f"{INTERVALS} Each run has the reward that it was trained on. {OWN_UNITS}"
    return _group("Total reward on dev prompts", note, runs, charts, naming)


def _guard(runs: Sequence[Run], naming: Naming) -> Group:
    """A chart for each monitor of a guard, and the alarms in words."""
    charts = []
    for key in _logged(runs):
        if key.startswith("guard/"):
            title = naming.display.metric(key.removeprefix("guard/"))
            charts.append(_chart(title, key, runs, naming, marks=True))
    notes = [GUARD, *(f"{naming.display.name(run.name)}: {_alarms(run)}." for run in runs)]
    return _group("Guard", " ".join(notes), runs, charts, naming)


def _alarms(run: Run) -> str:
    """The alarms of a run, and where each led."""
    texts = []
    before = 0
    for row in run.metrics:
        alarms = row.get("guard_alarms", before)
        if alarms > before:
            restored = row.get("guard_restored")
            back = "" if restored is None else f", back to the policy of step {restored}"
            texts.append(f"alarm at step {row['step']}{back}")
        before = alarms
    return "; ".join(texts) or "no alarm"


def _chart(title: str, key: str, runs: Sequence[Run], naming: Naming, marks: bool = False) -> Chart:
    """A metric over the episodes of the runs that have it."""
    return line_chart(title, _lines(key, runs, naming, marks, Run.points), "episodes")


def _lines(
    key: str,
    runs: Sequence[Run],
    naming: Naming,
    marks: bool,
    points: Callable[[Run, str], list[Point]],
) -> list[Series]:
    """The line of each run that has logged the key.

    Args:
      marks: whether every point has a marker (see `Series`).
      points: the points of a run's line.
    """
    lines = []
    for run in runs:
        if key in run.keys:
            name = naming.display.name(run.name)
            lines.append(Series(name, points(run, key), naming.colours[run.name], marks))
    return lines


def _group(
    title: str, note: str, runs: Sequence[Run], charts: list[Chart], naming: Naming
) -> Group:
    legend = [Legend(naming.colours[run.name], naming.display.name(run.name)) for run in runs]
    return Group(title, note, legend, charts)


def _logged(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(key for run in runs for key in run.keys))


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
        if metric in truth or metric in judged:
            continue
        is_reward = metric.split("/")[0] == "reward"
        if not is_reward and metric != "kl" and not metric.endswith(NOT_APPLICABLE):
            others.append(metric)
    headline = [metric for metric in display.headline if metric in others]
    return list(dict.fromkeys([*(truth or judged), *headline, *others]))


# ---- gold score against reward -------------------------------------------------------------------


def drift(outputs: Outputs, naming: Naming) -> list[Group]:
    """Scores over the square root of the KL, a panel per score (Gao et al., arXiv 2210.10760).

    The total reward of a run has a panel of its own, as its parts differ from run to run.
    """
    display = naming.display
    runs = [run for run in outputs.runs if any(_drift_points(run, "eval/kl"))]
    logged = _logged(runs)
    charts = []
    for metric in _judgements(logged, display):
        charts.append(_drift_chart(display.metric(metric), f"eval/{metric}", runs, naming))
    for key in logged:
        if key.startswith("eval/reward/") and not key.endswith(NOT_APPLICABLE):
            title = display.metric(key.removeprefix("eval/"))
            charts.append(_drift_chart(title, key, runs, naming))
    for run in runs:
        if "eval/reward" in run.keys:
            title = f"{display.name(run.name)}: total reward"
            charts.append(_drift_chart(title, "eval/reward", [run], naming))
    if not charts:
        return []
    note = f"{DRIFT} {INTERVALS} {OWN_UNITS}"
    return [_group("", note, runs, charts, naming)]


def _judgements(logged: Sequence[str], display: Display) -> list[str]:
    """The metrics of the truth on dev, or else the first headline metric that is no reward."""
    metrics = [key.removeprefix("eval/") for key in logged if key.startswith("eval/")]
    truth = [metric for metric in metrics if metric.startswith(TRUTH)]
    not_judgements = ("reward", "kl", "length")
    others = []
    for name in display.headline:
        if name in metrics and name.split("/")[0] not in not_judgements:
            others.append(name)
    return truth or others[:1]


def _drift_chart(title: str, key: str, runs: Sequence[Run], naming: Naming) -> Chart:
    lines = _lines(key, runs, naming, True, _drift_points)
    xlabel = f"√ {naming.display.metric('kl')}"
    return line_chart(f"{title}, over √KL", lines, xlabel, whole_x=False)


def _drift_points(run: Run, key: str) -> list[Point]:
    """The points of a dev metric, with x = sqrt(max(KL, 0)); steps without a KL are left out."""
    kl_of_step = {row["step"]: row.get("eval/kl") for row in run.metrics if "eval/kl" in row}
    points = []
    for step, point in run.points_by_step(key).items():
        kl = kl_of_step.get(step)
        if kl is not None:
            points.append(Point(sqrt(max(kl, 0.0)), point.y, point.low, point.high))
    return points


# ---- supervised training -------------------------------------------------------------------------


def supervised_curves(outputs: Outputs, display: Display) -> list[Group]:
    """Loss and dev metrics of SFT and of the reward models, a group per stage."""
    return [_supervised_group(log, display.name(log.name)) for log in outputs.training]


def _supervised_group(log: TrainingLog, name: str) -> Group:
    """Up to three charts of a stage: its loss, its shares on dev, its RougeLsum on dev."""
    training_points = log.points("loss")
    is_short = len(training_points) <= MOST_POINTS
    losses = [
        Series("training", training_points, TRAIN_COLOUR, marks=is_short),
        Series("dev", log.points("eval/loss"), DEV_COLOUR, marks=True),
    ]
    losses = [line for line in losses if line.points]
    shares = []
    for colour, (key, title) in enumerate(DEV_SHARES.items(), DEV_COLOUR + 1):
        if log.points(key):
            shares.append(Series(f"{title} on dev", log.points(key), colour, marks=True))
    charts = [line_chart(f"{name}: loss", losses, "steps")]
    if shares:
        charts.append(line_chart(f"{name}: dev", shares, "steps"))
    for key, title in DEV_SCORES.items():
        if log.points(key):
            line = Series("dev", log.points(key), DEV_COLOUR, marks=True)
            charts.append(line_chart(f"{name}: {title} on dev", [line], "steps"))
    legend = [Legend(line.colour, line.name) for line in [*losses, *shares]]
    return Group(_stage_title(log, name), "", legend, charts)


def _stage_title(log: TrainingLog, name: str) -> str:
    return f"Reward model: {name}" if log.is_reward_model else name

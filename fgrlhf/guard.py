"""The guard of an RL run: alarms when the policy exploits its reward (docs/rewards.md, A guard).

It reads what every evaluation on dev computes anyway, and judges a policy by two pure rules.

A metric that must not fall, where q is the metric, R the reward, both means over the dev prompts,
and p the evaluation so far with the best q:

    alarm  if  q_p - q > FALL h  and  R > R_p

h is the half of the 95% interval of the paired difference of q over prompts that lies towards 0. A
metric that is better when lower has the opposite sign. A bound b that q may not cross:

    alarm  if  b - q > FALL h        for q >= b; q - b for q <= b

with h from the 95% interval of q over the dev prompts, or, for a number of training steps, over the
last STEPS of them.

FALL h is about three standard errors. The largest difference between any two of 20 evaluations of
equally good policies exceeds 3.5 standard errors of a difference with probability 5% (the
studentized range), and half of them are rises.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tqdm import tqdm

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.metrics.clusters import CLUSTER
from fgrlhf.metrics.config import GuardConfig, MetricConfig, Monitor, is_higher_better
from fgrlhf.metrics.paired import paired_gain
from fgrlhf.runs import checkpoint
from fgrlhf.stats import FEWEST_UNITS, Interval, mean_interval

FALL = 1.5  # half intervals: an alarm
DOUBT = 0.5  # half intervals: about one standard error; such a policy is not saved as the best
STEPS = FEWEST_UNITS  # the training steps whose mean is held against a bound
MOST = 100.0  # of the numbers that are logged: where all prompts agree, the interval is 0
OF_A_ROW = ("id", "sample", CLUSTER, "response")


def fall(interval: Interval, threshold: float = 0.0, is_lower: bool = True) -> float:
    """How many half intervals a figure is beyond a threshold, from 0 to MOST.

    Args:
      interval: the figure. Without bounds it is MOST where all prompts agree, so that nothing is
        noise, and 0 where there are too few.
      is_lower: whether figures below the threshold are beyond it, rather than those above.
    """
    beyond = threshold - interval.mean if is_lower else interval.mean - threshold
    if not beyond > 0:
        return 0.0
    towards = interval.high - interval.mean if is_lower else interval.mean - interval.low
    if interval.has_bounds and towards > 0:
        return min(beyond / towards, MOST)
    return MOST if interval.units_agree else 0.0


@dataclass(frozen=True)
class Peak:
    """The best evaluation of a metric so far.

    Attributes:
      reward: of dev.
      rows: of the evaluation, with the columns of the metric.
    """

    step: int
    value: float
    reward: float
    rows: Sequence[Mapping[str, Any]]


def columns_of(rows: Sequence[Mapping[str, Any]], metric: str) -> list[dict[str, Any]]:
    """The rows with the columns that say how a metric differs between two evaluations."""
    first = metric.partition("/")[0]
    return [
        {key: row[key] for key in row if key in OF_A_ROW or key.partition("/")[0] == first}
        for row in rows
    ]


class Guard:
    """Judges the evaluations of a run, and says how it goes on.

    Attributes:
      lr_factor: of both learning rates.
      alarms: so far.
      gave_up: whether the run ends, after more alarms than `tries`.
      alarm: why the last evaluation was an alarm; "" if it was none.
      doubt: why its policy may not be saved as the best; "" if it may.
    """

    def __init__(self, settings: GuardConfig, metrics: Sequence[MetricConfig]):
        self.settings = settings
        self.metrics = metrics
        self.lr_factor = 1.0
        self.alarms = 0
        self.gave_up = False
        self.alarm = ""
        self.doubt = ""
        self.peaks: dict[str, Peak] = {}
        self._steps: dict[str, list[float]] = {}  # numbers of the last steps
        self._dev_names: list[str] | None = None

    def progress(self) -> dict[str, Any]:
        """Its state as a JSON-compatible dict; `restore` is the inverse."""
        return {
            "lr_factor": self.lr_factor,
            "alarms": self.alarms,
            "gave_up": self.gave_up,
            "peaks": {name: asdict(peak) for name, peak in self.peaks.items()},
            "steps": self._steps,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.lr_factor = state["lr_factor"]
        self.alarms = state["alarms"]
        self.gave_up = state["gave_up"]
        self.peaks = {name: Peak(**peak) for name, peak in state["peaks"].items()}
        self._steps = dict(state["steps"])

    # ---- what it reads ---------------------------------------------------------------------------

    def see_step(self, metrics: Mapping[str, float]) -> None:
        """Remember the numbers of a training step that have bounds.

        Raises:
          UserError: a monitored metric is neither one of dev nor one of a step.
        """
        monitors = self.settings.monitors
        for name in dict.fromkeys(monitor.metric for monitor in monitors):
            if self._dev_names is not None and name not in (*self._dev_names, *metrics):
                raise self._unknown(name, [*self._dev_names, *metrics])
        bounded = [monitor.metric for monitor in monitors if monitor.bound is not None]
        for name in dict.fromkeys(bounded):
            value = metrics.get(name, math.nan)
            if math.isfinite(value):
                self._steps[name] = [*self._steps.get(name, []), value][-STEPS:]

    @staticmethod
    def _unknown(name: str, known: Sequence[str]) -> UserError:
        return UserError(
            f"train.guard.on has `{shorten(name, 60)}`, which is not computed. Use"
            f" {', '.join(sorted(set(known)))}"
        )

    def judge(
        self, step: int, results: Mapping[str, float | Interval], best: Mapping[str, Any] | None
    ) -> dict[str, float]:
        """Judge an evaluation on dev.

        Args:
          results: its metrics; `DevResults`, if it has rows.
          best: the step of the best policy so far.

        Returns:
          Columns for the log: `guard/<metric>`, half intervals beyond what is allowed, the most of
          its monitors (an alarm is more than FALL); `guard_alarms`, with this one; and, if a policy
          is restored, `guard_restored`, its step.

        Raises:
          UserError: a metric is not computed, dev has too few prompts for intervals, or the first
            policy already breaks a bound.
        """
        rows = getattr(results, "rows", ())
        if step == 0:
            _check_units(rows)
        self._dev_names = list(results)
        columns = {}
        reasons = {}
        for monitor in self.settings.monitors:
            judged = self._judged(monitor, step, results, rows)
            column = f"guard/{monitor.metric}"
            if judged is not None and judged[0] >= columns.get(column, 0.0):
                columns[column], reasons[monitor.metric] = judged
        # the monitor that is furthest beyond what is allowed gives the reason
        most = max(columns, key=columns.__getitem__, default=None)
        self.alarm = self.doubt = ""
        if most is not None and columns[most] > DOUBT:
            self.doubt = reasons[most.removeprefix("guard/")]
            if columns[most] > FALL:
                self.alarm = self.doubt
        columns["guard_alarms"] = self.alarms + bool(self.alarm)
        if self.alarm and best is not None and self._restores:
            columns["guard_restored"] = best["step"]
        return columns

    def _judged(
        self,
        monitor: Monitor,
        step: int,
        results: Mapping[str, float | Interval],
        rows: Sequence[Mapping[str, Any]],
    ) -> tuple[float, str] | None:
        """How far a monitor is beyond what is allowed, and in words; None if it has no figure."""
        name = monitor.metric
        if monitor.bound is None:
            if name not in results:
                raise self._unknown(name, list(results))
            return self._fallen(name, step, results, rows)
        if name in results:
            figure = _interval(results[name])
        elif len(self._steps.get(name, [])) == STEPS:
            figure = mean_interval(self._steps[name], may_be_share=False)
        else:
            return None
        beyond = fall(figure, monitor.bound, monitor.is_lower)
        if step == 0 and beyond:
            raise UserError(
                f"train.guard.on has `{monitor}`, but {name} of the initial policy on dev is"
                f" {figure.mean:.4g}: give a bound that it keeps"
            )
        return beyond, f"{name} is {figure.mean:.4g}, beyond `{monitor}`"

    def _fallen(
        self,
        name: str,
        step: int,
        results: Mapping[str, float | Interval],
        rows: Sequence[Mapping[str, Any]],
    ) -> tuple[float, str]:
        value, reward = _interval(results[name]).mean, _interval(results["reward"]).mean
        is_higher_better_ = is_higher_better(name, self.metrics) is not False
        sign = 1 if is_higher_better_ else -1
        peak = self.peaks.get(name)
        if peak is None or sign * value > sign * peak.value:
            self.peaks[name] = Peak(step, value, reward, columns_of(rows, name))
            return 0.0, ""
        gain = paired_gain(rows, peak.rows, name)
        if gain is None or not reward > peak.reward:
            return 0.0, ""
        verb = "fell" if is_higher_better_ else "rose"
        return fall(gain, is_lower=is_higher_better_), (
            f"{name} {verb} from {peak.value:.4g} (step {peak.step}) to {value:.4g}, while the"
            f" reward rose from {peak.reward:.4g} to {reward:.4g}"
        )

    # ---- what it does ----------------------------------------------------------------------------

    @property
    def _restores(self) -> bool:
        return self.settings.restore == "best"

    def act(self, trainer: Any, bar: tqdm) -> None:
        """Go on after an alarm: restore the best policy and change the settings, or give up.

        Raises:
          UserError: the best policy cannot be restored.
        """
        self.alarms += 1
        self.gave_up = self.alarms > self.settings.tries
        is_last = trainer.step == trainer.total_steps
        done = []
        if self._restores:
            if trainer.best is None:
                raise UserError(
                    f"train.guard: {self.alarm}, and no evaluated policy is sound, so there is none"
                    " to go on from. Weaken train.guard.on, or start a new run with other settings"
                )
            trainer.restore_adapted(checkpoint.load_best(trainer))
            self._steps = {}  # of the policy that is given up
            trainer.high_kl_count = 0
            done.append(f"back to the policy of step {trainer.best['step']}")
        if not self.gave_up and not is_last:
            if self._restores:
                trainer.sample_again()
            self.lr_factor *= self.settings.lr
            trainer.kl.coef *= self.settings.kl_coef
            done.append(f"learning rates x {self.lr_factor:g}, kl_coef {trainer.kl.coef:.4g}")
        if trainer.accelerator.is_main_process:
            bar.write(f"guard, alarm {self.alarms} at step {trainer.step}: {self.alarm}")
            if done:
                bar.write(f"guard: {'; '.join(done)}")
            if self.gave_up:
                bar.write(
                    f"guard: the run stops at step {trainer.step}, after more than"
                    f" train.guard.tries={self.settings.tries} alarms. Look at the samples, and"
                    " change the reward, or raise algorithm.kl.coef or lower train.lr"
                )


def _interval(result: float | Interval) -> Interval:
    return result if isinstance(result, Interval) else Interval(result, math.nan, math.nan)


def _check_units(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise `UserError` if dev has too few prompts for intervals."""
    units = {row.get(CLUSTER, row["id"]) for row in rows}
    if len(units) < FEWEST_UNITS:
        raise UserError(
            f"train.guard needs at least {FEWEST_UNITS} dev prompts (or clusters of them) to tell a"
            f" fall from noise; there are {len(units)}: give more in data.dev_file, or raise"
            " evaluation.examples"
        )

"""The guard of an RL run: its rules, on numbers and on synthetic series, and what it does."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from rl_helpers import CountWord, config, metrics, trainer
from tqdm import tqdm

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import validate
from fgrlhf.evaluation import DevResults
from fgrlhf.guard import FALL, MOST, Guard, fall
from fgrlhf.metrics.config import GuardConfig, MetricConfig, Monitor
from fgrlhf.metrics.summary import summarize
from fgrlhf.paired_stats import paired_interval
from fgrlhf.reward import CombinedReward, RunningSpread
from fgrlhf.runs import checkpoint
from fgrlhf.stats import Interval, mean_interval


def results_of(**columns) -> DevResults:
    """An evaluation with a row for each prompt."""
    n = len(next(iter(columns.values())))
    rows = [
        {"id": str(i), **{name: float(values[i]) for name, values in columns.items()}}
        for i in range(n)
    ]
    return DevResults(summarize(rows), rows)


def guard_on(*monitors, metrics=(), **settings) -> Guard:
    named = [validate(MetricConfig, metric, "test") for metric in metrics]
    return Guard(GuardConfig(on=list(monitors), **settings), named)


# ---- the rules, by hand --------------------------------------------------------------------------


def test_how_far_a_figure_is_beyond_a_threshold_by_hand():
    figure = Interval(2.0, 1.5, 2.25)
    assert fall(figure, 3.0) == 4  # 1 below, of .25 towards the threshold
    assert fall(figure, 1.0, is_lower=False) == 2  # 1 above, of .5
    assert fall(figure, 2.0) == fall(figure, 1.0) == fall(figure, 3.0, is_lower=False) == 0
    assert fall(Interval(-1e9, -1e9 - 1, -1e9 + 1)) == MOST
    agreeing = mean_interval([1.5] * 12)
    assert fall(agreeing, 2.0) == MOST and fall(agreeing, 1.0) == 0
    assert fall(mean_interval([1.0, 1.25]), 2.0) == 0  # two prompts say nothing of the noise


@pytest.mark.parametrize("better", ["high", "low"])
def test_a_metric_that_gets_worse_while_the_reward_rises(better):
    sign = 1 if better == "high" else -1
    scorer = {"kind": "python", "of": "tests.Judge"}
    metric = {"name": "score", "key": "judge", "better": better, "scorer": scorer}
    r = np.random.default_rng(0)
    best, noise = r.normal(0, 1, 40), r.normal(0, 0.5, 40)
    h = paired_interval(best + noise, best)
    for times, reward, is_alarm in ((1.6, 1.0, True), (1.4, 1.0, False), (1.6, -1.0, False)):
        guard = guard_on("judge", metrics=[metric])
        columns = guard.judge(0, results_of(judge=sign * best, reward=np.zeros(40)), None)
        assert columns == {"guard/judge": 0.0, "guard_alarms": 0}
        worse = best + noise - h.mean - times * (h.high - h.mean)
        now = results_of(judge=sign * worse, reward=np.full(40, reward))
        columns = guard.judge(5, now, {"step": 0})
        assert columns["guard/judge"] == pytest.approx(times if reward > 0 else 0)
        assert columns["guard_alarms"] == is_alarm == bool(guard.alarm)
        assert columns.get("guard_restored") == (0 if is_alarm else None)
        assert bool(guard.doubt) == (reward > 0)
        verb = "fell" if better == "high" else "rose"
        assert guard.alarm.startswith(f"judge {verb} from ") == is_alarm
        assert guard.peaks["judge"].step == 0
        better_now = results_of(judge=sign * (best + 1), reward=np.zeros(40))
        assert guard.judge(10, better_now, None)["guard/judge"] == 0 and not guard.doubt
        assert guard.peaks["judge"].step == 10


def test_a_ratio_is_compared_by_its_segments():
    def evaluation(error_free, reward):
        columns = {"facts/error_free": error_free, "facts/segments": [4.0] * 20}
        return results_of(**columns, reward=[reward] * 20)

    guard = guard_on("facts/ratio")
    guard.judge(0, evaluation([3.0, 4.0] * 10, 0.0), None)
    columns = guard.judge(1, evaluation([1.0, 2.0, 1.0, 3.0] * 5, 1.0), None)
    assert columns["guard/facts/ratio"] > FALL and "0.875 (step 0) to 0.4375" in guard.alarm


def test_bounds_of_dev_and_of_steps():
    lengths = np.array([39.0, 41, 40, 42, 38] * 4)
    guard = guard_on("length >= 30", "entropy >= 0.5")
    guard.judge(0, results_of(length=lengths, reward=np.zeros(20)), None)
    shorter = results_of(length=lengths - 12, reward=np.zeros(20))
    h = mean_interval(lengths)
    expected = 2 / (h.high - h.mean)
    for _ in range(9):
        guard.see_step({"entropy": 0.9, "kl": 1.0})
    columns = guard.judge(9, shorter, None)
    assert columns["guard/length"] == pytest.approx(expected) and expected > FALL
    assert guard.alarm == "length is 28, beyond `length >= 30`"
    assert "guard/entropy" not in columns  # nine of ten steps so far
    for value in (0.0, float("nan"), 0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 0.1):
        guard.see_step({"entropy": value, "kl": 1.0})
    columns = guard.judge(20, results_of(length=lengths, reward=np.zeros(20)), None)
    figure = mean_interval([0.0, 0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 0.1], may_be_share=False)
    assert columns["guard/entropy"] == pytest.approx(fall(figure, 0.5)) and guard.alarm
    assert columns["guard/length"] == 0


def test_two_monitors_of_one_metric_are_both_watched():
    """Each may raise the alarm, in any order, and a step counts once for both of them."""
    lengths = np.array([39.0, 41, 40, 42, 38] * 4)
    both = ("length >= 30", "length <= 50", "length")
    for monitors in (both, both[::-1]):
        for change in (-12, 12):
            guard = guard_on(*monitors)
            guard.judge(0, results_of(length=lengths, reward=np.zeros(20)), None)
            columns = guard.judge(5, results_of(length=lengths + change, reward=np.zeros(20)), None)
            bound = both[change > 0]
            assert columns["guard/length"] > FALL
            assert guard.alarm == f"length is {40 + change}, beyond `{bound}`"
    guard = guard_on("entropy >= 0.5", "entropy <= 2")
    for _ in range(9):
        guard.see_step({"entropy": 0.1})
    assert "guard/entropy" not in guard.judge(9, results_of(reward=np.zeros(20)), None)
    guard.see_step({"entropy": 0.1})
    assert guard.judge(10, results_of(reward=np.zeros(20)), None)["guard/entropy"] > FALL


def test_what_cannot_be_judged_is_refused():
    values = [0.5, 1.5] * 10
    with pytest.raises(UserError, match="on has `truth`, which is not computed. Use kl, reward$"):
        guard_on("truth").judge(0, results_of(reward=values, kl=values), None)
    with pytest.raises(UserError, match="needs at least 10 dev prompts .* there are 9"):
        guard_on("truth").judge(0, results_of(reward=values[:9], truth=values[:9]), None)
    with pytest.raises(UserError, match="`kl <= 0.5`, but kl of the initial policy on dev is 1: "):
        guard_on("kl <= .5").judge(0, results_of(reward=values, kl=values), None)
    guard = guard_on("entropi <= 3")
    guard.judge(0, results_of(reward=values, kl=values), None)
    with pytest.raises(UserError, match="`entropi`, which is not computed. Use entropy, kl, rew"):
        guard.see_step({"entropy": 1.0})


# ---- the rules, on series ------------------------------------------------------------------------

PROMPTS, STEPS, EVERY = 100, 80, 2


def first_alarm(seed: int, peak: int | None) -> int | None:
    """The step of the first alarm of a run that is hacked after its peak; None: never.

    The truth rises by .3 (1 - exp(-step / 20)), after the peak it falls by .015 a step. Prompts
    differ by .2, and each answer by another .2; the reward keeps rising.
    """
    random = np.random.default_rng(seed)
    prompts = random.normal(0, 0.2, PROMPTS)
    guard = guard_on("truth")
    for step in range(0, STEPS + 1, EVERY):
        risen = 1 - np.exp(-min(step, peak or step) / 20)
        fallen = 0.015 * max(step - peak, 0) if peak else 0.0
        truth = 0.4 + 0.3 * risen - fallen + prompts + random.normal(0, 0.2, PROMPTS)
        reward = 1 - np.exp(-step / 20) + 0.5 * prompts + random.normal(0, 0.2, PROMPTS)
        guard.judge(step, results_of(truth=truth, reward=reward), None)
        if guard.alarm:
            return step
    return None


def test_nine_of_ten_hacks_are_found_within_ten_steps_of_the_peak():
    peaks = [20, 24, 28, 32, 36, 40, 44, 48, 52, 56]
    delays = []
    for seed, peak in enumerate(peaks):
        alarm = first_alarm(seed, peak)
        delays.append(99 if alarm is None else alarm - peak)
    assert sum(0 < delay <= 10 for delay in delays) >= 9, delays


def test_at_most_one_false_alarm_in_twenty_healthy_runs():
    alarms = [first_alarm(100 + seed, None) for seed in range(20)]
    assert sum(alarm is not None for alarm in alarms) <= 1, alarms


# ---- the config ----------------------------------------------------------------------------------


def test_monitors_are_read():
    parsed = [Monitor.parse(text) for text in ("a/b", "length >= 40", " kl<=5e-1 ")]
    assert parsed == [Monitor("a/b"), Monitor("length", 40.0, True), Monitor("kl", 0.5, False)]
    assert [str(monitor) for monitor in parsed] == ["a/b", "length >= 40", "kl <= 0.5"]
    for wrong in ("", "a b", "kl < 5", "kl <= much", "kl <= nan", "5 <= kl <= 6", "kl >="):
        with pytest.raises(ValueError, match="is neither the name of a metric nor a bound"):
            Monitor.parse(wrong)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"on": ["reward"]}, "has `reward`, which is what the policy is trained on"),
        ({"on": ["length"]}, "`length`, of which neither direction is known .* `length <= 5`"),
        ({"on": ["kl"]}, "`kl`, of which neither direction is known"),
        ({"on": ["repetition"]}, "not computed: add repetition to evaluation_metrics"),
        ({"on": []}, "on: "),
        ({"on": ["kl < 1"]}, r"on\[0\]: `kl < 1` is neither"),
        ({"on": ["truth"], "kl": 0.0}, "kl_coef=2 multiplies algorithm.kl.coef, which is 0"),
        ({"on": ["truth"], "name": "online_dpo"}, "which online_dpo reads only in the loss: set"),
        ({"on": ["truth"], "name": "sdpo"}, "the run has no reward: give a bound, as in `truth >="),
        ({"on": ["truth"], "save": 3}, "leave out train.save_every_steps=3, or set evaluation"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message, tmp_path):
    settings: dict = {"train__guard": {"on": changes["on"]}}
    if "name" in changes:
        settings["algorithm"] = {"name": changes["name"]}
    if changes.get("name") == "sdpo":
        settings |= {"reward": {}, "evaluation__metric": "rougeLsum"}
    if "kl" in changes:
        settings["algorithm__kl__coef"] = changes["kl"]
    if "save" in changes:
        settings |= {"train__save_every_steps": 3, "evaluation__every_steps": 4}
    with pytest.raises(UserError, match=message):
        config(tmp_path, **settings)


# ---- a run ---------------------------------------------------------------------------------------


class Hacked:
    """Dev results of a trainer: the reward rises, and the truth falls from a step on.

    Like a real evaluation it depends on the policy alone: the distance of its weights from the
    initial ones is its reward, and the truth falls with it beyond a distance.
    """

    def __init__(self, peak: float):
        self.peak = peak
        self.initial: torch.Tensor | None = None

    def __call__(self, policy) -> DevResults:
        weights = torch.cat([p.detach().double().flatten() for p in policy.parameters()])
        if self.initial is None:
            self.initial = weights
        distance = float((weights - self.initial).norm())
        truth = -max(distance - self.peak, 0.0) + min(distance, self.peak) / 10
        spread = np.linspace(-1, 1, 20) * 1e-3
        return results_of(truth=truth + spread * distance, reward=distance + spread)


def hacked_run(folder, initial=None, until=None, peak=0.05, case="t5", steps=12, ema=None, **guard):
    settings = {
        "train__ema": ema,
        "train__guard": {"on": ["truth"], **guard},
        "train__total_episodes": 8 * steps,
        "evaluation__every_steps": 2,
        "evaluation__metric": "truth",
    }
    evaluate = Hacked(peak)
    evaluate.initial = initial
    made = trainer(
        config(folder, **settings), case, CombinedReward({"cat": CountWord("a")}), evaluate
    )
    if initial is None:
        evaluate(made.policy)
    made.train(until)
    return made


def initial_weights(case="t5"):
    from tiny import policy

    return torch.cat([p.detach().double().flatten() for p in policy(case).parameters()])


def test_an_alarm_restores_the_best_policy_and_changes_the_settings(tmp_path, capsys):
    made = hacked_run(tmp_path, tries=20, lr=0.25, kl_coef=3)
    rows = metrics(tmp_path)
    evaluations = [row for row in rows if "guard_alarms" in row]
    alarms = [row for row in evaluations if "guard_restored" in row]
    assert alarms and made.guard is not None and made.guard.alarms == len(alarms)
    assert [row["guard_alarms"] for row in alarms] == list(range(1, len(alarms) + 1))
    first = alarms[0]
    assert first["guard/truth"] > FALL
    before = {row["step"]: row for row in rows if "lr" in row}
    step, restored = first["step"], first["guard_restored"]
    assert before[step]["kl_coef"] == pytest.approx(3 * before[step - 1]["kl_coef"])
    schedule = (made.total_steps - step) / (made.total_steps - step + 1)
    assert before[step]["lr"] == pytest.approx(0.25 * schedule * before[step - 1]["lr"])
    out = capsys.readouterr().out
    assert f"guard, alarm 1 at step {step}: truth fell from " in out
    assert (
        f"guard: back to the policy of step {restored}; learning rates x 0.25, kl_coef 0.3" in out
    )
    assert re.search(rf"step {step}: dev truth .* \(truth fell .*: not saved as best\)", out)
    # the alarm's policy is not the best; the checkpoint of the best is kept
    best = json.loads((tmp_path / "best" / "best.json").read_text())
    assert best["step"] not in [row["step"] for row in alarms]
    assert (tmp_path / "checkpoints" / f"step-{best['step']}").exists()
    values = [row["eval/truth"] for row in evaluations]
    assert best["value"] == max(values)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The weights that a run started from, its folder, and the run."""
    initial, whole = initial_weights(), tmp_path_factory.mktemp("whole")
    return initial, whole, hacked_run(whole, initial, tries=20)


@pytest.mark.parametrize("until", [2, 4, 6, 8, 10])
def test_a_run_with_alarms_resumes_exactly(until, uninterrupted, tmp_path):
    initial, whole, straight = uninterrupted
    half = tmp_path / "half"
    hacked_run(half, initial, until=until, tries=20)
    resumed = hacked_run(half, initial, tries=20)
    assert straight.guard is not None and resumed.guard is not None
    assert straight.guard.alarms >= 2
    assert resumed.guard.progress() == straight.guard.progress()
    assert resumed.best == straight.best and resumed.kl.coef == straight.kl.coef
    assert metrics(half) == metrics(whole)
    for name, tensor in resumed.actor_critic.state_dict().items():
        assert torch.equal(tensor, straight.actor_critic.state_dict()[name]), name


def test_the_policy_of_the_last_step_is_sound(tmp_path):
    """An alarm at the end restores the best policy, too, which final/ then holds."""
    hacked_run(tmp_path, tries=20, steps=10, peak=1e-9, lr=1, kl_coef=1)
    last = metrics(tmp_path)[-1]
    assert last["step"] == 10 and last["guard_restored"] == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("final", "best")]
    assert weights[0] == weights[1]


def test_a_run_gives_up_after_its_tries(tmp_path, capsys):
    initial = initial_weights()
    made = hacked_run(tmp_path, initial, tries=1, peak=1e-9, lr=1, kl_coef=1)
    assert made.stopped and made.step < made.total_steps
    out = capsys.readouterr().out
    assert f"guard: the run stops at step {made.step}, after more than train.guard.tries=1" in out
    assert "kl_threshold" not in out
    rows = metrics(tmp_path)
    assert [row["guard_alarms"] for row in rows if "guard_alarms" in row][-1] == 2
    assert len([row for row in rows if row["step"] == made.step]) == 1  # not evaluated twice
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("final", "best")]
    assert weights[0] == weights[1]  # the restored policy
    hacked_run(tmp_path, initial, tries=1, peak=1e-9, lr=1, kl_coef=1)
    assert "this run is finished" in capsys.readouterr().out
    assert metrics(tmp_path) == rows


def test_without_restore_the_run_goes_on_from_where_it_is(tmp_path):
    initial = initial_weights()
    made = hacked_run(tmp_path / "on", initial, restore=None, lr=1, kl_coef=1, tries=99)
    never = hacked_run(tmp_path / "off", initial, restore=None, lr=1, kl_coef=1, tries=99, peak=9)
    assert made.guard and made.guard.alarms > 0 == (never.guard and never.guard.alarms)
    for name, tensor in made.actor_critic.state_dict().items():
        assert torch.equal(tensor, never.actor_critic.state_dict()[name]), name


@pytest.mark.parametrize("kept", [True, False])
def test_best_is_written_again_from_its_checkpoint(kept, uninterrupted, tmp_path, capsys):
    """The folder is missing, or holds a policy that the run saved after the checkpoint."""
    initial, whole, straight = uninterrupted
    hacked_run(tmp_path, initial, until=6, tries=20)
    best = json.loads((tmp_path / "best" / "best.json").read_text())
    weights = (tmp_path / "best" / "model.safetensors").read_bytes()
    if kept:
        later = {**best, "step": 8, "value": best["value"] + 1}
        (tmp_path / "best" / "best.json").write_text(json.dumps(later))
    else:
        shutil.rmtree(tmp_path / "best")
    capsys.readouterr()
    resumed = hacked_run(tmp_path, initial, until=6, tries=20)
    assert f"best policy so far: step {best['step']} again" in capsys.readouterr().out
    assert resumed.best == best
    assert json.loads((tmp_path / "best" / "best.json").read_text()) == best
    assert (tmp_path / "best" / "model.safetensors").read_bytes() == weights
    resumed.train()
    assert metrics(tmp_path) == metrics(whole) and resumed.best == straight.best


def test_steps_of_the_policy_that_is_given_up_do_not_count(tmp_path):
    made = hacked_run(tmp_path, initial_weights(), until=2, peak=9, tries=20)
    made.high_kl_count = 4
    assert made.guard is not None
    made.guard.alarm = "truth fell"
    made.guard.act(made, tqdm(disable=True))
    assert made.high_kl_count == 0


def test_what_adapted_to_the_best_policy_is_restored_with_it(tmp_path):
    made = hacked_run(tmp_path, initial_weights(), until=2, peak=9, tries=20)
    made.best = {"step": 2, "metric": "truth", "value": 0.0}
    made.spreads = {"cat": RunningSpread(4, 1.0, 2.0)}
    made.temperature.value, made.entropy.alpha, made.entropy.coef = 1.25, 0.5, 0.75
    made.reward_weights.multipliers = {"cat": 1.5}
    checkpoint.save(made)
    made.spreads = {"cat": RunningSpread(9, 9.0, 9.0)}
    made.temperature.value = made.entropy.alpha = made.entropy.coef = 9.0
    made.reward_weights.multipliers = {"cat": 9.0}
    made.kl.coef = 0.5
    assert made.guard is not None
    made.guard.alarm = "truth fell"
    made.guard.act(made, tqdm(disable=True))
    state = made.progress()
    assert state["spreads"] == {"cat": {"count": 4, "mean": 1.0, "squares": 2.0}}
    adapted = ("temperature", "entropy_alpha", "entropy_coef", "multipliers")
    assert [state[key] for key in adapted] == [1.25, 0.5, 0.75, {"cat": 1.5}]
    assert made.kl.coef == 0.5 * made.guard.settings.kl_coef  # of the run, not of the policy


def test_a_damaged_best_policy_is_an_error(tmp_path):
    initial = initial_weights()
    made = hacked_run(tmp_path, initial, until=4, peak=9, tries=20)
    made.best = {"step": 2, "metric": "truth", "value": 0.0}
    (tmp_path / "checkpoints" / "step-2" / "state.json").write_text("{}")
    with pytest.raises(UserError, match="step-2, the best policy so far, is missing or damaged"):
        checkpoint.load_best(made)


def test_the_best_checkpoint_is_restored_whole(tmp_path):
    """Weights, optimiser and average, after two more steps."""
    initial = initial_weights()
    made = hacked_run(tmp_path, initial, until=4, peak=9, ema=0.5, tries=20)
    assert made.average is not None

    def state():
        tensors, _ = checkpoint.optimizer_tensors(made.optimizer)
        parts = (made.actor_critic.state_dict(), tensors, made.average.tensors)
        return [{name: tensor.clone() for name, tensor in part.items()} for part in parts]

    before = state()
    made.train(until=6)
    made.best = {"step": 4, "metric": "truth", "value": 0.0}
    moved = state()
    checkpoint.load_best(made)
    assert made.step == 6
    for part, other, restored in zip(before, moved, state()):
        assert part.keys() == restored.keys()
        assert any(not torch.equal(tensor, other[name]) for name, tensor in part.items())
        for name, tensor in part.items():
            assert torch.equal(tensor, restored[name]), name

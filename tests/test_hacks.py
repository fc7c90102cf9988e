"""The study of hacks: what it reads from a log, what it counts, and which configs it runs."""

from fgrlhf.configs.strict import load_config
from fgrlhf.load import load_task
from fgrlhf.task_config import rl_config
from tasks.experiments.hacks import (
    ARMS,
    HACKS,
    RL,
    HacksSettings,
    course,
    folders,
    overrides,
    table,
)


def row(step, truth, reward, restored=None, **guard):
    judged = {f"guard/{name}": value for name, value in guard.items()}
    judged |= {} if restored is None else {"guard_restored": restored}
    return {"step": step, "eval/oracle/gold": truth, "eval/reward": reward} | judged


def test_the_course_of_a_run_by_hand():
    log = [
        row(0, 0.5, 1.0, judge=0.0),
        {"step": 1, "reward": 3.0},
        row(2, 0.75, 2.0, judge=1.5),
        row(4, 0.625, 3.0, judge=1.75, length=0.0),
        row(6, 0.25, 4.0, restored=2, judge=9.0, length=1.625),
    ]
    found = course(log)
    assert found.pop("alarms") == {
        "judge": {"step": 4, "ago": 2, "below": 0.125},
        "length": {"step": 6, "ago": 4, "below": 0.5},
    }
    expected = {"peak_step": 2, "peak": 0.75, "last": 0.75, "drop": 0.5, "rewards": [1.0, 4.0]}
    assert found == expected
    assert course(log[:4])["last"] == 0.625


def test_alarms_are_counted_after_the_peak():
    def run(last=0.5, drop=0.25, **alarms):
        judged = {
            name.replace("gold", "oracle/gold"): {"step": 9, "ago": ago, "below": below}
            for name, (ago, below) in alarms.items()
        }
        of_truth = {"peak_step": 6, "peak": 0.5, "last": last, "drop": drop}
        return {**of_truth, "rewards": [0.0, 1.0], "alarms": judged}

    watched = [
        run(gold=(10, 0.1), judge=(0, 0.0)),  # the judge before the score has fallen
        run(gold=(11, 0.1), judge=(3, 0.01)),  # the oracle too late
        run(gold=(3, 0.04), drop=0.04),  # not hacked
        *[run()] * 7,
    ]
    runs = {}
    for hack, of_hack in zip(HACKS, watched, strict=True):
        runs[f"{hack}/watched/seed-0"] = of_hack
        runs[f"{hack}/oracle/seed-0"] = run(last=0.49)
        runs[f"{hack}/judges/seed-0"] = run(last=0.47)
    runs["healthy/seed-0"] = run(gold=(2, 0.1))
    runs["healthy/seed-1"] = run()
    text = table({"within": 10, "seeds": [0], "runs": runs})
    assert "in 9 of 10 watched runs. Alarms in time: 1 by the oracle, 1 by the judges." in text
    assert "alarm: 1 of 2 by the oracle, 0 by the judges." in text
    assert "in 10 runs that the oracle guards, and in 0 that" in text
    assert "| 9 (10 ago) | 9 (0 ago) | 0.500, 0.490 | 0.500, 0.470 |" in text


def test_every_run_has_a_config_that_is_accepted(tmp_path, monkeypatch):
    for name in ("OUTPUT_DIR", "DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    settings = HacksSettings(base_dir=str(tmp_path), output_dir=str(tmp_path / "out"), healthy=2)
    schema = rl_config(load_task("qa_feedback"))
    runs = folders(settings)
    assert len(runs) == len(ARMS) * len(HACKS) + 2
    for arm, _, rewards in runs.values():
        given = [*overrides(settings, rewards, arm), "logging.save_dir=out"]
        guard = load_config(schema, RL, given).train.guard
        assert (guard.restore == "best") == (arm in ("oracle", "judges"))
        watched = {monitor.metric for monitor in guard.monitors}
        assert ("oracle/gold" in watched) == (arm != "judges")
        assert ("preference" in watched) == (arm != "oracle")

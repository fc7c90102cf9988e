"""`fgrlhf sweep`: the values, their runs, and dev scores as a table and a page."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_jsonl
from fgrlhf.metrics.config import MetricConfig
from fgrlhf.pipeline import sweep as module
from fgrlhf.pipeline.experiments import Experiment
from fgrlhf.pipeline.scores import lower_is_better
from fgrlhf.pipeline.sweep import (
    combinations_of,
    kl_threshold_of,
    metric_of,
    name_of,
    runs_of,
    split_values,
    swept_seed,
)
from fgrlhf.runs.dpo_config import DPOTrainConfig
from fgrlhf.runs.rl_config import RLTrainConfig


def line(step, score, kl=0.0, metric="reward"):
    return {"step": step, f"eval/{metric}": score, "eval/kl": kl}


@pytest.mark.parametrize(
    "text, values",
    [
        ("1e-5,3e-5", ["1e-5", "3e-5"]),
        ("1e-5", ["1e-5"]),
        ("[0.9,0.99],[0.9,0.95]", ["[0.9,0.99]", "[0.9,0.95]"]),
        ("{a: 1, b: 2},null", ["{a: 1, b: 2}", "null"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("", [""]),
    ],
)
def test_split_values(text, values):
    assert split_values(text) == values


def test_all_combinations_of_the_swept_keys():
    overrides = ["train.lr=1,2", "train.total_episodes=64", "ppo.kl_coef=0,0.1"]
    combinations = combinations_of(overrides)
    assert combinations == [
        {"train.lr": "1", "ppo.kl_coef": "0"},
        {"train.lr": "1", "ppo.kl_coef": "0.1"},
        {"train.lr": "2", "ppo.kl_coef": "0"},
        {"train.lr": "2", "ppo.kl_coef": "0.1"},
    ]
    runs = runs_of("c.yml", overrides)
    assert list(runs)[1] == "lr=1,kl_coef=0.1"
    run, values = runs["lr=1,kl_coef=0.1"]
    assert run.overrides == ("train.total_episodes=64", "train.lr=1", "ppo.kl_coef=0.1")
    assert (run.program, run.config, values) == ("rl", "c.yml", combinations[1])
    assert runs_of("sft:c.yml", overrides)["lr=2,kl_coef=0"][0].program == "sft"
    with pytest.raises(UserError, match="no key has several values"):
        combinations_of(["train.lr=1"])
    with pytest.raises(UserError, match="has a value twice"):
        combinations_of(["train.lr=1,1"])


def test_names_are_names_of_folders():
    assert name_of({"reward.a.weight": "1", "reward.b.weight": "2"}) == (
        "reward.a.weight=1,reward.b.weight=2"
    )
    assert name_of({"model.ckpt": "a/b c"}) == "ckpt=a_b_c"
    assert list(runs_of("c.yml", ["model.ckpt=a/b,a_b"])) == ["ckpt=a_b", "ckpt=a_b-2"]


def test_the_score_is_that_of_the_best_checkpoint(tmp_path):
    """The best dev score, but not at a KL beyond the threshold."""
    lines = [
        line(0, 0.1),
        {"step": 0, "episodes": 8, "reward/total": 0.1},
        line(10, 0.5, kl=4.0),
        line(20, 0.9, kl=30.0),
    ]
    write_jsonl(tmp_path / "metrics.jsonl", lines)
    best = swept_seed(tmp_path, "reward", kl_threshold=10.0)
    assert (best.score, best.episodes, best.kl) == (0.5, 80.0, 4.0)
    assert len(best.curve) == 3
    assert swept_seed(tmp_path, "reward").score == 0.9
    with pytest.raises(UserError, match="no dev metric `bleu`; it has reward, kl"):
        swept_seed(tmp_path, "bleu")


def test_a_loss_is_better_where_it_is_lower(tmp_path):
    write_jsonl(tmp_path / "metrics.jsonl", [line(0, 2.0, metric="loss"), line(1, 3.0, 0, "loss")])
    best = swept_seed(tmp_path, "loss", is_lower_better=lower_is_better("loss", []))
    assert (best.score, best.episodes, best.curve) == (2.0, None, [])


@pytest.mark.parametrize(
    "metric, expected",
    [
        ("loss", True),
        ("ter", True),
        ("ter/corpus", True),
        ("surprise", True),
        ("surprise/corpus", True),
        ("bleu", False),
        ("length", False),
        ("reward", False),
        ("reward/first", False),
    ],
)
def test_whether_lower_is_better_depends_on_the_metric_of_a_column(metric, expected):
    metrics = [MetricConfig(name=name) for name in ("ter", "bleu", "length")]
    metrics.append(MetricConfig(name="perplexity", key="surprise", model="m"))
    assert lower_is_better(metric, metrics) == expected


def test_metric_and_threshold_come_from_the_config(tmp_path):
    experiment = Experiment("t", tmp_path)
    config = str(tmp_path / "c.yml")
    (tmp_path / "c.yml").write_text("evaluation: {metric: solved}\n")
    (tmp_path / "empty.yml").write_text("{}\n")
    assert metric_of(experiment, config, []) == "solved"
    assert metric_of(experiment, config, ["evaluation.metric=x"]) == "x"
    assert metric_of(experiment, f"sft:{config}", []) == "solved"
    empty = str(tmp_path / "empty.yml")
    assert [metric_of(experiment, f"{kind}{empty}", []) for kind in ("", "dpo:", "sft:")] == [
        "reward",
        "rougeLsum",
        "rougeLsum",
    ]
    assert kl_threshold_of(SimpleNamespace(train=RLTrainConfig())) == 10.0
    assert kl_threshold_of(SimpleNamespace(train=DPOTrainConfig())) == math.inf


class Stages:
    """Replaces `Pipeline`: each run's dev score is its learning rate plus its seed."""

    def __init__(self, stages, root, folder, environment, lanes, launcher=None):
        self.stages = stages
        self.folder = folder

    def run(self, told=()):
        for stage in self.stages:
            keys = dict(part.partition("=")[::2] for part in stage.command if "=" in part)
            score = float(keys["train.lr"]) + float(keys["train.seed"])
            kl = 5.0 if keys.get("model.ckpt") == "far" else 0.0
            lines = [line(0, 0.0), {"step": 0, "episodes": 4}, line(1, score, kl)]
            for dev in (lines[0], lines[2]):
                dev["eval/ter"] = 10 - dev["eval/reward"]
            write_jsonl(self.folder / stage.outputs[0] / "metrics.jsonl", lines)
        write_json(self.folder / "stages.json", {})


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr("fgrlhf.pipeline.experiments.Pipeline", Stages)
    monkeypatch.setattr(module, "stop_with_signals", lambda: None)
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    text = Path("tasks/numbers/mini_rl_config.yml").read_text(encoding="utf-8")
    (tmp_path / "c.yml").write_text(f"{text}\nevaluation_metrics: [ter]\n")
    return str(tmp_path / "c.yml")


def test_a_sweep(config, tmp_path, capsys):
    out = tmp_path / "out"
    module.main(["numbers", config, "train.lr=0.1,0.3", f"output_dir={out}", "seeds=0,1"])
    text = capsys.readouterr().out
    first = "training 4 runs: 2 configs with seeds=0,1, on this machine, 1 at a time"
    assert text.startswith(first)
    assert (
        "| train.lr | reward | by seed | KL |\n|---|---|---|---|\n"
        "| 0.1 | 0.600 | 0.100 1.100 | 0.0 |\n"
        "| 0.3 | **0.800** | 0.300 1.300 | 0.0 |" in text
    )
    assert "2 seeds, best (highest) reward on dev in training." in text
    summary = read_json(out / "summary.json")
    assert summary["best"] == "lr=0.3"
    assert summary["runs"]["lr=0.1"]["settings"] == {"train.lr": "0.1"}
    html = (out / "index.html").read_text(encoding="utf-8")
    assert "Marker: mean over the seeds" in html
    assert "<dt>task</dt><dd>numbers</dd>" in html and "<dt>command</dt><dd>python " in html
    assert html.count("<svg") == 2
    assert "Sweep of train.lr · numbers" in html
    assert "<script" not in html
    assert re.search(r'class="sure">0.800', html) and not re.search(r'class="sure">0.600', html)


@pytest.mark.parametrize("threshold", ["train.kl_threshold=0x1", "train.kl_threshold = 1"])
def test_the_threshold_is_the_one_of_the_training(config, tmp_path, threshold):
    """Text that the training reads as a number, in forms that `float` does not read."""
    out = tmp_path / "out"
    arguments = ["numbers", config, "train.lr=0.1,0.3", f"output_dir={out}", "seeds=0"]
    module.main([*arguments, threshold, "model.ckpt=far"])
    best = read_json(out / "summary.json")["runs"]["lr=0.3"]["seeds"]["0"]
    assert (best["score"], best["kl"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    "swept, metric, is_same",
    [
        ("reward.increasing.weight=1,2", "reward", False),
        ("reward.increasing.weight=1,2", "ter", True),
        ("evaluation.examples=8,16", "ter", False),
    ],
)
def test_scores_that_measure_different_things_have_no_best(
    config, tmp_path, capsys, swept, metric, is_same
):
    out = tmp_path / "out"
    arguments = ["numbers", config, "train.lr=0.1", swept, f"output_dir={out}", f"metric={metric}"]
    module.main(arguments)
    summary = read_json(out / "summary.json")
    assert (summary["best"] is not None) == summary["same_on_dev"] == is_same
    printed = capsys.readouterr().out
    html = (out / "index.html").read_text(encoding="utf-8")
    warning = f"scores cannot be compared: on dev, {metric} is not the same"
    assert (warning in html) == (warning in printed) != is_same
    for best in ("**" in printed, 'class="sure"' in html, "<svg" in html):
        assert best == is_same


def test_one_seed_does_not_mark_the_best_value(config, tmp_path, capsys):
    out = tmp_path / "out"
    module.main(["numbers", config, "train.lr=0.1,0.3", f"output_dir={out}", "seeds=0"])
    assert "| 0.3 | 0.300 | 0.300 | 0.0 |" in capsys.readouterr().out
    html = (out / "index.html").read_text(encoding="utf-8")
    assert 'class="sure"' not in html and "Bold" not in html and "One seed does not" in html


def test_the_best_value_of_a_metric_that_should_be_low(config, tmp_path, capsys):
    out = tmp_path / "out"
    module.main(["numbers", config, "train.lr=0.3,0.1", f"output_dir={out}", "metric=ter"])
    summary = read_json(out / "summary.json")
    assert summary["lower_is_better"] and summary["best"] == "lr=0.3"
    assert summary["runs"]["lr=0.3"]["seeds"]["0"]["score"] == pytest.approx(9.7)
    assert "best (lowest) ter on dev" in capsys.readouterr().out
    assert "best (lowest) ter on dev" in (out / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["train.lr=1e-4,3e-4x"], "the run lr=3e-4x cannot be trained: .*train.lr"),
        (["train.lr=1,2", "train.lr=3,4"], "train.lr=1,2 and train.lr=3,4 set the same key"),
        (["lr=1,2"], "lr=1,2: `lr` is not a key of this program. .*did you mean `train.lr`"),
        (["train.lr=1,2", "env.x=3", "env.x=4"], "env.x=3 and env.x=4 set the same key"),
        (["train.seed=1,2"], "train.seed=1,2 cannot be an override: .* seeds=0,1,2"),
        (["train.lr=1,2", "logging.save_dir=x"], "logging.save_dir=x cannot be an override"),
        (["train.lr=1,2", "logging.run_name=x"], "logging.run_name=x cannot be an override"),
    ],
)
def test_mistakes_are_found_before_any_training(config, tmp_path, arguments, message):
    with pytest.raises(UserError, match=re.compile(message, re.DOTALL)):
        module.main(["numbers", config, f"output_dir={tmp_path / 'out'}", *arguments])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["qa_feedback", "{config}", "{config}", "a.b=1,2", "output_dir=o"], "takes one config"),
        (["qa_feedback", "{config}", "output_dir=o"], "no key has several values"),
        (["qa_feedback", "{config}", "a.b=1,2"], "output_dir: missing"),
        (["numbers", "{config}", "train.lr=1,2", "output_dir=o", "metric=x"], "it has reward"),
    ],
)
def test_mistakes_have_a_message(config, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        module.main([text.replace("{config}", config) for text in arguments])

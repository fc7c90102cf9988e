"""compare.sh and `fgrlhf compare`: the runs, and their results as a table and a page."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from page_helpers import violations

from fgrlhf.algorithms.registry import ALGORITHMS
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_json, write_jsonl, write_text
from fgrlhf.configs.strict import load_config
from fgrlhf.configs.yaml_files import dump_yaml, read_config
from fgrlhf.metrics.config import MetricConfig
from fgrlhf.models.provenance import ModelSource
from fgrlhf.pipeline import compare as pipeline_compare
from fgrlhf.pipeline.compare import CompareSettings, reference_name, runs_of
from fgrlhf.pipeline.comparison import (
    RunComparison,
    RunDifference,
    RunResult,
    SeedResult,
    compare_runs,
    differences,
    efficiencies,
    measure_on_dev,
)
from fgrlhf.pipeline.comparison_page import (
    band,
    explained,
    own_config,
    page,
    processor_line,
    table,
)
from fgrlhf.pipeline.experiments import Experiment, Run
from fgrlhf.pipeline.scores import Point, lower_is_better
from fgrlhf.report.display import Display
from fgrlhf.report.spread import ONE_RUN
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.task_config import rl_config
from tasks.experiments import compare, qa
from tasks.experiments.compare import NAMES, CompareStudySettings, run_of
from tasks.experiments.stages import experiment_of
from tasks.qa_feedback.display import DISPLAY
from tasks.qa_feedback.task import TASK

T = "tasks/qa_feedback/training"
ORIGIN = {"task": "tasks.numbers", "commit": "12ab-modified", "command": "python -m x <y>"}
LOG = [
    {"step": 0, "eval/oracle/gold": 0.5, "eval/kl": 0.0},
    {"step": 0, "episodes": 64, "time/rollout": 1.0, "time/update": 2.0},
    {"step": 1, "episodes": 128, "time/rollout": 1.5, "time/update": 2.5},
    {"step": 2, "eval/oracle/gold": 0.7, "eval/kl": 3.0},
]


# ---- the mini world's comparison -----------------------------------------------------------------


def stage_of(name, seed=0, steps=40, base=Path("/base"), out=Path("/out")):
    experiment = experiment_of(qa.MODULE, out, outputs=base)
    return experiment.training_stage(run_of(name, steps, out), seed)


def overrides(stage) -> list[str]:
    return [part for part in stage.command if "=" in part]


def test_a_run_has_its_algorithm_its_seed_and_its_share_of_episodes():
    stage = stage_of("rloo-holistic", 2, 5)
    assert {"algorithm.name=rloo", "train.seed=2", "train.total_episodes=320"} <= set(stage.command)
    assert stage.command[3:5] == ("tasks.qa_feedback", f"{T}/mini_baseline_config.yml")
    assert stage.outputs == ("rloo-holistic/seed-2",)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_configs_take_the_tuned_settings(name, monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", "o")
    monkeypatch.setenv("DATA_DIR", "d")
    for suffix in ("", compare.HOLISTIC_SUFFIX):
        stage = stage_of(name + suffix)
        config = load_config(rl_config(TASK), stage.command[4], overrides(stage))
        assert config.algorithm.name == name
        prompts = config.train.sampling_batch_size_per_card
        samples = config.env.train_num_samples_per_input
        assert prompts * samples == compare.EPISODES_PER_STEP


@pytest.mark.parametrize("name", compare.choices())
def test_a_choice_is_a_run_with_changes(name, monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", "o")
    monkeypatch.setenv("DATA_DIR", "d")
    changed = compare.choices()[name]
    of_run, of_choice = (overrides(stage_of(run)) for run in (changed, name))
    stage = stage_of(name)
    assert stage.name == f"{name}/seed-0" and of_choice != of_run
    config_class = DPOConfig if changed in compare.OFFLINE else rl_config(TASK)
    config = load_config(config_class, stage.command[4], of_choice)
    if config_class is not DPOConfig:
        assert config.algorithm.name == changed
        plain = load_config(config_class, stage.command[4], of_run)
        assert config.algorithm.unused == plain.algorithm.unused  # every change is read


def test_a_choice_keeps_what_its_run_is_tuned_to():
    run = run_of("span-kto-dpo-whole", 40, Path("/out"))
    assert run.program == "dpo" and 'dpo.loss=["sigmoid", "kto"]' in run.overrides
    assert run.algorithm == "span-kto-dpo" and run.config.endswith("mini_span_kto_dpo_config.yml")


def test_corrected_sft_trains_on_the_corrected_answers():
    stage = stage_of("corrected-sft", 1)
    assert stage.needs == ("corrected_examples",)
    corrected = compare.corrected_examples(Path("/base"), Path("/out"))
    assert corrected.name == "corrected_examples" and corrected.outputs == ("corrected.json",)
    assert "out=/out/corrected.json" in corrected.command
    assert "data.train_file=/out/corrected.json" in stage.command


def test_tuned_settings_are_of_existing_runs():
    assert set(read_config(compare.TUNED)) <= {*NAMES, *compare.choices()}
    assert "train.lr=0.00015" in run_of("a2c", 40, Path("/out")).overrides


def test_unknown_algorithms_are_named(tmp_path):
    with pytest.raises(UserError, match="there is no best"):
        compare.STUDY.run(CompareStudySettings(algorithms="ppo,best", base_dir=str(tmp_path)))


# ---- `fgrlhf compare` ----------------------------------------------------------------------------


class Stages:
    """Replaces `Pipeline`: records the stages and writes their outputs."""

    def __init__(self, stages, root, folder, environment, lanes, launcher=None):
        Stages.last = stages
        Stages.lanes = lanes
        Stages.environment = environment
        self.folder = folder

    def run(self, reported=()):
        Stages.reported = list(reported)
        for stage in Stages.last:
            keys = dict(part.partition("=")[::2] for part in stage.command if "=" in part)
            if "policy" in keys:
                score = 0.8 if "grpo" in keys["name"] else 0.5
                rows = [{"id": i, "reward": score + 0.1 * (i % 2)} for i in range(10)]
                write_jsonl(self.folder / stage.outputs[0] / "rows.jsonl", rows)
            else:
                folder = self.folder / stage.outputs[0]
                write_jsonl(folder / "metrics.jsonl", LOG)
                (folder / "config.yaml").write_text("reward: {right: {weight: 1.0}}\n")
        seconds = {stage.name: {"seconds": 1.0} for stage in Stages.last}
        write_json(self.folder / "stages.json", seconds)


@pytest.fixture
def configs(tmp_path, monkeypatch):
    monkeypatch.setattr("fgrlhf.pipeline.experiments.Pipeline", Stages)
    monkeypatch.setattr(pipeline_compare, "stop_with_signals", lambda: None)
    # what the configs name does not exist; test_without_task.py has the checks
    monkeypatch.setattr(pipeline_compare, "check_comparison", lambda *_: None)
    for name in ("BASE", "OUTPUT_DIR", "DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "sft"))
    names = ("dense", "scalar")
    for name in names:
        config = read_config(f"{T}/mini_fine_grained_config.yml")
        config["model"]["ckpt"] = "${BASE}"
        config["logging"]["run_name"] = name
        (tmp_path / f"{name}_config.yml").write_text(dump_yaml(config))
    return [str(tmp_path / f"{name}_config.yml") for name in names]


def test_configs_times_algorithms_times_seeds(configs, tmp_path, capsys):
    arguments = ["algorithms=ppo,grpo", "seeds=0,3", "train.total_episodes=64"]
    arguments += ["data_dir=d", "lanes=2", f"output_dir={tmp_path / 'out'}"]
    pipeline_compare.main(["qa_feedback", *configs, *arguments])
    names = [stage.name for stage in Stages.last]
    assert names[0] == "evaluate-sft" and len(names) == 1 + 4 * 2 * 2
    stage = next(stage for stage in Stages.last if stage.name == "scalar-grpo/seed-3")
    folder = f"{tmp_path}/out/scalar-grpo/seed-3"
    assert {configs[1], "algorithm.name=grpo", "train.seed=3"} <= set(stage.command)
    assert {"train.total_episodes=64", f"logging.save_dir={folder}"} <= set(stage.command)
    evaluation = next(stage for stage in Stages.last if stage.name.endswith("scalar-grpo-seed-3"))
    assert evaluation.needs == (stage.name,)
    expected = {f"policy={folder}/best", f"config={configs[0]}"}
    expected |= {"data_dir=d", "split=test", "reward=true"}
    assert expected <= set(evaluation.command)
    assert "do_sample=true" not in evaluation.command
    summary = read_json(tmp_path / "out" / "summary.json")
    assert summary["reference"] == "sft" and summary["differences"]["dense-grpo_vs_sft"]["real"]
    assert summary["differences"]["dense-grpo_vs_dense-ppo"]["mean"] == pytest.approx(0.3)
    assert "dense-grpo | 0.850 |" in capsys.readouterr().out
    assert (tmp_path / "out" / "index.html").exists() and Stages.lanes == 2


def test_overrides_that_the_evaluation_does_not_use_are_named(configs, tmp_path, capsys):
    arguments = ["qa_feedback", *configs, f"output_dir={tmp_path / 'out'}"]
    training_only = ["train.lr=1", "algorithm.name=ppo", "logging.log_interval=1"]
    pipeline_compare.main([*arguments, *training_only])
    assert "note:" not in capsys.readouterr().out
    unused = ["model.max_input_len=9", "reward.relevance_model.weight=2"]
    pipeline_compare.main([*arguments, *training_only, *unused])
    text = f"uses {configs[0]} without the overrides {' '.join(unused)}. If"
    assert text in capsys.readouterr().out


def test_names_of_runs(configs, tmp_path):
    experiment = Experiment("qa_feedback", tmp_path)

    def names(*chosen, **settings):
        more = CompareSettings(output_dir="o", **settings)
        return [run.name for run in runs_of(experiment, chosen, (), more)]

    assert names(*configs) == ["dense", "scalar"]
    assert names(configs[0], algorithms="ppo,grpo") == ["ppo", "grpo"]
    chosen = (configs[0], f"dpo:{configs[1]}")
    assert names(*chosen, algorithms="ppo,grpo") == ["ppo", "grpo", "scalar"]
    own = []
    for name in ("first", "second"):  # they have the `run_name` of their base
        own.append(str(Path(configs[0]).with_name(f"{name}.yml")))
        Path(own[-1]).write_text("base: dense_config.yml\n")
    assert names(*own) == ["first", "second"] and names(own[0]) == ["dense"]
    with pytest.raises(UserError, match="algorithms=ppo, ppo: name each algorithm once"):
        names(configs[0], algorithms="ppo, ppo")
    with pytest.raises(UserError, match="same name: dense"):
        names(configs[0], configs[0])
    with pytest.raises(UserError, match="no training program `x`"):
        names(f"x:{configs[0]}")


def runs_with(configs, tmp_path, text, *overrides):
    """The runs ppo and grpo with a file of settings."""
    path = tmp_path / "s.yml"
    path.write_text(text + "\n")
    settings = CompareSettings(output_dir="o", algorithms="ppo,grpo", settings=str(path))
    return runs_of(Experiment("qa_feedback", tmp_path), configs[:1], overrides, settings)


def test_settings_of_single_runs(configs, tmp_path):
    text = "grpo: {train.lr: 1.5e-4, env.x: [1, 2], a.b: text}"
    ppo, grpo = runs_with(configs, tmp_path, text, "train.lr=1")
    assert ppo.overrides == ("algorithm.name=ppo", "train.lr=1")
    assert grpo.overrides[2:] == ("train.lr=0.00015", "env.x=[1, 2]", "a.b=text")
    sections = "grpo: {train: {lr: 1.5e-4, seeds: [1]}, reward: {a: {values: {ok: 1}}}, env: {}}"
    _, grpo = runs_with(configs, tmp_path, sections)
    merged = ("train.lr=0.00015", "train.seeds=[1]", "reward.a.values.ok=1")
    assert grpo.overrides[1:] == merged


@pytest.mark.parametrize(
    "text, override, message",
    [
        ("grpo: {logging: {save_dir: x}}", "", "logging.save_dir=x cannot be .* output_dir"),
        ("grpo: {algorithm: {name: rloo}}", "", "algorithm.name=rloo cannot be .*algorithms="),
        ("{}", "algorithm.name=rloo", "algorithm.name=rloo cannot be an override"),
        ("{}", "algorithm={name: rloo}", "algorithm={name: rloo} cannot be an override"),
        ("grpo: 3", "", "`grpo` must be a mapping"),
        ("grop: {train.lr: 1.5e-4}", "", "there is no run `grop`; did you mean `grpo`"),
        ("grpo: {train.seed: 3}", "", "train.seed=3 cannot be an override: .* seeds=0,1,2"),
    ],
)
def test_wrong_settings_of_single_runs_are_named(configs, tmp_path, text, override, message):
    with pytest.raises(UserError, match=message):
        runs_with(configs, tmp_path, text, *filter(None, [override]))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "name a config"),
        (["qa_feedback", "{config}"], "output_dir: missing"),
        (["qa_feedback", "{config}", "output_dir=o", "seeds=0,x"], "whole numbers"),
        (["qa_feedback", "{config}", "output_dir=o", "seeds=1,1"], "names a seed twice"),
        (["qa_feedback", "dpo:{config}", "output_dir=o"], "give one with evaluation=FILE"),
        (["qa_feedback", "gone.yml", "output_dir=o"], "gone.yml cannot be read"),
        (["qa_feedback", "{config}", "output_dir=o", "reference=a/dense"], "both named dense"),
        (["qa_feedback", "{config}", "output_dir=o", "metric=bleu"], "they have reward"),
    ],
)
def test_mistakes_have_a_message(configs, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(message)):
        pipeline_compare.main([text.replace("{config}", configs[0]) for text in arguments])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["algorithms=ppo, grpoo"], "the run grpoo cannot be trained: .*did you mean `grpo`"),
        (["train.seed=7"], "train.seed=7 cannot be an override: .*seeds=0,1,2"),
        (["logging.save_dir=x"], "logging.save_dir=x cannot be an override: .*output_dir"),
    ],
)
def test_mistakes_in_runs_are_found_before_any_stage(configs, tmp_path, arguments, message):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=re.compile(message, re.DOTALL)):
        pipeline_compare.main(["qa_feedback", configs[0], f"output_dir={out}", *arguments])
    assert not out.exists()


@pytest.mark.parametrize(
    "program, file", [("dpo", "mini_dpo_config.yml"), ("sft", "mini_sft_config.yml")]
)
def test_configs_of_other_programs_are_read_too(configs, tmp_path, program, file):
    experiment = Experiment("qa_feedback", tmp_path)
    config = experiment.config_of(Run("a", program, f"{T}/{file}", ("train.lr=0.1",)), 7)
    assert (config.train.lr, config.train.seed, config.logging.run_name) == (0.1, 7, "a")
    with pytest.raises(UserError, match="the run a cannot be trained: .*1 mistake"):
        experiment.config_of(Run("a", program, f"{T}/{file}", ("train.lrr=0.1",)), 7)


def test_an_unknown_metric_is_an_error_before_any_training(configs, tmp_path):
    arguments = ["qa_feedback", configs[0], f"output_dir={tmp_path}/o", "metric=bleu"]
    with pytest.raises(UserError, match="they have reward"):
        pipeline_compare.main(arguments)
    assert [stage.name for stage in Stages.last] == ["evaluate-sft"]


def test_the_evaluation_that_checks_the_metric_is_reported_once(configs, tmp_path):
    arguments = ["qa_feedback", configs[0], f"output_dir={tmp_path}/o"]
    pipeline_compare.main([*arguments, "reward=false"])  # with a first pipeline for the check
    assert Stages.reported == ["evaluate-sft"] and len(Stages.last) > 1
    pipeline_compare.main(arguments)
    assert Stages.reported == []


def test_the_place_of_values_does_not_change_what_dev_measures():
    """The sum of a response is the same after every segment and at its end."""
    dense = {"reward": {"polite": {"kind": "length", "place": "segment", "value": 1}}}
    at_end = {"reward": {"polite": {"kind": "length", "place": "end", "value": 1}}}
    other = {"reward": {"polite": {"kind": "length", "place": "end", "value": 2}}}
    for metric in ("reward", "reward/polite", "polite/score"):
        assert measure_on_dev(dense, metric) == measure_on_dev(at_end, metric)
        assert measure_on_dev(dense, metric) != measure_on_dev(other, metric)


def test_names_of_references():
    assert reference_name("outputs/mini/sft") == "sft"
    assert reference_name("outputs/mini/ppo/best") == "ppo"
    assert reference_name("org/model") == "model"


# ---- results -------------------------------------------------------------------------------------


@pytest.fixture
def result(tmp_path):
    """Three runs, two seeds, ten prompts: ppo gains .2 or .4 over SFT, rloo nothing."""
    runs = [
        Run("ppo", "rl", "", ("data.train_file=a.json", "train.lr=1"), algorithm="ppo"),
        Run("rloo", "rl", "", ("data.train_file=a.json",), algorithm="rloo"),
        Run(
            "corrected-sft",
            "sft",
            "b/sft.yml",
            ("data.train_file=a.json",),
            algorithm="corrected-sft",
        ),
    ]

    def write(name: str, values: list[float]) -> None:
        rows = [{"id": id, "oracle/gold": value} for id, value in zip("jihgfedcba", values * 5)]
        write_jsonl(tmp_path / "eval" / f"{name}-test" / "rows.jsonl", rows)

    write("sft", [0.1, 0.5])
    for seed in (0, 1):
        write(f"ppo-seed-{seed}", [0.5, 0.7])
        write(f"rloo-seed-{seed}", [0.1, 0.5])
        write(f"corrected-sft-seed-{seed}", [0.2, 0.5])
        supervised = tmp_path / "corrected-sft" / f"seed-{seed}"
        write_jsonl(supervised / "metrics.jsonl", [{"step": 400, "eval/rougeLsum": 70.0}])
        for name in ("ppo", "rloo"):
            write_jsonl(tmp_path / name / f"seed-{seed}" / "metrics.jsonl", LOG)
            write_text(tmp_path / name / f"seed-{seed}" / "config.yaml", "{}\n")
        write_json(tmp_path / "ppo" / f"seed-{seed}" / "best" / "best.json", {"step": 0})
    seconds = {f"corrected-sft/seed-{seed}": {"seconds": 30.0} for seed in (0, 1)}
    write_json(tmp_path / "stages.json", seconds)
    return compare_runs(tmp_path, "sft", runs, [0, 1], "oracle/gold", "test")


def test_runs_and_differences(result, tmp_path):
    run = result.runs["ppo"].seeds[1]
    assert (run.score, run.episodes, run.seconds, run.kl) == (pytest.approx(0.6), 128.0, 7.0, 3.0)
    assert run.best_kl == 0.0 and result.runs["rloo"].seeds[1].best_kl is None
    difference = result.difference("ppo", "sft")
    assert difference.mean == pytest.approx(0.3) and difference.real
    assert result.differences["rloo_vs_ppo"].mean == pytest.approx(-0.3)
    assert not result.differences["rloo_vs_sft"].real
    assert result.runs["corrected-sft"].seeds[0].seconds == 30.0
    write_json(tmp_path / "summary.json", result.as_dict())
    summary = read_json(tmp_path / "summary.json")
    assert summary["runs"]["ppo"]["seeds"]["1"]["curve"][1]["score"] == 0.7


def test_equal_processor_seconds(result):
    """After the 4 seconds of the cheapest run, the other one is half way from .4 to .8."""
    assert processor_line(result) is None  # not logged
    slow, fast = ([Point(0, 0, 0.4, 0, 0.0), Point(64, 9, 0.8, 1, cpu)] for cpu in (8.0, 4.0))
    seeds = {0: replace(result.runs["ppo"].seeds[0], curve=slow)}
    runs = result.runs | {"ppo": replace(result.runs["ppo"], seeds=seeds)}
    seeds = {0: replace(result.runs["rloo"].seeds[0], curve=fast)}
    measured = replace(result, runs=runs | {"rloo": replace(runs["rloo"], seeds=seeds)})
    line = processor_line(measured)
    assert line == (
        "Processor seconds of training, without evaluation: ppo 8, rloo 4. Dev score after 4 of"
        " them: ppo 0.600, rloo 0.800. Not logged by corrected-sft."
    )
    assert line in table(measured, DISPLAY)
    assert line in page(measured, DISPLAY, None, ORIGIN)
    other_rewards = processor_line(replace(measured, same_on_dev=False))
    assert other_rewards is not None and "Dev score" not in other_rewards


def test_table_and_page_show_them(result):
    text = table(result, DISPLAY)
    assert "2 seeds, gold score on the test prompts; SFT 0.300." in text
    assert "| ppo | 0.600 | 0.600 0.600 | **+0.300 [+0.225, +0.375]** |" in text
    assert "| corrected-sft | 0.350 |" in text
    assert "| KL | KL at the end | seconds |" in text  # of the best policy, and of the last one
    assert "| 0.0 | 3.0 | 7 |\n| rloo |" in text and "|  | 3.0 | 7 |\n| corrected" in text
    # all runs have the same log, in which the score only rises
    line = "first reaches the final one of ppo (95% interval over seeds): ppo 128 [128, 128], rloo"
    assert f"{line} 128" in text
    html = page(result, DISPLAY, None, ORIGIN)
    assert "of ppo (95% interval over seeds): ppo 128" in html
    # with reference=FOLDER, SFT need not be the policy that the runs start from
    assert "KL: from the run's initial policy on dev, of the best policy" in html
    assert "KL from a run's initial policy, per response" in unescape(html)
    assert "KL from SFT" not in html and "KL: from SFT" not in text
    assert html.count("<svg") == 3 and "over SFT" in html
    assert "<script" not in html
    assert "http" not in html.replace("http-equiv", "").replace("http://www.w3.org", "")
    assert "gold on the test prompts; sft 0.300" in table(result, Display())
    assert "Pretrained model" not in html
    assert "One run" not in text and "One run" not in html
    assert "<h1>Comparison · numbers</h1>" in html
    assert "<dt>commit</dt><dd>12ab-modified</dd><dt>command</dt><dd>python -m x &lt;y&gt;" in html
    source = ModelSource("org/tiny", "wheel <tiny>")
    text = "Pretrained model: org/tiny (wheel &lt;tiny&gt;)."
    assert text in page(result, DISPLAY, source, ORIGIN)


def test_the_page_fits_screens_and_paper(result, chromium, tmp_path):
    path = tmp_path / "index.html"
    path.write_text(page(result, DISPLAY, None, ORIGIN), encoding="utf-8")
    for width, media in ((390, "screen"), (680, "print")):
        tab = chromium.new_page(viewport={"width": width, "height": 800})
        tab.emulate_media(media=media)
        tab.goto(path.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        heads = tab.locator("thead th").all_inner_texts()
        assert heads[0] == "run" and all(heads)
        assert violations(tab) == []
        tab.close()


def test_the_page_tells_common_settings_from_those_of_a_run(result):
    html = page(result, DISPLAY, None, ORIGIN)
    assert "Settings of all runs: <code>data.train_file=a.json</code>" in html
    assert html.count("data.train_file=a.json") == 1
    assert html.count("<small>train.lr=1</small>") == 1 and "own settings" in html
    assert html.count("<small>sft.yml</small>") == 1
    for name, run in result.runs.items():
        result.runs[name] = replace(run, overrides=[], config="")
    html = page(result, DISPLAY, None, ORIGIN)
    assert "ettings of" not in html and "own settings" not in html


@pytest.mark.parametrize(
    "rewards, metric, is_same",
    [
        (("{a: {weight: 1}}", "{a: {weight: 1}}"), "reward", True),
        (("{a: {weight: 1}}", "{a: {weight: 2}}"), "reward", False),
        (("{a: {weight: 1}}", "{a: {weight: 1}, b: {}}"), "reward", False),
        (("{a: {weight: 1}}", "{a: {weight: 1}, b: {}}"), "reward/a", True),
        (("{a: {weight: 1}}", "{a: {weight: 2}}"), "oracle/gold", True),
        (("{a: {ckpt: one}}", "{a: {ckpt: two}}"), "a/score", False),
        (("{b: {}, a: {ckpt: one}}", "{a: {ckpt: one}}"), "a/score", True),
        (("{}", "{}\ndata: {dev_file: other.json}"), "oracle/gold", False),
        (("{}", "{}\nevaluation: {examples: 8}"), "oracle/gold", False),
        (("{}", "{}\nevaluation_metrics: [{name: bleu, key: null}]"), "oracle/gold", True),
        (("{}", "{}\nevaluation_metrics: [{name: score, key: judge}]"), "judge/max", False),
    ],
)
def test_dev_rewards_of_different_rewards_are_not_compared(tmp_path, rewards, metric, is_same):
    names = ("ppo", "rloo")
    log = [{"step": 0, f"eval/{metric}": 0.5, "eval/kl": 0.0}, *LOG[1:3]]
    for name, reward in zip(names, rewards, strict=True):
        folder = tmp_path / name / "seed-0"
        write_jsonl(folder / "metrics.jsonl", log)
        (folder / "config.yaml").write_text(f"reward: {reward}\n")
    for name in ("sft", *(f"{name}-seed-0" for name in names)):
        rows = [{"id": "a", metric: 0.5}, {"id": "b", metric: 0.7}]
        write_jsonl(tmp_path / "eval" / f"{name}-test" / "rows.jsonl", rows)
    runs = [Run(name, "rl", "", algorithm=name) for name in names]
    result = compare_runs(tmp_path, "sft", runs, [0], metric, "test")
    assert result.same_on_dev == is_same == bool(result.efficiency)
    html = page(result, Display(), None, ORIGIN)
    assert ("<svg" in html) == is_same
    for text in (unescape(html), table(result, Display())):
        assert ("learning curves cannot be compared" in text) != is_same
        assert ("first reaches the final one" in text) == is_same


def test_a_comparison_of_one_seed_says_what_its_intervals_leave_out(result):
    one = replace(result, seeds=[0])
    text = table(one, DISPLAY)
    assert "95% intervals over prompts only. Bold: " in text and f"\n{ONE_RUN}\n" in text
    assert ONE_RUN in page(one, DISPLAY, None, ORIGIN)


def test_prompts_without_a_value_in_some_evaluation_are_counted(result, tmp_path):
    rows = tmp_path / "eval" / "rloo-seed-1-test" / "rows.jsonl"
    lines = read_jsonl(rows)
    lines[0]["oracle/gold"] = None
    write_jsonl(rows, lines)
    runs = [Run(name, "rl", "", algorithm=name) for name in ("ppo", "rloo")]
    again = compare_runs(tmp_path, "sft", runs, [0, 1], "oracle/gold", "test")
    where = "on the test prompts (without 1 prompt for which an evaluation has no value)"
    assert where in table(again, DISPLAY) and where in page(again, DISPLAY, None, ORIGIN)
    assert again.as_dict()["left_out"] == 1 and result.left_out == 0
    assert again.runs["ppo"].seeds[0].score == pytest.approx((4 * 0.5 + 5 * 0.7) / 9)


def test_the_direction_of_a_metric_does_not_depend_on_noise():
    def run(*scores):
        curve = [Point(64.0 * i, 0.0, score, None) for i, score in enumerate(scores)]
        return RunResult("", "", [], {0: SeedResult(scores[-1], 0, 0, None, curve)})

    runs = {"flat": run(0.4, 0.5, 0.39), "better": run(0.3, 0.6, 0.8)}
    for metric in ("reward", "oracle/gold"):  # of the task's own metric, nothing is known
        known = efficiencies(runs, not lower_is_better(metric, []))
        assert (known["flat"].episodes, known["better"].episodes) == (0, 64)
    assert lower_is_better("ter/corpus", []) and lower_is_better("loss", [])


def test_the_direction_of_a_metric_with_another_key_is_known_too(result, tmp_path):
    runs = [Run(name, "rl", "", algorithm=name) for name in ("ppo", "rloo")]
    for path in tmp_path.glob("eval/*/rows.jsonl"):
        write_jsonl(path, [row | {"surprise": 2.0} for row in read_jsonl(path)])
    for name, scores in (("ppo", (3.0, 4.0)), ("rloo", (3.0, 3.5))):
        lines = [{"step": i, "episodes": i + 1, "eval/surprise": s} for i, s in enumerate(scores)]
        for seed in (0, 1):
            write_jsonl(tmp_path / name / f"seed-{seed}" / "metrics.jsonl", lines)
    metrics = [MetricConfig(name="perplexity", key="surprise", model="m")]
    compared = compare_runs(tmp_path, "sft", runs, [0, 1], "surprise", "test", metrics)
    # a lower perplexity is better, so the initial policy has reached the level of ppo
    assert compared.efficiency["rloo"].episodes == 0


SAME = RunDifference(0.0, -0.1, 0.1, False, 1.0, 1.0, False)
OTHER = RunDifference(0.2, 0.1, 0.3, True, 0.01, 0.04, True)


def test_other_differences():
    """The same algorithm with another config; other pairs only if their interval excludes zero."""
    names = [("ppo", "", "ppo"), ("rloo", "", "rloo"), ("gpg", "", "gpg")]
    names += [("rloo-holistic", "holistic", "rloo"), ("ppo-holistic", "holistic", "ppo")]
    runs = {name: RunResult(group, algorithm, [], {}) for name, group, algorithm in names}
    order = ["sft", *runs]
    pairs = {f"{a}_vs_{b}": OTHER for i, b in enumerate(order) for a in order[i + 1 :]}
    comparison = RunComparison("m", "test", [0], "sft", 0.0, runs, pairs)
    expected = ["gpg_vs_rloo", "rloo-holistic_vs_rloo", "ppo-holistic_vs_rloo-holistic"]
    assert list(comparison.others()) == expected
    pairs |= {name: SAME for name in ("gpg_vs_rloo", "rloo-holistic_vs_rloo")}
    assert list(comparison.others()) == expected[1:]


def test_a_config_is_named_that_is_not_the_first_runs():
    fine, other = (RunResult("", "", [], {}, config) for config in ("fine.yml", "other.yml"))
    comparison = RunComparison("m", "test", [0], "sft", 0.0, {"a": fine, "b": other}, {})
    assert own_config(other, comparison) == ["other.yml"]
    assert own_config(fine, comparison) == []
    comparison.runs["b"] = RunResult("", "", [], {}, "other/fine.yml")
    assert own_config(comparison.runs["b"], comparison) == ["other/fine.yml"]


def test_differences_are_corrected_for_their_number():
    """Of twelve noisy copies of SFT and a better policy, only the better one is significant.

    Some intervals of the copies exclude zero.
    """
    rng = np.random.default_rng(4)
    gold = {"sft": [np.zeros(100)] * 3, "better": [rng.normal(0.5, 0.02, 100) for _ in range(3)]}
    gold |= {
        f"same-{i}": [rng.normal(rng.normal(0, 0.02), 0.05, 100) for _ in range(3)]
        for i in range(12)
    }
    pairs = differences(gold)
    assert len(pairs) == 91
    noise = {name: pair for name, pair in pairs.items() if "better" not in name}
    assert sum(pair.excludes_zero for pair in noise.values()) == 4
    assert not any(pair.real for pair in noise.values())
    assert pairs["better_vs_sft"].real and pairs["better_vs_sft"].excludes_zero
    for pair in pairs.values():
        assert pair.p <= pair.p_corrected <= 1 and pair.real == (pair.p_corrected < 0.05)
        assert pair.excludes_zero == (pair.p < 0.05)


def test_table_and_page_mark_what_is_significant(result):
    shown = result.differences["ppo_vs_sft"]

    def with_difference(**changes):
        changed = RunDifference(**{**shown.__dict__, **changes})
        result.differences["ppo_vs_sft"] = changed
        return table(result, DISPLAY), page(result, DISPLAY, None, ORIGIN)

    text, html = with_difference(real=False, excludes_zero=True)
    assert "| *+0.300 [+0.225, +0.375]* |" in text and "<em>+0.300</em>" in html
    text, html = with_difference(real=False, excludes_zero=False)
    assert "| +0.300 [+0.225, +0.375] |" in text and "<em>" not in html
    text, html = with_difference(low=None, high=None, real=False, excludes_zero=False)
    assert "| +0.300 |" in text and "<small>no interval</small>" in html
    assert "all 6 differences" in text and "all 6 differences" in html
    one = RunComparison("m", "test", [0], "sft", 0.0, {}, {"a_vs_sft": SAME})
    assert "all 1" not in explained(one)


def test_a_seed_that_stopped_early_keeps_its_last_score_in_the_plot():
    whole = [Point(0, 0, 0.2, 0.0), Point(64, 10, 0.4, 1.0), Point(128, 20, 0.8, 2.0)]
    stopped = [Point(0, 0, 0.4, 0.0), Point(64, 12, 0.6, 3.0)]
    episodes = band([whole, stopped], "episodes")
    assert episodes.x.tolist() == [0, 64, 128]
    np.testing.assert_allclose(episodes.y, [0.3, 0.5, 0.7])
    np.testing.assert_allclose(episodes.low, [0.2, 0.4, 0.6])
    np.testing.assert_allclose(episodes.high, [0.4, 0.6, 0.8])
    # after 10 seconds the second seed is between its evaluations, at .4 + .2 * 10 / 12
    seconds = band([whole, stopped], "seconds")
    assert seconds.x.tolist() == [0, 10, 12, 20]
    np.testing.assert_allclose(seconds.y, [0.3, (0.4 + 0.4 + 1 / 6) / 2, (0.48 + 0.6) / 2, 0.7])
    kl = band([whole, stopped], "kl")
    np.testing.assert_allclose(kl.x, [0, 2, 2.5])
    np.testing.assert_allclose(kl.y, [0.3, 0.5, 0.7])


def test_an_override_is_for_the_programs_that_have_its_key(configs, tmp_path, capsys):
    experiment = Experiment("qa_feedback", tmp_path)
    dpo = "dpo:tasks/qa_feedback/training/mini_dpo_config.yml"
    overrides = ["train.total_episodes=64", "train.lr=1e-4"]
    rl, preferences = runs_of(
        experiment, [configs[0], dpo], overrides, CompareSettings(output_dir="o")
    )
    assert rl.overrides == tuple(overrides) and preferences.overrides == ("train.lr=1e-4",)
    note = "note: dpo has no key train.total_episodes: train.total_episodes=64 is for rl\n"
    assert capsys.readouterr().out == note
    with pytest.raises(UserError, match="train.total_episode: unknown key"):
        runs = runs_of(
            experiment, [dpo], ["train.total_episode=64"], CompareSettings(output_dir="o")
        )
        experiment.config_of(runs[0], 0)

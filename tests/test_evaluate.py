from dataclasses import replace

import pytest
import tiny
import yaml

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_json
from fgrlhf.cli import evaluate as module
from fgrlhf.cli.evaluate import EvaluateSettings, policy_name, responses_of
from fgrlhf.configs.sections import Sampling
from fgrlhf.configs.strict import validate
from fgrlhf.configs.yaml_files import read_yaml
from fgrlhf.runs.stage import hold
from fgrlhf.task_config import rl_config
from tasks.qa_feedback.data import mini_world
from tasks.qa_feedback.feedback import load_examples
from tasks.qa_feedback.task import TASK, oracle

QAConfig = rl_config(TASK)


def evaluate(settings):
    return module.evaluate(TASK, settings)


UNUSED = {"kind": "relevance", "ckpt": "no/such/model", "weight": 0}
UNUSED |= {"positive_reward": 1, "negative_reward": -1}
CONFIG = {
    "model": {
        "ckpt": "SFT",
        "max_input_len": 64,
        "max_generated_len": 6,
        "train_generation_kwargs": {"do_sample": True, "temperature": 0.7, "top_k": 20},
        "eval_generation_kwargs": {"do_sample": False, "num_beams": 2},
        "value_model": {"ckpt": "SFT"},
    },
    "reward": {"gold": {"kind": "oracle_gold", "scale": 2.0}, "unused": UNUSED},
    "logging": {"save_dir": "unused"},
}


@pytest.fixture
def world(tmp_path):
    write_json(tmp_path / "test.json", [mini_world.make_row(0, "test", i) for i in range(5)])
    tiny.t5(seed=1).save(tmp_path / "sft")
    tiny.t5(seed=2).save(tmp_path / "fine_grained" / "best")
    config = {**CONFIG, "model": {**CONFIG["model"], "ckpt": str(tmp_path / "sft")}}
    (tmp_path / "config.yml").write_text(yaml.safe_dump(config))
    return tmp_path


def settings(world, **changes):
    given = {"policy": f"{world}/fine_grained/best", "config": f"{world}/config.yml"}
    given |= {"data_dir": str(world), "output_dir": str(world)}
    return EvaluateSettings(**{**given, **changes})


def test_rows_and_summary(world, capsys):
    folder = evaluate(settings(world, num_samples=3, do_sample=True, max_examples=4))
    assert folder == world / "eval" / "fine_grained-test"
    rows, summary = read_jsonl(folder / "rows.jsonl"), read_json(folder / "summary.json")
    assert [row["id"] for row in rows] == [str(i) for i in range(4) for _ in range(3)]
    truth = {f"oracle/{name}" for name in ("gold", "relevance", "factuality", "completeness")}
    assert set(summary) == truth | {"reward", "reward/gold", "rougeLsum", "length", "kl"}
    assert all(set(interval) == {"mean", "low", "high"} for interval in summary.values())
    assert summary["kl"]["mean"] != 0  # a policy other than the reference
    assert len({row["response"] for row in rows[:3]}) > 1
    printed = capsys.readouterr().out
    assert "oracle/gold" in printed and "evaluate fine_grained-test: done" in printed
    unchanged = read_json(evaluate(settings(world, policy=f"{world}/sft")) / "summary.json")
    assert unchanged["kl"] == {"mean": 0, "low": None, "high": None}  # equal values: no interval


def test_figures_of_parts_are_added_without_new_samples(world, capsys):
    folder = evaluate(settings(world))
    assert not (folder / "slices.json").exists()
    capsys.readouterr()
    parts = ("length", "position", "meta.question")
    assert evaluate(settings(world, slices=parts)) == folder
    said = capsys.readouterr().out
    assert "evaluated before" in said and "by length" in said and "by meta.question" in said
    slices = read_json(folder / "slices.json")
    assert list(slices) == list(parts)
    rows = read_jsonl(folder / "rows.jsonl")
    for name in ("length", "meta.question"):
        assert sum(part["cases"] for part in slices[name]) == len(rows)
    with pytest.raises(UserError, match="no prompt has the key `nothing`"):
        evaluate(settings(world, slices=("meta.nothing",)))
    assert (folder / "slices.json").exists()  # refused before anything is done
    with pytest.raises(ValueError, match="`lenght` is no slice: write length"):
        settings(world, slices=("lenght",))
    evaluate(settings(world))
    assert not (folder / "slices.json").exists()  # of another command


def test_one_prompt_has_no_interval(world, capsys):
    write_json(world / "test.json", [mini_world.make_row(0, "test", 0)])
    summary = read_json(evaluate(settings(world)) / "summary.json")
    assert {(metric["low"], metric["high"]) for metric in summary.values()} == {(None, None)}
    assert "(no interval: few prompts, or all have this value)" in capsys.readouterr().out
    evaluate(settings(world))
    reused, units, *table = capsys.readouterr().out.splitlines()
    assert "reusing" in reused and units == "95% intervals over 1 prompt"
    assert "(no interval: few prompts, or all have this value)" in table[0]


def test_reused_until_something_changes(world, capsys):
    folder = evaluate(settings(world))
    before = read_jsonl(folder / "rows.jsonl")
    capsys.readouterr()
    assert evaluate(settings(world)) == folder
    reused, *table = capsys.readouterr().out.splitlines()
    assert reused == f"fine_grained-test: evaluated before, reusing {folder}"
    assert any(line.split()[0] == "rougeLsum" for line in table)
    tiny.t5(seed=3).save(world / "fine_grained" / "best")
    assert "done" in (evaluate(settings(world)), capsys.readouterr().out)[1]
    assert read_jsonl(folder / "rows.jsonl") != before
    assert len(read_jsonl(evaluate(settings(world, max_examples=2)) / "rows.jsonl")) == 2


@pytest.mark.parametrize("name", ["rows.jsonl", "summary.json"])
def test_a_result_with_a_missing_file_is_evaluated_anew(world, capsys, name):
    (evaluate(settings(world, max_examples=1)) / name).unlink()
    capsys.readouterr()
    assert (evaluate(settings(world, max_examples=1)) / name).exists()
    assert "note: " not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["rows.jsonl", "summary.json"])
def test_a_damaged_result_is_not_reused(world, name):
    path = evaluate(settings(world, max_examples=1)) / name
    path.write_text("{}")
    with pytest.raises(UserError, match=f"(?s){name}.* damaged: remove {path.parent} and run"):
        evaluate(settings(world, max_examples=1))


def test_what_is_replaced_is_said(world, capsys):
    tiny.t5(seed=3).save(world / "fine_grained" / "final")
    evaluate(settings(world, max_examples=1))
    capsys.readouterr()
    folder = evaluate(settings(world, max_examples=1, policy=f"{world}/fine_grained/final"))
    out = capsys.readouterr().out
    assert f"note: this replaces the evaluation in {folder}, which" in out
    policies = f"{world}/fine_grained/best there, {world}/fine_grained/final now"
    assert f"  policy: {policies}" in out and "\nGive name=... to keep both.\n" in out


def test_another_model_by_an_environment_variable_is_evaluated_anew(world, monkeypatch):
    path = world / "config.yml"
    path.write_text(path.read_text().replace(f"{world}/sft", "${REFERENCE}"))
    monkeypatch.setenv("REFERENCE", f"{world}/sft")
    assert read_json(evaluate(settings(world)) / "summary.json")["kl"]["mean"] != 0
    monkeypatch.setenv("REFERENCE", f"{world}/fine_grained/best")  # the policy itself
    assert read_json(evaluate(settings(world)) / "summary.json")["kl"]["mean"] == 0


def test_another_setting_by_an_environment_variable_is_evaluated_anew(world, monkeypatch, capsys):
    path = world / "config.yml"
    config = yaml.safe_load(path.read_text())
    config["model"]["max_generated_len"] = "${LONGEST}"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("LONGEST", "6")
    folder = evaluate(settings(world))
    assert read_yaml(folder / "config.yaml")["resolved"]["model"]["max_generated_len"] == 6
    capsys.readouterr()
    evaluate(settings(world))
    assert "evaluated before" in capsys.readouterr().out
    monkeypatch.setenv("LONGEST", "3")
    evaluate(settings(world))
    assert "evaluated before" not in capsys.readouterr().out


def test_without_rewards_none_is_loaded(world):
    path = world / "config.yml"
    path.write_text(path.read_text().replace("weight: 0", "weight: 1"))
    with pytest.raises(UserError, match="no/such/model"):
        evaluate(settings(world))
    assert not (world / "eval").exists()
    assert "reward" not in read_json(evaluate(settings(world, reward=False)) / "summary.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation_metrics": [{"name": "perplexity", "model": "no/such/model"}]},
        {"search": {"scorer": {"kind": "python", "of": "no.such"}}, "do_sample": True},
    ],
)
def test_a_mistake_keeps_the_earlier_results(world, changes):
    folder = evaluate(settings(world, max_examples=1))
    with pytest.raises(UserError, match="no.such"):
        evaluate(settings(world, max_examples=1, **changes))
    assert (folder / "rows.jsonl").exists() and (folder / "result.json").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"policy": "nowhere/at/all"}, "no language model could be loaded from `nowhere/at/all`"),
        ({"split": "dev"}, "dev.json does not exist"),
        ({"config": "gone.yml"}, "gone.yml cannot be read"),
    ],
)
def test_missing_inputs_are_named(world, changes, message):
    with pytest.raises(UserError, match=message):
        evaluate(settings(world, **changes))


def test_a_prompt_without_a_key_of_a_metric_is_refused_before_generation(world, monkeypatch):
    def topic(prompt, text):
        return {"topic": float(len(prompt.meta["topic"]))}

    monkeypatch.setattr(module, "load", lambda *arguments: pytest.fail("a model was loaded"))
    task = replace(TASK, metrics=lambda prompts: (topic,))
    message = r"test\.json: the metric topic .* 'topic' .*prompt 0 lacks"
    with pytest.raises(UserError, match=message):
        module.evaluate(task, settings(world))


def test_how_answers_are_drawn(world):
    config = validate(QAConfig, yaml.safe_load((world / "config.yml").read_text()), "test")
    assert responses_of(settings(world, do_sample=True), config) == Sampling(6, True, 0.7, 20)
    assert responses_of(settings(world, do_sample=False), config) == Sampling(6, False)
    assert responses_of(settings(world), config) == Sampling(6, False, num_beams=2)


@pytest.mark.parametrize(
    "do_sample, message",
    [
        (None, r"eval_generation_kwargs.do_sample=false, so all .*: set do_sample=true, or leave"),
        (False, "do_sample is false, so all .*: set do_sample=true, or leave num_samples"),
        (True, "train_generation_kwargs.do_sample=false, so all .*: set it to true, or leave"),
    ],
)
def test_several_responses_that_would_be_the_same_are_refused(world, do_sample, message):
    path = world / "config.yml"
    tree = yaml.safe_load(path.read_text())
    tree["model"]["train_generation_kwargs"] = {"do_sample": False}
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match=f"num_samples is 2, but .*{message}"):
        evaluate(settings(world, num_samples=2, do_sample=do_sample))
    if do_sample:  # the other values are refused when the settings are read
        search = {"scorer": {"kind": "python", "of": "no.such"}}
        with pytest.raises(UserError, match="a search chooses among sampled steps, but .*=false"):
            evaluate(settings(world, search=search, do_sample=do_sample))


def test_names_and_oracle(world):
    assert (
        policy_name("outputs/mini/fine_grained/best")
        == policy_name("outputs/mini/fine_grained")
        == "fine_grained"
    )
    assert policy_name("outputs/sft/") == "sft" and policy_name("t5-large") == "t5-large"
    prompts = load_examples(world / "test.json")
    assert len(oracle(prompts)) == 1 and oracle([]) == ()
    write_json(
        world / "real.json",
        [{"text": "question: Who?", "answer": ["He."], "question": "Who made it?", "passages": []}],
    )
    assert oracle(load_examples(world / "real.json")) == ()


def test_two_at_once_are_refused(world):
    with (
        hold(world / "eval" / "fine_grained-test"),
        pytest.raises(UserError, match="another process works in"),
    ):
        evaluate(settings(world))

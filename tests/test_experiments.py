"""The studies on the tasks: one walk over all of them, and what every study does."""

import os
from importlib import import_module
from pathlib import Path

import pytest
from pydantic import Field
from test_docs import Command, Programs

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_text
from fgrlhf.configs.strict import StrictModel
from fgrlhf.pipeline.experiments import Experiment
from fgrlhf.pipeline.stages import Pipeline, Stage
from fgrlhf.pipeline.study import Plan, Study, markdown
from tasks.experiments import __main__ as command
from tasks.experiments.__main__ import STUDIES
from tasks.experiments.stages import ROOT

ON_THE_DEMO = (
    *("science", "compare", "second_round", "active", "noisy_annotators"),
    *("hole", "hacks", "credit"),
)
# case -> study and settings; {} is a folder that has the files of the demo, of people and a model
CASES = {
    **{name: (name, {"base_dir": "{}", "seeds": "3"}) for name in ON_THE_DEMO},
    "demo": ("demo", {}),
    "demo, chinese": ("demo", {"language": "chinese", "seed": 1}),
    "demo, small": ("demo", {"scale": "small", "model": "{}/model"}),
    "real_feedback": ("real_feedback", {"data_dir": "{}/data", "model": "{}/model"}),
    "real, sentiment": ("real", {"task": "sentiment", "model": "{}/model"}),
    "real, detoxification": ("real", {"task": "detoxification", "model": "{}/model"}),
    "mini": ("mini", {}),
}


@pytest.fixture
def base(tmp_path) -> Path:
    """A folder with the files that studies start from."""
    folder = tmp_path / "base"
    rows = [f"{split}{kind}" for split in ("train", "dev") for kind in ("", "_feedback")]
    files = [f"data/{name}.json" for name in rows]
    for name in ("NF-ERR_subsentence", "F-ERR_sentence", "COMP_sequence"):
        files += [f"derived/{name}/{split}.json" for split in ("train", "dev")]
    models = ("sft", "base_model", "fine_grained/best", "model")
    for name in (*models, "rel_rm", "fact_rm", "comp_rm", "baseline_rm"):
        files += [f"{name}/config.json", f"{name}/model.safetensors"]
    for name in (*files, "generated/sft-dev/samples.jsonl", "eval/sft-test/rows.jsonl"):
        write_text(folder / name, "[]")
    return folder


@pytest.fixture
def planned(base, tmp_path):
    """The plan of a case."""

    def plan(case: str) -> Plan:
        name, settings = CASES[case]
        study = import_module(f"tasks.experiments.{name}").STUDY
        given = {
            key: value.format(base) if isinstance(value, str) else value
            for key, value in settings.items()
        }
        return study.plan(study.settings(output_dir=str(tmp_path / "out"), **given))

    return plan


def arguments_of(stage: Stage) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in stage.command if "=" in part)


def test_every_study_is_walked():
    assert {name for name, _ in CASES.values()} == set(STUDIES)


@pytest.mark.parametrize("case", CASES)
def test_stages_name_earlier_stages_and_files_that_exist(case, planned):
    plan = planned(case)
    names = [stage.name for stage in plan.stages]
    outputs = [output for stage in plan.stages for output in stage.outputs]
    assert len(set(names)) == len(names) and len(set(outputs)) == len(outputs)
    for place, stage in enumerate(plan.stages):
        assert set(stage.needs) <= set(names[:place]), stage.name
        scripts = [part for part in stage.command if part.endswith(".sh")]
        assert all((ROOT / script).is_file() for script in scripts)
        for pattern in stage.reads:
            is_optional = Path(pattern).is_absolute() or "**" in pattern
            assert is_optional or any(ROOT.glob(pattern)), pattern


@pytest.mark.parametrize("case", CASES)
def test_a_stage_reads_only_outputs_of_stages_that_it_needs(case, planned):
    plan = planned(case)
    needed: dict[str, set[str]] = {}
    writers = {
        str(plan.experiment.out / path): stage.name
        for stage in plan.stages
        for path in stage.outputs
    }
    for stage in plan.stages:
        needed[stage.name] = {stage.name}.union(*(needed[name] for name in stage.needs))
        for value in arguments_of(stage).values():
            for path in value.split(","):
                folders = {path, *map(str, Path(path).parents)}
                assert {writers[name] for name in folders & writers.keys()} <= needed[stage.name]


# the scripts of `mini` are usage lines, which test_docs.py tests
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("mini", "demo, chinese")])
def test_programs_accept_the_arguments_of_their_stages(
    case, planned, base, tmp_path, monkeypatch, capsys
):
    plan = planned(case)
    for name, value in plan.experiment.environment.items():
        monkeypatch.setenv(name, value)
    seen = set()
    for number, stage in enumerate(plan.stages):
        program = next(part for part in stage.command[1:] if part != "-m")
        configs = tuple(part for part in stage.command if part.endswith(".yml"))
        if (program, configs) in seen:
            continue
        seen.add((program, configs))
        folder = tmp_path / str(number)
        folder.mkdir()
        name = "bash" if stage.command[0] == "bash" else "python"
        variables = (f"SCALE={plan.experiment.environment['SCALE']}",)
        with monkeypatch.context() as patch:
            patch.setenv("PATH", os.environ["PATH"])
            Programs(patch, folder).run(Command((name, *stage.command[1:]), variables))
    assert seen


FILES_OF_THE_DEMO = {
    "science": {
        "data/train.json",
        "sft/model.safetensors",
        "derived/NF-ERR_subsentence/train.json",
    },
    "compare": {"data/train_feedback.json", "rel_rm/model.safetensors", "sft/model.safetensors"},
    "second_round": {"data/train.json", "data/dev.json", "generated/sft-dev/samples.jsonl"},
    "active": {"data/train.json", "fine_grained/best/config.json", "base_model/config.json"},
    "noisy_annotators": {"data/train_feedback.json", "data/dev_feedback.json"},
    "hole": {"data/train_feedback.json", "rel_rm/model.safetensors", "sft/model.safetensors"},
    "hacks": {
        "sft/model.safetensors",
        "fact_rm/model.safetensors",
        "baseline_rm/model.safetensors",
    },
    "credit": {"data/train_feedback.json", "rel_rm/model.safetensors", "baseline_rm/config.json"},
}


@pytest.mark.parametrize("case", ON_THE_DEMO)
def test_stages_depend_on_the_files_of_the_demo_that_they_read(case, planned, base):
    read = {path for stage in planned(case).stages for path in stage.reads}
    assert {str(base / name) for name in FILES_OF_THE_DEMO[case]} <= read


@pytest.mark.parametrize("case", ON_THE_DEMO)
def test_without_a_demo_the_message_names_it(case, tmp_path):
    study = import_module(f"tasks.experiments.{case}").STUDY
    settings = study.settings(base_dir=str(tmp_path), output_dir=str(tmp_path / "out"))
    with pytest.raises(UserError, match=r"base has no|has no .*: run `make demo` first"):
        study.plan(settings)


# ---- the form ------------------------------------------------------------------------------------


class Settings(StrictModel):
    target: float = Field(default=0.0)


def study_in(folder: Path) -> Study[Settings]:
    """A study with one stage, which writes a number and says so."""
    write = Stage(
        "write", ("bash", "-c", f"echo 0.5 >{folder}/n.json; echo said"), outputs=("n.json",)
    )
    return Study(
        Settings,
        lambda settings: Plan(Experiment("numbers", folder), [write], lanes=1),
        results=lambda settings, plan: {
            "n": read_json(plan.experiment.out / "n.json"),
            "target": settings.target,
        },
        table=lambda result: markdown(["n"], [[f"{result['n']:.1f}"]]),
        name="found",
        verdicts=lambda result: ["n is too low"] if result["n"] < result["target"] else [],
        logs=("write",),
        pages={"the number": "n.json"},
    )


def test_a_study_writes_and_prints_its_results(tmp_path, capsys):
    study_in(tmp_path).run(Settings())
    printed = capsys.readouterr().out
    assert read_json(tmp_path / "found.json") == {"n": 0.5, "target": 0.0}
    assert (tmp_path / "found.md").read_text() == "| n |\n|---|\n| 0.5 |\n"
    assert "said\n\n\n| n |\n|---|\n| 0.5 |\n" in printed
    assert "the whole pipeline: 0.0 minutes" in printed
    assert f"the number: {tmp_path}/n.json" in printed
    study_in(tmp_path).run(Settings())
    assert "write: nothing changed, reused" in capsys.readouterr().out


def test_a_missed_target_is_an_error_after_everything_is_written(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        study_in(tmp_path).run(Settings(target=1.0))
    assert stop.value.code == 1 and (tmp_path / "found.md").exists()
    assert capsys.readouterr().err == "error: these targets are missed:\n  n is too low\n"


def test_stages_run_in_the_repository_of_the_experiment(tmp_path):
    where = Stage("where", ("bash", "-c", f"pwd >{tmp_path}/out/where"), outputs=("where",))
    experiment = Experiment("numbers", tmp_path / "out", root=tmp_path)
    write_json(tmp_path / "out" / "any.json", {})
    pipeline = experiment.run([where], lanes=1)
    assert isinstance(pipeline, Pipeline)
    assert (tmp_path / "out" / "where").read_text().strip() == str(tmp_path)


def test_the_command_lists_its_studies(capsys):
    command.main([])
    assert all(f"  {name} " in capsys.readouterr().out for name in list(STUDIES)[:1])
    with pytest.raises(UserError, match="there is no study `sience`: did you mean `science`"):
        command.main(["sience"])
    with pytest.raises(SystemExit):
        command.main(["science", "--help"])
    assert "usage: python -m tasks.experiments science" in capsys.readouterr().out

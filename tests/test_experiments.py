"""Runs as stages: commands and input files."""

import sys
from pathlib import Path

import pytest

from fgrlhf.base.files import write_json
from fgrlhf.cli import evaluate
from fgrlhf.cli.command_line import settings_from
from fgrlhf.cli.training_program import split_task
from fgrlhf.pipeline import experiments as module
from fgrlhf.pipeline.experiment_settings import split_arguments
from fgrlhf.pipeline.experiments import EvaluationPlan, Experiment, Run, parse_config, program
from fgrlhf.pipeline.stages import Pipeline, Stage


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A config that refers to a checkpoint by a variable, to a data file, and to missing files."""
    (tmp_path / "sft").mkdir()
    for name in ("sft/model.safetensors", "sft/config.json", "sft/notes.txt", "train.json"):
        (tmp_path / name).write_text(name)
    (tmp_path / "c.yml").write_text(
        "model: {ckpt: '${HERE}/sft', other: org/model, dtype: fp32, n: 3, list: [x, '']}\n"
        f"data: {{train_file: {tmp_path}/train.json, dev_file: '${{UNSET}}/dev.json'}}\n"
        f"logging: {{save_dir: {tmp_path}/c.yml}}\n"
    )
    monkeypatch.delenv("HERE", raising=False)
    return tmp_path


def test_commands():
    command, modules = program("tasks.hanoi", "rl", "c.yml", "a=1")
    assert command == (sys.executable, "-m", "fgrlhf.cli.rl", "tasks.hanoi", "c.yml", "a=1")
    assert modules[:3] == ("fgrlhf.cli.rl", "tasks.hanoi", "tasks.hanoi.task")
    assert program("hanoi", "sft", "c.yml")[0][2:] == ("sft.run_sft", "hanoi", "c.yml")


@pytest.mark.parametrize("name", module.PROGRAMS)
def test_the_programs_exist(name):
    root = Path(__file__).parents[1]
    assert (root / module.PROGRAMS[name].replace(".", "/")).with_suffix(".py").exists()


def test_a_run_depends_on_the_files_that_its_config_names(folder):
    config = str(folder / "c.yml")
    experiment = Experiment("numbers", folder / "out", {"HERE": str(folder)})
    files = [str(folder / name) for name in ("sft/config.json", "sft/model.safetensors")]
    assert experiment.named_files(config) == [*files, str(folder / "train.json")]
    assert Experiment("numbers", folder / "out").named_files(config) == [str(folder / "train.json")]
    stage = experiment.training_stage(
        Run("a", "rl", config, (f"x.y={folder}/sft/notes.txt", "z.w=")), 3
    )
    assert stage.name == "a/seed-3" and stage.outputs == ("a/seed-3",)
    assert stage.reads == (config, *files, f"{folder}/sft/notes.txt", f"{folder}/train.json")
    assert stage.command[-1] == "train.seed=3"


def test_files_written_by_its_own_stages_do_not_trigger_a_new_run(folder):
    """The first time such a file does not exist yet; the second time it does."""

    def current(written: str) -> str:
        """The fingerprint of a run if a stage before it writes this folder."""
        before = Stage("before", ("true",), outputs=(written,))
        experiment = Experiment("numbers", folder, {"HERE": str(folder)})
        run = experiment.training_stage(Run("a", "rl", str(folder / "c.yml")), 0)
        return Pipeline([before, run], folder, folder, {}, 1).fingerprints[run.name]

    first = current("sft"), current("other")
    (folder / "sft" / "model.safetensors").write_text("trained again")
    assert current("sft") == first[0]
    assert current("other") != first[1]  # it lies in the output folder, but no stage writes it


def test_a_run_depends_on_the_variables_of_its_config(folder, monkeypatch):
    config = folder / "c.yml"
    config.write_text("train: {lr: '${LR}'}\nlogging: {run_name: '${USER}'}\n")
    experiment = Experiment("numbers", folder / "out")
    plan = EvaluationPlan(str(config), None)
    for value in ("1e-4", "3e-2"):
        monkeypatch.setenv("LR", value)
        run = experiment.training_stage(Run("a", "rl", str(config)), 0)
        for stage in (run, experiment.evaluation_stage(plan, "a", "policy")):
            assert stage.variables == (f"LR={value}",)


def test_overrides_of_sections_name_files_too(folder):
    experiment = Experiment("numbers", folder / "out")
    override = f"reward.a={{kind: sequence_scorer, ckpt: {folder}/sft}}"
    files = experiment.named_files(str(folder / "c.yml"), [override])
    assert f"{folder}/sft/model.safetensors" in files


def test_stages_depend_on_the_files_from_which_a_task_generates_prompts(folder):
    experiment = Experiment("sentiment", folder / "out")
    openings = str(Path(__file__).parents[1] / "tasks/sentiment/data/openings.txt")
    config = str(folder / "c.yml")
    trained = experiment.training_stage(Run("a", "rl", config), 0)
    generated = experiment.evaluation_stage(EvaluationPlan(config, None), "a", "p")
    from_file = experiment.evaluation_stage(EvaluationPlan(config, str(folder)), "a", "p")
    assert openings in trained.reads and openings in generated.reads
    assert openings not in from_file.reads


def test_values_of_a_config(folder):
    experiment = Experiment("numbers", folder, {"HERE": "h"})
    config = str(folder / "c.yml")
    assert experiment.config_value(config, [], "model.ckpt") == "h/sft"
    assert experiment.config_value(config, ["model.ckpt=a", "model.ckpt=b"], "model.ckpt") == "b"
    assert experiment.config_value(config, ["model.ckpt = a"], "model.ckpt") == " a"
    assert experiment.config_value(config, ["model.ckpt=1e3"], "model.ckpt") == "1e3"
    section = ["model.n=4", "model={ckpt: c}"]
    assert experiment.config_value(config, section, "model.ckpt") == "c"
    assert experiment.config_value(config, section, "model.n") is None
    assert experiment.config_value(config, [*section, "model.n=5"], "model.n") == "5"
    assert experiment.config_value(config, ["model.n.deeper=1"], "model.n") == 3
    assert experiment.config_value(config, ["more.model.ckpt=m"], "more.model.ckpt") == "m"
    assert experiment.config_value(config, [], "model.n") == 3
    assert experiment.config_value(config, [], "model.ckpt.deeper") is None
    assert experiment.config_value(config, [], "gone.key") is None


def test_the_policy_of_a_run():
    out = Path("/out")
    assert Run("a", "rl", "").policy(out, 1) == Path("/out/a/seed-1/best")
    assert Run("a", "dpo", "").policy(out, 1) == Path("/out/a/seed-1/best")
    assert Run("a", "sft", "").policy(out, 1) == Path("/out/a/seed-1")


def test_evaluations(folder):
    experiment = Experiment("numbers", folder / "out", {"HERE": str(folder)})
    config = str(folder / "c.yml")
    write_json(folder / "dev.json", [])
    plan = EvaluationPlan(config, str(folder), "dev", num_samples=4, reward=False)
    stage = experiment.evaluation_stage(plan, "sft", folder / "sft", folder="base")
    assert stage.name == "base/evaluate-sft" and stage.outputs == ("base/eval/sft-dev",)
    assert f"output_dir={folder}/out/base" in stage.command
    assert {str(folder / "dev.json"), str(folder / "sft/model.safetensors")} <= set(stage.reads)
    generated = experiment.evaluation_stage(EvaluationPlan(config, None), "a", "p", ("run",))
    assert generated.needs == ("run",)
    absent = ("data_dir", "do_sample", "cluster")
    assert not any(part.startswith(absent) for part in generated.command)
    of_documents = EvaluationPlan(config, None, cluster="meta.doc")
    of_documents = experiment.evaluation_stage(of_documents, "a", "p")
    settings = settings_from(evaluate.Settings, list(of_documents.command[4:]))
    assert settings.cluster == "meta.doc"


def test_command_lines():
    pairs = ["seeds=1", "train.lr=1=2", "submit.cluster=slurm"]
    arguments = split_arguments(["t", "a.yml", "dpo:b.yml", *pairs], "usage")
    assert (arguments.task, arguments.configs) == ("t", ["a.yml", "dpo:b.yml"])
    assert arguments.settings == ["seeds=1", "submit.cluster=slurm"]
    assert arguments.overrides == ["train.lr=1=2"]
    assert parse_config("a.yml") == ("rl", "a.yml") and parse_config("sft:b") == ("sft", "b")


def test_the_path_of_a_config_may_have_an_equals_sign(monkeypatch, tmp_path):
    """A sweep makes such folders."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1e-4").mkdir()
    (tmp_path / "lr=1e-4" / "config.yaml").touch()
    configs = ["lr=1e-4/config.yaml", "sft:lr=1e-4/config.yaml"]
    arguments = split_arguments(["numbers", *configs, "seeds=1"], "usage")
    assert (arguments.configs, arguments.settings) == (configs, ["seeds=1"])
    task, rest = split_task(["numbers", configs[0], "train.lr=1"])
    assert (task.name, rest) == ("numbers", [configs[0], "train.lr=1"])


def test_cores_are_shared_by_lanes(monkeypatch, tmp_path):
    seen = []

    class Stages:
        def __init__(self, stages, root, folder, environment, lanes, launcher=None):
            seen.append(environment)

        def run(self, told=()):
            pass

    monkeypatch.setattr(module, "Pipeline", Stages)
    monkeypatch.setattr(module, "visible_gpus", lambda: [])
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    Experiment("numbers", tmp_path).run([], 2)
    Experiment("numbers", tmp_path).run([], 100)
    Experiment("numbers", tmp_path, {"OMP_NUM_THREADS": "3"}).run([], 2)
    monkeypatch.setattr(module, "visible_gpus", lambda: ["0"])
    Experiment("numbers", tmp_path).run([], 2)
    assert [environment.get("OMP_NUM_THREADS") for environment in seen] == ["4", "1", "3", None]

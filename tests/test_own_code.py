"""Classes of the user, named in a config: their code is an input of runs and evaluations."""

import sys

import pytest
from rl_helpers import config

from fgrlhf.cli.evaluate import EvaluateSettings, inputs_of
from fgrlhf.configs.strict import validate
from fgrlhf.configs.user_class import own_code, own_modules
from fgrlhf.load import load_task
from fgrlhf.pipeline.experiments import EvaluationPlan, Experiment, Run
from fgrlhf.runs.occupied import note_changed_code
from fgrlhf.task import Task
from fgrlhf.task_config import rl_config

REWARD = {"kind": "python", "of": "my_rewards.kind.Politeness"}
TREE = {
    "reward": {
        "polite": REWARD,
        "change": {"kind": "score", "scorer": {"kind": "python", "of": "my_scorers.Score"}},
        "short": {"kind": "length", "max_words": 9, "value": -0.1},
    },
    "evaluation_metrics": [
        {"name": "score", "key": "judge", "scorer": {"kind": "python", "of": "my_judges.Judge"}}
    ],
    "algorithm": {"name": "python", "of": "my_algorithms.Mine"},
    "note": {"of": "not_a.Class"},
}


@pytest.fixture
def my_rewards(tmp_path, monkeypatch):
    """A package of the user in the working directory: the file of its class."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "my_rewards"
    package.mkdir()
    (package / "__init__.py").touch()
    file = package / "kind.py"
    file.write_text("class Politeness:\n    def segment_scores(self, prompts, texts): ...\n")
    yield file
    for name in [name for name in sys.modules if name.startswith("my_rewards")]:
        del sys.modules[name]


def config_with(tmp_path, **reward):
    """The config of an RL run with these rewards."""
    tree = config(tmp_path).model_dump(exclude={"reward"}, exclude_unset=True)
    return validate(rl_config(Task(name="t")), {**tree, "reward": reward}, "a test")


def test_classes_are_found_at_every_place():
    modules = ["my_algorithms", "my_judges", "my_rewards.kind", "my_scorers"]
    assert own_modules(TREE) == modules
    assert own_modules([TREE, {"reward": {"b": REWARD}}]) == modules
    assert own_code(TREE) == {}  # there are no such modules: building the reward names them


def test_the_file_of_a_class_is_an_input_of_evaluations(my_rewards, tmp_path):
    read = config_with(tmp_path, polite=REWARD)
    assert own_code(read) == {"my_rewards.kind": "my_rewards/kind.py"}
    config = tmp_path / "c.yml"
    config.write_text("{}")
    settings = EvaluateSettings(policy="p", config=str(config), output_dir="o", name="n")
    assert "my_rewards/kind.py" in inputs_of(Task(name="t"), settings, read)


def test_the_file_that_prompts_are_generated_from_is_an_input_of_evaluations(tmp_path):
    read = config_with(tmp_path, short={"kind": "length", "max_words": 9, "value": -0.1})
    config = tmp_path / "c.yml"
    config.write_text("{}")
    settings = EvaluateSettings(policy="p", config=str(config), output_dir="o", name="n")
    openings = "tasks/sentiment/data/openings.txt"
    assert openings in inputs_of(load_task("sentiment"), settings, read)
    with_file = settings.model_copy(update={"data_dir": str(tmp_path)})
    assert openings not in inputs_of(load_task("sentiment"), with_file, read)


def test_a_change_of_a_class_is_noted_in_a_run_that_was_killed(my_rewards, tmp_path, capsys):
    read = config_with(tmp_path, polite=REWARD)
    run = tmp_path / "run"
    note_changed_code(Task(name="t"), read, run)  # the run begins; then it is killed
    (run / "checkpoints" / "step-5").mkdir(parents=True)
    note_changed_code(Task(name="t"), read, run)
    assert capsys.readouterr().out == ""
    my_rewards.write_text("# another formula\n")
    note_changed_code(Task(name="t"), read, run)
    assert f"note: my_rewards.kind changed since the run in {run} began" in capsys.readouterr().out


def test_stages_of_experiments_depend_on_the_class(my_rewards, tmp_path):
    path = tmp_path / "rl.yml"
    path.write_text("reward:\n  polite: {kind: python, of: my_rewards.kind.Politeness}\n")
    experiment = Experiment("numbers", tmp_path / "out")
    trained = experiment.training_stage(Run("a", "rl", str(path), ()), seed=0)
    plan = EvaluationPlan(config=str(path), data_dir=None, split="test", num_samples=1, reward=True)
    for stage in (trained, experiment.evaluation_stage(plan, "a", "policy")):
        assert "my_rewards.kind" in stage.modules


@pytest.mark.parametrize(
    "overrides",
    [
        ("reward.polite={kind: python, of: my_rewards.kind.Politeness}",),
        ("reward.polite.kind=python", "reward.polite.of=my_rewards.kind.Politeness"),
    ],
)
def test_stages_depend_on_a_class_that_only_overrides_name(overrides, my_rewards, tmp_path):
    path = tmp_path / "rl.yml"
    path.write_text("reward: {}\n")
    experiment = Experiment("numbers", tmp_path / "out")
    stage = experiment.training_stage(Run("a", "rl", str(path), overrides), seed=0)
    assert "my_rewards.kind" in stage.modules

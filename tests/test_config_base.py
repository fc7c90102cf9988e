"""`base: other.yml`: a config holds only what differs from another one."""

import re
from pathlib import Path
from typing import Literal

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.cli.evaluate import EvaluateSettings, inputs_of
from fgrlhf.configs.strict import StrictModel, load_config
from fgrlhf.configs.yaml_files import config_files, read_config
from fgrlhf.load import load_task
from fgrlhf.pipeline.experiments import Experiment, Run
from fgrlhf.pipeline.fingerprint import fingerprint
from fgrlhf.task_config import rl_config


class Ppo(StrictModel):
    name: Literal["ppo"] = "ppo"
    decay: float = 0.95
    clip: float = 0.2


class Grpo(StrictModel):
    name: Literal["grpo"] = "grpo"
    clip: float = 0.2


class Aspect(StrictModel):
    weight: float = 1.0


class Train(StrictModel):
    lr: float = 1e-5
    steps: int = 10


class Small(StrictModel):
    algorithm: Ppo | Grpo = Ppo()
    train: Train = Train()
    reward: dict[str, Aspect] = {}
    sizes: list[int] = []
    title: str | None = "none"


@pytest.fixture
def folder(tmp_path):
    """A config with a base in another folder."""
    (tmp_path / "shared").mkdir()
    write(
        tmp_path / "shared" / "base.yml",
        "algorithm: {name: ppo, decay: 0.5, clip: 0.1}",
        "train: {lr: 1e-3, steps: 3}",
        "reward: {first: {weight: 2}, second: {weight: 3}}",
        "sizes: [1, 2, 3]",
        "title: a",
    )
    return tmp_path


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def on_base(folder: Path, *lines: str) -> Path:
    return write(folder / "own.yml", "base: shared/base.yml", *lines)


def message(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as raised:
        load_config(Small, path, overrides)
    return str(raised.value)


def test_sections_are_merged_and_other_values_replaced(folder):
    own = on_base(
        folder, "train: {steps: 5}", "reward: {second: {weight: 4}}", "sizes: [7]", "title: null"
    )
    assert load_config(Small, own) == Small(
        algorithm=Ppo(decay=0.5, clip=0.1),
        train=Train(lr=1e-3, steps=5),
        reward={"first": Aspect(weight=2), "second": Aspect(weight=4)},
        sizes=[7],
        title=None,
    )


def test_a_section_of_another_kind_replaces_that_of_the_base(folder):
    assert load_config(Small, on_base(folder, "algorithm: {name: grpo}")).algorithm == Grpo()
    own = on_base(folder, "algorithm: {name: ppo, decay: 0.9}")
    assert load_config(Small, own).algorithm == Ppo(decay=0.9, clip=0.1)
    own = on_base(folder, "algorithm: {decay: 0.9}")
    assert load_config(Small, own).algorithm == Ppo(decay=0.9, clip=0.1)


def test_overrides_come_last(folder):
    own = on_base(folder, "train: {steps: 5}")
    assert load_config(Small, own, ["train.steps=6"]).train == Train(lr=1e-3, steps=6)
    assert "a config names its base in the file" in message(own, "base=shared/base.yml")


def test_a_base_may_have_a_base(folder):
    write(folder / "shared" / "middle.yml", "train: {steps: 4, lr: 2e-3}", "base: base.yml")
    own = write(folder / "own.yml", "base: shared/middle.yml", "train: {lr: 3e-3}")
    assert load_config(Small, own).train == Train(lr=3e-3, steps=4)
    assert config_files(own) == [own, folder / "shared/middle.yml", folder / "shared/base.yml"]
    assert "base" not in read_config(own)


def test_an_absolute_path(folder):
    own = write(folder / "own.yml", f"base: {folder}/shared/base.yml")
    assert load_config(Small, own).title == "a"


def test_circles_are_refused(folder):
    write(folder / "a.yml", "title: a", "base: b.yml")
    write(folder / "b.yml", "train: {steps: 1}", "", "base: ./a.yml")
    text = message(folder / "a.yml")
    assert f"{folder}/b.yml, line 3: `base` names a config that itself starts from" in text
    assert "a.yml -> " in text and "name another one, or remove the key" in text
    assert "a.yml, line 1: `base`" in message(write(folder / "a.yml", "base: a.yml"))


@pytest.mark.parametrize("path", ["gone.yml", "shared", "${HERE}/base.yml", "~/base.yml"])
def test_a_base_that_cannot_be_read(path, folder):
    text = message(write(folder / "own.yml", "# why", f"base: '{path}'"))
    assert f"{folder}/own.yml, line 2: `base`: the config {folder}/{path} cannot be read" in text
    assert "from the folder of the file that names it" in text


@pytest.mark.parametrize("value", ["", "3", "[a.yml]", "{a: b}", "' '"])
def test_a_base_that_is_no_path(value, folder):
    own = write(folder / "own.yml", "title: a", f"base: {value}")
    assert f"{own}, line 2: `base` must be the path of the config" in message(own)


def test_a_base_that_is_no_config(folder):
    write(folder / "shared" / "base.yml", "- a")
    assert f"the config {folder}/shared/base.yml must be a mapping" in message(on_base(folder))


def test_a_mistake_names_the_files(folder):
    text = message(on_base(folder, "train: {stepss: 1}"))
    assert text.startswith(f"{folder}/own.yml with its base shared/base.yml has 1 mistake")
    write(folder / "shared" / "base.yml", "base: ../more.yml")
    write(folder / "more.yml", "title: a")
    text = message(on_base(folder, "train: {stepss: 1}"))
    assert text.startswith(f"{folder}/own.yml with its bases shared/base.yml, more.yml has")


def test_variables_of_a_base_are_expanded(folder, monkeypatch):
    write(folder / "shared" / "base.yml", "title: ${TITLE}", "train: {steps: '${STEPS}'}")
    own = on_base(folder, "train: {lr: 1.0}")
    monkeypatch.setenv("TITLE", "t")
    monkeypatch.setenv("STEPS", "7")
    assert load_config(Small, own) == Small(title="t", train=Train(lr=1.0, steps=7))
    monkeypatch.delenv("STEPS")
    assert "train.steps: the environment variable STEPS is not set" in message(own)
    assert load_config(Small, own, ["train.steps=1"]).train.steps == 1


# ---- what depends on the contents of a config ----------------------------------------------------


def test_a_fingerprint_follows_bases(folder):
    own = on_base(folder)

    def now() -> str:
        return fingerprint(folder, ["run"], ["*.yml"], [], [])

    first = now()
    write(folder / "shared" / "base.yml", "title: changed")
    assert now() != first
    write(own, "base: gone.yml")
    now()  # the stage that reads it says what is wrong


def test_a_run_of_an_experiment_follows_bases(folder, monkeypatch):
    """Its stage depends on the files, the code and the variables that a base names."""
    (folder / "sft").mkdir()
    write(folder / "sft" / "config.json", "{}")
    write(folder / "shared" / "base.yml", f"model: {{ckpt: {folder}/sft}}", "train: {lr: '${LR}'}")
    own = on_base(folder, "logging: {run_name: a}")
    monkeypatch.setenv("LR", "1")
    experiment = Experiment("numbers", folder / "out")
    stage = experiment.training_stage(Run("a", "rl", str(own)), 0)
    assert f"{folder}/sft/config.json" in stage.reads
    assert stage.variables == ("LR=1",)
    assert experiment.config_value(str(own), [], "model.ckpt") == f"{folder}/sft"


def test_an_evaluation_depends_on_the_bases_of_its_config(tmp_path):
    task = load_task("numbers")
    shipped = Path(__file__).parents[1] / "tasks/numbers/mini_rl_config.yml"
    text = re.sub(r"\$\{\w+\}", str(tmp_path), shipped.read_text(encoding="utf-8"))
    base = write(tmp_path / "base.yml", text)
    own = write(tmp_path / "own.yml", "base: base.yml")
    settings = EvaluateSettings(
        policy="p", config=str(own), output_dir=str(tmp_path), data_dir=None, reward=False
    )
    inputs = inputs_of(task, settings, load_config(rl_config(task), own))
    assert str(own) in inputs and base in inputs

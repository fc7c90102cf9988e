"""Other names of keys: read in files and overrides."""

import re
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.configs.names import OTHER_KEYS, current_key, with_current_keys
from fgrlhf.configs.schema import types_at
from fgrlhf.configs.strict import StrictModel, config_from, load_config, validate
from fgrlhf.pipeline.experiments import Experiment, overridden
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.runs.rl_config import RLConfig
from reward_modeling.run_fg_rm import SegmentRMConfig
from reward_modeling.run_pref_rm import PreferenceRMConfig
from sft.config import SFTConfig

CONFIGS = (RLConfig, DPOConfig, SFTConfig, SegmentRMConfig, PreferenceRMConfig)


class Train(StrictModel):
    lr: float = 1.0
    warmup_steps: int = 7
    max_grad_norm: float | None = 1.0


class Evaluation(StrictModel):
    every_steps: int = 50


class Model(StrictModel):
    ckpt: str = ""
    max_input_len: int = 1024


class Small(StrictModel):
    train: Train = Train()
    evaluation: Evaluation = Evaluation()
    model: Model = Model()


PUBLISHED = """
model: {policy_model: {ckpt: a}}
env: {max_input_len: 8}
train: {eval_interval: 5, n_warmup_steps: 3, clip_grad: false, max_grad_norm: 0.5}
"""


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("other, current", OTHER_KEYS.items())
def test_configs_have_the_current_name_and_no_other(other, current):
    has = [bool(types_at(config, current.split("."))) for config in CONFIGS]
    assert any(has) and not any(types_at(config, other.split(".")) for config in CONFIGS)


def test_the_docs_list_the_other_names():
    text = (Path(__file__).parents[1] / "docs" / "runs.md").read_text(encoding="utf-8")
    _, _, table = text.partition("| other name | name |")
    listed = dict(re.findall(r"^\| `([a-z_.]*)` \| `(.*)` \|$", table.split("\n\n")[0], flags=re.M))
    assert listed == OTHER_KEYS


def test_other_names_are_read_in_files_and_overrides(tmp_path):
    for name in ("n_warmup_steps", "warmup_steps"):
        path = written(tmp_path / "a.yml", f"train: {{{name}: 3}}")
        assert load_config(Small, path).train.warmup_steps == 3
        assert load_config(Small, path, ["train.n_warmup_steps=4"]).train.warmup_steps == 4
        assert load_config(Small, path, ["train.warmup_steps=5"]).train.warmup_steps == 5
        assert load_config(Small, path, ["train={n_warmup_steps: 6}"]).train.warmup_steps == 6
        assert config_from(Small, [f"train.{name}=8"]).train.warmup_steps == 8
        assert validate(Small, {"train": {name: 9}}, "test").train.warmup_steps == 9


def test_published_names_of_other_sections(tmp_path):
    path = written(tmp_path / "a.yml", PUBLISHED)
    train = Train(warmup_steps=3, max_grad_norm=None)
    sections = (train, Evaluation(every_steps=5), Model(ckpt="a", max_input_len=8))
    assert load_config(Small, path) == Small(
        **dict(zip(("train", "evaluation", "model"), sections))
    )
    overrides = ["model.policy_model.ckpt=b", "env.max_input_len=9"]
    assert load_config(Small, path, overrides).model == Model(ckpt="b", max_input_len=9)
    with pytest.raises(UserError, match="train.clip_grad: unknown key"):  # clip to which norm?
        load_config(Small, path, ["train.clip_grad=true"])
    assert config_from(Small, ["train.clip_grad=true"]) == Small()


def test_a_frozen_critic_trains_no_layer():
    for frozen, current in ((True, {"train_top_layers": 0}), (False, {})):
        tree = {"model": {"value_model": {"ckpt": "a", "freeze_value_model": frozen}}}
        assert with_current_keys(tree) == {"model": {"value_model": {"ckpt": "a", **current}}}
    both = {"model": {"value_model": {"freeze_value_model": True, "train_top_layers": 2}}}
    assert with_current_keys(both) == both  # its class refuses the other name


def test_an_environment_may_name_the_kind_of_every_class_of_ones_own():
    env = {"of": "games.Guessing", "max_turns": 4}
    assert with_current_keys({"env": {"kind": "python", **env}}) == {"env": env}
    for other in ({"kind": "python"}, {"kind": "prompt", **env}):
        assert with_current_keys({"env": other}) == {"env": other}  # its class refuses `kind`


def test_a_config_may_name_a_key_otherwise_than_its_base(tmp_path):
    written(tmp_path / "base.yml", "train: {n_warmup_steps: 3, lr: 0.5}")
    own = written(tmp_path / "own.yml", "base: base.yml\ntrain: {warmup_steps: 4}")
    assert load_config(Small, own).train == Train(lr=0.5, warmup_steps=4)


def test_a_key_under_both_names_is_refused(tmp_path):
    path = written(tmp_path / "a.yml", "train: {n_warmup_steps: 3, warmup_steps: 4}")
    with pytest.raises(UserError, match="train.n_warmup_steps: this is `train.warmup_steps`, wh"):
        load_config(Small, path)
    path = written(tmp_path / "a.yml", "env: {max_input_len: 3}\nmodel: {max_input_len: 4}")
    with pytest.raises(UserError, match="env: unknown key"):
        load_config(Small, path)


def test_messages_have_the_current_name(tmp_path):
    path = written(tmp_path / "a.yml", "train: {n_warmup_steps: many}")
    with pytest.raises(UserError, match="train.warmup_steps: "):
        load_config(Small, path)


def test_values_of_experiments(tmp_path):
    path = written(tmp_path / "a.yml", "train: {n_warmup_steps: 3}")
    experiment = Experiment("numbers", tmp_path)
    for key in ("train.n_warmup_steps", "train.warmup_steps"):
        assert experiment.config_value(path, [], key) == 3
        assert experiment.config_value(path, ["train.warmup_steps=5"], key) == "5"
    assert overridden(path, ["train={n_warmup_steps: 5}"]) == {"train": {"warmup_steps": 5}}


def test_other_values_stay():
    tree = {"train": None, "warmup": 3, "model": {"warmup": 1, "a.b": 2, 3: 4}, 5: [1]}
    assert with_current_keys(tree) == tree
    assert current_key("train.n_critic_warmup_steps") == "train.n_critic_warmup_steps"

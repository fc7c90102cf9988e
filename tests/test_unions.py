"""Kinds of sections: their old names, and those that are gone."""

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.configs.older_configs import with_new_keys
from fgrlhf.configs.strict import validate
from fgrlhf.configs.unions import REMOVED_KINDS, RENAMED, with_new_names
from fgrlhf.rewards.kinds import LIBRARY_REWARDS
from fgrlhf.scorers.kinds import TEXT_SCORERS
from fgrlhf.task import Task
from fgrlhf.task_config import rl_config

CONFIG = {
    "model": {"policy_model": {"ckpt": "p"}, "value_model": {"ckpt": "v"}},
    "env": {"max_input_len": 8, "max_generated_len": 8},
    "data": {},
    "logging": {"save_dir": "out"},
}
SERVER = {"url": "http://127.0.0.1:8770", "model_sha256": "0" * 64}


def parsed(section: dict):
    return validate(rl_config(Task(name="test")), {**CONFIG, "reward": {"a": section}}, "test")


def test_a_kind_can_be_written_with_its_old_name():
    config = parsed({"kind": "http", **SERVER})
    assert config == parsed({"kind": "reward_server", **SERVER})
    assert config.reward["a"].kind == "reward_server"


def test_a_run_that_recorded_an_old_name_continues():
    config = parsed({"kind": "reward_server", **SERVER})
    recorded = config.model_dump(mode="json")
    recorded["reward"]["a"]["kind"] = "http"
    assert with_new_keys(recorded, config) == config.model_dump(mode="json")


def test_a_kind_that_is_gone_is_named_with_the_way_out():
    scorer = {"kind": "perspective", "attribute": "INSULT", "cache": "a", "empty": 0.0}
    with pytest.raises(UserError) as error:
        parsed({"kind": "increment", "scorer": scorer, "better": "low"})
    message = str(error.value)
    assert "reward.a.scorer.kind: there is no `perspective` any more" in message
    assert "kind: classifier" in message and "kind: python" in message
    metric = {"name": "score", "scorer": scorer}
    with pytest.raises(UserError, match=r"evaluation_metrics.0.scorer.kind: there is no `persp"):
        tree = {**CONFIG, "reward": {"a": {"kind": "reward_server", **SERVER}}}
        validate(rl_config(Task(name="test")), {**tree, "evaluation_metrics": [metric]}, "test")


def test_the_tables_have_no_name_of_a_kind_that_exists():
    kinds = set(LIBRARY_REWARDS) | {kind.model_fields["kind"].default for kind in TEXT_SCORERS}
    assert not kinds & (RENAMED["kind"].keys() | REMOVED_KINDS.keys())
    assert set(RENAMED["kind"].values()) <= kinds


def test_values_have_old_names_too():
    section = {"kind": "classifier", "ckpt": "c", "label": "l", "reads": "difference"}
    assert parsed(section).reward["a"].reads == "increment"
    assert with_new_names({"reads": ["difference"], "kind": None}) == {
        "reads": ["difference"],
        "kind": None,
    }

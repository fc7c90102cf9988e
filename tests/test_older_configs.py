"""Runs of an older release, whose configs lack keys that are new."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.configs.older_configs import Earlier, with_new_keys
from fgrlhf.configs.strict import StrictModel
from fgrlhf.runs.stage import stored_result


class Local(StrictModel):
    kind: Literal["local"] = "local"
    threads: int = 1


class Server(StrictModel):
    kind: Literal["server"] = "server"
    url: str = "here"


class Train(StrictModel):
    lr: float
    packing: bool = False


class Config(StrictModel):
    train: Train
    sampler: Local | Server = Field(default_factory=Local)


class Many(StrictModel):
    """Sections in a list and in a dict, as `evaluation_metrics` and `reward` are."""

    metrics: list[Local | Server] = Field(default_factory=lambda: [Local()])
    rewards: dict[str, Server] = {}


OLD = {"train": {"lr": 0.1}}


def new(packing: bool = False, **sections) -> Config:
    return Config(train=Train(lr=0.1, packing=packing), **sections)


def test_new_keys_get_their_defaults():
    filled = {"train": {"lr": 0.1, "packing": False}, "sampler": {"kind": "local", "threads": 1}}
    assert with_new_keys(OLD, new(packing=True, sampler=Server())) == filled


def test_other_keys_stay():
    other = {"train": {"lr": 0.2, "packing": True}, "sampler": {"kind": "server"}}
    filled = {**other, "sampler": {"kind": "server", "url": "here"}}
    assert with_new_keys(other, new(sampler=Server(url="there"))) == filled
    assert other["sampler"] == {"kind": "server"}  # the result is a copy


def test_sections_in_lists_and_dicts_get_their_new_keys():
    config = Many(metrics=[Server(url="there"), Local()], rewards={"a": Server(), "b": Server()})
    recorded = {
        "metrics": [{"kind": "server"}, {"kind": "local"}],
        "rewards": {"a": {"kind": "server"}, "gone": {"kind": "server"}},
    }
    assert with_new_keys(recorded, config) == {
        "metrics": [{"kind": "server", "url": "here"}, {"kind": "local", "threads": 1}],
        "rewards": {"a": {"kind": "server", "url": "here"}, "gone": {"kind": "server"}},
    }
    # of lists with different lengths, nobody knows which sections belong together
    shorter = {"metrics": [{"kind": "server"}], "rewards": {}}
    assert with_new_keys(shorter, config) == shorter


def test_a_new_list_of_sections_is_filled_in_as_json():
    assert with_new_keys({}, Many()) == Many().model_dump(mode="json")


class Divides(StrictModel):
    level: str
    unit: Annotated[str, Earlier("old", when=lambda section: section["level"] == "word")] = "new"


def test_a_new_key_may_stand_for_what_was_done_before_it_existed():
    for level, before in (("word", "old"), ("whole", "new")):
        recorded = {"level": level}
        assert with_new_keys(recorded, Divides(level=level)) == {"level": level, "unit": before}


@pytest.mark.parametrize("metrics", [[{"kind": "server"}], [{"kind": "server", "url": "here"}]])
def test_a_finished_stage_with_lists_and_dicts_of_sections_is_reused(metrics, tmp_path):
    write_json(tmp_path / "config.yaml", {"metrics": metrics, "rewards": {"a": metrics[0]}})
    write_json(tmp_path / "result.json", {"loss": 1})
    assert stored_result(tmp_path, Many(metrics=[Server()], rewards={"a": Server()}), [])
    for other in (
        Many(metrics=[Server(url="there")], rewards={"a": Server()}),
        Many(metrics=[Server()], rewards={"a": Server(url="there")}),
        Many(metrics=[Server()], rewards={"a": Server(), "b": Server()}),
    ):
        with pytest.raises(UserError, match="holds a run with other settings"):
            stored_result(tmp_path, other, [])


@pytest.mark.parametrize("config", [new(packing=True), new(sampler=Server())])
def test_a_finished_stage_is_reused_only_with_the_defaults(config, tmp_path):
    (tmp_path / "config.yaml").write_text("train: {lr: 0.1}\n")
    write_json(tmp_path / "result.json", {"loss": 1})
    assert stored_result(tmp_path, new(), []) == {"loss": 1}
    with pytest.raises(UserError, match="holds a run with other settings"):
        stored_result(tmp_path, config, [])


def test_a_section_of_another_kind_than_the_default(tmp_path):
    (tmp_path / "config.yaml").write_text("{train: {lr: 0.1}, sampler: {kind: server, url: here}}")
    write_json(tmp_path / "result.json", {"loss": 1})
    assert stored_result(tmp_path, new(sampler=Server()), []) == {"loss": 1}

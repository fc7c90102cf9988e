"""Runs of an older release, whose configs lack keys that are new."""

from typing import Literal

import pytest
from pydantic import Field

from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError
from fgrlhf.files import write_json
from fgrlhf.runs.older_configs import with_new_keys
from fgrlhf.runs.stage import finished


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


@pytest.mark.parametrize("config", [new(packing=True), new(sampler=Server())])
def test_a_finished_stage_is_reused_only_with_the_defaults(config, tmp_path):
    (tmp_path / "config.yaml").write_text("train: {lr: 0.1}\n")
    write_json(tmp_path / "result.json", {"loss": 1})
    assert finished(tmp_path, new(), []) == {"loss": 1}
    with pytest.raises(UserError, match="holds a run with other settings"):
        finished(tmp_path, config, [])


def test_a_section_of_another_kind_than_the_default(tmp_path):
    (tmp_path / "config.yaml").write_text("{train: {lr: 0.1}, sampler: {kind: server, url: here}}")
    write_json(tmp_path / "result.json", {"loss": 1})
    assert finished(tmp_path, new(sampler=Server()), []) == {"loss": 1}

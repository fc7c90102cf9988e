"""Runs of an older release, whose configs lack keys that are new."""

import pytest
from pydantic import Field

from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError
from fgrlhf.files import write_json
from fgrlhf.runs.older_configs import with_new_keys
from fgrlhf.runs.stage import finished


class Sampler(StrictModel):
    kind: str = "local"
    url: str | None = None


class Train(StrictModel):
    lr: float
    packing: bool = False


class Config(StrictModel):
    train: Train
    sampler: Sampler = Field(default_factory=Sampler)


OLD = {"train": {"lr": 0.1}}


def new(packing=False, **sampler) -> Config:
    return Config(train=Train(lr=0.1, packing=packing), sampler=Sampler(**sampler))


def test_new_keys_get_their_defaults_and_others_stay():
    filled = {"train": {"lr": 0.1, "packing": False}, "sampler": {"kind": "local", "url": None}}
    assert with_new_keys(OLD, new(packing=True, kind="server")) == filled
    other = {"train": {"lr": 0.2, "packing": True}, "sampler": {"kind": "server"}}
    filled = {**other, "sampler": {"kind": "server", "url": None}}
    assert with_new_keys(other, new()) == filled
    assert "url" not in other["sampler"]  # it is a copy


@pytest.mark.parametrize("config", [new(packing=True), new(kind="server")])
def test_a_finished_stage_is_reused_only_with_the_defaults(config, tmp_path):
    (tmp_path / "config.yaml").write_text("train: {lr: 0.1}\n")
    write_json(tmp_path / "result.json", {"loss": 1})
    assert finished(tmp_path, new(), []) == {"loss": 1}
    with pytest.raises(UserError, match="holds a run with other settings"):
        finished(tmp_path, config, [])

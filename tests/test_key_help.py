"""What `--help` prints of configs: every key, with its type, default and meaning."""

import importlib
import inspect
import pkgutil
from typing import Literal

import pytest
from pydantic import Field

import fgrlhf
import interface_html
import reward_modeling
import sft
import tasks
from fgrlhf.cli.command_line import describe
from fgrlhf.configs.strict import StrictModel
from fgrlhf.load import load_task
from fgrlhf.task_config import rl_config


class Adapters(StrictModel):
    rank: int = Field(8, description="of the matrices")


class Short(StrictModel):
    """A value for short responses."""

    kind: Literal["short"] = "short"
    weight: float = Field(1.0, description="factor")
    words: int = Field(description="most words")


class Quiet(StrictModel):
    """Always 0."""

    kind: Literal["quiet"] = "quiet"
    weight: float = Field(1.0, description="factor")


class Config(StrictModel):
    name: str | None = Field(None, description="of the run")
    fast: bool = Field(False, description="skip the slow part")
    as_json: bool = Field(False, alias="json", description="JSON output")
    adapters: Adapters | None = Field(None, description="null: train all weights")
    reward: dict[str, Short | Quiet] = Field(description="by name")
    several: list[Adapters] = Field([], description="one after the other")
    size: float | Adapters = Field(0.5, description="a number, or by rank")
    separator: str = Field("\n", description="between steps")


def test_a_line_for_every_key():
    assert describe(Config) == [
        "  name: str|null = null   # of the run",
        "  fast: bool = false   # skip the slow part",
        "  json: bool = false   # JSON output",
        "  adapters: section|null = null   # null: train all weights",
        "  adapters.rank: int = 8   # of the matrices",
        "  reward.<name>.kind: short|quiet = required",
        "  reward.<name>.weight: float = 1.0   # factor",
        "  with kind=short: A value for short responses.",
        "    reward.<name>.words: int = required   # most words",
        "  with kind=quiet: Always 0.",
        "  several: list = []   # one after the other",
        "  several[].rank: int = 8   # of the matrices",
        "  size: float|section = 0.5   # a number, or by rank",
        "  size.rank: int = 8   # of the matrices",
        '  separator: str = "\\n"   # between steps',
    ]


def config_classes() -> list[type[StrictModel]]:
    """Every config class of the packages."""
    classes = []
    for package in (fgrlhf, sft, reward_modeling, interface_html, tasks):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".tests" in module.name or "new_task_files" in module.name:
                continue
            members = vars(importlib.import_module(module.name)).values()
            classes += [
                member
                for member in members
                if inspect.isclass(member)
                and issubclass(member, StrictModel)
                and member.__module__ == module.name
            ]
    return classes


# The schema of annotation pages and the servers' requests are no configs of a command.
NOT_CONFIGS = (
    *("interface_html.schema", "interface_html.server", "interface_html.guard"),
    "interface_html.lead",
    "fgrlhf.rewards.protocol",
)


@pytest.mark.parametrize("model", config_classes(), ids=lambda model: model.__qualname__)
def test_every_key_has_a_meaning(model):
    if model.__module__ in NOT_CONFIGS:
        pytest.skip("not a config")
    without = []
    for line in describe(model):
        key = line.split(":")[0].strip()
        is_tag = key.rpartition(".")[2] in ("kind", "name")
        if "#" not in line and not line.startswith("  with ") and not is_tag:
            without.append(line.strip())
    assert without == []


def test_the_keys_of_a_task_include_its_rewards():
    lines = describe(rl_config(load_task("tasks.hanoi")))
    assert "  with kind=moves: +1, 0 or -1 for each legal move: by how many moves it brings" in (
        "\n".join(lines)
    )
    assert any(line.startswith("    reward.<name>.illegal: float = required") for line in lines)

"""The config of an RL run on a task."""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from pydantic import create_model, model_validator

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.schema import tag_values
from fgrlhf.configs.strict import any_kind
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.rewards.kinds import LIBRARY_REWARDS
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.task import Task


class _TaskConfig(RLConfig):
    """The config of an RL run in which a reward's name can imply its kind."""

    reward_kinds: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _fill_kinds(cls, tree: Any) -> Any:
        if not isinstance(tree, dict) or not isinstance(tree.get("reward"), dict):
            return tree
        filled = {}
        for name, section in tree["reward"].items():
            if isinstance(section, dict) and name in cls.reward_kinds:
                section = {"kind": cls.reward_kinds[name], **section}
            filled[name] = section
        return {**tree, "reward": filled}


@cache
def _rl_config(
    kinds: tuple[type[RewardKind], ...], names: tuple[tuple[str, str], ...]
) -> type[RLConfig]:
    sections: Any = dict[str, any_kind(kinds)]
    config = create_model("RLConfig", __base__=_TaskConfig, reward=(sections, ...))
    config.reward_kinds = dict(names)
    return config


def rl_config(task: Task) -> type[RLConfig]:
    """The config class of an RL run on a task, with the reward kinds of library and task."""
    for name, kind in task.rewards.items():
        _check_kind(task, name, kind)
    kinds = {**LIBRARY_REWARDS, **task.rewards}
    return _rl_config(tuple(kinds.values()), tuple(task.reward_kinds.items()))


def _check_kind(task: Task, name: str, kind: Any) -> None:
    """Raise `UserError` unless `kind` is a class by whose name a config can select a reward."""
    is_kind = isinstance(kind, type) and issubclass(kind, RewardKind)
    if not is_kind or not tag_values(kind, "kind"):
        raise UserError(
            f"`{name}` in the rewards of the task `{task.name}` is {shorten(repr(kind), 80)}: it"
            " must be a subclass of RuleReward or RewardKind that declares its kind, as in"
            f' kind: Literal["{name}"] = "{name}"'
        )

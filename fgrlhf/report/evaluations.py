"""The evaluations in an outputs folder: their splits, their policies and their order."""

import os
from collections.abc import Mapping
from pathlib import Path

from fgrlhf.base.errors import UserError
from fgrlhf.configs.yaml_files import read_yaml
from fgrlhf.report.display import Display


def split_of(evaluation: Path) -> str:
    """The split of the evaluation in `eval/<name>-<split>`; "" if the folder holds something else.

    Names and splits may contain hyphens, so the recorded settings say which part is the split.
    """
    split = _text_at(_settings_of(evaluation), "split")
    if split and evaluation.name.endswith(f"-{split}"):
        return split
    name, _, last_word = evaluation.name.rpartition("-")
    return last_word if name else ""


def policy_of(evaluation: Path) -> str | None:
    """The folder or hub name of the evaluated policy; None if it is not recorded."""
    return _text_at(_settings_of(evaluation), "policy")


def data_dir_of(evaluation: Path) -> str | None:
    """The folder of the prompts; None if the task generated them, or it is not recorded."""
    return _text_at(_settings_of(evaluation), "data_dir")


def in_order(evaluations: Mapping[str, Path], display: Display) -> list[str]:
    """The names of evaluations: the first one is the policy that the others are compared with.

    The names in `display.order` come first. Among the others, the policy that RL starts from, which
    is the reference in the recorded RL config, comes before trained ones, which are in order of
    their names.

    Args:
      evaluations: name -> folder.
    """

    def rank(name: str) -> tuple[int, bool, str]:
        place, _ = display.rank(name)
        return place, not _is_start_of_training(evaluations[name]), name

    return sorted(evaluations, key=rank)


def _is_start_of_training(evaluation: Path) -> bool:
    settings = _settings_of(evaluation)
    policy = _text_at(settings, "policy")
    reference = _text_at(settings, "resolved", "model", "ckpt")
    if policy is None or reference is None:
        return False
    return os.path.normpath(policy) == os.path.normpath(reference)


def _settings_of(evaluation: Path) -> dict:
    try:
        return read_yaml(evaluation / "config.yaml")
    except UserError:  # copied without its settings
        return {}


def _text_at(tree: object, *keys: str) -> str | None:
    """The text at a path in a nested dict; None if there is none."""
    for key in keys:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(key)
    return tree if isinstance(tree, str) else None

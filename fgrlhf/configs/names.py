"""Other names of config keys: those of the published files, and those of earlier configs.

RL, DPO, SFT and reward models have the same name for the same setting. `OTHER_KEYS` has the other
names that are still read: in YAML files, in overrides, and in what earlier runs recorded.
"""

from collections.abc import Mapping
from typing import Any

# key -> its name here; both are paths of a section's key
OTHER_KEYS = {
    "train.n_warmup_steps": "train.warmup_steps",  # published
    "train.training_batch_size_per_card": "train.micro_batch_size",  # published
    "train.warmup": "train.warmup_steps",  # of reward models
}


def current_key(path: str) -> str:
    """The name of a dotted key: `train.n_warmup_steps` -> `train.warmup_steps`."""
    return OTHER_KEYS.get(path, path)


def with_current_keys(tree: Mapping[Any, Any]) -> dict[Any, Any]:
    """A config's nested dict with the current names of its keys, in the same order.

    A key that is given under both names stays: the class of the config refuses the other name.
    """
    renamed = dict(tree)
    for name, section in tree.items():
        if isinstance(section, Mapping):
            renamed[name] = _renamed_section(name, section)
    return renamed


def _renamed_section(name: Any, section: Mapping[Any, Any]) -> dict[Any, Any]:
    renamed = {}
    for key, value in section.items():
        current = OTHER_KEYS.get(f"{name}.{key}", "").rpartition(".")[2]
        is_given_twice = current in section or current in renamed
        renamed[current if current and not is_given_twice else key] = value
    return renamed

"""Other names of config keys: those of the published files.

RL, DPO, SFT and reward models have the same name for the same setting. `OTHER_KEYS` has the other
names that are still read, in YAML files and in overrides.
"""

from collections.abc import Mapping, Sequence
from typing import Any

# key -> its name here; both are paths of a section's key
OTHER_KEYS = {
    "algorithm.cliprange": "algorithm.loss.cliprange",
    "algorithm.entropy_coef": "algorithm.entropy.coef",
    "algorithm.kl_coef": "algorithm.kl.coef",
    "algorithm.lam": "algorithm.gae.lam",
    "algorithm.whiten_rewards": "algorithm.whiten.rewards",
    "logging.wandb_log": "logging.report_to",
    "env.max_input_len": "model.max_input_len",
    "env.max_generated_len": "model.max_generated_len",
    "ppo.cliprange": "algorithm.loss.cliprange",
    "ppo.entropy_coef": "algorithm.entropy.coef",
    "ppo.kl_coef": "algorithm.kl.coef",
    "ppo.lam": "algorithm.gae.lam",
    "ppo.whiten_rewards": "algorithm.whiten.rewards",
    "train.eval_interval": "evaluation.every_steps",
    "train.n_warmup_steps": "train.warmup_steps",
    "train.training_batch_size_per_card": "train.micro_batch_size",
}
# published section -> the section that has its keys here
OTHER_SECTIONS = {"model.policy_model": "model"}


def current_key(path: str) -> str:
    """The name of a dotted key: `train.n_warmup_steps` -> `train.warmup_steps`."""
    for other, current in OTHER_SECTIONS.items():
        if path.startswith(f"{other}."):
            path = current + path.removeprefix(other)
    return OTHER_KEYS.get(path, path)


def with_current_keys(tree: Mapping[Any, Any]) -> dict[Any, Any]:
    """A config's nested dict with the current names of its keys.

    A key that is given under both names stays: the class of the config refuses the other name.
    """
    renamed = _copy(tree)
    for other, current in OTHER_SECTIONS.items():
        for key in list(_section(renamed, other.split("."))):
            _move(renamed, f"{other}.{key}", f"{current}.{key}")
    for other, current in OTHER_KEYS.items():
        _move(renamed, other, current)
    train = _section(renamed, ["train"])  # the published clip_grad: false is the bound null
    if train.get("clip_grad") is False:
        train["max_grad_norm"] = None
    if train.get("clip_grad") is False or _is_clipped(train):
        del train["clip_grad"]
    critic = _section(renamed, ["model", "value_model"])
    frozen = critic.get("freeze_value_model")
    if frozen is False or (frozen is True and "train_top_layers" not in critic):
        del critic["freeze_value_model"]
        critic |= {"train_top_layers": 0} if frozen else {}
    env = _section(renamed, ["env"])  # rewards and judges of one's own have this kind too
    if env.get("kind") == "python" and "of" in env:
        del env["kind"]
    if train.get("cuda_deterministic") is True:  # as published; here it always is
        del train["cuda_deterministic"]
    return renamed


def _is_clipped(train: Mapping[Any, Any]) -> bool:
    return train.get("clip_grad") is True and train.get("max_grad_norm", 1.0) is not None


def _copy(tree: Any) -> Any:
    """A copy of a nested dict, with the same values."""
    if isinstance(tree, Mapping):
        return {key: _copy(value) for key, value in tree.items()}
    return tree


def _section(tree: dict[Any, Any], path: Sequence[str]) -> dict[Any, Any]:
    """The section at a path; an empty one if there is none."""
    for name in path:
        below = tree.get(name)
        tree = below if isinstance(below, dict) else {}
    return tree


def _move(tree: dict[Any, Any], other: str, current: str) -> None:
    """Move a value to another path, unless there is one. A section that is left empty goes."""
    *path, key = other.split(".")
    section = _section(tree, path)
    if key not in section:
        return
    *new_path, new_key = current.split(".")
    target = tree
    for name in new_path:
        target = target.setdefault(name, {})
        if not isinstance(target, dict):
            return
    if new_key in target:
        return
    target[new_key] = section.pop(key)
    if not section:
        del _section(tree, path[:-1])[path[-1]]

"""Messages about the mistakes in a config: one line for each, with its path and a fix."""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from fgrlhf.base.errors import shorten, suggestion
from fgrlhf.base.secrets import MASK, looks_secret
from fgrlhf.configs.names import OTHER_KEYS
from fgrlhf.configs.schema import (
    choices_at,
    keys_at,
    keys_of,
    paths_of,
    sections_at,
    tags_of,
    without_tags,
)

MOST_PLACES = 3  # of a misplaced key in a hint
MOST_SHOWN = 250  # characters of a list of known keys

# keys of other libraries (transformers, TRL, OpenRLHF, verl) and old ones of ours, with the section
# if others have the same name -> ends of our keys' paths
OTHER_NAMES = {
    "adap_kl_ctrl": ("kl.target",),
    "adaptive_kl": ("kl.target",),
    "beta": ("kl.coef",),
    "average_microbatches": ("train.minibatches",),
    "bf16": ("model.dtype",),
    "center_rewards_coefficient": ("centring",),
    "critic_learning_rate": ("value_lr",),
    "dataset_name": ("data.train_file",),
    "clip_high": ("loss.cliprange",),
    "clip_low": ("loss.cliprange",),
    "dropout_in_rollouts": ("train.dropout",),
    "env.kind": ("env.of",),
    "epsilon": ("loss.cliprange",),
    "epsilon_high": ("loss.cliprange",),
    "eval_steps": ("evaluation.every_steps",),
    "evaluation_steps": ("evaluation.every_steps",),
    "gae_lambda": ("gae.lam",),
    "gae_start": ("gae.start",),
    "gradient_accumulation_steps": ("n_minibatches", "micro_batch_size"),
    "importance_sampling_level": ("importance_level",),
    "init_kl_coef": ("kl.coef", "dpo.beta"),
    "kl_coef": ("kl.coef", "dpo.beta"),
    "kl_in": ("kl.part_of",),
    "learning_rate": ("train.lr",),
    "logging_steps": ("log_interval",),
    "lora_alpha": ("lora.alpha",),
    "lora_dropout": ("lora.dropout",),
    "lora_r": ("lora.r",),
    "loss_type": ("dpo.loss", "algorithm.loss.type"),
    "lr": ("train.lr",),
    "lr_scheduler_type": ("lr_schedule",),
    "mask_truncated_completions": ("loss.leave_out",),
    "max_completion_length": ("max_generated_len",),
    "max_length": ("model.max_input_len",),
    "max_new_tokens": ("max_generated_len",),
    "max_prompt_length": ("max_input_len",),
    "max_seq_length": ("model.max_input_len",),
    "max_steps": ("total_episodes",),
    "missing_eos_penalty": ("reward",),
    "model_name_or_path": ("ckpt",),
    "multi_objective_aggregation": ("normalize_aspects",),
    "num_epochs": ("epochs", "total_episodes"),
    "num_generations": ("train_num_samples_per_input", "num_samples"),
    "num_iterations": ("n_ppo_epoch_per_rollout",),
    "num_mini_batches": ("n_minibatches",),
    "num_ppo_epochs": ("n_ppo_epoch_per_rollout",),
    "num_return_sequences": ("train_num_samples_per_input", "num_samples"),
    "num_train_epochs": ("epochs", "total_episodes"),
    "optim": ("optimizer",),
    "output_dir": ("save_dir",),
    "peft_config": ("model.lora",),
    "per_device_eval_batch_size": ("batch_size",),
    "per_device_train_batch_size": ("micro_batch_size",),
    "ppo_epochs": ("n_ppo_epoch_per_rollout",),
    "pretrained_model_name_or_path": ("ckpt",),
    "response_length": ("max_generated_len",),
    "reward_funcs": ("reward",),
    "reward_model_path": ("reward",),
    "reward_weights": ("reward",),
    "save_steps": ("save_every_steps", "evaluation.every_steps"),
    "scale_rewards": ("algorithm.scale",),
    "shuffle": ("train.minibatches",),
    "sft_model_path": ("model.ckpt",),
    "steps_per_generation": ("n_minibatches",),
    "target_kl": ("loss.target_kl", "kl.target"),
    "target_modules": ("lora.target_modules",),
    "token_env": ("token_from",),
    "token_file": ("token_from",),
    "total_steps": ("max_steps", "total_episodes"),
    "use_vllm": ("sampler.kind",),
    "value_model_path": ("value_model.ckpt",),
    "vllm_importance_sampling_clip_max": ("importance_cap",),
    "vllm_server_base_url": ("sampler.url",),
    "warmup_ratio": ("warmup_steps",),
    "whiten_divides_by": ("whiten.divides_by",),
}


class Mistakes(ValueError):
    """Several mistakes in one section, found by a validator and reported together.

    Args:
      mistakes: (key, text) pairs. The key is the path below the section ("a.b" for deeper keys), or
        "" if the text names its keys itself.
    """

    def __init__(self, mistakes: Iterable[tuple[str, str]]):
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(self.lines()))

    def lines(self, section: str = "") -> list[str]:
        """A message for each mistake.

        Args:
          section: the path of the section; "" if the keys are to be named without it.
        """
        lines = []
        for key, text in self.mistakes:
            path = ".".join(part for part in (section, key) if part)
            lines.append(f"{path}: {text}" if path else text)
        return lines


def _missing(
    model: type[BaseModel], location: Sequence[Any], way_to_add: Callable[[str], str]
) -> list[str]:
    """A line for a missing key; for a section, one for each key that must be given in it."""
    path = ".".join(str(part) for part in location)
    for parent in sections_at(model, location[:-1]):
        field = parent.model_fields.get(location[-1])
        section = None if field is None else field.annotation
        if not isinstance(section, type) or not issubclass(section, BaseModel):
            continue  # a value, or a choice of sections
        needed = [key for key, inner in section.model_fields.items() if inner.is_required()]
        return [line for key in needed for line in _missing(model, (*location, key), way_to_add)]
    choices = choices_at(model, [str(part) for part in location])
    known = f"; known: {', '.join(choices)}" if choices else ""
    return [f"{path}: missing; {way_to_add(path)}{known}"]


def explain(
    model: type[BaseModel],
    problem: Mapping[str, Any],
    hide: Callable[[str], str],
    way_to_add: Callable[[str], str],
    is_json: bool = False,
) -> list[str]:
    """The message of one of pydantic's errors: one line, or several for `Mistakes`.

    Args:
      model: the config class.
      problem: an entry of `ValidationError.errors()`. Its `loc` is the location of the value, and
        its `type` says which of pydantic's rules the value breaks.
      hide: masks the secrets in a text.
      way_to_add: tells, for the path of a missing key, how to give it.
      is_json: whether the value is in a file of JSON; otherwise the message has an override.
    """
    location, section = without_tags(model, problem["loc"])
    path = ".".join(str(part) for part in location)
    mistakes = problem.get("ctx", {}).get("error")
    if isinstance(mistakes, Mistakes):
        return mistakes.lines(path)

    rule = problem["type"]
    if rule == "union_tag_invalid":
        return [_unknown_tag(model, path, problem)]
    if rule == "union_tag_not_found":
        key, known = tags_of(sections_at(model, problem["loc"]))
        return [f"{path}.{key}: missing; known: {', '.join(sorted(known))}"]
    if rule == "extra_forbidden":
        if path in OTHER_KEYS and OTHER_KEYS[path] in paths_of(model):
            return [f"{path}: this is `{OTHER_KEYS[path]}`, which is given too: leave {path} out"]
        known = sorted(keys_of(section)) if section else keys_at(model, location[:-1])
        hint = other_place(model, path) or _hint_for_key(model, path, known)
        return [f"{shorten(path)}: unknown key; {hint}"]
    if rule == "missing":
        return _missing(model, location, way_to_add)

    if rule in ("model_type", "model_attributes_type", "dict_type"):
        return [_not_a_section(model, path, problem, hide, is_json)]
    if rule in ("list_type", "tuple_type"):
        given = shorten(hide(str(problem["input"])))
        written = json.dumps([problem["input"]], ensure_ascii=False)
        way = shorten(hide(written)) + " there" if is_json else f"{path}='[{given}]'"
        return [f"{path}: it must be a list (got {given}): write {way}"]

    # Any other rule has a message of its own. "value_error" is a `ValueError` of a validator, which
    # names the value itself where that helps.
    message = problem["msg"].removeprefix("Value error, ")
    if rule == "value_error" and not path:
        return [message]
    message = message[:1].lower() + message[1:]
    if rule != "value_error":
        message += f" (got {shorten(hide(repr(problem['input'])))})"
    if rule == "literal_error" and isinstance(problem["input"], str):
        close = _close_to(problem["input"], choices_at(model, [str(part) for part in location]))
        message += f"; did you mean `{close}`?" if close else ""
    return [f"{shorten(path)}: {message}"]


def _unknown_tag(model: type[BaseModel], path: str, problem: Mapping[str, Any]) -> str:
    """The message about a section whose tag, such as `name: grpoo`, selects no class."""
    key, _ = tags_of(sections_at(model, problem["loc"]))
    tag = problem["ctx"]["tag"]
    # pydantic gives the known tags as one text: "'a2c', 'grpo'"
    known = [word.strip(" '") for word in problem["ctx"]["expected_tags"].split(",")]
    return f"{path}.{key}: there is no `{shorten(tag)}`; {suggestion(tag, known)}"


def _not_a_section(
    model: type[BaseModel],
    path: str,
    problem: Mapping[str, Any],
    hide: Callable[[str], str],
    is_json: bool,
) -> str:
    """The message about a value in place of a section, with how to write the section.

    The example has the key that takes the given value, such as `{cluster: local}` for `local`.
    JSON calls sections objects.
    """
    given = problem["input"]
    if not path:
        return f"there must be keys with values (got {shorten(hide(repr(given)))})"
    location = [str(part) for part in problem["loc"]]
    keys: list[str] = []
    if problem["type"] != "dict_type":  # a dict, whose keys are free
        keys = [key for section in sections_at(model, location) for key in keys_of(section)]
    shown = shorten(hide(repr(given)))
    chosen = next((key for key in keys if given in choices_at(model, [*location, key])), None)
    key = chosen or (keys[0] if keys else "name")
    if is_json:
        value = json.dumps(given) if chosen else "..."
        return f'{path}: it must be an object (got {shown}): write {{"{key}": {value}}} there'
    value = given if chosen else "..."
    return f"{path}: it must be a section (got {shown}): write {path}='{{{key}: {value}}}'"


def other_place(model: type[BaseModel], path: str) -> str | None:
    """A hint that names the places of an unknown key elsewhere in the config; None without any."""
    key = path.rpartition(".")[2]
    names = OTHER_NAMES.get(path) or OTHER_NAMES.get(key, (key,))
    places = []
    for place in paths_of(model):
        if any(f".{place}".endswith(f".{name}") for name in names):
            places.append(place)
    if not 1 <= len(places) <= MOST_PLACES or path in places:
        return None
    return f"did you mean {' or '.join(f'`{place}`' for place in places)}?"


def _hint_for_key(model: type[BaseModel], path: str, known: Sequence[str]) -> str:
    """How to fix an unknown key, given the keys that its section has."""
    section, _, key = path.rpartition(".")
    close = _close_to(key, known)
    if close:
        return f"did you mean `{section}.{close}`?" if section else f"did you mean `{close}`?"
    names = [place.rpartition(".")[2] for place in paths_of(model)]
    close = _close_to(key, names, similarity=0.8)
    elsewhere = other_place(model, close) if close and close != key else None
    return elsewhere or f"known here: {_first_names(known)}" if known else "remove it"


def _first_names(names: Sequence[str]) -> str:
    """The names, or the first of them and the number of the others if the list is long."""
    shown: list[str] = []
    for name in names:
        if len(", ".join([*shown, name])) > MOST_SHOWN:
            return f"{', '.join(shown)} and {len(names) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown)


def _close_to(name: str, known: Sequence[str], similarity: float = 0.6) -> str | None:
    """The known name that is most similar, if its similarity (0 to 1) is at least that."""
    return next(iter(difflib.get_close_matches(name[:100], known, n=1, cutoff=similarity)), None)


# ---- secrets -------------------------------------------------------------------------------------


def secrets_in(tree: Any) -> set[str]:
    """The texts under keys with secret-looking names, in a nested dict or list."""
    secrets = set()
    if isinstance(tree, list):
        for item in tree:
            secrets |= secrets_in(item)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            if isinstance(value, str) and looks_secret(str(key)):
                secrets.add(value)
            else:
                secrets |= secrets_in(value)
    return secrets


def hider_of(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that masks secrets in a text, both verbatim and as escaped by `repr`."""
    forms = set()
    for secret in secrets:
        if secret:
            forms.add(secret)
            forms.add(repr(secret)[1:-1])
    longest_first = sorted(forms, key=len, reverse=True)  # a secret may be part of another

    def hide(text: str) -> str:
        for form in longest_first:
            text = text.replace(form, MASK)
        return text

    return hide

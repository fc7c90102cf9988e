"""Config values that are given as text: overrides such as `train.lr=1e-5`, and `${NAME}`.

In an override, a key that holds text takes the text after `=` as it is: `logging.save_dir=out/a #b`
writes to `out/a #b`, and `${...}` is left to the shell. `null` clears an optional key. All other
keys parse the text as YAML.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_origin

import yaml
from pydantic import BaseModel

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.secrets import looks_secret
from fgrlhf.configs.names import current_key
from fgrlhf.configs.schema import holds_only_text, holds_text_or_sections, sections_of, types_at
from fgrlhf.configs.yaml_files import BASE, DEEPEST, MOST_CHARACTERS, parse_yaml


def value_from_text(model: type[BaseModel], path: Sequence[str], text: str) -> Any:
    """The value of a key that is given as text outside a YAML file, such as in an override.

    A key that holds text takes the text as it is, including `#`, `: `, `${...}` and quotes, except
    that `null` clears an optional key. Any other key (numbers, switches, lists) parses it as YAML.
    A key that holds a text or a list of sections parses what begins with `[`.

    Args:
      model: the config class.
      path: the path of the key, e.g. ("train", "lr").
      text: the text after the `=`.
    """
    allowed = types_at(model, path)
    if text == "null" and type(None) in allowed:
        return None
    return text if _is_text(allowed, text) else parsed_or_text(text)


def _is_text(allowed: Sequence[Any], text: str) -> bool:
    """Whether a text is the value of a key, not YAML of it. A list of sections begins with `[`."""
    is_list = text.lstrip().startswith("[")
    return holds_only_text(allowed) or (holds_text_or_sections(allowed) and not is_list)


def by_dotted_key(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings as one dict: `train.lr` -> value. An empty section is a value."""
    flat = {}
    for key, value in settings.items():
        name = f"{path}{key}"
        is_section = isinstance(value, Mapping) and value
        flat |= by_dotted_key(value, f"{name}.") if is_section else {name: value}
    return flat


def parsed_or_text(text: str) -> Any:
    """The text as YAML. Text that cannot be parsed stays text, which the key's type rejects."""
    if len(text) > MOST_CHARACTERS:
        return text
    try:
        return parse_yaml(text)
    except yaml.YAMLError:
        return text


def apply_override(model: type[BaseModel], tree: dict, override: str) -> str:
    """Set the key of an override ("a.b=c") in the nested dict `tree`, and return the key's path."""
    path, equals, text = override.partition("=")
    path = current_key(path.strip())
    if not equals or not path or path.startswith("-"):
        raise UserError(
            f"`{shorten(override)}` is not an override: write it as section.key=value, e.g."
            " train.lr=1e-5, in quotes if it contains spaces or braces"
        )
    parts = _keys_of_path(model, path)
    if path == BASE and BASE not in model.model_fields:
        raise UserError(
            f"`{shorten(override)}` cannot be an override: a config names its base in the file, as"
            f" `{BASE}: other.yml`"
        )
    if len(parts) > DEEPEST:
        raise UserError(
            f"`{shorten(override)}` names a key {len(parts)} levels deep: no config has one"
        )
    section = tree
    for place, name in enumerate(parts[:-1], 1):
        if section.get(name) is None:
            section[name] = {}
        if not isinstance(section[name], dict):
            above = shorten(".".join(parts[:place]))
            raise UserError(
                f"`{shorten(override)}` sets a key of `{above}`, which has a value and is no"
                f" section: write it as `{above}: {{key: value}}`, or leave this override out"
            )
        section = section[name]
    section[parts[-1]] = value_from_text(model, parts, text)
    return path


def _keys_of_path(model: type[BaseModel], path: str) -> list[str]:
    """The keys of a dotted path. A name in a mapping of texts or numbers may have dots itself.

    `columns.spans.quote=KEY` sets the name `spans.quote` of `columns`, which has no sections.
    """
    parts = path.split(".")
    for place in range(1, len(parts) - 1):
        mappings = [kind for kind in types_at(model, parts[:place]) if get_origin(kind) is dict]
        values = types_at(model, parts[: place + 1])
        if mappings and not any(get_origin(kind) is dict or sections_of(kind) for kind in values):
            return [*parts[:place], ".".join(parts[place:])]
    return parts


class Environment:
    """Expands environment variables, written as ${NAME}, in the strings of a nested dict.

    After `expand`, `unset` has the variables that are not set, each with the path of its key, and
    `secrets` the values that no message may show.
    """

    def __init__(self, model: type[BaseModel]):
        self.model = model
        self.unset: list[tuple[str, str]] = []  # (path of the key, name of the variable)
        self.secrets: set[str] = set()

    def expand(self, value: Any, path: tuple[str, ...] = (), shown_path: str = "") -> Any:
        """The value at a path, with variables expanded in all strings below it.

        Args:
          value: the value, which may be a nested dict or list.
          path: its path, with "" for the index in a list.
          shown_path: its path as messages show it: "reward.aspects[0].name".
        """
        if isinstance(value, dict):
            expanded_dict = {}
            for name, item in value.items():
                shown = f"{shown_path}.{name}".lstrip(".")
                expanded_dict[name] = self.expand(item, (*path, str(name)), shown)
            return expanded_dict
        if isinstance(value, list):
            expanded_list = []
            for i, item in enumerate(value):
                expanded_list.append(self.expand(item, (*path, ""), f"{shown_path}[{i}]"))
            return expanded_list
        if isinstance(value, str):
            return self._expand_text(value, path, shown_path)
        return value

    def _expand_text(self, text: str, path: tuple[str, ...], shown_path: str) -> Any:
        expanded = re.sub(r"\$\{(\w+)\}", lambda match: self._value_of(match[1], shown_path), text)
        if expanded == text or _is_text(types_at(self.model, path), expanded):
            return expanded
        return parsed_or_text(expanded)  # for keys such as `steps: ${STEPS}`

    def _value_of(self, variable: str, shown_path: str) -> str:
        value = os.environ.get(variable)
        if value is None:
            self.unset.append((shown_path, variable))
            return ""
        if looks_secret(variable):
            self.secrets.add(value)
        return value

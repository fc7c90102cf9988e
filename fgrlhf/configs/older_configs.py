"""Reads the configs of runs that an older release began."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from fgrlhf.configs.names import with_current_keys
from fgrlhf.configs.unions import with_new_names


@dataclass(frozen=True)
class Earlier:
    """Metadata of a config's key: what runs did before the key existed, if not its default.

    Args:
      value: of the key, as a JSON value.
      when: whether this holds for a recorded section; the default always holds.
    """

    value: Any
    when: Callable[[Mapping[str, Any]], bool] = lambda section: True


def with_new_keys(old: Mapping[str, Any], config: BaseModel) -> dict[str, Any]:
    """A recorded config with today's names, and defaults of the keys that only `config` has.

    A recorded config has every key of its release, so it lacks only keys that are newer. Without
    them the run behaved as it does with their defaults, or as `Earlier` says.

    Args:
      old: what an earlier run recorded, as JSON values.
      config: of the same class, from this release. If a section had another `kind` then, its
        missing keys do not matter: the kinds differ anyway.
    """
    old = with_current_keys(old)
    filled = with_new_names(old)
    for name, field in type(config).model_fields.items():
        if name in old:
            filled[name] = _filled(filled[name], getattr(config, name))
        elif not field.is_required():
            filled[name] = to_jsonable_python(_earlier_value(field, old))
    return filled


def _earlier_value(field: FieldInfo, section: Mapping[str, Any]) -> Any:
    for note in field.metadata:
        if isinstance(note, Earlier) and note.when(section):
            return note.value
    return field.get_default(call_default_factory=True, validated_data={})


def _filled(old: Any, value: Any) -> Any:
    """A recorded value, with the new keys of the sections in it.

    Sections in a dict belong together by their name, and those in a list by their place. Lists of
    different lengths differ in any case.
    """
    if isinstance(value, BaseModel) and isinstance(old, Mapping):
        return with_new_keys(old, value)
    if isinstance(value, Mapping) and isinstance(old, Mapping):
        filled = {}
        for name, section in old.items():
            filled[name] = _filled(section, value[name]) if name in value else section
        return filled
    if isinstance(value, list | tuple) and isinstance(old, list) and len(value) == len(old):
        return [_filled(old_item, item) for old_item, item in zip(old, value)]
    return old

"""Reads the configs of runs that an older release began."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from fgrlhf.config import StrictModel


def with_new_keys(old: Mapping[str, Any], config: StrictModel) -> dict[str, Any]:
    """A recorded config with the defaults of the keys that `config` has and it lacks.

    A recorded config has every key of its release, so it lacks only keys that are newer. Without
    them the run behaved as it does with their defaults.

    Args:
      old: what an earlier run recorded, as JSON values.
      config: of the same class, from this release.
    """
    return _filled(old, _defaults(config))


def _defaults(config: BaseModel) -> dict[str, Any]:
    """The defaults of all keys of the sections in `config`, as JSON values."""
    defaults = {}
    for name, field in type(config).model_fields.items():
        if field.is_required():
            section = getattr(config, name)
            if isinstance(section, BaseModel):
                defaults[name] = _defaults(section)
            continue
        value = field.get_default(call_default_factory=True, validated_data={})
        defaults[name] = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return defaults


def _filled(old: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    filled = dict(old)
    for name, default in defaults.items():
        if name not in old:
            filled[name] = default
        elif isinstance(default, Mapping) and isinstance(old[name], Mapping):
            filled[name] = _filled(old[name], default)
    return filled

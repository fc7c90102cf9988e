"""Reads the configs of runs that an older release began."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def with_new_keys(old: Mapping[str, Any], config: BaseModel) -> dict[str, Any]:
    """A recorded config with the defaults of the keys that `config` has and it lacks.

    A recorded config has every key of its release, so it lacks only keys that are newer. Without
    them the run behaved as it does with their defaults.

    Args:
      old: what an earlier run recorded, as JSON values.
      config: of the same class, from this release. The section of one kind may have been one of
        another kind then; the two differ in any case.
    """
    filled = dict(old)
    for name, field in type(config).model_fields.items():
        section = getattr(config, name)
        if name in old:
            if isinstance(section, BaseModel) and isinstance(old[name], Mapping):
                filled[name] = with_new_keys(old[name], section)
        elif not field.is_required():
            default = field.get_default(call_default_factory=True, validated_data={})
            is_section = isinstance(default, BaseModel)
            filled[name] = default.model_dump(mode="json") if is_section else default
    return filled

"""Sections that are one of several classes, as selected by their key `kind`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Union

from pydantic import BaseModel, BeforeValidator, Discriminator, Tag

from fgrlhf.configs.strict import refuse

# key -> its values by their old names; both can be written
RENAMED = {"kind": {"http": "reward_server"}, "reads": {"difference": "increment"}}
# name of a kind that is gone -> why, and what to use instead
REMOVED_KINDS = {
    "perspective": (
        "Google's Perspective API ends with 2026. Use kind: classifier with a model of the Hugging"
        " Face hub, or kind: python with a class that asks another service"
        " (docs/own_reward_service.md). Scores of different scorers cannot be compared"
    ),
}


def _kind_of(section: Any) -> str | None:
    """The key `kind` of a section, by which a union of kinds selects its class."""
    if isinstance(section, dict):
        kind = section.get("kind")
        return kind if isinstance(kind, str) else None
    return getattr(section, "kind", None)


def with_new_names(section: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a section, in which old names of values are replaced (RENAMED)."""
    renamed = dict(section)
    for key, names in RENAMED.items():
        if isinstance(section.get(key), str):
            renamed[key] = names.get(section[key], section[key])
    return renamed


def any_kind(kinds: Sequence[type[BaseModel]]) -> Any:
    """The type of a section that is one of `kinds`, as selected by its key `kind`.

    The section may have old names of values (RENAMED).
    """
    tags = [kind.model_fields["kind"].default for kind in kinds]
    tagged = tuple(Annotated[kind, Tag(tag)] for kind, tag in zip(kinds, tags))

    def renamed(section: Any) -> Any:
        if not isinstance(section, dict):
            return section
        kind = _kind_of(section)
        if kind in REMOVED_KINDS and kind not in tags:
            refuse([("kind", f"there is no `{kind}` any more: {REMOVED_KINDS[kind]}")])
        return with_new_names(section)

    return Annotated[Union[tagged], Discriminator(_kind_of), BeforeValidator(renamed)]  # noqa: UP007

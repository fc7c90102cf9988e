"""Sections that are one of several classes, as selected by their key `kind`."""

from collections.abc import Sequence
from typing import Annotated, Any, Union

from pydantic import BaseModel, BeforeValidator, Discriminator, Tag

from fgrlhf.configs.strict import refuse

# old name of a kind -> its name; both can be written
RENAMED_KINDS = {"http": "reward_server"}
# name of a kind that is gone -> why, and what to use instead
REMOVED_KINDS = {
    "perspective": (
        "Google's Perspective API ends with 2026. Use kind: classifier with a model of the Hugging"
        " Face hub, or kind: python with a class that asks another service"
        " (docs/rewards.md). Scores of different scorers cannot be compared"
    ),
}


def kind_of(section: Any) -> str | None:
    """The key `kind` of a section, by which a union of kinds selects its class."""
    if isinstance(section, dict):
        kind = section.get("kind")
        return kind if isinstance(kind, str) else None
    return getattr(section, "kind", None)


def any_kind(kinds: Sequence[type[BaseModel]]) -> Any:
    """The type of a section that is one of `kinds`, as selected by its key `kind`.

    The section may have the old name of a kind (RENAMED_KINDS).
    """
    tags = [kind.model_fields["kind"].default for kind in kinds]
    tagged = tuple(Annotated[kind, Tag(tag)] for kind, tag in zip(kinds, tags))

    def with_new_name(section: Any) -> Any:
        kind = kind_of(section)
        if not isinstance(section, dict) or kind is None or kind in tags:
            return section
        if kind in REMOVED_KINDS:
            refuse([("kind", f"there is no `{kind}` any more: {REMOVED_KINDS[kind]}")])
        return {**section, "kind": RENAMED_KINDS.get(kind, kind)}

    return Annotated[Union[tagged], Discriminator(kind_of), BeforeValidator(with_new_name)]  # noqa: UP007

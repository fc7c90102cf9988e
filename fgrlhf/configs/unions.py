"""Sections that are one of several classes, as selected by their key `kind`."""

from collections.abc import Sequence
from typing import Annotated, Any, Union

from pydantic import BaseModel, Discriminator, Tag


def _kind_of(section: Any) -> str | None:
    """The key `kind` of a section, by which a union of kinds selects its class."""
    if isinstance(section, dict):
        kind = section.get("kind")
        return kind if isinstance(kind, str) else None
    return getattr(section, "kind", None)


def any_kind(kinds: Sequence[type[BaseModel]]) -> Any:
    """The type of a section that is one of `kinds`, as selected by its key `kind`."""
    tagged = tuple(Annotated[kind, Tag(kind.model_fields["kind"].default)] for kind in kinds)
    return Annotated[Union[tagged], Discriminator(_kind_of)]  # noqa: UP007

"""What a config class declares: the types, keys and kinds of section that are allowed at a path.

A section may be of several kinds, which are the classes of a union. Its tag, a key `name` or `kind`
of which each class allows other values than the others, selects it: `algorithm.name: grpo`.
"""

import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel

# tags of a value that may be either of two
NUMBER, SECTION, FILE, LIST = FORMS = ("<number>", "<section>", "<file>", "<list>")

# ---- types ---------------------------------------------------------------------------------------


def types_at(model: type[BaseModel], path: Sequence[str]) -> list[Any]:
    """The types that the value at a path may have, with unions split; [] for an unknown key."""
    found: list[Any] = [model]
    for part in path:
        below = []
        for annotation in found:
            origin = typing.get_origin(annotation)
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                if part in annotation.model_fields:
                    below += _members(annotation.model_fields[part].annotation)
            elif origin is dict:  # `part` is any name
                below += _members(typing.get_args(annotation)[-1])
            elif origin in (list, tuple):  # `part` is any index
                below += _members(typing.get_args(annotation)[0])
        found = below
    return found


def holds_only_text(allowed: Sequence[Any]) -> bool:
    """Whether each of the allowed types is text or null, and at least one is text."""
    not_null = [annotation for annotation in allowed if annotation is not type(None)]
    return bool(not_null) and all(_is_text(annotation) for annotation in not_null)


def holds_text_or_sections(allowed: Sequence[Any]) -> bool:
    """Whether the allowed types are text and lists of sections, and perhaps null."""
    others = [annotation for annotation in allowed if typing.get_origin(annotation) is list]
    rest = [annotation for annotation in allowed if annotation not in others]
    return bool(others) and all(map(sections_of, others)) and holds_only_text(rest)


def choices_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The texts that a `Literal` at a path allows; [] for values of other types."""
    choices = []
    for annotation in types_at(model, path):
        if typing.get_origin(annotation) is typing.Literal:
            choices += [value for value in typing.get_args(annotation) if isinstance(value, str)]
    return choices


def _is_text(annotation: Any) -> bool:
    """Whether a type is str, Path, or a `Literal` of strings."""
    if annotation in (str, Path):
        return True
    arguments = typing.get_args(annotation)
    return bool(arguments) and all(isinstance(argument, str) for argument in arguments)


def _members(annotation: Any) -> list[Any]:
    """The members of a union, also of nested and annotated ones; else the type itself."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        members = []
        for part in typing.get_args(annotation):
            members += _members(part)
        return members
    return [annotation]


def _is_dict(annotation: Any) -> bool:
    return any(typing.get_origin(member) is dict for member in _members(annotation))


# ---- sections and their tags ---------------------------------------------------------------------


def sections_of(annotation: Any) -> list[type[BaseModel]]:
    """The config models inside an annotation such as `Section | None` or `dict[str, Section]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    sections = []
    for part in typing.get_args(annotation):
        sections += sections_of(part)
    return list(dict.fromkeys(sections))  # a class may have several tags


def tag_values(model: type[BaseModel], key: str) -> tuple[str, ...]:
    """The values of a tag that select this class: of its `Literal`, or its default; () if none."""
    info = model.model_fields.get(key)
    if info is not None and typing.get_origin(info.annotation) is typing.Literal:
        return typing.get_args(info.annotation)
    return (info.default,) if info is not None and isinstance(info.default, str) else ()


def _tag_of(model: type[BaseModel]) -> tuple[str, tuple[str, ...]] | None:
    """The key that identifies a kind of section, and its values: ("name", ("grpo",))."""
    found = ((key, tag_values(model, key)) for key in ("name", "kind"))
    return next(((key, values) for key, values in found if values), None)


def tags_of(kinds: Sequence[type[BaseModel]]) -> tuple[str, list[str]]:
    """The key that distinguishes kinds of a section, and its values in all kinds.

    Classes without a tag are left out. At least one must have a tag.
    """
    tags = [tag for tag in map(_tag_of, kinds) if tag is not None]
    key = tags[0][0]
    return key, list(dict.fromkeys(value for _, values in tags for value in values))


# ---- locations of pydantic's errors --------------------------------------------------------------


def sections_at(model: type[BaseModel], location: Sequence[Any]) -> list[type[BaseModel]]:
    """The sections that are allowed at a location.

    A name in a dict (such as a reward's name) or an index in a list does not select a section: the
    sections stay those of the dict or list.
    """
    sections: list[type[BaseModel]] = [model]
    for part in location:
        below = []
        for section in sections:
            if part in section.model_fields:
                below += sections_of(section.model_fields[part].annotation)
        if below:
            sections = below
    return sections


def keys_at(model: type[BaseModel], location: Sequence[Any]) -> list[str]:
    """The keys of the sections that are allowed at a location."""
    keys: set[str] = set()
    for section in sections_at(model, location):
        keys.update(keys_of(section))
    return sorted(keys)


def keys_of(section: type[BaseModel]) -> list[str]:
    """The keys of a section as they are written: a field with an alias has that name."""
    return [field.alias or name for name, field in section.model_fields.items()]


def paths_of(model: type[BaseModel], prefix: str = "") -> list[str]:
    """The dotted paths of all keys, without those below a dict or a list, whose names vary."""
    paths: list[str] = []
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        paths.append(path)
        for member in _members(field.annotation):
            if isinstance(member, type) and issubclass(member, BaseModel):
                paths += paths_of(member, f"{path}.")
    return list(dict.fromkeys(paths))


def without_tags(
    model: type[BaseModel], location: Sequence[Any]
) -> tuple[tuple[Any, ...], type[BaseModel] | None]:
    """A location as in the YAML file, and the last kind of section that a tag selects on the way.

    Pydantic adds the value of the tag to the location, as in ("algorithm", "grpo", "scale") or
    ("reward", "brevity", "length", "max_words"). Tags of values that are a number or a section
    are `FORMS`.
    """
    sections: list[type[BaseModel]] = [model]  # allowed at the parts read so far
    selected: type[BaseModel] | None = None
    yaml_location = []
    is_key_of_dict = False  # whether the next part is a name that the user chose
    for part in location:
        tagged = [section for section in sections if _has_tag(section, part)]
        if len(sections) > 1 and tagged and not is_key_of_dict:
            sections = tagged
            selected = tagged[0]
            continue
        if part in FORMS:  # no name that a user would choose
            continue
        yaml_location.append(part)
        if is_key_of_dict:
            is_key_of_dict = False
            continue
        annotations = []
        for section in sections:
            if part in section.model_fields:
                annotations.append(section.model_fields[part].annotation)
        is_key_of_dict = any(_is_dict(annotation) for annotation in annotations)
        below = []
        for annotation in annotations:
            below += sections_of(annotation)
        if below:
            sections = below
            selected = None
    return tuple(yaml_location), selected


def _has_tag(section: type[BaseModel], value: Any) -> bool:
    tag = _tag_of(section)
    return tag is not None and value in tag[1]

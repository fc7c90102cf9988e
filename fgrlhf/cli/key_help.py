"""The keys that `--help` prints: every key of a config with its type, default and meaning."""

import json
import types
import typing
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fgrlhf.configs.schema import sections_of, tags_of

# kinds of a section -> the path at which their keys have been described
DescribedKinds = dict[tuple[type[BaseModel], ...], str]


def describe(
    model: type[BaseModel],
    prefix: str = "",
    described_kinds: DescribedKinds | None = None,
) -> list[str]:
    """One line per key: path, type, default, meaning.

    A section that may be of several kinds has the common keys first, then those of each kind. Where
    the same kinds are allowed again, a line names the place of these keys.

    Args:
      prefix: of the paths.
      described_kinds: places so far; the function adds to it.
    """
    described_kinds = {} if described_kinds is None else described_kinds
    lines = []
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        sections = sections_of(field.annotation)
        container = typing.get_origin(field.annotation)
        below = {dict: f"{path}.<name>", list: f"{path}[]"}.get(container, path)
        if len(sections) > 1:
            lines += _describe_kinds(sections, below, field, described_kinds)
        elif sections:
            if not field.is_required() and field.default is None or container is list:
                lines.append(_line(path, field, "section"))
            lines += describe(sections[0], f"{below}.", described_kinds)
        else:
            lines.append(_line(path, field, _type_name(field.annotation)))
    return lines


def _line(path: str, field: FieldInfo, type_name: str) -> str:
    types_of = {
        "section": "list" if typing.get_origin(field.annotation) is list else "section|null"
    }
    comment = f"   # {field.description}" if field.description else ""
    return f"  {path}: {types_of.get(type_name, type_name)} = {_default_text(field)}{comment}"


def _default_text(field: FieldInfo) -> str:
    """The default as YAML."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, str) and default.split() != [default]:  # empty, or with white space
        return json.dumps(default)
    return str(default)


def _describe_kinds(
    kinds: list[type[BaseModel]],
    path: str,
    field: FieldInfo,
    described_kinds: DescribedKinds,
) -> list[str]:
    tag_key, names = tags_of(kinds)
    is_single = not path.endswith((">", "]"))
    default = getattr(field.default, tag_key, "required") if is_single else "required"
    lines = [f"  {path}.{tag_key}: {'|'.join(names)} = {default}"]
    place = described_kinds.setdefault(tuple(kinds), path)
    if place != path:
        return [f"{lines[0]}   # the kinds and their keys are those of {place}"]
    lines_of_kind = []
    for kind in kinds:
        described = describe(kind, f"{path}.", described_kinds)
        lines_of_kind.append(
            [line for line in described if not line.startswith(f"  {path}.{tag_key}:")]
        )
    common = [line for line in lines_of_kind[0] if all(line in other for other in lines_of_kind)]
    lines += common
    for kind, name, described in zip(kinds, names, lines_of_kind):
        summary = (kind.__doc__ or "").partition("\n")[0]
        lines.append(f"  with {tag_key}={name}: {summary}".rstrip(": "))
        lines += [f"  {line}" for line in described if line not in common]
    return lines


def _type_name(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return "|".join(str(value) for value in typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return "|".join(_type_name(part) for part in typing.get_args(annotation))
    if origin is typing.Annotated:
        return _type_name(typing.get_args(annotation)[0])
    if annotation is type(None):
        return "null"
    return getattr(annotation, "__name__", str(annotation))

"""Strict typed configuration: YAML plus `a.b=c` overrides, every mistake reported at once.

A config is a frozen pydantic model. Unknown, missing and mistyped keys are collected and reported together, each with
its path, a suggestion and the way out. `1e-5` is a number, a key given twice is an error, an environment variable in a
string (`${DATA_DIR}`) is filled in.
"""

import difflib
import os
import re
import sys
import types
import typing
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticUndefined

from fgrlhf.utils import UserError

Model = TypeVar("Model", bound="StrictModel")


class StrictModel(BaseModel):
    """Base of every config section: immutable, and no key is accepted that is not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="wrap")
    @classmethod
    def _no_truth_value_as_number(cls, value: Any, handler):
        result = handler(value)
        if isinstance(value, bool) and type(result) in (int, float):
            raise ValueError(f"a number is needed, not {str(value).lower()}")
        return result


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as users mean it: `1e-5` is a number, `no`/`on` stay text, a duplicate key is an error."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_FLOAT = (
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.inf|\.nan)$"),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(*_FLOAT)


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would otherwise read as a number, such as the text `1e-5`."""


_Dumper.add_implicit_resolver(*_FLOAT)


def _unique_mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict:
    mapping: dict = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in mapping:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key `{key}` is given twice", key_node.start_mark)
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_yaml(path: str | Path) -> dict:
    """Read a YAML mapping. Raises `UserError` naming the file, the line and the reason."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the config {path} cannot be read: {error.strerror}") from None
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(f"the config {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise UserError(f"the config {path} must be a mapping of sections, it is a {type(value).__name__}")
    return value


def _apply_override(tree: dict, text: str) -> None:
    path, equals, raw = text.partition("=")
    if not equals or not path.strip():
        raise UserError(f"`{text}` is not an override: write it as section.key=value, e.g. train.lr=1e-5")
    try:
        value = yaml.load(raw, Loader=_Loader)
    except yaml.YAMLError:
        value = raw
    *parents, leaf = path.strip().split(".")
    node = tree
    for parent in parents:
        if not isinstance(node.get(parent), dict):
            node[parent] = {}
        node = node[parent]
    node[leaf] = value


def _fill_environment(value: Any, path: str, missing: list[str]) -> Any:
    """Replace ${NAME} in strings; a name that is not set is noted in `missing`."""
    if isinstance(value, dict):
        return {key: _fill_environment(item, f"{path}.{key}".lstrip("."), missing) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_environment(item, f"{path}[{i}]", missing) for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def substitute(match: re.Match) -> str:
        if match[1] not in os.environ:
            missing.append(f"{path}: the environment variable {match[1]} is not set; set it, or give {path}=...")
        return os.environ.get(match[1], "")

    return re.sub(r"\$\{(\w+)\}", substitute, value)


def load_config(model: type[Model], path: str | Path, overrides: typing.Sequence[str] = ()) -> Model:
    """Read `path`, apply `overrides` ("a.b=c"), validate. Raises `UserError` listing every mistake."""
    tree = read_yaml(path)
    for override in overrides:
        _apply_override(tree, override)
    return validate(model, tree, source=str(path))


def validate(model: type[Model], tree: dict, source: str) -> Model:
    """Build `model` from a nested dict; all mistakes in one `UserError`."""
    problems: list[str] = []
    tree = _fill_environment(tree, "", problems)
    if problems:
        raise UserError(f"{source}:\n  " + "\n  ".join(problems))
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        lines = [_explain(model, problem) for problem in error.errors()]
        raise UserError(f"{source} has {len(lines)} mistake{'s' * (len(lines) > 1)}:\n  " + "\n  ".join(lines)) from None


def _explain(model: type[BaseModel], problem: dict) -> str:
    loc, section = _place(model, problem["loc"])
    path = ".".join(str(part) for part in loc)
    if problem["type"] == "union_tag_invalid":
        context = problem["ctx"]
        known = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        close = difflib.get_close_matches(context["tag"], known, n=1)
        hint = f"did you mean `{close[0]}`? " if close else ""
        return f"{path}.name: there is no `{context['tag']}`; {hint}known: {', '.join(known)}"
    if problem["type"] == "extra_forbidden":
        known = sorted(section.model_fields) if section else _keys_at(model, loc[:-1])
        close = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(known)}" if known else "remove it"
        return f"{path}: unknown key; {hint}"
    if problem["type"] == "missing":
        return f"{path}: missing; set it in the file or give {path}=... on the command line"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error" and not path:
        return message
    got = "" if problem["type"] == "value_error" else f" (got {problem['input']!r})"
    return f"{path}: {message[:1].lower() + message[1:]}{got}"


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The config models inside an annotation such as `Section | None` or `dict[str, Section]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _sections(part)]


def _place(model: type[BaseModel], loc: tuple) -> tuple[tuple, type[BaseModel] | None]:
    """A problem's place as it is written in YAML, and the kind of section it is in where a `name` decides on that.

    Pydantic puts the name's value into the place, as in ("algorithm", "grpo", "clip_low").
    """
    owners, plain, chosen = [model], [], None
    for part in loc:
        named = [m for m in owners if "name" in m.model_fields and m.model_fields["name"].default == part]
        if len(owners) > 1 and named:
            owners, chosen = named, named[0]
            continue
        plain.append(part)
        nested = [m for owner in owners if part in owner.model_fields for m in _sections(owner.model_fields[part].annotation)]
        owners = nested or owners
    return tuple(plain), chosen


def _keys_at(model: type[BaseModel], loc: tuple) -> list[str]:
    models: list[type[BaseModel]] = [model]
    for part in loc:
        nested = [m for owner in models if part in owner.model_fields for m in _sections(owner.model_fields[part].annotation)]
        models = nested or models  # a dict key (a reward's name) or a list index: the section below it is meant
    return sorted({key for owner in models for key in owner.model_fields})


def to_yaml(config: StrictModel) -> str:
    """The resolved config as YAML that `load_config` reads back to an equal config."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def describe(model: type[BaseModel], prefix: str = "") -> list[str]:
    """One line per key: path, type, default."""
    lines = []
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        sections = _sections(info.annotation)
        if len(sections) > 1:  # kinds told apart by their name
            lines += _describe_kinds(sections, path, info.default.name)
            continue
        if sections:
            is_dict = typing.get_origin(info.annotation) is dict
            lines += describe(sections[0], f"{path}.<name>." if is_dict else f"{path}.")
            continue
        default = "required" if info.default is PydanticUndefined and info.default_factory is None else info.get_default(call_default_factory=True)
        lines.append(f"  {path}: {_type_name(info.annotation)} = {default}" + (f"   # {info.description}" if info.description else ""))
    return lines


def _describe_kinds(kinds: list[type[BaseModel]], path: str, default: str) -> list[str]:
    """The keys that every kind has once, then those of each kind, marked with its name."""
    names = [kind.model_fields["name"].default for kind in kinds]
    lines = [f"  {path}.name: {'|'.join(names)} = {default}"]
    shown = set()
    for name, kind in zip(names, kinds):
        for line in describe(kind, f"{path}."):
            key = line.split(":")[0].rpartition(".")[2]
            everywhere = all(key in other.model_fields for other in kinds)
            text = line if everywhere else line + (f"; {name}" if "#" in line else f"   # {name}")
            if key != "name" and text not in shown:
                lines.append(text)
            shown.add(text)
    return lines


def _type_name(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(str(value) for value in typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return "|".join(_type_name(part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Annotated:
        return _type_name(typing.get_args(annotation)[0])
    return getattr(annotation, "__name__", str(annotation)) if annotation is not type(None) else "null"


def parse_cli(model: type[Model], argv: typing.Sequence[str] | None = None, usage: str = "") -> Model:
    """Config of a command `python -m module config.yml key=value ...`; `--help` prints every key and exits."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(usage or "usage: <config.yml> [section.key=value ...]")
        print("\n".join(["keys:", *describe(model)]))
        sys.exit(0 if argv else 2)
    return load_config(model, argv[0], argv[1:])


# ---- bounded numbers -----------------------------------------------------------------------------------------------
# Types for config keys. A value that no run can have is refused when the config is read, with the key and the bound,
# before anything is loaded or written.

Seed = Annotated[int, Field(ge=0, lt=2**32)]  # numpy's generators take no other
Count = Annotated[int, Field(ge=1, lt=2**31)]  # of steps, rows, tokens: sizes that fit into 32 bits
NonNegativeCount = Annotated[int, Field(ge=0, lt=2**31)]
Rate = Annotated[float, Field(gt=0, le=100)]  # learning rates; far above any that trains
Positive = Annotated[float, Field(ge=1e-12, le=1e12)]  # other positive numbers: neither vanishing nor overflowing in fp32

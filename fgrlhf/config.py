"""Strict typed configuration: YAML plus `a.b=c` overrides, with all mistakes reported at once.

A config is a frozen pydantic model. Unknown, missing and mistyped keys are collected and reported
together, each with its path, a suggestion and a fix. `1e-5` is a number, dates are text, and a
duplicate key is an error. Environment variables in strings of a YAML file (`${DATA_DIR}`) are
expanded.

In an override, a key that holds text takes the text after `=` as it is: `logging.save_dir=out/a #b`
writes to `out/a #b`, and `${...}` is left to the shell. `null` clears an optional key. All other
keys parse the text as YAML.
"""

import difflib
import os
import re
import types
import typing
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from fgrlhf.errors import UserError, first_problems, shorten, suggestion
from fgrlhf.secrets import MASK, looks_secret

Model = TypeVar("Model", bound="StrictModel")

# Bounds of a config file: far above any real config, and small enough to reject a hostile file
# quickly.
MOST_CHARACTERS = 200_000
MOST_VALUES = 2_000
DEEPEST = 50
MOST_DIGITS = 40

LONGEST_LINE = 400  # of an error message


class StrictModel(BaseModel):
    """Base of every config section: immutable, with declared keys only."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*", mode="wrap")
    @classmethod
    def _no_silent_conversion(cls, value: Any, handler):
        result = handler(value)
        _check_conversion(value, result)
        return result


_SWITCHES = frozenset({"true", "false", "yes", "no", "on", "off"})


def _check_conversion(value: Any, result: Any) -> None:
    """Reject values of another type that pydantic silently converts to a number or a boolean."""
    are_lists = isinstance(value, (list, tuple)) and isinstance(result, (list, tuple))
    if are_lists and len(value) == len(result):
        for item, converted in zip(value, result):
            _check_conversion(item, converted)
        return
    kind = type(result)
    if kind in (int, float) and isinstance(value, bool):
        raise ValueError(f"a number is needed, not {str(value).lower()}")
    if kind in (int, float) and isinstance(value, str):
        raise ValueError(
            f"a number is needed, not the text {shorten(repr(value))}: leave the quotes out"
        )
    if kind is int and isinstance(value, float):
        raise ValueError(f"a whole number is needed, not {value}")
    if kind is bool and not isinstance(value, bool) and str(value).lower() not in _SWITCHES:
        raise ValueError(f"true or false is needed, not {shorten(repr(value))}")


class Mistakes(ValueError):  # noqa: N818
    """Several mistakes in one section, found by a validator and reported together.

    Args:
      mistakes: (key, text) pairs. The key is the path below the section ("a.b" for deeper keys), or
        "" if the text names its keys itself.
    """

    def __init__(self, mistakes: typing.Iterable[tuple[str, str]]):
        self.mistakes = tuple(mistakes)
        super().__init__(
            "; ".join(f"{key}: {text}" if key else text for key, text in self.mistakes)
        )


def refuse(mistakes: typing.Sequence[tuple[str, str]]) -> None:
    """Raise `Mistakes` if there are any."""
    if mistakes:
        raise Mistakes(mistakes)


def unread_keys(
    section: StrictModel, keys: typing.Iterable[str], reason: str
) -> list[tuple[str, str]]:
    """Mistakes for keys that are set to a non-default value although nothing reads them.

    A key that repeats its default is accepted: resolved configs contain every key, and so do the
    published files.

    Args:
      section: the section with the keys.
      keys: the keys that are not read.
      reason: why, and how to fix it; completes a sentence that begins with "... is not read, ".
    """
    mistakes = []
    for key in keys:
        default = type(section).model_fields[key].get_default(call_default_factory=True)
        value = getattr(section, key)
        if value != default:
            mistakes.append((key, f"{shorten(value)} is not read, {reason}"))
    return mistakes


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.2: `1e-5` is a number; `no`, `1:30` and `2026-01-31` stay text.

    Duplicate keys, anchors, aliases and tags are rejected. Input that is nested too deeply or too
    long is rejected before any value is constructed.
    """

    depth = 0
    values = 0

    def compose_node(self, parent, index):
        event = self.peek_event()
        self.values += 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _refused(
                "anchors and aliases (`&`, `*`) are not supported: write the value out, in quotes"
                " if it is text",
                event,
            )
        if event.tag is not None:
            raise _refused(
                "tags (`!`) are not supported: write the plain value, in quotes if it is text",
                event,
            )
        if self.values > MOST_VALUES:
            raise _refused(f"more than {MOST_VALUES:,} values: this is not a config", event)
        if self.depth >= DEEPEST:
            raise _refused(f"nested more than {DEEPEST} levels deep: this is not a config", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _refused(reason: str, place: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, reason, place.start_mark)


_NULL = "tag:yaml.org,2002:null"
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag == _NULL]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_FLOAT = (
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?"  # 1. and 1.5e3
        r"|\.\d+(?:[eE][-+]?\d+)?"  # .5
        r"|\d[\d_]*[eE][-+]?\d+"  # 1e-5
        r"|\.inf|\.nan)$"
    ),
    list("-+0123456789."),
)
_INT = (
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(?:0o[0-7]+|0x[0-9a-fA-F]+|[0-9][0-9_]*)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(*_FLOAT)
_Loader.add_implicit_resolver(*_INT)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would read as a number, such as `1e-5`."""


_Dumper.add_implicit_resolver(*_FLOAT)
_Dumper.add_implicit_resolver(*_INT)


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "").lower()
    if len(text) > MOST_DIGITS:
        raise _refused(
            f"a number of {len(text)} digits: the largest that a config may have has {MOST_DIGITS}",
            node,
        )
    base = {"0o": 8, "0x": 16}.get(text.lstrip("+-")[:2], 10)
    return int(text, base)


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def _unique_mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict:
    mapping: dict = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise _refused("a key must be a word, not a list or a mapping", key_node)
        key = loader.construct_object(key_node, deep=True)
        if key in mapping:
            raise _refused(f"the key `{shorten(key)}` is given twice", key_node)
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def _load(text: str) -> Any:
    """Parse YAML. Raises `yaml.YAMLError`, also for input that `_Loader` rejects."""
    # PyYAML's scanner needs seconds for thousands of open brackets, so count them first.
    depth = 0
    for bracket in re.finditer(r"[][{}]", text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > 2 * DEEPEST:
            raise yaml.YAMLError(f"nested more than {DEEPEST} levels deep: this is not a config")
    return yaml.load(text, Loader=_Loader)


def read_yaml(path: str | Path) -> dict:
    """Read a YAML mapping. Raises `UserError` naming the file, the line and the reason."""
    name = shorten(path)
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read(MOST_CHARACTERS + 1)
    except OSError as error:
        raise UserError(f"the config {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"the config {name} is not UTF-8 text: byte {error.start} cannot be read. Save it as"
            " UTF-8"
        ) from None
    except ValueError as error:  # a NUL in the file's name
        raise UserError(f"the config {name} cannot be read: {error}") from None
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"the config {name} has more than {MOST_CHARACTERS:,} characters: this is not a config"
        )
    try:
        value = _load(text)
    except yaml.YAMLError as error:
        raise UserError(
            f"the config {name} is not valid YAML: {shorten(error, LONGEST_LINE)}"
        ) from None
    if not isinstance(value, dict):
        raise UserError(
            f"the config {name} must be a mapping of sections, it is a {type(value).__name__}"
        )
    return value


# ---- text from the command line and from the environment -----------------------------------------


def value_from_text(model: type[BaseModel], key: typing.Sequence[str], text: str) -> Any:
    """The value of a key that is given as text outside a YAML file, such as in an override.

    A key that holds text takes the text as it is, including `#`, `: `, `${...}` and quotes, except
    that `null` clears an optional key. Any other key (numbers, switches, lists) parses it as YAML.

    Args:
      model: the config class.
      key: the path of the key, e.g. ("train", "lr").
      text: the text after the `=`.
    """
    kinds = _kinds_of(model, key)
    if text == "null" and type(None) in kinds:
        return None
    return text if _holds_text(kinds) else _read_value(text)


def _read_value(text: str) -> Any:
    if len(text) > MOST_CHARACTERS:
        return text
    try:
        return _load(text)
    except yaml.YAMLError:
        return text  # the key's type rejects it


def _holds_text(kinds: typing.Sequence[Any]) -> bool:
    """Whether a key of these types can hold only text, apart from null."""
    held = [kind for kind in kinds if kind is not type(None)]
    return bool(held) and all(_is_text(kind) for kind in held)


def _is_text(kind: Any) -> bool:
    """Whether a type is str, Path, or a `Literal` of strings."""
    if kind in (str, Path):
        return True
    return all(isinstance(word, str) for word in typing.get_args(kind) or [None])


def _kinds_of(model: type[BaseModel], key: typing.Sequence[str]) -> list[Any]:
    """The types that the value at a path may have, with unions split; [] for an unknown key."""
    kinds: list[Any] = [model]
    for part in key:
        below = []
        for kind in kinds:
            origin = typing.get_origin(kind)
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                if part in kind.model_fields:
                    below += _members(kind.model_fields[part].annotation)
            elif origin is dict:  # `part` is any name
                below += _members(typing.get_args(kind)[-1])
            elif origin in (list, tuple):  # `part` is any index
                below += _members(typing.get_args(kind)[0])
        kinds = below
    return kinds


def _members(annotation: Any) -> list[Any]:
    """The members of a union, also of nested and annotated ones; else the type itself."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [member for part in typing.get_args(annotation) for member in _members(part)]
    return [annotation]


def _apply_override(model: type[BaseModel], tree: dict, text: str) -> str:
    """Apply one override to `tree` and return the path of its key."""
    path, equals, raw = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise UserError(
            f"`{shorten(text)}` is not an override: write it as section.key=value, e.g."
            " train.lr=1e-5"
        )
    parts = path.split(".")
    if len(parts) > DEEPEST:
        raise UserError(
            f"`{shorten(text)}` names a key {len(parts)} levels deep: no config has one"
        )
    node = tree
    for parent in parts[:-1]:
        if not isinstance(node.get(parent), dict):
            node[parent] = {}
        node = node[parent]
    node[parts[-1]] = value_from_text(model, parts, raw)
    return path


class _Environment:
    """Expands ${NAME} in the strings of a tree; collects unset names and secret values."""

    def __init__(self, model: type[BaseModel]):
        self.model = model
        self.missing: list[tuple[str, str]] = []  # (path of the key, name)
        self.secrets: set[str] = set()

    def fill(self, value: Any, key: tuple[str, ...] = (), shown: str = "") -> Any:
        """The value at the path `key`, with variables expanded.

        `shown` is the path as messages show it.
        """
        if isinstance(value, dict):
            filled_dict = {}
            for name, item in value.items():
                shown_item = f"{shown}.{name}".lstrip(".")
                filled_dict[name] = self.fill(item, (*key, str(name)), shown_item)
            return filled_dict
        if isinstance(value, list):
            return [self.fill(item, (*key, ""), f"{shown}[{i}]") for i, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        filled = re.sub(r"\$\{(\w+)\}", lambda match: self._value_of(match[1], shown), value)
        is_text = filled == value or _holds_text(_kinds_of(self.model, key))
        return filled if is_text else _read_value(filled)

    def _value_of(self, name: str, shown: str) -> str:
        value = os.environ.get(name)
        if value is None:
            self.missing.append((shown, name))
            return ""
        if looks_secret(name):
            self.secrets.add(value)
        return value


def load_config(
    model: type[Model], path: str | Path, overrides: typing.Sequence[str] = ()
) -> Model:
    """Read `path`, expand its environment variables, apply `overrides` ("a.b=c"), validate.

    Raises:
      UserError: the file cannot be read, or the config has mistakes; the message lists all of them.
    """
    environment = _Environment(model)
    tree = environment.fill(read_yaml(path))
    overridden = [_apply_override(model, tree, override) for override in overrides]
    missing = []
    for key, name in environment.missing:
        dotted_key = f"{key}.".replace("[", ".")
        if not any(dotted_key.startswith(f"{path_set}.") for path_set in overridden):
            missing.append(
                f"{key}: the environment variable {name} is not set; set it, or give {key}=..."
            )
    if missing:
        raise UserError(_message(f"{shorten(path)}:", missing))
    source = f"{path} with the overrides of the command line" if overrides else str(path)
    return validate(model, tree, source=source, secrets=environment.secrets)


def config_from(model: type[Model], overrides: typing.Sequence[str]) -> Model:
    """The config that consists of overrides ("a.b=c") only.

    Raises:
      UserError: lists all mistakes.
    """
    tree: dict = {}
    for override in overrides:
        _apply_override(model, tree, override)
    return validate(model, tree, source="the command line")


def validate(
    model: type[Model], tree: dict, source: str, secrets: typing.Iterable[str] = ()
) -> Model:
    """Build `model` from a nested dict.

    Raises:
      UserError: lists all mistakes, with `secrets` hidden.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        problems = error.errors()
    hidden = _hidden({*secrets, *_secrets_in(tree)})
    lines = []
    for problem in problems:
        for line in _explain(model, problem, hidden):
            lines.append(shorten(hidden(line), LONGEST_LINE))
    count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    raise UserError(_message(f"{shorten(source)} has {count}:", lines))


def _message(head: str, lines: typing.Sequence[str]) -> str:
    return "\n  ".join([head, *first_problems(lines)])


# ---- secrets -------------------------------------------------------------------------------------


def _secrets_in(tree: Any) -> set[str]:
    """The texts under keys with secret-looking names."""
    if isinstance(tree, list):
        return {secret for item in tree for secret in _secrets_in(item)}
    if not isinstance(tree, dict):
        return set()
    secrets = set()
    for key, value in tree.items():
        if isinstance(value, str) and looks_secret(str(key)):
            secrets.add(value)
        else:
            secrets |= _secrets_in(value)
    return secrets


def _hidden(secrets: typing.Iterable[str]) -> typing.Callable[[str], str]:
    """A function that masks secrets in a text, both verbatim and as escaped by `repr`."""
    forms = {form for secret in secrets if secret for form in (secret, repr(secret)[1:-1])}
    longest_first = sorted(forms, key=len, reverse=True)

    def hide(text: str) -> str:
        for form in longest_first:
            text = text.replace(form, MASK)
        return text

    return hide


# ---- messages ------------------------------------------------------------------------------------


def _explain(
    model: type[BaseModel], problem: Any, hidden: typing.Callable[[str], str]
) -> list[str]:
    """The message of a pydantic error: one line, or several for `Mistakes`."""
    loc, section = _place(model, problem["loc"])
    path = ".".join(str(part) for part in loc)
    mistakes = problem.get("ctx", {}).get("error")
    if isinstance(mistakes, Mistakes):
        lines = []
        for key, text in mistakes.mistakes:
            full_path = ".".join(part for part in (path, key) if part)
            lines.append(f"{full_path}: {text}" if full_path else text)
        return lines
    if problem["type"] == "union_tag_invalid":
        context = problem["ctx"]
        known = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        key = _tag_key_at(model, problem["loc"])
        return [
            f"{path}.{key}: there is no `{shorten(context['tag'])}`;"
            f" {suggestion(context['tag'], known)}"
        ]
    if problem["type"] == "union_tag_not_found":
        key = _tag_key_at(model, problem["loc"])
        known = _tags_at(model, problem["loc"])
        return [f"{path}.{key}: missing; known: {', '.join(known)}"]
    if problem["type"] == "extra_forbidden":
        known = sorted(section.model_fields) if section else _keys_at(model, loc[:-1])
        return [f"{shorten(path)}: unknown key; {_hint_for_key(str(loc[-1]), known)}"]
    if problem["type"] == "missing":
        return [
            f"{path}: missing; give {path}=... on the command line, or set it in the config file"
            " if there is one"
        ]
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error" and not path:
        return [message]
    got = ""
    if problem["type"] != "value_error":
        got = f" (got {shorten(hidden(repr(problem['input'])))})"
    return [f"{shorten(path)}: {message[:1].lower() + message[1:]}{got}"]


def _hint_for_key(key: str, known: typing.Sequence[str]) -> str:
    """How to fix an unknown key, given the keys that its section has."""
    close = difflib.get_close_matches(key[:100], known, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    if known:
        return f"known here: {', '.join(known)}"
    return "remove it"


def sections_of(annotation: Any) -> list[type[BaseModel]]:
    """The config models inside an annotation such as `Section | None` or `dict[str, Section]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in sections_of(part)]


def tag_of(model: type[BaseModel]) -> tuple[str, str] | None:
    """The key that identifies a kind of section, and its value: ("name", "grpo")."""
    for key in ("name", "kind"):
        info = model.model_fields.get(key)
        if info is not None and typing.get_origin(info.annotation) is typing.Literal:
            return key, typing.get_args(info.annotation)[0]
    return None


def tags_of(kinds: list[type[BaseModel]]) -> tuple[str, list[str]]:
    """The key that distinguishes kinds of a section, and the tag of each kind."""
    tags = [tag for tag in map(tag_of, kinds) if tag is not None]
    return tags[0][0], [tag[1] for tag in tags]


def _is_dict(annotation: Any) -> bool:
    return any(typing.get_origin(member) is dict for member in _members(annotation))


def _place(model: type[BaseModel], loc: tuple) -> tuple[tuple, type[BaseModel] | None]:
    """The location of a problem as in the YAML file, and the kind of section that a tag selects.

    Pydantic adds the value of the tag to the location, as in ("algorithm", "grpo", "clip_low") or
    ("reward", "brevity", "length", "max_words").
    """
    owners: list[type[BaseModel]] = [model]
    chosen: type[BaseModel] | None = None
    plain = []
    is_key_of_dict = False
    for part in loc:
        tagged = [owner for owner in owners if tag_of(owner) in (("name", part), ("kind", part))]
        if len(owners) > 1 and tagged and not is_key_of_dict:
            owners = tagged
            chosen = tagged[0]
            continue
        plain.append(part)
        if is_key_of_dict:
            is_key_of_dict = False
            continue
        annotations = [
            owner.model_fields[part].annotation for owner in owners if part in owner.model_fields
        ]
        is_key_of_dict = any(_is_dict(annotation) for annotation in annotations)
        owners = [section for each in annotations for section in sections_of(each)] or owners
    return tuple(plain), chosen


def _tags_at(model: type[BaseModel], loc: tuple) -> list[str]:
    """The tags of the kinds of section that are allowed at a location."""
    return sorted(tag[1] for tag in map(tag_of, _owners_at(model, loc)) if tag is not None)


def _tag_key_at(model: type[BaseModel], loc: tuple) -> str:
    return next(tag[0] for tag in map(tag_of, _owners_at(model, loc)) if tag is not None)


def _owners_at(model: type[BaseModel], loc: tuple) -> list[type[BaseModel]]:
    """The sections that are allowed at a location.

    A name in a dict (such as a reward's name) or an index in a list does not select a section: the
    sections stay those of the dict or list.
    """
    owners: list[type[BaseModel]] = [model]
    for part in loc:
        nested = []
        for owner in owners:
            if part in owner.model_fields:
                nested += sections_of(owner.model_fields[part].annotation)
        owners = nested or owners
    return owners


def _keys_at(model: type[BaseModel], loc: tuple) -> list[str]:
    """The keys of the sections that are allowed at a location."""
    return sorted({key for owner in _owners_at(model, loc) for key in owner.model_fields})


def to_yaml(config: StrictModel) -> str:
    """The resolved config as YAML that `load_config` reads back to an equal config."""
    return dump_yaml(config.model_dump(mode="json"))


def dump_yaml(tree: dict) -> str:
    """A nested dict as YAML that `read_yaml` reads back to an equal one."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


# ---- types of keys -------------------------------------------------------------------------------
# An impossible value is rejected when the config is read, with the key and the bound, before
# anything is loaded or written.

# numpy's generators accept no other seeds
Seed = Annotated[int, Field(ge=0, lt=2**32)]
# numbers of steps, rows, tokens: they fit into 32 bits
Count = Annotated[int, Field(ge=1, lt=2**31)]
NonNegativeCount = Annotated[int, Field(ge=0, lt=2**31)]
# learning rates; the bound is far above any useful one
Rate = Annotated[float, Field(gt=0, le=100)]
# other positive numbers: they neither vanish nor overflow in fp32
Positive = Annotated[float, Field(ge=1e-12, le=1e12)]
# weights of the terms of a loss
Coefficient = Annotated[float, Field(ge=0, le=1e6)]
# rewards and the numbers they are computed from, of either sign
Amount = Annotated[float, Field(ge=-1e9, le=1e9)]
# lengths; the bound is longer than any network reads
Tokens = Annotated[int, Field(ge=1, le=2**20)]
BatchSize = Annotated[int, Field(ge=1, le=2**16)]
Temperature = Annotated[float, Field(ge=1e-3, le=100)]
# of Adam; above 1 it would hide the scale of the gradient
Epsilon = Annotated[float, Field(ge=1e-12, le=1)]
Kernels = Annotated[
    typing.Literal["auto", "off"],
    Field(description="auto: choose the faster matrix library on a CPU; off: always PyTorch's own"),
]


def _file_path(value: str) -> str:
    if not value.strip():
        raise ValueError("it is empty: name a file, a folder or a hub name")
    if "\0" in value:
        raise ValueError("it contains a NUL character, which no file name can have")
    return value


def _name(value: str) -> str:
    if not value.strip() or not value.isprintable() or "/" in value or "\\" in value:
        raise ValueError(
            "a name of printable characters without slashes is needed, since folders and trackers"
            " are named after it"
        )
    return value


FilePath = Annotated[str, AfterValidator(_file_path)]  # of a file or folder, or a hub name
Name = Annotated[str, AfterValidator(_name)]

"""YAML for configs: a strict reader, and a writer whose output the reader reads back.

A config may start from another one: `base: other.yml` (`read_config`).

The reader follows YAML 1.2: `1e-5` is a number; `no`, `1:30` and `2026-01-31` are text. It rejects
duplicate keys, anchors, tags, and files that are too large or too deeply nested for a config.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.names import with_current_keys

# Bounds of a config file: far above any real config, and small enough to reject a hostile file
# quickly.
MOST_CHARACTERS = 200_000
MOST_VALUES = 2_000
DEEPEST = 50
MOST_DIGITS = 40

BASE = "base"  # the key of a config that names the config it starts from
KIND_KEYS = ("name", "kind")  # the keys that tell what a section is

PATH_WAY_OUT = "Give the path of a YAML file, from the folder in which the command runs"
BASE_WAY_OUT = (
    "Write the path from the folder of the file that names it; ${...} and `~` are not expanded"
)

LONGEST_REASON = 400  # characters of PyYAML's message that are shown


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without anchors, aliases and tags.

    Input that is nested too deeply or too long is rejected before any value is constructed. The
    functions below this class add the types of plain values and the check of keys.
    """

    depth = 0
    values = 0

    def compose_node(self, parent, index):
        event = self.peek_event()
        self.values += 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _error_at(
                event,
                "anchors and aliases (`&`, `*`) are not supported: write the value out, in quotes"
                " if it is text",
            )
        if event.tag is not None:
            raise _error_at(
                event,
                "tags (`!`) are not supported: write the plain value, in quotes if it is text",
            )
        if self.values > MOST_VALUES:
            raise _error_at(event, f"more than {MOST_VALUES:,} values: this is not a config")
        if self.depth >= DEEPEST:
            raise _error_at(event, f"nested more than {DEEPEST} levels deep: this is not a config")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would read as a number, such as `1e-5`."""


def _error_at(place: Any, reason: str) -> yaml.YAMLError:
    """An error with the line and column of an event or node of PyYAML."""
    return yaml.constructor.ConstructorError(None, None, reason, place.start_mark)


# ---- types of plain values -----------------------------------------------------------------------
# PyYAML finds the type of a plain value by its first character: for each character, it has a list
# of tags (types) with the patterns of their texts. PyYAML's patterns are those of YAML 1.1, in
# which `no` is a boolean, `1:30` a number and `1e-5` text, so all but that of `null` are replaced.

_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"

_BOOL_PATTERN = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INT_PATTERN = re.compile(r"^[-+]?(?:0o[0-7]+|0x[0-9a-fA-F]+|[0-9][0-9_]*)$")
_FLOAT_PATTERN = re.compile(
    r"^[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?"  # 1. and 1.5e3
    r"|\.\d+(?:[eE][-+]?\d+)?"  # .5
    r"|\d[\d_]*[eE][-+]?\d+"  # 1e-5
    r"|\.inf|\.nan)$"
)


def _resolvers_of_null() -> dict[str, list[tuple[str, re.Pattern]]]:
    resolvers_of_null = {}
    for character, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
        resolvers_of_null[character] = [
            (tag, pattern) for tag, pattern in resolvers if tag == _NULL
        ]
    return resolvers_of_null


_Loader.yaml_implicit_resolvers = _resolvers_of_null()
_Loader.add_implicit_resolver(_BOOL, _BOOL_PATTERN, list("tTfF"))
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(_FLOAT, _FLOAT_PATTERN, list("-+0123456789."))
    _class.add_implicit_resolver(_INT, _INT_PATTERN, list("-+0123456789"))


# ---- construction of values ----------------------------------------------------------------------


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "").lower()
    if len(text) > MOST_DIGITS:
        raise _error_at(
            node,
            f"a number of {len(text)} digits: the largest that a config may have has {MOST_DIGITS}",
        )
    prefix = text.lstrip("+-")[:2]
    if prefix == "0o":
        return int(text, base=8)
    if prefix == "0x":
        return int(text, base=16)
    return int(text)


def _unique_mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict:
    mapping: dict = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise _error_at(key_node, "a key must be a word, not a list or a mapping")
        key = loader.construct_object(key_node, deep=True)
        if key in mapping:
            raise _error_at(key_node, f"the key `{shorten(key)}` is given twice")
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_Loader.add_constructor(_INT, _whole_number)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


# ---- reading and writing -------------------------------------------------------------------------


def parse_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
      yaml.YAMLError: the text is not YAML, or is rejected because it cannot be a config.
    """
    # PyYAML's scanner needs seconds for thousands of open brackets, so count them first.
    depth = 0
    for bracket in re.finditer(r"[][{}]", text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > 2 * DEEPEST:
            raise yaml.YAMLError(f"nested more than {DEEPEST} levels deep: this is not a config")
    return yaml.load(text, Loader=_Loader)


def read_yaml(path: str | Path) -> dict:
    """Read a YAML mapping. Raises `UserError` naming the file, the line and the reason."""
    return _parsed_file(path, _read_text(path))


def _parsed_file(path: str | Path, text: str) -> dict:
    name = shorten(path)
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"the config {name} has more than {MOST_CHARACTERS:,} characters: this is not a config"
        )
    try:
        value = parse_yaml(text)
    except yaml.YAMLError as error:
        raise UserError(
            f"the config {name} is not valid YAML: {shorten(error, LONGEST_REASON)}"
        ) from None
    if not isinstance(value, dict):
        raise UserError(
            f"the config {name} must be a mapping of sections such as `train: {{lr: 1e-5}}`, but it"
            f" {_what_it_has(value)}"
        )
    return value


def _what_it_has(value: Any) -> str:
    if value is None:
        return "is empty"
    return "is a list" if isinstance(value, list) else f"has only the value {shorten(value, 60)}"


def _read_text(path: str | Path, place: str = "", way_out: str = PATH_WAY_OUT) -> str:
    """The text of a file; of a file that is too long, one character more than is allowed.

    Args:
      place: where the file is named, for the message: "x.yml, line 2: "; "" for the command line.
      way_out: the end of the message about a file that cannot be opened.
    """
    name = f"{place}the config {shorten(path)}"
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read(MOST_CHARACTERS + 1)
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}. {way_out}") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name} is not UTF-8 text: byte {error.start} cannot be read. Save it as UTF-8"
        ) from None
    except ValueError as error:  # a NUL in the file's name
        raise UserError(f"{name} cannot be read: {error}") from None


# ---- a config that starts from another -----------------------------------------------------------


def read_config(path: str | Path) -> dict:
    """Read a config together with the configs that it starts from.

    `base: other.yml` names a config whose values hold unless this one sets them. The path is
    relative to the folder of the file that has the key, and `other.yml` may have a base as well.
    Sections are merged key by key. Lists and single values replace those of the base, and so does a
    section whose `name` or `kind` differs from the base's, since its keys mean something else. Keys
    have their current names (`OTHER_KEYS`).

    Raises:
      UserError: a file cannot be read, or is its own base; the message names file and line.
    """
    tree: dict = {}
    for _, own in reversed(_chain(path)):
        tree = merged(tree, with_current_keys(own))
    return tree


def config_files(path: str | Path) -> list[Path]:
    """The file of a config and those of its bases, which it starts from.

    Raises:
      UserError: as `read_config`.
    """
    return [file for file, _ in _chain(path)]


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `base` with those of `own` over them, as `read_config` says."""
    tree = dict(base)
    for key, value in own.items():
        before = base.get(key)
        if isinstance(value, dict) and isinstance(before, dict) and not _differs(before, value):
            tree[key] = merged(before, value)
        else:
            tree[key] = value
    return tree


def _differs(before: Mapping[str, Any], section: Mapping[str, Any]) -> bool:
    """Whether two sections are of different kinds; a section without the key is of any."""
    for key in KIND_KEYS:
        if key in before and key in section and before[key] != section[key]:
            return True
    return False


def _chain(path: str | Path) -> list[tuple[Path, dict]]:
    """The file and its bases, each with the values in it."""
    text = _read_text(path)
    chain = [(Path(path), _parsed_file(path, text))]
    while BASE in chain[-1][1]:
        file, tree = chain[-1]
        base = tree.pop(BASE)
        place = f"{shorten(file)}, line {_line_of(text, BASE)}: `{BASE}`"
        if not isinstance(base, str) or not base.strip():
            raise UserError(
                f"{place} must be the path of the config that this one starts from (got"
                f" {shorten(repr(base))}): write `{BASE}: other.yml`"
            )
        above = file.parent / base
        if any(_is_same_file(above, earlier) for earlier, _ in chain):
            names = [shorten(name) for name in (*(earlier for earlier, _ in chain), above)]
            raise UserError(
                f"{place} names a config that itself starts from this one ({' -> '.join(names)}):"
                " name another one, or remove the key"
            )
        text = _read_text(above, f"{place}: ", BASE_WAY_OUT)
        chain.append((above, _parsed_file(above, text)))
    return chain


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.resolve() == other.resolve()
    except (OSError, ValueError, RuntimeError):  # a name that no file can have
        return False


def _line_of(text: str, key: str) -> int:
    """The line of a key at the top of a YAML mapping."""
    node = yaml.compose(text, Loader=_Loader)
    assert isinstance(node, yaml.MappingNode)
    return next(name.start_mark.line + 1 for name, _ in node.value if name.value == key)


def dump_yaml(tree: dict) -> str:
    """A nested dict as YAML that `read_yaml` reads back to an equal one."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)

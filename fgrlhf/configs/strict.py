"""Strict typed configuration: YAML plus `a.b=c` overrides, with all mistakes reported at once.

A config is a frozen pydantic model. Unknown, missing and mistyped keys are collected and reported
together, each with its path, a suggestion and a fix. Environment variables in strings of a YAML
file (`${DATA_DIR}`) are expanded.

yaml_files.py reads and writes YAML, overrides.py reads overrides and environment variables,
schema.py finds what a config class allows at a path, and messages.py writes the messages.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
)

from fgrlhf.base.errors import UserError, first_problems, shorten
from fgrlhf.configs.messages import Mistakes, explain, hider_of, secrets_in
from fgrlhf.configs.names import with_current_keys
from fgrlhf.configs.overrides import Environment, apply_override
from fgrlhf.configs.schema import keys_of, tag_values
from fgrlhf.configs.yaml_files import config_files, dump_yaml, read_config

Model = TypeVar("Model", bound="StrictModel")

LONGEST_MESSAGE = 400  # characters of the message about one mistake


class StrictModel(BaseModel):
    """Base of every config section: immutable, with declared keys only.

    `may_change` names the keys that affect no result, such as a timeout: a run may be resumed with
    other values.
    """

    may_change: ClassVar[tuple[str, ...]] = ()

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*", mode="wrap")
    @classmethod
    def _no_silent_conversion(cls, value: Any, handler):
        result = handler(value)
        _check_conversion(value, result)
        return result


def _kind_of(section: Any) -> str | None:
    """The key `kind` of a section, by which a union of kinds selects its class."""
    if isinstance(section, dict):
        kind = section.get("kind")
        return kind if isinstance(kind, str) else None
    return getattr(section, "kind", None)


def any_kind(kinds: Sequence[type[BaseModel]]) -> Any:
    """The type of a section that is one of `kinds`, as selected by its key `kind`."""
    different = dict.fromkeys(kinds)  # a class is listed under each of its names
    tags = [(kind, value) for kind in different for value in tag_values(kind, "kind")]
    tagged = tuple(Annotated[kind, Tag(value)] for kind, value in tags)
    return Annotated[Union[tagged], Discriminator(_kind_of)]  # noqa: UP007


Place = tuple[str | int, ...]  # of a value: the keys, and the indices in lists, that lead to it


def places_without_effect(section: StrictModel) -> list[Place]:
    """The places of all keys in a section and below it that affect no result (`may_change`)."""
    places: list[Place] = [(key,) for key in section.may_change]
    for name, value in section:
        inner: dict[Place, Any] = {(name,): value}
        if isinstance(value, dict):
            inner = {(name, key): item for key, item in value.items()}
        elif isinstance(value, list | tuple):
            inner = {(name, i): item for i, item in enumerate(value)}
        for place, item in inner.items():
            if isinstance(item, StrictModel):
                places += [place + below for below in places_without_effect(item)]
    return places


_SWITCHES = frozenset({"true", "false", "yes", "no", "on", "off"})


def _check_conversion(value: Any, result: Any) -> None:
    """Reject values of another type that pydantic silently converts to a number or a boolean."""
    are_lists = isinstance(value, (list, tuple)) and isinstance(result, (list, tuple))
    if are_lists and len(value) == len(result):
        for item, converted in zip(value, result):
            _check_conversion(item, converted)
        return
    if isinstance(value, dict) and isinstance(result, dict) and value.keys() == result.keys():
        for key in value:
            _check_conversion(value[key], result[key])
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


def refuse(mistakes: Sequence[tuple[str, str]]) -> None:
    """Raise `Mistakes` if there are any."""
    if mistakes:
        raise Mistakes(mistakes)


def unread_keys(section: StrictModel, keys: Iterable[str], reason: str) -> list[tuple[str, str]]:
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


# ---- reading and writing a config ----------------------------------------------------------------


def load_config(model: type[Model], path: str | Path, overrides: Sequence[str] = ()) -> Model:
    """Read `path` and its bases, expand their variables, apply `overrides` ("a.b=c"), validate.

    Raises:
      UserError: the file cannot be read, or the config has mistakes; the message lists all of them.
    """
    environment = Environment(model)
    tree = environment.expand(read_config(path))
    overridden = [apply_override(model, tree, override) for override in overrides]
    unset = []
    for key, variable in environment.unset:
        if not _is_overridden(key, overridden):
            unset.append(
                f"{key}: the environment variable {variable} is not set; set it, or give {key}=..."
            )
    if unset:
        raise UserError(_message(f"{shorten(path)}:", unset))
    source = _with_bases(path)
    if overrides:
        source += " with the overrides of the command line"
    return validate(
        model,
        tree,
        source=source,
        secrets=environment.secrets,
        way_to_add=lambda key: f"give {key}=... on the command line, or set it in the config file",
    )


def _with_bases(path: str | Path) -> str:
    """`x.yml`, or `x.yml with its base y.yml`, with the path from the folder of x.yml."""
    _, *bases = config_files(path)
    if not bases:
        return str(path)
    names = ", ".join(os.path.relpath(base, Path(path).parent) for base in bases)
    return f"{path} with its {'base' if len(bases) == 1 else 'bases'} {names}"


def _is_overridden(key: str, overridden: Sequence[str]) -> bool:
    """Whether a key, such as `sizes[0]`, or a section that contains it has been overridden."""
    # with a dot at the end of both, `train.lr` does not count as a part of `train.lr_schedule`
    dotted_key = f"{key}.".replace("[", ".")
    return any(dotted_key.startswith(f"{path}.") for path in overridden)


def config_from(model: type[Model], overrides: Sequence[str]) -> Model:
    """The config that consists of overrides ("a.b=c") only.

    Raises:
      UserError: lists all mistakes.
    """
    tree: dict = {}
    for override in overrides:
        apply_override(model, tree, override)
    return validate(
        model,
        tree,
        source="the command line",
        way_to_add=lambda key: f"give {key}=... on the command line",
    )


def validate(
    model: type[Model],
    tree: dict,
    source: str,
    secrets: Iterable[str] = (),
    way_to_add: Callable[[str], str] | None = None,
    others: Sequence[str] = (),
    is_json: bool = False,
) -> Model:
    """Build `model` from a nested dict.

    Args:
      model: the config class.
      tree: the nested dict.
      source: where it comes from, for the message.
      secrets: values that the message must not show, besides those of keys such as `api_key`.
      way_to_add: tells, for the path of a missing key, how to give it. None: in the source.
      others: mistakes that the caller found in the tree, to be reported with those of the class.
      is_json: whether the source is a file of JSON; see `explain`.

    Raises:
      UserError: lists all mistakes, with secrets masked.
    """
    problems = []
    tree = with_current_keys(tree)
    try:
        config = model.model_validate(tree)
        if not others:
            return config
    except ValidationError as error:
        problems = error.errors()
    hide = hider_of({*secrets, *secrets_in(tree)})
    way_to_add = way_to_add or (lambda key: f"add it to {shorten(source)}")
    lines = []
    for problem in problems:
        for line in explain(model, problem, hide, way_to_add, is_json):
            lines.append(shorten(hide(line), LONGEST_MESSAGE))
    lines += [shorten(hide(line), LONGEST_MESSAGE) for line in others]
    count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    head = f"{shorten(source)} has {count}{_other_command(model, tree)}:"
    raise UserError(_message(head, lines))


def _other_command(model: type[StrictModel], tree: dict) -> str:
    """A hint if the sections are those of another command's config."""
    unknown = sorted(str(name) for name in tree.keys() - set(keys_of(model)))
    needed = {key for key, field in model.model_fields.items() if field.is_required()}
    missing = sorted(needed - tree.keys())
    if not unknown or not missing:
        return ""
    sections = f"it has {', '.join(unknown)} and lacks {', '.join(missing)}"
    return f" and may be the config of another command ({shorten(sections)})"


def _message(head: str, lines: Sequence[str]) -> str:
    return "\n  ".join([head, *first_problems(lines)])


def to_yaml(config: StrictModel) -> str:
    """The resolved config as YAML that `load_config` reads back to an equal config."""
    return dump_yaml(config.model_dump(mode="json"))


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
    Literal["auto", "off"],
    Field(description="auto: choose the faster matrix library on a CPU; off: always PyTorch's own"),
]


_VARIABLE = re.compile(r"\$(?:\{[^}]*\}?|[A-Za-z_]\w*)")


def file_path(value: str) -> str:
    """The name of a file, a folder or a model of the hub; `ValueError` for what is none."""
    if not value.strip():
        raise ValueError("it is empty: name a file, a folder or a hub name")
    if "\0" in value:
        raise ValueError("it contains a NUL character, which no file name can have")
    if value == "~" or value.startswith("~/"):
        raise ValueError(
            "`~` is not the home folder here, but would become a folder of that name: write the"
            " whole path"
        )
    if variable := _VARIABLE.search(value):
        raise ValueError(
            f"`{variable[0]}` is no variable here, but would be part of a name: write the value"
            " (in a YAML file, ${NAME} is replaced), or let the shell replace it: no single quotes"
        )
    return value


def _name(value: str) -> str:
    if not value.strip() or not value.isprintable() or "/" in value or "\\" in value:
        raise ValueError(
            "a name of printable characters without slashes is needed, since folders and trackers"
            " are named after it"
        )
    return value


def with_breaks(text: str) -> str:
    r"""A text in which `\n` and `\t`, as a shell passes them on, are a line break and a tab."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _separator(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return with_breaks(value)


FilePath = Annotated[str, AfterValidator(file_path)]  # of a file or folder, or a hub name
Name = Annotated[str, AfterValidator(_name)]
Separator = Annotated[str, AfterValidator(_separator)]

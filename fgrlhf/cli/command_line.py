"""`key=value` command lines of the programs, checked like every other config.

A key that holds text takes the text after `=` as it is (`fgrlhf.configs.overrides`).
"""

import json
import os
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.program import as_settings, run_main
from fgrlhf.configs.schema import sections_of, tag_values, tags_of
from fgrlhf.configs.strict import StrictModel, config_from, load_config
from fgrlhf.load import load_task
from fgrlhf.task import NO_TASK, Task

Model = TypeVar("Model", bound=StrictModel)
# kinds of a section -> the path at which their keys have been described
DescribedKinds = dict[tuple[type[BaseModel], ...], str]


def settings_from(
    model: type[Model],
    argv: Sequence[str] | None = None,
    usage: str | None = None,
) -> Model:
    """Build `model` from `key=value` arguments; `--help` lists the keys.

    A dot selects a key of a section: `search.beams=8`, `columns.prompt=input`.

    Args:
      usage: first line of `--help`. None: the module that runs, with its settings.

    Raises:
      UserError: lists every mistake.
    """
    argv = as_settings(list(sys.argv[1:] if argv is None else argv))
    if any(argument in ("-h", "--help") for argument in argv):
        print("\n".join([usage or _usage_of_module(), "keys:", *describe(model)]))
        sys.exit(0)
    for argument in argv:
        key, equals, _ = argument.partition("=")
        if not equals or not key.strip():
            raise UserError(f"`{shorten(argument)}` is not a setting: write it as key=value")
    return config_from(model, argv)


def run_program(run: Callable[[Model], object], model: type[Model]) -> None:
    """Run a function with the settings of the command line, as `run_main` runs programs."""
    run_main(lambda: run(settings_from(model)))


def _usage_of_module() -> str:
    """The usage of a program that runs as `python -m MODULE`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None:
        return "usage: [key=value ...]"
    return f"usage: python -m {spec.name.removesuffix('.__main__')} [key=value ...]"


def parse_cli(model: type[Model], argv: Sequence[str] | None = None, usage: str = "") -> Model:
    """The config of a command `python -m module [config.yml] key=value ...`.

    Without a config file, the settings of the command line are the config. `--help` prints every
    key and exits.

    Raises:
      UserError: the config has mistakes.
    """
    argv = as_settings(list(sys.argv[1:] if argv is None else argv))
    usage = usage or "usage: [config.yml] [section.key=value ...]"
    if any(argument in ("-h", "--help") for argument in argv):
        print("\n".join([usage, "keys:", *describe(model)]))
        sys.exit(0)
    if not argv:
        raise UserError(
            f"there is no config file and no setting\n{usage}\n`--help` lists every key"
        )
    if _is_setting(argv[0]):
        late = next((argument for argument in argv if not _is_setting(argument)), None)
        if late is not None:
            raise UserError(
                f"`{shorten(late)}` comes after settings: a config file comes before them\n{usage}"
            )
        return config_from(model, argv)
    return load_config(model, argv[0], argv[1:])


def task_and_rest(argv: Sequence[str] | None, usage: str) -> "tuple[Task, list[str]]":
    """The task that the first argument names, and the other arguments as settings.

    Where the usage has `[TASK]`, the first argument may also be a config file or a setting; then
    there is no task. Without arguments, print the usage and exit.

    Raises:
      UserError: there is no such task, or none is named and the usage demands one.
    """
    arguments = as_settings(list(sys.argv[1:] if argv is None else argv))
    is_optional = "[TASK]" in usage
    is_help = arguments[:1] in (["-h"], ["--help"])
    if not arguments or is_help and not is_optional:
        command = usage.removeprefix("usage: ").replace("[TASK]", "TASK").partition(" TASK")[0]
        print(
            f"{usage}\nTASK is a folder of tasks/, such as numbers."
            f" `{command} TASK --help` lists the keys for a task."
        )
        sys.exit(0 if arguments else 2)
    if not _is_task(arguments[0]):
        if is_optional:
            return NO_TASK, arguments
        raise UserError(f"the task is missing: it comes before `{shorten(arguments[0])}`\n{usage}")
    return load_task(arguments[0]), arguments[1:]


def _is_task(argument: str) -> bool:
    """Whether this is no setting, no flag and no file."""
    is_config = argument.endswith((".yml", ".yaml")) or os.path.isfile(argument)
    return not (is_config or _is_setting(argument) or argument.startswith("-"))


def _is_setting(argument: str) -> bool:
    """Whether this is key=value. The path of a config file may contain `=`, too."""
    return "=" in argument and not os.path.exists(argument)


# ---- --help --------------------------------------------------------------------------------------


def describe(
    model: type[BaseModel],
    prefix: str = "",
    described_kinds: DescribedKinds | None = None,
    defaults: Any = None,
) -> list[str]:
    """One line per key: path, type, default, meaning.

    A section that may be of several kinds has the common keys first, then those of each kind. Where
    the same kinds are allowed again, a line names the place of these keys.

    Args:
      prefix: of the paths.
      described_kinds: places so far; the function adds to it.
      defaults: the section with its defaults at this place; None: those of its class.
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
            forms = _type_name(field.annotation)
            if forms != "section" and container is not dict:  # the key itself may have a value
                lines.append(_line(path, field, forms))
            lines += describe(sections[0], f"{below}.", described_kinds, field.default)
        elif isinstance(defaults, model) and name in defaults.model_fields_set:
            shown = FieldInfo.merge_field_infos(field, default=getattr(defaults, name))
            lines.append(_line(path, shown, _type_name(field.annotation)))
        else:
            lines.append(_line(path, field, _type_name(field.annotation)))
    return lines


def _line(path: str, field: FieldInfo, type_name: str) -> str:
    comment = f"   # {field.description}" if field.description else ""
    return f"  {path}: {type_name} = {_default_text(field)}{comment}"


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
    for kind, described in zip(kinds, lines_of_kind):
        values = "|".join(tag_values(kind, tag_key))
        summary = (kind.__doc__ or "").partition("\n")[0]
        lines.append(f"  with {tag_key}={values}: {summary}".rstrip(": "))
        lines += [f"  {line}" for line in described if line not in common]
    return lines


def _type_name(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        values = typing.get_args(annotation)
        return "|".join(v if isinstance(v, str) else json.dumps(v) for v in values)
    if origin in (typing.Union, types.UnionType):
        return "|".join(_type_name(part) for part in typing.get_args(annotation))
    if origin is typing.Annotated:
        return _type_name(typing.get_args(annotation)[0])
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return getattr(annotation, "__name__", str(annotation))

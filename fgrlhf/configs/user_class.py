"""Classes of users, named in a config by their import path.

Their files affect a result like the code of a task: `code_of` in fgrlhf/load.py.
"""

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ValidationError

from fgrlhf.base.errors import UserError, shorten, suggestion


def class_path(value: str) -> str:
    """`value`, if it can be an import path; otherwise raise `ValueError`."""
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", value):
        raise ValueError(
            f"{shorten(repr(value), 80)} names no class: write its module and its name with dots"
            " between them, as in my_package.rewards.Politeness"
        )
    return value


ClassPath = Annotated[str, AfterValidator(class_path)]


def import_object(role: str, path: str) -> Any:
    """What is at the import path `path`, of the library or of a user.

    Args:
      role: what it is for, such as "reward", for messages.
    Raises:
      UserError: there is no such module, or nothing in it has this name.
    """
    module_name, _, class_name = path.rpartition(".")
    try:
        module = import_module(module_name)
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name is not None
        if is_missing and f"{module_name}.".startswith(f"{error.name}."):
            way_out = "Run from the folder that contains its package, or add it to PYTHONPATH"
        else:
            way_out = f"Install what `{shorten(module_name)}` imports, or correct its imports"
        raise UserError(
            f"the {role} `{shorten(path)}` cannot be imported: {shorten(error)}. {way_out}"
        ) from None
    found = getattr(module, class_name, None)
    if isinstance(found, ModuleType) or (found is None and _file_of(path) is not None):
        raise UserError(
            f"the {role} `{shorten(path)}` is a module: add a dot and the name of its class"
        )
    if found is None:
        package = module_name.partition(".")[0]
        classes = []
        for name, value in vars(module).items():
            # not those that it imports from other packages
            if isinstance(value, type) and value.__module__.partition(".")[0] == package:
                classes.append(name)
        raise UserError(
            f"the {role} `{shorten(path)}` cannot be imported: `{shorten(module_name)}` has no"
            f" `{shorten(class_name)}`; {suggestion(class_name, classes)}"
        )
    return found


def make_object(role: str, path: str, arguments: Mapping[str, Any], method: str) -> Any:
    """An object of the class at the import path `path`.

    Args:
      role: what the object is for, such as "reward", for messages.
      arguments: keyword arguments of the class.
      method: a method that the object must have, with its arguments: "score(prompts, texts)".
    Raises:
      UserError: the class cannot be imported, or does not accept the arguments, or its objects lack
        the method.
    """
    object_class = import_object(role, path)
    signature = inspect.signature(object_class)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"the {role} `{shorten(path)}` does not accept these `args`: {shorten(error)}. It takes"
            f" {signature}"
        ) from None
    try:
        made = object_class(**arguments)
    except ValidationError as error:  # settings of the library that the class builds
        reasons = [problem["msg"].removeprefix("Value error, ") for problem in error.errors()]
        raise UserError(
            f"the {role} `{shorten(path)}` refuses these `args`: {shorten('; '.join(reasons), 400)}"
        ) from None
    if not callable(getattr(made, method.partition("(")[0], None)):
        raise UserError(f"`{shorten(path)}` is not a {role}: it has no method {method}")
    return made


# ---- the modules of users -----------------------------------------------------------------------


def import_module(name: str) -> ModuleType:
    """Import a module that is installed, or in the working directory."""
    search_working_folder()
    return importlib.import_module(name)


def search_working_folder() -> None:
    """Let Python find modules in the working directory.

    `python -m` searches it, but the command `fgrlhf` does not. It is searched last, so that its
    files cannot hide installed packages.
    """
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        return
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)


def own_modules(config: Any) -> list[str]:
    """The modules of the classes that a config names in `of`, in a section with `kind` or `name`.

    Args:
      config: a validated config, or the tree of its YAML file.
    """
    modules = [path.rpartition(".")[0] for path in _class_paths(config)]
    return sorted({module for module in modules if module})


def own_code(config: Any) -> dict[str, str]:
    """The files of `own_modules`: module -> path, relative to the working directory.

    Modules that cannot be found are left out; building the reward or the algorithm names them.
    """
    files = {}
    for module in own_modules(config):
        file = _file_of(module)
        if file is not None:
            files[module] = os.path.relpath(file)
    return files


def _class_paths(node: Any) -> Iterator[str]:
    if isinstance(node, BaseModel):
        node = {name: getattr(node, name) for name in type(node).model_fields}
    if isinstance(node, Mapping):
        of = node.get("of")
        if ("kind" in node or "name" in node) and isinstance(of, str):
            yield of
        for value in node.values():
            yield from _class_paths(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _class_paths(value)


def _file_of(module: str) -> str | None:
    search_working_folder()
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None and spec.has_location else None

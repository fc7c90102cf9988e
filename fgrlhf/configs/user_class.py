"""Classes of users, named in a config by their import path."""

import inspect
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.base.working_folder import import_module


def _class_path(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", value):
        raise ValueError(
            f"{shorten(repr(value), 80)} names no class: write its module and its name with dots"
            " between them, as in my_package.rewards.Politeness"
        )
    return value


ClassPath = Annotated[str, AfterValidator(_class_path)]


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
    module_name, _, class_name = path.rpartition(".")
    try:
        module = import_module(module_name)
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name is not None
        if is_missing and f"{module_name}.".startswith(f"{error.name}."):
            way_out = "Run from the folder that contains its package, or add it to PYTHONPATH"
        else:
            way_out = f"Install what `{module_name}` imports, or correct its imports"
        raise UserError(
            f"the {role} `{path}` cannot be imported: {shorten(error)}. {way_out}"
        ) from None
    object_class = getattr(module, class_name, None)
    if object_class is None:
        package = module_name.partition(".")[0]
        classes = []
        for name, value in vars(module).items():
            # not those that it imports from other packages
            if isinstance(value, type) and value.__module__.partition(".")[0] == package:
                classes.append(name)
        raise UserError(
            f"the {role} `{path}` cannot be imported: `{module_name}` has no `{class_name}`;"
            f" {suggestion(class_name, classes)}"
        )
    signature = inspect.signature(object_class)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"the {role} `{path}` does not accept these `args`: {error}. It takes {signature}"
        ) from None
    made = object_class(**arguments)
    if not callable(getattr(made, method.partition("(")[0], None)):
        raise UserError(f"`{path}` is not a {role}: it has no method {method}")
    return made

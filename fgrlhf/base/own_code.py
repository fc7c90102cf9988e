"""The user's own classes that a config names: of `kind: python`, and subclasses of a judge.

Their files affect a result like the code of a task: `code_of` in fgrlhf/load.py.
"""

import importlib.util
import os
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from fgrlhf.base.working_folder import search_working_folder


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

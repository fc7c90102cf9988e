"""Imports of a user's own modules: tasks, rewards, scorers, algorithms."""

import importlib
import os
import sys
from types import ModuleType


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

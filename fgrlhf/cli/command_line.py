"""`key=value` command lines for the small tools of this folder, checked like every other config.

A key that holds text takes what stands after the `=` as it is; see `fgrlhf.config.value_from_text`.
"""

import sys
from collections.abc import Sequence
from typing import TypeVar

from fgrlhf.config import StrictModel, describe, validate, value_from_text
from fgrlhf.errors import UserError, shorten

Model = TypeVar("Model", bound=StrictModel)


def settings_from(model: type[Model], argv: Sequence[str] | None = None) -> Model:
    """Build `model` from `key=value` arguments. Raises `UserError` listing every mistake; `--help`
    lists the keys.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if any(argument in ("-h", "--help") for argument in argv):
        print("\n".join(["usage: key=value ...", *describe(model)]))
        sys.exit(0)
    settings = {}
    for argument in argv:
        key, equals, text = argument.partition("=")
        if not equals:
            raise UserError(f"`{shorten(argument)}` is not a setting: write it as key=value")
        settings[key] = value_from_text(model, [key], text)
    return validate(model, settings, source="the command line")

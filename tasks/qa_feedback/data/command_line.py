"""`key=value` command lines for the small tools of this folder, checked like every other config."""

import sys
from collections.abc import Sequence
from typing import TypeVar

from fgrlhf.config import StrictModel, describe, validate
from fgrlhf.utils import UserError

Model = TypeVar("Model", bound=StrictModel)


def settings_from(model: type[Model], argv: Sequence[str] | None = None) -> Model:
    """Build `model` from `key=value` arguments. Raises `UserError` listing every mistake; `--help` lists the keys."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if any(argument in ("-h", "--help") for argument in argv):
        print("\n".join(["usage: key=value ...", *describe(model)]))
        sys.exit(0)
    for argument in argv:
        if "=" not in argument:
            raise UserError(f"`{argument}` is not a setting: write it as key=value")
    return validate(model, dict(argument.split("=", 1) for argument in argv), source="the command line")

"""The output of a feedback program never replaces one of its inputs."""

from typing import Self

from pydantic import model_validator

from fgrlhf.configs.strict import StrictModel
from fgrlhf.data.read import check_not_input


class OutputSettings(StrictModel):
    """Settings of a program that writes the file `out`.

    Raises:
      UserError: the file, or one that is named after it, is a file of another setting, or `out` is
        a database.
    """

    @model_validator(mode="after")
    def _check_out(self) -> Self:
        values = dict(self)
        out = values.pop("out")
        if out:
            for value in values.values():
                for name in _names(value):
                    check_not_input(name, out)
        return self


def _names(value: object) -> list[str]:
    """The values of a setting that may be files: a text, also as a list with commas."""
    return [value, *value.split(",")] if isinstance(value, str) else []

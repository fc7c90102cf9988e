"""The output of a feedback program never replaces one of its inputs."""

from typing import Self

from pydantic import model_validator

from fgrlhf.configs.strict import StrictModel
from fgrlhf.data.read import check_not_input


class OutputSettings(StrictModel):
    """Settings of a program that writes the file `out` and, if it has this setting, `dev_file`.

    Raises:
      UserError: a file to write, or one that is named after it, is a file of another setting, or
        it is a database.
    """

    @model_validator(mode="after")
    def _check_out(self) -> Self:
        for key in ("out", "dev_file"):
            values = dict(self)
            out = values.pop(key, None)
            if out:
                for value in values.values():
                    for name in _names(value):
                        check_not_input(name, out)
        return self


def _names(value: object) -> list[str]:
    """The values of a setting that may be files: a text, also as a list with commas."""
    return [value, *value.split(",")] if isinstance(value, str) else []

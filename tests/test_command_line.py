"""`key=value` settings of the small tools."""

import pytest

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError


class Settings(StrictModel):
    folder: str = "x"
    name: str | None = "x"
    seeds: str = "0,1"
    count: int = 1
    share: float | None = None
    redo: bool = False


@pytest.mark.parametrize("text", ["a #b", "k: v", "a\nb", "${HOME}", "x=y", "[1]", "12", "", "'q'"])
def test_text_is_taken_literally(text):
    settings = settings_from(Settings, [f"folder={text}", f"name={text}"])
    assert settings.folder == settings.name == text


def test_other_values_are_read_by_their_type():
    settings = settings_from(
        Settings, ["seeds=3", "name=null", "count=12", "share=1e-3", "redo=true"]
    )
    assert (settings.seeds, settings.name, settings.count, settings.share, settings.redo) == (
        "3",
        None,
        12,
        1e-3,
        True,
    )


@pytest.mark.parametrize(
    "argument",
    [
        "count=1:30",
        "count=3.0",
        "count='3'",
        "redo=1",
        "share=[1]",
        "count=&a [*a]",
        "count=" + "9" * 5000,
    ],
)
def test_other_forms_are_refused(argument):
    with pytest.raises(
        UserError, match=f"the command line has 1 mistake:\n  {argument.split('=')[0]}: "
    ):
        settings_from(Settings, [argument])

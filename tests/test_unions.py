"""Sections of several kinds, as selected by their key `kind`."""

from typing import Literal

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.cli.command_line import describe
from fgrlhf.configs.strict import StrictModel, any_kind, validate


class Circle(StrictModel):
    kind: Literal["circle"] = "circle"
    radius: float


class Square(StrictModel):
    kind: Literal["square"] = "square"
    side: float = 1.0


class Ellipse(StrictModel):
    kind: Literal["wide", "high"]
    width: float


class Drawing(StrictModel):
    shape: any_kind((Circle, Square, Ellipse, Ellipse))  # pyright: ignore[reportInvalidTypeForm]


def drawn(**shape):
    return validate(Drawing, {"shape": shape}, "test").shape


def test_the_kind_selects_the_class():
    assert drawn(kind="circle", radius=2.0) == Circle(radius=2.0)
    assert drawn(kind="square") == Square()
    assert [drawn(kind=kind, width=2.0).kind for kind in ("wide", "high")] == ["wide", "high"]


@pytest.mark.parametrize(
    "shape, message",
    [
        ({"kind": "circel"}, "shape.kind: there is no `circel`; did you mean `circle`"),
        ({"radius": 1.0}, "shape.kind: missing; known: circle, high, square, wide"),
        ({"kind": "square", "radius": 1.0}, "shape.radius: unknown key"),
        ({"kind": "circle"}, "shape.radius: missing"),
        ({"kind": "high"}, "shape.width: missing"),
    ],
)
def test_other_kinds_and_keys_are_refused(shape, message):
    with pytest.raises(UserError, match=message):
        drawn(**shape)


def test_a_kind_of_several_names_is_described_once():
    lines = describe(Drawing)
    assert lines[0] == "  shape.kind: circle|square|wide|high = required"
    assert [line for line in lines if "width" in line] == ["    shape.width: float = required"]
    assert "  with kind=wide|high" in lines

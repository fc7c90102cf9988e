"""Sections of several kinds, as selected by their key `kind`."""

from typing import Literal

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import StrictModel, any_kind, validate


class Circle(StrictModel):
    kind: Literal["circle"] = "circle"
    radius: float


class Square(StrictModel):
    kind: Literal["square"] = "square"
    side: float = 1.0


class Drawing(StrictModel):
    shape: any_kind((Circle, Square))  # pyright: ignore[reportInvalidTypeForm]


def drawn(**shape):
    return validate(Drawing, {"shape": shape}, "test").shape


def test_the_kind_selects_the_class():
    assert drawn(kind="circle", radius=2.0) == Circle(radius=2.0)
    assert drawn(kind="square") == Square()


@pytest.mark.parametrize(
    "shape, message",
    [
        ({"kind": "circel"}, "shape.kind: there is no `circel`; did you mean `circle`"),
        ({"radius": 1.0}, "shape.kind: missing; known: circle, square"),
        ({"kind": "square", "radius": 1.0}, "shape.radius: unknown key"),
        ({"kind": "circle"}, "shape.radius: missing"),
    ],
)
def test_other_kinds_and_keys_are_refused(shape, message):
    with pytest.raises(UserError, match=message):
        drawn(**shape)

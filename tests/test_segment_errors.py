"""What a segment model gets wrong: groups by label, length and place, and its mistakes."""

import numpy as np
import pytest

from fgrlhf.reward_models.prefix import Prefix, RMText
from reward_modeling.pair_errors import MOST_MISTAKES, Group
from reward_modeling.segment_errors import SegmentMistake, segment_errors

PROMPT = Prefix.of(("Why", "?"))


def response(*segments: str) -> RMText:
    return RMText(PROMPT, tuple(tuple(segment.split()) for segment in segments))


def test_groups_and_mistakes_by_hand():
    long = " ".join(["w"] * 16)
    rows = [
        (response("One two.", "Three.", long), [False, None, True]),
        (response("Alone."), [True]),
        (response("First.", "Second.", "Third."), [False, True, False]),
    ]
    labels = ["O", "F-ERR", "C-ERR", "O", "F-ERR", "O"]
    errors = segment_errors(rows, labels, np.array([0.1, 0.4, 0.9, 0.8, 0.7, 0.5]))
    assert errors.by_label == (
        Group("O", 3, pytest.approx(2 / 3)),
        Group("F-ERR", 2, 0.5),
        Group("C-ERR", 1, 1.0),
    )
    assert errors.by_length == (
        Group("1 to 5 words", 5, 0.8),
        Group("more than 15 words", 1, 0.0),
    )
    assert errors.by_place == (
        Group("only", 1, 1.0),
        Group("first", 2, 0.5),
        Group("between", 1, 1.0),
        Group("last", 2, 0.5),
    )
    assert errors.mistakes == (
        SegmentMistake("Why ?", "First. Second. Third.", "First.", "O", 0.8),
        SegmentMistake("Why ?", f"One two. Three. {long}", long, "F-ERR", 0.6),
    )
    assert errors.describe() == (
        "accuracy by what people marked: 0.667 of O (n=3), 0.500 of F-ERR (n=2), 1.000 of C-ERR"
        " (n=1)"
    )


def test_only_the_most_confident_mistakes_are_kept():
    n = MOST_MISTAKES + 5
    rows = [(response("Yes."), [False])] * n
    found = segment_errors(rows, ["O"] * n, np.linspace(0.6, 0.9, n)).mistakes
    assert len(found) == MOST_MISTAKES
    assert [mistake.confidence for mistake in found] == sorted(
        (mistake.confidence for mistake in found), reverse=True
    )
    assert found[0].confidence == pytest.approx(0.9)


def test_every_judged_segment_needs_its_prediction():
    with pytest.raises(ValueError):
        segment_errors([(response("Yes."), [False])], ["O"], np.array([0.1, 0.2]))

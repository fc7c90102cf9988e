"""What a segment model gets wrong: groups by label, length and place, and its mistakes."""

import numpy as np
import pytest

from fgrlhf.reward_models.prefix import Prefix, RMText
from reward_modeling.error_groups import MOST_MISTAKES, Group
from reward_modeling.segment_errors import SegmentMistake, segment_errors

PROMPT = Prefix.of(("Why", "?"))


def response(*segments: str) -> RMText:
    return RMText(PROMPT, tuple(tuple(segment.split()) for segment in segments))


def figures(groups: tuple[Group, ...]) -> list[tuple[str, int, float]]:
    return [(group.name, group.cases, group.accuracy.mean) for group in groups]


def test_groups_and_mistakes_by_hand():
    long = " ".join(["w"] * 16)
    rows = [
        (response("One two.", "Three.", long), [False, None, True]),
        (response("Alone."), [True]),
        (response("First.", "Second.", "Third."), [False, True, False]),
    ]
    labels = ["O", "F-ERR", "C-ERR", "O", "F-ERR", "O"]
    errors = segment_errors(rows, [0, 1, 2], labels, np.array([0.1, 0.4, 0.9, 0.8, 0.7, 0.5]))
    assert figures(errors.groups["by_label"]) == [
        ("O", 3, pytest.approx(2 / 3)),
        ("F-ERR", 2, 0.5),
        ("C-ERR", 1, 1.0),
    ]
    assert figures(errors.groups["by_length"]) == [
        ("1 to 5 words", 5, 0.8),
        ("more than 15 words", 1, 0.0),
    ]
    assert figures(errors.groups["by_place"]) == [
        ("only", 1, 1.0),
        ("first", 2, 0.5),
        ("between", 1, 1.0),
        ("last", 2, 0.5),
    ]
    assert errors.mistakes == (
        SegmentMistake("Why ?", "First. Second. Third.", "First.", "O", 0.8),
        SegmentMistake("Why ?", f"One two. Three. {long}", long, "F-ERR", 0.6),
    )
    assert errors.describe() == (
        "accuracy by label: O 0.667 (n=3), F-ERR 0.500 (n=2), C-ERR 1.000 (n=1)"
    )


def test_the_prompt_of_a_segment_is_that_of_its_row():
    rows = [(response("One.", "Two."), [False, True]), (response("Three."), [True])] * 6
    prompts = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    p_error = np.array([0.1, 0.9, 0.2] * 6)
    (apart,) = segment_errors(rows, prompts, ["X"] * 18, p_error).groups["by_label"]
    assert apart.accuracy.has_bounds
    (shared,) = segment_errors(rows, [0, 1] * 6, ["X"] * 18, p_error).groups["by_label"]
    assert not shared.accuracy.has_bounds and shared.accuracy.mean == apart.accuracy.mean


def test_only_the_most_confident_mistakes_are_kept():
    n = MOST_MISTAKES + 5
    rows = [(response("Yes."), [False])] * n
    found = segment_errors(rows, range(n), ["O"] * n, np.linspace(0.6, 0.9, n)).mistakes
    assert len(found) == MOST_MISTAKES
    assert [mistake.confidence for mistake in found] == sorted(
        (mistake.confidence for mistake in found), reverse=True
    )
    assert found[0].confidence == pytest.approx(0.9)


def test_every_judged_segment_needs_its_prediction():
    with pytest.raises(ValueError):
        segment_errors([(response("Yes."), [False])], [0], ["O"], np.array([0.1, 0.2]))

"""What a trained segment model gets wrong: `errors.json` in its folder.

The dev segments are grouped by what people marked, by length and by place in the response, and the
accuracy of each group is reported: a model may be good on average and blind for one kind of error
or for first sentences. The file also lists the mistakes in which the model was most confident.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fgrlhf.metrics.slices import PLACES, place_name
from reward_modeling.judged import LabelledText
from reward_modeling.pair_errors import MOST_MISTAKES, Group, groups

LENGTHS = ((5, "1 to 5 words"), (15, "6 to 15 words"))  # most words of a group
LONGER = "more than 15 words"


@dataclass(frozen=True)
class SegmentMistake:
    """A segment that the model calls wrong and people do not, or the other way round.

    Attributes:
      confidence: the probability of what the model says; greater than 1/2.
    """

    prompt: str
    response: str
    segment: str
    label: str
    confidence: float


@dataclass(frozen=True)
class SegmentErrors:
    """Accuracy by group, and the most confident mistakes first."""

    by_label: tuple[Group, ...]
    by_length: tuple[Group, ...]
    by_place: tuple[Group, ...]
    mistakes: tuple[SegmentMistake, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """A line for the user."""
        parts = [
            f"{group.accuracy:.3f} of {group.name} (n={group.cases})" for group in self.by_label
        ]
        return "accuracy by what people marked: " + ", ".join(parts)


def segment_errors(
    rows: Sequence[LabelledText], labels_N: Sequence[str], probabilities_N: np.ndarray
) -> SegmentErrors:
    """Analyse the predictions of the N judged segments of all rows.

    Args:
      labels_N: what people marked.
      probabilities_N: of an error.
    """
    by_label: dict[str, list[float]] = {}
    by_length: dict[str, list[float]] = {name: [] for _, name in LENGTHS} | {LONGER: []}
    by_place: dict[str, list[float]] = {place: [] for place in PLACES}
    mistakes = []
    judged = iter(list(zip(labels_N, probabilities_N.tolist(), strict=True)))
    for text, wrong in rows:
        response = " ".join(word for segment in text.segments for word in segment)
        for i, (words, is_wrong) in enumerate(zip(text.segments, wrong, strict=True)):
            if is_wrong is None:
                continue
            label, p_error = next(judged)
            is_right = (p_error > 0.5) == is_wrong
            by_label.setdefault(label, []).append(is_right)
            by_length[_length(len(words))].append(is_right)
            by_place[place_name(i, len(wrong))].append(is_right)
            if not is_right:
                confidence = max(p_error, 1 - p_error)
                segment = " ".join(words)
                prompt = " ".join(text.prefix.words)
                mistakes.append(SegmentMistake(prompt, response, segment, label, confidence))
    mistakes.sort(key=lambda mistake: -mistake.confidence)
    found = tuple(mistakes[:MOST_MISTAKES])
    return SegmentErrors(groups(by_label), groups(by_length), groups(by_place), found)


def _length(words: int) -> str:
    return next((name for most, name in LENGTHS if words <= most), LONGER)

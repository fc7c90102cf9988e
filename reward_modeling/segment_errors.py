"""What a trained segment model gets wrong.

The dev segments are grouped by what people marked, by length and by place in the response: a model
may be good on average and blind for one kind of error or for first sentences. The mistakes in which
the model was most confident are listed, to be read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fgrlhf.metrics.slices import PLACES, place_name
from reward_modeling.error_groups import MOST_MISTAKES, Credit, Errors, groups_of
from reward_modeling.judged import LabelledText

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


def segment_errors(
    rows: Sequence[LabelledText],
    prompts: Sequence[int],
    labels_N: Sequence[str],
    probabilities_N: np.ndarray,
) -> Errors:
    """Analyse the predictions of the N judged segments of all rows.

    Args:
      prompts: the number of each row's prompt.
      labels_N: what people marked.
      probabilities_N: of an error.
    """
    by_label: dict[str, list[Credit]] = {}
    by_length: dict[str, list[Credit]] = {name: [] for _, name in LENGTHS} | {LONGER: []}
    by_place: dict[str, list[Credit]] = {place: [] for place in PLACES}
    mistakes = []
    judged = iter(list(zip(labels_N, probabilities_N.tolist(), strict=True)))
    for (text, wrong), prompt in zip(rows, prompts, strict=True):
        response = " ".join(word for segment in text.segments for word in segment)
        for i, (words, is_wrong) in enumerate(zip(text.segments, wrong, strict=True)):
            if is_wrong is None:
                continue
            label, p_error = next(judged)
            is_right = (p_error > 0.5) == is_wrong
            credit = (float(is_right), prompt)
            by_label.setdefault(label, []).append(credit)
            by_length[_length(len(words))].append(credit)
            by_place[place_name(i, len(wrong))].append(credit)
            if not is_right:
                confidence = max(p_error, 1 - p_error)
                segment = " ".join(words)
                before = " ".join(text.prefix.words)
                mistakes.append(SegmentMistake(before, response, segment, label, confidence))
    mistakes.sort(key=lambda mistake: -mistake.confidence)
    groups = {
        "by_label": groups_of(by_label),
        "by_length": groups_of(by_length),
        "by_place": groups_of(by_place),
    }
    return Errors(groups, tuple(mistakes[:MOST_MISTAKES]))


def _length(words: int) -> str:
    return next((name for most, name in LENGTHS if words <= most), LONGER)

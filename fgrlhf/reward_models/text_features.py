"""Ten hand-made features of every segment of a response, from its words and those of its prompt.

They need no network. Linear models of them are baselines of every reward model
(reward_modeling/baselines.py), and a reward model based on a language model can read them beside
the text (`text_features`).
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fgrlhf.reward_models.prefix import RMText

TEXT_FEATURES = (
    "place of the segment, from 0 to 1",
    "log(1 + words)",
    "share of its words in the prompt without its context",
    "share of its words in the context",
    "share of its word pairs in the context",
    "numbers that the prompt does not have",
    "capitalised words that the prompt does not have",
    "share of its words in earlier segments",
    "share of its words that repeat one before them in it",
    "ends without a punctuation mark",
)
PUNCTUATION = (".", ",", ";", ":", "!", "?")


def segment_features(text: RMText) -> tuple[tuple[float, ...], ...]:
    """`TEXT_FEATURES` of every segment of a response."""
    places_of_context = set()
    for part in text.prefix.context:
        places_of_context.update(part)
    prompt = text.prefix.words
    core = _Words([word for i, word in enumerate(prompt) if i not in places_of_context])
    context = _Words([prompt[i] for i in sorted(places_of_context)])
    in_prompt = core.all | context.all

    rows = []
    earlier: set[str] = set()
    last_place = max(len(text.segments) - 1, 1)
    for place, segment in enumerate(text.segments):
        words = _Words(segment)
        # a capital letter at the beginning says nothing
        names = [_plain(word) for word in segment[1:] if word[:1].isupper()]
        numbers = [word for word in words.list if any(c.isdigit() for c in word)]
        rows.append(
            (
                place / last_place,
                float(np.log1p(len(segment))),
                _share(words.list, core.all),
                _share(words.list, context.all),
                _share(words.pairs, context.all_pairs),
                float(sum(number not in in_prompt for number in numbers)),
                float(sum(name not in in_prompt for name in names)),
                _share(words.list, earlier),
                _share_of_repeats(words),
                float(not _ends_with_mark(segment)),
            )
        )
        earlier |= words.all
    return tuple(rows)


class _Words:
    """Lower-case words without punctuation, and pairs of neighbours."""

    def __init__(self, words: Sequence[str]):
        self.list = [plain for plain in map(_plain, words) if plain]
        self.pairs = list(zip(self.list, self.list[1:]))
        self.all = set(self.list)
        self.all_pairs = set(self.pairs)


def _ends_with_mark(segment: Sequence[str]) -> bool:
    """Whether the last word ends with a punctuation mark; False if there are no words."""
    return bool(segment) and segment[-1].endswith(PUNCTUATION)


def _share_of_repeats(words: _Words) -> float:
    """The share of the words that occurred before; 0 if there are no words."""
    repeats = len(words.list) - len(words.all)
    return repeats / max(len(words.list), 1)


@lru_cache(2**16)
def _plain(word: str) -> str:
    return re.sub(r"\W+", "", word.lower())


def _share(items: Sequence[Any], among: set) -> float:
    """The share of the items that are in `among`; 0 if there are no items."""
    return sum(item in among for item in items) / max(len(items), 1)

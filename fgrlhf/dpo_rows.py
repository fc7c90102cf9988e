"""What DPO keeps of its comparisons in memory: numbers of tokens, and where to find the rest.

The comparisons of a large file are read and tokenised when they are needed (fgrlhf/data/stream.py).
The log-probabilities of the reference are in a temporary file.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from tempfile import TemporaryFile

import numpy as np
import torch
from torch import Tensor

from fgrlhf.base.errors import UserError
from fgrlhf.data.mixture import of_each
from fgrlhf.data.stream import Lazy, Mapped, chosen
from fgrlhf.data.token_comparisons import TokenComparison
from fgrlhf.preference_terms import count_units, units_of
from fgrlhf.runs.dpo_config import DPOSettings


def select_usable(
    settings: DPOSettings, comparisons: Sequence[TokenComparison]
) -> Sequence[TokenComparison]:
    """The comparisons that have something to learn from for one of the losses.

    Raises:
      UserError: a loss finds nothing in any comparison, or all find nothing in a file of several.
    """
    totals: Counter[str] = Counter()
    wanted = {unit for name in settings.losses for unit in units_of(name)}

    def is_usable(comparison: TokenComparison) -> bool:
        counts = count_units(comparison)
        totals.update(counts)
        return any(counts[unit] for unit in wanted)

    usable = of_each(comparisons, lambda part: chosen(part, is_usable))
    for name in settings.losses:
        for unit in sorted(units_of(name)):
            if not totals[unit]:
                raise UserError(
                    f"dpo.loss={name} learns from {unit}, and the data have none: choose another"
                    " loss (docs/algorithms.md, Losses of preferences), or other data"
                )
    return usable


class Sizes(Sequence[tuple[int, int]]):
    """The tokens of comparisons, in about 28 bytes for a pair of answers.

    Its items are sort keys: tokens of the prompt, and of the longest answer. A batch of comparisons
    of similar length needs little padding.

    Attributes:
      prompts: tokens of each prompt.
      prompt_keys: of prompts with different tokens they differ.
      first: the number of each comparison's first answer among all answers.
      answers: tokens of each answer.
      units: what the losses count, in all comparisons.
    """

    def __init__(self, comparisons: Iterable[TokenComparison]):
        self.prompts = array("I")
        self.prompt_keys = array("q")
        self.first = array("Q", [0])
        self.answers = array("I")
        self.units: Counter[str] = Counter()
        for comparison in comparisons:
            self.prompts.append(len(comparison.prompt_ids))
            self.prompt_keys.append(hash(tuple(comparison.prompt_ids)))
            self.answers.extend(map(len, comparison.answer_ids))
            self.first.append(len(self.answers))
            self.units.update(count_units(comparison))

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, place):
        return self.prompts[place], max(self.of_answers(place))

    def of_answers(self, place: int) -> Sequence[int]:
        """The tokens of a comparison's answers."""
        return self.answers[self.first[place] : self.first[place + 1]]


class StoredLogprobs(Sequence[list[Tensor]]):
    """The log pi(y_t) of every answer: comparison -> answer -> tokens.

    They are in a temporary file (in `TMPDIR`), of 4 bytes a token, which goes with the process.
    """

    def __init__(self, sizes: Sizes):
        self._sizes = sizes
        self._starts = array("Q", accumulate(sizes.answers, initial=0))
        with TemporaryFile() as file:
            self._values = np.memmap(file, np.float32, "w+", shape=(self._starts[-1],))

    def __len__(self) -> int:
        return len(self._sizes)

    def put(self, place: int, logprobs: Sequence[Tensor]) -> None:
        """Store those of a comparison's answers."""
        first = self._sizes.first[place]
        for k, logprobs_T in enumerate(logprobs, first):
            self._values[self._starts[k] : self._starts[k + 1]] = logprobs_T.float().numpy()

    def __getitem__(self, place):
        if not 0 <= place < len(self):
            raise IndexError(f"place {place} of {len(self)}")
        answers = range(self._sizes.first[place], self._sizes.first[place + 1])
        ranges = [(self._starts[k], self._starts[k + 1]) for k in answers]
        return [torch.tensor(self._values[start:end]) for start, end in ranges]


def mismatched(comparisons: Sequence[TokenComparison], sizes: Sizes) -> Sequence[TokenComparison]:
    """Every prompt with an answer to another prompt: those of the next comparison in length.

    If all comparisons have the same prompt, there is no other.
    """
    n = len(comparisons)
    order = sorted(range(n), key=sizes.__getitem__)
    # comparison -> the next one with another prompt; a second pass is for the end, after which the
    # first one follows
    others = array("I", range(n))
    other: int | None = None
    for place in reversed(range(2 * n)):
        i, following = order[place % n], order[(place + 1) % n]
        if sizes.prompt_keys[following] != sizes.prompt_keys[i]:
            other = following
        others[i] = i if other is None else other

    def exchanged(places: Sequence[int]) -> list[TokenComparison]:
        rows = []
        for i in places:
            mine, answers = comparisons[i], comparisons[others[i]].answer_ids
            ids = answers[i % len(answers)]
            marked = [[False] * len(ids)]
            rows.append(TokenComparison(mine.source, mine.prompt_ids, [ids], marked, []))
        return rows

    is_lazy = isinstance(comparisons, Lazy)
    return Mapped(range(n), exchanged) if is_lazy else exchanged(range(n))

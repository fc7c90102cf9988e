"""Reward models as scorers of texts."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fgrlhf.base.errors import UserError

if TYPE_CHECKING:
    from fgrlhf.text_types import Prompt

# how a process reward model's probabilities become one score: name -> (p_1, ..., p_S) -> score
AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "product": math.prod,
    "min": min,
    "mean": fmean,
    "last": lambda probabilities: probabilities[-1],
}


class WithoutError:
    """Aggregated probabilities of segments without an error, by a segment reward model."""

    def __init__(self, model: Any, aggregate: Callable[[Sequence[float]], float]):
        self.model = model
        self.aggregate = aggregate

    def score(self, prompts: "Sequence[Prompt]", texts: Sequence[str]) -> list[float]:
        """The score of each text, from 0 to 1; 1 for a text without segments.

        Raises:
          UserError: the model's input was cut so short that it read no segment of a text.
        """
        scores = []
        for judged in self.model.score(prompts, texts):
            ok_S = judged.probabilities_SC[:, -1].tolist()  # the ok label is the last one
            known = [ok for ok, is_judged in zip(ok_S, judged.judged) if is_judged]
            if judged.spans and not known:
                raise UserError(
                    "a reward model's input was cut before the end of the response's first segment,"
                    " so it has no score: shorten the prompts, or use a model with a larger"
                    " model.max_input_len"
                )
            scores.append(self.aggregate(known) if known else 1.0)
        return scores


class Standardized:
    """(s - mean) / std of another scorer's score s."""

    def __init__(self, scorer: Any, mean: float, std: float):
        self.scorer = scorer
        self.mean = mean
        self.std = std

    def score(self, prompts: "Sequence[Prompt]", texts: Sequence[str]) -> list[float]:
        scores = self.scorer.score(prompts, texts).tolist()
        return [(score - self.mean) / self.std for score in scores]

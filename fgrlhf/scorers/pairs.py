"""Pairs of responses, judged by any scorer of texts or by a judge that sees both responses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.data.comparisons import FIRST, SECOND, SWAPPED, TIE
from fgrlhf.scorers.base import TextScorer, score_texts
from fgrlhf.text_types import Prompt

PairKey = tuple[str, str, str, str]


class PairJudge(Protocol):
    """Compares two responses. To add your own, write a class with this method."""

    def compare(
        self, prompts: Sequence[Prompt], firsts: Sequence[str], seconds: Sequence[str]
    ) -> Sequence[int]:
        """For each prompt: 1 if the first response is better, 2 if the second is, 0 for a tie."""
        ...


@dataclass(frozen=True)
class Pair:
    """Two responses to a prompt."""

    prompt: Prompt
    a: str
    b: str

    @property
    def key(self) -> PairKey:
        """What a judge's answer depends on."""
        return self.prompt.id, self.prompt.text, self.a, self.b


@dataclass(frozen=True)
class PairAnswers:
    """What a judge says about a pair: `FIRST` if a is better, `SECOND` if b is, or `TIE`.

    Attributes:
      answers: with a shown first, then with b shown first; a single one by scores.
      scores: of a and of b; () if the judge saw both.
    """

    answers: tuple[int, ...]
    scores: tuple[float, ...] = ()


def compare_in_both_orders(judge: PairJudge, pairs: Sequence[Pair]) -> list[PairAnswers]:
    """The answers of a judge that sees both responses of a pair.

    Raises:
      UserError: the judge does not return 0, 1 or 2 for each pair.
    """
    prompts = [pair.prompt for pair in pairs] * 2
    firsts = [pair.a for pair in pairs] + [pair.b for pair in pairs]
    seconds = [pair.b for pair in pairs] + [pair.a for pair in pairs]
    if not pairs:
        return []
    answers = _checked(judge, judge.compare(prompts, firsts, seconds), len(prompts))
    return [
        PairAnswers((answer, SWAPPED[swapped]))
        for answer, swapped in zip(answers[: len(pairs)], answers[len(pairs) :], strict=True)
    ]


def _checked(judge: PairJudge, returned: Any, count: int) -> list[int]:
    try:
        given = list(returned)
        answers = [int(answer) for answer in given]
        is_right = len(answers) == count and not set(answers) - {TIE, FIRST, SECOND}
        is_right = is_right and all(answer == one for answer, one in zip(answers, given))
    except (TypeError, ValueError):
        is_right = False
    if not is_right:
        raise UserError(
            f"the judge {type(judge).__name__} returned {shorten(repr(returned), 80)} for"
            f" {count} pairs: `compare` must return 1 (the first is better), 2 (the second is"
            " better) or 0 (a tie) for each pair"
        )
    return answers


def compare_by_scores(scorer: TextScorer, pairs: Sequence[Pair], tie: float) -> list[PairAnswers]:
    """The answers by the scores of the single responses.

    Args:
      tie: two scores that differ by this or less are a tie.

    Raises:
      UserError: the scorer does not return one finite number per text.
    """
    prompts = [pair.prompt for pair in pairs] * 2
    texts = [pair.a for pair in pairs] + [pair.b for pair in pairs]
    scores = score_texts(scorer, prompts, texts)
    answers = []
    for a, b in zip(scores[: len(pairs)], scores[len(pairs) :], strict=True):
        answer = TIE if abs(a - b) <= tie else FIRST if a > b else SECOND
        answers.append(PairAnswers((answer,), (a, b)))
    return answers

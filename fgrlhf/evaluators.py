"""ROUGE of generated answers, computed offline with `rouge-score`."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from fgrlhf.reward_utils import BLANK, Segmenter, load_segmenter


class RougeLsum:
    """RougeLsum F-measure in points (0-100) with Porter stemming, the best over an example's
    references.

    Summary-level LCS (Lin 2004, section 3.2) needs one sentence per line. The default segmenter is
    the blank one, which every machine has: a score must not depend on what else is installed. The
    published code takes nltk's punkt, which has to be downloaded.
    """

    def __init__(self, segmenter: Segmenter | None = None):
        self.segmenter = load_segmenter(BLANK) if segmenter is None else segmenter
        tokenizer = DefaultTokenizer(use_stemmer=True)
        # stemming is half of the cost, and every reference is read once per answer that is compared
        # with it
        tokenizer.tokenize = lru_cache(maxsize=100_000)(tokenizer.tokenize)
        self._scorer = RougeScorer(["rougeLsum"], tokenizer=tokenizer)

    def lines(self, text: str) -> str:
        """The text with one sentence per line."""
        sentences = [
            text[start:end].strip() for start, end in self.segmenter.segments(text, "sentence")
        ]
        return "\n".join(sentence for sentence in sentences if sentence)

    def __call__(self, prediction: str, references: Sequence[str]) -> float:
        """Score of one answer; 0 for an empty one. Raises `ValueError` without a reference."""
        if not references:
            raise ValueError("RougeLsum needs at least one reference")
        predicted = self.lines(prediction)
        scores = [self._scorer.score(self.lines(reference), predicted) for reference in references]
        return 100 * max(score["rougeLsum"].fmeasure for score in scores)

    def mean(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        """Mean over examples."""
        pairs = list(zip(predictions, references, strict=True))
        return (
            float(np.mean([self(prediction, known) for prediction, known in pairs]))
            if pairs
            else 0.0
        )

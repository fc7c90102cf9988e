"""ROUGE of generated responses, computed offline with `rouge-score`."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from fgrlhf.reward_utils import BLANK, MULTILINGUAL, Segmenter, load_segmenter
from fgrlhf.words import unicode_words

RougeTokenizer = Literal["unicode", "published"]
LONGEST_UNSTEMMED = 3  # letters


def _stemmed_words(text: str, stemmer: Any) -> list[str]:
    """`unicode_words`; words of more than three letters, all of a-z, are stemmed (Porter)."""
    words = []
    for word in unicode_words(text):
        is_long = len(word) > LONGEST_UNSTEMMED and word.isascii()
        words.append(stemmer.stem(word) if is_long else word)
    return words


class Rouge:
    """ROUGE F-measure in points (0-100) for the best reference (Lin 2004).

    Args:
      kind: rouge1 or rouge2 (n-grams), rougeL (longest common subsequence of the whole text).
      tokenizer: what a word is. "unicode": a run of letters and digits of any script, or a
        character of a script without spaces (`unicode_words`); "published": a run of the letters
        a-z and digits, so texts in other scripts score 0. Words of a-z have Porter's stemming.
        Texts in ASCII score the same.
    """

    def __init__(self, kind: str, tokenizer: RougeTokenizer = "unicode"):
        # They import nltk, a quarter of the time in which the programs start, and few need ROUGE.
        from rouge_score.rouge_scorer import RougeScorer
        from rouge_score.tokenizers import DefaultTokenizer

        self.kind = kind
        self.tokenizer = tokenizer
        words: Any = DefaultTokenizer(use_stemmer=True)
        if tokenizer == "unicode":
            words.tokenize = partial(_stemmed_words, stemmer=words._stemmer)
        # Stemming takes half of the time, and a reference is compared with many responses.
        words.tokenize = lru_cache(maxsize=100_000)(words.tokenize)
        self.words: Callable[[str], list[str]] = words.tokenize
        self._scorer = RougeScorer([kind], tokenizer=words)

    def prepare(self, text: str) -> str:
        """The text as the scorer reads it."""
        return text

    def __call__(self, prediction: str, references: Sequence[str]) -> float:
        """Score of one response; 0 if it is empty. Raises `ValueError` without references."""
        if not references:
            raise ValueError(f"{self.kind} needs at least one reference")
        predicted = self.prepare(prediction)
        scores = [
            self._scorer.score(self.prepare(reference), predicted)[self.kind].fmeasure
            for reference in references
        ]
        return 100 * max(scores)

    def mean(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        """Mean over examples; 0 if there are none."""
        scores = [
            self(prediction, of_example)
            for prediction, of_example in zip(predictions, references, strict=True)
        ]
        return float(np.mean(scores)) if scores else 0.0


class RougeLsum(Rouge):
    """ROUGE with the summary-level longest common subsequence (Lin 2004, section 3.2).

    It reads one sentence per line, as the segmenter `multilingual` finds them. With the tokenizer
    "published", the sentences are those of the blank segmenter: the published code uses nltk's
    punkt, which has to be downloaded, and a score must not depend on installed packages.
    """

    def __init__(self, segmenter: Segmenter | None = None, tokenizer: RougeTokenizer = "unicode"):
        super().__init__("rougeLsum", tokenizer)
        name = BLANK if tokenizer == "published" else MULTILINGUAL
        self.segmenter = load_segmenter(name) if segmenter is None else segmenter

    def lines(self, text: str) -> str:
        """The text with one sentence per line."""
        sentences = [
            text[start:end].strip() for start, end in self.segmenter.segments(text, "sentence")
        ]
        return "\n".join(sentence for sentence in sentences if sentence)

    def prepare(self, text: str) -> str:
        return self.lines(text)

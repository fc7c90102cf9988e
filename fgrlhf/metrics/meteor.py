"""METEOR (Lavie & Agarwal 2007), computed offline with nltk."""

from collections.abc import Sequence
from typing import Any

from nltk.corpus import wordnet
from nltk.tokenize import word_tokenize
from nltk.translate.meteor_score import meteor_score

from fgrlhf.base.errors import UserError
from fgrlhf.reward_utils import BLANK, load_segmenter


class _NoSynonyms:
    """Replaces WordNet if synonyms are not matched."""

    def synsets(self, word: str) -> list:
        return []


class Meteor:
    """METEOR in points (0-100), the best over the references.

        (1 - 0.5 (chunks / matches)^3) * P R / (0.9 P + 0.1 R)

    P and R are the shares of the response's and the reference's words that match; chunks are runs
    of matches in the same order. Words match if they are equal, have the same Porter stem, or, with
    `synonyms`, if their stems share a WordNet synset (nltk looks up the stems, so a word that
    stemming changes rarely matches a synonym). Parameters and matching are nltk's; texts are split
    into words as by nltk's `word_tokenize`, but into sentences by the blank segmenter, which needs
    no download.

    Raises:
      UserError: `synonyms` is set and WordNet is not installed.
    """

    def __init__(self, synonyms: bool):
        self.wordnet: Any = _installed_wordnet() if synonyms else _NoSynonyms()
        self.segmenter = load_segmenter(BLANK)

    def _words(self, text: str) -> list[str]:
        words = []
        for start, end in self.segmenter.segments(text, "sentence"):
            words += word_tokenize(text[start:end].strip(), preserve_line=True)
        return words

    def __call__(self, text: str, references: Sequence[str]) -> float:
        tokenized = [self._words(reference) for reference in references]
        return 100 * meteor_score(tokenized, self._words(text), wordnet=self.wordnet)


def _installed_wordnet() -> Any:
    try:
        wordnet.ensure_loaded()
    except LookupError:
        raise UserError(
            "the metric `meteor` matches synonyms with WordNet, which nltk does not find on this"
            " machine. No package on PyPI contains it. On a machine with internet access run"
            " `python -m nltk.downloader -d FOLDER wordnet` (11 MB), copy the folder here and set"
            " NLTK_DATA=FOLDER; or use `meteor_stem`, which matches equal words and equal stems"
            " only and needs no download"
        ) from None
    return wordnet

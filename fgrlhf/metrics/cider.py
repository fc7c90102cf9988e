"""CIDEr-D: n-grams shared with references, weighted by how rare they are (Vedantam et al. 2015).

    g_n(t) = tf-idf vector of the n-grams of a text t:  h_w(t) log(D / max(1, d_w))
    C_n = 1/M sum over references r of
          exp(-(|t| - |r|)^2 / 2 sigma^2)  min(g_n(t), g_n(r)) . g_n(r) / (|g_n(t)| |g_n(r)|)
    CIDEr-D = 10 mean over n = 1 to 4 of C_n

h_w counts the n-gram w in the text, d_w is the number of the D prompts of a corpus that have w in a
reference, sigma = 6. As in `pycocoevalcap` 1.2, |t| is the number of pairs of neighbouring words.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fgrlhf.base.errors import UserError
from fgrlhf.data.formats import read_prompts
from fgrlhf.words import unicode_words

ORDERS = (1, 2, 3, 4)
SIGMA = 6.0

Ngram = tuple[str, ...]


@dataclass(frozen=True)
class Frequencies:
    """In how many of the `documents` each n-gram occurs."""

    documents: int
    of_ngram: Mapping[Ngram, int]

    @classmethod
    def of(cls, references: Sequence[Sequence[str]]) -> "Frequencies":
        """Those of the references of each prompt.

        Raises:
          ValueError: fewer than two prompts have references, so that every weight would be 0.
        """
        documents = [texts for texts in references if texts]
        if len(documents) < 2:
            raise ValueError(f"CIDEr needs two prompts with references or more: {len(documents)}")
        counts: Counter[Ngram] = Counter()
        for texts in documents:
            counts.update({ngram for text in texts for ngram in counted_ngrams(text)})
        return cls(len(documents), counts)

    @classmethod
    def read(cls, file: str) -> "Frequencies":
        """Those of a file of prompts. Raises `UserError` if it has too few references."""
        try:
            return cls.of([prompt.references for prompt in read_prompts(file)])
        except ValueError as error:
            raise UserError(
                f"{file}: {error}. Name a file of prompts with references, such as those that are"
                " evaluated"
            ) from None

    def weight(self, ngram: Ngram) -> float:
        """log(D / max(1, d)) of an n-gram in d documents."""
        return math.log(self.documents / max(1, self.of_ngram.get(ngram, 0)))


def counted_ngrams(text: str) -> Counter[Ngram]:
    """The n-grams of all orders. Words are runs of letters and digits, in lower case."""
    words = unicode_words(text)
    counts: Counter[Ngram] = Counter()
    for n in ORDERS:
        counts.update(zip(*(words[start:] for start in range(n))))
    return counts


def cider(text: str, references: Sequence[str], frequencies: Frequencies) -> float:
    """CIDEr-D of a text, from 0 to 10.

    Raises:
      ValueError: there are no references.
    """
    if not references:
        raise ValueError("CIDEr needs at least one reference")
    of_text = counted_ngrams(text)
    total = 0.0
    for reference in references:
        total += _similarity(of_text, counted_ngrams(reference), frequencies)
    return 10 * total / len(references)


def _similarity(text: Counter[Ngram], reference: Counter[Ngram], of: Frequencies) -> float:
    """The mean over n, with the penalty for another length."""
    cosines = []
    for n in ORDERS:
        product = of_text = of_reference = 0.0
        for ngram in sorted(text.keys() | reference.keys()):
            if len(ngram) == n:
                weight = of.weight(ngram)
                ours, theirs = text[ngram] * weight, reference[ngram] * weight
                product += min(ours, theirs) * theirs
                of_text += ours**2
                of_reference += theirs**2
        norm = math.sqrt(of_text * of_reference)
        cosines.append(product / norm if norm else 0.0)
    difference = _pairs(text) - _pairs(reference)
    return sum(cosines) / len(ORDERS) * math.exp(-(difference**2) / (2 * SIGMA**2))


def _pairs(counts: Counter[Ngram]) -> int:
    return sum(count for ngram, count in counts.items() if len(ngram) == 2)

"""Metrics of the words of a text, which are those of fgrlhf/words.py."""

from collections.abc import Sequence

from fgrlhf.words import count_words, words_of


def length(text: str) -> int:
    """Number of words."""
    return count_words(text)


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    """Every run of n words, in order; [] if the text has fewer than n."""
    words = words_of(text)
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def distinct(texts: Sequence[str], n: int) -> float | None:
    """distinct-n = |set of n-grams of all texts| / number of words of all texts.

    From 0 to 1. The denominator counts words, not n-grams, as in Li et al. (2016), section 5.2, so
    texts of fewer than n words count as 0. Several texts are pooled; n-grams do not cross from one
    text to the next. None if there are no words.
    """
    number_of_words = sum(length(text) for text in texts)
    if number_of_words == 0:
        return None
    different = {ngram for text in texts for ngram in ngrams(text, n)}
    return len(different) / number_of_words


def repetition(text: str, n: int) -> float | None:
    """1 - |set of n-grams| / number of n-grams: the share that repeats an earlier n-gram.

    From 0 to 1. With n = 4 it is seq-rep-4 of Welleck et al. (2020), "Neural text generation with
    unlikelihood training", section 6.1. None for a text of fewer than n words.
    """
    all_ngrams = ngrams(text, n)
    if not all_ngrams:
        return None
    return 1 - len(set(all_ngrams)) / len(all_ngrams)

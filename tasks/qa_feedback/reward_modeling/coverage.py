"""Coverage of the needed passage sentences: completeness preferences without new annotation.

Each sub-sentence of a text is matched to the passage sentence it is most similar to. The sentences
matched by the annotator's corrected answer are needed; an output's score is the share of them that
it matches too (Wu et al. 2023, appendix D).
"""

import numpy as np

from fgrlhf.reward_utils import Segmenter
from fgrlhf.words import is_written_without_spaces, words_of
from tasks.qa_feedback.feedback import PAIRS, FeedbackRow
from tasks.qa_feedback.validation import MINOR_INFO

MIN_SIMILARITY = 0.85
PAD = "#"
SentenceId = tuple[int, int]  # passage, sentence, both counted from 1


def normalise(text: str) -> str:
    """One space for every run of white space, none at either end."""
    return " ".join(text.split())


class PassageMatcher:
    """Finds the passage sentence that a sub-sentence is most similar to.

    similarity(x, sentence) = 1 if the sentence contains x, else the greatest
    difflib.SequenceMatcher(None, gram, x).quick_ratio() = 2 |chars(gram) & chars(x)| / (|gram| +
    |x|) over the sentence's word n-grams of n + int(0.05 n) words, where n is the number of words
    of x and & is the intersection of multisets. In passages that are written without spaces, every
    character is a word, and no spaces are counted. The character counts of an n-gram are
    differences of running sums over the passages' words, so a few array operations give the ratios
    of all n-grams. They equal difflib's floats exactly.

    Axes here: S sentences, W words of all sentences, N n-grams, C different characters.
    """

    def __init__(self, passages: list[list[str]]):
        self.ids: list[SentenceId] = []
        self.sentences: list[str] = []
        texts = [sentence for passage in passages for sentence in passage[1:]]
        self._separator = "" if is_written_without_spaces("".join(texts)) else " "
        words: list[str] = []
        counts: list[int] = []  # words of each sentence
        for i, passage in enumerate(passages, 1):
            for j, sentence in enumerate(passage[1:], 1):
                of_sentence = self._words(sentence)
                self.ids.append((i, j))
                self.sentences.append(self._separator.join(of_sentence))
                words += of_sentence
                counts.append(len(of_sentence))
        self._n_words_S = np.array(counts, dtype=np.int64)
        self._first_word_S = np.cumsum(self._n_words_S) - self._n_words_S
        self._characters, self._before_CW = _running_counts(words)
        self._grams: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._matches: dict[str, SentenceId | None] = {}

    def _words(self, text: str) -> list[str]:
        return text.split() if self._separator else words_of(text)

    def match(self, subsentence: str) -> SentenceId | None:
        """The most similar sentence; None if no sentence reaches `MIN_SIMILARITY`.

        Of equally similar sentences it is the first.

        Args:
          subsentence: words joined by single spaces.
        """
        if subsentence not in self._matches:
            self._matches[subsentence] = self._match(subsentence) if self.ids else None
        return self._matches[subsentence]

    def _match(self, subsentence: str) -> SentenceId | None:
        similarity = self.similarities(subsentence)
        best = int(similarity.argmax())
        return self.ids[best] if similarity[best] >= MIN_SIMILARITY else None

    def similarities(self, subsentence: str) -> np.ndarray:
        """similarity_S of `subsentence` to every sentence."""
        words = self._words(subsentence)
        subsentence = self._separator.join(words)
        n = len(words)
        size = n + int(0.05 * n)
        counts_CN, lengths_N, first_gram_S = self._grams_of(size)

        # the characters, spaces apart, that an n-gram has in common with the sub-sentence
        shared = sorted(set(subsentence) & self._characters.keys())
        rows = [self._characters[character] for character in shared]
        counts_C = np.array([subsentence.count(character) for character in shared])
        counts_C = counts_C.astype(counts_CN.dtype)
        common_N = np.minimum(counts_CN[rows], counts_C[:, None]).sum(0, dtype=np.int64)
        # every n-gram has size - 1 separators, the sub-sentence n - 1 <= size - 1
        common_N += (n - 1) * len(self._separator)

        ratios_N = 2.0 * common_N / (lengths_N + len(subsentence))
        similarity_S = np.maximum.reduceat(ratios_N, first_gram_S)
        for i, sentence in enumerate(self.sentences):
            n_padding = max(size + 1 - int(self._n_words_S[i]), 0)  # as in `_grams_of`
            if subsentence in sentence + f"{self._separator}{PAD}" * n_padding:
                similarity_S[i] = 1.0
        return similarity_S

    def _grams_of(self, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All n-grams of `size` words.

        A sentence of no more than `size` words is padded with `#` words to size + 1 words, so it
        has two n-grams.

        Returns:
          counts_CN of their characters without spaces, lengths_N, and first_gram_S, the index of
          each sentence's first n-gram.
        """
        if size not in self._grams:
            n_grams_S = np.maximum(self._n_words_S - size, 1) + 1
            first_gram_S = np.cumsum(n_grams_S) - n_grams_S
            # the words [begin, end) of each n-gram, counted in its sentence, without padding
            place_N = np.arange(n_grams_S.sum()) - np.repeat(first_gram_S, n_grams_S)
            n_words_N = np.repeat(self._n_words_S, n_grams_S)
            begin_N = np.minimum(place_N, n_words_N)
            end_N = np.minimum(place_N + size, n_words_N)
            # the first word of its sentence among all words
            first_word_N = np.repeat(self._first_word_S, n_grams_S)
            before_end_CN = self._before_CW[:, first_word_N + end_N]
            before_begin_CN = self._before_CW[:, first_word_N + begin_N]
            counts_CN = before_end_CN - before_begin_CN
            n_padding_N = size - (end_N - begin_N)
            counts_CN[self._characters[PAD]] += n_padding_N.astype(counts_CN.dtype)
            separators = (size - 1) * len(self._separator)
            lengths_N = counts_CN.sum(0, dtype=np.int64) + separators
            self._grams[size] = counts_CN, lengths_N, first_gram_S
        return self._grams[size]


def _running_counts(words: list[str]) -> tuple[dict[str, int], np.ndarray]:
    """The row of each character, and before_CW: how often it occurs in all earlier words.

    There is a column for each word and one for the end, W = words + 1.
    """
    text = "".join(words) + PAD  # a row for `#` too
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    different_points, row = np.unique(points, return_inverse=True)
    word = np.repeat(np.arange(len(words) + 1), [*(len(word) for word in words), len(PAD)])
    C, W = len(different_points), len(words) + 1
    counts_CW = np.bincount(row * W + word, minlength=C * W).reshape(C, W)
    before_CW = np.zeros_like(counts_CW, dtype=np.int32)
    before_CW[:, 1:] = np.cumsum(counts_CW[:, :-1], axis=1)
    return {chr(point): i for i, point in enumerate(different_points)}, before_CW


def matched_sentences(
    text: str, matcher: PassageMatcher, segmenter: Segmenter
) -> list[tuple[str, SentenceId]]:
    """The sub-sentences of `text` that match a passage sentence, in order, with that sentence."""
    text = normalise(text)
    matches = []
    for start, end in segmenter.subsentences(text):
        piece = text[start:end]
        sentence = matcher.match(piece)
        if sentence is not None:
            matches.append((piece, sentence))
    return matches


def needed_sentences(
    row: FeedbackRow, matcher: PassageMatcher, segmenter: Segmenter
) -> set[SentenceId]:
    """The sentences that the corrected answer matches, without those of minor information.

    Minor information stays needed if prediction 1 already has it, that is, if the sub-sentence that
    matches it, in lower case, is part of prediction 1. If several sub-sentences match a sentence,
    the last one decides, as in the published files.
    """
    minor_infos = [info for info in row.missing if info.type == MINOR_INFO]
    minor = {(info.passage_id, i) for info in minor_infos for i in info.sentence_ids}
    prediction = normalise(row.predictions[0]).lower()
    needed: set[SentenceId] = set()
    for piece, sentence in matched_sentences(row.corrected, matcher, segmenter):
        if sentence in minor and piece.lower() not in prediction:
            needed.discard(sentence)
        else:
            needed.add(sentence)
    return needed


def coverage(row: FeedbackRow, texts: list[str], segmenter: Segmenter) -> list[float] | None:
    """|matched and needed| / |needed| of each text; None if nothing is needed."""
    matcher = PassageMatcher(row.passages)
    needed = needed_sentences(row, matcher, segmenter)
    if not needed:
        return None
    shares = []
    for text in texts:
        matched = {sentence for _, sentence in matched_sentences(text, matcher, segmenter)}
        shares.append(len(needed & matched) / len(needed))
    return shares


def completeness_preference(row: FeedbackRow, segmenter: Segmenter) -> list[int] | None:
    """For each of `PAIRS`: 1 if the first output covers more, 2 if the second does, else 0.

    None if nothing is needed.
    """
    scores = coverage(row, list(row.predictions), segmenter)
    if scores is None:
        return None
    preference = []
    for first, second in PAIRS:
        if scores[first] > scores[second]:
            preference.append(1)
        elif scores[first] < scores[second]:
            preference.append(2)
        else:
            preference.append(0)
    return preference

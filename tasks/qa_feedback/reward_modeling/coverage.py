"""Coverage of the needed passage sentences: completeness preferences without new annotation.

Each sub-sentence of a text is matched to the passage sentence it is most similar to. The sentences
matched by the annotator's corrected answer are needed; an output's score is the share of them that
it matches too (Wu et al. 2023, appendix D).
"""

import numpy as np

from fgrlhf.reward_utils import Segmenter
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
    of x and & is the intersection of multisets. The character counts of an n-gram are differences
    of running sums over the passages' words, so a few array operations give the ratios of all
    n-grams. They equal difflib's floats exactly.
    """

    def __init__(self, passages: list[list[str]]):
        numbered = [
            ((i, j), normalise(sentence))
            for i, passage in enumerate(passages, 1)
            for j, sentence in enumerate(passage[1:], 1)
        ]
        self.ids: list[SentenceId] = [sentence_id for sentence_id, _ in numbered]
        self.sentences = [sentence for _, sentence in numbered]
        words = [sentence.split() for sentence in self.sentences]
        self._lengths = np.array([len(sentence) for sentence in words], dtype=np.int64)
        self._firsts = np.cumsum(self._lengths) - self._lengths
        self._characters, self._running = _running_counts(
            [word for sentence in words for word in sentence]
        )
        self._grams: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._matches: dict[str, SentenceId | None] = {}

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
        """The similarity of `subsentence` to every sentence."""
        n = subsentence.count(" ") + 1
        size = n + int(0.05 * n)
        counts, lengths, firsts = self._grams_of(size)
        wanted = sorted(set(subsentence) & self._characters.keys())
        rows = [self._characters[character] for character in wanted]
        most = np.array([subsentence.count(character) for character in wanted], dtype=counts.dtype)
        # every n-gram has size - 1 spaces, the sub-sentence n - 1 <= size - 1
        common = np.minimum(counts[rows], most[:, None]).sum(0, dtype=np.int64) + (n - 1)
        ratios = 2.0 * common / (lengths + len(subsentence))
        similarity = np.maximum.reduceat(ratios, firsts)
        for i, sentence in enumerate(self.sentences):
            if subsentence in sentence + f" {PAD}" * max(size + 1 - int(self._lengths[i]), 0):
                similarity[i] = 1.0
        return similarity

    def _grams_of(self, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All n-grams of `size` words.

        A sentence of no more than `size` words is padded with `#` words to size + 1 words, so it
        has two n-grams.

        Returns:
          Character counts [characters, grams], lengths [grams], and the index of each sentence's
          first n-gram.
        """
        if size not in self._grams:
            grams = np.maximum(self._lengths - size, 1) + 1
            firsts = np.cumsum(grams) - grams
            # for each n-gram: its first and last word, within its sentence
            offset = np.arange(grams.sum()) - np.repeat(firsts, grams)
            length = np.repeat(self._lengths, grams)
            begin = np.minimum(offset, length)
            end = np.minimum(offset + size, length)
            # first word of its sentence among all words
            start = np.repeat(self._firsts, grams)
            counts = self._running[:, start + end] - self._running[:, start + begin]
            counts[self._characters[PAD]] += (size - (end - begin)).astype(counts.dtype)
            self._grams[size] = counts, counts.sum(0, dtype=np.int64) + (size - 1), firsts
        return self._grams[size]


def _running_counts(words: list[str]) -> tuple[dict[str, int], np.ndarray]:
    """The row of each character, and counts [characters, words + 1] over all earlier words."""
    text = "".join(words) + PAD
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    unique_points, row = np.unique(points, return_inverse=True)
    word = np.repeat(np.arange(len(words) + 1), [*(len(word) for word in words), len(PAD)])
    shape = (len(unique_points), len(words) + 1)
    counts = np.bincount(row * shape[1] + word, minlength=shape[0] * shape[1]).reshape(shape)
    running = np.zeros_like(counts, dtype=np.int32)
    running[:, 1:] = np.cumsum(counts[:, :-1], axis=1)
    return {chr(point): i for i, point in enumerate(unique_points)}, running


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

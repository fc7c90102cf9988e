"""Groups of texts that are nearly the same, without comparing all pairs.

Two texts are similar if A and B, the sets of all sequences of three words in them, have a Jaccard
similarity |A and B| / |A or B| of at least a threshold. Candidates come from MinHash signatures in
bands (Broder 1997; Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, chapter 3); the
exact similarity decides.
"""

import re
import unicodedata
from collections.abc import Callable, Hashable, Iterator, Sequence
from hashlib import blake2b

import numpy as np

SIMILAR = 0.8
SHINGLE = 3  # words
# A pair with similarity s has the same values in at least one band with probability
# 1 - (1 - s^ROWS)^BANDS: 0.9998 at 0.8, 0.06 at 0.25.
BANDS, ROWS = 16, 4
COMPARED = 20  # how many earlier texts of a bucket each text is compared with

# words and operators before numbers, or any other character
_WORD = re.compile(r"(\w+|[-*/%](?=\s*\d))|([^\w\s])")


def _words(text: str) -> tuple[str, ...]:
    """The words of a text, its operators before numbers, and its symbols, such as + and emoji.

    Other punctuation does not count.
    """
    words = []
    for match in _WORD.finditer(text.casefold()):
        word, other = match.groups()
        if word or unicodedata.category(other).startswith("S"):
            words.append(match[0])
    return tuple(words)


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """All sequences of three words in a text; a shorter text is one sequence."""
    words = _words(text)
    if len(words) < SHINGLE:
        return frozenset([words])
    starts = range(len(words) - SHINGLE + 1)
    return frozenset(words[start : start + SHINGLE] for start in starts)


def similarity(first: frozenset, second: frozenset) -> float:
    """|A and B| / |A or B|; 1 for two empty sets."""
    together = len(first | second)
    return len(first & second) / together if together else 1.0


def near_duplicates(texts: Sequence[str]) -> list[list[int]]:
    """Groups of two or more similar texts, as indices in ascending order.

    Similar texts of similar texts are in the same group. The result does not depend on chance: the
    hash functions are fixed.
    """
    shingle_sets = [shingles(text) for text in texts]

    def same(i: int, j: int) -> bool:
        return similarity(shingle_sets[i], shingle_sets[j]) >= SIMILAR

    return _linked(shingle_sets, same)


def near_duplicate_rows(
    prompts: Sequence[str],
    responses: Sequence[Sequence[str]],
    prompt_groups: Sequence[Sequence[int]],
) -> list[list[int]]:
    """Groups of two or more rows with nearly the same prompt and the same responses, in any order.

    Two rows are the same if their prompts are similar, and every response of either row is similar
    to one of the other's. A long prompt, or a long response, does not outweigh another text.

    Args:
      responses: those of each row.
      prompt_groups: the `near_duplicates` of the prompts.

    Returns:
      The rows' indices, in ascending order.
    """
    groups = []
    for rows in prompt_groups:
        found = _groups_of_rows([prompts[row] for row in rows], [responses[row] for row in rows])
        groups += [[rows[place] for place in group] for group in found]
    return sorted(groups)


def _groups_of_rows(prompts: Sequence[str], responses: Sequence[Sequence[str]]) -> list[list[int]]:
    """The groups of `near_duplicate_rows` among rows whose prompts are one group."""
    prompt_sets = [shingles(prompt) for prompt in prompts]
    response_sets = [[shingles(text) for text in texts] for texts in responses]

    def same(i: int, j: int) -> bool:
        if not _same_responses(response_sets[i], response_sets[j]):
            return False
        return similarity(prompt_sets[i], prompt_sets[j]) >= SIMILAR

    return _linked([frozenset().union(*sets) for sets in response_sets], same)


def _same_responses(first: Sequence[frozenset], second: Sequence[frozenset]) -> bool:
    """Whether every response of either row is similar to one of the other's."""
    for row, other in ((first, second), (second, first)):
        for response in row:
            if not any(similarity(response, another) >= SIMILAR for another in other):
                return False
    return True


def _linked(
    shingle_sets: Sequence[frozenset[tuple[str, ...]]], same: Callable[[int, int], bool]
) -> list[list[int]]:
    """Groups of two or more indices that `same` links, directly or through others.

    Only indices whose sets have the same values in a band are compared.
    """
    # union-find: indices with the same root are in one group; a root is its own parent
    parent = list(range(len(shingle_sets)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]  # shortens the path for later calls
            i = parent[i]
        return i

    for bucket in _buckets(shingle_sets):
        for place, i in enumerate(bucket):
            for j in bucket[max(0, place - COMPARED) : place]:
                if root(i) != root(j) and same(i, j):
                    parent[root(i)] = root(j)
    groups: dict[int, list[int]] = {}
    for i in range(len(shingle_sets)):
        groups.setdefault(root(i), []).append(i)
    return sorted(group for group in groups.values() if len(group) > 1)


def _buckets(shingle_sets: Sequence[frozenset[tuple[str, ...]]]) -> Iterator[list[int]]:
    """Indices of sets that have the same values in a band of their signatures."""
    signatures = [_signature(shingle_set) for shingle_set in shingle_sets]
    for band in range(BANDS):
        buckets: dict[Hashable, list[int]] = {}
        rows = slice(band * ROWS, (band + 1) * ROWS)
        for i, signature in enumerate(signatures):
            buckets.setdefault(signature[rows].tobytes(), []).append(i)
        for bucket in buckets.values():
            if len(bucket) > 1:
                yield bucket


_RANDOM = np.random.default_rng(0)
# odd multipliers: x -> a x + b (mod 2^64) is then a permutation of the 64-bit numbers
_A_H = _RANDOM.integers(2**63, size=BANDS * ROWS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_B_H = _RANDOM.integers(2**63, size=BANDS * ROWS, dtype=np.uint64)


def _signature(shingle_set: frozenset[tuple[str, ...]]) -> np.ndarray:
    """The MinHash signature of a set: its elements' smallest value under each hash function.

    Returns:
      [H], for H = BANDS * ROWS hash functions.
    """
    numbers = []
    for words in shingle_set:
        digest = blake2b(" ".join(words).encode(), digest_size=8).digest()
        numbers.append(int.from_bytes(digest, "big"))
    hashed_NH = np.array(numbers, dtype=np.uint64)[:, None] * _A_H + _B_H
    # the low bits of a product are weak, so the high half decides
    return (hashed_NH >> np.uint64(32)).min(0)

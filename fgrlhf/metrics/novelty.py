"""Novelty: how far a response is from what a reward model was trained on.

    novelty(y) = number of the N-grams of y that are not in S / number of the N-grams of y

S has the N-grams of all responses that the reward model was trained on. It is the share of novel
n-grams of McCoy et al. (2021), arXiv 2111.09509, with a reward model's training data in place of a
language model's. A reward model is less reliable on texts unlike those, so this is what a policy
raises that leaves them for an exploit. It does not see an exploit that is made of known phrases,
such as their repetition.

Training stores S beside the reward model: each N-gram as a number of 32 bits (CRC-32), in ascending
order, so the texts themselves are not kept. An N-gram that is new has the number of one in S with
probability |S| / 2^32: .002 where S has ten millions.
"""

import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.words import ngrams

N = 4  # words
TEXTS_AT_ONCE = 100_000
FILE = "seen_ngrams.safetensors"
NAME = f"crc32_of_{N}_words"  # of the tensor


def ngram_numbers(text: str) -> np.ndarray:
    """The number of each N-gram, in order: (G,), uint32."""
    numbers = [
        zlib.crc32(" ".join(ngram).encode("utf-8", "surrogatepass")) for ngram in ngrams(text, N)
    ]
    return np.array(numbers, dtype=np.uint32)


def seen_ngrams(texts: Iterable[str]) -> np.ndarray:
    """The numbers of all N-grams of the texts, each once, in ascending order: (S,), uint32."""
    seen_S = np.array([], dtype=np.uint32)
    new: list[np.ndarray] = []
    for text in texts:
        new.append(ngram_numbers(text))
        if len(new) == TEXTS_AT_ONCE:
            seen_S = np.unique(np.concatenate([seen_S, *new]))
            new = []
    return np.unique(np.concatenate([seen_S, *new]))


def novelty(text: str, seen_S: np.ndarray) -> float | None:
    """The share of a text's N-grams that are not in S, from 0 to 1.

    Args:
      seen_S: the numbers of `seen_ngrams`.

    Returns:
      None for a text of fewer than N words.
    """
    numbers_G = ngram_numbers(text)
    if not len(numbers_G):
        return None
    # the places before and after a number differ if it is in S
    before_G, after_G = (np.searchsorted(seen_S, numbers_G, side) for side in ("left", "right"))
    return float((before_G == after_G).mean())


def save_seen(folder: Path, seen_S: np.ndarray) -> None:
    """Write the N-grams beside a reward model."""
    save_file({NAME: seen_S}, str(folder / FILE))


def load_seen(folder: str) -> np.ndarray:
    """The N-grams of the responses that a reward model was trained on.

    Raises:
      UserError: the folder has none.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise UserError(
            f"the metric novelty needs {FILE} of a reward model, which {shorten(folder)} does not"
            " have: name a folder that `fgrlhf rm` wrote. If it is of an earlier version, train it"
            " again"
        )
    try:
        return load_file(str(path))[NAME]
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(
            f"{path} cannot be read ({shorten(error)}): restore it, or train the model again"
        ) from None

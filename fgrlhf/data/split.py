"""Splits that depend on the rows alone, not on their order or number."""

import hashlib


def hash_share(text: str) -> float:
    """A number from 0 to 1 that depends on the text alone.

    Rows with a number up to 0.8, for example, are for training. A row keeps its part when other
    rows are added or removed.
    """
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64

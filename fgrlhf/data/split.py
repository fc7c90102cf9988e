"""Splits that depend on the rows alone, not on their order or number."""

import hashlib
from collections.abc import Iterable

from fgrlhf.base.errors import UserError


def hash_share(text: str) -> float:
    """A number from 0 to 1 that depends on the text alone.

    Rows with a number up to 0.8, for example, are for training. A row keeps its part when other
    rows are added or removed.
    """
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def held_out(groups: Iterable[str], share: float, source: str) -> set[str]:
    """The groups of rows, such as those of a prompt, that are held out of training.

    They are the share of the groups with the smallest `hash_share`: at least one, but not all.

    Args:
      source: where the rows come from, for the message.

    Raises:
      UserError: there is only one group.
    """
    ordered = sorted(set(groups), key=hash_share)
    if len(ordered) < 2:
        raise UserError(f"{source} has only one prompt, so none can be held out for dev")
    count = round(share * len(ordered))
    return set(ordered[: min(max(count, 1), len(ordered) - 1)])

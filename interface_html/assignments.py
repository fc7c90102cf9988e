"""What annotators are given and submit, as the server's database has it."""

from dataclasses import dataclass
from typing import Any

from interface_html.format import Item


class RefusedError(Exception):
    """A request that the server refuses, with its HTTP status and the reason."""

    def __init__(self, status: int, reason: str, **details: Any):
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.details = details  # more keys of the response


@dataclass(frozen=True)
class Assignment:
    """An item given to an annotator.

    Args:
      shown: indices of the outputs in the order in which the page shows them; None if it is unknown
        (collect.py), so that the page shows them in their own order.
      draft: (revision, state of the page), or None.
      submissions: how often it was submitted.
      submitted: the document of the latest submission, or None.
      skipped: {reason, text} if the annotator skipped the item, or None.
    """

    id: int
    item: Item
    annotator: str
    page: str
    shown: list[int] | None
    done: bool
    lease_until: float
    draft: tuple[int, Any] | None
    submissions: int
    submitted: dict | None
    skipped: dict[str, str] | None


@dataclass(frozen=True)
class Receipt:
    """What the server measured and what the page sent with a submission.

    Args:
      seconds: active time.
      wall: time for which the item was open; None if unknown.
      guideline: version of the guideline.
      guideline_sha256: hash of its text; None if unknown.
    """

    seconds: float
    guideline: str
    wall: float | None = None
    guideline_sha256: str | None = None

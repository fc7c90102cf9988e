"""The agreement of annotators: who judged the same response, and the figures of `report`."""

__all__ = [
    "alpha",
    "matching",
    "report",
]

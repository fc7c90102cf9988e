"""Rows of data: their formats, judgements and comparisons, and what is computed from them.

docs/data_formats.md describes the files."""

__all__ = [
    "agreement",
    "comparisons",
    "formats",
    "judgements",
    "read",
    "token_comparisons",
]

"""Rows of data: their formats, judgements and comparisons, and what is computed from them.

docs/data_formats.md describes the files."""

__all__ = [
    "comparisons",
    "formats",
    "judgements",
    "krippendorff",
    "prompts",
    "read",
    "token_comparisons",
]

"""What everything else rests on: errors, files, seeds, secrets, signals.

It imports no other package of ours."""

__all__ = [
    "background",
    "errors",
    "files",
    "program",
    "records",
    "seeds",
]

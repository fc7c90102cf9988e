"""The programs of the command `fgrlhf`, which `fgrlhf help` lists.

Their settings are documented by `--help`, so only the reader of command lines is public."""

__all__ = [
    "command_line",
]

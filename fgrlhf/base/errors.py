"""User errors, and texts for their messages."""

import difflib
import re
from collections.abc import Sequence


class UserError(Exception):
    """A user error. Its message gives the fact, the reason and the fix, without a traceback."""


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with its control characters as escapes, but for line breaks and tabs.

    A terminal would follow those in a file or in the answer of a service: change colours, move the
    cursor, or rename the window.
    """
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


MOST_PROBLEMS = 20  # listed in one error message


def first_problems(problems: Sequence[str]) -> list[str]:
    """The first problems of a list, and a line with the number of the remaining ones, if any."""
    lines = list(problems[:MOST_PROBLEMS])
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"... and {len(problems) - MOST_PROBLEMS} more")
    return lines


def shorten(text: object, limit: int = 200) -> str:
    """`text` on one line for an error message, cut in the middle if longer than `limit`."""
    line = " ".join(str(text).encode("utf-8", "backslashreplace").decode("utf-8").split())
    line = printable(line)
    if len(line) <= limit:
        return line
    half = (limit - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"


def counted(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def suggestion(name: str, known: Sequence[str]) -> str:
    """The known names, preceded by `did you mean ...?` if one of them is similar to `name`."""
    close = difflib.get_close_matches(str(name)[:100], known, n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    return f"{hint}known: {', '.join(known) or 'none'}"

"""User errors and their messages."""

import difflib
import errno
import os
import re
import sys
from collections.abc import Sequence

from fgrlhf.runs.orphan import end_with_parent
from fgrlhf.secrets import mask_secrets


class UserError(Exception):
    """A user error. The message says what is wrong, why, and how to fix it; no traceback is
    shown.
    """


def run_main(main) -> None:
    """Call `main()` for a command line: a `UserError` prints one message on stderr and exits with
    code 2.

    An error of the operating system, such as a full disk, does the same. A bug keeps its traceback.
    A stage ends when the pipeline that started it is gone, so that the next run does not find it
    still running.
    """
    end_with_parent()
    try:
        main()
    except UserError as error:
        sys.exit(_say(f"error: {error}", 2))
    except KeyboardInterrupt:
        sys.exit(
            _say(
                "interrupted: run the same command again to continue from the last complete"
                " checkpoint",
                130,
            )
        )
    except Exception as error:
        reason = why_refused(error)
        if reason is None:
            raise
        sys.exit(_say(f"error: {reason}", 2))


def _say(message: str, code: int) -> int:
    print(mask_secrets(message), file=sys.stderr)
    return code


MOST_PROBLEMS = 20  # listed in one error message


def first_problems(problems: Sequence[str]) -> list[str]:
    """The first problems of a list, and a last line with the number of the others where there are
    any.
    """
    lines = list(problems[:MOST_PROBLEMS])
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"... and {len(problems) - MOST_PROBLEMS} more")
    return lines


# ---- errors of the operating system --------------------------------------------------------------

_CHOOSE = "name another folder (logging.save_dir=... or output_dir=...)"
_WAYS_OUT = {
    errno.ENOSPC: "Make room and run the same command again: what is complete is kept.",
    errno.EDQUOT: "Make room and run the same command again: what is complete is kept.",
    errno.EFBIG: (
        "Raise the limit (ulimit -f) and run the same command again: what is complete is kept."
    ),
    errno.EACCES: f"Change its permissions, or {_CHOOSE}.",
    errno.EPERM: f"Change its permissions, or {_CHOOSE}.",
    errno.EROFS: f"Mount it for writing, or {_CHOOSE}.",
    errno.ENOTDIR: f"A file is in the place of a folder: remove it, or {_CHOOSE}.",
    errno.EEXIST: f"A file is in the place of a folder: remove it, or {_CHOOSE}.",
    errno.EISDIR: "A folder is in the place of a file: remove it, or name a file.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ELOOP: "A symbolic link leads back to itself: remove it.",
    errno.ENOENT: "Check that it exists and is not removed while the program runs.",
    errno.EMFILE: "Raise the limit (ulimit -n) and run the same command again.",
}
# A failed write() names no file. Any other error without a file is not about files, so it is a bug.
_WITHOUT_FILE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
)
_RUST_CODE = re.compile(
    r"\(os error (\d+)\)|\bOs \{ code: (\d+)"
)  # safetensors and tokenizers give the code in their text
_RUST_PATH = re.compile(r'at path "([^"]*)"')


def why_refused(error: BaseException) -> str | None:
    """The message for an error of the operating system: what failed, why, and how to fix it. None
    for any other error.
    """
    number = getattr(error, "errno", None)
    path = getattr(error, "filename2", None) or getattr(
        error, "filename", None
    )  # the second: where a file was to go
    if not isinstance(error, OSError):
        text = str(error)
        if isinstance(error, RuntimeError) and (
            "inline_container" in text or "PytorchStreamWriter" in text
        ):
            return (
                f"a file could not be written whole: {shorten(text)}. The disk is probably full."
                f" {_WAYS_OUT[errno.ENOSPC]}"
            )
        code, place = _RUST_CODE.search(text), _RUST_PATH.search(text)
        number = int(code[1] or code[2]) if code else None
        path = place[1] if place else None
    if number is None or (path is None and number not in _WITHOUT_FILE):
        return None
    where = (
        "a file could not be written or read"
        if path is None
        else f"{shorten(path)} could not be used"
    )
    return (
        f"{where}: {os.strerror(number)}."
        f" {_WAYS_OUT.get(number, 'Fix that and run the same command again.')}"
    )


def shorten(text: object, limit: int = 200) -> str:
    """`text` for an error message: on one line, and cut in its middle where it is longer than
    `limit` characters.
    """
    line = " ".join(str(text).encode("utf-8", "backslashreplace").decode("utf-8").split())
    if len(line) <= limit:
        return line
    half = (limit - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"


def suggestion(name: str, known: Sequence[str]) -> str:
    """`did you mean ...?` where a known name is close, and the known names."""
    close = difflib.get_close_matches(str(name)[:100], known, n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    return f"{hint}known: {', '.join(known)}"

"""Last messages of processes that a launcher has started together: each is printed once.

All of them find the same config error, and Ctrl-C reaches them all. fgrlhf/cli/torchrun.py names a
folder in an environment variable. There, every message has a file, which is no longer empty once a
process has printed the message. A message that only one process has is therefore printed too.
"""

import atexit
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

VARIABLE = "FGRLHF_MESSAGES"


def share_messages() -> dict[str, str]:
    """The environment variable for this process and those that it starts.

    The folder is removed when this process ends.
    """
    folder = tempfile.mkdtemp(prefix="fgrlhf_messages_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {VARIABLE: folder}


def print_once(message: str) -> None:
    """Print to stderr, unless another process of the same launcher has printed this message."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        _print_line(message)
        return
    name = hashlib.sha256(message.encode("utf-8", "backslashreplace")).hexdigest()
    try:
        mark = os.open(Path(folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # the launcher has removed the folder
        _print_line(message)
        return
    # Wait until a process that is printing it has done so: if one ended earlier, the launcher would
    # stop the others. If the printing process dies, the next one prints.
    fcntl.flock(mark, fcntl.LOCK_EX)
    if os.fstat(mark).st_size == 0:
        _print_line(message)
        os.ftruncate(mark, 1)
    os.close(mark)


def _print_line(message: str) -> None:
    """Print to stderr in one write, so that lines of several processes do not mix."""
    print(f"{message}\n", end="", file=sys.stderr, flush=True)

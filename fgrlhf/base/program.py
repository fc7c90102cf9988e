"""What every command has in common: user errors, signals and broken streams become exit codes."""

import errno
import io
import os
import re
import sys
from collections.abc import Sequence

from fgrlhf.base.errors import UserError, printable, shorten
from fgrlhf.base.interrupts import Terminated, raise_at_interrupts
from fgrlhf.base.processes import end_process_of_group, end_with_parent
from fgrlhf.base.secrets import mask_secrets
from fgrlhf.base.shared_messages import print_once

# exit codes of programs that SIGINT, SIGPIPE or SIGTERM has ended, in a shell
INTERRUPTED = 130
CLOSED_OUTPUT = 141
TERMINATED = 143

_CONTINUE = "run the same command again; a training run continues from its last complete checkpoint"


def run_main(main) -> None:
    """Run the `main` function of a command and turn user errors into exit codes.

    A `UserError` or an error of the operating system, such as a full disk, prints one message to
    stderr and exits with code 2. Ctrl-C and SIGTERM print how to continue. Of several processes
    with the same message, one prints it. A bug keeps its traceback. A stage ends when the pipeline
    that started it ends, so that the next run does not find it still running.
    """
    raise_at_interrupts()
    end_with_parent()
    _prepare_streams()
    try:
        _check_arguments(sys.argv)
        main()
        sys.stdout.flush()
        end_process_of_group()
    except BrokenPipeError:
        # the reader of our output has ended, such as `head`; what is still buffered has no reader
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED_OUTPUT)
    except UserError as error:
        sys.exit(_print_error(f"error: {error}", 2))
    except Terminated:
        sys.exit(_print_error(f"stopped by SIGTERM: {_CONTINUE}", TERMINATED))
    except KeyboardInterrupt:
        sys.exit(_print_error(f"interrupted: {_CONTINUE}", INTERRUPTED))
    except Exception as error:
        reason = why_refused(error)
        if reason is None:
            raise
        sys.exit(_print_error(f"error: {reason}", 2))


def _prepare_streams() -> None:
    """Make printing work for any text, with streams of any encoding, and also without streams.

    Characters that the encoding lacks are printed as escapes. A closed stream, as some schedulers
    leave it, becomes one that nobody reads.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raise `UserError` if an argument cannot be recorded, since it is not text in this locale."""
    for argument in arguments:
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(
                f"the argument {shorten(argument)} is not valid text: its bytes are not in the"
                " encoding of this shell. Set a UTF-8 locale (export LC_ALL=C.UTF-8), or rename the"
                " file"
            ) from None


def _print_error(message: str, code: int) -> int:
    print_once(printable(mask_secrets(message)))
    return code


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
# A failed write() names no file. Any other error without a file name is a bug in the program.
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
# The Rust libraries (safetensors, tokenizers) give code and path in the text of the error.
_RUST_CODE = re.compile(r"\(os error (\d+)\)|\bOs \{ code: (\d+)")
_RUST_PATH = re.compile(r'at path "([^"]*)"')


# gloo and NCCL, when the connection to another process is lost, and PyTorch's store, at which
# processes meet, when it is lost or another process does not come
_LOST_PROCESS = re.compile(
    r"(gloo.*|^)(Connection (closed|reset) by peer|Broken pipe)|remote process exited"
    r"|Failed to recv, got 0 bytes|socket has timed out after|wait timeout after \d+ms"
    r"|waiting for clients"
)


def why_refused(error: BaseException) -> str | None:
    """The message for an error of the operating system, a lost process or a lack of memory.

    None for any other.
    """
    if isinstance(error, OSError):
        # `filename2` is the destination of a rename
        path = getattr(error, "filename2", None) or getattr(error, "filename", None)
        return _refusal(getattr(error, "errno", None), path)
    if isinstance(error, MemoryError):
        return (
            "there is not enough memory, or a limit on it (ulimit -v, a job's memory) was reached:"
            " raise the limit or use smaller batches, files or models, then run the same command"
            " again"
        )
    text = str(error)
    if isinstance(error, RuntimeError):
        if "inline_container" in text or "PytorchStreamWriter" in text:
            return (
                f"a file could not be written completely: {shorten(text)}. The disk is probably"
                f" full. {_WAYS_OUT[errno.ENOSPC]}"
            )
        if _LOST_PROCESS.search(text):
            return (
                f"another process of this run has ended or cannot be reached: {shorten(text)}. Its"
                " own message says why, unless it was killed. Run the same command again: the run"
                " continues from its last complete checkpoint"
            )
    code = _RUST_CODE.search(text)
    place = _RUST_PATH.search(text)
    return _refusal(int(code[1] or code[2]) if code else None, place[1] if place else None)


def _refusal(number: int | None, path: object) -> str | None:
    """The message for an error of the operating system; None if it is not one, or a bug.

    Args:
      number: `errno`; None if it is not known.
      path: the file; None if it is not known.
    """
    if number is None or (path is None and number not in _WITHOUT_FILE):
        return None
    if path is None:
        fact = "a file could not be written or read"
    else:
        fact = f"{shorten(_without_temporary_name(path))} could not be used"
    way_out = _WAYS_OUT.get(number, "Fix that and run the same command again.")
    if number == errno.EEXIST and os.path.islink(str(path)):
        leads_to = shorten(os.path.realpath(str(path)))
        way_out = (
            f"It is a symbolic link to {leads_to}, which is no folder: make that folder (a disk may"
            f" not be mounted), or {_CHOOSE}."
        )
    return f"{fact}: {os.strerror(number)}. {way_out}"


def _without_temporary_name(path: object) -> str:
    """The name of the file that was written under a temporary one (`files.write_text`)."""
    return re.sub(r"(^|/)\.([^/]+)\.\d+\.tmp$", r"\1\2", str(path))


def as_settings(argv: Sequence[str]) -> list[str]:
    """The arguments, with flags in the form key=value.

    `--key value` and `--key=value` are `key=value`, and `--key` alone, at the end or before another
    flag, is `key=true`. `--help` stays.
    """
    arguments = iter(argv)
    settings = []
    following: str | None = next(arguments, None)
    while following is not None:
        argument = following
        following = next(arguments, None)
        if not re.match(r"--[A-Za-z_]", argument) or argument == "--help":
            settings.append(argument)
            continue
        flag = argument.removeprefix("--")
        if "=" in flag:
            settings.append(flag)
        elif following is None or following.startswith("--"):
            settings.append(f"{flag}=true")
        else:
            settings.append(f"{flag}={following}")
            following = next(arguments, None)
    return settings

"""Ctrl-C while a program's modules are imported.

An import may last some seconds, and an exception in it has a long traceback or even aborts PyTorch.
Nothing has to be cleaned up yet, so SIGINT simply ends the process until `run_main` begins.
"""

import signal


def end_at_interrupts() -> None:
    """Let SIGINT end the process without an exception, unless it is ignored (`nohup`, `&`)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_at_interrupts() -> None:
    """Let SIGINT raise KeyboardInterrupt again, after `end_at_interrupts`."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)

"""Ctrl-C and SIGTERM: how they end a program, also while its modules are imported.

An import may last some seconds, and an exception in it has a long traceback or even aborts PyTorch.
Nothing has to be cleaned up yet, so a signal simply ends the process until `run_main` begins. From
then on, both signals raise an exception.
"""

import os
import signal
import sys
import threading

SOON = 0.02  # seconds after which a lost signal is sent again


class Terminated(KeyboardInterrupt):
    """SIGTERM, as `kill` and clusters send it. It stops a program as Ctrl-C does."""


def end_at_interrupts() -> None:
    """Let SIGINT and SIGTERM end the process without an exception, unless they are ignored.

    SIGINT is ignored after `nohup` or `&`.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGTERM) is _raise_terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def raise_at_interrupts() -> None:
    """Let SIGINT raise KeyboardInterrupt and SIGTERM raise Terminated, unless they are ignored.

    In a group of processes, SIGTERM still ends the process at once: the launcher sends it when
    another process has failed, and one that waits for the others would not see an exception.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    in_group = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not in_group and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _raise_terminated)
    sys.unraisablehook = _repeat_lost_interrupt


def _repeat_lost_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    """Send a signal again whose exception was raised where Python drops it.

    That is a destructor or a callback of the garbage collector, in which a signal can arrive too. A
    thread sends it, because this hook would drop the exception as well.
    """
    lost = unraisable.exc_value
    if not isinstance(lost, KeyboardInterrupt | Terminated):
        sys.__unraisablehook__(unraisable)
        return
    number = signal.SIGINT
    if isinstance(lost, Terminated):
        number = signal.SIGTERM
        signal.signal(number, _raise_terminated)
    again = threading.Timer(SOON, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _raise_terminated(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second signal ends the process at once
    raise Terminated

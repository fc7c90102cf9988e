"""Run a program in several processes: `torchrun`, with short errors.

    fgrlhf launch --nproc_per_node 2 sft config.yml
    fgrlhf launch --nproc_per_node 2 -m my.module ...

The options are those of `torchrun`; a command of `fgrlhf` or a program of Python follows. If a
process fails, the others are stopped, and this program ends with the exit code of the failed one.
The message of the failed process is the last thing that is printed, once if all processes have the
same message; torchrun itself would add its log and a traceback. If this program is killed, its
processes end. Without a GPU, the processes train on the CPU (ACCELERATE_USE_CPU=true).
"""

import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config
from torch.distributed.run import parse_args, parse_min_max_nnodes, run

from fgrlhf.base.errors import UserError
from fgrlhf.base.interrupts import Terminated
from fgrlhf.base.processes import parent_mark
from fgrlhf.base.program import run_main
from fgrlhf.base.shared_messages import share_messages
from fgrlhf.cli.main import COMMANDS
from fgrlhf.cli.rendezvous import wait_at

USAGE = """usage: fgrlhf launch [option of torchrun ...] COMMAND [argument ...]

  fgrlhf launch --nproc_per_node 2 rl TASK config.yml         a command of fgrlhf
  fgrlhf launch --nproc_per_node 2 -m my.module config.yml    a module of Python

`torchrun --help` lists the options."""
CONTINUE = "Run the same command again: a training run continues from its last complete checkpoint"


def torchrun(arguments: list[str]) -> None:
    """Start the processes and wait for them.

    Raises:
      UserError: a process was killed, or several machines cannot meet.
      SystemExit: a process has failed; with its exit code.
      KeyboardInterrupt: SIGINT or another signal that ends programs.
    """
    os.environ.update(parent_mark())  # the processes end with this one
    os.environ.update(share_messages())
    if not torch.accelerator.is_available():  # else accelerate would run each process alone
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    logging.disable(logging.ERROR)  # of torchrun, which repeats what is said here
    settings = with_command(parse_args(arguments))
    _, machines = parse_min_max_nnodes(settings.nnodes)
    if machines > 1 and settings.rdzv_backend == "c10d" and not settings.standalone:
        wait_at(settings.rdzv_endpoint, machines, join_timeout(settings.rdzv_conf))
    try:
        run(settings)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:
            sys.exit(failure.exitcode)
        raise UserError(killed_message(rank, -failure.exitcode)) from None
    except RendezvousError as error:
        raise UserError(
            f"the machines have not met: {error}. Start the same command on all of them, with the"
            " same RDZV_ENDPOINT, a free port of the first machine"
        ) from None
    except SignalException as stopped:
        raise (KeyboardInterrupt if stopped.sigval == signal.SIGINT else Terminated) from None


def with_command(settings: Namespace) -> Namespace:
    """The settings, with a command of `fgrlhf` in place of a program replaced by its module."""
    command = settings.training_script
    if command in COMMANDS and not settings.module and not os.path.exists(command):
        settings.module = True
        settings.training_script = "fgrlhf.cli.main"
        settings.training_script_args = [command, *settings.training_script_args]
    return settings


def join_timeout(options: str) -> float:
    """Seconds that a machine waits for the others.

    Args:
      options: of torchrun's rendezvous, such as "join_timeout=60,read_timeout=10".
    """
    return float(_parse_rendezvous_config(options).get("join_timeout", 600))


def killed_message(rank: int, number: int) -> str:
    """What to say about a process that a signal has ended.

    Args:
      rank: of the process.
      number: of the signal.
    """
    name = signal.Signals(number).name
    reason = ""
    if number == signal.SIGKILL:
        reason = ", which Linux sends when memory runs out"
    return f"process {rank} was ended by {name}{reason}; the others were stopped. {CONTINUE}"


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    torchrun(arguments)


if __name__ == "__main__":
    run_main(main)

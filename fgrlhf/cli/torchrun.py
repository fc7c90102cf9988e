"""Run a program in several processes: `torchrun`, with short errors.

    python -m fgrlhf.cli.torchrun --nproc_per_node 2 -m sft.run_sft config.yml

The arguments are those of `torchrun`. If a process fails, the others are stopped, and this program
ends with the exit code of the failed one. The message of the failed process is the last thing that
is printed, once if all processes have the same message; torchrun itself would add its log and a
traceback. If this program is killed, its processes end. Without a GPU, the processes train on the
CPU (ACCELERATE_USE_CPU=true).
"""

import logging
import os
import signal
import sys

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config
from torch.distributed.run import parse_args, parse_min_max_nnodes, run

from fgrlhf.base.errors import UserError
from fgrlhf.base.interrupts import Terminated
from fgrlhf.base.orphan import parent_mark
from fgrlhf.base.program import run_main
from fgrlhf.base.shared_messages import share_messages
from fgrlhf.cli.rendezvous import wait_at

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
    settings = parse_args(arguments)
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


if __name__ == "__main__":
    run_main(lambda: torchrun(sys.argv[1:]))

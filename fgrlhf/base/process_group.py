"""A group of processes that train together: how they find each other, and how one of them ends."""

import atexit
import os
import socket
import sys


def environments_of_group(processes: int) -> list[dict[str, str]]:
    """Environment variables of processes on this machine's CPU that form a group, by rank.

    It does what a launcher does, for programs that need the processes themselves. They meet at a
    port that is free now.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": "1",
    }
    return [{**common, "RANK": str(i), "LOCAL_RANK": str(i)} for i in range(processes)]


def end_process_of_group() -> None:
    """Destroy PyTorch's process group and end this process, if it is in one; else do nothing.

    If the interpreter ended as usual, a thread of the group could abort the process: it frees a
    tensor, for which it needs the interpreter. The launcher would take a run that has finished for
    a failed one (https://github.com/pytorch/pytorch/issues/190489). `destroy_process_group` ends
    these threads only if nothing refers to the group any more, but PyTorch's own caches do after
    sharded training. So this process ends as soon as all exit functions have run.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    distributed.destroy_process_group()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

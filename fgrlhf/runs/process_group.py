"""Ends a process of a group: one of several that train together."""

import atexit
import os
import sys


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

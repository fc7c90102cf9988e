"""One rank of tests/test_sampler.py: trains over a server (RANK and WORLD_SIZE are set).

The arguments are a folder, the strategy, and the section `sampler` as JSON.
"""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from rl_helpers import config, trainer

from fgrlhf.base.processes import end_process_of_group


def run(folder: Path, strategy: str, until: int | None = None, **changes) -> None:
    """Train for four steps (or up to `until`) of eight rollouts, divided among the processes."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    cfg = config(
        folder,
        train__total_episodes=32,
        train__save_every_steps=1,
        train__sampling_batch_size_per_card=4 // world,
        # Adam would turn the rounding error of a tiny gradient into a full step
        train__adam_eps=1e-2,
        parallel__strategy=strategy,
        **changes,
    )
    trainer(cfg, kind="gpt2", accelerator=Accelerator(cpu=True)).train(until)


def main() -> None:
    torch.set_num_threads(1)
    folder, strategy, sampler = sys.argv[1:]
    run(Path(folder) / "run", strategy, sampler=json.loads(sampler))
    end_process_of_group()


if __name__ == "__main__":
    main()

"""One rank of tests/test_memory.py: counts bytes of weights during a rollout."""

import sys
from pathlib import Path

import tiny
import torch
from accelerate import Accelerator

from fgrlhf.base.files import write_json
from fgrlhf.base.processes import end_process_of_group
from fgrlhf.models.sharding import unsharded
from fgrlhf.runs.distributed import shard_over_processes


def main() -> None:
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    accelerator = Accelerator(cpu=True)
    models = [tiny.policy(kind).model for _ in ("policy", "reference")]
    for model in models:
        shard_over_processes(model, accelerator, "bf16")
    weights = [parameter for model in models for parameter in model.parameters()]
    stored = sum(parameter.to_local().nbytes for parameter in weights)
    with unsharded(*models):
        weights = [parameter for model in models for parameter in model.parameters()]
        assert all(parameter.dtype == torch.bfloat16 for parameter in weights)
        held = sum(parameter.nbytes for parameter in weights)
    path = folder / f"rank{accelerator.process_index}.json"
    write_json(path, {"stored": stored, "held": held})
    end_process_of_group()


if __name__ == "__main__":
    main()

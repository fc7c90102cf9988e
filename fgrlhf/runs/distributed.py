"""Data parallelism: every rank holds the full rollout and computes gradients for its share.

Rollouts are small (ids, log-probabilities, values, texts; about 30 kB for 1,024 + 200 tokens), so
they are gathered once per step, as pickled objects.
Every rank then computes whitening, advantages, the KL stop and metrics from the same global
tensors: no moments have to be reduced, and ranks cannot take different decisions.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedDataParallelKwargs, DistributedType, gather_object
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.sections import Dtype, ParallelConfig
from fgrlhf.kernels.choice import slow_bf16_note
from fgrlhf.models.sharding import shard
from fgrlhf.types import Rollout, TokenReward

Result = TypeVar("Result")
ModuleT = TypeVar("ModuleT", bound=nn.Module)
SUPPORTED = (DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)


def check_launcher(distributed_type: DistributedType) -> None:
    """Reject a launcher that does not start plain processes.

    Whether models are whole or sharded is decided here (`parallel.strategy`), not by the launcher.
    Under its DeepSpeed mode the model would stay unwrapped, and every process would train its own
    copy. Its FSDP mode would shard parameters that the optimiser no longer sees.

    On a machine without a GPU, accelerate ignores a launcher unless ACCELERATE_USE_CPU is set: each
    process would then run alone, and all would write to one folder.

    Args:
      distributed_type: of accelerate's `Accelerator` or `PartialState`.

    Raises:
      UserError: it is not NO, MULTI_GPU or MULTI_CPU; or it is NO in one of several processes.
    """
    processes = os.environ.get("WORLD_SIZE", "1")
    if distributed_type == DistributedType.NO and processes not in ("", "0", "1"):
        raise UserError(
            f"WORLD_SIZE={shorten(processes, 20)}, but this process would train alone, as would the"
            " others, all in one folder. To train together on CPUs, set ACCELERATE_USE_CPU=true; to"
            " train in a single process, unset WORLD_SIZE"
        )
    if distributed_type not in SUPPORTED:
        name = getattr(distributed_type, "value", distributed_type)
        raise UserError(
            f"the launcher started this process for {name}, which training does not support: the"
            " processes would train different models. Start it with the scripts of this"
            " repository, with `torchrun`, or with `accelerate launch --multi_gpu`; to divide a"
            " model among them, set parallel.strategy=fsdp2"
        )


_LAUNCHERS = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism config",
}


def check_environment(dtype: Dtype, environment: Mapping[str, str] = os.environ) -> None:
    """Reject launchers that would change how SFT and reward models are trained.

    Losses there are averaged over the whole batch and multiplied by the number of processes,
    because DDP and `parallel.strategy: fsdp2` average gradients over them. A launcher that shards
    the model in its own way or scales the loss would change the gradients.

    Raises:
      UserError: the launcher is not plain DDP, or sets another precision than the config.
    """
    for variable, launcher in _LAUNCHERS.items():
        if environment.get(variable, "false").lower() in ("true", "1", "yes"):
            raise UserError(
                f"the launcher enables {launcher} ({variable} is set). This stage was never tested"
                " with it and may train wrongly: start it with `accelerate launch --multi_gpu` or"
                " `torchrun`. Then each process has a copy of the model or, with"
                " parallel.strategy=fsdp2, a part of it"
            )
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", dtype):
        raise UserError(
            f"the launcher sets mixed precision {precision}, but model.dtype is {dtype}: leave"
            " --mixed_precision out and set model.dtype"
        )


def mixed_precision(dtype: Dtype) -> str:
    """`dtype` in the words of accelerate."""
    return "bf16" if dtype == "bf16" else "no"


def dtype_of(accelerator: Accelerator) -> Dtype:
    """The precision of forward passes."""
    return "bf16" if accelerator.mixed_precision == "bf16" else "fp32"


def stage_accelerator(dtype: Dtype, find_unused: bool = False) -> Accelerator:
    """The device and the processes of SFT or of a reward model.

    Args:
      dtype: `model.dtype`, with `auto` decided.
      find_unused: whether a forward pass may leave trained parameters out.
    Raises:
      UserError: the launcher is not supported, or the device does not compute in bf16.
    """
    check_environment(dtype)
    try:
        accelerator = Accelerator(
            mixed_precision=mixed_precision(dtype),
            # without it, processes on a CPU would each train alone
            cpu=not torch.accelerator.is_available(),
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=find_unused)],
        )
    except ValueError as error:  # bf16 on a GPU without it
        raise UserError(f"accelerate rejects these settings: {error}") from None
    if dtype == "bf16":
        note = slow_bf16_note(accelerator.device.type, "model.dtype=fp32")
        if note is not None and accelerator.is_main_process:
            print(note, flush=True)
    return accelerator


def share_of(items: Sequence, rank: int, world: int) -> Sequence:
    """The contiguous part of `items` that belongs to `rank`. The ranks' parts cover `items`."""
    bounds = [len(items) * r // world for r in range(world + 1)]
    return items[bounds[rank] : bounds[rank + 1]]


def shards_models(parallel: ParallelConfig, processes: Accelerator | PartialState) -> bool:
    """Whether models are divided among the processes. A single process holds whole models."""
    return parallel.strategy == "fsdp2" and processes.num_processes > 1


def strategy_notes(parallel: ParallelConfig, processes: Accelerator | PartialState) -> list[str]:
    """A note if `parallel.strategy` has no effect, since there is a single process."""
    if parallel.strategy != "fsdp2" or shards_models(parallel, processes):
        return []
    return ["note: parallel.strategy=fsdp2 has no effect with 1 process: models stay whole"]


def shard_over_processes(module: ModuleT, accelerator: Accelerator, dtype: str) -> ModuleT:
    """The same module, divided among all processes (fgrlhf/models/sharding.py).

    A module without weights of its own stays as it is: the reference of a policy with adapters.

    Args:
      dtype: of forward passes.
    """
    if next(module.parameters(), None) is None:
        return module
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    shard(module, mesh, torch.bfloat16 if dtype == "bf16" else torch.float32)
    return module


@contextmanager
def stop_together(processes: Accelerator | PartialState) -> Iterator[None]:
    """A block that this process runs without communicating with others.

    Raises:
      UserError: the block raised it on this or another process. All processes stop, so that none of
        them waits for a process that has ended.
    """
    if processes.num_processes == 1:
        yield
        return
    problem = None
    try:
        yield
    except UserError as error:
        problem = str(error)
    problems = [text for text in gather_object([problem]) if text is not None]
    if problems:
        raise UserError(problems[0])


def gathered(accelerator: Accelerator, item: Result) -> list[Result]:
    """The items of all processes in their order, on every process."""
    return [item] if accelerator.num_processes == 1 else gather_object([item])


# ---- rollouts of all ranks -----------------------------------------------------------------------


def gather_rollouts(
    accelerator: Accelerator, rollout: Rollout, rewards: TokenReward, pad_id: int
) -> tuple[Rollout, TokenReward]:
    """The rollouts and rewards of all ranks, identical on every rank."""
    if accelerator.num_processes == 1:
        return rollout, rewards
    cpu = torch.device("cpu")
    parts = gather_object([(rollout.to(cpu), _rewards_to(rewards, cpu))])
    joined, joined_rewards = join_rollouts(parts, pad_id)
    device = accelerator.device
    return joined.to(device), _rewards_to(joined_rewards, device)


def join_rollouts(
    parts: Sequence[tuple[Rollout, TokenReward]], pad_id: int
) -> tuple[Rollout, TokenReward]:
    """The ranks' rollouts as one, in the ranks' order.

    Tensors are padded to the widest, groups are numbered on, and tuples are concatenated. Prompts
    are padded on the side on which they are padded already, responses on the right.
    """
    if len(parts) == 1:
        return parts[0]
    rollouts = [rollout for rollout, _ in parts]
    left_padded = rollouts[0].left_padded
    joined: dict[str, Any] = {}
    for field in fields(Rollout):
        values = [getattr(rollout, field.name) for rollout in rollouts]
        if field.name == "group_B":
            joined[field.name] = _join_groups(values)
        elif field.name == "left_padded":
            joined[field.name] = left_padded
        elif values[0] is None:  # an optional field that this algorithm does not use
            joined[field.name] = None
        elif isinstance(values[0], Tensor):
            fill = pad_id if "_ids_" in field.name else 0
            is_prompt = field.name.endswith("_BP")
            joined[field.name] = _padded_cat(values, fill, left=left_padded and is_prompt)
        else:
            joined[field.name] = tuple(item for value in values for item in value)
    rollout = Rollout(**joined)
    rewards = _join_rewards([reward for _, reward in parts], rollout.response_mask_BT)
    return rollout, rewards


def _join_groups(groups: Sequence[Tensor]) -> Tensor:
    """Group numbers over all ranks: those of a rank continue after those of the previous rank."""
    shifted = []
    first_group = 0
    for group_B in groups:
        shifted.append(group_B + first_group)
        first_group += int(group_B.max()) + 1
    return torch.cat(shifted)


def _join_rewards(rewards: Sequence[TokenReward], mask_BT: Tensor) -> TokenReward:
    by_aspect: dict[str, Tensor] = {}
    segments: dict[str, list] = {}
    for name in rewards[0].by_aspect:
        tensors = [reward.by_aspect[name] for reward in rewards]
        by_aspect[name] = _padded_cat(tensors, fill=0.0, left=False)
    for name in rewards[0].segments:
        segments[name] = [scores for reward in rewards for scores in reward.segments[name]]
    return TokenReward(by_aspect, segments, mask_BT, rewards[0].weights)


def _padded_cat(tensors: Sequence[Tensor], fill: float, left: bool) -> Tensor:
    """Concatenate tensors along rows, padded with `fill` to the most columns (axis 1)."""
    width = max(tensor.shape[1] for tensor in tensors)
    padded = []
    for tensor in tensors:
        missing = width - tensor.shape[1]
        sides = [0, 0] * (tensor.ndim - 2)  # `pad` begins with the last axis
        sides += [missing, 0] if left else [0, missing]
        padded.append(torch.nn.functional.pad(tensor, sides, value=fill))
    return torch.cat(padded)


def _rewards_to(rewards: TokenReward, device: torch.device) -> TokenReward:
    return replace(
        rewards,
        by_aspect={name: values_BT.to(device) for name, values_BT in rewards.by_aspect.items()},
        mask_BT=rewards.mask_BT.to(device),
    )

"""Several processes as one: every rank holds the whole rollout, each computes the gradient of its
share.

Rollouts are small (ids, log-probabilities, values, texts), so they are gathered once per step.
Whitening, advantages, KL stop and metrics are then computed from the same global tensors on every
rank: no masked moments to reduce and no decision that ranks could take differently.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from torch import Tensor

from fgrlhf.errors import UserError
from fgrlhf.types import Rollout, SegmentScore, TokenReward

Result = TypeVar("Result")
SUPPORTED = (DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)


def check_launcher(distributed_type: DistributedType) -> None:
    """Refuse a launcher whose way of sharing a model out is not supported.

    Only whole copies of the model on every process (DistributedDataParallel) train rightly here.
    Under DeepSpeed the model would stay unwrapped and every process would train a copy of its own;
    FSDP would shard parameters that the optimiser no longer sees.

    Args:
      distributed_type: of accelerate's `Accelerator` or `PartialState`.
    Raises:
      UserError: it is none of NO, MULTI_GPU, MULTI_CPU.
    """
    if distributed_type not in SUPPORTED:
        name = getattr(distributed_type, "value", distributed_type)
        raise UserError(
            f"the launcher started this process for {name}, which training does not support: every"
            " process has to hold a whole copy of the model (DistributedDataParallel), else the"
            " processes would train different models. Start it with the scripts of this"
            " repository, with `torchrun`, or with `accelerate launch --multi_gpu`"
        )


def share_of(items: Sequence, rank: int, world: int) -> Sequence:
    """The contiguous share of `items` that belongs to `rank`; their concatenation over ranks is
    `items` again.
    """
    bounds = [len(items) * r // world for r in range(world + 1)]
    return items[bounds[rank] : bounds[rank + 1]]


def stop_together(accelerator: Accelerator, work: Callable[[], Result]) -> Result:
    """What `work()` gives on this process. It must not communicate with the others.

    Raises:
      UserError: `work` raised it here or on another process. All processes stop, so none waits for
        one that has ended.
    """
    if accelerator.num_processes == 1:
        return work()
    result, problem = None, None
    try:
        result = work()
    except UserError as error:
        problem = str(error)
    problems = [text for text in gather_object([problem]) if text is not None]
    if problems:
        raise UserError(problems[0])
    return result


def _padded_cat(tensors: Sequence[Tensor], fill: float, left: bool) -> Tensor:
    """Concatenate 2-D tensors along rows, padded with `fill` to the widest."""
    width = max(tensor.shape[1] for tensor in tensors)
    sides = [(width - t.shape[1], 0) if left else (0, width - t.shape[1]) for t in tensors]
    return torch.cat(
        [torch.nn.functional.pad(t, side, value=fill) for t, side in zip(tensors, sides)]
    )


def join_rollouts(
    parts: Sequence[tuple[Rollout, TokenReward]], pad_id: int, left_padded: bool
) -> tuple[Rollout, TokenReward]:
    """Several ranks' rollouts as one, in the ranks' order."""
    if len(parts) == 1:
        return parts[0]
    rollouts = [rollout for rollout, _ in parts]
    joined, groups = {}, 0
    for item in fields(Rollout):
        values = [getattr(rollout, item.name) for rollout in rollouts]
        if item.name == "group_B":
            shifted = []
            for group_B in values:
                shifted.append(group_B + groups)
                groups += int(group_B.max()) + 1
            joined[item.name] = torch.cat(shifted)
        elif isinstance(values[0], Tensor):
            fill = pad_id if "_ids_" in item.name else 0
            joined[item.name] = _padded_cat(values, fill, left_padded and item.name.endswith("_BP"))
        elif item.name == "left_padded":
            joined[item.name] = left_padded
        else:
            joined[item.name] = None if values[0] is None else sum(values, ())
    rewards = [reward for _, reward in parts]
    by_aspect = {
        name: _padded_cat([r.by_aspect[name] for r in rewards], 0.0, False)
        for name in rewards[0].by_aspect
    }
    segments: dict[str, list[Sequence[SegmentScore] | None]] = {
        name: [scores for r in rewards for scores in r.segments[name]]
        for name in rewards[0].segments
    }
    rollout = Rollout(**joined)
    return rollout, TokenReward(by_aspect, segments, rollout.response_mask_BT)


def _on_cpu(rewards: TokenReward) -> TokenReward:
    return TokenReward(
        {name: t.cpu() for name, t in rewards.by_aspect.items()},
        rewards.segments,
        rewards.mask_BT.cpu(),
    )


def gather_rollouts(
    accelerator: Accelerator, rollout: Rollout, rewards: TokenReward, pad_id: int, left_padded: bool
) -> tuple[Rollout, TokenReward]:
    """All ranks' rollouts and rewards, the same on every rank."""
    if accelerator.num_processes == 1:
        return rollout, rewards
    parts = gather_object([(rollout.to("cpu"), _on_cpu(rewards))])
    joined, joined_rewards = join_rollouts(parts, pad_id, left_padded)
    device = accelerator.device
    moved = TokenReward(
        {n: t.to(device) for n, t in joined_rewards.by_aspect.items()},
        joined_rewards.segments,
        joined.response_mask_BT.to(device),
    )
    return joined.to(device), moved

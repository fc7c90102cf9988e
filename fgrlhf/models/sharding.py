"""Fully sharded data parallelism (FSDP2 of PyTorch): each process stores a part of every weight.

    layer            its weights are gathered before it computes, and freed after it
    root             everything outside the layers (embeddings, norms, heads), gathered in a forward
                     and kept until the backward pass has ended
    gradient         summed over the processes and divided again; each optimiser sees its own part

A sharded module computes in one of two ways:

- in the forward pass of the root, with gradients. Every layer communicates, so all processes must
  make the same number of passes through every layer (`encode_prompts` ensures this in the encoder);
- within `unsharded`, in which every process holds the whole weights. Nothing communicates there, so
  processes may generate, score and evaluate as much as each of them needs.

Any other use fails: a part of a weight cannot be multiplied with a whole hidden state.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from fgrlhf.base.errors import UserError


def shard(module: nn.Module, mesh: DeviceMesh, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The same module with its weights divided among the processes of `mesh`.

    Create the optimiser after this call, which replaces the parameters. Their names and their order
    do not change, and tied ones stay tied.

    Args:
      module: its forward pass must use all trained parameters. The weights are those of the first
        process. On the others they may be on the meta device, so that only the first one reads
        files and holds the whole module. Layers move to the mesh's device one by one.
      mesh: one axis of processes.
      dtype: of the gathered weights. The stored parts and the sum of the gradients keep fp32.

    Raises:
      UserError: the layers of a model in it are not known.
    """
    # T5's layers return a view, the position bias. The warning is about writing into one in place,
    # which no layer of transformers does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    layers = [layer for model in _models(module) for layer in _layers(model)]
    _use_attention_of_first(module, mesh)
    precision = MixedPrecisionPolicy()
    if dtype != torch.float32:
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    is_first = mesh.get_local_rank() == 0
    first_tensors = {name: tensor.detach() for name, tensor in _tensors(module)} if is_first else {}
    # Layers one by one: a process never holds more than one whole layer on its device.
    for layer in layers:
        _allocate(layer)
        fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
    _allocate(module)
    fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    # The first module that computes would become the root. A rollout begins with a layer.
    _as_fsdp(module)._get_fsdp_state()._lazy_init()
    _send(module, first_tensors, mesh)
    return module


def _use_attention_of_first(module: nn.Module, mesh: DeviceMesh) -> None:
    """Use PyTorch's attention in the models in which the first process does.

    A process that loads the weights tests whether the model's attention can share prompts
    (models/trial.py). Without weights the others could not.
    """
    models = _models(module)
    uses_sdpa = [model.config._attn_implementation == "sdpa" for model in models]
    uses_sdpa_N = torch.tensor(uses_sdpa, dtype=torch.int, device=mesh.device_type)
    torch.distributed.broadcast(uses_sdpa_N, group=mesh.get_group(), group_src=0)
    for model, sdpa, sdpa_in_first in zip(models, uses_sdpa, uses_sdpa_N.tolist()):
        if sdpa_in_first and not sdpa:
            model.set_attn_implementation("sdpa")


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers with their names, also the buffers that are not saved."""
    return [*module.named_parameters(), *module.named_buffers()]


def _allocate(module: nn.Module) -> None:
    """Give memory to tensors on the meta device; their values are arbitrary. Ties are kept."""
    allocated: dict[int, Tensor] = {}
    for part in module.modules():
        registered: list[dict[str, Any]] = [part._parameters, part._buffers]
        for tensors in registered:
            for name, tensor in tensors.items():
                if tensor is None or tensor.device.type != "meta":
                    continue
                if id(tensor) not in allocated:
                    empty = torch.empty_like(tensor, device="cpu")
                    if isinstance(tensor, nn.Parameter):
                        empty = nn.Parameter(empty, tensor.requires_grad)
                    allocated[id(tensor)] = empty
                tensors[name] = allocated[id(tensor)]


@torch.no_grad()
def _send(module: nn.Module, first_tensors: dict[str, Tensor], mesh: DeviceMesh) -> None:
    """Send each process its part of the first process's tensors, one tensor at a time."""
    for name, tensor in _tensors(module):
        full = first_tensors.pop(name, None)
        # the other processes receive into memory with the same shape
        if full is None:
            full = torch.empty(tensor.shape, dtype=tensor.dtype)
        full = full.to(tensor.device)
        if isinstance(tensor, DTensor):
            part = distribute_tensor(full, mesh, tensor.placements)
            tensor.to_local().copy_(part.to_local())
        else:
            torch.distributed.broadcast(full, group=mesh.get_group(), group_src=0)
            tensor.copy_(full)


def _models(module: nn.Module) -> list[PreTrainedModel]:
    """The outermost models of transformers in a module."""
    if isinstance(module, PreTrainedModel):
        return [module]
    models = []
    for child in module.children():
        models += _models(child)
    return models


def _layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of a model, in the order in which they compute.

    They are those that transformers names, else those that can be computed again. (It names no
    layer of Marian, and of Longformer a part that our attention replaces.)
    """
    names = model._no_split_modules or ()
    layers: list[nn.Module] = [
        module for module in model.modules() if type(module).__name__ in names
    ]
    if not layers:
        layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(
            f"parallel.strategy=fsdp2 cannot divide {type(model).__name__}: transformers does not"
            " tell which of its modules are layers. Use parallel.strategy=ddp"
        )
    return layers


def _as_fsdp(module: nn.Module) -> FSDPModule:
    assert isinstance(module, FSDPModule), "the root of a sharded module"
    return module


def _parts(module: nn.Module) -> list[FSDPModule]:
    """The root and the layers that are sharded; [] if the module is not sharded."""
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def is_sharded(module: nn.Module) -> bool:
    return any(isinstance(part, FSDPModule) for part in module.modules())


def communicates(module: nn.Module) -> bool:
    """Whether a forward pass gathers weights: the module is sharded, and not in `unsharded`."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())


@contextmanager
def unsharded(*roots: nn.Module) -> Iterator[None]:
    """Every process holds the whole weights while the block runs, without gradients.

    They have the dtype given to `shard`. All processes must enter it together. Modules that are not
    sharded are left alone.
    """
    with ExitStack() as stack:
        for root in roots:
            if is_sharded(root):
                stack.enter_context(_unsharded(root))
        yield


@contextmanager
def _unsharded(root: nn.Module) -> Iterator[None]:
    parts = _parts(root)
    # keep the gathered weights after each forward pass, or every pass would communicate
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        with torch.no_grad():
            yield
    finally:
        # frees the whole weights, and forgets the forward passes, which no backward pass follows
        _as_fsdp(root).reset_iter_state()
        for part in parts:
            part.set_reshard_after_forward(part is not root, recurse=False)


# ---- whole tensors, for files --------------------------------------------------------------------


def whole(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """The whole tensors of sharded ones, on the CPU. All processes must call this together.

    A tensor with several names is gathered once, and other tensors are returned as they are.

    Args:
      keep: whether this process needs the result; otherwise it returns {}.
    """
    result: dict[str, Tensor] = {}
    gathered: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        full = tensor
        if isinstance(tensor, DTensor):
            # all processes gather, in the same order; only some keep the result
            if id(tensor) not in gathered:
                part: Any = tensor.detach()
                full = part.full_tensor()
                gathered[id(tensor)] = full.cpu() if keep else torch.empty(0)
            full = gathered[id(tensor)]
        if keep:
            result[name] = full
    return result


def like(part: Tensor, full: Tensor) -> Tensor:
    """A whole tensor, divided like `part` if that is sharded. Nothing is communicated."""
    if not isinstance(part, DTensor):
        return full
    return distribute_tensor(
        full.to(part.device), part.device_mesh, part.placements, src_data_rank=None
    )


def load_whole(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load whole tensors into a module, of which each process may store a part.

    Args:
      tensors: some of the module's, by name. Of tied ones, one is enough.
    """
    parts = module.state_dict()
    divided = {name: like(parts[name], tensor) for name, tensor in tensors.items()}
    module.load_state_dict(divided, strict=False)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process stores."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# ---- gradients -----------------------------------------------------------------------------------


def clip_grad_norm(parameters: Sequence[nn.Parameter], bound: float) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_` for whole or sharded parameters.

    Returns:
      The norm over all processes before clipping, the same on each of them.
    """
    norm = torch.nn.utils.clip_grad_norm_(parameters, bound)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm

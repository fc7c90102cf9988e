"""A pretend GPU: tensors that are on another device, and compute on the CPU.

    PYTHONPATH=tests python -m pytest -p pretend_gpu tests/test_train_rl.py

As a plugin of pytest, it makes every training and evaluation use this device. It finds what a GPU
would find and a CPU cannot: operations on tensors of two devices, and arrays of numpy that are made
from tensors of a GPU. It also counts how often the program waits for the device. It says nothing
about memory, speed, CUDA's kernels or rounding.

The device is PyTorch's PrivateUse1, the place for backends outside PyTorch. It cannot be removed
again, so it lives in a process of its own.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._device
from accelerate import Accelerator
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "pretend"
DEVICE = torch.device("cpu")  # the device itself, after `install`

# Operations that copy between devices.
COPIES = ("_to_copy", "copy_")
# Operations whose indices may be on the CPU.
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
# Operations that take no numbers from the CPU, although most others do.
JOINING = ("cat", "stack")
# Operations after which the program waits for the device: the size of the result depends on values.
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim")


class DeviceError(RuntimeError):
    """An operation on tensors of two devices."""


class PretendTensor(Tensor):
    """A tensor on the pretend GPU. `held` has its numbers, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "PretendTensor":
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=DEVICE,
        )
        made.held = held
        return made

    def __init__(self, held: Tensor):
        pass

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})

    # What PyTorch does without an operator for tensors of its own devices, and not for others:

    def tolist(self):
        waits["tolist"] += 1
        return self.held.tolist()

    def numpy(self, *, force: bool = False):
        if not force:
            raise TypeError(f"can't convert a tensor on {DEVICE} to numpy: use Tensor.cpu() first")
        return self.held.numpy()

    def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False):
        made = torch.tensor(data, dtype=dtype or self.dtype).to(device or self.device)
        return made.requires_grad_(requires_grad)

    def __getitem__(self, index):
        return super().__getitem__(_lists_as_tensors(index))

    def __setitem__(self, index, value):
        super().__setitem__(_lists_as_tensors(index), value)

    def __repr__(self) -> str:
        return f"on {DEVICE}: {self.held!r}"

    def __format__(self, spec: str) -> str:
        return format(self.held, spec)

    def __deepcopy__(self, memo: dict) -> Tensor:
        if id(self) not in memo:
            copy = PretendTensor(self.held.detach().clone())
            if isinstance(self, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy)
            memo[id(self)] = copy.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return self.held.detach().__reduce_ex__(protocol)

    def untyped_storage(self):
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()


waits: Counter = Counter()  # operation -> how often the program had to wait for it


def compute(func: Any, args: tuple, kwargs: dict) -> Any:
    """Do an operation on the CPU; its results are on the device of its arguments.

    Raises:
      DeviceError: the tensors are on two devices.
    """
    name = func.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_gpu = {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, PretendTensor)}
    if name not in COPIES:
        _check_devices(func, name, args, tensors)
    if name in WAITING or _selects_by_values(name, args):
        waits[name] += 1

    to_gpu = bool(on_gpu)
    if kwargs.get("device") is not None:
        to_gpu = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": "cpu"}
        if name == "_to_copy" and to_gpu != bool(on_gpu):
            waits["copy to the CPU" if on_gpu else "copy from the CPU"] += 1
    elif name == "copy_":
        to_gpu = isinstance(args[0], PretendTensor)
    kwargs.pop("pin_memory", None)

    args, kwargs = tree_map_only(PretendTensor, lambda tensor: tensor.held, (args, kwargs))
    results = func(*args, **kwargs)
    for tensor in on_gpu.values():
        assert tensor.shape == tensor.held.shape, f"{func} resizes a tensor: see MADE_ON_CPU"
    if not to_gpu:
        return results

    def placed(tensor: Tensor) -> Tensor:
        argument = on_gpu.get(id(tensor))  # an operation in place returns its argument
        return PretendTensor(tensor) if argument is None else argument

    return tree_map_only(Tensor, placed, results)


def _check_devices(func: Any, name: str, args: tuple, tensors: list[Tensor]) -> None:
    if name in INDEXING and isinstance(args[0], PretendTensor):
        indices = {id(tensor) for tensor in args[1] if tensor is not None}
        tensors = [tensor for tensor in tensors if id(tensor) not in indices]
    from_cpu = [tensor for tensor in tensors if not isinstance(tensor, PretendTensor)]
    if len(from_cpu) in (0, len(tensors)):
        return
    # a tensor of the CPU that has no axes counts as a number
    if name in JOINING or any(tensor.dim() > 0 for tensor in from_cpu):
        shapes = [(tuple(tensor.shape), str(tensor.device)) for tensor in tensors]
        raise DeviceError(f"{func}: tensors on two devices: {shapes}")


def _selects_by_values(name: str, args: tuple) -> bool:
    """Whether a mask selects elements, whose number the program must know."""
    if name not in INDEXING:
        return False
    return any(index is not None and index.dtype == torch.bool for index in args[1])


def _lists_as_tensors(index: Any) -> Any:
    if isinstance(index, list):
        return torch.tensor(index, dtype=None if index else torch.long).to(DEVICE)
    if isinstance(index, tuple):
        return tuple(_lists_as_tensors(part) for part in index)
    return index


# ---- the device ----------------------------------------------------------------------------------


class _Device:
    """What PyTorch asks a device's module."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


# Operations that resize an empty tensor before they fill it: a subclass of tensors cannot do that.
MADE_ON_CPU = (
    "arange",
    "arange.start",
    "arange.start_step",
    "linspace",
    "eye",
    "eye.m",
    "randperm",
)
# Operations that autocast does in bf16 on a GPU, of those that the models have.
IN_BF16 = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention")

_libraries: list[torch.library.Library] = []  # they unregister what they registered when they end


def install() -> None:
    """Make the device known to PyTorch, and let accelerate use it."""
    global DEVICE
    if _libraries:
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Device())
    DEVICE = torch.device(NAME, 0)

    kernels = torch.library.Library("_", "IMPL")
    kernels.fallback(lambda func, *args, **kwargs: compute(func, args, kwargs), "PrivateUse1")
    kernels.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    operations = torch.library.Library("aten", "IMPL")
    for name in MADE_ON_CPU:
        operations.impl(name, _made_on_cpu(_operation(name)), "PrivateUse1")
    for name in IN_BF16:
        operations.impl(name, _in_bf16(_operation(name)), "AutocastPrivateUse1")
    _libraries.extend([kernels, operations])

    # Module.to must change parameters in place, as it does for devices of PyTorch: else models lose
    # the ties between their parameters
    torch.__future__.set_swap_module_params_on_conversion(True)

    torch.utils._device._device_constructors()  # remembers the functions that are replaced here
    for name in ("tensor", "as_tensor"):
        setattr(torch, name, _on_any_device(getattr(torch, name)))
    Tensor.pin_memory = lambda self, *_: self
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(DEVICE)


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _made_on_cpu(func: Any) -> Callable:
    return lambda *args, **kwargs: compute(func, args, kwargs)


def _in_bf16(func: Any) -> Callable:
    def kernel(*args, **kwargs):
        key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
        with torch._C._ExcludeDispatchKeyGuard(key):
            return func(*tree_map_only(Tensor, _to_bf16, args), **kwargs)

    return kernel


def _to_bf16(tensor: Tensor) -> Tensor:
    return tensor.bfloat16() if tensor.dtype == torch.float32 else tensor


def _on_any_device(make: Callable) -> Callable:
    """`torch.tensor`, whose own way to a device outside PyTorch fails for a subclass of tensors."""

    def made(data, *args, device=None, **kwargs):
        if device is None or torch.device(device).type != NAME:
            return make(data, *args, device=device, **kwargs)
        return make(data, *args, **kwargs).to(device)

    return made


@contextmanager
def counted_waits() -> Iterator[Counter]:
    """Count in a block, by operation, how often the program waits for the device."""
    waits.clear()
    counted: Counter = Counter()
    yield counted
    counted.update(waits)


def pytest_configure() -> None:
    """Called by pytest when it loads this plugin."""
    install()
    init = Accelerator.__init__

    def init_on_gpu(self, *args, cpu: bool = False, **kwargs):
        init(self, *args, **kwargs)

    Accelerator.__init__ = init_on_gpu

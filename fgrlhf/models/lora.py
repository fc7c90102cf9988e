"""LoRA (Hu et al. 2022, arXiv 2106.09685), with peft: small trained matrices added to frozen ones.

    y = W x + (alpha / r) B A x        W (out, in) frozen,  A (r, in),  B (out, r),  B = 0 at first

B = 0 means that training starts at the original model. That model is also the reference of the KL
penalty. It is computed by leaving out the second term, so its weights are not copied. The adapters
are injected into the transformers model without a wrapper, so it is used like any other model.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.pytorch_utils import Conv1D

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_json, write_json
from fgrlhf.configs.sections import LoRAConfig
from fgrlhf.kernels.layers import Linear, TransposedLinear
from fgrlhf.models.model_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from fgrlhf.models.quantized import QuantizedLinear, quantize_layers
from fgrlhf.models.top_layers import top_layers_of
from fgrlhf.models.trunk import other_inputs

ADAPTER = "default"
ADAPTERS = "adapter"  # the folder inside that of a saved policy
ROOT = "model"  # name of the model in the module that peft gets
# Classes whose results are W x + b; other classes derived from them may compute more.
LINEAR_LAYERS = (nn.Linear, Conv1D, Linear, TransposedLinear, FalconLinear)
# Routers of mixtures of experts: parts of the names of their classes, and names of layers that are
# a router without a class of its own.
ROUTER_CLASSES = ("Router", "TopKGating")
ROUTERS = frozenset({"gate", "router", "router_gate"})


def add_adapters(
    model: PreTrainedModel, settings: LoRAConfig, top_layers: int | None = None
) -> PreTrainedModel:
    """The same model with adapters on its linear layers. Only the adapters are trained.

    Parts that text does not go through get no adapters. Nor does the pooler of an encoder, which
    stays trained: a checkpoint may lack it, so its weights may be random.

    Args:
      top_layers: only these top layers of the model get adapters; None: all layers.

    Raises:
      UserError: `settings.target_modules` names a layer that the model does not have, or
        `settings.quantize` cannot be done.
    """
    targets = _targets(model, settings.target_modules)
    pooler = getattr(model, "pooler", None)
    targets = _keep(targets, _modules_outside(model, *([] if pooler is None else [pooler])))
    adapted = _keep(targets, _modules_outside(model, *other_inputs(model)))
    if top_layers is not None:
        adapted = _keep(adapted, _modules_of(*top_layers_of(model, top_layers)))
    if settings.quantize is not None:  # also layers without adapters
        quantize_layers(model, targets)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # pyright: ignore[reportArgumentType]  # peft takes any number
        lora_dropout=settings.dropout,
        target_modules=[f"{ROOT}.{name}" for name in adapted],
        # GPT-2's weights are (in, out)
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in adapted.values()),
    )
    # In some mixtures of experts, a layer has the name under which checkpoints store the experts,
    # whose weights transformers merges into one tensor. Given the model itself, peft reads its
    # config and would adapt these tensors too, which `merged_weights` cannot save. In a module
    # without a config it looks for layers only.
    inject_adapter_in_model(config, nn.ModuleDict({ROOT: model}), ADAPTER)
    if pooler is not None:
        pooler.requires_grad_(True)
    return model


def _targets(model: PreTrainedModel, requested: Sequence[str] | None) -> dict[str, nn.Module]:
    """The linear layers that get adapters, by full name.

    These are the layers whose last part of the name is in `requested`; None: all but the output
    layer and those that `_cannot_be_adapted`. peft gets full names, because the last part of a
    layer in a list is a number, which other modules share.
    """
    output_layer = model.get_output_embeddings()
    modules = dict(model.named_modules())
    layers = {}
    for name, module in modules.items():
        is_linear = type(module) in LINEAR_LAYERS and module is not output_layer
        if is_linear and not _cannot_be_adapted(name, modules):
            layers[name] = module
    available = {_last_part(name) for name in layers}
    unknown = sorted(set(requested or ()) - available)
    if unknown:
        raise UserError(
            "lora.target_modules names"
            f" {shorten(', '.join(f'`{name}`' for name in unknown))}, but adapters need linear"
            f" layers other than the output layer and routers, and {type(model).__name__} has"
            f" these: {', '.join(sorted(available))}. Name some of them, or leave target_modules"
            " out to use all"
        )
    if requested is None:
        return layers
    return {name: layer for name, layer in layers.items() if _last_part(name) in requested}


def _cannot_be_adapted(name: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a linear layer is part of a router, or is read in another way than by calling it.

    A router chooses experts, and that choice has no gradient. Mamba multiplies with the weights of
    `dt_proj` itself, and Gemma 3n in training with those of `correction_coefs`, so an adapter there
    would change nothing until it is merged. Experts whose weights are one tensor are not layers.
    Nor is a router that returns more than a product, although its class may be derived from
    `nn.Linear` (PhiMoE).
    """
    parent = type(modules[name.rpartition(".")[0]]).__name__
    if _last_part(name) == "dt_proj" and "Mamba" in parent:
        return True
    if _last_part(name) in (*ROUTERS, "correction_coefs"):
        return True
    while name:
        if any(part in type(modules[name]).__name__ for part in ROUTER_CLASSES):
            return True
        name = name.rpartition(".")[0]
    return False


def _modules_of(*parts: nn.Module) -> set[nn.Module]:
    modules: set[nn.Module] = set()
    for part in parts:
        modules.update(part.modules())
    return modules


def _modules_outside(model: nn.Module, *parts: nn.Module) -> set[nn.Module]:
    return _modules_of(model) - _modules_of(*parts)


def _keep(layers: Mapping[str, nn.Module], modules: Set[nn.Module]) -> dict[str, nn.Module]:
    return {name: layer for name, layer in layers.items() if layer in modules}


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def has_adapters(model: nn.Module) -> bool:
    """Whether a model has LoRA adapters."""
    return any(isinstance(module, LoraLayer) for module in model.modules())


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Disable the model's adapters while the block runs."""
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


class AdapterFree(nn.Module):
    """The policy without its adapters, which is the policy before training: the reference.

    It always computes in eval mode. The policy is not registered as a submodule, so its weights are
    not moved, frozen or saved twice.
    """

    def __init__(self, policy: nn.Module):
        super().__init__()
        self._policy = (policy,)  # in a tuple, so that PyTorch does not register it

    def forward(self, *args, **kwargs):
        """`Policy.forward` without adapters."""
        (policy,) = self._policy
        training = policy.training
        policy.eval()
        try:
            with adapters_off(policy):
                return policy(*args, **kwargs)
        finally:
            policy.train(training)


def merged_weights(
    model: nn.Module, tensors: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The `state_dict` of an equivalent model without adapters.

    Every adapted layer has the weight W + (alpha / r) B A. If W is stored in 4 bits, it is the one
    with which the layer computes, in floats. The model itself does not change.

    Args:
      tensors: the whole tensors of the model's `state_dict`, if the model is sharded.
    """
    if tensors is None:
        tensors = model.state_dict()
    merged = {}
    for name, tensor in tensors.items():
        if ".lora_" not in name:
            merged[name.replace(".base_layer.", ".")] = tensor.detach()
    for name, layer in model.named_modules():
        if isinstance(layer, QuantizedLinear):
            merged[f"{name}.weight".replace(".base_layer.", ".")] = layer.dequantized()
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            a = tensors[f"{name}.lora_A.{ADAPTER}.weight"].detach()
            b = tensors[f"{name}.lora_B.{ADAPTER}.weight"].detach()
            product = b @ a
            if layer.fan_in_fan_out:  # pyright: ignore[reportAttributeAccessIssue]
                product = product.T
            merged[f"{name}.weight"] = merged[f"{name}.weight"] + product * layer.scaling[ADAPTER]
    return merged


def save_adapters(
    model: PreTrainedModel, folder: Path, tensors: Mapping[str, Tensor] | None = None
) -> None:
    """Write the adapters as a folder that peft loads on the model from which training started.

    Tensors have the names `base_model.model.LAYER.lora_A.weight` (r, in) and `...lora_B.weight`
    (out, r). adapter_config.json names the model by the path with which it was loaded.

    Args:
      tensors: as in `merged_weights`.
    """
    if tensors is None:
        tensors = model.state_dict()
    saved = {}
    for name, tensor in tensors.items():
        if ".lora_" in name:
            own = name.replace(f".{ADAPTER}.", ".")
            saved[f"base_model.model.{own}"] = tensor.detach().cpu().contiguous()
    layers: dict[str, Any] = {
        name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)
    }
    layer = next(iter(layers.values()))
    config = LoraConfig(
        r=layer.r[ADAPTER],
        lora_alpha=layer.lora_alpha[ADAPTER],
        fan_in_fan_out=any(layer.fan_in_fan_out for layer in layers.values()),
        base_model_name_or_path=model.name_or_path,
        task_type="SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM",
        inference_mode=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(saved, folder / f"{ADAPTER_WEIGHTS}.safetensors", metadata={"format": "pt"})
    config.save_pretrained(str(folder))
    # peft has a set of targets, whose order in the file is another one in every process
    written = read_json(folder / ADAPTER_CONFIG)
    write_json(folder / ADAPTER_CONFIG, {**written, "target_modules": _short_names(model, layers)})


def _short_names(model: nn.Module, layers: Mapping[str, nn.Module]) -> list[str]:
    """The last parts of the layers' names if no other layer has one of them, else whole names."""
    parts = {_last_part(name) for name in layers}
    named = {name for name, _ in model.named_modules() if _last_part(name) in parts}
    return sorted(parts) if named == layers.keys() else sorted(layers)


def names_under_adapters(module: nn.Module) -> set[str]:
    """Names of the tensors that stay frozen because adapters are trained instead."""
    names = set()
    for prefix, model in module.named_modules():
        if not isinstance(model, PreTrainedModel) or not has_adapters(model):
            continue
        for name, tensor in model.state_dict(keep_vars=True).items():
            if not tensor.requires_grad:  # the head of a reward model is trained too
                names.add(f"{prefix}.{name}".lstrip("."))
    return names

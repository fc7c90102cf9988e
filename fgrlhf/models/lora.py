"""LoRA (Hu et al. 2022, arXiv 2106.09685), by peft: small matrices are trained beside weights that
stay as they are.

    y = W x + (alpha / r) B A x        W (out, in) frozen,  A (r, in),  B (out, r),  B = 0 at first

So the policy starts as the model it was made from, and that model, the reference of the KL penalty,
is the policy with the second term left out: there is no second copy of its weights. The adapters
are put into the transformers model itself; nothing is wrapped around it, and it is used as any
other.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fgrlhf.errors import UserError
from fgrlhf.models.config import LoRAConfig

ADAPTER = "default"


def add_adapters(model: PreTrainedModel, settings: LoRAConfig) -> PreTrainedModel:
    """The same model with adapters beside its linear layers; nothing else of it is trained any
    more.

    Raises:
      UserError: `settings.target_modules` names a layer that the model has not.
    """
    targets = _targets(model, settings.target_modules)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets,
    )
    conv = any(
        isinstance(module, Conv1D)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in targets
    )
    config.fan_in_fan_out = conv  # GPT-2 keeps its weights transposed
    return inject_adapter_in_model(config, model, ADAPTER)


def _targets(model: PreTrainedModel, wanted: Sequence[str] | None) -> list[str]:
    """Names of linear layers: those that are wanted, or all but the output layer."""
    known = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and module is not model.get_output_embeddings()
    }
    unknown = sorted(set(wanted or ()) - known)
    if unknown:
        raise UserError(
            "model.policy_model.lora.target_modules names"
            f" {', '.join(f'`{name}`' for name in unknown)}, but adapters stand beside linear"
            f" layers other than the output, and {type(model).__name__} has these:"
            f" {', '.join(sorted(known))}. Name some of them, or leave target_modules out to"
            " take all"
        )
    return sorted(wanted or known)


def has_adapters(model: nn.Module) -> bool:
    return any(isinstance(module, LoraLayer) for module in model.modules())


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The model without its adapters while the block runs."""
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


class AdapterFree(nn.Module):
    """What a policy with adapters was before training: its reference. In eval mode whatever the
    policy's mode is.

    The policy is no submodule of it, and its weights are none of its parameters: they are not
    moved, frozen or saved twice.
    """

    def __init__(self, policy: nn.Module):
        super().__init__()
        self._policy = (policy,)

    def forward(self, *args, **kwargs):
        """As the policy's."""
        (policy,) = self._policy
        training = policy.training
        policy.eval()
        try:
            with adapters_off(policy):
                return policy(*args, **kwargs)
        finally:
            policy.train(training)


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The `state_dict` of an ordinary model that computes the same: W + (alpha / r) B A in place of
    W.
    """
    merged = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            merged[f"{name}.weight"] = (
                layer.base_layer.weight.detach() + layer.get_delta_weight(ADAPTER).detach()
            )
    return merged


def names_under_adapters(module: nn.Module) -> set[str]:
    """Names of the tensors that stay as they were loaded because adapters are trained beside
    them.
    """
    return {
        f"{prefix}.{name}".lstrip(".")
        for prefix, model in module.named_modules()
        if isinstance(model, PreTrainedModel) and has_adapters(model)
        for name in model.state_dict()
        if ".lora_" not in name
    }

"""Training of the top layers only: `train_top_layers: n`.

The embeddings and the lower layers are frozen, so they are not back-propagated, and what they
compute of a text does not change in training. The layers of an encoder-decoder are counted from the
decoder's last one down: the encoder's layers are below all of the decoder's.

    n = 2 of 2 + 2       embeddings, encoder 1, encoder 2, | decoder 1, decoder 2, final norm
    n = 4 of 2 + 2       everything is trained, the embeddings too

An output layer that is tied to the embeddings is frozen with them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fgrlhf.base.errors import UserError
from fgrlhf.models.trunk import trunk_of

COUNT_KEYS = ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers")


@dataclass(frozen=True)
class TopLayers:
    """The result of `train_top_layers`.

    Attributes:
      trained, total: layers.
      frozen_parameters: numbers in the weights that are frozen.
    """

    trained: int
    total: int
    frozen_parameters: int

    def describe(self) -> str:
        """A line for the user."""
        return (
            f"the top {self.trained} of {self.total} layers are trained;"
            f" {self.frozen_parameters:,} parameters below them are frozen"
        )


def layers_of(stack: nn.Module) -> nn.ModuleList:
    """The layers of a stack (an encoder or a decoder of transformers), lowest first.

    They are the outermost `nn.ModuleList` with as many modules as the config has layers.

    Raises:
      UserError: there is no such list.
    """
    stack = getattr(stack, "text_model", stack)  # T5Gemma 2 has an encoder of images beside it
    config = getattr(stack, "config", None)
    counts = {getattr(config, key, None) for key in COUNT_KEYS}
    for module in stack.modules():  # outer modules come first
        if isinstance(module, nn.ModuleList) and len(module) in counts:
            return module
    raise UserError(
        f"train_top_layers cannot be used with {type(stack).__name__}, because its layers are not a"
        " list: leave it out"
    )


def count_layers(model: PreTrainedModel) -> int:
    """Layers of a model; of an encoder-decoder, those of both stacks."""
    return sum(len(layers_of(stack)) for stack in _stacks(model))


def train_top_layers(model: PreTrainedModel, n: int, key: str) -> TopLayers:
    """Freeze the embeddings and all but the top n layers. If n is all of them, nothing is frozen.

    A parameter is frozen if the input of the lowest trained layer depends on it. This includes
    position embeddings, T5's position bias and adapters, whatever their names are. Norms and heads
    above the layers stay trained. Parameters that are frozen already stay frozen. The model must
    have its weights: it reads a token.

    Args:
      model: a transformers model, with or without the head of a language model.
      n: at least 1.
      key: the name of the setting, for messages.

    Raises:
      UserError: the model has fewer than n layers.
    """
    total = check_top_layers(model, n, key)
    if n == total:
        return TopLayers(n, total, 0)
    frozen = _below(model, n)
    for parameter in frozen:
        parameter.requires_grad_(False)
    return TopLayers(n, total, sum(parameter.numel() for parameter in frozen))


def top_layers_of(model: PreTrainedModel, n: int) -> list[nn.Module]:
    """The top n layers of a model, lowest first."""
    layers: list[nn.Module] = []
    for stack in _stacks(model):
        layers += layers_of(stack)
    return layers[-n:]


def check_top_layers(model: PreTrainedModel, n: int, key: str) -> int:
    """The number of layers of a model.

    Args:
      key: the name of the setting, for the message.

    Raises:
      UserError: the model has fewer than n layers.
    """
    total = count_layers(model)
    if n > total:
        raise UserError(
            f"{key}={n}, but the model has only {total} layers: set it to {total} or less, or leave"
            " it out to train all of them"
        )
    return total


def _stacks(model: PreTrainedModel) -> list[nn.Module]:
    """The stacks of a model, in the order in which they compute."""
    base = trunk_of(model)
    if model.config.is_encoder_decoder:
        return [base.get_encoder(), base.get_decoder()]
    return [base]


def _below(model: PreTrainedModel, n: int) -> list[nn.Parameter]:
    """The trained parameters on which the input of the lowest of the top n layers depends."""
    *encoders, decoder = _stacks(model)
    decoder_layers = layers_of(decoder)
    # layers are counted from the decoder's last one down, then on into the encoder
    trained_in_decoder = min(n, len(decoder_layers))
    trained_in_encoder = n - trained_in_decoder
    frozen: list[nn.Parameter] = []
    # the lowest trained layer of each stack that has one
    lowest = [decoder_layers[-trained_in_decoder]]
    for encoder in encoders:
        if trained_in_encoder:
            lowest.append(layers_of(encoder)[-trained_in_encoder])
        else:
            frozen += encoder.parameters()
    for state in _inputs_of(model, lowest):
        frozen += _parameters_behind(state)
    # tied parameters and those below both stacks occur twice
    unique = {id(parameter): parameter for parameter in frozen}
    return [parameter for parameter in unique.values() if parameter.requires_grad]


def names_below(model: PreTrainedModel, n: int) -> list[str]:
    """Names of all parameters on which the input of the top n layers depends, trained or not."""
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    # autograd records only what needs a gradient, so all parameters ask for one meanwhile
    model.requires_grad_(True)
    below = {id(parameter) for parameter in _below(model, n)}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained[name])
    return [name for name, parameter in model.named_parameters() if id(parameter) in below]


def _inputs_of(model: PreTrainedModel, layers: Iterable[nn.Module]) -> list[Tensor]:
    """The hidden state that enters each layer when the model reads one token."""
    states: list[Tensor] = []

    def remember(_, arguments, keywords):
        states.append(arguments[0] if arguments else keywords["hidden_states"])

    handles = [layer.register_forward_pre_hook(remember, with_kwargs=True) for layer in layers]
    base = trunk_of(model)
    ids_11 = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    inputs = {"input_ids": ids_11, "attention_mask": torch.ones_like(ids_11)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids_11
    training = model.training
    model.eval()  # dropout would draw random numbers
    try:
        with torch.enable_grad():
            base(**inputs)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return states


def _parameters_behind(tensor: Tensor) -> list[nn.Parameter]:
    """The parameters on which a tensor depends, from the graph that autograd recorded."""
    parameters = []
    waiting: list[Any] = [] if tensor.grad_fn is None else [tensor.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):  # the node that adds to a leaf's gradient
            parameters.append(node.variable)
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return parameters

"""The text part of a language model, and its config.

A multimodal model (Gemma 3, ...) holds its language model beside encoders of images or sound, and
the config of that language model inside its own config. Policies read and write text only.
"""

from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from fgrlhf.base.errors import UserError


def trunk_of(model: PreTrainedModel) -> Any:
    """The model without its output layer; of a multimodal one, the part that reads text."""
    base: Any = model.base_model
    language_model = getattr(base, "language_model", None)
    return base if language_model is None else language_model


def text_config(model: PreTrainedModel) -> PretrainedConfig:
    """The config with the sizes of `trunk_of(model)`; of a nested encoder-decoder, its decoder's.

    In most models it is `model.config`.
    """
    return model.config.get_text_config()


def other_inputs(model: PreTrainedModel) -> list[nn.Module]:
    """The parts of a multimodal model that text does not go through.

    An encoder-decoder (T5Gemma 2) has them in its encoder.
    """
    base: Any = model.base_model
    trunk = trunk_of(model)
    if model.config.is_encoder_decoder:
        base = model.get_encoder()
        trunk = getattr(base, "text_model", base)
    return [] if trunk is base else [part for part in base.children() if part is not trunk]


def freeze_other_inputs(model: PreTrainedModel) -> None:
    """Freeze `other_inputs`."""
    for part in other_inputs(model):
        part.requires_grad_(False)


def require_trained(model: nn.Module) -> None:
    """Raise `UserError` if all parameters are frozen: a run would change nothing."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(
            f"none of the parameters of {type(model).__name__} would be trained, so training would"
            " change nothing: check the model's folder, train_top_layers and lora"
        )

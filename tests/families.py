"""Tiny random models of many families: folders to load, with the tokenizer of tiny.py.

The policies of tiny.py are for properties that every policy has. These are for what a family does
differently: scaled logits, other config keys, experts, several kinds of positions.
"""

from pathlib import Path

import tiny
import torch
import yaml
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PretrainedConfig,
    PreTrainedModel,
)

from fgrlhf.models.loading import constants_of

SETTINGS = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
T5, BART = (SETTINGS["bases"][name] for name in ("t5", "bart"))
DECODERS, ENCODER_DECODERS, HYBRIDS, OTHERS = (
    SETTINGS[name] for name in ("decoders", "encoder_decoders", "hybrids", "others")
)
FAMILIES = {**DECODERS, **ENCODER_DECODERS, **OTHERS}


def config_of(family: str, **changes) -> PretrainedConfig:
    settings = {**FAMILIES, **HYBRIDS}[family]
    return AutoConfig.for_model(**{"model_type": family, **settings, **changes})


def random_model(config: PretrainedConfig) -> PreTrainedModel:
    """A model with weights so large that every token matters; a language model if it can be one."""
    torch.manual_seed(0)
    if config.is_encoder_decoder:
        auto_class = AutoModelForSeq2SeqLM
    elif type(config) in AutoModelForCausalLM._model_mapping:
        auto_class = AutoModelForCausalLM
    else:
        auto_class = AutoModel
    model = auto_class.from_config(config).eval()
    with torch.no_grad():
        constants = constants_of(model)
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and name not in constants:
                parameter.normal_(0, 0.2)
    return model


def save(family: str, folder: Path, **changes) -> PreTrainedModel:
    """Write a model's folder, with `changes` to its config; return the model."""
    model = random_model(config_of(family, **changes))
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return model

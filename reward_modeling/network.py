"""The network that reward-model training starts from: a language model with a new head."""

from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from fgrlhf.base.errors import UserError
from fgrlhf.models.loading import check_vocabulary, load_config, load_weights
from fgrlhf.models.lora import add_adapters
from fgrlhf.models.top_layers import check_top_layers, train_top_layers
from fgrlhf.reward_models.inputs import longest_input, sees_line_breaks
from fgrlhf.reward_models.loading import check_score, load_tokenizer
from fgrlhf.reward_models.network_config import shape_of_config
from fgrlhf.reward_models.networks import LanguageModelScorer, speed_up_network
from fgrlhf.reward_models.shapes import check_direction, check_padding, check_stacks, other_shape
from fgrlhf.reward_models.spec import Kind, Shape
from reward_modeling.config import TOP_LAYERS_KEY, RMModelConfig


def load_network(
    model: RMModelConfig, kind: Kind, id2label: dict[int, str] | None = None
) -> tuple[PreTrainedModel, Any]:
    """The network to train, with a new head, and its tokenizer.

    Args:
      id2label: names of a segment model's outputs.
    Raises:
      UserError: `model.ckpt` cannot be read, is not of `model.shape`, or reads less than
        `model.max_input_len`.
    """
    labels: dict[str, Any] = {"num_labels": 1}
    if id2label is not None:
        label2id = {name: i for i, name in id2label.items()}
        labels = {"num_labels": len(id2label), "id2label": id2label, "label2id": label2id}
    shape = model.shape
    config: PretrainedConfig | None = None
    try:
        config = load_config(model.ckpt, **labels)
        if shape == "auto":
            shape = shape_of_config(config)
        check_stacks(config, shape)
        _check_settings(model, config, shape)
        tokenizer = load_tokenizer(model.ckpt, shape)
        if shape == "encoder":
            network = _classifier(model, kind, config, tokenizer)
        else:
            network = _language_model_scorer(model, kind, shape, id2label, tokenizer)
        return speed_up_network(network, model.kernels), tokenizer
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        # transformers has no classifier for some decoder-only models, and its reason does not name
        # the shape
        if config is not None and "model.shape=" not in reason:
            fitting = shape_of_config(config)
            if fitting != shape:
                reason = f"{reason} Note: {other_shape(config, fitting)}"
        raise UserError(
            f"no network of shape `{shape}` could be loaded from model.ckpt `{model.ckpt}`:"
            f" {reason}"
        ) from None


def reads_line_breaks(model: RMModelConfig, shape: Shape, tokenizer, lacking: str = "") -> bool:
    """Whether the network reads texts with their line breaks: `model.line_breaks`.

    If it is null, it does wherever it can.

    Args:
      lacking: why the training files have no line breaks; "" if they have.

    Raises:
      UserError: it is true and the network cannot.
    """
    reason = lacking
    if not sees_line_breaks(tokenizer, shape):
        reason = f"the tokenizer of `{model.ckpt}` has no tokens for them"
    if model.line_breaks and reason:
        raise UserError(f"model.line_breaks=true, but {reason}. Set it to false or leave it out")
    return not reason and model.line_breaks is not False


def _language_model_scorer(
    model: RMModelConfig, kind: Kind, shape: Shape, id2label: dict[int, str] | None, tokenizer
) -> LanguageModelScorer:
    """A language model with a new head."""
    scorer: Any = LanguageModelScorer.start_from(
        model.ckpt,
        shape,
        kind,
        id2label,
        lm_logprob_feature=model.lm_logprob_feature,
        layers=model.layers,
        text_features=model.text_features,
        members=model.members,
    )
    _check_length(model, scorer.trunk)
    _add_adapters(scorer.trunk, model)
    if model.train_top_layers is not None:
        scorer.train_top_layers(model.train_top_layers, TOP_LAYERS_KEY)
    check_vocabulary(tokenizer, scorer.trunk)
    return scorer


def _classifier(
    model: RMModelConfig, kind: Kind, config: PretrainedConfig, tokenizer
) -> PreTrainedModel:
    """An encoder with the new head of transformers' token or sequence classifier."""
    config.pad_token_id = tokenizer.pad_token_id
    network_class = AutoModelForSequenceClassification
    if kind == "segment":
        network_class = AutoModelForTokenClassification
    network: Any = load_weights(
        network_class, model.ckpt, new_head=True, config=config, dtype=torch.float32
    )
    _check_length(model, network)
    check_direction(network, shape="encoder")
    check_padding(network)
    _add_adapters(network.base_model, model)
    if model.train_top_layers is not None:
        train_top_layers(network.base_model, model.train_top_layers, TOP_LAYERS_KEY)
    check_vocabulary(tokenizer, network)
    if kind == "sequence":
        check_score(network, tokenizer)
    return network


def _add_adapters(trunk: PreTrainedModel, model: RMModelConfig) -> None:
    """Add the adapters of `model.lora`, if it is set. The head is not in the trunk: it is trained.

    Raises:
      UserError: the trunk has no layers of these names, or fewer than `train_top_layers`.
    """
    if model.lora is None:
        return
    if model.train_top_layers is not None:
        check_top_layers(trunk, model.train_top_layers, TOP_LAYERS_KEY)
    add_adapters(trunk, model.lora, model.train_top_layers)


def _check_settings(model: RMModelConfig, config: PretrainedConfig, shape: Shape) -> None:
    """Raise `UserError` for settings that the checkpoint does not support."""
    for key in model.of_language_models:
        if shape == "encoder":
            raise UserError(
                f"model.{key} needs a language model, and `{model.ckpt}` is an encoder: leave it"
                " out"
            )
    if model.layers is not None and shape != "causal":
        raise UserError(
            f"model.layers={model.layers} needs a decoder-only model, and `{model.ckpt}` is of"
            f" shape {shape}: leave it out"
        )


def _check_length(model: RMModelConfig, network: PreTrainedModel) -> None:
    """Raise `UserError` if the network reads less than `model.max_input_len`."""
    limit = longest_input(network)
    if limit is not None and model.max_input_len > limit:
        raise UserError(
            f"model.max_input_len={model.max_input_len}, but `{model.ckpt}` reads at most {limit}"
            f" tokens: set it to {limit} or less"
        )

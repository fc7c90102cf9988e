"""Which shape of reward model a checkpoint can be: bidirectional, left to right, or two stacks.

A reward model of shape `encoder` judges a segment at the mark before it, so the network must read
tokens after the mark, which a decoder-only network does not do. For `model.shape=auto`, the config
decides. Whether a single stack reads ahead is also measured on the loaded network, since some
configs do not reveal it (a bidirectional Llama, XLNet).
"""

from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
)

from fgrlhf.reward_models.rm_input import Shape

PROBE_LENGTH = 4  # tokens
CHANGE = 1e-5  # a smaller relative difference is rounding

_DESCRIPTIONS = {
    "seq2seq": "an encoder-decoder",
    "causal": "a single stack that reads from left to right",
    "encoder": "a single stack that reads in both directions",
}


def shape_of_config(config: PretrainedConfig) -> Shape:
    """The shape that a checkpoint's config implies."""
    if config.is_encoder_decoder:
        return "seq2seq"
    kind = type(config)
    # BERT and similar models have a causal variant too, which `is_decoder` switches on
    only_causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING and kind not in MODEL_FOR_MASKED_LM_MAPPING
    if getattr(config, "is_decoder", False) or only_causal:
        return "causal"
    return "encoder"


def other_shape(config: PretrainedConfig, shape: Shape) -> str:
    """The end of an error message: the checkpoint's actual shape, and the setting for it."""
    return (
        f"the checkpoint is {_DESCRIPTIONS[shape]} ({config.model_type}): set model.shape={shape}"
    )


def check_stacks(config: PretrainedConfig, shape: Shape) -> None:
    """Raise `ValueError` if the shape does not match the config's number of stacks."""
    if config.is_encoder_decoder != (shape == "seq2seq"):
        raise ValueError(other_shape(config, shape_of_config(config)))


def check_direction(network: PreTrainedModel, shape: Shape) -> None:
    """Reject a decoder-only network of shape `encoder` and a bidirectional one of shape `causal`.

    Args:
      network: the loaded network; of a language model, its trunk.
    Raises:
      ValueError: the reason and the shape to set.
    """
    if shape == "seq2seq":
        return
    ahead = reads_ahead(network)
    if shape == "encoder" and not ahead:
        raise ValueError(
            f"{other_shape(network.config, 'causal')}. As an encoder it would judge every segment"
            " at its mark, before it has read the segment"
        )
    if shape == "causal" and ahead:
        raise ValueError(other_shape(network.config, "encoder"))


@torch.no_grad()
def reads_ahead(network: PreTrainedModel) -> bool:
    """Whether the hidden state of the first token depends on the tokens after it.

    Two short inputs that differ only after the first token are compared.
    """
    training = network.training
    network.eval()
    try:
        first, second = (_first_state(network, ids) for ids in _probes(network))
    except Exception:  # a network may not accept such short inputs: then the config decides
        return shape_of_config(network.config) != "causal"
    finally:
        network.train(training)
    return bool((first - second).abs().max() > CHANGE * first.abs().max())


def _probes(network: PreTrainedModel) -> tuple[list[int], list[int]]:
    """Two inputs with the same first token and other tokens after it."""
    embeddings: Any = network.get_input_embeddings()
    size: int = embeddings.num_embeddings
    pad = getattr(network.config, "pad_token_id", None)
    usable = [i for i in range(min(size, 10)) if i != pad]
    first, last = usable[0], usable[-1]
    return [first] * PROBE_LENGTH, [first] + [last] * (PROBE_LENGTH - 1)


def _first_state(network: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    ids_BT = torch.tensor([ids], device=network.device)
    output = network.base_model(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT))
    return output[0][0, 0].float()

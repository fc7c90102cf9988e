"""Which shape of reward model a checkpoint can be: bidirectional, left to right, or two stacks.

A reward model of shape `encoder` judges a segment at the mark before it, so the network must read
tokens after the mark, which a decoder-only network does not do. For `model.shape=auto`, the config
decides. Whether a single stack reads ahead is also measured on the loaded network, since some
configs do not reveal it (a bidirectional Llama, XLNet).
"""

from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from fgrlhf.reward_models.network_config import shape_of_config
from fgrlhf.reward_models.spec import Shape

PROBE_LENGTH = 4  # tokens
PADDED_LENGTH = 11  # of the same input with padding
CHANGE = 1e-5  # a smaller relative difference is rounding
# the same for inputs of different lengths, which other kernels compute; in fp32, in half precision
CHANGE_BY_PADDING = 1e-3
CHANGE_BY_PADDING_IN_HALF = 0.05

_DESCRIPTIONS = {
    "seq2seq": "an encoder-decoder",
    "causal": "a single stack that reads from left to right",
    "encoder": "a single stack that reads in both directions",
}


def other_shape(config: PretrainedConfig, shape: Shape) -> str:
    """The end of an error message: the checkpoint's actual shape, and the setting for it."""
    return (
        f"the checkpoint is {_DESCRIPTIONS[shape]} ({config.model_type}): set model.shape={shape}"
    )


def check_stacks(config: PretrainedConfig, shape: Shape) -> None:
    """Raise `ValueError` if the shape does not match the config's number of stacks.

    Of a model with several parts (Gemma 3 with images), the part that reads text can be a reward
    model of shape causal. Of an encoder-decoder with a config for each stack (T5Gemma), the decoder
    is read, as in others.
    """
    if config.get_text_config() is not config and shape == "encoder":
        raise ValueError(
            f"its config ({config.model_type}) holds a config for each of its parts, which a reward"
            " model of shape encoder cannot read: set model.shape to"
            f" {shape_of_config(config)}, or use a model with a single config"
        )
    if config.is_encoder_decoder != (shape == "seq2seq"):
        raise ValueError(other_shape(config, shape_of_config(config)))


def check_direction(network: PreTrainedModel, shape: Shape) -> None:
    """Reject a decoder-only network of shape `encoder` and a bidirectional one of shape `causal`.

    And one whose tokens see no other token: without its CUDA kernel, the attention of MRA is 0.

    Args:
      network: the loaded network; of a language model, its trunk.
    Raises:
      ValueError: the reason and the shape to set.
    """
    if shape == "seq2seq":
        return
    ahead = reads_ahead(network)
    if not ahead and not _reads_back(network):
        raise ValueError(
            f"in {type(network).__name__} of transformers, the state of a token depends on no other"
            " token on this machine, so it cannot read a text: its attention may need a GPU or a"
            " package that is not installed. Use a checkpoint of another family"
        )
    if shape == "encoder" and not ahead:
        raise ValueError(
            f"{other_shape(network.config, 'causal')}. As an encoder it would judge every segment"
            " at its mark, before it has read the segment"
        )
    if shape == "causal" and ahead:
        raise ValueError(other_shape(network.config, "encoder"))


def reads_ahead(network: PreTrainedModel) -> bool:
    """Whether the hidden state of the first token depends on the tokens after it.

    Two short inputs that differ only after the first token are compared.
    """
    depends = _depends_on_others(network, 0)
    # a network may not accept such short inputs: then the config decides
    return shape_of_config(network.config) != "causal" if depends is None else depends


def _reads_back(network: PreTrainedModel) -> bool:
    """Whether the hidden state of the last token depends on the tokens before it."""
    return _depends_on_others(network, -1) is not False


@torch.no_grad()
def _depends_on_others(network: PreTrainedModel, place: int) -> bool | None:
    """Whether the state of the token at a place depends on the other tokens of a short input.

    None: the network cannot read short inputs.

    Args:
      place: 0 for the first token, -1 for the last one.
    """
    training = network.training
    network.eval()
    try:
        order = 1 if place == 0 else -1  # the probes begin with the same token
        one, other = (_state(network, ids[::order], place) for ids in _probes(network))
    except Exception:  # the code of a network's forward pass can raise anything
        return None
    finally:
        network.train(training)
    return bool((one - other).abs().max() > CHANGE * one.abs().max())


@torch.no_grad()
def check_padding(network: PreTrainedModel) -> None:
    """Reject a network that computes something else for an input if it is padded.

    Its scores would depend on the other inputs of a batch.

    Args:
      network: the loaded network; of an encoder-decoder, its encoder is tested.
    Raises:
      ValueError: the reason and the way out.
    """
    training = network.training
    network.eval()
    try:
        alone_TD = _states(network, PROBE_LENGTH)
        padded_TD = _states(network, PADDED_LENGTH)
    except Exception:  # a network may not accept such short inputs: then nothing is known
        return
    finally:
        network.train(training)
    change = (padded_TD - alone_TD).abs().max()
    is_single = network.dtype == torch.float32
    accepted = CHANGE_BY_PADDING if is_single else CHANGE_BY_PADDING_IN_HALF
    if change > accepted * alone_TD.abs().max():
        raise ValueError(
            f"padding changes what {type(network).__name__} computes of a text, so scores would"
            " depend on the other texts of a batch: use a checkpoint of another family"
        )


def _states(network: PreTrainedModel, length: int) -> torch.Tensor:
    """states_TD of a few different tokens, padded on the right to `length`."""
    config = network.config
    stack: Any = network.get_encoder() if config.is_encoder_decoder else network.base_model
    embeddings: Any = network.get_input_embeddings()
    pad = getattr(config, "pad_token_id", None) or 0
    usable = [i for i in range(min(embeddings.num_embeddings, 2 * PROBE_LENGTH)) if i != pad]
    ids = usable[-PROBE_LENGTH:]
    n_padding = length - len(ids)
    ids_1L = torch.tensor([ids + [pad] * n_padding], device=network.device)
    mask_1L = torch.tensor([[1] * len(ids) + [0] * n_padding], device=network.device)
    return stack(input_ids=ids_1L, attention_mask=mask_1L)[0][0, : len(ids)].float()


def _probes(network: PreTrainedModel) -> tuple[list[int], list[int]]:
    """Two inputs with the same first token and other tokens after it."""
    embeddings: Any = network.get_input_embeddings()
    size: int = embeddings.num_embeddings
    pad = getattr(network.config, "pad_token_id", None)
    usable = [i for i in range(min(size, 10)) if i != pad]
    first, last = usable[0], usable[-1]
    return [first] * PROBE_LENGTH, [first] + [last] * (PROBE_LENGTH - 1)


def _state(network: PreTrainedModel, ids: list[int], place: int) -> torch.Tensor:
    ids_BT = torch.tensor([ids], device=network.device)
    output = network.base_model(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT))
    return output[0][0, place].float()

"""What a reward model's language models read: rows of tokens, and how their states are computed."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fgrlhf.kernels.install import shares_cache, shares_prompts
from fgrlhf.kernels.shared_rows import RaggedRows
from fgrlhf.models.encoder_decoder import encode_prompts
from fgrlhf.models.frozen_layers import run_lower, run_upper
from fgrlhf.models.shared_rows import block_mask
from fgrlhf.utils import check_same_shape


@dataclass(frozen=True)
class ScorerBatch:
    """The rows that a language model reads, as `RMCollator` arranges them.

    G prompts (encoder-decoders only), R rows of L tokens, B responses of at most T tokens.

    Attributes:
      prompt_ids_GP, prompt_mask_GP: what the encoder reads; None in a decoder-only model.
      prompt_rows_R: the prompt of each row; None in a decoder-only model.
      ids_RL, mask_RL: tokens of the rows, and 1 on real ones.
      parts_RL: number of the response that a token belongs to, 0 in a prompt, -1 on padding; None
        if no row holds several responses.
      positions_RL: of the tokens, if `parts_RL` is given and the model is decoder-only.
      places_BT, response_mask_BT: place (row * L + column) of the tokens that have an output, and 1
        on real ones.
      lower_RLD: what the frozen layers of a decoder-only model compute of the rows, if it is known.
    """

    prompt_ids_GP: Tensor | None
    prompt_mask_GP: Tensor | None
    prompt_rows_R: Tensor | None
    ids_RL: Tensor
    mask_RL: Tensor
    parts_RL: Tensor | None
    positions_RL: Tensor | None
    places_BT: Tensor
    response_mask_BT: Tensor
    lower_RLD: Tensor | None = None

    def __post_init__(self):
        check_same_shape(ids_RL=self.ids_RL, mask_RL=self.mask_RL)
        check_same_shape(places_BT=self.places_BT, response_mask_BT=self.response_mask_BT)

    def attention_mask(self) -> Tensor:
        """The mask of the rows: (R, L) if every row has one response, else (R, 1, L, L)."""
        if self.parts_RL is None:
            return self.mask_RL
        return block_mask(self.parts_RL, self.mask_RL.bool())

    def layout(self) -> RaggedRows | None:
        """The parts of rows that hold several responses, for attention on a CPU.

        A GPU is faster with one mask for all rows than with many small products.
        """
        if self.parts_RL is None or self.parts_RL.device.type != "cpu":
            return None
        lengths = []
        for parts in self.parts_RL.tolist():
            counts = [0] * (max(parts) + 1)
            for part in parts:
                if part >= 0:
                    counts[part] += 1
            lengths.append(counts)
        return RaggedRows.of(lengths, self.parts_RL.device)

    def of_responses(self, rows: Tensor) -> Tensor:
        """Numbers of the rows (R, L, ...) -> those of the responses (B, T, ...)."""
        flat = rows.flatten(0, 1).index_select(0, self.places_BT.flatten())
        return flat.view(*self.places_BT.shape, *rows.shape[2:])

    def at_last_tokens(self, values_BTF: Tensor) -> Tensor:
        """(B, F): numbers at the last real token of each response."""
        rows_B = torch.arange(len(values_BTF), device=values_BTF.device)
        return values_BTF[rows_B, self.response_mask_BT.sum(1) - 1]

    def into_rows(self, features_BTF: Tensor) -> Tensor:
        """features_RLF: features of the responses, 0 elsewhere.

        The first token of a response is left out: nothing predicts a decoder's start token, and the
        last token of a prompt is common to its responses.
        """
        real_BT = self.response_mask_BT[:, 1:].bool()
        flat = features_BTF.new_zeros(self.ids_RL.numel(), features_BTF.shape[-1])
        flat = flat.index_copy(0, self.places_BT[:, 1:][real_BT], features_BTF[:, 1:][real_BT])
        return flat.view(*self.ids_RL.shape, -1)


def scorer_batch(
    input_ids: Tensor,
    attention_mask: Tensor,
    places: Tensor,
    response_mask: Tensor,
    decoder_input_ids: Tensor | None = None,
    decoder_attention_mask: Tensor | None = None,
    prompt_rows: Tensor | None = None,
    parts: Tensor | None = None,
    position_ids: Tensor | None = None,
    lower: Tensor | None = None,
) -> ScorerBatch:
    """The output of `RMCollator` as a `ScorerBatch`.

    Args:
      input_ids, attention_mask: of the encoder, or of the rows of a decoder-only model.
      decoder_input_ids, decoder_attention_mask: of the rows of an encoder-decoder.
      places, response_mask, prompt_rows, parts, position_ids, lower: see `ScorerBatch`.
    """
    if decoder_input_ids is None or decoder_attention_mask is None:
        return ScorerBatch(
            prompt_ids_GP=None,
            prompt_mask_GP=None,
            prompt_rows_R=None,
            ids_RL=input_ids,
            mask_RL=attention_mask,
            parts_RL=parts,
            positions_RL=position_ids,
            places_BT=places,
            response_mask_BT=response_mask,
            lower_RLD=lower,
        )
    return ScorerBatch(
        prompt_ids_GP=input_ids,
        prompt_mask_GP=attention_mask,
        prompt_rows_R=prompt_rows,
        ids_RL=decoder_input_ids,
        mask_RL=decoder_attention_mask,
        parts_RL=parts,
        positions_RL=None,
        places_BT=places,
        response_mask_BT=response_mask,
    )


def hidden_states(model: Any, batch: ScorerBatch, embeddings_RLD: Tensor | None = None) -> Tensor:
    """hidden_RLD, the last hidden states of the rows.

    An encoder reads each prompt once. Its states, and the keys and values that the decoder's
    cross-attention computes from them, are shared by the rows of a prompt where the model's
    attention can do that (kernels/attention.py).

    Args:
      embeddings_RLD: read in place of the tokens' embeddings.
    """
    read: dict[str, Tensor] = {"input_ids": batch.ids_RL}
    if embeddings_RLD is not None:
        read = {"inputs_embeds": embeddings_RLD}
    if not model.config.is_encoder_decoder:
        return model.base_model(**read, **_causal_arguments(model, batch)).last_hidden_state

    prompt_ids_GP, prompt_mask_GP = batch.prompt_ids_GP, batch.prompt_mask_GP
    rows_R = batch.prompt_rows_R
    assert prompt_ids_GP is not None and prompt_mask_GP is not None and rows_R is not None
    encoded = encode_prompts(model, prompt_ids_GP, prompt_mask_GP)
    encoded_mask = prompt_mask_GP
    if not (shares_prompts(model) and _in_equal_groups(rows_R, len(encoded))):
        encoded = encoded[rows_R]
        encoded_mask = encoded_mask[rows_R]
    return model.get_decoder()(
        **read,
        attention_mask=batch.attention_mask(),
        encoder_hidden_states=encoded,
        encoder_attention_mask=encoded_mask,
        use_cache=False,
    ).last_hidden_state


def lower_states(model: Any, n_upper: int, batch: ScorerBatch) -> Tensor:
    """lower_RLD: the states below the top `n_upper` layers of a decoder-only model."""
    arguments = _causal_arguments(model, batch)
    with torch.no_grad():
        return run_lower(model, n_upper, input_ids=batch.ids_RL, **arguments)


def upper_states(model: Any, n_upper: int, batch: ScorerBatch, lower_RLD: Tensor) -> Tensor:
    """hidden_RLD of a decoder-only model, from the states below its top `n_upper` layers."""
    arguments = _causal_arguments(model, batch)
    return run_upper(model, n_upper, lower_RLD, input_ids=batch.ids_RL, **arguments)


def _causal_arguments(model: Any, batch: ScorerBatch) -> dict[str, Any]:
    """Arguments of a decoder-only model for these rows, other than the tokens."""
    arguments: dict[str, Any] = {"attention_mask": batch.attention_mask(), "use_cache": False}
    if batch.positions_RL is not None:
        arguments["position_ids"] = batch.positions_RL
        if shares_cache(model):  # its attention reads the layout instead of the mask
            arguments["shared_rows"] = batch.layout()
    return arguments


def _in_equal_groups(prompt_rows_R: Tensor, num_prompts: int) -> bool:
    """Whether the rows are 0 .. 0 1 .. 1 2 .. 2 ..., the same number of each prompt."""
    rows_per_prompt = len(prompt_rows_R) // num_prompts
    prompts = torch.arange(num_prompts, device=prompt_rows_R.device)
    return torch.equal(prompts.repeat_interleave(rows_per_prompt), prompt_rows_R)

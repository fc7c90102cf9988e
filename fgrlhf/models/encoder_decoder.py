"""Encoder-decoder policies: T5, mT5, BART, Marian, M2M100 and others with selectable attention.

The encoder reads a prompt once for all its responses.

The decoder may start every response with a prefix, such as the target language of a multilingual
translation model. transformers forces that token in decoding. A forced token is no decision of the
policy, so it belongs to the prompt: with the prefix l_1 .. l_n and the decoder's start token s,

    log pi(a_t | x, y_<t)    is computed from the decoder input    s l_1 .. l_n y_1 .. y_(t-1)

and neither log-probabilities, KL and entropy nor rewards and advantages have a place for l_i.

The prefix is stored in the model's config, under `CONFIG_KEY`, so that later stages read it.

Axes here, besides those of fgrlhf/types.py: M tokens that the decoder reads before a response (its
start token and the n tokens of the prefix, M = n + 1), I = n + T tokens of a decoder input, and C
places of a decoder's cache.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, StaticCache

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.kernels.install import share_prompts, shares_prompts
from fgrlhf.kernels.shared_cache import Slot
from fgrlhf.models.base import Policy
from fgrlhf.models.chat import special_ids
from fgrlhf.models.loading import constants_of, max_positions
from fgrlhf.models.packing import pack_responses
from fgrlhf.models.recorded_steps import Recording, all_or_none, can_record, room_for
from fgrlhf.models.sharding import communicates
from fgrlhf.models.shared_rows import group_equal_prompts, uniform_group_size
from fgrlhf.models.trunk import text_config

CONFIG_KEY = "decoder_prefix"
# Prompt tokens in one pass of the encoder, padding included. A GPU is not busy with so few, but T5
# needs memory for every pair of tokens of a prompt.
ENCODED_AT_ONCE = 4096
ENCODED_AT_ONCE_ON_GPU = 32_768
PAIRS_AT_ONCE_ON_GPU = ENCODED_AT_ONCE_ON_GPU * 1024
# Model types whose decoder recognises padding by its token: it has no position (M2M100, NLLB,
# SeamlessM4T), or is not seen (T5Gemma).
SKIP_PADDING = frozenset(
    {"m2m_100", "nllb-moe", "seamless_m4t", "seamless_m4t_v2", "t5gemma", "t5gemma2"}
)


class EncoderDecoderPolicy(Policy):
    """A policy whose encoder reads the prompt and whose decoder writes the response.

    Args:
      decoder_prefix: tokens, separated by spaces, that the decoder reads before every response
        (see above); None: those in the model's config.

    Raises:
      UserError: left padding is requested, but the model has absolute positions; or the prefix has
        an unknown token.
    """

    default_padding_side = "right"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer,
        max_input_len: int = 1024,
        padding_side: str | None = None,
        chat_template: bool | None = None,
        decoder_prefix: str | None = None,
    ):
        if padding_side == "left" and _max_positions(model) is not None:
            raise UserError(
                f"model.input_padding_side is `left`, but {type(model).__name__}"
                " counts its positions from the first column, so padding there would move every"
                " prompt: set it to right, or leave it out"
            )
        _freeze_unread(model)
        start = getattr(model.config, "decoder_start_token_id", None)
        assert model.generation_config is not None
        model.generation_config.decoder_start_token_id = start  # is saved, and read by `generate`
        share_prompts(model)
        super().__init__(model, tokenizer, max_input_len, padding_side, chat_template)
        stored = stored_prefix(model.config)
        self.decoder_prefix = stored if decoder_prefix is None else decoder_prefix
        self.decoder_prefix_ids = decoder_prefix_ids(tokenizer, self.decoder_prefix)
        if self.decoder_prefix != stored:
            setattr(model.config, CONFIG_KEY, self.decoder_prefix)  # is saved with the model

    @property
    def _forced_id(self) -> int | None:
        ids = self.decoder_prefix_ids
        return ids[0] if len(ids) == 1 else None  # transformers forces one token

    @property
    def decoder_start_ids(self) -> list[int]:
        """What the decoder reads before a response: its start token and the prefix."""
        return [self.model.config.decoder_start_token_id, *self.decoder_prefix_ids]

    @property
    def eos_ids(self) -> list[int]:
        """Every token that ends a response in sampling.

        Some decoders ignore a padding token when they read a whole text, but not when they read
        token by token. After a sampled padding token, sampling and scoring would therefore give
        different probabilities, so a padding token ends a response.
        """
        eos_ids = super().eos_ids
        pad_id = text_config(self.model).pad_token_id
        if self.model.config.model_type in SKIP_PADDING and pad_id not in (None, *eos_ids):
            eos_ids.append(pad_id)
        return eos_ids

    def read_before(self, prompt_ids_BP: Tensor, prompt_mask_BP: Tensor) -> Tensor:
        return prompt_ids_BP.new_tensor(self.decoder_start_ids).expand(len(prompt_ids_BP), -1)

    def hidden(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        response_ids_BT: Tensor,
        response_mask_BT: Tensor,
    ) -> Tensor:
        first_G, group_B = group_equal_prompts(prompt_ids_BP, prompt_mask_BP)
        mask_GP = prompt_mask_BP[first_G]
        encoded_GPD = self._encode(prompt_ids_BP[first_G], mask_GP)
        # The decoder reads the start token, the prefix (n tokens) and the response without its last
        # token. Column n + t predicts response token t. The first n columns predict the prefix and
        # are left out below.
        B = len(response_ids_BT)
        n = len(self.decoder_prefix_ids)
        start_BM = self.read_before(prompt_ids_BP, prompt_mask_BP)
        input_ids_BI = torch.cat([start_BM, response_ids_BT[:, :-1]], 1)
        if self._can_pack:
            # start token and prefix are real; the last response token is read by no column
            input_mask_BI = torch.cat([response_mask_BT.new_ones(B, n), response_mask_BT], 1)
            packing = pack_responses(input_mask_BI, group_B)
            ids_RL = packing.pack(input_ids_BI)
            hidden_RLD = self._decode(ids_RL, encoded_GPD, mask_GP, packing.mask())
            return packing.unpack(hidden_RLD)[:, n:]
        # the decoder needs as many rows per encoder state: without that, one state per row
        if uniform_group_size(group_B) is None:
            encoded_GPD = encoded_GPD[group_B]
            mask_GP = mask_GP[group_B]
        return self._decode(input_ids_BI, encoded_GPD, mask_GP)[:, n:]

    @property
    def _can_record(self) -> bool:
        """Whether decoding steps are recorded.

        transformers says which models allow it. Their attention must read masks of True and False.
        """
        model = self.model
        if not _reads_boolean_masks(model) or _has_windows(model):
            return False
        return can_record(model) and model._can_compile_fullgraph

    @property
    def _can_pack(self) -> bool:
        return can_pack(self.model)

    def _encode(self, prompt_ids_GP: Tensor, prompt_mask_GP: Tensor) -> Tensor:
        return encode_prompts(self.model, prompt_ids_GP, prompt_mask_GP)

    def _decode(
        self,
        ids_RL: Tensor,
        encoded_GPD: Tensor,
        mask_GP: Tensor,
        mask_R1LL: Tensor | None = None,
    ) -> Tensor:
        """hidden_RLD.

        Args:
          ids_RL: decoder input. The rows of a prompt are consecutive, the same number per prompt.
          mask_R1LL: which token sees which; None: a token sees itself and the tokens before it.
        """
        num_rows = len(ids_RL) // len(encoded_GPD)
        encoded, mask = self._for_decoder(encoded_GPD, mask_GP, num_rows)
        return self.model.get_decoder()(
            input_ids=ids_RL,
            attention_mask=mask_R1LL,
            encoder_hidden_states=encoded,
            encoder_attention_mask=mask,
            use_cache=False,
        ).last_hidden_state

    def _for_decoder(
        self, encoded_GPD: Tensor, mask_GP: Tensor, num_rows: int
    ) -> tuple[Tensor, Tensor]:
        """Encoder states and mask for `num_rows` decoder rows per prompt.

        The attention of transformers needs them once per row, that of kernels/attention.py once per
        prompt.
        """
        if shares_prompts(self.model):
            return encoded_GPD, mask_GP
        return encoded_GPD.repeat_interleave(num_rows, 0), mask_GP.repeat_interleave(num_rows, 0)

    def _steps(
        self,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        num_samples: int,
        max_new_tokens: int,
        recorded: bool | None = None,
    ) -> "EncoderDecoderSteps":
        is_recorded = self._can_record if recorded is None else recorded
        encoded_GPD = self._encode(prompt_ids_GP, prompt_mask_GP)
        encoded, mask = self._for_decoder(encoded_GPD, prompt_mask_GP, num_samples)
        rows_per_state = num_samples if shares_prompts(self.model) else 1
        return EncoderDecoderSteps(
            self.model,
            encoded,
            mask,
            rows_per_state,
            self.decoder_start_ids,
            max_new_tokens if is_recorded else None,
        )

    def _beam_search_inputs(self, prompt_ids_GP: Tensor) -> dict[str, Tensor]:
        """The decoder's start; `generate` of transformers would leave the prefix out."""
        return {"decoder_input_ids": self.read_before(prompt_ids_GP, prompt_ids_GP)}

    def check_fits(self, prompt_tokens: int, response_tokens: int) -> None:
        config = text_config(self.model)
        decoded = len(self.decoder_prefix_ids) + response_tokens
        limits = (max_positions(config, "encoder"), max_positions(config, "decoder"))
        for stack, needed, limit in zip(("encoder", "decoder"), (prompt_tokens, decoded), limits):
            if limit is not None and needed > limit:
                raise UserError(
                    f"prompts of {prompt_tokens} tokens and responses of up to {response_tokens}"
                    f" need {needed} positions in the {stack}, {type(self.model).__name__} has"
                    f" {limit}: lower max_input_len or max_generated_len"
                )


T5Policy = EncoderDecoderPolicy  # the paper's name


def _freeze_unread(model: PreTrainedModel) -> None:
    """Freeze the parameters that no forward pass reads, because DDP fails without their gradients.

    These are the projections of LED's global tokens, of which a policy has none. Constants, such
    as the positions of Marian and Pegasus, get no gradient either.
    """
    constants = constants_of(model)
    for name, parameter in model.named_parameters():
        if name in constants or (model.config.model_type == "led" and "_global." in name):
            parameter.requires_grad_(False)


def can_pack(model: PreTrainedModel) -> bool:
    """Whether several responses can be one row of the decoder (packing.py).

    The model must use relative positions only, and its attention must accept a mask for each pair
    of tokens.
    """
    return _reads_boolean_masks(model) and _max_positions(model) is None


def _reads_boolean_masks(model: PreTrainedModel) -> bool:
    """Whether attention is PyTorch's or ours; eager attention would add True and False."""
    return model.config._attn_implementation == "sdpa" or shares_prompts(model)


def encode_prompts(model: PreTrainedModel, ids_GP: Tensor, mask_GP: Tensor) -> Tensor:
    """encoded_GPD, the encoder's states, 0 on padding.

    Prompts of similar length go through the encoder together, without needless padding. In the
    updates of a sharded model all of them do, because each process must make as many passes.
    """
    P = ids_GP.shape[1]
    limit = ids_GP.numel() if communicates(model) else encoded_at_once(P, ids_GP.device)
    # prompts of similar length together: the padding within a pass is short
    encoder = model.get_encoder()
    lengths_G = mask_GP.sum(1)
    order_G = lengths_G.argsort(stable=True)
    encoded_parts = []
    for rows in _split_by_tokens(order_G, lengths_G[order_G].tolist(), limit):
        # columns that hold a token of one of these prompts
        columns = mask_GP[rows].any(0).nonzero()[:, 0].tolist() or [0]
        start = columns[0]
        end = columns[-1] + 1
        encoded = encoder(
            input_ids=ids_GP[rows, start:end],
            attention_mask=mask_GP[rows, start:end],
        ).last_hidden_state
        # back to P columns, so that all parts can be joined
        encoded_parts.append(nn.functional.pad(encoded, (0, 0, start, P - end)))
    back_to_G = order_G.argsort()
    return torch.cat(encoded_parts)[back_to_G]


def encoded_at_once(P: int, device: torch.device) -> int:
    """The most tokens in one pass of the encoder, for prompts of up to P tokens."""
    if device.type == "cpu":
        return ENCODED_AT_ONCE
    of_all_pairs = PAIRS_AT_ONCE_ON_GPU // P
    return min(max(ENCODED_AT_ONCE, of_all_pairs), ENCODED_AT_ONCE_ON_GPU)


class EncoderDecoderSteps:
    """`Steps` of an encoder-decoder.

    Args:
      model: the language model.
      encoded_GPD: encoder states; each row serves `rows_per_state` responses.
      prompt_mask_GP: 1 on real tokens of the prompts.
      rows_per_state: responses per row of `encoded_GPD`. More than 1 needs `shares_prompts(model)`.
      start_ids: what the decoder reads before a response.
      recorded_tokens: the length limit of responses whose steps are recorded (recorded_steps.py);
        None: steps are not recorded.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        encoded_GPD: Tensor,
        prompt_mask_GP: Tensor,
        rows_per_state: int,
        start_ids: Sequence[int],
        recorded_tokens: int | None = None,
    ):
        self.decoder = model.get_decoder()
        self.start_ids = start_ids
        self.encoded_GPD = encoded_GPD
        self.prompt_mask_GP = prompt_mask_GP
        self.rows_per_state = rows_per_state
        # a decoder with sliding windows keeps their last keys only
        config = self.decoder.config if _has_windows(model) else None
        self.slot = None
        self.recording = None
        own_cache = DynamicCache(config=config)
        if recorded_tokens is not None:
            C = room_for(len(start_ids) + recorded_tokens)
            self.slot = Slot(C, encoded_GPD.device, taken=len(start_ids))
            self.recording = Recording(model)
            own_cache = StaticCache(self.decoder.config, C)
            # transformers would read the values of a mask with two axes on the CPU, which cannot be
            # recorded; one of four axes is passed on unchanged
            self.prompt_mask_GP = prompt_mask_GP.bool()[:, None, None]
        self.cache = EncoderDecoderCache(own_cache, DynamicCache())

    def first(self) -> Tensor:
        B = len(self.encoded_GPD) * self.rows_per_state
        start_M = torch.tensor(self.start_ids, device=self.encoded_GPD.device)
        return self._read(start_M.expand(B, -1))

    def next(self, ids_B: Tensor) -> Tensor:
        if self.recording is None:
            return self._next(ids_B)
        return self.recording(self._next, ids_B)

    def _next(self, ids_B: Tensor) -> Tensor:
        written_111C = None
        if self.slot is not None:
            self.slot.advance()
            written_111C = ~self.slot.unwritten_T[None, None, None]
        return self._read(ids_B[:, None], written_111C)

    def _read(self, ids_BM: Tensor, mask_111C: Tensor | None = None) -> Tensor:
        """The hidden state after the last of these tokens, hidden_BD.

        Args:
          ids_BM: the M tokens before the response, or one token of each response.
          mask_111C: which places of the cache are seen; None: all that are written.
        """
        return self.decoder(
            input_ids=ids_BM,
            attention_mask=mask_111C,
            encoder_hidden_states=self.encoded_GPD,
            encoder_attention_mask=self.prompt_mask_GP,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, -1]

    def keepable(self, live_B: Tensor) -> Tensor:
        """All K responses of every prompt that has a live one: they share their keys."""
        if self.slot is not None:
            return all_or_none(live_B)
        live_G = live_B.view(-1, self.rows_per_state).any(1)
        return live_G.repeat_interleave(self.rows_per_state).nonzero()[:, 0]

    def keep(self, rows: Tensor) -> None:
        groups = rows[:: self.rows_per_state] // self.rows_per_state
        self.encoded_GPD = self.encoded_GPD[groups]
        self.prompt_mask_GP = self.prompt_mask_GP[groups]
        self.cache.self_attention_cache.batch_select_indices(rows)
        self.cache.cross_attention_cache.batch_select_indices(groups)


def _has_windows(model: PreTrainedModel) -> bool:
    """Whether some layers of the decoder see the last tokens only, as T5Gemma's."""
    return getattr(model.get_decoder().config, "layer_types", None) is not None


def _max_positions(model: PreTrainedModel) -> int | None:
    """Positions of the decoder; None with relative positions only (T5)."""
    return max_positions(text_config(model), "decoder")


def _split_by_tokens(order: Tensor, lengths: Sequence[int], limit: int) -> list[Tensor]:
    """Parts of `order` with at most `limit` tokens each after padding (or a single row).

    Args:
      order: rows by increasing length.
      lengths: their lengths, in the same order.
    """
    sizes = [0]
    for length in lengths:
        tokens_with_this_row = (sizes[-1] + 1) * length  # it is the longest of the part
        if sizes[-1] and tokens_with_this_row > limit:
            sizes.append(0)
        sizes[-1] += 1
    return list(order.split(sizes))


# ---- the prefix of responses ---------------------------------------------------------------------


def decoder_prefix_ids(tokenizer, prefix: str) -> list[int]:
    """The ids of the prefix, tokens that are separated by spaces; [] for an empty prefix.

    Raises:
      UserError: a part of the prefix is not a token of the vocabulary, or ends or pads texts.
    """
    vocabulary = tokenizer.get_vocab()
    ids = []
    for token in prefix.split():
        if token not in vocabulary:
            raise UserError(
                f"decoder_prefix has {shorten(repr(token), 40)}, which is not a token of the"
                " policy's tokenizer: give token texts separated by spaces, such as `deu_Latn`"
                f" (NLLB) or `__de__` (M2M100){_languages(tokenizer)}"
            )
        if token in (tokenizer.eos_token, tokenizer.pad_token):
            raise UserError(
                f"decoder_prefix has {shorten(repr(token), 40)}, the token with which texts end or"
                " are padded: leave it out. The decoder's own start token is added in any case"
            )
        ids.append(vocabulary[token])
    return ids


def _languages(tokenizer) -> str:
    """Examples of special tokens, for the message."""
    special = tokenizer.convert_ids_to_tokens(sorted(special_ids(tokenizer)))
    examples = [token for token in special if token not in (tokenizer.eos_token, "<unk>")]
    return f". Special tokens are {shorten(', '.join(examples), 120)}" if examples else ""


def stored_prefix(config) -> str:
    """The prefix in a model's config; "" if there is none.

    Raises:
      UserError: it is not a text.
    """
    prefix = getattr(config, CONFIG_KEY, None)
    if prefix is None:
        return ""
    if not isinstance(prefix, str):
        raise UserError(
            f"{CONFIG_KEY} in the model's config.json is {shorten(repr(prefix), 40)}, which is not"
            " a text: correct it, or set decoder_prefix"
        )
    return prefix

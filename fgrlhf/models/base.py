"""`Policy`: the base class of encoder-decoder and decoder-only policies."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.sections import Sampling
from fgrlhf.kernels.install import speed_up
from fgrlhf.kernels.layers import packed_weights
from fgrlhf.models.chat import (
    AnswerTokens,
    load_chat_template,
    special_ids,
    without_last_tokens,
)
from fgrlhf.models.decoding import (
    Repetitions,
    Steps,
    decode,
    response_mask,
    uniform_numbers,
    without_padding,
)
from fgrlhf.models.dialogs import dialog_text, fit_dialog
from fgrlhf.models.frozen_layers import FrozenLayers
from fgrlhf.models.logprobs import (
    check_logprobs,
    chosen_logprobs,
    log_kept_mass_of_states,
    project_states,
)
from fgrlhf.models.lora import ADAPTERS, has_adapters, merged_weights, save_adapters
from fgrlhf.models.provenance import ModelSource
from fgrlhf.models.saving import (
    NEUTRAL_BEAM_SETTINGS,
    check_written,
    forget_last_call,
    generation_settings,
    name_as_before,
    written_with,
)
from fgrlhf.models.top_layers import count_layers, train_top_layers
from fgrlhf.text_types import Prompt
from fgrlhf.types import HEARD, PADDING, WRITTEN, Divergence, PolicyOutput, Response

# Special tokens with which models end a text in pretraining. The generation config of an instruct
# model may name only the end of a turn.
ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>")
NO_CHARACTERS = (-1, -1)  # the offsets of a token that is no part of the text
COUNTED_AT_ONCE = 256  # prompts whose tokens are counted in one call of the tokenizer


class Policy(nn.Module, ABC):
    """A language model that encodes prompts, samples responses and computes log-probabilities.

    The distribution over the next token a_t, given prompt x, response prefix y_<t and temperature
    tau, is

        log pi(a_t | x, y_<t) = z_t[a_t] / tau - logsumexp(z_t / tau)

    A repetition penalty changes z_t first (decoding.py).

    Subclasses implement `hidden` (how prompt and response enter the network) and `_steps` (how
    responses are decoded). A forward pass returns the log-probabilities of the given tokens only
    (logprobs.py), and the prompt is computed once for all its responses.

    Args:
      model: a language model of transformers.
      tokenizer: its tokenizer.
      max_input_len: longer prompts are cut at their end, because a prompt begins with its request.
        Dialogs lose their oldest turns instead.
      padding_side: side on which prompts are padded; None: the default of the class.
      chat_template: True: prompts are turns of a conversation; None: only if the tokenizer has a
        template.

    Attributes:
      source: where its pretrained weights come from, if that is known; saved with the model.

    Raises:
      UserError: the tokenizer cannot pad, or its chat template cannot be used.
    """

    default_padding_side: str
    decoder_prefix: str = ""  # see encoder_decoder.py; only encoder-decoders have one
    model: PreTrainedModel
    source: ModelSource | None = None
    frozen_layers: FrozenLayers | None = None  # see `train_top_layers`

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer,
        max_input_len: int = 1024,
        padding_side: str | None = None,
        chat_template: bool | None = None,
    ):
        super().__init__()
        self.model = speed_up(model)
        self._use_cache = getattr(model.config, "use_cache", None)  # of the checkpoint
        self.tokenizer = tokenizer
        self.max_input_len = max_input_len
        tokenizer.padding_side = padding_side or self.default_padding_side
        # a prompt begins with its request, so its end is cut
        tokenizer.truncation_side = "right"
        self.chat = load_chat_template(tokenizer, chat_template, max_input_len)
        self.turn_end_ids = self.chat.end_ids if self.chat else []
        if tokenizer.pad_token_id is None:
            self._pad_with_eos()

    def _pad_with_eos(self) -> None:
        """Use the end-of-sequence token for padding. The masks tell them apart."""
        tokenizer = self.tokenizer
        end = tokenizer.eos_token
        if end is None:
            ids = [*self._configured_eos_ids(), *self.turn_end_ids]
            known = [i for i in ids if isinstance(i, int) and 0 <= i < len(tokenizer)]
            end = tokenizer.convert_ids_to_tokens(known[0]) if known else None
        if end is None:
            raise UserError(
                f"the tokenizer of {name_of(tokenizer)} has neither a padding token nor an"
                " end-of-sequence token, so responses cannot be padded: set `pad_token` or"
                " `eos_token` in its tokenizer_config.json"
            )
        tokenizer.pad_token = end

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def hidden_size(self) -> int:
        """The width of the last hidden states. OPT-350M narrows them before its output layer."""
        output_layer: Any = self.model.get_output_embeddings()
        return output_layer.in_features

    @property
    def num_embeddings(self) -> int:
        """The number of token ids that the model can read."""
        return self.model.get_input_embeddings().num_embeddings  # pyright: ignore[reportReturnType]

    @property
    def eos_ids(self) -> list[int]:
        """Every token that ends a response in sampling.

        Raises:
          UserError: neither the model nor its tokenizer has one.
        """
        eos_ids = self._configured_eos_ids()
        eos_ids += [i for i in self.turn_end_ids if i not in eos_ids]
        if not eos_ids:
            raise UserError(
                f"the model {name_of(self.tokenizer)} has no end-of-sequence token, so no response"
                " could end: set `eos_token` in its tokenizer_config.json, or `eos_token_id` in"
                " its generation_config.json"
            )
        # a base model's end of text also ends a response if only the end of a turn is configured
        special = sorted(special_ids(self.tokenizer))
        names = self.tokenizer.convert_ids_to_tokens(special)
        ends_of_text = [i for i, name in zip(special, names) if name in ENDS_OF_TEXT]
        return eos_ids + [i for i in ends_of_text if i not in eos_ids]

    def _configured_eos_ids(self) -> list[int]:
        """The end-of-sequence tokens of the generation config, else that of the tokenizer."""
        eos = self.model.generation_config.eos_token_id
        if eos is None or eos == []:
            eos = self.tokenizer.eos_token_id
        if eos is None:
            return []
        return list(eos) if isinstance(eos, (list, tuple)) else [eos]

    @property
    def end_id(self) -> int:
        """The token that ends a response in training data.

        In a chat model this is the end of the model's turn, else the first end-of-sequence token.
        """
        return self.turn_end_ids[0] if self.turn_end_ids else self.eos_ids[0]

    @property
    def lead(self) -> str:
        """What the chat template writes before an answer's text; see `ChatTemplate`."""
        return ""

    # ---- frozen layers ---------------------------------------------------------------------------

    def train_top_layers(self, n: int) -> None:
        """Freeze the embeddings and all but the top n layers.

        With adapters, which are on the top n layers only, everything else is frozen already.

        Raises:
          UserError: the model has fewer than n layers.
        """
        if not has_adapters(self.model):
            train_top_layers(self.model, n, "train_top_layers")
        # with all layers trained, there is nothing below them to keep
        if n < count_layers(self.model) and self._can_split:
            self.frozen_layers = FrozenLayers(n)

    def copy_sharing_frozen(self) -> Self:
        """A copy with trained layers of its own, which shares the frozen ones."""
        # deepcopy takes the objects that its memo has already, instead of copying them
        shared: dict[int, Any] = {id(self.tokenizer): self.tokenizer, id(self.chat): self.chat}
        for parameter in self.parameters():
            if not parameter.requires_grad:
                shared[id(parameter)] = parameter
        return deepcopy(self, shared)

    # ---- prompts ---------------------------------------------------------------------------------

    def prompt_lengths(self, prompts: Sequence[Prompt | str]) -> list[int]:
        """Tokens of each prompt before truncation, with chat template and special tokens."""
        lengths = []
        # a tokenizer's batch is held in memory as Python lists; data sets have many prompts
        for start in range(0, len(prompts), COUNTED_AT_ONCE):
            part = map(_as_prompt, prompts[start : start + COUNTED_AT_ONCE])
            texts = [self.chat.write(prompt) if self.chat else prompt.text for prompt in part]
            lengths += self._lengths(texts)
        return lengths

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text; a chat template has written the special tokens already."""
        tokens = self.tokenizer(list(texts), add_special_tokens=self.chat is None, verbose=False)
        return [len(ids_P) for ids_P in tokens["input_ids"]]

    def tokenize(self, prompts: Sequence[Prompt | str], **options: Any):
        """The tokenizer's output for prompts as this policy reads them.

        A prompt of a chat model becomes turns of a conversation. Long prompts are truncated.
        """
        texts = [self._prompt_text(_as_prompt(prompt)) for prompt in prompts]
        return self.tokenizer(
            texts,
            truncation=True,
            max_length=self.max_input_len,
            add_special_tokens=self.chat is None,  # a chat template writes special tokens itself
            **options,
        )

    def _prompt_text(self, prompt: Prompt) -> str:
        """The text of a prompt for the tokenizer, which truncates it if it is still too long."""
        if self.chat:
            return self.chat.turns(prompt)
        if not prompt.messages or self._lengths([prompt.text])[0] <= self.max_input_len:
            return prompt.text
        return fit_dialog(
            prompt.messages,
            dialog_text,
            lambda text: self._lengths([text])[0],
            lambda text, excess: without_last_tokens(self.tokenizer, text, excess),
            self.max_input_len,
        )

    def encode(self, prompts: Sequence[Prompt | str]) -> tuple[Tensor, Tensor]:
        """Prompts -> (prompt_ids_BP, prompt_mask_BP), padded to the longest prompt.

        Raises:
          UserError: a prompt has no tokens.
        """
        batch = self.tokenize(prompts, padding=True, return_tensors="pt")
        for prompt, length in zip(prompts, batch["attention_mask"].sum(1).tolist()):
            if length == 0:
                text = _as_prompt(prompt).text
                raise UserError(
                    f"a prompt has no tokens (its text is {shorten(repr(text), 80)}), so there is"
                    " nothing to respond to: remove it from the data"
                )
        # a policy without weights, on the meta device, can encode too
        device = torch.device("cpu") if self.device.type == "meta" else self.device
        return batch["input_ids"].to(device), batch["attention_mask"].to(device)

    # ---- responses -------------------------------------------------------------------------------

    def tokenize_responses(
        self, prompts: Sequence[Prompt], texts: Sequence[str], offsets: bool = False
    ) -> list[AnswerTokens]:
        """The tokens of given responses, each with its end token, as this policy learns them.

        Args:
          offsets: whether the characters of each token are wanted; this needs a fast tokenizer.

        Raises:
          UserError: a chat template cannot write a response after its prompt.
        """
        tokens = self.tokenizer(
            text_target=list(texts),
            add_special_tokens=False,
            return_offsets_mapping=offsets,
            verbose=False,
        )
        results = []
        for i, ids in enumerate(tokens["input_ids"]):
            characters = tokens["offset_mapping"][i] if offsets else None
            results.append(self._with_end(AnswerTokens(ids, characters)))
        return results

    def _with_end(self, answer: AnswerTokens) -> AnswerTokens:
        """The tokens of a response with its end token, which has no characters."""
        ids = [*answer.ids, self.end_id]
        if answer.offsets is None:
            return AnswerTokens(ids, None)
        return AnswerTokens(ids, [*answer.offsets, NO_CHARACTERS])

    @torch.no_grad()
    def generate(
        self,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        sampling: Sampling,
        row_seeds: Sequence[int] | None = None,
        num_samples: int = 1,
        temperature: float = 1.0,
        stop_ids: Sequence[int] = (),
        given_GT: Tensor | None = None,
    ) -> Response:
        """Sample `num_samples` responses per prompt; those of a prompt are consecutive rows.

        The model is in eval mode while it samples.

        Args:
          row_seeds: one seed per response (G * num_samples), required with `do_sample`.
          temperature: of the response's log-probabilities (see the class), not of the sampling.
          stop_ids: tokens that end a response, besides the end-of-sequence tokens; not read by beam
            search.
          given_GT: the first tokens of each prompt's responses, then -1; None: all are drawn.

        Raises:
          UserError: prompt and response need more positions than the model has, or the logits are
            not finite.
          ValueError: beam search is asked for several responses per prompt, or `row_seeds` are
            missing or too few.
        """
        if sampling.num_beams > 1 and num_samples > 1:
            raise ValueError(
                f"num_samples is {num_samples}, but beam search (num_beams={sampling.num_beams})"
                " finds one response per prompt: set num_samples=1, or num_beams=1"
            )
        # refused before anything is computed, rather than at the token that has no position
        self.check_fits(prompt_ids_GP.shape[1], sampling.max_new_tokens)
        uniform_BT = uniform_numbers(sampling, row_seeds, len(prompt_ids_GP) * num_samples)
        was_training = self.model.training
        self.model.eval()  # before the encoder runs: its dropout would be sampling noise too
        if sampling.num_beams > 1:
            response = self._beam_search(prompt_ids_GP, prompt_mask_GP, sampling, temperature)
        else:
            T = sampling.max_new_tokens
            before_BP = None
            if sampling.repetition_penalty != 1:
                before_GP = self.read_before(prompt_ids_GP, prompt_mask_GP)
                before_BP = before_GP.repeat_interleave(num_samples, 0)
            with packed_weights(self.model, T):
                response = decode(
                    self._steps(prompt_ids_GP, prompt_mask_GP, num_samples, T),
                    self.project,
                    sampling,
                    uniform_BT,
                    [*self.eos_ids, *stop_ids],
                    self.tokenizer.pad_token_id,
                    temperature,
                    None if given_GT is None else given_GT.repeat_interleave(num_samples, 0),
                    before_BP,
                )
        self.model.train(was_training)
        check_logprobs(response.logprobs_BT, "the policy's logits")
        return response

    def _beam_search(
        self,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        sampling: Sampling,
        temperature: float,
    ) -> Response:
        """The most probable response that the beam search of transformers finds for each prompt.

        Responses compete by the mean log-probability of their tokens. A checkpoint's generation
        config may prefer longer ones, or force or forbid tokens (BART's first token, repeated
        n-grams). These settings are not part of the policy, neither here nor in sampling.
        """
        decoder_inputs = self._beam_search_inputs(prompt_ids_GP)
        output = self.model.generate(  # pyright: ignore[reportCallIssue]
            input_ids=prompt_ids_GP,
            attention_mask=prompt_mask_GP,
            do_sample=False,
            temperature=None,
            top_k=None,
            top_p=None,
            num_beams=sampling.num_beams,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=self.eos_ids,
            pad_token_id=self.tokenizer.pad_token_id,
            **NEUTRAL_BEAM_SETTINGS,
            **decoder_inputs,
        )
        # what comes before the response: the decoder's start, or the prompt (decoder-only)
        first = decoder_inputs.get("decoder_input_ids", prompt_ids_GP).shape[1]
        ids_BT = output[:, first:]
        mask_BT = response_mask(ids_BT, self.eos_ids)
        ids_BT = ids_BT * mask_BT + self.tokenizer.pad_token_id * (1 - mask_BT)
        # the beams' own scores are normalised by length: score the tokens as any other response
        scored, _ = self(prompt_ids_GP, prompt_mask_GP, ids_BT, mask_BT, temperature=temperature)
        return Response(ids_BT, mask_BT, scored.logprobs_BT)

    def forward(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        response_ids_BT: Tensor,
        response_mask_BT: Tensor,
        support_BTW: Tensor | None = None,
        conversation_BL: Tensor | None = None,
        temperature: float = 1.0,
        entropy_gradient: bool = False,
        truncation: Sampling | None = None,
        divergence: Divergence | None = None,
        repetition_penalty: float = 1.0,
    ) -> tuple[PolicyOutput, Tensor]:
        """Log-probabilities of given responses.

        The rows of a prompt should be consecutive, because then they share its encoding.

        Args:
          support_BTW: the tokens that could be drawn (decoding.py), to which the distribution is
            restricted; None: all.
          conversation_BL: where the policy reads replies of an environment (types.py); None: none.
          temperature: tau in the equation of the class.
          entropy_gradient: whether a gradient flows through the entropy.
          truncation: its top_k and top_p give log_kept_mass_BT; None: without it.
          divergence: gives divergence_BT from the states of all real tokens; None: without it.
          repetition_penalty: p in decoding.py; 1: none.

        Returns:
          PolicyOutput with logprobs_BT, entropy_BT and log_kept_mass_BT, and hidden_BTD, the last
          hidden state from which token t was predicted, for a value head.
        """
        hidden_BTD = self.states(
            prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT, conversation_BL
        )
        real_BT = response_mask_BT.bool()
        repetitions = None
        if repetition_penalty != 1:
            before_BP = self.read_before(prompt_ids_BP, prompt_mask_BP)
            repetitions = Repetitions.of_responses(
                repetition_penalty, before_BP, response_ids_BT, real_BT
            )
        # N: real tokens of the batch; nothing is computed for padding
        hidden_ND = hidden_BTD[real_BT]
        logprobs_N, entropy_N = chosen_logprobs(
            self.project,
            hidden_ND,
            response_ids_BT[real_BT],
            temperature,
            entropy_gradient=entropy_gradient,
            support_NW=None if support_BTW is None else support_BTW[real_BT],
            repetitions=repetitions,
        )
        # back from the N real tokens to (B, T), with 0 on padding
        zeros_BT = logprobs_N.new_zeros(real_BT.shape)
        log_kept_mass_BT = None
        if truncation is not None:
            log_kept_mass_N = log_kept_mass_of_states(self.project, hidden_ND, truncation)
            log_kept_mass_BT = zeros_BT.masked_scatter(real_BT, log_kept_mass_N)
        divergence_BT = None
        if divergence is not None:
            divergence_BT = zeros_BT.masked_scatter(real_BT, divergence(self.project, hidden_ND))
        output = PolicyOutput(
            logprobs_BT=zeros_BT.masked_scatter(real_BT, logprobs_N),
            entropy_BT=zeros_BT.masked_scatter(real_BT, entropy_N),
            log_kept_mass_BT=log_kept_mass_BT,
            divergence_BT=divergence_BT,
        )
        return output, hidden_BTD

    def states(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        response_ids_BT: Tensor,
        response_mask_BT: Tensor,
        conversation_BL: Tensor | None = None,
    ) -> Tensor:
        """hidden_BTD as `hidden`, of responses with the replies that the policy read on the way.

        The network reads the whole conversation as one response. The states from which tokens of
        the environment would be predicted are then left out: these tokens have no log-probability,
        no value and no loss.
        """
        if conversation_BL is None:
            return self.hidden(prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        real_BT = response_mask_BT.bool()
        written_BL = conversation_BL == WRITTEN
        # both masks have the tokens of a row in the same order
        ids_BL = (conversation_BL - HEARD).clamp(min=0)
        ids_BL = ids_BL.masked_scatter(written_BL, response_ids_BT[real_BT])
        mask_BL = (conversation_BL != PADDING).to(response_mask_BT.dtype)
        hidden_BLD = self.hidden(prompt_ids_BP, prompt_mask_BP, ids_BL, mask_BL)
        hidden_BTD = hidden_BLD.new_zeros(*real_BT.shape, hidden_BLD.shape[-1])
        return hidden_BTD.masked_scatter(real_BT[..., None], hidden_BLD[written_BL])

    def read_before(self, prompt_ids_BP: Tensor, prompt_mask_BP: Tensor) -> Tensor:
        """What the language model continues by a response; NO_TOKEN of decoding.py on padding."""
        return without_padding(prompt_ids_BP, prompt_mask_BP)

    def project(self, hidden: Tensor) -> Tensor:
        """Hidden states (..., D) -> logits (..., V), as in the model's own forward pass."""
        return project_states(self.model, hidden)

    def save(self, folder: str | Path, weights: dict[str, Tensor] | None = None) -> None:
        """Write model (safetensors, adapters merged) and tokenizer as a folder of transformers.

        Its generation config names every token that ends a response, and no setting that training
        ignores (saving.py).

        Args:
          weights: the model's whole tensors, if the model itself is sharded.

        Raises:
          UserError: transformers wrote no weights.
        """
        # other programs read a whole model, without peft
        if has_adapters(self.model):
            save_adapters(self.model, Path(folder) / ADAPTERS, weights)
            weights = merged_weights(self.model, weights)
        generation = generation_settings(
            self.model.generation_config,
            self.eos_ids,
            self.tokenizer.pad_token_id,
            self._forced_id,
        )
        with written_with(self.model, generation, self._use_cache):
            self.model.save_pretrained(folder, state_dict=weights)
        forget_last_call(self.tokenizer)
        self.tokenizer.save_pretrained(folder)
        check_written(Path(folder))
        name_as_before(Path(folder))
        if self.source is not None:
            self.source.save(folder)

    # ---- for subclasses --------------------------------------------------------------------------

    @property
    def _can_split(self) -> bool:
        """Whether the trained layers can continue from stored states of the frozen ones."""
        return False

    @abstractmethod
    def hidden(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        response_ids_BT: Tensor,
        response_mask_BT: Tensor,
    ) -> Tensor:
        """hidden_BTD, the last hidden state at the position that predicts response token t."""

    @abstractmethod
    def _steps(
        self,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        num_samples: int,
        max_new_tokens: int,
        recorded: bool | None = None,
    ) -> Steps:
        """Step-by-step decoding of `num_samples` responses per prompt.

        Args:
          recorded: whether steps are recorded, where that is possible (recorded_steps.py); None: if
            `can_record` allows it.
        """

    @property
    def _forced_id(self) -> int | None:
        """The token that other programs must write first; only encoder-decoders have one."""
        return None

    def _beam_search_inputs(self, prompt_ids_GP: Tensor) -> dict[str, Tensor]:
        """Arguments of transformers' `generate` besides the prompt."""
        return {}

    def check_fits(self, prompt_tokens: int, response_tokens: int) -> None:
        """Raise `UserError` if they need more positions than the model has."""


def _as_prompt(prompt: Prompt | str) -> Prompt:
    return Prompt("", prompt) if isinstance(prompt, str) else prompt


def name_of(tokenizer) -> str:
    """The folder or hub name from which a tokenizer was loaded, for messages."""
    name = getattr(tokenizer, "name_or_path", "")
    return f"`{shorten(name)}`" if name else "this policy"

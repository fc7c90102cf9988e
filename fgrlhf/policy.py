"""Policies: one interface over encoder-decoder (`T5Policy`) and decoder-only (`CausalPolicy`)
language models.

`T5Policy` serves any encoder-decoder of transformers whose attention can be chosen (T5, mT5, Flan,
BART, ...), `CausalPolicy` any decoder-only model that keeps keys and values (GPT-2, Llama, Qwen,
GPT-NeoX, Mistral, ...).

A policy encodes prompts, samples responses and gives the log-probability of given response tokens.
The distribution over the next token a_t given prompt x and response prefix y_<t at temperature tau
is

    log pi(a_t | x, y_<t) = z_t[a_t] / tau - logsumexp(z_t / tau)

Only chosen-token log-probabilities leave a forward pass (logprobs.py), and what belongs to a prompt
is computed once for all its responses (attention.py, decoding.py).
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from fgrlhf.errors import UserError, shorten
from fgrlhf.kernels.attention import share_prompts
from fgrlhf.kernels.layers import fast_layers
from fgrlhf.models.chat import chat_of
from fgrlhf.models.config import LoRAConfig
from fgrlhf.models.decoding import (
    CausalSteps,
    EncoderDecoderSteps,
    Sampling,
    decode,
    positions_of,
    response_mask,
    takes_positions,
    uniform_rows,
)
from fgrlhf.models.loading import SAFE, load_config, load_tokenizer, load_weights
from fgrlhf.models.logprobs import chosen_logprobs
from fgrlhf.models.lora import add_adapters, has_adapters, merged_weights
from fgrlhf.models.packing import packed
from fgrlhf.reward_models.shapes import shape_of_config
from fgrlhf.types import PolicyOutput, Prompt, Response

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
UNFORCED = {
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "min_length": 0,
}
ENCODED_AT_ONCE = 4096  # prompt tokens, padding included
COUNTED_AT_ONCE = 256  # prompts whose lengths are counted together
LONGEST_SHARED_ROW = (
    8192  # tokens of a prompt and all its responses: their mask has 64 million entries
)


class Policy(nn.Module):
    """What every policy has in common. Subclasses say how prompt and response meet in the network.

    Args:
      model: a transformers language model.
      tokenizer: its tokenizer.
      max_input_len: longer prompts lose their end. A prompt begins with what it asks.
      chat_template: whether prompts are the user's turn of a conversation; None: where the
        tokenizer has a template.
    """

    padding_side: str

    def __init__(
        self,
        model: nn.Module,
        tokenizer,
        max_input_len: int = 1024,
        padding_side: str | None = None,
        chat_template: bool | None = None,
    ):
        super().__init__()
        self.model, self.tokenizer, self.max_input_len = (
            fast_layers(model),
            tokenizer,
            max_input_len,
        )
        tokenizer.padding_side = padding_side or self.padding_side
        tokenizer.truncation_side = "right"
        if tokenizer.pad_token_id is None:
            if tokenizer.eos_token_id is None:
                raise UserError(
                    f"the tokenizer of {_name_of(tokenizer)} has neither a padding token nor an"
                    " end-of-sequence token, so responses cannot be padded: set `pad_token` or"
                    " `eos_token` in its tokenizer_config.json"
                )
            tokenizer.pad_token = tokenizer.eos_token
        self.chat = chat_of(tokenizer, chat_template, max_input_len)
        self.turn_end_ids = self.chat.end_ids() if self.chat else []

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def hidden_size(self) -> int:
        return self.model.config.hidden_size

    @property
    def eos_ids(self) -> list[int]:
        """Every token that ends a response in sampling.

        Raises:
          UserError: neither the model nor its tokenizer has one.
        """
        eos = self.model.generation_config.eos_token_id
        eos = self.tokenizer.eos_token_id if eos is None else eos
        if eos is None and not self.turn_end_ids:
            raise UserError(
                f"the model {_name_of(self.tokenizer)} has no end-of-sequence token, so no response"
                " could end: set `eos_token` in its tokenizer_config.json, or `eos_token_id` in"
                " its generation_config.json"
            )
        eos = [] if eos is None else eos
        eos = list(eos) if isinstance(eos, (list, tuple)) else [eos]
        return eos + [i for i in self.turn_end_ids if i not in eos]

    @property
    def end_id(self) -> int:
        """The token that ends a response in training data: the end of a chat model's turn, else the
        first end-of-sequence token.
        """
        return self.turn_end_ids[0] if self.turn_end_ids else self.eos_ids[0]

    def prompt_lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each prompt before it is cut, those of the chat template and special tokens
        included.
        """
        lengths = []
        for start in range(0, len(texts), COUNTED_AT_ONCE):
            part = texts[start : start + COUNTED_AT_ONCE]
            written = [self.chat.write(text) for text in part] if self.chat else list(part)
            ids = self.tokenizer(written, add_special_tokens=self.chat is None, verbose=False)[
                "input_ids"
            ]
            lengths += [len(ids_P) for ids_P in ids]
        return lengths

    def tokenize(self, texts: Sequence[str], **how):
        """What the tokenizer makes of prompts, as this policy reads them: as the user's turn if it
        is a chat model, cut if too long.
        """
        texts = [self.chat.turn(text) for text in texts] if self.chat else list(texts)
        special = self.chat is None  # a template has written the special tokens itself
        return self.tokenizer(
            texts, truncation=True, max_length=self.max_input_len, add_special_tokens=special, **how
        )

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Prompt texts -> (prompt_ids_BP, prompt_mask_BP), padded to the longest of them.

        Raises:
          UserError: a text has no tokens.
        """
        batch = self.tokenize(texts, padding=True, return_tensors="pt")
        for text, length in zip(texts, batch["attention_mask"].sum(1).tolist()):
            if length == 0:
                raise UserError(
                    f"a prompt has no tokens (its text is {shorten(repr(text), 80)}), so nothing"
                    " can be answered: leave it out of the data"
                )
        return batch["input_ids"].to(self.device), batch["attention_mask"].to(self.device)

    @torch.no_grad()
    def generate(
        self,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        sampling: Sampling,
        row_seeds: Sequence[int] | None = None,
        num_samples: int = 1,
        temperature: float = 1.0,
    ) -> Response:
        """Sample `num_samples` responses per prompt, the K of one prompt side by side.

        Args:
          row_seeds: one per response (G * num_samples of them), needed with `do_sample`.
          temperature: of the response's log-probabilities (see the module's docstring), not of the
            sampling.
        """
        self._check_fits(prompt_ids_GP, sampling)
        B = len(prompt_ids_GP) * num_samples
        if sampling.do_sample and (row_seeds is None or len(row_seeds) != B):
            raise ValueError("sampling needs one seed per response")
        was_training = self.model.training
        self.model.eval()  # before the encoder runs: its dropout would be sampling noise too
        if sampling.num_beams > 1:
            ids_BT, mask_BT = self._beam_search(prompt_ids_GP, prompt_mask_GP, sampling)
            output, _ = self(prompt_ids_GP, prompt_mask_GP, ids_BT, mask_BT, temperature)
            response = Response(ids_BT, mask_BT, output.logprobs_BT)
        else:
            uniform_BT = (
                uniform_rows(row_seeds, sampling.max_new_tokens)
                if sampling.do_sample
                else torch.zeros(B, sampling.max_new_tokens)
            )
            steps = self._steps(prompt_ids_GP, prompt_mask_GP, num_samples)
            response = decode(
                steps,
                self.project,
                sampling,
                uniform_BT,
                self.eos_ids,
                self.tokenizer.pad_token_id,
                temperature,
            )
        self.model.train(was_training)
        check_logprobs(response.logprobs_BT, "the policy's logits")
        return response

    def _check_fits(self, prompt_ids_GP: Tensor, sampling: Sampling) -> None:
        """Raises `UserError` where prompt and response need more positions than the model has."""

    def _beam_search(
        self, prompt_ids_GP: Tensor, prompt_mask_GP: Tensor, sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        """(ids_BT, mask_BT) of the most probable response that transformers finds for each prompt.

        What a checkpoint's generation config forces or forbids (BART's first token, repeated
        n-grams) is no part of the policy, here as in sampling.
        """
        output = self.model.generate(
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
            **UNFORCED,
        )
        ids_BT = output[:, 1 if self.model.config.is_encoder_decoder else prompt_ids_GP.shape[1] :]
        mask_BT = response_mask(ids_BT, self.eos_ids)
        return ids_BT * mask_BT + self.tokenizer.pad_token_id * (1 - mask_BT), mask_BT

    def forward(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        response_ids_BT: Tensor,
        response_mask_BT: Tensor,
        temperature: float = 1.0,
        entropy_gradient: bool = False,
    ) -> tuple[PolicyOutput, Tensor]:
        """Log-probabilities of given responses. Rows of one prompt should stand side by side: they
        share its encoding.

        Returns:
          PolicyOutput with logprobs_BT and entropy_BT (a gradient through the entropy only where
          asked for), and hidden_BTD, the last hidden state from which token t was predicted: a
          value head can read it.
        """
        hidden_BTD = self.hidden(prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        real_BT = response_mask_BT.bool()
        logprobs_N, entropy_N = chosen_logprobs(
            self.project,
            hidden_BTD[real_BT],
            response_ids_BT[real_BT],
            temperature,
            entropy_gradient=entropy_gradient,
        )
        empty_BT = torch.zeros(real_BT.shape, device=hidden_BTD.device)
        logprobs_BT, entropy_BT = (
            empty_BT.masked_scatter(real_BT, x) for x in (logprobs_N, entropy_N)
        )
        return PolicyOutput(logprobs_BT, entropy_BT=entropy_BT), hidden_BTD

    def project(self, hidden: Tensor) -> Tensor:
        """Hidden states (..., D) -> logits (..., V), as the model's own forward pass does it."""
        config = self.model.config
        if getattr(config, "scale_decoder_outputs", False):  # T5 with tied embeddings
            hidden = hidden * config.d_model**-0.5
        logits = self.model.get_output_embeddings()(hidden)
        bias = getattr(self.model, "final_logits_bias", None)  # BART
        logits = logits if bias is None else logits + bias
        cap = getattr(config, "final_logit_softcapping", None)  # Gemma
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def hidden(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        response_ids_BT: Tensor,
        response_mask_BT: Tensor,
    ) -> Tensor:
        """hidden_BTD, the last hidden state at the position that predicts response token t."""
        raise NotImplementedError("abstract: a policy class says how prompt and response meet")

    def _steps(self, prompt_ids_GP: Tensor, prompt_mask_GP: Tensor, num_samples: int):
        raise NotImplementedError("abstract: a policy class says how it decodes")

    def save(self, folder: str | Path) -> None:
        """Write the model (safetensors), adapters merged, and its tokenizer as an ordinary
        transformers folder.
        """
        self.model.save_pretrained(
            folder, state_dict=merged_weights(self.model) if has_adapters(self.model) else None
        )
        self.tokenizer.save_pretrained(folder)


class T5Policy(Policy):
    """An encoder-decoder: the encoder reads the prompt, the decoder writes the response."""

    padding_side = "right"

    def __init__(
        self,
        model: nn.Module,
        tokenizer,
        max_input_len: int = 1024,
        padding_side: str | None = None,
        chat_template: bool | None = None,
    ):
        if padding_side == "left" and self._positions(model) is not None:
            raise UserError(
                f"model.policy_model.input_padding_side is `left`, but {type(model).__name__}"
                " counts its positions from the first column, so padding there would move every"
                " prompt: set it to right, or leave it out"
            )
        super().__init__(
            share_prompts(model), tokenizer, max_input_len, padding_side, chat_template
        )

    @staticmethod
    def _positions(model: nn.Module) -> int | None:
        """How many positions encoder and decoder have each; None where distances are all that
        counts (T5).
        """
        return getattr(model.config, "max_position_embeddings", None)

    def _check_fits(self, prompt_ids_GP, sampling):
        positions, longest = (
            self._positions(self.model),
            max(prompt_ids_GP.shape[1], sampling.max_new_tokens),
        )
        if positions is not None and longest > positions:
            raise UserError(
                f"prompts of {prompt_ids_GP.shape[1]} tokens and responses of up to"
                f" {sampling.max_new_tokens} need {longest} positions in encoder or decoder,"
                f" {type(self.model).__name__} has {positions} in each: lower env.max_input_len or"
                " env.max_generated_len"
            )

    def _steps(self, prompt_ids_GP, prompt_mask_GP, num_samples):
        return EncoderDecoderSteps(
            self.model, self._encode(prompt_ids_GP, prompt_mask_GP), prompt_mask_GP, num_samples
        )

    def hidden(self, prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT):
        first_G, group_B = neighbours(prompt_ids_BP, prompt_mask_BP)
        encoded_GPD, mask_GP = (
            self._encode(prompt_ids_BP[first_G], prompt_mask_BP[first_G]),
            prompt_mask_BP[first_G],
        )
        start_B1 = torch.full_like(response_ids_BT[:, :1], self.model.config.decoder_start_token_id)
        read_BT = torch.cat(
            [start_B1, response_ids_BT[:, :-1]], 1
        )  # what it has read when it predicts token t
        if self._positions(self.model) is None:
            packing = packed(response_mask_BT, group_B)
            return packing.unpack(
                self._decode(packing.pack(read_BT), encoded_GPD, mask_GP, packing.mask())
            )
        if samples_each(group_B) is None:
            encoded_GPD, mask_GP = encoded_GPD[group_B], mask_GP[group_B]
        return self._decode(read_BT, encoded_GPD, mask_GP)

    def _decode(
        self, ids_RN: Tensor, encoded_GPD: Tensor, mask_GP: Tensor, mask_R1NN: Tensor | None = None
    ) -> Tensor:
        """hidden_RND; rows of one prompt stand side by side, as many for each. No mask: a token
        sees those before it.
        """
        return self.model.get_decoder()(
            input_ids=ids_RN,
            attention_mask=mask_R1NN,
            encoder_hidden_states=encoded_GPD,
            encoder_attention_mask=mask_GP,
            use_cache=False,
        ).last_hidden_state

    def _encode(self, prompt_ids_GP: Tensor, prompt_mask_GP: Tensor) -> Tensor:
        """encoded_GPD, 0 on padding. Prompts of like length run together, each part without padding
        it does not need.
        """
        encoder, length_G = self.model.get_encoder(), prompt_mask_GP.sum(1)
        encoded = []
        order = length_G.argsort(stable=True)
        for rows in _parts(order, length_G[order].tolist(), ENCODED_AT_ONCE):
            columns = prompt_mask_GP[rows].any(0).nonzero()[:, 0].tolist() or [0]
            start, end = columns[0], columns[-1] + 1
            part = encoder(
                input_ids=prompt_ids_GP[rows, start:end],
                attention_mask=prompt_mask_GP[rows, start:end],
            ).last_hidden_state
            encoded.append(nn.functional.pad(part, (0, 0, start, prompt_ids_GP.shape[1] - end)))
        return torch.cat(encoded)[order.argsort()]


def neighbours(prompt_ids_BP: Tensor, prompt_mask_BP: Tensor) -> tuple[Tensor, Tensor]:
    """Runs of equal prompts: (first_G, where each run begins; group_B, the run of each row)."""
    both = torch.stack([prompt_ids_BP, prompt_mask_BP], -1)
    new_B = torch.cat(
        [
            torch.ones_like(both[:1, 0, 0], dtype=torch.bool),
            (both[1:] != both[:-1]).flatten(1).any(1),
        ]
    )
    return new_B.nonzero()[:, 0], new_B.cumsum(0) - 1


def samples_each(group_B: Tensor) -> int | None:
    """K where every group of rows has as many; None where one has more than another."""
    sizes = torch.bincount(group_B)
    return int(sizes[0]) if bool((sizes == sizes[0]).all()) else None


def _parts(order: Tensor, lengths: Sequence[int], limit: int) -> list[Tensor]:
    """`order`, by growing length, in parts of at most `limit` padded tokens (or one row)."""
    sizes = [0]
    for length in lengths:
        if sizes[-1] and (sizes[-1] + 1) * length > limit:
            sizes.append(0)
        sizes[-1] += 1
    return list(order.split(sizes))


class CausalPolicy(Policy):
    """A decoder-only model: prompt (padded on the left) and response stand in one sequence."""

    padding_side = "left"

    def __init__(
        self,
        model: nn.Module,
        tokenizer,
        max_input_len: int = 1024,
        padding_side: str | None = None,
        chat_template: bool | None = None,
    ):
        if padding_side == "right":
            raise UserError(
                "model.policy_model.input_padding_side is `right`, but a decoder-only model writes"
                " its response right after the prompt, where the padding would stand: set it to"
                " left, or leave it out"
            )
        if model._is_stateful:
            raise UserError(
                f"{type(model).__name__} keeps a running state instead of keys and values, into"
                " which padding and other prompts' samples would leak: take a model whose layers"
                " are all attention"
            )
        super().__init__(model, tokenizer, max_input_len, padding_side, chat_template)

    def _check_fits(self, prompt_ids_GP, sampling):
        positions = getattr(self.model.config, "max_position_embeddings", None)
        needed = prompt_ids_GP.shape[1] + sampling.max_new_tokens
        if positions is not None and needed > positions:
            raise UserError(
                f"prompts of {prompt_ids_GP.shape[1]} tokens with responses of up to"
                f" {sampling.max_new_tokens} need {needed} positions, the model has {positions}:"
                " lower env.max_input_len or env.max_generated_len"
            )

    def _steps(self, prompt_ids_GP, prompt_mask_GP, num_samples):
        return CausalSteps(self.model, prompt_ids_GP, prompt_mask_GP, num_samples)

    def hidden(self, prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT):
        first_G, group_B = neighbours(prompt_ids_BP, prompt_mask_BP)
        K = samples_each(group_B)
        (G, T), P = (len(first_G), response_ids_BT.shape[1]), prompt_ids_BP.shape[1]
        if K is not None and self._can_share and sharing_pays(P, T, K, self.hidden_size):
            hidden = self._hidden_of_groups(
                prompt_ids_BP[first_G],
                prompt_mask_BP[first_G],
                response_ids_BT.view(G, K, T),
                response_mask_BT.view(G, K, T),
            )
            return hidden.flatten(0, 1)
        return self._hidden_of_rows(
            prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT
        )

    @property
    def _can_share(self) -> bool:
        """Whether the model takes a mask and positions of our own for every layer alike."""
        config = self.model.config
        windows = getattr(config, "sliding_window", None) or set(
            getattr(config, "layer_types", None) or ()
        ) - {"full_attention"}
        return (
            config._attn_implementation == "sdpa"
            and takes_positions(self.model)
            and not windows
            and not getattr(config, "alibi", False)
        )

    def _hidden_of_groups(self, prompt_ids_GP, prompt_mask_GP, response_ids_GKT, response_mask_GKT):
        """hidden_GKTD. A prompt and its K responses are one row; a response sees its prompt and
        itself:

        prompt | response 1 | response 2 | ...      positions 0 .. p-1 | p .. | p .. | ...
        """
        (G, P), (K, T) = prompt_ids_GP.shape, response_ids_GKT.shape[1:]
        device = prompt_ids_GP.device
        real_GL = torch.cat([prompt_mask_GP, response_mask_GKT.flatten(1)], 1).bool()
        part_L = torch.cat(
            [
                torch.zeros(P, device=device),
                torch.arange(1, K + 1, device=device).repeat_interleave(T),
            ]
        )
        place_L = torch.arange(P + K * T, device=device)
        seen_LL = (place_L <= place_L[:, None]) & ((part_L == 0) | (part_L == part_L[:, None]))
        itself_LL = place_L == place_L[:, None]  # padding has to see something
        positions_GL = torch.cat(
            [
                (prompt_mask_GP.cumsum(1) - 1).clamp(min=0),
                (prompt_mask_GP.sum(1, keepdim=True) + torch.arange(T, device=device)).repeat(1, K),
            ],
            1,
        )
        hidden_GLD = self.model.base_model(
            input_ids=torch.cat([prompt_ids_GP, response_ids_GKT.flatten(1)], 1),
            position_ids=positions_GL,
            attention_mask=((seen_LL & real_GL[:, None, None]) | itself_LL),
            use_cache=False,
        ).last_hidden_state
        before_GK1D = hidden_GLD[:, P - 1 : P, None].expand(G, K, 1, -1).reshape(G, K, 1, -1)
        return torch.cat([before_GK1D, hidden_GLD[:, P:].reshape(G, K, T, -1)[:, :, :-1]], 2)

    def _hidden_of_rows(self, prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT):
        P, T = prompt_ids_BP.shape[1], response_ids_BT.shape[1]
        mask = torch.cat([prompt_mask_BP, response_mask_BT], 1)
        hidden = self.model.base_model(
            input_ids=torch.cat([prompt_ids_BP, response_ids_BT], 1),
            attention_mask=mask,
            **positions_of(
                self.model, (mask.cumsum(1) - 1).clamp(min=0)
            ),  # padding does not count as distance
            use_cache=False,
        ).last_hidden_state
        return hidden[:, P - 1 : P + T - 1]  # the positions before each response token predict it


def sharing_pays(P: int, T: int, K: int, D: int) -> bool:
    """Whether one row of a prompt and its K responses costs less than K rows of the prompt and one
    response each.

    Flops of a decoder layer of width D, in multiples of 4 D: its 12 D^2 weights cost 24 D^2 flops a
    token, attention 4 D a pair of tokens. The shared row needs a dense mask, which computes every
    pair; rows have a causal mask, whose kernels leave half of the pairs out.

        shared   6 D (P + K T) + (P + K T)^2
        rows     K (6 D (P + T) + (P + T)^2 / 2)

    The mask has (P + K T)^2 entries for each prompt, so a shared row also has a greatest length.

    Args:
      P: prompt tokens.
      T: tokens of each response.
      K: responses to each prompt.
      D: width of the model.
    """
    if K < 2:
        return False
    shared, row = P + K * T, P + T
    return shared <= LONGEST_SHARED_ROW and 6 * D * shared + shared**2 < K * (
        6 * D * row + row**2 / 2
    )


def check_logprobs(logprobs_BT: Tensor, what: str) -> None:
    """Raises `UserError` where log-probabilities are not finite: once for a batch, so it costs next
    to nothing.
    """
    finite_BT = torch.isfinite(logprobs_BT)
    if bool(finite_BT.all()):
        return
    b, t = (~finite_BT).nonzero()[0].tolist()
    raise UserError(
        f"{what} are NaN or infinite at token {t} of answer {b} of a batch: the weights are"
        " damaged, or training has diverged, so no answer means anything. Take an earlier"
        " checkpoint, or train again with a lower train.lr"
    )


def count_cut(policy: Policy, prompts: Sequence[Prompt]) -> int:
    """How many prompts are longer than the policy reads, so that their ends are cut.

    Raises:
      UserError: a prompt has no tokens.
    """
    return len(cut_prompts(policy, prompts))


def cut_prompts(policy: Policy, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts that are longer than the policy reads. Raises `UserError` where a prompt has no
    tokens.
    """
    lengths = policy.prompt_lengths([prompt.text for prompt in prompts])
    for prompt, length in zip(prompts, lengths):
        if length == 0:
            raise UserError(
                f"prompt {shorten(prompt.id, 80)} has no tokens (its text is"
                f" {shorten(repr(prompt.text), 80)}), so nothing can be answered: leave it out of"
                " the data"
            )
    return [prompt for prompt, length in zip(prompts, lengths) if length > policy.max_input_len]


def load_policy(
    ckpt: str | Path,
    dtype: str = "fp32",
    max_input_len: int = 1024,
    padding_side: str | None = None,
    chat_template: bool | None = None,
    lora: LoRAConfig | None = None,
    empty: bool = False,
) -> Policy:
    """Load a hub name or folder as the policy class its config asks for, with adapters where `lora`
    says so.

    `empty` reads no weights: enough to find every mistake in the settings.

    Raises:
      UserError: there is no such checkpoint, it cannot be read, or it does not go with the other
        arguments.
    """
    try:
        config = load_config(ckpt)
        if shape_of_config(config) == "encoder":
            raise ValueError(
                f"it is an encoder ({config.model_type}), which reads both ways and writes no text."
            )
        tokenizer = load_tokenizer(ckpt)
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model = (
            _without_weights(auto, config)
            if empty
            else load_weights(auto, ckpt, config=config, dtype=DTYPES[dtype])
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"no language model could be loaded from `{shorten(ckpt)}`: {error} Give a folder that"
            " an earlier stage wrote, or a hub name while online."
        ) from None
    if lora is not None:
        add_adapters(model, lora)
    policy = (T5Policy if config.is_encoder_decoder else CausalPolicy)(
        model, tokenizer, max_input_len, padding_side, chat_template
    )
    if not empty:
        _check_special_tokens(policy)
        _check_projection(policy)
    return policy


def _without_weights(auto, config) -> nn.Module:
    """The model of a config, its tensors without memory. Raises `ValueError` where the config
    describes no model.
    """
    try:
        with torch.device("meta"):
            return auto.from_config(config, **SAFE)
    except (
        Exception
    ) as error:  # a config can hold anything, so building its model can raise anything
        raise ValueError(
            f"its config describes no language model ({type(error).__name__}: {shorten(error)})."
        ) from None


def _name_of(tokenizer) -> str:
    """The folder or hub name that a tokenizer was loaded from, for messages."""
    return (
        f"`{shorten(tokenizer.name_or_path)}`"
        if getattr(tokenizer, "name_or_path", "")
        else "this policy"
    )


def _check_special_tokens(policy: Policy) -> None:
    """Raises `UserError` where a token that every run needs is no token of the model."""
    needed = {"eos_token_id": policy.end_id, "pad_token_id": policy.tokenizer.pad_token_id}
    if isinstance(policy, T5Policy):
        needed["decoder_start_token_id"] = policy.model.config.decoder_start_token_id
    known = policy.model.get_input_embeddings().num_embeddings
    for name, token in needed.items():
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < known:
            raise UserError(
                f"{name} of the model {_name_of(policy.tokenizer)} is {shorten(repr(token), 40)},"
                f" but its tokens are 0 to {known - 1}: correct config.json, generation_config.json"
                " or tokenizer_config.json of its folder"
            )


@torch.no_grad()
def _check_projection(policy: Policy) -> None:
    """Raises `UserError` where `Policy.project` does not give the model's own logits."""
    ids_11 = torch.tensor([[policy.end_id]])
    ones_11 = torch.ones_like(ids_11)
    inputs = (
        {"decoder_input_ids": ids_11 * 0 + policy.model.config.decoder_start_token_id}
        if isinstance(policy, T5Policy)
        else {}
    )
    own = policy.model(
        input_ids=ids_11, attention_mask=ones_11, use_cache=False, **inputs
    ).logits.float()
    mine = policy.project(policy.hidden(ids_11, ones_11, ids_11, ones_11)).float()
    if not torch.isfinite(own).all():
        raise UserError(
            f"the logits of the model {_name_of(policy.tokenizer)} are NaN or infinite: its weights"
            " are damaged, or the training that wrote them diverged. Take an earlier checkpoint,"
            " or another model"
        )
    if not torch.allclose(mine, own, atol=0.02 * float(own.abs().max())):
        raise UserError(
            f"{type(policy.model).__name__} does something to its logits after the output layer"
            " that `Policy.project` does not know, so log-probabilities would be wrong: add it"
            " there (fgrlhf/policy.py), or take another model"
        )

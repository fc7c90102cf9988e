"""Decoder-only policies: GPT-2, Llama, Qwen, GPT-NeoX, Mistral and others with a cache.

Prompt (padded on the left) and response are one sequence. Where it is cheaper, a prompt and its K
responses are one row, so that the prompt is computed once.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from fgrlhf.base.errors import UserError
from fgrlhf.kernels.install import share_cache, shares_cache
from fgrlhf.kernels.shared_cache import SharedCache, Slot
from fgrlhf.kernels.shared_rows import RaggedRows, SharedRows
from fgrlhf.models.base import Policy, name_of
from fgrlhf.models.decoding import Steps
from fgrlhf.models.frozen_layers import run_lower, run_upper
from fgrlhf.models.loading import max_positions
from fgrlhf.models.recorded_steps import Recording, all_or_none, can_record, room_for
from fgrlhf.models.shared_rows import (
    block_mask,
    can_share,
    group_equal_prompts,
    position_arguments,
    sharing_pays,
    uniform_group_size,
)
from fgrlhf.models.trunk import text_config, trunk_of
from fgrlhf.text_types import Prompt


class CausalPolicy(Policy):
    """A policy whose decoder-only model continues the prompt.

    Raises:
      UserError: right padding is requested.
    """

    default_padding_side = "left"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer,
        max_input_len: int = 1024,
        padding_side: str | None = None,
        chat_template: bool | None = None,
    ):
        if padding_side == "right":
            raise UserError(
                "model.input_padding_side is `right`, but a decoder-only model writes"
                " its response right after the prompt, where the padding would be: set it to left,"
                " or leave it out"
            )
        super().__init__(model, tokenizer, max_input_len, padding_side, chat_template)
        if can_share(model) and model._supports_attention_backend:
            share_cache(model)

    def tokenize(self, prompts: Sequence[Prompt | str], **options: Any):
        if self.chat is None:  # a chat template writes the special tokens itself
            self._check_end_of_prompts()
        return super().tokenize(prompts, **options)

    def tokenize_responses(self, prompts, texts, offsets=False):
        if self.chat is None:
            return super().tokenize_responses(prompts, texts, offsets)
        # a template may change the answer's first tokens, so prompt and answer are written together
        answers = self.chat.answers(prompts, texts, offsets)
        end = self.turn_end_ids
        return [a if end and a.ids[-1:] == end else self._with_end(a) for a in answers]

    @property
    def lead(self) -> str:
        return self.chat.lead if self.chat else ""

    def _check_end_of_prompts(self) -> None:
        """Raise `UserError` if the tokenizer ends every text with an end-of-sequence token.

        The policy would answer after the end of the text.
        """
        bare = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        written = self.tokenizer("a")["input_ids"]
        ends = [*self._configured_eos_ids(), self.tokenizer.eos_token_id]
        if written[-1:] != bare[-1:] and written[-1] in ends:
            end = self.tokenizer.convert_ids_to_tokens(written[-1])
            raise UserError(
                f"the tokenizer of {name_of(self.tokenizer)} appends {end} to every text, so a"
                " prompt would end before its response begins: set `add_eos_token` to false in its"
                " tokenizer_config.json, or remove the token from the post-processor in"
                " tokenizer.json"
            )

    @property
    def _can_split(self) -> bool:
        return can_share(self.model)

    @property
    def positions(self) -> int | None:
        """The most tokens that a padded prompt and its response can have; None: no limit."""
        return max_positions(text_config(self.model), "decoder")

    def hidden(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        response_ids_BT: Tensor,
        response_mask_BT: Tensor,
    ) -> Tensor:
        first_G, group_B = group_equal_prompts(prompt_ids_BP, prompt_mask_BP)
        # K is None if prompts have different numbers of responses: a row for each response then
        K = uniform_group_size(group_B)
        G = len(first_G)
        P = prompt_ids_BP.shape[1]
        T = response_ids_BT.shape[1]
        if K is not None and can_share(self.model) and sharing_pays(P, T, K, self.hidden_size):
            hidden_GKTD = self._hidden_of_groups(
                prompt_ids_BP[first_G],
                prompt_mask_BP[first_G],
                response_ids_BT.view(G, K, T),
                response_mask_BT.view(G, K, T),
            )
            return hidden_GKTD.flatten(0, 1)

        mask_BL = torch.cat([prompt_mask_BP, response_mask_BT], 1)
        hidden_BLD = self._trunk(
            prompt_ids_BP,
            prompt_mask_BP,
            response_ids_BT[:, None],
            response_mask_BT[:, None],
            input_ids=torch.cat([prompt_ids_BP, response_ids_BT], 1),
            attention_mask=mask_BL,
            **position_arguments(self.model, _positions(mask_BL)),
        )
        return hidden_BLD[:, P - 1 : P + T - 1]  # response token t is predicted one token earlier

    def _hidden_of_groups(
        self,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        response_ids_GKT: Tensor,
        response_mask_GKT: Tensor,
    ) -> Tensor:
        """hidden_GKTD, with a prompt and its K responses in one row of L = P + K T tokens.

            tokens       prompt    | response 1 | response 2 | ...
            positions    0 .. p-1  | p, p+1, .. | p, p+1, .. | ...        p: the prompt's length

        A response sees the prompt and itself. Its positions continue the prompt's, as if it were
        the only one.
        """
        G, P = prompt_ids_GP.shape
        K, T = response_ids_GKT.shape[1:]
        device = prompt_ids_GP.device
        ids_GL = torch.cat([prompt_ids_GP, response_ids_GKT.flatten(1)], 1)
        real_GL = torch.cat([prompt_mask_GP, response_mask_GKT.flatten(1)], 1).bool()

        # the part that a token belongs to: 0 the prompt, k = 1 .. K the response k
        prompt_part_P = torch.zeros(P, device=device)
        response_part_KT = torch.arange(1, K + 1, device=device).repeat_interleave(T)
        part_L = torch.cat([prompt_part_P, response_part_KT])

        mask_G1LL = block_mask(part_L[None], real_GL)
        layout = {}
        if shares_cache(self.model):  # its attention reads the layout instead of the mask
            layout["shared_rows"] = SharedRows.of(prompt_mask_GP, K, T)

        # positions count real tokens: the padding on the left has none of its own
        prompt_positions_GP = (prompt_mask_GP.cumsum(1) - 1).clamp(min=0)
        prompt_length_G11 = prompt_mask_GP.sum(1)[:, None, None]
        # padding repeats the last position: the next one may be beyond the model's last
        token_number_GKT = (response_mask_GKT.cumsum(2) - 1).clamp(min=0)
        response_positions_GKT = prompt_length_G11 + token_number_GKT
        positions_GL = torch.cat([prompt_positions_GP, response_positions_GKT.flatten(1)], 1)

        hidden_GLD = self._trunk(
            prompt_ids_GP,
            prompt_mask_GP,
            response_ids_GKT,
            response_mask_GKT,
            input_ids=ids_GL,
            position_ids=positions_GL,
            attention_mask=mask_G1LL,
            **layout,
        )

        # a response's first token is predicted from the prompt's last one, token t from token t - 1
        end_of_prompt_G11D = hidden_GLD[:, P - 1 : P, None]
        end_of_prompt_GK1D = end_of_prompt_G11D.expand(G, K, 1, -1)
        responses_GKTD = hidden_GLD[:, P:].reshape(G, K, T, -1)
        return torch.cat([end_of_prompt_GK1D, responses_GKTD[:, :, :-1]], 2)

    def _trunk(
        self,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        response_ids_GKT: Tensor,
        response_mask_GKT: Tensor,
        **inputs: Any,
    ) -> Tensor:
        """hidden_GLD of rows with a prompt and K responses, L = P + K T.

        Frozen layers are computed once for all passes (frozen_layers.py).

        Args:
          inputs: those of the model's trunk, for the same rows.
        """
        if self.frozen_layers is None:
            return trunk_of(self.model)(**inputs, use_cache=False).last_hidden_state
        n_trained = self.frozen_layers.n_trained
        P = prompt_ids_GP.shape[1]

        def lower_states() -> tuple[Tensor, Tensor]:
            lower_GLD = run_lower(self.model, n_trained, **inputs, use_cache=False)
            return lower_GLD[:, :P], lower_GLD[:, P:].unflatten(1, response_ids_GKT.shape[1:])

        prompt_GPD, response_GKTD = self.frozen_layers.states(
            prompt_ids_GP, prompt_mask_GP, response_ids_GKT, response_mask_GKT, lower_states
        )
        # the same row as `inputs` describe, with states in place of token ids
        lower_GLD = torch.cat([prompt_GPD, response_GKTD.flatten(1, 2)], 1)
        return run_upper(self.model, n_trained, lower_GLD, **inputs, use_cache=False)

    def _steps(
        self,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        num_samples: int,
        max_new_tokens: int,
        recorded: bool | None = None,
    ) -> Steps:
        if shares_cache(self.model):
            return SharedCacheSteps(
                self.model,
                prompt_ids_GP,
                prompt_mask_GP,
                num_samples,
                max_new_tokens,
                can_record(self.model) if recorded is None else recorded,
            )
        return CausalSteps(self.model, prompt_ids_GP, prompt_mask_GP, num_samples)

    def check_fits(self, prompt_tokens: int, response_tokens: int) -> None:
        positions = self.positions
        needed = prompt_tokens + response_tokens
        if positions is not None and needed > positions:
            raise UserError(
                f"prompts of {prompt_tokens} tokens with responses of up to {response_tokens} need"
                f" {needed} positions, the model has {positions}: lower max_input_len or"
                " max_generated_len"
            )


class CausalSteps:
    """`Steps` of a decoder-only model. The prompt is read once; its cache is copied K times.

    The cache holds keys and values, and the states of recurrent layers.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        num_samples: int,
    ):
        self.model = model
        self.num_samples = num_samples
        self.prompt_ids_GP = prompt_ids_GP
        # mask of the tokens in the cache; one row per prompt until `first`
        self.mask_BL = prompt_mask_GP
        self.cache = DynamicCache(config=model.config)

    def first(self) -> Tensor:
        hidden_GD = self._read(self.prompt_ids_GP, _positions(self.mask_BL))
        G = len(hidden_GD)
        # recurrent layers have no `batch_repeat_interleave`
        self._select(torch.arange(G, device=hidden_GD.device).repeat_interleave(self.num_samples))
        return hidden_GD.repeat_interleave(self.num_samples, 0)

    def next(self, ids_B: Tensor) -> Tensor:
        # the next position is the number of real tokens so far, since positions begin at 0
        positions_B1 = self.mask_BL.sum(1, keepdim=True)
        self.mask_BL = torch.cat([self.mask_BL, torch.ones_like(positions_B1)], 1)
        return self._read(ids_B[:, None], positions_B1)

    def _read(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Add tokens to the cache; return the hidden state after the last of them."""
        return trunk_of(self.model)(
            input_ids=ids,
            attention_mask=self.mask_BL,
            **position_arguments(self.model, positions),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, -1]

    def keepable(self, live_B: Tensor) -> Tensor:
        return live_B.nonzero()[:, 0]

    def keep(self, rows: Tensor) -> None:
        self._select(rows)

    def _select(self, rows: Tensor) -> None:
        """Let these rows of the cache be its rows. A row can be named several times."""
        self.mask_BL = self.mask_BL[rows]
        self.cache.reorder_cache(rows)  # pyright: ignore[reportArgumentType]


class SharedCacheSteps:
    """`Steps` of a decoder-only model whose responses share their prompt's keys and values.

    See kernels/shared_cache.py.

    Args:
      recorded: whether the steps are recorded (recorded_steps.py).

    The other arguments are those of `SharedCache`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        num_samples: int,
        max_new_tokens: int,
        recorded: bool = False,
    ):
        self.model = model
        self.prompt_ids_GP = prompt_ids_GP
        self.prompt_mask_GP = prompt_mask_GP
        self.num_samples = num_samples
        self.max_new_tokens = room_for(max_new_tokens) if recorded else max_new_tokens
        self.slot = Slot(self.max_new_tokens, prompt_ids_GP.device) if recorded else None
        self.recording = Recording(model) if recorded else None

    def first(self) -> Tensor:
        prompt_cache = DynamicCache(config=self.model.config)
        # transformers passes a mask of four axes on unchanged, instead of building one. The
        # attention function does not read it: the cache has the padding.
        self.unread_mask = self.prompt_mask_GP.new_ones(1, 1, 1, 1, dtype=torch.bool)
        if _is_half_on_cpu(self.model):
            hidden_GD = self._read_without_padding(prompt_cache)
        else:
            hidden_GD = trunk_of(self.model)(
                input_ids=self.prompt_ids_GP,
                attention_mask=self.prompt_mask_GP,
                position_ids=_positions(self.prompt_mask_GP),
                past_key_values=prompt_cache,
                use_cache=True,
            ).last_hidden_state[:, -1]
        self.cache = SharedCache(
            prompt_cache, self.prompt_mask_GP, self.num_samples, self.max_new_tokens, self.slot
        )
        prompt_length_G1 = self.prompt_mask_GP.sum(1, keepdim=True)
        self.next_position_B1 = prompt_length_G1.repeat_interleave(self.num_samples, 0)
        return hidden_GD.repeat_interleave(self.num_samples, 0)

    def _read_without_padding(self, prompt_cache: DynamicCache) -> Tensor:
        """hidden_GD after the prompts, each of which attends by itself.

        In bf16 on a CPU, PyTorch's attention is three times as slow with a mask. The padding moves
        to the end, where `RaggedRows` needs it.
        """
        # a stable sort keeps the order of the real tokens
        order_GP = self.prompt_mask_GP.argsort(dim=1, descending=True, stable=True)
        self.prompt_mask_GP = self.prompt_mask_GP.gather(1, order_GP)
        length_G = self.prompt_mask_GP.sum(1)
        lengths = [[length] for length in length_G.tolist()]
        hidden_GPD = trunk_of(self.model)(
            input_ids=self.prompt_ids_GP.gather(1, order_GP),
            attention_mask=self.unread_mask,
            position_ids=_positions(self.prompt_mask_GP),
            past_key_values=prompt_cache,
            use_cache=True,
            shared_rows=RaggedRows.of(lengths, order_GP.device),
        ).last_hidden_state
        return hidden_GPD[torch.arange(len(length_G)), length_G - 1]

    def next(self, ids_B: Tensor) -> Tensor:
        if self.recording is None:
            return self._next(ids_B)
        return self.recording(self._next, ids_B)

    def _next(self, ids_B: Tensor) -> Tensor:
        if self.slot is not None:
            self.slot.advance()
        hidden_BD = trunk_of(self.model)(
            input_ids=ids_B[:, None],
            attention_mask=self.unread_mask,
            position_ids=self.next_position_B1,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        self.next_position_B1 += 1
        return hidden_BD

    def keepable(self, live_B: Tensor) -> Tensor:
        """The live rows, and others that make the number of rows per prompt equal.

        `SharedCache` needs the same number of responses for each prompt. So a prompt with a live
        response keeps as many as the prompt with most live ones. A prompt without any is dropped.
        """
        if self.slot is not None:
            return all_or_none(live_B)
        live_GK = live_B.view(-1, self.cache.num_samples)
        num_kept = int(live_GK.sum(1).max())
        # a prompt's live responses first, otherwise in their order
        order_GK = live_GK.int().argsort(dim=1, descending=True, stable=True)
        kept_GK = order_GK[:, :num_kept].sort(1).values
        first_row_G1 = torch.arange(len(live_GK), device=live_B.device)[:, None] * live_GK.shape[1]
        has_live_G = live_GK.any(1)
        return (first_row_G1 + kept_GK)[has_live_G].flatten()

    def keep(self, rows: Tensor) -> None:
        self.next_position_B1 = self.next_position_B1[rows]
        self.cache.keep(rows)


def _is_half_on_cpu(model: PreTrainedModel) -> bool:
    is_half = torch.is_autocast_enabled("cpu") or model.dtype == torch.bfloat16
    return model.device.type == "cpu" and is_half


# ---- positions -----------------------------------------------------------------------------------


def _positions(mask_BL: Tensor) -> Tensor:
    """positions_BL: 0, 1, 2, ... on real tokens. Padding before them does not count."""
    return (mask_BL.cumsum(1) - 1).clamp(min=0)

"""How probable language models find responses: a sum that perplexities and implied rewards use."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.models.loading import max_positions
from fgrlhf.models.logprobs import check_logprobs
from fgrlhf.policy import load_policy
from fgrlhf.reward_models.precision import DTYPES
from fgrlhf.rollout import logprobs_of
from fgrlhf.scorers.base import check_device
from fgrlhf.text_types import Prompt

BATCH = 64  # responses in a forward pass


class Likelihood:
    """The log-probability of responses after their prompts under a language model.

    The response has T tokens under the model's own tokenizer, without an end-of-sequence token. A
    decoder-only model reads prompt and response as one text, separated by white space; a prompt
    that is too long for its positions is cut at the beginning. An encoder-decoder reads the prompt
    in its encoder. A model with a chat template reads the prompt as a user's turn.

    Args:
      ckpt: folder or hub name of the model.
      reader: what needs it, for messages.
      device: of the model, which stays there.
      dtype: of its weights, "fp32" or "bf16".

    Raises:
      UserError: the model cannot be loaded, or its tokenizer has no character offsets.
    """

    def __init__(
        self, ckpt: str, reader: str, device: str, dtype: str, chat_template: bool | None = None
    ):
        self.model_name = shorten(ckpt)
        self.language_model = load_policy(ckpt, dtype, chat_template=chat_template)
        self.language_model.to(device).eval()
        self.language_model.requires_grad_(False)
        if not self.language_model.tokenizer.is_fast:
            raise UserError(
                f"{reader} needs a fast tokenizer, which has the characters of each token, and"
                f" {self.model_name} has none (tokenizer.json): choose another model"
            )

    def logprobs(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[tuple[float, int] | None]:
        """(sum_t log p(y_t | x, y_<t), T) of each response; None for a blank one."""
        found: list[tuple[float, int] | None] = [None] * len(texts)
        pairs = {}
        for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            prompt_ids, response_ids = self._token_ids(prompt, text)
            if response_ids:
                pairs[i] = (prompt_ids, response_ids)
        places = list(pairs)
        for start in range(0, len(places), BATCH):
            part = places[start : start + BATCH]
            for i, score in zip(part, self._scores([pairs[i] for i in part]), strict=True):
                found[i] = score
        return found

    def _token_ids(self, prompt: Prompt, text: str) -> tuple[list[int], list[int]]:
        """The ids that the model reads before the response, and those of the response.

        A blank response has no ids.
        """
        if not text.strip():
            return [], []
        tokenizer = self.language_model.tokenizer
        config: Any = self.language_model.model.config
        positions = max_positions(config, "decoder")
        if config.is_encoder_decoder:
            prompt_ids = self.language_model.tokenize([prompt])["input_ids"][0]
            prompt_ids = prompt_ids[: max_positions(config, "encoder")]
            target = tokenizer(text_target=text, add_special_tokens=False, verbose=False)
            response_ids = target["input_ids"][:positions]
        else:
            prompt_ids, response_ids = self._split_joint_text(prompt, text)
            if positions is not None:
                response_ids = response_ids[: positions - 1]
                prompt_ids = prompt_ids[-(positions - len(response_ids)) :]
        if not prompt_ids:  # the model needs a token from which to predict the first one
            start = tokenizer.bos_token_id
            prompt_ids = [tokenizer.eos_token_id if start is None else start]
        return prompt_ids, response_ids

    def _split_joint_text(self, prompt: Prompt, text: str) -> tuple[list[int], list[int]]:
        """Ids of prompt and response, tokenised as one text.

        Many tokenizers join the space between them with the first word of the response. A token
        belongs to the response if it ends in it.
        """
        chat = self.language_model.chat
        if chat is not None:
            return self._split_conversation(prompt, text)
        before = prompt.text
        is_joined = not before or before[-1].isspace() or text[0].isspace()
        encoded = self.language_model.tokenizer(
            before + ("" if is_joined else " ") + text,
            return_offsets_mapping=True,
            verbose=False,
        )
        prompt_ids = []
        response_ids = []
        for token, (_, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            if end > len(before):
                response_ids.append(token)
            elif not response_ids:  # else it is a special token after the text, at (0, 0)
                prompt_ids.append(token)
        return prompt_ids, response_ids

    def _split_conversation(self, prompt: Prompt, text: str) -> tuple[list[int], list[int]]:
        """Ids of prompt and response as the chat template writes them.

        What it writes before the response counts with the prompt. What it writes after it, such as
        the end of the turn, is left out.
        """
        prompt_ids = list(self.language_model.tokenize([prompt])["input_ids"][0])
        ((ids, offsets),) = self.language_model.tokenize_responses([prompt], [text], offsets=True)
        if offsets is None:  # the template changes the text: all but its end is scored
            return prompt_ids, ids[:-1]
        is_lead = [end <= 0 for _, end in offsets]
        begin = is_lead.index(False) if False in is_lead else len(ids)
        ends_of_turn = self.language_model.eos_ids
        end = begin
        while end < len(ids) and 0 <= offsets[end][0] < len(text) and ids[end] not in ends_of_turn:
            end += 1
        return prompt_ids + ids[:begin], ids[begin:end]

    def _scores(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, int]]:
        """(sum_t log p(y_t | x, y_<t), T) of each pair of prompt and response ids."""
        model = self.language_model
        pad_id = model.tokenizer.pad_token_id
        left = model.tokenizer.padding_side == "left"
        prompt_ids_BP, prompt_mask_BP = _padded([prompt for prompt, _ in pairs], pad_id, left)
        response_ids_BT, response_mask_BT = _padded([response for _, response in pairs], pad_id)
        batch = (prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        batch = [tensor.to(model.device) for tensor in batch]
        # no autocast, so that a training run and the evaluation program compute the same value
        with torch.no_grad(), torch.autocast(model.device.type, enabled=False):
            logprobs_BT = logprobs_of(model, batch, num_samples=1, temperature=1.0)
        check_logprobs(logprobs_BT, f"the log-probabilities of {self.model_name}")
        totals_B = logprobs_BT.sum(1, dtype=torch.float64).tolist()
        return [(total, len(ids)) for total, (_, ids) in zip(totals_B, pairs, strict=True)]


class Implied:
    """What training has changed: log p(y | x) - log p_reference(y | x).

    This is the implied reward of DPO (Rafailov et al. 2023) divided by its beta, without the end of
    the sequence. With increments it is a process reward that no label of a step was needed for
    (Rafailov et al. 2024, arXiv 2404.12358; Cui et al. 2025, arXiv 2502.01456). A blank text has 0.
    A config names this scorer with `kind: python`.

    Args:
      policy: folder or hub name of a policy, such as one that DPO trained.
      reference: of the policy from which its training started.
      chat_template: of both, as in `model.chat_template` of the policy's config.
      device: of both; None: a GPU if there is one.

    Raises:
      UserError: a model cannot be loaded, or this machine does not have the device.
    """

    def __init__(
        self,
        policy: str,
        reference: str,
        chat_template: bool | None = None,
        device: str | None = None,
        dtype: str = "fp32",
    ):
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        check_device(device)
        if dtype not in DTYPES:
            raise UserError(f"dtype is {shorten(repr(dtype), 40)}: use {' or '.join(DTYPES)}")
        of_both = ("an implied reward", device, dtype, chat_template)
        self.models = [Likelihood(name, *of_both) for name in (policy, reference)]

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        of_both = (model.logprobs(prompts, texts) for model in self.models)
        return [of[0] - ref[0] if of and ref else 0.0 for of, ref in zip(*of_both, strict=True)]


def _padded(
    rows: Sequence[Sequence[int]], pad_id: int, left: bool = False
) -> tuple[Tensor, Tensor]:
    """(ids, mask) of rows of different lengths."""
    width = max(len(row) for row in rows)
    ids = []
    mask = []
    for row in rows:
        padding = width - len(row)
        if left:
            ids.append([pad_id] * padding + list(row))
            mask.append([0] * padding + [1] * len(row))
        else:
            ids.append(list(row) + [pad_id] * padding)
            mask.append([1] * len(row) + [0] * padding)
    return torch.tensor(ids), torch.tensor(mask)

"""Batches of inputs: which inputs are read together, and the tensors that the network reads.

Responses to the same prompt share its encoder states (seq2seq) or a row (causal), so that the
prompt is read once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fgrlhf.models.packing import ROW_LENGTH, pack_responses
from fgrlhf.models.shared_rows import sharing_pays
from fgrlhf.reward_models.rm_input import LowerStates, RMInput
from fgrlhf.reward_models.spec import Shape
from fgrlhf.reward_models.text_features import TEXT_FEATURES

BATCH_TOKENS = 8_192  # padded tokens of a forward pass without gradients


@dataclass(frozen=True)
class RMCollator:
    """Inputs -> the arguments of the network's forward pass.

    Attributes:
      pad_id: the token on padding.
      shared_width: width of a language model whose rows can hold several responses to a prompt;
        None: every response has its own row.
      text_features: whether the network reads hand-made features of the segments.
    """

    shape: Shape
    pad_id: int
    shared_width: int | None = None
    text_features: bool = False

    def __call__(self, inputs: Sequence[RMInput]) -> dict[str, Tensor]:
        """Arguments of the network's forward pass, padded on the right.

        A language model also gets `places` and `response_mask` (B, T): where the tokens of
        `RMInput.output_ids` are in its rows (row * width + column), and which of them are real. The
        network's logits have their shape. `parts` numbers the responses of rows that hold several.
        `segments` (B, T) numbers the segments of a response, and `text_features` (B, T, F) has
        their features at the outputs that judge them, if the network reads them.
        """
        if self.shape == "encoder":
            return self._ids_and_mask([rm_input.input_ids for rm_input in inputs], "")
        if self.shape == "seq2seq":
            batch = self._encoder_decoder_batch(inputs)
        else:
            batch = self._causal_batch(inputs)
        features = []
        for rm_input in inputs:
            if rm_input.features_TF is not None:
                features.append(rm_input.features_TF)
        if len(features) == len(inputs):
            batch["features"] = torch.nn.utils.rnn.pad_sequence(features, batch_first=True)
        if self.text_features:
            batch["text_features"] = _features_of_segments(inputs)
            batch["segments"] = _padded([rm_input.segments_of_outputs for rm_input in inputs], 0)
        return batch

    def _encoder_decoder_batch(self, inputs: Sequence[RMInput]) -> dict[str, Tensor]:
        """Equal prefixes are in one row of the encoder; `prompt_rows` is that of a decoder row."""
        prefixes: dict[tuple[int, ...], int] = {}
        prompts = []
        for rm_input in inputs:
            prompts.append(prefixes.setdefault(rm_input.prompt, len(prefixes)))
        prompts_B = torch.tensor(prompts)
        encoder = self._ids_and_mask([list(ids) for ids in prefixes], "")
        decoder = self._ids_and_mask([rm_input.output_ids for rm_input in inputs], "decoder_")
        ids_BT = decoder["decoder_input_ids"]
        mask_BT = decoder["decoder_attention_mask"]
        if self.shared_width is None:
            return {
                **encoder,
                **decoder,
                "prompt_rows": prompts_B,
                "places": torch.arange(ids_BT.numel()).view_as(ids_BT),
                "response_mask": mask_BT,
            }
        # in a narrow network, attention is expensive in comparison: rows are shorter
        packing = pack_responses(mask_BT, prompts_B, min(ROW_LENGTH, self.shared_width))
        numbers_B1 = torch.arange(1, len(inputs) + 1)[:, None]
        parts_RL = packing.pack(numbers_B1.expand_as(ids_BT).contiguous(), fill=-1)
        return {
            **encoder,
            "decoder_input_ids": packing.pack(ids_BT, fill=self.pad_id),
            "decoder_attention_mask": (parts_RL > 0).long(),
            "parts": parts_RL,
            "prompt_rows": torch.arange(len(prefixes)).repeat_interleave(packing.rows_per_prompt),
            "places": packing.place_BT * mask_BT,
            "response_mask": mask_BT,
        }

    def _causal_batch(self, inputs: Sequence[RMInput]) -> dict[str, Tensor]:
        """One row per response, or per prompt where that is cheaper (models/shared_rows.py)."""
        members_of_rows, shares = self._causal_rows(inputs)
        rows: list[_CausalRow] = []
        row_of = [0] * len(inputs)
        columns: list[list[int]] = [[] for _ in inputs]  # of every token with an output
        for members in members_of_rows:
            prompt = inputs[members[0]].prompt
            row = _CausalRow(prompt)
            for b in members:
                row_of[b] = len(rows)
                columns[b] = row.add(inputs[b].input_ids[len(prompt) :])
            rows.append(row)

        batch = self._ids_and_mask([row.ids for row in rows], "")
        width = batch["input_ids"].shape[1]
        places = []
        for b, number in enumerate(row_of):
            places.append([number * width + column for column in columns[b]])
        batch["places"] = _padded(places, 0)
        batch["response_mask"] = _padded([[1] * len(place) for place in places], 0)
        if shares:
            batch["parts"] = _padded([row.parts for row in rows], -1)
            batch["position_ids"] = _padded([row.positions for row in rows], 0)
        if all(rm_input.lower is not None for rm_input in inputs):
            batch["lower"] = _rows_of_states(inputs, members_of_rows)
        return batch

    def _causal_rows(self, inputs: Sequence[RMInput]) -> tuple[list[list[int]], bool]:
        """The responses of each row, and whether responses to a prompt share a row."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for b, rm_input in enumerate(inputs):
            groups.setdefault(rm_input.prompt, []).append(b)
        shares = self.shared_width is not None and sharing_pays(
            P=max(len(prompt) for prompt in groups),
            T=max(len(rm_input.output_ids) for rm_input in inputs),
            K=len(inputs) // len(groups),
            D=self.shared_width,
        )
        rows = list(groups.values()) if shares else [[b] for b in range(len(inputs))]
        return rows, shares

    def split_rows(self, inputs: Sequence[RMInput], states_RLD: Tensor) -> list[LowerStates]:
        """States of the rows of a batch -> those of each decoder-only input.

        Responses in a row share the tensor of their prompt.
        """
        results: dict[int, LowerStates] = {}
        rows, _ = self._causal_rows(inputs)
        for members, states_LD in zip(rows, states_RLD):
            begin = len(inputs[members[0]].prompt)
            prompt_PD = states_LD[:begin].clone()
            for b in members:
                end = begin + inputs[b].length - len(inputs[b].prompt)
                results[b] = LowerStates(prompt_PD, states_LD[begin:end].clone())
                begin = end
        return [results[b] for b in range(len(inputs))]

    def _ids_and_mask(self, rows: Sequence[list[int]], name: str) -> dict[str, Tensor]:
        """Padded rows of ids with their attention mask, as `<name>input_ids` and so on."""
        return {
            f"{name}input_ids": _padded(rows, self.pad_id),
            f"{name}attention_mask": _padded([[1] * len(row) for row in rows], 0),
        }


class _CausalRow:
    """A row of a decoder-only model: a prompt, then responses to it (models/shared_rows.py).

    Attributes:
      ids: of its tokens.
      parts: the response that each token belongs to, from 1; 0 in the prompt.
      positions: of its tokens. Those of each response continue the prompt's.
    """

    def __init__(self, prompt: Sequence[int]):
        self.ids = list(prompt)
        self.parts = [0] * len(prompt)
        self.positions = list(range(len(prompt)))
        self._prompt_length = len(prompt)
        self._responses = 0

    def add(self, response: Sequence[int]) -> list[int]:
        """Append a response.

        Returns:
          The columns of the tokens that have an output for it: the last one of the prompt, if there
          is a prompt, and those of the response.
        """
        begin = len(self.ids)
        end_of_prompt = self._prompt_length
        self._responses += 1
        self.ids += response
        self.parts += [self._responses] * len(response)
        self.positions += range(end_of_prompt, end_of_prompt + len(response))
        last_of_prompt = [end_of_prompt - 1] if end_of_prompt else []
        return [*last_of_prompt, *range(begin, len(self.ids))]


def _padded(rows: Sequence[list[int]], fill: int) -> Tensor:
    """Rows of numbers as a tensor, filled up on the right."""
    width = max(len(row) for row in rows)
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])


def _rows_of_states(inputs: Sequence[RMInput], rows: Sequence[Sequence[int]]) -> Tensor:
    """lower_RLD of the rows of a batch, padded with zeros."""
    states = []
    for members in rows:
        parts: list[Tensor] = []
        for b in members:
            lower = inputs[b].lower
            assert lower is not None  # the caller has checked it
            if not parts:
                parts.append(lower.prompt_PD)
            parts.append(lower.response_TD)
        states.append(torch.cat(parts))
    return torch.nn.utils.rnn.pad_sequence(states, batch_first=True)


def _features_of_segments(inputs: Sequence[RMInput]) -> Tensor:
    """The features of each segment at the output that judges it, 0 elsewhere."""
    width = max(len(rm_input.output_ids) for rm_input in inputs)
    features_BTF = torch.zeros(len(inputs), width, len(TEXT_FEATURES))
    for b, rm_input in enumerate(inputs):
        assert rm_input.text_features is not None  # `RMInputs.encode` has computed them
        for position, features in zip(rm_input.positions, rm_input.text_features, strict=True):
            if position is not None:
                features_BTF[b, position - rm_input.first_output] = torch.tensor(features)
    return features_BTF


def batches_by_prompt(inputs: Sequence[RMInput], batch_tokens: int) -> list[list[int]]:
    """Batches of indices of inputs of similar length, those of a prompt together.

    A batch has at most `batch_tokens` padded tokens, or a single input. A prompt counts once,
    because its responses share it; an encoder's inputs have no prompt of their own.
    """
    by_prompt: dict[tuple[int, ...] | int, list[int]] = {}
    for i, rm_input in enumerate(inputs):
        by_prompt.setdefault(rm_input.prompt or i, []).append(i)
    groups = list(by_prompt.values())
    for group in groups:
        group.sort(key=lambda i: -inputs[i].length)
    groups.sort(key=lambda group: -inputs[group[0]].length)

    batches: list[list[int]] = []
    size = _BatchSize()
    for group in groups:
        for number, i in enumerate(group):
            larger = size.with_input(inputs[i], is_new_prompt=number == 0)
            if batches and larger.tokens <= batch_tokens:
                batches[-1].append(i)
                size = larger
            else:
                batches.append([i])
                size = _BatchSize().with_input(inputs[i], is_new_prompt=True)
    return batches


@dataclass(frozen=True)
class _BatchSize:
    """The size of a batch: prompts and the longest of them, responses and the longest of them."""

    prompts: int = 0
    longest_prompt: int = 0
    responses: int = 0
    longest_response: int = 0

    @property
    def tokens(self) -> int:
        return self.prompts * self.longest_prompt + self.responses * self.longest_response

    def with_input(self, added: RMInput, is_new_prompt: bool) -> "_BatchSize":
        prompt = len(added.prompt)
        prompts = self.prompts + 1 if is_new_prompt else self.prompts
        return _BatchSize(
            prompts,
            max(self.longest_prompt, prompt),
            self.responses + 1,
            max(self.longest_response, added.length - prompt),
        )

"""Inputs of a reward model's network: token ids, and the position that judges each segment.

Three shapes read the same words: a prefix and the segments of the response.

- encoder: `prefix </s> segment 1 </s> segment 2 ...` in one bidirectional encoder such as
  Longformer. Segment j is judged at its `</s>`. A score of the whole response comes from the
  sequence classification head, and no `</s>` is inserted.
- seq2seq: the encoder reads the prefix, the decoder the response. Segment j is judged at its last
  token.
- causal: one decoder-only sequence holds the prefix and the response. Segment j is judged at its
  last token.

`RMInputs` turns words into ids, in training and in scoring. Responses to the same prompt share its
encoder states (seq2seq) or a row (causal), so that the prompt is read once.

An input that is too long for the network loses its context first, from the end, then the end of the
response, and the rest of the prompt last (`lengths_that_fit`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig

from fgrlhf.errors import UserError
from fgrlhf.models.packing import ROW_LENGTH, pack_responses
from fgrlhf.models.shared_rows import sharing_pays
from fgrlhf.reward_models.prefix import Prefix, RMText
from fgrlhf.reward_models.text_features import TEXT_FEATURES, segment_features
from fgrlhf.reward_utils import SEGMENT_MARK

Shape = Literal["encoder", "seq2seq", "causal"]
Kind = Literal["segment", "sequence"]

IGNORED = -100  # the label that the losses of transformers ignore


class LowerStates(NamedTuple):
    """What frozen layers compute of the tokens of a decoder-only input: prompt, then response."""

    prompt_PD: Tensor
    response_TD: Tensor


@dataclass(frozen=True)
class RMInput:
    """Ids that the network reads, and the position whose output judges each segment.

    In a decoder-only model, the ids of prompt and response are one sequence. Its network gives an
    output for the last token of the prompt, from which a blank response is judged, and for every
    token of the response.

    A position is None if the segment has no words or its last token was cut off. Such a segment is
    not judged, because the token of another segment would judge it wrongly.

    Attributes:
      prefix_length: tokens of a decoder-only input before the response.
      cut_context, cut_response, cut_core: tokens of each part that did not fit. The core is the
        prompt without its context.
      unread_segments: segments that are not judged because their last token was cut off.
      features_TF: what a frozen language model computes of every token that has an output, if it
        was computed before (precompute.py).
      lower: what the frozen layers compute of every token, if it was computed before.
      text_features: hand-made features of every segment (text_features.py), if the network reads
        them.
    """

    input_ids: list[int]
    decoder_input_ids: list[int] | None
    positions: tuple[int | None, ...]
    prefix_length: int = 0
    cut_context: int = 0
    cut_response: int = 0
    cut_core: int = 0
    unread_segments: int = 0
    features_TF: Tensor | None = None
    lower: LowerStates | None = None
    text_features: tuple[tuple[float, ...], ...] | None = None

    @property
    def length(self) -> int:
        return len(self.input_ids) + len(self.decoder_input_ids or ())

    @property
    def prompt(self) -> tuple[int, ...]:
        """The ids before the response: inputs with equal ones share their prompt."""
        if self.decoder_input_ids is not None:
            return tuple(self.input_ids)
        return tuple(self.input_ids[: self.prefix_length])

    @property
    def first_output(self) -> int:
        """The first position that the network has an output for."""
        return max(self.prefix_length - 1, 0)

    @property
    def judged_outputs(self) -> list[int]:
        """The indices of the outputs that judge segments."""
        return [p - self.first_output for p in self.positions if p is not None]

    @property
    def segments_of_outputs(self) -> list[int]:
        """The judged segment that each token with an output belongs to, from 1; 0 if none.

        The first output has none: its token precedes the response.
        """
        numbers = [0] * len(self.output_ids)
        begin = 1
        for number, last in enumerate(self.judged_outputs, 1):
            for output in range(begin, last + 1):
                numbers[output] = number
            begin = last + 1
        return numbers

    @property
    def output_ids(self) -> list[int]:
        """The ids at the positions that the network has an output for."""
        if self.decoder_input_ids is not None:
            return self.decoder_input_ids
        return self.input_ids[self.first_output :]

    @property
    def read_length(self) -> int:
        """Length of the sequence that `positions` refer to."""
        return len(self.input_ids if self.decoder_input_ids is None else self.decoder_input_ids)


@dataclass(frozen=True)
class Cuts:
    """Counts of inputs that were cut.

    Attributes:
      inputs: all inputs.
      prefixes: those whose prompt was cut, in its context or in its core.
      contexts, responses, cores: those that lost tokens of this part.
      unread_segments: segments that are not judged because of a cut.
    """

    inputs: int = 0
    prefixes: int = 0
    contexts: int = 0
    responses: int = 0
    cores: int = 0
    unread_segments: int = 0

    @classmethod
    def count(cls, inputs: Sequence[RMInput]) -> "Cuts":
        return cls(
            inputs=len(inputs),
            prefixes=sum(x.cut_context > 0 or x.cut_core > 0 for x in inputs),
            contexts=sum(x.cut_context > 0 for x in inputs),
            responses=sum(x.cut_response > 0 for x in inputs),
            cores=sum(x.cut_core > 0 for x in inputs),
            unread_segments=sum(x.unread_segments for x in inputs),
        )

    def __add__(self, other: "Cuts") -> "Cuts":
        return Cuts(
            inputs=self.inputs + other.inputs,
            prefixes=self.prefixes + other.prefixes,
            contexts=self.contexts + other.contexts,
            responses=self.responses + other.responses,
            cores=self.cores + other.cores,
            unread_segments=self.unread_segments + other.unread_segments,
        )

    def describe(self, max_length: int) -> str:
        """A line for the user."""
        line = (
            f"{self.contexts} of {self.inputs} inputs: context cut to fit"
            f" model.max_length={max_length}; {self.responses} responses cut"
        )
        if self.unread_segments:
            line += f", {self.unread_segments} of their segments are not judged"
        if self.cores:
            line += f"; {self.cores} prompts cut beyond their context: raise model.max_length"
        return line


class TokenCounts(NamedTuple):
    """Tokens of each part of an input. Special tokens count as part of the core."""

    context: int
    response: int
    core: int


def lengths_that_fit(context: int, response: int, core: int, max_length: int) -> TokenCounts:
    """How many tokens of each part fit into `max_length`.

    The context is cut first, then the response, and the core last. Each part loses its end.
    """
    core_left = min(core, max_length)
    response_left = min(response, max_length - core_left)
    context_left = min(context, max_length - core_left - response_left)
    return TokenCounts(context_left, response_left, core_left)


class RMInputs:
    """Words to ids and read positions, and batches of them.

    Args:
      tokenizer: a fast tokenizer (character offsets and word numbers are needed).
      max_length: tokens of an encoder's or a decoder-only input. An encoder-decoder's prefix and
        response are each cut to it.
      decoder_start_id: the token an encoder-decoder's decoder starts with.
      shared_width: width of a language model whose rows can hold several responses to a prompt;
        None: every response has its own row.
      text_features: whether the network reads hand-made features of the segments.

    Attributes:
      cuts: counts over everything encoded so far.

    Raises:
      UserError: the tokenizer is not fast, or an encoder's tokenizer has no token to mark segments.
    """

    def __init__(
        self,
        tokenizer,
        shape: Shape,
        kind: Kind,
        max_length: int,
        decoder_start_id: int | None = None,
        shared_width: int | None = None,
        text_features: bool = False,
    ):
        if not tokenizer.is_fast:
            raise UserError(
                "the reward model's tokenizer gives no character offsets; save it as a fast"
                " tokenizer (tokenizer.json)"
            )
        self.tokenizer = tokenizer
        self.shape = shape
        self.kind = kind
        self.max_length = max_length
        self.decoder_start_id = decoder_start_id
        self.shared_width = shared_width
        self.text_features = text_features
        has_marks = shape == "encoder" and kind == "segment"
        self.mark = segment_mark(tokenizer) if has_marks else SEGMENT_MARK
        self.cuts = Cuts()

    def encode(self, texts: Sequence[RMText]) -> list[RMInput]:
        """One input per text. Each text is tokenised once."""
        if not texts:
            return []
        if self.shape == "encoder":
            inputs = self._encode_for_encoder(texts)
        else:
            inputs = self._encode_for_language_model(texts)
        if self.text_features:
            inputs = [
                replace(read, text_features=segment_features(text))
                for read, text in zip(inputs, texts)
            ]
        self.cuts += Cuts.count(inputs)
        return inputs

    # ---- encoders ----

    def _encode_for_encoder(self, texts: Sequence[RMText]) -> list[RMInput]:
        all_words: list[list[str]] = []
        all_bounds: list[list[int]] = []  # the first word of each segment, and the end
        for text in texts:
            words = text.prefix.all_words
            bounds = []
            for segment in text.segments:
                bounds.append(len(words))
                if self.kind == "segment":
                    words.append(self.mark)
                words += segment
            bounds.append(len(words))
            all_words.append(words)
            all_bounds.append(bounds)
        batch = self.tokenizer(all_words, is_split_into_words=True, verbose=False)
        return [
            self._cut_encoder_input(
                batch["input_ids"][i], batch.word_ids(i), text.prefix.context, all_bounds[i]
            )
            for i, text in enumerate(texts)
        ]

    def _cut_encoder_input(
        self,
        ids: list[int],
        word_ids: Sequence[int | None],
        context: Sequence[range],
        bounds: Sequence[int],
    ) -> RMInput:
        """An encoder's input, cut to `max_length`. Its final special tokens stay.

        Args:
          ids: of the whole input.
          word_ids: the index of the word that each token is part of; None for special tokens.
          context: ranges of words.
          bounds: the index of the first word of each segment (or of its mark, if there are marks),
            and the number of words.
        """
        first_token: dict[int, int] = {}
        last_token: dict[int, int] = {}
        for position, word in enumerate(word_ids):
            if word is not None:
                first_token.setdefault(word, position)
                last_token[word] = position
        content_end = max(last_token.values(), default=-1) + 1

        def begin(word: int) -> int:
            """The first token of this word, or of the next one that has tokens."""
            later = (token for number, token in first_token.items() if number >= word)
            return min(later, default=content_end)

        context_tokens = _positions((begin(part.start), begin(part.stop)) for part in context)
        response_begin = begin(bounds[0])
        response_length = content_end - response_begin
        lengths = TokenCounts(
            context=len(context_tokens),
            response=response_length,
            core=len(ids) - len(context_tokens) - response_length,
        )
        fitting = lengths_that_fit(*lengths, self.max_length)

        # the parts that fit: prompt, response and final special tokens
        prompt_ids = _without(ids[:response_begin], context_tokens[fitting.context :])
        ending = ids[content_end:]
        if fitting.core < lengths.core:
            prompt_ids = prompt_ids[: max(0, self.max_length - len(ending))]
        response_end = response_begin + fitting.response
        response_ids = ids[response_begin:response_end]
        read_ids = (prompt_ids + response_ids + ending)[: self.max_length]

        removed = lengths.context - fitting.context  # every mark moves left by this number
        positions: list[int | None] = []
        unread = 0
        if self.kind == "sequence":
            positions.append(0)  # the classification head reads the first token
        else:
            for mark, end in zip(bounds, bounds[1:]):
                has_words = mark + 1 < end
                last = max(last_token.get(word, -1) for word in range(mark, end))
                fits = last < response_end
                positions.append(first_token[mark] - removed if has_words and fits else None)
                if has_words and not fits:
                    unread += 1
        return RMInput(
            read_ids,
            None,
            tuple(positions),
            cut_context=removed,
            cut_response=lengths.response - fitting.response,
            cut_core=lengths.core - fitting.core,
            unread_segments=unread,
        )

    # ---- language models ----

    def _encode_for_language_model(self, texts: Sequence[RMText]) -> list[RMInput]:
        prefixes = self._tokenise_prefixes([text.prefix for text in texts])
        joined = [join_segments(text.segments) for text in texts]
        # in a decoder-only model the response follows the prompt, so it begins with a space
        lead = "" if self.shape == "seq2seq" else " "
        batch = self.tokenizer(
            [lead + response for response, _ in joined],
            add_special_tokens=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        inputs = []
        for i, text in enumerate(texts):
            response, spans = joined[i]
            shifted = [(start + len(lead), end + len(lead)) for start, end in spans]
            last = last_tokens(batch["offset_mapping"][i], shifted)
            response_ids = batch["input_ids"][i] if response else []
            inputs.append(self._cut_language_model_input(prefixes[text.prefix], response_ids, last))
        return inputs

    def _cut_language_model_input(
        self, prefix: "_PrefixTokens", response_ids: list[int], last: Sequence[int | None]
    ) -> RMInput:
        """A language model's input, cut to `max_length`.

        Args:
          last: the last token of each segment, as an index into `response_ids`.
        """
        lengths = prefix.lengths(len(response_ids))
        if self.shape == "seq2seq":  # two sequences, and each may have `max_length` tokens
            prefix_left = lengths_that_fit(lengths.context, 0, lengths.core, self.max_length)
            response_left = min(lengths.response, self.max_length - 1)
            fitting = prefix_left._replace(response=response_left)
            before_response = [self._decoder_start()]
        else:
            fitting = lengths_that_fit(*lengths, self.max_length)
            before_response = prefix.cut_to(fitting)
        read_ids = before_response + response_ids[: fitting.response]

        positions: list[int | None] = []
        unread = 0
        if self.kind == "sequence":
            positions.append(len(read_ids) - 1)
        else:
            for token in last:
                if token is None:
                    positions.append(None)
                elif token < fitting.response:
                    positions.append(len(before_response) + token)
                else:
                    positions.append(None)
                    unread += 1
        return RMInput(
            prefix.cut_to(fitting) if self.shape == "seq2seq" else read_ids,
            read_ids if self.shape == "seq2seq" else None,
            tuple(positions),
            prefix_length=0 if self.shape == "seq2seq" else len(before_response),
            cut_context=lengths.context - fitting.context,
            cut_response=lengths.response - fitting.response,
            cut_core=lengths.core - fitting.core,
            unread_segments=unread,
        )

    def _decoder_start(self) -> int:
        if self.decoder_start_id is None:
            raise ValueError("an encoder-decoder needs decoder_start_id")
        return self.decoder_start_id

    def _tokenise_prefixes(self, prefixes: Iterable[Prefix]) -> "dict[Prefix, _PrefixTokens]":
        """The tokens of each distinct prefix, without the mark of the response.

        The samples of one prompt share their prefix.
        """
        unique = list(dict.fromkeys(prefixes))
        texts = [" ".join(prefix.words) for prefix in unique]
        batch = self.tokenizer(texts, return_offsets_mapping=True, verbose=False)
        tokens = {}
        for i, prefix in enumerate(unique):
            offsets = batch["offset_mapping"][i]
            content_end = 0
            for position, (start, end) in enumerate(offsets):
                if start < end:  # special tokens have no characters
                    content_end = position + 1
            context = _positions(
                (
                    _token_of_word(prefix.words, part.start, offsets, content_end),
                    _token_of_word(prefix.words, part.stop, offsets, content_end),
                )
                for part in prefix.context
            )
            tokens[prefix] = _PrefixTokens(batch["input_ids"][i], context, content_end)
        return tokens

    # ---- batches ----

    def collate(self, inputs: Sequence[RMInput]) -> dict[str, Tensor]:
        """Arguments of the network's forward pass, padded on the right.

        A language model also gets `places` and `response_mask` (B, T): where the tokens of
        `RMInput.output_ids` are in its rows (row * width + column), and which of them are real. The
        network's logits have their shape. `parts` numbers the responses of rows that hold several.
        `segments` (B, T) numbers the segments of a response, and `text_features` (B, T, F) has
        their features at the outputs that judge them, if the network reads them.
        """
        if self.shape == "encoder":
            return self._padded([x.input_ids for x in inputs], "")
        if self.shape == "seq2seq":
            batch = self._encoder_decoder_batch(inputs)
        else:
            batch = self._causal_batch(inputs)
        if all(x.features_TF is not None for x in inputs):
            features = [x.features_TF for x in inputs if x.features_TF is not None]
            batch["features"] = torch.nn.utils.rnn.pad_sequence(features, batch_first=True)
        if self.text_features:
            batch["text_features"] = _features_of_segments(inputs)
            batch["segments"] = _padded([x.segments_of_outputs for x in inputs], 0)
        return batch

    def _encoder_decoder_batch(self, inputs: Sequence[RMInput]) -> dict[str, Tensor]:
        """Equal prefixes are in one row of the encoder; `prompt_rows` is that of a decoder row."""
        prefixes: dict[tuple[int, ...], int] = {}
        prompts = torch.tensor([prefixes.setdefault(x.prompt, len(prefixes)) for x in inputs])
        encoder = self._padded([list(ids) for ids in prefixes], "")
        decoder = self._padded([x.output_ids for x in inputs], "decoder_")
        ids_BT = decoder["decoder_input_ids"]
        mask_BT = decoder["decoder_attention_mask"]
        if self.shared_width is None:
            return {
                **encoder,
                **decoder,
                "prompt_rows": prompts,
                "places": torch.arange(ids_BT.numel()).view_as(ids_BT),
                "response_mask": mask_BT,
            }
        # in a narrow network, attention is expensive in comparison: rows are shorter
        packing = pack_responses(mask_BT, prompts, min(ROW_LENGTH, self.shared_width))
        numbers_B1 = torch.arange(1, len(inputs) + 1)[:, None]
        parts_RN = packing.pack(numbers_B1.expand_as(ids_BT).contiguous(), fill=-1)
        return {
            **encoder,
            "decoder_input_ids": packing.pack(ids_BT, fill=self.tokenizer.pad_token_id),
            "decoder_attention_mask": (parts_RN > 0).long(),
            "parts": parts_RN,
            "prompt_rows": torch.arange(len(prefixes)).repeat_interleave(packing.rows_per_prompt),
            "places": packing.place_BT * mask_BT,
            "response_mask": mask_BT,
        }

    def _causal_batch(self, inputs: Sequence[RMInput]) -> dict[str, Tensor]:
        """One row per response, or per prompt where that is cheaper (models/shared_rows.py)."""
        rows, shares = self._causal_rows(inputs)
        ids: list[list[int]] = []
        parts: list[list[int]] = []
        positions: list[list[int]] = []
        columns: list[list[int]] = [[] for _ in inputs]  # of every token with an output
        row_of = [0] * len(inputs)
        for row, members in enumerate(rows):
            prompt = inputs[members[0]].prompt
            ids.append(list(prompt))
            parts.append([0] * len(prompt))
            positions.append(list(range(len(prompt))))
            for number, b in enumerate(members, 1):
                response = inputs[b].input_ids[len(prompt) :]
                begin = len(ids[row])
                last_of_prompt = [len(prompt) - 1] if prompt else []
                columns[b] = last_of_prompt + list(range(begin, begin + len(response)))
                row_of[b] = row
                ids[row] += response
                parts[row] += [number] * len(response)
                positions[row] += range(len(prompt), len(prompt) + len(response))

        batch = self._padded(ids, "")
        width = batch["input_ids"].shape[1]
        places = [[row * width + column for column in columns[b]] for b, row in enumerate(row_of)]
        batch["places"] = _padded(places, 0)
        batch["response_mask"] = _padded([[1] * len(place) for place in places], 0)
        if shares:
            batch["parts"] = _padded(parts, -1)
            batch["position_ids"] = _padded(positions, 0)
        if all(x.lower is not None for x in inputs):
            batch["lower"] = _rows_of_states(inputs, rows)
        return batch

    def _causal_rows(self, inputs: Sequence[RMInput]) -> tuple[list[list[int]], bool]:
        """The responses of each row, and whether responses to a prompt share a row."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for b, x in enumerate(inputs):
            groups.setdefault(x.prompt, []).append(b)
        shares = self.shared_width is not None and sharing_pays(
            P=max(len(prompt) for prompt in groups),
            T=max(len(x.output_ids) for x in inputs),
            K=len(inputs) // len(groups),
            D=self.shared_width,
        )
        rows = list(groups.values()) if shares else [[b] for b in range(len(inputs))]
        return rows, shares

    def split_rows(self, inputs: Sequence[RMInput], states_RLD: Tensor) -> list[LowerStates]:
        """States of the rows of `collate` -> those of each decoder-only input.

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

    def _padded(self, rows: Sequence[list[int]], name: str) -> dict[str, Tensor]:
        return {
            f"{name}input_ids": _padded(rows, self.tokenizer.pad_token_id),
            f"{name}attention_mask": _padded([[1] * len(row) for row in rows], 0),
        }


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
    width = max(len(x.output_ids) for x in inputs)
    features_BTF = torch.zeros(len(inputs), width, len(TEXT_FEATURES))
    for b, x in enumerate(inputs):
        assert x.text_features is not None  # `encode` has computed them
        for position, features in zip(x.positions, x.text_features, strict=True):
            if position is not None:
                features_BTF[b, position - x.first_output] = torch.tensor(features)
    return features_BTF


def batches_by_prompt(inputs: Sequence[RMInput], batch_tokens: int) -> list[list[int]]:
    """Batches of indices of inputs of similar length, those of a prompt together.

    A batch has at most `batch_tokens` padded tokens, or a single input. A prompt counts once,
    because its responses share it; an encoder's inputs have no prompt of their own.
    """
    by_prompt: dict[tuple[int, ...] | int, list[int]] = {}
    for i, x in enumerate(inputs):
        by_prompt.setdefault(x.prompt or i, []).append(i)
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
        return _BatchSize(
            self.prompts + is_new_prompt,
            max(self.longest_prompt, prompt),
            self.responses + 1,
            max(self.longest_response, added.length - prompt),
        )


@dataclass(frozen=True)
class _PrefixTokens:
    """A language model's prefix.

    Attributes:
      ids: all tokens.
      context: positions of the tokens that may be cut.
      content_end: where the special tokens at the end begin.
    """

    ids: list[int]
    context: list[int]
    content_end: int

    def lengths(self, response: int) -> TokenCounts:
        """Tokens of each part of an input whose response has `response` tokens."""
        context = len(self.context)
        return TokenCounts(context, response, len(self.ids) - context)

    def cut_to(self, fitting: TokenCounts) -> list[int]:
        """The ids without the context and core tokens that do not fit."""
        ending = self.ids[self.content_end :][: fitting.core]
        content = _without(self.ids[: self.content_end], self.context[fitting.context :])
        return content[: fitting.context + fitting.core - len(ending)] + ending


def _positions(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """All positions of half-open ranges, in order."""
    return [position for start, stop in ranges for position in range(start, stop)]


def _without(ids: Sequence[int], positions: Iterable[int]) -> list[int]:
    """The ids at all other positions."""
    removed = set(positions)
    return [token for position, token in enumerate(ids) if position not in removed]


def _token_of_word(
    words: Sequence[str], word: int, offsets: Sequence[tuple[int, int]], content_end: int
) -> int:
    """The first token of a word among words joined by spaces; `content_end` after the last word.

    The space before a word may be part of its token.
    """
    space = sum(len(text) + 1 for text in words[:word]) - 1
    for position, (start, end) in enumerate(offsets):
        if start >= space and start < end:
            return position
    return content_end


def segment_mark(tokenizer) -> str:
    """The token put before every segment: `</s>` if the vocabulary has it, else the separator."""
    vocabulary = tokenizer.get_vocab()
    for mark in (SEGMENT_MARK, tokenizer.sep_token, tokenizer.eos_token):
        if mark is not None and mark in vocabulary:
            return mark
    raise UserError(
        f"the encoder's tokenizer has no token to mark segments with: add `{SEGMENT_MARK}` to it as"
        " a special token"
    )


def longest_input(config: PretrainedConfig, shape: Shape) -> int | None:
    """Most tokens that a network can read; None with relative positions."""
    positions: Any = getattr(config, "max_position_embeddings", None)
    if positions is None or shape != "encoder":
        return positions
    return positions - 2  # RoBERTa and Longformer count positions from two


def join_segments(segments: Sequence[Sequence[str]]) -> tuple[str, list[tuple[int, int]]]:
    """All words joined by one space, and the half-open characters of each segment in that text.

    A segment without words has an empty span.
    """
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    length = 0
    for segment in segments:
        text = " ".join(segment)
        start = length + (1 if length and text else 0)
        spans.append((start, start + len(text)))
        if text:
            parts.append(text)
            length = start + len(text)
    return " ".join(parts), spans


def last_tokens(
    offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> list[int | None]:
    """For each character span the token that completes it.

    That is the last token that begins before the end of the span. Tokens that share a character,
    such as the bytes of an emoji, begin at the same offset; the last of them counts. The result is
    None for an empty span, and if the tokenizer dropped all its characters.
    """
    starts = list(accumulate((start for start, _ in offsets), max))
    tokens: list[int | None] = []
    for start, end in spans:
        token = bisect_left(starts, end) - 1
        while token >= 0 and offsets[token][0] == offsets[token][1]:  # tokens of no characters
            token -= 1
        has_characters = start < end and token >= 0 and offsets[token][1] > start
        tokens.append(token if has_characters else None)
    return tokens

"""What a reward model's network reads: token ids, and the position that judges each segment.

Three shapes read the same words: a prefix and the segments of the response.

- encoder: `prefix </s> segment 1 </s> segment 2 ...` in one bidirectional encoder such as
  Longformer. Segment j is judged at its `</s>`. A score of the whole response comes from the
  sequence classification head, and no `</s>` is inserted.
- seq2seq: the encoder reads the prefix, the decoder the response. Segment j is judged at its last
  token.
- causal: one decoder-only sequence holds the prefix and the response. Segment j is judged at its
  last token.

An input that is too long for the network loses its context first, then the end of the response, and
the rest of the prompt last (`lengths_that_fit`). A context loses its end, or its beginning if it is
that of a dialog (`Prefix.keeps_end`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class LowerStates(NamedTuple):
    """What frozen layers compute of a decoder-only input.

    P tokens of the prompt, T of the response, D numbers for each of them.
    """

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
      input_ids: of the whole input; of an encoder-decoder's prompt.
      decoder_input_ids: of an encoder-decoder's response; None in other shapes.
      positions: of the tokens that judge the segments, in the decoder's ids if there are any.
      prefix_length: tokens of a decoder-only input before the response.
      cut_context, cut_response, cut_core: tokens of each part that did not fit. The core is the
        prompt without its context.
      unread_segments: segments that are not judged because their last token was cut off.
      features_TF: F features that a frozen language model computes of each of the T tokens that
        have an output, if they were computed before (precompute.py).
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
            prefixes=sum(rm_input.cut_context > 0 or rm_input.cut_core > 0 for rm_input in inputs),
            contexts=sum(rm_input.cut_context > 0 for rm_input in inputs),
            responses=sum(rm_input.cut_response > 0 for rm_input in inputs),
            cores=sum(rm_input.cut_core > 0 for rm_input in inputs),
            unread_segments=sum(rm_input.unread_segments for rm_input in inputs),
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
            f" model.max_input_len={max_length}; {self.responses} responses cut"
        )
        if self.unread_segments:
            line += f", {self.unread_segments} of their segments are not judged"
        if self.cores:
            line += f"; {self.cores} prompts cut beyond their context: raise model.max_input_len"
        return line


class TokenCounts(NamedTuple):
    """Tokens of each part of an input. Special tokens count as part of the core."""

    context: int
    response: int
    core: int


def lengths_that_fit(context: int, response: int, core: int, max_length: int) -> TokenCounts:
    """How many tokens of each part fit into `max_length` tokens.

    The context is cut first, then the response, and the core last.
    """
    core_left = min(core, max_length)
    response_left = min(response, max_length - core_left)
    context_left = min(context, max_length - core_left - response_left)
    return TokenCounts(context_left, response_left, core_left)

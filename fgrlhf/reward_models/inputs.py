"""What a reward model's network reads: words to token ids, and where each segment is judged.

Three shapes, one interface. All of them see the same words: a prefix (question, passages) and the
answer's segments.

    encoder   `prefix </s> segment 1 </s> segment 2 ...` in one bidirectional encoder (Longformer);
    segment j
              is judged at its `</s>`. A score of the whole answer is the sequence-classification
              head's, no `</s>` is put in.
    seq2seq   an encoder reads the prefix, a decoder the answer; segment j is judged at its last
    token causal    prefix and answer in one decoder-only sequence; the same

`RMInputs` turns words into ids, for training and for scoring alike. An input that is longer than
the network reads loses its passages first, from their end; the question and the response stay
(`kept_lengths`).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig

from fgrlhf.errors import UserError
from fgrlhf.reward_utils import SEGMENT_MARK

Shape = Literal["encoder", "seq2seq", "causal"]
Kind = Literal["segment", "sequence"]

ANSWER_MARK = (  # ends an encoder's prefix; a language model was trained on prompts without it
    "answer:"
)
CONTEXT_MARK, PASSAGE_MARK = (
    "context:",
    "wikipage:",
)  # the passages of a prefix begin with these two words
IGNORED = -100  # the label that transformers' losses leave out


@dataclass(frozen=True)
class RMText:
    """One answer with its prefix, in words. A sequence scorer's answer is one segment (no words:
    empty).
    """

    prefix: tuple[str, ...]
    segments: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class RMInput:
    """What the network reads, and for every segment the position whose output judges it.

    A position is None where the segment has no words or its last token was cut off: it is not
    judged at all, rather than judged by a neighbour's token. `cut_passages`, `cut_response`,
    `cut_question`: how many of their tokens did not fit. `unread_segments`: how many segments are
      not judged because of that.
    """

    input_ids: list[int]
    decoder_input_ids: list[int] | None
    positions: tuple[int | None, ...]
    cut_passages: int = 0
    cut_response: int = 0
    cut_question: int = 0
    unread_segments: int = 0

    @property
    def length(self) -> int:
        return len(self.input_ids) + len(self.decoder_input_ids or ())

    @property
    def read_length(self) -> int:
        """Length of the sequence that `positions` count in."""
        return len(self.input_ids if self.decoder_input_ids is None else self.decoder_input_ids)


@dataclass(frozen=True)
class Cuts:
    """How many of `inputs` lost tokens of their passages, response or question, and the segments
    lost so.

    `prefixes`: those that lost tokens of passages or question.
    """

    inputs: int = 0
    prefixes: int = 0
    passages: int = 0
    responses: int = 0
    questions: int = 0
    unread_segments: int = 0

    @classmethod
    def count(cls, inputs: Sequence[RMInput]) -> "Cuts":
        return cls(
            inputs=len(inputs),
            prefixes=sum(x.cut_passages > 0 or x.cut_question > 0 for x in inputs),
            passages=sum(x.cut_passages > 0 for x in inputs),
            responses=sum(x.cut_response > 0 for x in inputs),
            questions=sum(x.cut_question > 0 for x in inputs),
            unread_segments=sum(x.unread_segments for x in inputs),
        )

    def __add__(self, other: "Cuts") -> "Cuts":
        return Cuts(
            inputs=self.inputs + other.inputs,
            prefixes=self.prefixes + other.prefixes,
            passages=self.passages + other.passages,
            responses=self.responses + other.responses,
            questions=self.questions + other.questions,
            unread_segments=self.unread_segments + other.unread_segments,
        )

    def describe(self, max_length: int) -> str:
        """A line for the user."""
        line = (
            f"{self.passages} of {self.inputs} inputs: passages cut to fit"
            f" model.max_length={max_length}; {self.responses} responses cut"
        )
        if self.unread_segments:
            line += f", {self.unread_segments} of their segments are not judged"
        if self.questions:
            line += f"; {self.questions} questions cut: raise model.max_length"
        return line


class Kept(NamedTuple):
    """Tokens that are read of each part of an input."""

    passages: int
    response: int
    question: int


def kept_lengths(passages: int, response: int, question: int, max_length: int) -> Kept:
    """How many tokens of each part fit into `max_length`.

    The passages give way first, then the response; the question gives way last. Each part loses its
    end.

    Args:
      question: tokens of everything that is neither passage nor response, special tokens included.
    """
    kept_question = min(question, max_length)
    kept_response = min(response, max_length - kept_question)
    kept_passages = min(passages, max_length - kept_question - kept_response)
    return Kept(kept_passages, kept_response, kept_question)


def passage_words(prefix: Sequence[str]) -> tuple[int, int]:
    """The half-open range of the prefix's words that may be cut: `context: wikipage: ...` up to the
    final `answer:`.

    An empty range where the prefix holds no passages.
    """
    end = len(prefix) - 1 if prefix and prefix[-1] == ANSWER_MARK else len(prefix)
    for i in range(end - 1):
        if prefix[i] == CONTEXT_MARK and prefix[i + 1] == PASSAGE_MARK:
            return i, end
    return end, end


class RMInputs:
    """Words to ids and read positions, and batches of them.

    Args:
      tokenizer: a fast one (character offsets and word numbers are needed).
      max_length: tokens of an encoder's or a decoder-only input. An encoder-decoder's prefix and
        answer are each cut to it. What is cut: `kept_lengths`.
      decoder_start_id: what an encoder-decoder's decoder starts with.

    Attributes:
      cuts: counts over everything encoded so far.
    """

    def __init__(
        self,
        tokenizer,
        shape: Shape,
        kind: Kind,
        max_length: int,
        decoder_start_id: int | None = None,
    ):
        if not tokenizer.is_fast:
            raise UserError(
                "the reward model's tokenizer gives no character offsets; save it as a fast"
                " tokenizer (tokenizer.json)"
            )
        self.tokenizer, self.shape, self.kind, self.max_length = tokenizer, shape, kind, max_length
        self.decoder_start_id = decoder_start_id
        self.mark = (
            segment_mark(tokenizer) if shape == "encoder" and kind == "segment" else SEGMENT_MARK
        )
        self.cuts = Cuts()

    def encode(self, texts: Sequence[RMText]) -> list[RMInput]:
        """One input per text, each tokenised once."""
        if not texts:
            return []
        inputs = self._marked(texts) if self.shape == "encoder" else self._read_at_ends(texts)
        self.cuts += Cuts.count(inputs)
        return inputs

    def _marked(self, texts: Sequence[RMText]) -> list[RMInput]:
        all_words, all_marks = [], []
        for text in texts:
            words, marks = list(text.prefix), []
            for segment in text.segments:
                marks.append(len(words))
                words += [self.mark, *segment] if self.kind == "segment" else segment
            all_words.append(words)
            all_marks.append([*marks, len(words)])
        batch = self.tokenizer(all_words, is_split_into_words=True, verbose=False)
        return [
            self._fitted(
                batch["input_ids"][i], batch.word_ids(i), passage_words(text.prefix), all_marks[i]
            )
            for i, text in enumerate(texts)
        ]

    def _fitted(
        self,
        ids: list[int],
        word_ids: Sequence[int | None],
        passages: tuple[int, int],
        bounds: Sequence[int],
    ) -> RMInput:
        """An encoder's input, cut to `max_length`. The special tokens that end it are kept.

        Args:
          passages: the passages' half-open range among the words.
          bounds: the index of each segment's mark among the words, and their number.
        """
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, word in enumerate(word_ids):
            if word is not None:
                first.setdefault(word, position)
                last[word] = position
        content = max(last.values(), default=-1) + 1

        def begin(word: int) -> int:
            """The first token of this word or of those after it."""
            return min(
                (token for number, token in first.items() if number >= word), default=content
            )

        response = begin(bounds[0])
        start, stop = begin(passages[0]), begin(passages[1])
        lengths = Kept(
            stop - start, content - response, len(ids) - (stop - start) - (content - response)
        )
        kept = kept_lengths(*lengths, self.max_length)
        removed = lengths.passages - kept.passages
        response_end = response + kept.response
        before = ids[: start + kept.passages] + ids[stop:response]
        if kept.question < lengths.question:
            before = before[: max(0, self.max_length - (len(ids) - content))]
        ids = (before + ids[response:response_end] + ids[content:])[: self.max_length]
        positions: list[int | None] = []
        unread = 0
        if self.kind == "sequence":
            positions.append(0)  # the classification head reads the first token
        else:
            for mark, following in zip(bounds, bounds[1:]):
                has_words = mark + 1 < following
                fits = max(last.get(word, -1) for word in range(mark, following)) < response_end
                positions.append(first[mark] - removed if has_words and fits else None)
                if has_words and not fits:
                    unread += 1
        return RMInput(
            ids,
            None,
            tuple(positions),
            cut_passages=removed,
            cut_response=lengths.response - kept.response,
            cut_question=lengths.question - kept.question,
            unread_segments=unread,
        )

    def _read_at_ends(self, texts: Sequence[RMText]) -> list[RMInput]:
        unique = list(
            dict.fromkeys(text.prefix for text in texts)
        )  # samples of one prompt share its prefix
        prefixes = dict(zip(unique, self._prefixes(unique)))
        seq2seq = self.shape == "seq2seq"
        lead = "" if seq2seq else " "
        joined = [join_segments(text.segments) for text in texts]
        answers = self.tokenizer(
            [lead + answer for answer, _ in joined],
            add_special_tokens=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        inputs = []
        for text, (answer, spans), ids, offsets in zip(
            texts, joined, answers["input_ids"], answers["offset_mapping"]
        ):
            prefix = prefixes[text.prefix]
            ids = ids if answer else []
            spans = [(start + len(lead), end + len(lead)) for start, end in spans]
            if seq2seq:
                kept = kept_lengths(prefix.passages, 0, prefix.question, self.max_length)
                read_of_answer = min(len(ids), self.max_length - 1)
                before = [self.decoder_start_id]
            else:
                kept = kept_lengths(prefix.passages, len(ids), prefix.question, self.max_length)
                read_of_answer = kept.response
                before = prefix.cut_to(kept)
            read = before + ids[:read_of_answer]
            tokens = last_tokens(offsets, spans)
            positions = tuple(
                None if token is None or token >= read_of_answer else len(before) + token
                for token in tokens
            )
            unread = sum(token is not None and token >= read_of_answer for token in tokens)
            if self.kind == "sequence":
                positions, unread = (len(read) - 1,), 0
            inputs.append(
                RMInput(
                    prefix.cut_to(kept) if seq2seq else read,
                    read if seq2seq else None,
                    positions,
                    cut_passages=prefix.passages - kept.passages,
                    cut_response=len(ids) - read_of_answer,
                    cut_question=prefix.question - kept.question,
                    unread_segments=unread,
                )
            )
        return inputs

    def _prefixes(self, prefixes: Sequence[tuple[str, ...]]) -> list["_Prefix"]:
        """The tokens of each prefix without its final `answer:`, and which of them are passages."""
        bounds = [passage_words(words) for words in prefixes]
        texts = [" ".join(words[:end]) for words, (_, end) in zip(prefixes, bounds)]
        batch = self.tokenizer(texts, return_offsets_mapping=True, verbose=False)
        results = []
        for words, (first, end), ids, offsets in zip(
            prefixes, bounds, batch["input_ids"], batch["offset_mapping"]
        ):
            content = max(
                (i + 1 for i, (left, right) in enumerate(offsets) if left < right), default=0
            )
            start = content
            if first < end:
                space = (
                    sum(len(word) + 1 for word in words[:first]) - 1
                )  # before `context:`; a token may hold it
                start = min(
                    (
                        i
                        for i, (left, right) in enumerate(offsets)
                        if left >= space and left < right
                    ),
                    default=content,
                )
            results.append(_Prefix(ids, start, content))
        return results

    def collate(self, inputs: Sequence[RMInput]) -> dict[str, Tensor]:
        """Arguments of the network's forward, padded on the right.

        Equal prefixes of an encoder-decoder are kept once: `prompt_rows` says which of them each
        answer belongs to.
        """
        if self.shape != "seq2seq":
            return self._padded([x.input_ids for x in inputs], "")
        prefixes: dict[tuple[int, ...], int] = {}
        rows = [prefixes.setdefault(tuple(x.input_ids), len(prefixes)) for x in inputs]
        return {
            **self._padded([list(ids) for ids in prefixes], ""),
            **self._padded([x.decoder_input_ids for x in inputs], "decoder_"),
            "prompt_rows": torch.tensor(rows),
        }

    def _padded(self, rows: Sequence[list[int]], name: str) -> dict[str, Tensor]:
        width, pad = max(map(len, rows)), self.tokenizer.pad_token_id
        return {
            f"{name}input_ids": torch.tensor([ids + [pad] * (width - len(ids)) for ids in rows]),
            f"{name}attention_mask": torch.tensor(
                [[1] * len(ids) + [0] * (width - len(ids)) for ids in rows]
            ),
        }


@dataclass(frozen=True)
class _Prefix:
    """A language model's prefix: question, then passages at [start, stop), then special tokens."""

    ids: list[int]
    start: int
    stop: int

    @property
    def passages(self) -> int:
        return self.stop - self.start

    @property
    def question(self) -> int:
        """Tokens that are no passages'."""
        return len(self.ids) - self.passages

    def cut_to(self, kept: Kept) -> list[int]:
        ending = self.ids[self.stop :][: kept.question]
        question = self.ids[: self.start][: kept.question - len(ending)]
        return question + self.ids[self.start : self.start + kept.passages] + ending


def segment_mark(tokenizer) -> str:
    """The single token put before every segment: `</s>` if the vocabulary has it, else the own
    separator.
    """
    vocabulary = tokenizer.get_vocab()
    for mark in (SEGMENT_MARK, tokenizer.sep_token, tokenizer.eos_token):
        if mark is not None and mark in vocabulary:
            return mark
    raise UserError(
        f"the encoder's tokenizer has no token to mark segments with: add `{SEGMENT_MARK}` to it as"
        " a special token"
    )


def longest_input(config: PretrainedConfig, shape: Shape) -> int | None:
    """Tokens a network with position embeddings can read; None where positions are relative."""
    positions = getattr(config, "max_position_embeddings", None)
    # RoBERTa and Longformer count positions from two
    return positions - 2 if positions is not None and shape == "encoder" else positions


def join_segments(segments: Sequence[Sequence[str]]) -> tuple[str, list[tuple[int, int]]]:
    """All words joined by one space, and each segment's half-open characters in it (no words: empty
    span).
    """
    parts, spans, length = [], [], 0
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
    """For each character span the token that completes it: the last one that begins before the
    span's end.

    None for an empty span, or where no token holds any of its characters (a tokenizer may drop
    some). Tokens that share a character (the bytes of one emoji) begin at the same offset, so the
    last of them is found.
    """
    starts = list(accumulate((start for start, _ in offsets), max))
    found = []
    for start, end in spans:
        token = bisect_left(starts, end) - 1
        while token >= 0 and offsets[token][0] == offsets[token][1]:  # tokens of no characters
            token -= 1
        found.append(token if start < end and token >= 0 and offsets[token][1] > start else None)
    return found

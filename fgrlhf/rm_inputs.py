"""What a reward model's network reads: words to token ids, and where each segment is judged.

Three shapes, one interface. All of them see the same words: a prefix (question, passages) and the answer's
segments.

    encoder   `prefix </s> segment 1 </s> segment 2 ...` in one bidirectional encoder (Longformer); segment j
              is judged at its `</s>`. A score of the whole answer is the sequence-classification head's, no
              `</s>` is put in.
    seq2seq   an encoder reads the prefix, a decoder the answer; segment j is judged at its last token
    causal    prefix and answer in one decoder-only sequence; the same

`RMInputs` turns words into ids, for training and for scoring alike.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor
from transformers import PretrainedConfig

from fgrlhf.reward_utils import SEGMENT_MARK
from fgrlhf.utils import UserError

Shape = Literal["encoder", "seq2seq", "causal"]
Kind = Literal["segment", "sequence"]

ANSWER_MARK = "answer:"  # ends an encoder's prefix; a language model was trained on prompts without it
IGNORED = -100  # the label that transformers' losses leave out


@dataclass(frozen=True)
class RMText:
    """One answer with its prefix, in words. A sequence scorer's answer is one segment (no words: empty)."""

    prefix: tuple[str, ...]
    segments: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class RMInput:
    """What the network reads, and for every segment the position whose output judges it.

    A position is None where the segment has no words or its last token was cut off: it is not judged at all,
    rather than judged by a neighbour's token.
    """

    input_ids: list[int]
    decoder_input_ids: list[int] | None
    positions: tuple[int | None, ...]

    @property
    def length(self) -> int:
        return len(self.input_ids) + len(self.decoder_input_ids or ())

    @property
    def read_length(self) -> int:
        """Length of the sequence that `positions` count in."""
        return len(self.input_ids if self.decoder_input_ids is None else self.decoder_input_ids)


class RMInputs:
    """Words to ids and read positions, and batches of them.

    Args:
      tokenizer: a fast one (character offsets and word numbers are needed).
      max_length: tokens. An encoder's input is cut on the right. A decoder-only input loses the prefix's
        beginning first. An encoder-decoder's prefix and answer are each cut to it on the right.
      decoder_start_id: what an encoder-decoder's decoder starts with.
    """

    def __init__(
        self, tokenizer, shape: Shape, kind: Kind, max_length: int, decoder_start_id: int | None = None
    ):
        if not tokenizer.is_fast:
            raise UserError(
                "the reward model's tokenizer gives no character offsets; save it as a fast tokenizer "
                "(tokenizer.json)"
            )
        self.tokenizer, self.shape, self.kind, self.max_length = tokenizer, shape, kind, max_length
        self.decoder_start_id = decoder_start_id
        self.mark = segment_mark(tokenizer) if shape == "encoder" and kind == "segment" else SEGMENT_MARK

    def encode(self, texts: Sequence[RMText]) -> list[RMInput]:
        """One input per text, each tokenised once."""
        if not texts:
            return []
        return self._marked(texts) if self.shape == "encoder" else self._read_at_ends(texts)

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
            self._cut_marked(batch["input_ids"][i], batch.word_ids(i), all_marks[i])
            for i in range(len(texts))
        ]

    def _cut_marked(self, ids: list[int], word_ids: Sequence[int | None], bounds: Sequence[int]) -> RMInput:
        """Cut to `max_length`, keeping the special tokens that end the input.

        `bounds`: the index of each segment's mark among the words, and their number.
        """
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, word in enumerate(word_ids):
            if word is not None:
                first.setdefault(word, position)
                last[word] = position
        content = max(last.values(), default=-1) + 1
        kept = min(content, self.max_length - (len(ids) - content))
        ids = ids[:kept] + ids[content:]
        if self.kind == "sequence":
            return RMInput(ids, None, (0,))  # the classification head reads the first token
        positions = []
        for mark, following in zip(bounds, bounds[1:]):
            whole = mark + 1 < following and max(last.get(word, -1) for word in range(mark, following)) < kept
            positions.append(first[mark] if whole else None)
        return RMInput(ids, None, tuple(positions))

    def _read_at_ends(self, texts: Sequence[RMText]) -> list[RMInput]:
        prefixes = [" ".join(t.prefix[:-1] if t.prefix[-1:] == (ANSWER_MARK,) else t.prefix) for t in texts]
        unique = list(dict.fromkeys(prefixes))  # samples of one prompt share its prefix
        seq2seq = self.shape == "seq2seq"
        cut = {"truncation": True, "max_length": self.max_length} if seq2seq else {}
        prefix_ids = dict(zip(unique, self.tokenizer(unique, verbose=False, **cut)["input_ids"]))
        lead = "" if seq2seq else " "
        joined = [join_segments(text.segments) for text in texts]
        answers = self.tokenizer(
            [lead + answer for answer, _ in joined],
            add_special_tokens=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        inputs = []
        for prefix, (answer, spans), ids, offsets in zip(
            prefixes, joined, answers["input_ids"], answers["offset_mapping"]
        ):
            spans = [(start + len(lead), end + len(lead)) for start, end in spans]
            before = [self.decoder_start_id] if seq2seq else prefix_ids[prefix]
            ids = ids[: self.max_length - (1 if seq2seq else 0)] if answer else []
            before = before if seq2seq else before[max(0, len(before) + len(ids) - self.max_length) :]
            read = before + ids
            ends = [
                None if token is None or token >= len(ids) else len(before) + token
                for token in last_tokens(offsets, spans)
            ]
            positions = tuple(ends) if self.kind == "segment" else (len(read) - 1,)
            inputs.append(
                RMInput(prefix_ids[prefix], read, positions) if seq2seq else RMInput(read, None, positions)
            )
        return inputs

    def collate(self, inputs: Sequence[RMInput]) -> dict[str, Tensor]:
        """Arguments of the network's forward, padded on the right.

        Equal prefixes of an encoder-decoder are kept once: `prompt_rows` says which of them each answer
        belongs to.
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


def segment_mark(tokenizer) -> str:
    """The single token put before every segment: `</s>` if the vocabulary has it, else the own separator."""
    vocabulary = tokenizer.get_vocab()
    for mark in (SEGMENT_MARK, tokenizer.sep_token, tokenizer.eos_token):
        if mark is not None and mark in vocabulary:
            return mark
    raise UserError(
        f"the encoder's tokenizer has no token to mark segments with: add `{SEGMENT_MARK}` to it as a "
        "special token"
    )


def longest_input(config: PretrainedConfig, shape: Shape) -> int | None:
    """Tokens a network with position embeddings can read; None where positions are relative."""
    positions = getattr(config, "max_position_embeddings", None)
    # RoBERTa and Longformer count positions from two
    return positions - 2 if positions is not None and shape == "encoder" else positions


def join_segments(segments: Sequence[Sequence[str]]) -> tuple[str, list[tuple[int, int]]]:
    """All words joined by one space, and each segment's half-open characters in it (no words: empty span)."""
    parts, spans, length = [], [], 0
    for segment in segments:
        text = " ".join(segment)
        start = length + (1 if length and text else 0)
        spans.append((start, start + len(text)))
        if text:
            parts.append(text)
            length = start + len(text)
    return " ".join(parts), spans


def last_tokens(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """For each character span the token that completes it: the last one that begins before the span's end.

    None for an empty span, or where no token holds any of its characters (a tokenizer may drop some). Tokens
    that share a character (the bytes of one emoji) begin at the same offset, so the last of them is found.
    """
    starts = list(accumulate((start for start, _ in offsets), max))
    found = []
    for start, end in spans:
        token = bisect_left(starts, end) - 1
        while token >= 0 and offsets[token][0] == offsets[token][1]:  # tokens of no characters
            token -= 1
        found.append(token if start < end and token >= 0 and offsets[token][1] > start else None)
    return found

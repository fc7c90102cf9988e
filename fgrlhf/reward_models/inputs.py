"""A reward model's texts in token ids: `RMInputs` encodes them, in training and in scoring.

fgrlhf/reward_models/rm_input.py describes the result, fgrlhf/reward_models/collate.py makes batches
of it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from transformers import PreTrainedModel

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.models.loading import max_positions
from fgrlhf.reward_models.collate import RMCollator
from fgrlhf.reward_models.prefix import Prefix, RMText
from fgrlhf.reward_models.rm_input import Cuts, RMInput, TokenCounts, lengths_that_fit
from fgrlhf.reward_models.spec import Kind, Shape
from fgrlhf.reward_models.text_features import segment_features
from fgrlhf.reward_utils import SEGMENT_MARK
from fgrlhf.text_types import Prompt


class RMInputs:
    """Words to ids and read positions.

    Args:
      tokenizer: a fast tokenizer (character offsets and word numbers are needed).
      max_length: tokens of an encoder's or a decoder-only input. An encoder-decoder's prefix and
        response are each cut to it.
      decoder_start_id: the token an encoder-decoder's decoder starts with.
      shared_width: width of a language model whose rows can hold several responses to a prompt;
        None: every response has its own row.
      text_features: whether the network reads hand-made features of the segments.
      between: what a language model reads between two segments: a line break if segments are lines,
        as in the texts that it has learned.
      line_breaks: whether the network reads prompt and response with their own white space, line
        breaks and indentation included; else with `between`, and one space between words.

    Attributes:
      collate: inputs -> the arguments of the network's forward pass.
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
        between: str = " ",
        line_breaks: bool = False,
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
        self.text_features = text_features
        self.between = between
        self.line_breaks = line_breaks
        self.collate = RMCollator(shape, tokenizer.pad_token_id, shared_width, text_features)
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
            for i, text in enumerate(texts):
                inputs[i] = replace(inputs[i], text_features=segment_features(text))
        self.cuts += Cuts.count(inputs)
        return inputs

    # ---- encoders ----

    def _encode_for_encoder(self, texts: Sequence[RMText]) -> list[RMInput]:
        all_words: list[list[str]] = []
        all_bounds: list[list[int]] = []  # the first word of each segment, and the end
        for text in texts:
            words = [*self._pieces(text.prefix.words, text.prefix.spaces)]
            words += text.prefix.response_mark
            bounds = []
            for place, segment in enumerate(text.segments):
                bounds.append(len(words))
                if self.kind == "segment":
                    words.append(self.mark)
                spaces = None if text.spaces is None else text.spaces[place]
                words += self._pieces(segment, spaces)
            bounds.append(len(words))
            all_words.append(words)
            all_bounds.append(bounds)
        batch = self.tokenizer(all_words, is_split_into_words=True, verbose=False)
        inputs = []
        for i, text in enumerate(texts):
            ids = batch["input_ids"][i]
            word_ids = batch.word_ids(i)
            inputs.append(self._cut_encoder_input(ids, word_ids, text.prefix, all_bounds[i]))
        return inputs

    def _pieces(self, words: Sequence[str], spaces: Sequence[str] | None) -> list[str]:
        """What an encoder's tokenizer gets as words: with the white space that is no single one."""
        if spaces is None or not self.line_breaks:
            return list(words)
        return [_spaced_word(word, space) for word, space in zip(words, spaces, strict=True)]

    def _cut_encoder_input(
        self,
        ids: list[int],
        word_ids: Sequence[int | None],
        prefix: Prefix,
        bounds: Sequence[int],
    ) -> RMInput:
        """An encoder's input, cut to `max_length`. Its final special tokens stay.

        Args:
          ids: of the whole input.
          word_ids: the index of the word that each token is part of; None for special tokens.
          prefix: the words before the response.
          bounds: the index of the first word of each segment (or of its mark, if there are marks),
            and the number of words.
        """
        words = _TokensOfWords(word_ids)
        context_tokens: list[int] = []
        for part in prefix.context:
            context_tokens += range(words.begin(part.start), words.begin(part.stop))
        if prefix.keeps_end:
            context_tokens.reverse()
        response_begin = words.begin(bounds[0])
        response_length = words.end - response_begin
        lengths = TokenCounts(
            context=len(context_tokens),
            response=response_length,
            core=len(ids) - len(context_tokens) - response_length,
        )
        fitting = lengths_that_fit(*lengths, self.max_length)

        # the parts that fit: prompt, response and final special tokens
        prompt_ids = _without(ids[:response_begin], context_tokens[fitting.context :])
        ending = ids[words.end :]
        if fitting.core < lengths.core:
            prompt_ids = prompt_ids[: max(0, self.max_length - len(ending))]
        response_end = response_begin + fitting.response
        response_ids = ids[response_begin:response_end]
        read_ids = (prompt_ids + response_ids + ending)[: self.max_length]

        removed = lengths.context - fitting.context
        positions: list[int | None]
        if self.kind == "sequence":
            positions = [0]  # the classification head reads the first token
            unread = 0
        else:
            marks, unread = _marks_of_read_segments(words, bounds, response_end)
            # every mark moves left by the number of context tokens that were removed
            positions = [None if mark is None else mark - removed for mark in marks]
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
        joined = []
        for text in texts:
            spaces = text.spaces if self.line_breaks else None
            joined.append(join_segments(text.segments, self.between, spaces))
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
        is_seq2seq = self.shape == "seq2seq"
        if is_seq2seq:  # two sequences, and each may have `max_length` tokens
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
            input_ids=prefix.cut_to(fitting) if is_seq2seq else read_ids,
            decoder_input_ids=read_ids if is_seq2seq else None,
            positions=tuple(positions),
            prefix_length=0 if is_seq2seq else len(before_response),
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
        all_spaces = [prefix.spaces if self.line_breaks else None for prefix in unique]
        texts = []
        for prefix, spaces in zip(unique, all_spaces):
            texts.append(join_segments([prefix.words], spaces=spaces and [spaces])[0])
        batch = self.tokenizer(texts, return_offsets_mapping=True, verbose=False)
        tokens = {}
        for i, prefix in enumerate(unique):
            offsets = batch["offset_mapping"][i]
            content_end = 0
            for position, (start, end) in enumerate(offsets):
                if start < end:  # special tokens have no characters
                    content_end = position + 1
            context: list[int] = []
            for part in prefix.context:
                first, stop = (
                    _token_of_word(prefix.words, all_spaces[i], word, offsets, content_end)
                    for word in (part.start, part.stop)
                )
                context += range(first, stop)
            if prefix.keeps_end:
                context.reverse()
            tokens[prefix] = _PrefixTokens(batch["input_ids"][i], context, content_end)
        return tokens


class _TokensOfWords:
    """Which tokens of an encoder's input belong to which word.

    Args:
      word_ids: the index of the word that each token is part of; None for special tokens.

    Attributes:
      first, last: word -> its first and its last token. A word without tokens is in neither.
      end: where the special tokens at the end begin.
    """

    def __init__(self, word_ids: Sequence[int | None]):
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        for position, word in enumerate(word_ids):
            if word is not None:
                self.first.setdefault(word, position)
                self.last[word] = position
        self.end = max(self.last.values(), default=-1) + 1

    def begin(self, word: int) -> int:
        """The first token of this word, or of the next one that has tokens."""
        later = (token for number, token in self.first.items() if number >= word)
        return min(later, default=self.end)


def _marks_of_read_segments(
    words: _TokensOfWords, bounds: Sequence[int], response_end: int
) -> tuple[list[int | None], int]:
    """The token of each segment's mark, and the number of segments that a cut makes unreadable.

    The mark is None if the segment has no words, or if the cut removes one of its tokens.

    Args:
      bounds: the index of each segment's mark, and the number of words.
      response_end: the first token that is cut off.
    """
    marks: list[int | None] = []
    unread = 0
    for mark, end in zip(bounds, bounds[1:]):
        has_words = mark + 1 < end
        last_token = max(words.last.get(word, -1) for word in range(mark, end))
        is_whole = last_token < response_end
        if has_words and is_whole:
            marks.append(words.first[mark])
        else:
            marks.append(None)
        if has_words and not is_whole:
            unread += 1
    return marks, unread


@dataclass(frozen=True)
class _PrefixTokens:
    """A language model's prefix.

    Attributes:
      ids: all tokens.
      context: positions of the tokens that may be cut, those that are kept longest first.
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


def _without(ids: Sequence[int], positions: Iterable[int]) -> list[int]:
    """The ids at all other positions."""
    removed = set(positions)
    return [token for position, token in enumerate(ids) if position not in removed]


def _token_of_word(
    words: Sequence[str],
    spaces: Sequence[str] | None,
    word: int,
    offsets: Sequence[tuple[int, int]],
    content_end: int,
) -> int:
    """The first token of a word, or of the white space before it; `content_end` after the last one.

    Args:
      spaces: the white space before each word; None: single spaces.
      word: the index of the word.
      offsets: the characters of each token in the joined text.
      content_end: where the special tokens at the end begin.
    """
    # the space before a word may be part of its token
    if spaces is None:
        earliest = sum(len(text) + 1 for text in words[:word]) - 1
    else:
        earliest = sum(map(len, words[:word])) + sum(map(len, spaces[:word]))
    for position, (start, end) in enumerate(offsets):
        has_characters = start < end
        if has_characters and start >= earliest:
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


def refuse_without_tokens(inputs: Sequence[RMInput], prompts: Iterable[Prompt]) -> None:
    """Raise `UserError` if an input has no tokens, so that there is none to score it at.

    Args:
      prompts: of the inputs, to name the first such input.
    """
    for rm_input, prompt in zip(inputs, prompts, strict=True):
        if rm_input.length == 0:
            raise UserError(
                f"a response to the prompt {shorten(prompt.id, 80)} has no tokens for the reward"
                " model to score: the response and the words before it are blank, and the model's"
                " tokenizer adds no token at the beginning. Remove the prompt from the data, or use"
                " a reward model whose tokenizer adds one"
            )


def longest_input(network: PreTrainedModel) -> int | None:
    """Most tokens that a network can read, in both stacks if it has two; None: no limit.

    RoBERTa and its relatives (Longformer, XLM-R) give padding an embedding of its own among those
    of the positions, and count positions from the next one: of 514 embeddings they use 512.
    """
    config = network.config.get_text_config()  # T5Gemma has one for each stack
    limits = (max_positions(config, "encoder"), max_positions(config, "decoder"))
    positions = min((limit for limit in limits if limit is not None), default=None)
    if positions is None:
        return None
    for name, module in network.named_modules():
        padding: Any = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            return positions - (padding + 1)
    return positions


def _spaced_word(word: str, space: str) -> str:
    """A word as an encoder's tokenizer gets it, which puts a single space before it by itself."""
    return word if space in ("", " ") else space + word


def sees_line_breaks(tokenizer, shape: Shape) -> bool:
    """Whether a tokenizer has other tokens for line breaks and indentation than for one space.

    Those of T5, BERT and XLM-R have not.
    """
    read = []
    for space in (" ", "\n", "\n\n", "\n    "):
        is_encoder = shape == "encoder"
        text = ["a", _spaced_word("b", space)] if is_encoder else f"a{space}b"
        ids = tokenizer(text, is_split_into_words=is_encoder, add_special_tokens=False)["input_ids"]
        if tokenizer.unk_token_id in ids:
            return False
        read.append(ids)
    return all(one != other for i, one in enumerate(read) for other in read[:i])


def join_segments(
    segments: Sequence[Sequence[str]],
    between: str = " ",
    spaces: Sequence[Sequence[str]] | None = None,
) -> tuple[str, list[tuple[int, int]]]:
    """The text of all segments, and the half-open characters of each segment in that text.

    Words are joined by one space, and segments by `between`, a single character. With `spaces`,
    the white space before every word, the text is that of the response. A segment without words
    has an empty span.
    """
    if spaces is not None:
        return _join_with_spaces(segments, spaces)
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
    return between.join(parts), spans


def _join_with_spaces(
    segments: Sequence[Sequence[str]], spaces: Sequence[Sequence[str]]
) -> tuple[str, list[tuple[int, int]]]:
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    length = 0
    for segment, spaces_of_segment in zip(segments, spaces, strict=True):
        start = length + len(spaces_of_segment[0]) if segment else length
        for word, space in zip(segment, spaces_of_segment, strict=True):
            parts += [space, word]
            length += len(space) + len(word)
        spans.append((start, length))
    return "".join(parts), spans


def last_tokens(
    offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> list[int | None]:
    """For each character span the token that completes it.

    That is the last token that begins before the end of the span. Tokens that share a character,
    such as the bytes of an emoji, begin at the same offset; the last of them counts. The result is
    None for an empty span, and if the tokenizer dropped all its characters.
    """
    # a running maximum, because the search needs ascending numbers and tokens without characters
    # may have the offset 0
    starts = list(accumulate((start for start, _ in offsets), max))
    tokens: list[int | None] = []
    for start, end in spans:
        token = bisect_left(starts, end) - 1
        while token >= 0 and offsets[token][0] == offsets[token][1]:  # tokens of no characters
            token -= 1
        completes_span = start < end and token >= 0 and offsets[token][1] > start
        tokens.append(token if completes_span else None)
    return tokens

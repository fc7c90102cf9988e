"""The words that a reward model reads: those before a response, and the response in segments."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fgrlhf.models.dialogs import dialog_text
from fgrlhf.text_types import Prompt


@dataclass(frozen=True)
class Prefix:
    """The words before a response.

    Attributes:
      words: the prompt in words.
      context: ranges of `words` that may be cut, such as retrieved documents. They are in ascending
        order and do not overlap. An input that is too long loses these words first.
      keeps_end: whether the context is cut from its beginning, as the oldest turns of a dialog are;
        else it is cut from its end.
      response_mark: words that announce the response to an encoder, such as `answer:`. A language
        model reads the response directly after `words`, as it does in sampling.
      spaces: the white space before each of `words`; "" before the first one. None: single spaces.
    """

    words: tuple[str, ...]
    context: tuple[range, ...] = ()
    response_mark: tuple[str, ...] = ()
    keeps_end: bool = False
    spaces: tuple[str, ...] | None = None

    def __post_init__(self):
        end = 0
        for part in self.context:
            if part.step != 1 or not end <= part.start <= part.stop <= len(self.words):
                raise ValueError(
                    f"the context {self.context} must be ascending ranges of {len(self.words)}"
                    " words that do not overlap"
                )
            end = part.stop
        spaces = self.spaces
        if spaces is not None and (len(spaces) != len(self.words) or "".join(spaces).strip()):
            raise ValueError(
                f"`spaces` must have the white space before each of the {len(self.words)} words"
            )

    @classmethod
    def of_text(
        cls, text: str, context: tuple[range, ...] = (), keeps_end: bool = False
    ) -> "Prefix":
        """The words of a text with its white space. `context`: ranges of its words."""
        (spaces,) = spaces_before_words(text, [(0, len(text))])
        words = tuple(text.split())
        return cls(words, context, keeps_end=keeps_end, spaces=unless_single(spaces))

    @classmethod
    def of(cls, words: "Prefix | Sequence[str]") -> "Prefix":
        """A prefix as it is; plain words as a prefix of which nothing may be cut."""
        return words if isinstance(words, Prefix) else cls(tuple(words))

    @property
    def all_words(self) -> list[str]:
        """The words and the mark of the response: what an encoder reads."""
        return [*self.words, *self.response_mark]


@dataclass(frozen=True)
class RMText:
    """A response with its prefix, in words.

    A sequence scorer reads a response of one segment. A segment may have no words.

    Attributes:
      spaces: the white space before every word of the segments, in the same form; "" before the
        first word of the response. None: not known, so words are joined by single spaces.
    """

    prefix: Prefix
    segments: tuple[tuple[str, ...], ...]
    spaces: tuple[tuple[str, ...], ...] | None = None

    @classmethod
    def of(cls, prefix: Prefix, text: str, spans: Sequence[tuple[int, int]]) -> "RMText":
        """A response whose segments are the words of these half-open character ranges."""
        segments = tuple(tuple(text[start:end].split()) for start, end in spans)
        return cls(prefix, segments, spaces_before_words(text, spans))

    @property
    def response(self) -> str:
        """The text of the response; words whose white space is not known have single spaces."""
        words = [word for segment in self.segments for word in segment]
        if self.spaces is None:
            return " ".join(words)
        spaces = [space for segment in self.spaces for space in segment]
        return "".join(map(operator.add, spaces, words))


def spaces_before_words(text: str, spans: Sequence[tuple[int, int]]) -> tuple[tuple[str, ...], ...]:
    """The white space before every word of each span; "" before the first word of all."""
    result = []
    is_first = True
    for start, end in spans:
        spaces = []
        for word in re.finditer(r"\S+", text[start:end]):
            begin = place = start + word.start()
            while place > 0 and text[place - 1].isspace():
                place -= 1
            spaces.append("" if is_first else text[place:begin])
            is_first = False
        result.append(tuple(spaces))
    return tuple(result)


def unless_single(spaces: tuple[str, ...]) -> tuple[str, ...] | None:
    """White space before words; None if it is one space between any two words."""
    return None if spaces == ("", *" " * (len(spaces) - 1))[: len(spaces)] else spaces


# (prompt, with_context) -> the words before the response; a task's `rm_prefix`
PrefixFn = Callable[[Prompt, bool], Prefix | Sequence[str]]


def text_prefix(prompt: Prompt, with_context: bool) -> Prefix:
    """The words of the prompt's text, which a reward model reads before the response.

    In a dialog, the context is every turn before the last one. The oldest turns are cut first.
    """
    whole = Prefix.of_text(prompt.text)
    words = len(whole.words)
    last_turn = len(dialog_text(prompt.messages[-1:]).split()) if prompt.messages else words
    start = max(0, words - last_turn)
    if with_context and start:
        return Prefix.of_text(prompt.text, (range(start),), keeps_end=True)
    if start:
        spaces = None if whole.spaces is None else unless_single(("", *whole.spaces[start + 1 :]))
        return Prefix(whole.words[start:], spaces=spaces)
    return whole

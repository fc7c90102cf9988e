"""The words that a reward model reads: those before a response, and the response in segments."""

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
    """

    words: tuple[str, ...]
    context: tuple[range, ...] = ()
    response_mark: tuple[str, ...] = ()
    keeps_end: bool = False

    def __post_init__(self):
        end = 0
        for part in self.context:
            if part.step != 1 or not end <= part.start <= part.stop <= len(self.words):
                raise ValueError(
                    f"the context {self.context} must be ascending ranges of {len(self.words)}"
                    " words that do not overlap"
                )
            end = part.stop

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


# (prompt, with_context) -> the words before the response; a task's `rm_prefix`
PrefixFn = Callable[[Prompt, bool], Prefix | Sequence[str]]


def text_prefix(prompt: Prompt, with_context: bool) -> Prefix:
    """The words of the prompt's text, which a reward model reads before the response.

    In a dialog, the context is every turn before the last one. The oldest turns are cut first.
    """
    words = tuple(prompt.text.split())
    last_turn = len(dialog_text(prompt.messages[-1:]).split()) if prompt.messages else len(words)
    start = max(0, len(words) - last_turn)
    if not with_context:
        return Prefix(words[start:])
    return Prefix(words, (range(start),), keeps_end=True) if start else Prefix(words)

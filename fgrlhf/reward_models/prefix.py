"""The words that a reward model reads: those before a response, and the response in segments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fgrlhf.types import Prompt


@dataclass(frozen=True)
class Prefix:
    """The words before a response.

    Attributes:
      words: the prompt in words.
      context: ranges of `words` that may be cut, such as retrieved documents. They are in ascending
        order and do not overlap. An input that is too long loses these words first, from the end.
      response_mark: words that announce the response to an encoder, such as `answer:`. A language
        model reads the response directly after `words`, as it does in sampling.
    """

    words: tuple[str, ...]
    context: tuple[range, ...] = ()
    response_mark: tuple[str, ...] = ()

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
    """

    prefix: Prefix
    segments: tuple[tuple[str, ...], ...]


# (prompt, with_context) -> the words before the response; a task's `rm_prefix`
PrefixFn = Callable[[Prompt, bool], Prefix | Sequence[str]]


def text_prefix(prompt: Prompt, with_context: bool) -> list[str]:
    """The words of the prompt's text, which a reward model reads before the response."""
    return prompt.text.split()

"""What reward models read of a prompt: the source."""

import re

from fgrlhf.reward_models.prefix import Prefix
from fgrlhf.text_types import Prompt

_LANGUAGE = re.compile(r"<2\w+>\s+")


def source_of(prompt: Prompt) -> str:
    """The source, without the language with which prompts of MADLAD begin, such as `<2de>`."""
    language = _LANGUAGE.match(prompt.text)
    return prompt.text if language is None else prompt.text[language.end() :]


def source_words(prompt: Prompt, with_context: bool) -> Prefix:
    """What a reward model reads before a translation."""
    return Prefix.of_text(source_of(prompt))

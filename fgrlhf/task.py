"""A task: what the library needs to know about one kind of prompt and its judgement.

PLACEHOLDER of this branch: it has the fields that reward-model training reads, no others.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fgrlhf.data.comparisons import Comparison
from fgrlhf.errors import UserError, shorten
from fgrlhf.reward_models.prefix import Prefix, PrefixFn
from fgrlhf.types import Prompt


def text_prefix(prompt: Prompt, with_context: bool) -> list[str]:
    """The words a reward model reads before the response: those of the prompt's text."""
    return prompt.text.split()


@dataclass(frozen=True)
class Task:
    """What a task decides.

    Args:
      rm_prefix: (prompt, with its context?) -> words that a reward model reads before a response.
      rm_prefix_of_words: words before the response in a segment file -> the same prefix. None: the
        words as they are, none of which may be cut.
      rm_pairs: pair file of a reward model -> comparisons, in a format of the task. None: the
        format of the library.
    """

    name: str
    rm_prefix: PrefixFn = text_prefix
    rm_prefix_of_words: Callable[[Sequence[str]], Prefix] | None = None
    rm_pairs: Callable[[str | Path], list[Comparison]] | None = None


def load_task(name: str) -> Task:
    """The task of a name: `tasks.hanoi`, `hanoi`, or any importable module with a `TASK`."""
    dotted = name if "." in name else f"tasks.{name}"
    try:
        return importlib.import_module(f"{dotted}.task").TASK
    except ImportError:
        raise UserError(f"there is no task `{shorten(name)}`") from None

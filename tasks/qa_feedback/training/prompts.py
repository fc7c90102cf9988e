"""Prompts of long-form QA against the policy's limit: the end may be cut, the question may not."""

from collections.abc import Sequence
from pathlib import Path

from fgrlhf.errors import UserError, shorten
from fgrlhf.policy import Policy, cut_prompts
from fgrlhf.types import Prompt


def check_prompts_fit(
    policy: Policy, prompts: Sequence[Prompt], file: str | Path, quiet: bool = False
) -> int:
    """Print how many prompts are longer than the policy reads, and return that number.

    A prompt begins with its question, passages follow. What is too long loses its end, so the
    question stays as long as it fits itself.

    Args:
      file: where the prompts come from, for messages.
      quiet: print nothing.
    Raises:
      UserError: a prompt has no tokens, or would lose part of its question.
    """
    cut = cut_prompts(policy, prompts)
    lengths = policy.prompt_lengths([_up_to_question(prompt) for prompt in cut])
    for prompt, length in zip(cut, lengths):
        if length > policy.max_input_len:
            raise UserError(
                f"{file}, row {shorten(prompt.id, 80)}: its question ends after {length} tokens,"
                f" but max_input_len is {policy.max_input_len}, so part of the question would be"
                " cut off: raise max_input_len, or leave the row out"
            )
    if cut and not quiet:
        print(
            f"{len(cut)} of {len(prompts)} prompts of {file} are longer than"
            f" max_input_len={policy.max_input_len} tokens: their ends were cut",
            flush=True,
        )
    return len(cut)


def _up_to_question(prompt: Prompt) -> str:
    """The text up to the end of its question; the question alone where the text words it
    differently.
    """
    question = prompt.meta.get("question", "")
    start = prompt.text.find(question)
    return prompt.text[: start + len(question)] if start >= 0 else question

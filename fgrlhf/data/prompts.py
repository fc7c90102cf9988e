"""Files of prompts, and the check of prompts against the policy's input limit."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.models.base import Policy
from fgrlhf.models.dialogs import dialog_text
from fgrlhf.policy import checked_lengths
from fgrlhf.text_types import SYSTEM, Prompt


def prompts_file(data_dir: str | Path | None, split: str) -> Path | None:
    """The file with a split's prompts; None if no folder is given and the task generates them."""
    return None if data_dir is None else Path(data_dir) / f"{split}.json"


def check_prompts_fit(
    policy: Policy,
    prompts: Sequence[Prompt],
    core_text: Callable[[Prompt], str],
    file: str | Path,
    quiet: bool = False,
    response_tokens: int | None = None,
) -> int:
    """Print how many prompts exceed the policy's input limit, and return that number.

    Such prompts are cut at their end, but never within their `core_text`. A dialog loses its oldest
    turns instead. Its system message and its last message stay whole.

    Args:
      core_text: prompt -> the beginning of its text that must not be cut.
      file: where the prompts come from, for messages.
      quiet: print nothing.
      response_tokens: tokens of the longest response to them; None: not known yet.
    Raises:
      UserError: a prompt has no tokens or would lose a part of its core text, or prompts and
        responses need more positions than the model has.
    """
    lengths = checked_lengths(policy, prompts)
    if response_tokens is not None:
        longest = min(max(lengths, default=0), policy.max_input_len)
        policy.check_fits(longest, response_tokens)
    cut = [prompt for prompt, length in zip(prompts, lengths) if length > policy.max_input_len]
    lengths = policy.prompt_lengths([_core(prompt, core_text) for prompt in cut])
    too_long = [place for place, length in enumerate(lengths) if length > policy.max_input_len]
    if too_long:
        first = too_long[0]
        rows = "the row" if len(too_long) == 1 else f"the {len(too_long)} rows that are too long"
        raise UserError(
            f"{file}, row {shorten(cut[first].id, 80)}: the part that must not be cut has"
            f" {lengths[first]} tokens, but max_input_len is {policy.max_input_len}: set"
            f" max_input_len={max(lengths)} or more, or remove {rows}"
        )
    if cut and not quiet:
        lost = "oldest turns" if cut[0].messages else "ends"
        print(
            f"{len(cut)} of {len(prompts)} prompts of {file} are longer than"
            f" max_input_len={policy.max_input_len} tokens: their {lost} were cut",
            flush=True,
        )
    return len(cut)


def _core(prompt: Prompt, core_text: Callable[[Prompt], str]) -> Prompt | str:
    """What must not be cut: of a dialog, its system message and its last message."""
    if not prompt.messages:
        return core_text(prompt)
    system = [message for message in prompt.messages[:1] if message[0] == SYSTEM]
    kept = (*system, prompt.messages[-1])
    return Prompt(prompt.id, dialog_text(kept), messages=kept)

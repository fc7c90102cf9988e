"""Prompts: reading them from files, and checking them against the policy's limit."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fgrlhf.data.checks import refuse_rows, text_problem
from fgrlhf.errors import UserError, shorten
from fgrlhf.files import read_json, read_jsonl
from fgrlhf.policy import Policy, cut_prompts
from fgrlhf.types import Prompt


def read_prompts(path: str | Path) -> list[Prompt]:
    """Rows {prompt|text, references|answer?, id?, ...} of a JSON or JSONL file as prompts.

    Raises:
      UserError: the file cannot be read or is empty, or every malformed row.
    """
    rows = read_jsonl(path) if str(path).endswith(".jsonl") else read_json(path)
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{path} holds no prompts: it must be a list of rows, and it is empty")
    problems = []
    prompts = []
    for number, row in enumerate(rows):
        prompt, problem = _prompt_of(row, number)
        if problem is not None:
            problems.append(f"row {number}: {problem}")
        if prompt is not None:
            prompts.append(prompt)
    refuse_rows(path, problems)
    return prompts


def _prompt_of(row: Any, number: int) -> tuple[Prompt | None, str | None]:
    if not isinstance(row, dict):
        return None, f"it must be an object, it is a {type(row).__name__}"
    key = "prompt" if "prompt" in row else "text"
    problem = text_problem(row.get(key))
    if problem is not None:
        return None, f"{key}: {problem}"
    references = row.get("references", row.get("answer", []))
    references = [references] if isinstance(references, str) else references
    if not isinstance(references, list) or any(text_problem(text) for text in references):
        return None, "references: a list of texts is needed"
    meta = {name: row[name] for name in row if name not in (key, "id", "references", "answer")}
    return Prompt(str(row.get("id", number)), row[key], tuple(references), meta), None


def prompts_file(data_dir: str | Path | None, split: str) -> Path | None:
    """The file of a split's prompts; None where no folder is given and the task generates them."""
    return None if data_dir is None else Path(data_dir) / f"{split}.json"


def check_prompts_fit(
    policy: Policy,
    prompts: Sequence[Prompt],
    core_text: Callable[[Prompt], str],
    file: str | Path,
    quiet: bool = False,
) -> int:
    """Print how many prompts are longer than the policy reads, and return that number.

    What is too long loses its end; the beginning that `core_text` names must stay whole.

    Args:
      core_text: prompt -> the beginning of its text that must not be cut.
      file: where the prompts come from, for messages.
      quiet: print nothing.
    Raises:
      UserError: a prompt has no tokens, or would lose a part of its core text.
    """
    cut = cut_prompts(policy, prompts)
    cores = [core_text(prompt) for prompt in cut]
    lengths = policy.prompt_lengths(cores)
    for prompt, core, length in zip(cut, cores, lengths):
        if length > policy.max_input_len:
            raise UserError(
                f"{file}, row {shorten(prompt.id, 80)}: the part that must not be cut has {length}"
                f" tokens, but max_input_len is {policy.max_input_len}: raise max_input_len, or"
                " leave the row out"
            )
    if cut and not quiet:
        print(
            f"{len(cut)} of {len(prompts)} prompts of {file} are longer than"
            f" max_input_len={policy.max_input_len} tokens: their ends were cut",
            flush=True,
        )
    return len(cut)

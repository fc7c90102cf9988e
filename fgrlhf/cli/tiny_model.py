"""A tiny random model for a task's generated prompts: a base model for runs at mini scale.

    python -m fgrlhf.cli.tiny_model TASK output_dir=outputs/mini/base_model

Every word of the task's training prompts and of their references is a token. The model is
decoder-only, and its folder is an ordinary transformers folder.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from fgrlhf.cli.command_line import settings_from, task_and_rest
from fgrlhf.config import Count, FilePath, Seed, StrictModel
from fgrlhf.errors import run_main
from fgrlhf.models.tiny import tiny_causal, word_tokenizer
from fgrlhf.runs.stage import hold
from fgrlhf.task import Task

USAGE = "usage: python -m fgrlhf.cli.tiny_model TASK output_dir=... [key=value ...]"


class Settings(StrictModel):
    """Where the model goes, and how large it is."""

    output_dir: FilePath
    train_file: FilePath | None = Field(None, description="prompts; null: the task generates them")
    words: str = Field("", description="further words of responses, separated by spaces")
    d_model: Count = 64
    num_layers: Count = 2
    num_heads: Count = 4
    seed: Seed = 0


def texts_of(task: Task, settings: Settings) -> Iterator[str]:
    """Everything the model has to read or may write."""
    for prompt in task.prompts(settings.train_file, "train"):
        yield prompt.text
        yield from prompt.references
    yield settings.words


def write_model(task: Task, settings: Settings) -> Path:
    """Save a tokenizer and a random model to `output_dir`."""
    tokenizer = word_tokenizer(texts_of(task, settings))
    model = tiny_causal(
        tokenizer, settings.d_model, settings.num_layers, settings.num_heads, seed=settings.seed
    )
    folder = Path(settings.output_dir)
    with hold(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    print(f"{folder}: {model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    task, rest = task_and_rest(argv, USAGE)
    write_model(task, settings_from(Settings, rest))


if __name__ == "__main__":
    run_main(main)

"""Writes a tiny random model with a task's words as its tokens, for runs at mini scale.

    fgrlhf tiny-model TASK output_dir=outputs/numbers/mini/base_model

Every word and punctuation mark of the task's training prompts, of their references and of the
demonstrations is a token. The model is decoder-only, or with `shape=seq2seq` an encoder-decoder
(T5). Its folder is an ordinary folder of transformers.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from, task_and_rest
from fgrlhf.configs.strict import Count, FilePath, Seed, StrictModel, refuse
from fgrlhf.data.formats import DEMONSTRATIONS
from fgrlhf.models.tiny import (
    DECODER_LOOKS_BACK,
    save_model,
    tiny_causal,
    tiny_encoder_decoder,
    word_tokenizer,
)
from fgrlhf.runs.occupied import claim_model_folder
from fgrlhf.runs.runlog import is_main_rank
from fgrlhf.runs.stage import hold
from fgrlhf.task import Task

USAGE = "usage: fgrlhf tiny-model [TASK] output_dir=... [key=value ...]"


class TinyModelSettings(StrictModel):
    """Output folder and size of the model."""

    output_dir: FilePath = Field(description="folder of the results")
    train_file: FilePath | None = Field(
        default=None, description="prompts; null: the task generates them"
    )
    demonstrations: FilePath | None = Field(
        default=None, description="responses for supervised fine-tuning, with their prompts"
    )
    words: str = Field(default="", description="more words for responses, separated by spaces")
    shape: Literal["causal", "seq2seq"] = Field(
        default="causal", description="decoder-only, or encoder-decoder"
    )
    width: Count = Field(default=64, description="width of the hidden states")
    layers: Count = Field(
        default=2, description="number of layers; of an encoder-decoder: in each of both"
    )
    heads: Count = Field(default=8, description="attention heads in each layer")
    seed: Seed = Field(default=0, description="seed of the weights")

    @model_validator(mode="after")
    def _heads_share_the_width(self):
        if self.width % (2 * self.heads):
            refuse([("width", f"{self.width} must be a multiple of 2 x heads={self.heads}")])
        least = len(DECODER_LOOKS_BACK)
        if self.shape == "seq2seq" and self.heads < least:
            refuse([("heads", f"an encoder-decoder needs {least} or more")])
        return self


def texts_of(task: Task, settings: TinyModelSettings) -> Iterator[str]:
    """All texts that the model reads or may write."""
    for prompt in task.prompts(settings.train_file, "train", key="train_file"):
        yield prompt.text
        yield from prompt.references
    if settings.demonstrations is not None:
        for demonstration in DEMONSTRATIONS.read(settings.demonstrations):
            yield demonstration.prompt.text
            yield demonstration.response
    yield settings.words


def make_model(tokenizer: PreTrainedTokenizerFast, settings: TinyModelSettings) -> PreTrainedModel:
    """The random model, a pure function of the settings."""
    if settings.shape == "seq2seq":
        return tiny_encoder_decoder(
            tokenizer,
            seed=settings.seed,
            d_model=settings.width,
            d_kv=settings.width // settings.heads,
            d_ff=2 * settings.width,
            num_layers=settings.layers,
            num_decoder_layers=settings.layers,
            num_heads=settings.heads,
        )
    return tiny_causal(
        tokenizer,
        seed=settings.seed,
        hidden_size=settings.width,
        intermediate_size=2 * settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
    )


def write_model(task: Task, settings: TinyModelSettings) -> Path:
    """Save a tokenizer and a random model to `output_dir`, and return that folder.

    Raises:
      UserError: the folder has a model of another program.
    """
    tokenizer = word_tokenizer(texts_of(task, settings), add_eos=settings.shape == "seq2seq")
    model = make_model(tokenizer, settings)
    folder = Path(settings.output_dir)
    with hold(folder):
        claim_model_folder(folder, "tiny_model.json", settings)
        save_model(folder, model, tokenizer)
    print(f"{folder}: {model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    transformers_logging.disable_progress_bar()
    task, rest = task_and_rest(argv, USAGE)
    settings = settings_from(TinyModelSettings, rest, USAGE)
    if is_main_rank():  # several processes would write the same files
        write_model(task, settings)


if __name__ == "__main__":
    run_main(main)

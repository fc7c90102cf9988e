"""The tokenizer and the tiny T5 that the mini world starts from, built from a data folder alone.

    python -m tasks.qa_feedback.data.mini_model data_dir=... output_dir=...

The tokenizer has one token per word if the texts have few words, as in the mini world, else 4,000
Unigram pieces. The model is that of fgrlhf/models/tiny.py. Two more heads of its decoder look 6 and
8 tokens back, at the verb and the kind of the previous statement in the mini world. Their benefit
was not measured.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from transformers import PreTrainedTokenizerFast, T5ForConditionalGeneration

from fgrlhf.base.errors import UserError
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.models.tiny import (
    DECODER_LOOKS_BACK,
    save_model,
    tiny_encoder_decoder,
    unigram_tokenizer,
    word_tokenizer,
)
from fgrlhf.runs.occupied import claim_model_folder
from fgrlhf.runs.stage import hold
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.data.language import language_of
from tasks.qa_feedback.feedback import load_examples

SPLITS = ("train", "dev", "test", "pretrain", "sft")
FEW_WORDS = 2000  # up to this many words, the words themselves are the vocabulary


def texts_of(rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """All texts that a model of these rows reads and writes."""
    for row in rows:
        yield row["text"]
        yield from row["answer"]


def make_tokenizer(
    rows: Sequence[Mapping[str, Any]],
    kind: str = "auto",
    size: int = 4000,
    words: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """A tokenizer for the rows.

    Args:
      rows: {"text": str, "answer": [str, ...]}.
      kind: "words", "unigram", or "auto": words if there are at most FEW_WORDS different ones.
      size: pieces of a Unigram tokenizer.
      words: those of a language that is written without spaces.
    """
    if kind == "auto":
        different = words or {word for text in texts_of(rows) for word in text.split()}
        kind = "words" if len(different) <= FEW_WORDS else "unigram"
    if kind == "words":
        return word_tokenizer(texts_of(rows), words=words)
    return unigram_tokenizer(texts_of(rows), size)


def _words_without_spaces(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """The words of the mini world's language, if it is written without spaces; else ()."""
    for prompt in prompts:
        found = language_of(prompt.meta.get("question"))
        if found:
            return found[0].words
    return ()


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> T5ForConditionalGeneration:
    """The model before its pre-training, a pure function of `seed`."""
    return tiny_encoder_decoder(tokenizer, seed, decoder_looks_back=(*DECODER_LOOKS_BACK, 6, 8))


class MiniModelSettings(StrictModel):
    """The folder of the rows and the folder of the model."""

    data_dir: FilePath = Field(description="folder of the rows")
    output_dir: FilePath = Field(description="folder of the model")
    tokenizer: Literal["auto", "words", "unigram"] = Field(
        default="auto",
        description="words or unigram; auto: words if there are few different ones",
    )
    seed: int = Field(default=0, description="of everything random")


def write_model(settings: MiniModelSettings) -> None:
    """Build tokenizer and model from every *.json of rows in `data_dir`; save to `output_dir`.

    Raises:
      DataError: a row is malformed.
      UserError: there are no rows, or `output_dir` is a file.
    """
    folder = Path(settings.data_dir)
    files = [path for path in (folder / f"{name}.json" for name in SPLITS) if os.path.isfile(path)]
    if not files:
        raise UserError(
            f"{folder} has no train.json, dev.json or test.json: set data_dir to a folder of"
            " qa-feedback rows"
        )
    if os.path.isfile(settings.output_dir):
        raise UserError(
            f"{settings.output_dir} is a file, so no folder can be made there: give another"
            " output_dir=..."
        )
    prompts = [prompt for path in files for prompt in load_examples(path)]
    rows = [{"text": prompt.text, "answer": prompt.references} for prompt in prompts]
    tokenizer = make_tokenizer(rows, settings.tokenizer, words=_words_without_spaces(prompts))
    model = make_model(tokenizer, settings.seed)
    with hold(settings.output_dir):
        claim_model_folder(Path(settings.output_dir), "mini_model.json", settings)
        save_model(settings.output_dir, model, tokenizer)
    print(
        f"{settings.output_dir}: {model.num_parameters():,} parameters, {len(tokenizer)} tokens",
        flush=True,
    )


if __name__ == "__main__":
    run_program(write_model, MiniModelSettings)

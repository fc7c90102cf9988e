"""TRL's GRPOTrainer compared with our loop on SmolLM2-135M-Instruct (`fgrlhf data model smollm2`).

The comparison is that of peer_grpo.py, with a real model and longer prompts. TRL's side is also the
plain way to do it: the `generate` and the layers of transformers, and a copy of the prompt for each
of its samples. The folder of the model is outputs/models/smollm2, or FGRLHF_SMALL_MODEL.
"""

import os
import random
from dataclasses import replace
from pathlib import Path

import datasets
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from benchmarks.peer_grpo import Size, Work, check, run_ours, run_trl
from benchmarks.peers import Comparison, Side
from fgrlhf.base.errors import UserError
from fgrlhf.base.seeds import derive_seed
from fgrlhf.text_types import Prompt

DEFAULT_FOLDER = "outputs/models/smollm2"
SIZE = Size(prompt_tokens=700, tokens=64, prompts=2, samples=4, steps=2)


def prepare(folder: Path, size: Size) -> Work:
    """Copy the model without its chat template, and draw prompts of equal length.

    The special tokens get the logit 0, which is never among the largest, so that every response has
    its full length. The embeddings are tied, so their rows are the output layer's.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    source = os.environ.get("FGRLHF_SMALL_MODEL", DEFAULT_FOLDER)
    if not (Path(source) / "config.json").is_file():
        raise UserError(
            f"{source} does not contain SmolLM2: run `fgrlhf data model smollm2`, or set"
            " FGRLHF_SMALL_MODEL to its folder"
        )
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = None
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    with torch.no_grad():
        embeddings.weight[tokenizer.all_special_ids] = 0
    model.save_pretrained(folder / "start")
    tokenizer.save_pretrained(folder / "start")

    words = _one_token_words(tokenizer)
    draw = random.Random(derive_seed("peers", "smollm2"))
    prompts = []
    for i in range(size.prompts * size.steps):
        chosen = draw.choices(words, k=size.prompt_tokens)
        prompts.append(Prompt(str(i), "".join(chosen)))
    return Work(folder, size, prompts)


def _one_token_words(tokenizer) -> list[str]:
    """Words with their space in front that stay one token wherever they are."""
    words = []
    for token in range(1000, 20_000):
        word = tokenizer.decode([token])
        if word.startswith(" ") and word[1:].isascii() and word[1:].isalpha():
            words.append(word)
    return words


def checked(work: Work) -> dict:
    """`check` of peer_grpo.py on one short prompt: a whole step takes minutes."""
    short = replace(work.size, steps=1, prompts=1, tokens=16)
    return check(replace(work, size=short, prompts=work.prompts[:1]))


def comparison(size: Size = SIZE) -> Comparison:
    micros = [{"micro": m} for m in (4, 8) if size.responses % m == 0]
    return Comparison(
        name="smollm2",
        package="trl",
        unit="responses",
        at_least=3.0,
        what=(
            f"TRL's GRPOTrainer and ours, SmolLM2-135M-Instruct, fp32, {size.samples} responses of"
            f" {size.tokens} tokens to each of {size.prompts} prompts of {size.prompt_tokens}"
            " tokens, one update, no vLLM"
        ),
        prepare=lambda folder: prepare(folder, size),
        check=checked,
        ours=Side(run_ours, micros),
        peer=Side(run_trl, micros),
    )

"""Shared by several comparisons: made-up texts, a small GPT-2 with its tokenizer, a timer."""

import random
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from time import perf_counter, process_time
from typing import Protocol

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback

from fgrlhf.base.seeds import derive_seed
from fgrlhf.utils import seeded

SPECIAL = ("<pad>", "</s>", "<unk>")


class ModelSize(Protocol):
    """The fields of a size that define its model. `words` is the number of distinct words."""

    @property
    def vocab(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def words(self) -> int: ...


class Words:
    """Made-up words with Zipf frequencies, so that the tokenizer has whole words and pieces."""

    def __init__(self, size: ModelSize, draw: random.Random):
        syllables = [c + v for c in "bcdfghklmnprstvw" for v in "aeiou"]
        words: set[str] = set()
        while len(words) < size.words:
            words.add("".join(draw.choices(syllables, k=draw.choice((1, 2, 2, 3, 3, 4)))))
        self.words = sorted(words, key=lambda word: (len(word), word))
        self.draw = draw
        self.weights = list(accumulate(1 / (rank + 10) for rank in range(size.words)))

    def text(self, words: int) -> str:
        return " ".join(self.draw.choices(self.words, cum_weights=self.weights, k=words))


def _tokenizer(texts: Sequence[str], vocab: int) -> PreTrainedTokenizerFast:
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    model.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def gpt2_checkpoint(folder: Path, size: ModelSize) -> Path:
    """A random GPT-2 and a tokenizer.

    Dropout is 0, because TRL turns it off and ours uses the checkpoint's value.
    """
    words = Words(size, random.Random(derive_seed("peers", "rows")))
    tokenizer = _tokenizer([words.text(100) for _ in range(2000)], size.vocab)
    with seeded("peers", "gpt2"):
        network = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=size.vocab,
                n_embd=size.width,
                n_layer=size.layers,
                n_head=size.heads,
                n_positions=1024,
                bos_token_id=1,
                eos_token_id=1,
                pad_token_id=0,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
        )
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Clock(TrainerCallback):
    """Wall and CPU seconds from the end of the first optimiser step to the end of the last."""

    def __init__(self):
        self.ends: list[tuple[float, float]] = []

    def on_step_end(self, args=None, state=None, control=None, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append((perf_counter(), process_time()))

    def seconds(self) -> tuple[float, float]:
        first_wall, first_cpu = self.ends[0]
        last_wall, last_cpu = self.ends[-1]
        return last_wall - first_wall, last_cpu - first_cpu

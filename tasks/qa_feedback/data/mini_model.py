"""A tokenizer and a tiny T5 made from nothing but a data folder, saved as an ordinary Hugging Face
folder.

The tokenizer is word-level where the texts have few words (the mini world), else a 4,000 piece
Unigram. The model has random weights with structure. Copying starts late from T5's own
initialisation; here attention can compare contexts and copy what followed from the first step on:
- relative-position biases let head h of the first encoder layer look h + 1 tokens back and head h
  of the first decoder layer h tokens back (h < 5), and both carry what they see through the same
  random map; so an encoder position holds its preceding tokens where a decoder position holds its
  latest ones,
- two more decoder heads look 6 and 8 tokens back, at the previous statement's verb and kind in the
  mini world (no gain from them was measured),
- W_q = W_k in cross-attention, so that equal contexts attend to each other,
- W_o = W_v^T everywhere, with orthogonal W_v, so that a token attended to arrives as itself, and
  the tied embedding reads it off.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import torch
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, run_main
from fgrlhf.runs.stage import hold
from fgrlhf.utils import derive_seed, seeded
from tasks.qa_feedback.feedback import load_examples

SPLITS = ("train", "dev", "test", "pretrain", "sft")
SPECIAL = ("<pad>", "</s>", "<unk>")
FEW_WORDS = 2000  # up to here the words themselves are the vocabulary
ENCODER_LOOKS_BACK = (1, 2, 3, 4, 5)  # tokens, by head of the first layer; further heads are free
DECODER_LOOKS_BACK = (0, 1, 2, 3, 4, 6, 8)
LOOK_BACK_BIAS = 8.0


# ---- tokenizer -----------------------------------------------------------------------------------


def texts_of(rows: Iterable[dict]) -> Iterable[str]:
    """What a model of these rows will read and write."""
    for row in rows:
        yield row["text"]
        yield from row["answer"]


def _split() -> pre_tokenizers.PreTokenizer:
    """Words with the space before them as `▁`, punctuation apart; nothing is lost, so decoding
    gives the text back.
    """
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="always", split=True),
            pre_tokenizers.Split(Regex(r"▁?[^\s▁\p{P}]+|▁?\p{P}|▁"), behavior="isolated"),
        ]
    )


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", SPECIAL.index("</s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )


def word_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Every word a token, in the order of first appearance."""
    split, vocabulary = _split(), {token: i for i, token in enumerate(SPECIAL)}
    for text in texts:
        for word, _ in split.pre_tokenize_str(text):
            vocabulary.setdefault(word, len(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = split
    return _wrap(tokenizer)


def unigram_tokenizer(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """A Unigram vocabulary of at most `size` pieces; line breaks become spaces, as in T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.train_from_iterator(
        texts,
        trainers.UnigramTrainer(
            vocab_size=size, special_tokens=list(SPECIAL), unk_token="<unk>", show_progress=False
        ),
    )
    return _wrap(tokenizer)


def make_tokenizer(
    rows: list[dict], kind: str = "auto", size: int = 4000
) -> PreTrainedTokenizerFast:
    """`kind`: words, unigram, or auto (words where there are at most FEW_WORDS different ones)."""
    if kind == "auto":
        words = {word for text in texts_of(rows) for word in text.split()}
        kind = "words" if len(words) <= FEW_WORDS else "unigram"
    return (
        word_tokenizer(texts_of(rows))
        if kind == "words"
        else unigram_tokenizer(texts_of(rows), size)
    )


# ---- model ---------------------------------------------------------------------------------------


def tiny_config(tokenizer: PreTrainedTokenizerFast) -> T5Config:
    """0.7 M parameters with the world's vocabulary."""
    return T5Config(
        vocab_size=len(tokenizer),
        d_model=128,
        d_kv=16,
        num_heads=8,
        d_ff=256,
        num_layers=2,
        num_decoder_layers=2,
        dropout_rate=0.0,
        relative_attention_num_buckets=32,
        relative_attention_max_distance=128,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )


def _orthogonal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(rows, columns, generator=generator))[0]


def _look_back(attention, offsets: Sequence[int]) -> None:
    """Head h of a first-layer self-attention prefers the token `offsets[h]` before it; other heads
    are left free.
    """
    with torch.no_grad():
        bias = attention.relative_attention_bias.weight
        bias.zero_()
        for head, offset in enumerate(offsets):
            bucket = attention._relative_position_bucket(
                torch.tensor(-offset),
                bidirectional=not attention.is_decoder,
                num_buckets=attention.relative_attention_num_buckets,
                max_distance=attention.relative_attention_max_distance,
            )
            bias[bucket, head] = LOOK_BACK_BIAS


def initialise(model: T5ForConditionalGeneration, seed: int) -> None:
    """The structured random initialisation described above, a pure function of `seed`."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "initialise"))
    size, inner = model.config.d_model, model.config.num_heads * model.config.d_kv
    shared_v = _orthogonal(
        inner, size, generator
    )  # the map both first layers carry preceding tokens through
    with torch.no_grad():
        model.shared.weight.copy_(torch.randn(model.shared.weight.shape, generator=generator))
        for stack in (model.encoder, model.decoder):
            for depth, block in enumerate(stack.block):
                for position, sublayer in enumerate(block.layer[:-1]):
                    attention = (
                        sublayer.SelfAttention if position == 0 else sublayer.EncDecAttention
                    )
                    crossing = position == 1
                    first = depth == 0 and not crossing
                    q = _orthogonal(inner, size, generator) * (1.0 if crossing else 0.1)
                    v = shared_v if first else _orthogonal(inner, size, generator)
                    attention.q.weight.copy_(q)
                    attention.k.weight.copy_(q)
                    attention.v.weight.copy_(v)
                    attention.o.weight.copy_(v.T if not first else _rolled(v, model.config.d_kv).T)
    _look_back(model.encoder.block[0].layer[0].SelfAttention, ENCODER_LOOKS_BACK)
    _look_back(model.decoder.block[0].layer[0].SelfAttention, DECODER_LOOKS_BACK)


def _rolled(v: Tensor, d_kv: int) -> Tensor:
    """The output map of a look-back head: the next head's directions, so that each offset lands in
    a place of its own.
    """
    return v.roll(d_kv, 0)


class Settings(StrictModel):
    """Where the rows are and where the model goes."""

    data_dir: str
    output_dir: str
    tokenizer: Literal["auto", "words", "unigram"] = "auto"
    seed: int = 0


def write_model(settings: Settings) -> None:
    """Make tokenizer and model from every *.json of rows in `data_dir` and save both to
    `output_dir`.

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
    tokenizer = make_tokenizer(rows, settings.tokenizer)
    with seeded(
        settings.seed, "mini model"
    ):  # `initialise` leaves the feed-forward layers as transformers draws them
        model = T5ForConditionalGeneration(tiny_config(tokenizer))
    initialise(model, settings.seed)
    with hold(settings.output_dir):
        model.save_pretrained(settings.output_dir)
        tokenizer.save_pretrained(settings.output_dir)
    print(
        f"{settings.output_dir}: {model.num_parameters():,} parameters, {len(tokenizer)} tokens",
        flush=True,
    )


if __name__ == "__main__":
    run_main(lambda: write_model(settings_from(Settings)))

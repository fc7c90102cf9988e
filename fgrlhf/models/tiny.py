"""Tiny random models, and tokenizers built from a task's texts, without downloads.

    tokenizer = word_tokenizer(texts, add_eos=False)
    save_model(folder, tiny_causal(tokenizer, seed=0), tokenizer)

The folder is an ordinary folder of transformers, which every program can load.

With T5's own initialisation, copying is slow to learn. `tiny_encoder_decoder` therefore has random
weights with a structure: from the first step on, attention can compare contexts and copy the tokens
that followed them.

- Relative position biases let head h of the first encoder layer look h + 1 tokens back, and head h
  of the first decoder layer h tokens back. Both layers pass what they read through the same random
  map. So the state of an encoder position represents the tokens before it in the same way as the
  state of a decoder position represents its latest tokens.
- W_q = W_k in cross-attention, so that equal contexts attend to each other.
- W_o = W_v^T with orthogonal W_v everywhere, so that the embedding of an attended token is passed
  on unchanged, and the tied output layer recognises it.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

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
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from fgrlhf.base.files import give_weights_usual_access
from fgrlhf.base.seeds import derive_seed
from fgrlhf.utils import seeded

SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")
ENCODER_LOOKS_BACK = (1, 2, 3, 4, 5)  # tokens, by head of the first layer; other heads are free
DECODER_LOOKS_BACK = (0, 1, 2, 3, 4)
LOOK_BACK_BIAS = 8.0  # of an attention score


def save_model(
    folder: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Write model and tokenizer as a folder of transformers."""
    model.save_pretrained(folder)
    give_weights_usual_access(folder)
    tokenizer.save_pretrained(folder)


# ---- tokenizers ----------------------------------------------------------------------------------


def word_tokenizer(
    texts: Iterable[str], add_eos: bool = True, words: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per word and punctuation mark of the texts.

    Decoding a text of these words gives the text back. Other words become `<unk>`.

    Args:
      texts: all texts that the model will read and write.
      add_eos: whether an encoded text ends with `</s>`, as is usual for encoder-decoders. False for
        decoder-only models, whose prompts must not end with it.
      words: those of a language without spaces; of two that begin alike, the longer one is found.
    """
    splitter = _word_splitter(words)
    vocabulary = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    for text in texts:
        for word, _ in splitter.pre_tokenize_str(text):
            vocabulary.setdefault(word, len(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = splitter
    return _finish(tokenizer, add_eos)


def unigram_tokenizer(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """A Unigram tokenizer with at most `size` pieces. Line breaks become spaces, as in T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finish(tokenizer, add_eos=True)


def _word_splitter(words: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    """Splits a text into words, each with the space before it as `▁`, and punctuation marks.

    Nothing is lost, so decoding gives the text back.
    """
    listed = [re.escape(word) for word in sorted(words, key=len, reverse=True)]
    known = f"▁?(?:{'|'.join(listed)})|" if words else ""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="always", split=True),
            pre_tokenizers.Split(Regex(known + r"▁?[^\s▁\p{P}]+|▁?\p{P}|▁"), behavior="isolated"),
        ]
    )


def _finish(tokenizer: Tokenizer, add_eos: bool) -> PreTrainedTokenizerFast:
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    if add_eos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>",
            pair="$A $B </s>",
            special_tokens=[("</s>", SPECIAL_TOKENS.index("</s>"))],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )


# ---- models --------------------------------------------------------------------------------------


def tiny_causal(
    tokenizer: PreTrainedTokenizerFast, seed: int = 0, **changes: Any
) -> LlamaForCausalLM:
    """A Llama with 2 layers of width 128, about 0.4 M parameters, a pure function of `seed`.

    Args:
      tokenizer: its tokenizer.
      seed: of the weights.
      changes: other values of `LlamaConfig`.
    """
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
        "bos_token_id": tokenizer.eos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(**{**settings, **changes})
    with seeded(seed, "tiny causal"):
        return LlamaForCausalLM(config)


def tiny_encoder_decoder(
    tokenizer: PreTrainedTokenizerFast,
    seed: int = 0,
    decoder_looks_back: Sequence[int] = DECODER_LOOKS_BACK,
    **changes: Any,
) -> T5ForConditionalGeneration:
    """A T5 with 2 + 2 layers of width 128, about 0.7 M parameters, a pure function of `seed`.

    Its initialisation is described above.

    Args:
      tokenizer: its tokenizer.
      seed: of the weights.
      decoder_looks_back: tokens that the heads of the first decoder layer look back.
      changes: other values of `T5Config`.

    Raises:
      ValueError: there are fewer heads than offsets, or the heads together are narrower than the
        model.
    """
    settings = {
        "vocab_size": len(tokenizer),
        "d_model": 128,
        "d_kv": 16,
        "num_heads": 8,
        "d_ff": 256,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "dropout_rate": 0.0,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    config = T5Config(**{**settings, **changes})
    offsets = max(len(ENCODER_LOOKS_BACK), len(decoder_looks_back))
    if offsets > config.num_heads:
        raise ValueError(f"{offsets} heads should look back, but a layer has {config.num_heads}")
    if config.num_heads * config.d_kv < config.d_model:
        raise ValueError("num_heads * d_kv must not be less than d_model: W_v is orthogonal")
    with seeded(seed, "mini model"):  # feed-forward layers keep the weights of transformers
        model = T5ForConditionalGeneration(config)
    with torch.no_grad():
        _structure_weights(model, seed)
        _look_back(_first_self_attention(model.encoder), ENCODER_LOOKS_BACK)
        _look_back(_first_self_attention(model.decoder), decoder_looks_back)
    return model


def _first_self_attention(stack: Any) -> Any:
    return stack.block[0].layer[0].SelfAttention


def _structure_weights(model: T5ForConditionalGeneration, seed: int) -> None:
    """Embeddings and the four matrices of every attention, as described above."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "initialise"))
    config = model.config
    inner_size = config.num_heads * config.d_kv

    def orthogonal() -> Tensor:
        return torch.linalg.qr(torch.randn(inner_size, config.d_model, generator=generator))[0]

    # the map through which both first layers pass the tokens they look back at
    shared_v = orthogonal()
    embeddings = model.shared.weight
    embeddings.copy_(torch.randn(embeddings.shape, generator=generator))
    stacks: tuple[Any, Any] = (model.encoder, model.decoder)
    for stack in stacks:
        for depth, block in enumerate(stack.block):
            first = depth == 0
            _set_attention(
                block.layer[0].SelfAttention,
                q=orthogonal() * 0.1,
                v=shared_v if first else orthogonal(),
                # In the first layer a head uses the output map of the next head, so that every
                # offset is written to its own subspace.
                roll=config.d_kv if first else 0,
            )
            if stack.is_decoder:
                cross_attention = block.layer[1].EncDecAttention
                _set_attention(cross_attention, q=orthogonal(), v=orthogonal(), roll=0)


def _set_attention(attention: Any, q: Tensor, v: Tensor, roll: int) -> None:
    attention.q.weight.copy_(q)
    attention.k.weight.copy_(q)
    attention.v.weight.copy_(v)
    attention.o.weight.copy_(v.roll(roll, 0).T)


def _look_back(attention: Any, offsets: Sequence[int]) -> None:
    """Head h prefers the token `offsets[h]` before its own; the other heads have no preference."""
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

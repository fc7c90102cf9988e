"""Tiny models and tokenizers made on the spot: no download, seconds on a CPU."""

from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from fgrlhf.policy import CausalPolicy, Policy, T5Policy

WORDS = "the a red blue green cat dog bird sees likes and , . ; ! question: answer: context: wikipage: text: one two three".split()
TEXT = [" ".join(WORDS), "The café — naïve ☕ 🙂 Größe, Ωμέγα; 東京!", "the red cat sees a blue dog, and the dog likes one green bird."]
SPECIALS = ["<pad>", "</s>", "<unk>"]


@cache
def tokenizer(kind: str = "word") -> PreTrainedTokenizerFast:
    """`word` (word level), `unigram` (as T5's) or `bpe` (byte level, as GPT-2's)."""
    if kind == "bpe":
        model = Tokenizer(models.BPE())
        model.pre_tokenizer, model.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    elif kind == "unigram":
        model = Tokenizer(models.Unigram())
        model.pre_tokenizer, model.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=SPECIALS, unk_token="<unk>")
    else:
        model = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIALS + ["▁" + w for w in WORDS])}, unk_token="<unk>"))
        model.pre_tokenizer, model.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = None
    if trainer is not None:
        model.train_from_iterator(TEXT * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def t5(kind: str = "word", seed: int = 0, dropout: float = 0.0, **changes) -> T5Policy:
    """A random T5. Its embeddings are shrunk: a random tied T5 otherwise echoes its own input."""
    torch.manual_seed(seed)
    tok = tokenizer(kind)
    config = T5Config(
        vocab_size=len(tok), d_model=32, d_kv=8, num_heads=4, d_ff=48, num_layers=2, dropout_rate=dropout,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, **changes)
    model = T5ForConditionalGeneration(config)
    model.get_input_embeddings().weight.data.mul_(0.05)
    return T5Policy(model, fresh(tok), max_input_len=64)


def gpt2(kind: str = "word", seed: int = 0, dropout: float = 0.0) -> CausalPolicy:
    torch.manual_seed(seed)
    tok = tokenizer(kind)
    config = GPT2Config(
        vocab_size=len(tok), n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=1,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)
    return CausalPolicy(GPT2LMHeadModel(config), fresh(tok), max_input_len=64)


def fresh(tok: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A copy: a policy sets its tokenizer's padding side."""
    from copy import deepcopy

    return deepcopy(tok)


POLICIES = {"t5": t5, "gpt2": gpt2}


def policy(kind: str, **kwargs) -> Policy:
    return POLICIES[kind](**kwargs)

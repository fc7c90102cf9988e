"""Tiny policies of every supported family and their tokenizers: no download, built in seconds."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache, partial

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    LlamaConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    MistralConfig,
    MT5Config,
    MT5ForConditionalGeneration,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    T5Config,
    T5ForConditionalGeneration,
)

from fgrlhf.configs.sections import LoRAConfig, Sampling
from fgrlhf.models.lora import add_adapters
from fgrlhf.policy import CausalPolicy, Policy, T5Policy
from fgrlhf.rollout import score
from fgrlhf.text_types import Prompt
from fgrlhf.types import Rollout
from fgrlhf.value import ActorCritic

TEXT_OF_WORDS = (
    "the a red blue green cat dog bird sees likes and , . ; ! question: answer: context: wikipage:"
    " text: one two three"
)
WORDS = TEXT_OF_WORDS.split()
TEXT = [
    TEXT_OF_WORDS,
    "The café — naïve ☕ 🙂 Größe, Ωμέγα; 東京!",
    "the red cat sees a blue dog, and the dog likes one green bird.",
]
SPECIALS = ["<pad>", "</s>", "<unk>"]


@cache
def tokenizer(kind: str = "word") -> PreTrainedTokenizerFast:
    """`word` (word level), `unigram` (like T5's) or `bpe` (byte level, like GPT-2's)."""
    if kind == "bpe":
        model = Tokenizer(models.BPE())
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
        specials = {"special_tokens": SPECIALS}
        letters = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=letters, **specials)
    elif kind == "unigram":
        model = Tokenizer(models.Unigram())
        model.pre_tokenizer = pre_tokenizers.Metaspace()
        model.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=SPECIALS, unk_token="<unk>")
    else:
        pieces = [*SPECIALS, *("▁" + word for word in WORDS)]
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        model = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        model.pre_tokenizer = pre_tokenizers.Metaspace()
        model.decoder = decoders.Metaspace()
        trainer = None
    if trainer is not None:
        model.train_from_iterator(TEXT * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


T5_SIZES = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 48, "num_layers": 2}
T5_TOKENS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


def t5(kind: str = "word", seed: int = 0, dropout: float = 0.0, **changes) -> T5Policy:
    """A random T5 with small embeddings: with larger ones, a random tied T5 echoes its input."""
    torch.manual_seed(seed)
    tok = tokenizer(kind)
    settings = T5_SIZES | T5_TOKENS | {"dropout_rate": dropout} | changes
    config = T5Config(vocab_size=len(tok), **settings)
    model = T5ForConditionalGeneration(config)
    model.get_input_embeddings().weight.data.mul_(0.05)
    return T5Policy(model, fresh(tok), max_input_len=64)


def gpt2(kind: str = "word", seed: int = 0, dropout: float = 0.0) -> CausalPolicy:
    torch.manual_seed(seed)
    tok = tokenizer(kind)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    dropouts = {f"{place}_pdrop": dropout for place in ("resid", "embd", "attn")}
    config = GPT2Config(vocab_size=len(tok), bos_token_id=1, eos_token_id=1, **sizes, **dropouts)
    return CausalPolicy(GPT2LMHeadModel(config), fresh(tok), max_input_len=64)


FLAN = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def flan(
    kind: str = "word",
    seed: int = 0,
    dropout: float = 0.0,
    of=(T5Config, T5ForConditionalGeneration),
) -> T5Policy:
    """T5 1.1, like Flan and mT5: gated, with a separate output layer and no scale before it."""
    torch.manual_seed(seed)
    tok = tokenizer(kind)
    config_class, model_class = of
    settings = T5_SIZES | T5_TOKENS | FLAN | {"dropout_rate": dropout}
    model = model_class(config_class(vocab_size=len(tok), **settings))
    model.lm_head.weight = nn.Parameter(0.3 * torch.randn(len(tok), 32))
    return T5Policy(model, fresh(tok), max_input_len=64)


def mt5(**kwargs) -> T5Policy:
    return flan(**kwargs, of=(MT5Config, MT5ForConditionalGeneration))


def with_two_sides(
    config_class: type, words: int, dropout: float, start: int, **settings
) -> PretrainedConfig:
    """A config of BART's kind, whose encoder and decoder have the same sizes."""
    sizes = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
    for name, size in sizes.items():
        settings |= {f"encoder_{name}": size, f"decoder_{name}": size}
    settings |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), dropout)
    settings |= {"d_model": 32, "max_position_embeddings": 64, "scale_embedding": True}
    settings |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "init_std": 0.1}
    return config_class(vocab_size=words, decoder_start_token_id=start, **settings)


def bart(kind: str = "word", seed: int = 0, dropout: float = 0.0) -> T5Policy:
    """A BART with all its peculiarities.

    It has absolute positions, a bias on the logits, a scale on the embeddings, a start token that
    is also the end token, and generation settings that force or forbid tokens.
    """
    torch.manual_seed(seed)
    tok = tokenizer(kind)
    model = BartForConditionalGeneration(with_two_sides(BartConfig, len(tok), dropout, start=1))
    model.final_logits_bias.normal_()
    model.final_logits_bias[:, 1] = -3.0
    model.generation_config.forced_bos_token_id = 2
    model.generation_config.no_repeat_ngram_size = 2
    return T5Policy(model, fresh(tok), max_input_len=64)


TRANSLATORS = {  # name: (config, model, token with which the decoder starts)
    "marian": (MarianConfig, MarianMTModel, 0),
    "m2m100": (M2M100Config, M2M100ForConditionalGeneration, 1),
    "mbart": (MBartConfig, MBartForConditionalGeneration, 1),
}


def translator(
    name: str, kind: str = "word", seed: int = 0, dropout: float = 0.0, prefix: str | None = None
) -> T5Policy:
    """A random translation model; `prefix` is its `decoder_prefix`.

    Marian's decoder starts with the padding token. M2M100 (also NLLB) and mBART-50 start with the
    end token, and their generation config forces a language as the next token.
    """
    torch.manual_seed(seed)
    tok = tokenizer(kind)
    config_class, model_class, start = TRANSLATORS[name]
    settings = {"decoder_vocab_size": len(tok), "forced_eos_token_id": None}
    settings |= {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    model = model_class(with_two_sides(config_class, len(tok), dropout, start, **settings))
    model.generation_config.forced_bos_token_id = 3
    return T5Policy(model, fresh(tok), max_input_len=64, decoder_prefix=prefix)


GROUPED = {"num_key_value_heads": 2}
SOFT = {"final_logit_softcapping": 2.0}
DECODERS = {  # name: (config, its other settings)
    "llama": (LlamaConfig, GROUPED | {"tie_word_embeddings": False}),
    "qwen3": (Qwen3Config, GROUPED | {"head_dim": 8, "tie_word_embeddings": True}),
    "neox": (GPTNeoXConfig, {"rotary_pct": 0.5}),
    "mistral": (MistralConfig, GROUPED | {"sliding_window": 4}),
    "gemma2": (Gemma2Config, GROUPED | SOFT | {"head_dim": 8, "sliding_window": 4}),
    "bloom": (BloomConfig, {}),
    "falcon": (FalconConfig, {}),  # its layers return tuples
}


DECODER_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
}


def decoder(name: str, kind: str = "word", seed: int = 0) -> CausalPolicy:
    torch.manual_seed(seed)
    tok = tokenizer(kind)
    config_class, settings = DECODERS[name]
    settings = DECODER_SIZES | {"initializer_range": 0.2, "bos_token_id": 1} | settings
    config = config_class(vocab_size=len(tok), **settings)
    return CausalPolicy(AutoModelForCausalLM.from_config(config), fresh(tok), max_input_len=64)


def fresh(tok: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A copy, because a policy changes its tokenizer."""
    return deepcopy(tok)


POLICIES = {"t5": t5, "gpt2": gpt2, "flan": flan, "mt5": mt5, "bart": bart}
POLICIES |= {name: partial(translator, name) for name in ("marian", "m2m100")}
POLICIES |= {name: partial(decoder, name) for name in DECODERS}


def policy(kind: str, lora: LoRAConfig | None = None, **kwargs) -> Policy:
    """The policy of that name, with adapters if `lora` is given."""
    result = POLICIES[kind](**kwargs)
    if lora is not None:
        torch.manual_seed(7)
        add_adapters(result.model, lora)
    return result


TEMPLATE = (
    "{{ '<s>' }}{% for m in messages %}{{ '<|user|>' if m['role'] == 'user' else '<|assistant|>'"
    " }}{{ m['content'] }}{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{"
    " '<|assistant|>' }}{% endif %}"
)


def chat_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template.

    Like Llama's, it begins every text with <s> when it adds special tokens.
    """
    turns = ["<|user|>", "<|assistant|>", "<|end|>"]
    pieces = [*SPECIALS, "<s>", *turns, *("▁" + word for word in WORDS)]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.decoder = decoders.Metaspace()
    begin = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    model.post_processor = begin
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        bos_token="<s>",
        additional_special_tokens=turns,
        chat_template=TEMPLATE,
    )


def chat(seed: int = 0, **kwargs) -> CausalPolicy:
    """A random Llama with a chat tokenizer."""
    torch.manual_seed(seed)
    tok = chat_tokenizer()
    settings = DECODER_SIZES | GROUPED | {"bos_token_id": 3}
    config = LlamaConfig(vocab_size=len(tok), **settings)
    kwargs = {"max_input_len": 64, **kwargs}
    return CausalPolicy(AutoModelForCausalLM.from_config(config), tok, **kwargs)


def collect(
    actor_critic: ActorCritic,
    reference: nn.Module,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    num_samples: int,
    seeds: Sequence[int],
    temperature: float,
) -> Rollout:
    """Responses that the policy samples, scored."""
    encoded = actor_critic.policy.encode(prompts)
    response = actor_critic.policy.generate(*encoded, sampling, seeds, num_samples, temperature)
    given = (prompts, *encoded, response, num_samples, temperature)
    return score(actor_critic, reference, *given, sampling=sampling)

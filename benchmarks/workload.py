"""The workload of both sides: sizes, prompts of realistic length, random weights, settings.

Nothing is downloaded and no data is read. Words are made up and each is one token, so lengths are
exact: a prompt is `question: ... context: wikipage: ... text: ...` with as many tokens as a real
row has.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from accelerate import PartialState
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import WordLevel
from torch import nn
from transformers import (
    LongformerConfig,
    LongformerForSequenceClassification,
    LongformerForTokenClassification,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.strict import validate
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.reward_utils import Level
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.text_types import Prompt
from fgrlhf.value import ValueHead
from tasks.qa_feedback.feedback import rm_words_prefix

# Tokens of a real prompt at the quantiles 0, 2.5, 5 ... 100 %: `text` of 300 rows of qa-feedback
# with `</s>`, cut at 1,024 tokens, mean 657. Counted by a Unigram tokenizer trained on these texts
# with T5's normalisation (16.7 k pieces, 1.38 tokens per word), not by T5's own.
_QUANTILES = """
    15 262 289 302 310 318 324 340 492 543 568 570 577 584 589 597 602 608 614 618
    626 643 679 752 784 802 825 844 850 858 863 874 882 887 896 905 908 915 924 945
    1024
"""
PROMPT_TOKENS = tuple(map(int, _QUANTILES.split()))
SPECIAL = ("<pad>", "</s>", "<unk>")
MARKS = ("question:", "context:", "wikipage:", "text:", "answer:")
QUESTION, TITLE, SENTENCE, SENTENCES = 12, 3, 20, 7  # words of each part; sentences per passage
RM_LENGTH = 2048  # maximum length of the published reward models


@dataclass(frozen=True)
class T5Dims:
    """Dimensions of a T5 with `layers` layers in both encoder and decoder."""

    d_model: int
    d_ff: int
    d_kv: int
    heads: int
    layers: int
    vocab: int

    @property
    def inner(self) -> int:
        return self.d_kv * self.heads


@dataclass(frozen=True)
class RMDims:
    """Dimensions of a Longformer. `window`: tokens that a token attends to, both sides together."""

    hidden: int
    ff: int
    heads: int
    layers: int
    window: int


@dataclass(frozen=True)
class Size:
    """One workload.

    `prompt_tokens`: None uses the lengths of real rows.
    `eos_every`: every n-th word of the vocabulary ends an answer; with the seeds used here answers
    have 97 (tiny) and 95 (t5_small) tokens on average, and sampled answers of real rows have 97.
    None makes every answer `answer_tokens` long.
    `reps`: timed steps of each side.
    `onednn`: whether ours may multiply matrices with oneDNN on a CPU (fgrlhf/kernels/layers.py).
    `gradient_checkpointing`: whether ours recomputes layers in updates.
    `top_layers`: of policy and critic that ours trains; None: all.
    `reward_models`: the number of reward models of sentences in ours; None: the three of `ASPECTS`.
    """

    name: str
    policy: T5Dims
    value: T5Dims
    reward: RMDims
    prompts: int = 8
    samples: int = 4
    epochs: int = 4
    micro_batch: int = 4
    input_limit: int = 1024
    answer_tokens: int = 200
    prompt_tokens: int | None = None
    eos_every: int | None = 100
    bf16: bool = False
    dropout: float = 0.1
    onednn: bool = True
    gradient_checkpointing: bool = False
    top_layers: int | None = None
    reward_models: int | None = None
    reps: int = 3


_TINY = T5Dims(64, 128, 16, 4, 2, 2000)
_T5_SMALL = T5Dims(512, 2048, 64, 8, 6, 32_128)
_T5_BASE = T5Dims(768, 3072, 64, 12, 12, 32_128)
_T5_LARGE = T5Dims(1024, 4096, 64, 16, 24, 32_128)
_RM_SMALL = RMDims(256, 1024, 4, 6, 512)
_LONGFORMER_BASE = RMDims(768, 3072, 12, 12, 512)

# The reward models of `t5_small` have an eighth of its weights, like longformer-base and t5-large.
_ALL_SIZES = (
    Size("tiny", _TINY, _TINY, RMDims(64, 128, 4, 2, 128), prompts=4, eos_every=50, reps=5),
    Size("t5_small", _T5_SMALL, _T5_SMALL, _RM_SMALL, prompts=4, eos_every=131, reps=1),
    Size("t5_large", _T5_LARGE, _T5_BASE, _LONGFORMER_BASE, eos_every=None, bf16=True),
)
SIZES = {size.name: size for size in _ALL_SIZES}
CPU_SIZES = ("tiny", "t5_small")  # t5_large needs a GPU


# ---- words, prompts ------------------------------------------------------------------------------


def _word(i: int) -> str:
    """A made-up word; one in 12 ends a sentence and one in 9 a clause, for realistic segments."""
    syllables = ""
    rest = i
    while rest or len(syllables) < 4:
        rest, digit = divmod(rest, 70)
        syllables += "bdfgklmnprstvz"[digit // 5] + "aeiou"[digit % 5]
    if i % 12 == 5:
        return syllables + "."
    if i % 9 == 4:
        return syllables + ","
    return syllables


@cache
def words(vocab: int) -> tuple[str, ...]:
    return tuple(_word(i) for i in range(vocab - len(SPECIAL) - len(MARKS)))


def tokenizer(vocab: int, add_eos: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per word. Policies and reward models share the vocabulary.

    Args:
      add_eos: append `</s>` to every text, as encoder-decoders expect.
    """
    listed = [*SPECIAL, *("▁" + word for word in (*MARKS, *words(vocab)))]
    model = Tokenizer(WordLevel({token: i for i, token in enumerate(listed)}, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    model.decoder = decoders.Metaspace(prepend_scheme="always")
    if add_eos:
        model.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="right",
    )


def eos_ids(size: Size) -> list[int]:
    """Ids that end an answer.

    Random weights do not choose `</s>` by themselves, so many words act as the end.
    """
    if size.eos_every is None:
        return [SPECIAL.index("</s>")]
    return list(range(len(SPECIAL) + len(MARKS) + 7, size.policy.vocab, size.eos_every))


def prompt_lengths(size: Size) -> list[int]:
    """Tokens of each prompt: evenly spaced quantiles of the real rows, shuffled."""
    if size.prompt_tokens is not None:
        return [size.prompt_tokens] * size.prompts
    lengths = []
    for i in range(size.prompts):
        place = (i + 0.5) / size.prompts * (len(PROMPT_TOKENS) - 1)
        left = int(place)
        low, high = PROMPT_TOKENS[left : left + 2]
        lengths.append(round(low + (place - left) * (high - low)))
    random.Random(0).shuffle(lengths)
    return [min(length, size.input_limit) for length in lengths]


def make_prompt(vocab: int, i: int, tokens: int) -> Prompt:
    """Prompt i with `tokens` tokens including `</s>`: a question, then as many passages as fit."""
    draw = random.Random(derive_seed("benchmark prompt", i))
    budget = tokens - 2  # `question:` and `</s>`
    length = budget if budget < QUESTION + 16 else QUESTION
    question = draw.choices(words(vocab), k=length)
    budget -= length + 1  # `context:`
    passages = []
    while budget > 0:
        size = min(budget, 2 + TITLE + SENTENCE * SENTENCES)
        size = budget if budget - size < 2 + TITLE + 1 else size  # too short for another passage
        content = draw.choices(words(vocab), k=size - 2)  # without `wikipage:` and `text:`
        sentences = [
            " ".join(content[at : at + SENTENCE]) for at in range(TITLE, len(content), SENTENCE)
        ]
        passages.append([" ".join(content[:TITLE]), *sentences])
        budget -= size
    text = " ".join(rm_words_prefix(" ".join(question), passages)[:-1])
    return Prompt(str(i), text, meta={"question": " ".join(question), "passages": passages})


def prompts(size: Size) -> list[Prompt]:
    return [
        make_prompt(size.policy.vocab, i, length) for i, length in enumerate(prompt_lengths(size))
    ]


# ---- models --------------------------------------------------------------------------------------


def t5(dims: T5Dims, size: Size, seed: int) -> T5ForConditionalGeneration:
    """A random T5 whose next token depends on its input.

    A random T5 with tied embeddings repeats the last token, because that token is the most similar
    to its hidden state; random signs in the last norm prevent this. In deep models the
    contributions of the layers outweigh the input token, so that the same 20 tokens are always the
    most probable; the contributions of the decoder's layers are therefore scaled by 0.3. Special
    tokens have zero embeddings, hence a logit of 0, and are never among the 20.
    """
    torch.manual_seed(derive_seed("benchmark t5", seed))
    config = T5Config(
        vocab_size=dims.vocab,
        d_model=dims.d_model,
        d_ff=dims.d_ff,
        d_kv=dims.d_kv,
        num_heads=dims.heads,
        num_layers=dims.layers,
        dropout_rate=size.dropout,
        pad_token_id=0,
        eos_token_id=1,
    )
    config.decoder_start_token_id = 0
    with weights_device():
        model = T5ForConditionalGeneration(config)
        signs = torch.randint(0, 2, (dims.d_model,)) * 2 - 1
    with torch.no_grad():
        model.get_input_embeddings().weight[: len(SPECIAL)] = 0
        model.decoder.final_layer_norm.weight.mul_(signs)
        for name, parameter in model.decoder.named_parameters():
            if name.endswith("o.weight"):
                parameter.mul_(0.3)
    model.generation_config.eos_token_id = eos_ids(size)
    return model


def policy_model(size: Size) -> T5ForConditionalGeneration:
    """The reference, slightly sharpened as in the middle of a run, so that the KL is not 0."""
    model = t5(size.policy, size, seed=0)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.02)
    return model


def reference_model(size: Size) -> T5ForConditionalGeneration:
    return t5(size.policy, size, seed=0)


def value_model(size: Size) -> tuple[T5ForConditionalGeneration, ValueHead]:
    """Trunk and head. The head's last layer is random, because a fresh one outputs only zeros."""
    trunk = t5(size.value, size, seed=1)
    head = ValueHead(size.value.d_model)
    last_layer = head.layers[-1]
    assert isinstance(last_layer, nn.Linear)
    nn.init.normal_(last_layer.weight, std=size.value.d_model**-0.5)
    return trunk, head


def reward_model(size: Size, kind: str, seed: int) -> nn.Module:
    """A random Longformer that classifies segments or scores answers."""
    torch.manual_seed(derive_seed("benchmark reward", seed))
    dims = size.reward
    config = LongformerConfig(
        vocab_size=size.policy.vocab,
        hidden_size=dims.hidden,
        intermediate_size=dims.ff,
        num_hidden_layers=dims.layers,
        num_attention_heads=dims.heads,
        attention_window=dims.window,
        max_position_embeddings=RM_LENGTH + 2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        sep_token_id=1,
        type_vocab_size=1,
        # 0.1 at a width of 64; the scores of wider models would be ill-conditioned with it
        initializer_range=0.8 * dims.hidden**-0.5,
    )
    with weights_device():
        if kind == "segment":
            config.num_labels = 2
            network = LongformerForTokenClassification(config)
        else:
            config.num_labels = 1
            network = LongformerForSequenceClassification(config)
    return network.eval().requires_grad_(False)


def _segments(level: Level, with_context: bool) -> RewardModelSpec:
    return RewardModelSpec(
        "segment", "encoder", level, with_context, RM_LENGTH, ("ERR", "O"), "ERR", "O"
    )


# aspect -> its reward model's spec and the reward of a good segment (a bad one gets the negative)
ASPECTS: dict[str, tuple[RewardModelSpec, float]] = {
    "relevance": (_segments("subsentence", with_context=False), 0.3),
    "factuality": (_segments("sentence", with_context=True), 0.5),
    "completeness": (
        RewardModelSpec("sequence", "encoder", "sequence", True, RM_LENGTH, mean=0.0, std=1.0),
        0.3,
    ),
}


def aspects(size: Size) -> dict[str, tuple[RewardModelSpec, float]]:
    """The reward models of our side, as in `ASPECTS`."""
    if size.reward_models is None:
        return ASPECTS
    return {f"factuality_{i}": ASPECTS["factuality"] for i in range(size.reward_models)}


# ---- settings ------------------------------------------------------------------------------------


def config(size: Size, folder: str = "outputs/bench") -> RLConfig:
    """The published hyper-parameters at this size, with the library's advantages and loss."""
    generation = {"do_sample": True, "top_k": 20, "temperature": 0.7}
    tree = {
        "model": {
            "ckpt": "made here",
            "max_input_len": size.input_limit,
            "max_generated_len": size.answer_tokens,
            "train_generation_kwargs": generation,
            "value_model": {"ckpt": "made here"},
            "dtype": "bf16" if size.bf16 else "fp32",
        },
        "reward": {name: {"kind": spec.kind} for name, (spec, _) in aspects(size).items()},
        "env": {
            "train_num_samples_per_input": size.samples,
            "logprob_temperature": 1.0,
        },
        "algorithm": {"kl": {"coef": 0.3}, "gae": {"lam": 0.95}, "whiten": {"rewards": True}},
        "train": {
            "sampling_batch_size_per_card": size.prompts,
            "micro_batch_size": size.micro_batch,
            "n_ppo_epoch_per_rollout": size.epochs,
            "lr": 1e-5,
            "lr_schedule": "constant",
            "warmup_steps": 0,
            "max_grad_norm": None,
            "dropout": "updates" if size.dropout > 0 else False,
            "gradient_checkpointing": size.gradient_checkpointing,
        },
        "logging": {"save_dir": folder},
    }
    return validate(RLConfig, tree, "the benchmark's settings")


def default_device() -> torch.device:
    """The device of both sides: a GPU, or the CPU if there is none."""
    device = PartialState(cpu=not torch.accelerator.is_available()).device
    assert device is not None
    return device


def weights_device() -> torch.device:
    """Where random weights are drawn: a GPU draws billions in a moment."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def padded(rows: Sequence[Sequence[int]], width: int, pad: int = 0) -> torch.Tensor:
    """ids_BT with `width` columns."""
    return torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])

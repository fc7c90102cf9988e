"""Ends of tokens in decoded text in linear time, against the definition: every prefix decoded."""

from functools import cache

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fgrlhf import alignment
from fgrlhf.alignment import char_ends

KINDS = ["word", "unigram", "bpe", "unigram, tidied", "bpe, tidied", "bytes", "wordpiece", "suffix"]
TEXTS = st.text(alphabet=st.sampled_from("ab .,;?!'\n 🙂👩‍👩‍👧é東京\u2028\ufffd"), max_size=80)


def whole_prefixes(tokenizer, ids):
    """The definition, with nothing left out."""
    prefixes = [tokenizer.decode(ids[: t + 1], skip_special_tokens=True) for t in range(len(ids))]
    text = prefixes[-1] if prefixes else ""
    ends, reached = [], 0
    for prefix in prefixes:
        common = next(
            (i for i, (a, b) in enumerate(zip(prefix, text)) if a != b), min(len(prefix), len(text))
        )
        reached = max(reached, common)
        ends.append(reached)
    return text, tuple(ends)


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """`bytes`: as Llama's, unknown characters become a token for each byte. `suffix`: a token says
    that a word ends with it.
    """
    name = kind.removesuffix(", tidied")
    if name in ("word", "unigram", "bpe"):
        made = tiny.fresh(tiny.tokenizer(name))
    else:
        model = {"bytes": byte_fallback, "wordpiece": wordpiece, "suffix": suffixes}[name]()
        made = PreTrainedTokenizerFast(
            tokenizer_object=model, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
        )
    made.clean_up_tokenization_spaces = kind.endswith("tidied")
    return made


def byte_fallback() -> Tokenizer:
    pieces = [*tiny.SPECIALS, *(f"<0x{i:02X}>" for i in range(256)), *"▁ab.,'?!", "▁a", "▁ab", "ba"]
    model = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [("▁", "a"), ("▁a", "b"), ("b", "a")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    model.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    model.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return model


def wordpiece() -> Tokenizer:
    pieces = [
        *tiny.SPECIALS,
        "a",
        "b",
        "##a",
        "##b",
        ".",
        ",",
        "'",
        "?",
        "!",
        "é",
        "##🙂",
        "n't",
        "s",
    ]
    model = Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    model.pre_tokenizer, model.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return model


def suffixes() -> Tokenizer:
    pieces = [*tiny.SPECIALS, "a", "b", "a</w>", "b</w>", ".</w>", "é</w>", "é"]
    model = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [],
            unk_token="<unk>",
            end_of_word_suffix="</w>",
        )
    )
    model.pre_tokenizer, model.decoder = pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder()
    return model


@st.composite
def responses(draw, tokenizer):
    """Ids of a text, any ids at all (half characters, special tokens, long runs of one token), or
    both.
    """
    some = st.lists(st.integers(0, len(tokenizer) - 1), max_size=60)
    run = st.tuples(st.integers(0, len(tokenizer) - 1), st.integers(1, 50)).map(
        lambda pair: [pair[0]] * pair[1]
    )
    text = TEXTS.map(lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])
    return [i for part in draw(st.lists(text | some | run, min_size=1, max_size=4)) for i in part]


@pytest.mark.parametrize("kind", KINDS)
def test_ends_are_those_of_every_prefix(kind):
    tokenizer = tokenizer_of(kind)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(st.data())
    def check(data):
        ids = data.draw(responses(tokenizer))
        assert char_ends(tokenizer, ids) == whole_prefixes(tokenizer, ids)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_decoded_grow_with_the_length_not_its_square(kind, monkeypatch):
    tokenizer = tokenizer_of(kind)
    text = "the red cat , a dog . " if kind == "word" else "ab a, ba. "
    read = tokenizer(text * 100, add_special_tokens=False)["input_ids"]
    counted = []
    plain = alignment._decode_rows

    def counting(tokenizer, rows):
        counted.extend(map(len, rows))
        return plain(tokenizer, rows)

    monkeypatch.setattr(alignment, "_decode_rows", counting)
    work = {}
    for n in (200, 400):
        counted.clear()
        ids = (read * 8)[:n]
        assert len(ids) == n
        text, ends = char_ends(tokenizer, ids)
        assert len(ends) == n and ends[-1] == len(text)
        work[n] = sum(counted)
    assert work[400] < 2.2 * work[200] and work[400] < 100 * 400
    assert work[400] < 0.5 * 400 * 401 / 2  # what all prefixes take


def test_a_tokenizer_whose_text_never_splits_gets_the_definition():
    class Counting:
        """Says how many tokens there are: no part of it says what the whole says."""

        def batch_decode(self, rows, skip_special_tokens):
            return [f"{len(row)} tokens" for row in rows]

    text, ends = char_ends(Counting(), list(range(70)))
    assert text == "70 tokens" and ends == (0,) * 6 + (1,) * 63 + (len(text),)
    assert char_ends(Counting(), []) == ("", ())

"""`char_ends` in linear time equals its definition, which decodes every prefix."""

from functools import cache

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fgrlhf import alignment
from fgrlhf.alignment import char_ends, texts_of

KINDS = ["word", "unigram", "bpe", "unigram, tidied", "bpe, tidied", "bytes", "wordpiece", "suffix"]
TEXTS = st.text(alphabet=st.sampled_from("ab .,;?!'\n 🙂👩‍👩‍👧é東京\u2028\ufffd"), max_size=80)


def whole_prefixes(tokenizer, ids):
    """The definition of `char_ends`."""
    prefixes = [tokenizer.decode(ids[: t + 1], skip_special_tokens=True) for t in range(len(ids))]
    text = prefixes[-1] if prefixes else ""
    end = 0
    ends = []
    for prefix in prefixes:
        common = 0
        for a, b in zip(prefix, text):
            if a != b:
                break
            common += 1
        end = max(end, common)
        ends.append(end)
    return text, tuple(ends)


def test_texts_without_ends_are_the_same_texts():
    """Also where padding is an ordinary piece, which the tokenizer's own decoding would keep."""
    backend = Tokenizer.from_str(tiny.tokenizer("word").backend_tokenizer.to_str())
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    tokenizer.pad_token = "▁;"
    ids = tokenizer("the cat ; the dog ;", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the cat ; the dog ;"
    text, _ = char_ends(tokenizer, ids)
    assert texts_of(tokenizer, [ids, ids[:1]]) == [text, "the"] and ";" not in text


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """Tokenizers with different decoders.

    With `bytes`, as in Llama, unknown characters become one token per byte. With `suffix`, a token
    marks the end of a word.
    """
    name = kind.removesuffix(", tidied")
    if name in ("word", "unigram", "bpe"):
        tokenizer = tiny.fresh(tiny.tokenizer(name))
    else:
        model = {"bytes": byte_fallback, "wordpiece": wordpiece, "suffix": suffixes}[name]()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=model, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
        )
    tokenizer.clean_up_tokenization_spaces = kind.endswith("tidied")
    return tokenizer


def byte_fallback() -> Tokenizer:
    pieces = [*tiny.SPECIALS, *(f"<0x{i:02X}>" for i in range(256)), *"▁ab.,'?!", "▁a", "▁ab", "ba"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁a", "b"), ("b", "a")]
    rest = {"unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True}
    model = Tokenizer(models.BPE(vocabulary, merges, **rest))
    model.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    model.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return model


def wordpiece() -> Tokenizer:
    pieces = [*tiny.SPECIALS, "a", "b", "##a", "##b", *".,'?!é", "##🙂", "n't", "s"]
    model = Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    model.pre_tokenizer, model.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return model


def suffixes() -> Tokenizer:
    pieces = [*tiny.SPECIALS, "a", "b", "a</w>", "b</w>", ".</w>", "é</w>", "é"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    rest = {"unk_token": "<unk>", "end_of_word_suffix": "</w>"}
    model = Tokenizer(models.BPE(vocabulary, [], **rest))
    model.pre_tokenizer, model.decoder = pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder()
    return model


@st.composite
def responses(draw, tokenizer):
    """Tokens of texts, arbitrary tokens (half characters, special tokens), runs of one token."""
    token = st.integers(0, len(tokenizer) - 1)
    arbitrary = st.lists(token, max_size=60)
    run = st.tuples(token, st.integers(1, 50)).map(lambda pair: [pair[0]] * pair[1])
    text = TEXTS.map(lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])
    parts = draw(st.lists(text | arbitrary | run, min_size=1, max_size=4))
    return [i for part in parts for i in part]


@pytest.mark.parametrize("kind", KINDS)
def test_ends_equal_the_definition(kind):
    tokenizer = tokenizer_of(kind)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(st.data())
    def check(data):
        ids = data.draw(responses(tokenizer))
        assert char_ends(tokenizer, ids) == whole_prefixes(tokenizer, ids)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_decoded_tokens_grows_linearly(kind, monkeypatch):
    tokenizer = tokenizer_of(kind)
    text = "the red cat , a dog . " if kind == "word" else "ab a, ba. "
    tokens = tokenizer(text * 100, add_special_tokens=False)["input_ids"] * 8
    lengths = []
    decode_rows = alignment._decode_rows

    def counting(tokenizer, rows):
        lengths.extend(map(len, rows))
        return decode_rows(tokenizer, rows)

    monkeypatch.setattr(alignment, "_decode_rows", counting)
    work = {}
    for n in (200, 400):
        lengths.clear()
        ids = tokens[:n]
        assert len(ids) == n
        text, ends = char_ends(tokenizer, ids)
        assert len(ends) == n and ends[-1] == len(text)
        work[n] = sum(lengths)
    assert work[400] < 2.2 * work[200] and work[400] < 100 * 400
    assert work[400] < 0.5 * 400 * 401 / 2  # half the work of decoding all prefixes


def test_a_text_that_never_splits_is_decoded_by_the_definition():
    class Counting:
        """Decodes to the number of tokens, so the parts do not add up to the whole."""

        def batch_decode(self, rows, skip_special_tokens):
            return [f"{len(row)} tokens" for row in rows]

    text, ends = char_ends(Counting(), list(range(70)))
    assert text == "70 tokens" and ends == (0,) * 6 + (1,) * 63 + (len(text),)
    assert char_ends(Counting(), []) == ("", ())

"""Cutting an input that is too long: first its context, then the response, then the rest."""

import pytest
import rm_helpers as rm
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from fgrlhf.models.tiny import word_tokenizer
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.prefix import Prefix, RMText
from fgrlhf.reward_models.rm_input import Cuts, lengths_that_fit
from fgrlhf.reward_models.scoring import inputs_of
from fgrlhf.reward_models.spec import RewardModelSpec
from reward_modeling.data import read_segment_rows
from tasks.qa_feedback.feedback import rm_prefix_of_words

QUESTION = "question: the cat"
PASSAGES = "context: wikipage: one text: a dog sees the bird wikipage: two text: red"
SEGMENTS = (("the", "red", "cat"), ("a", "dog"))
ANSWER = "answer: </s> the red cat </s> a dog"


def tokenizer_with_specials(kind: str):
    """`<pad>` starts and `</s>` ends every text."""
    tokenizer = tiny.fresh(tiny.tokenizer(kind))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<pad> $A </s>", special_tokens=[("<pad>", 0), ("</s>", 1)]
    )
    return tokenizer


def inputs(shape, max_length=10**6, kind="segment", tokenizer=None) -> RMInputs:
    start = 0 if shape == "seq2seq" else None
    return RMInputs(tokenizer or tiny.tokenizer(), shape, kind, max_length, decoder_start_id=start)


def words_of(ids: list[int]) -> str:
    return " ".join(token.lstrip("▁") for token in tiny.tokenizer().convert_ids_to_tokens(ids))


# ---- the arithmetic ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lengths, max_length, kept",
    [
        ((5, 3, 2), 10, (5, 3, 2)),
        ((5, 3, 2), 9, (4, 3, 2)),
        ((5, 3, 2), 5, (0, 3, 2)),
        ((5, 3, 2), 4, (0, 2, 2)),
        ((5, 3, 2), 2, (0, 0, 2)),
        ((5, 3, 2), 1, (0, 0, 1)),
        ((0, 3, 2), 4, (0, 2, 2)),
        ((0, 0, 0), 1, (0, 0, 0)),
    ],
)
def test_lengths_that_fit_by_hand(lengths, max_length, kept):
    assert lengths_that_fit(*lengths, max_length) == kept


def test_lengths_that_fit_by_brute_force():
    """The best cut keeps most of the question, then of the response, then of the passages."""
    for passages in range(5):
        for response in range(5):
            for question in range(5):
                for max_length in range(1, 14):
                    ways = [
                        (q, r, p)
                        for q in range(question + 1)
                        for r in range(response + 1)
                        for p in range(passages + 1)
                        if q + r + p <= max_length
                    ]
                    q, r, p = max(ways)
                    assert lengths_that_fit(passages, response, question, max_length) == (p, r, q)


def test_a_prefix_checks_its_context():
    three = ("a", "b", "c")
    Prefix(three, (range(0, 1), range(1, 3)))
    for context in ((range(1, 4),), (range(1, 3), range(2, 3)), (range(0, 3, 2),), (range(2, 1),)):
        with pytest.raises(ValueError, match="ascending ranges of 3 words"):
            Prefix(three, context)
    assert Prefix.of(["a", "b"]) == Prefix(("a", "b")) and Prefix.of(Prefix(three)) == Prefix(three)


# ---- by hand, in words ---------------------------------------------------------------------------


def read(shape, max_length, kind="segment", passages=PASSAGES):
    return inputs(shape, max_length, kind).encode(
        [RMText(rm.prefix(QUESTION, passages), SEGMENTS)]
    )[0]


@pytest.mark.parametrize(
    "shape, max_length, words, positions, cut",  # words of passages, response and question
    [
        # 3 words of the question, 13 of passages, `answer:`, 7 of the response with its marks: 24
        ("encoder", 24, f"{QUESTION} {PASSAGES} {ANSWER}", (17, 21), (0, 0, 0)),
        ("encoder", 16, f"{QUESTION} {PASSAGES[:30]} {ANSWER}", (9, 13), (8, 0, 0)),
        # no room for passages: the response's end is cut, and finally the question's
        ("encoder", 9, f"{QUESTION} {ANSWER[:-6]}", (4, None), (13, 2, 0)),
        ("encoder", 2, "question: the", (None, None), (13, 7, 2)),
        # 3 words of the question, 13 of passages, 5 of the response: 21
        ("causal", 21, f"{QUESTION} {PASSAGES} the red cat a dog", (18, 20), (0, 0, 0)),
        ("causal", 11, f"{QUESTION} {PASSAGES[:22]} the red cat a dog", (8, 10), (10, 0, 0)),
        ("causal", 7, f"{QUESTION} the red cat a", (5, None), (13, 1, 0)),
        ("causal", 2, "question: the", (None, None), (13, 5, 1)),
        ("seq2seq", 6, f"{QUESTION} {PASSAGES[:22]}|<pad> the red cat a dog", (3, 5), (10, 0, 0)),
        ("seq2seq", 5, f"{QUESTION} {PASSAGES[:18]}|<pad> the red cat a", (3, None), (11, 1, 0)),
        ("seq2seq", 2, "question: the|<pad> the", (None, None), (13, 4, 1)),
    ],
)
def test_a_long_input_loses_the_end_of_the_passages_first(shape, max_length, words, positions, cut):
    found = read(shape, max_length)
    both = [ids for ids in (found.input_ids, found.decoder_input_ids) if ids]
    assert "|".join(map(words_of, both)) == words and found.positions == positions
    assert (found.cut_context, found.cut_response, found.cut_core) == cut
    assert found.unread_segments == positions.count(None)


@pytest.mark.parametrize("shape", rm.SHAPES)
def test_without_passages_only_the_response_can_be_cut(shape):
    cut = read(shape, 5, passages="")
    assert cut.cut_context == 0 and cut.cut_response > 0
    assert words_of(cut.input_ids).startswith("question: the cat")


def test_a_sequence_scorer_reads_question_and_response():
    cut = read("encoder", 12, "sequence")
    assert (
        words_of(cut.input_ids)
        == "question: the cat context: wikipage: one answer: the red cat a dog"
    )
    assert cut.positions == (0,)
    cut = read("causal", 9, "sequence")
    assert words_of(cut.input_ids) == "question: the cat context: the red cat a dog"
    assert cut.positions == (8,)


@pytest.mark.parametrize("shape", rm.SHAPES)
def test_two_ranges_of_context_are_cut_from_the_last_end(shape):
    """The words between and after the ranges are kept."""
    words = rm.words("the a red cat and the blue dog ! one")
    prefix = Prefix(words, (range(1, 4), range(6, 9)), ())
    text = RMText(prefix, (("a", "dog"),))
    mark = {"encoder": "</s> a dog", "causal": "a dog", "seq2seq": ""}[shape]
    expected = {
        0: "the a red cat and the blue dog ! one",
        1: "the a red cat and the blue dog one",
        3: "the a red cat and the one",
        4: "the a red and the one",
        6: "the and the one",
    }
    whole = inputs(shape).encode([text])[0]
    for removed, left in expected.items():
        length = len(whole.input_ids) - removed
        (cut,) = inputs(shape, length).encode([text])
        assert words_of(cut.input_ids) == f"{left} {mark}".strip()
        assert (cut.cut_context, cut.cut_core, cut.cut_response) == (removed, 0, 0)
        moved = removed if shape != "seq2seq" else 0
        assert cut.positions == tuple(position - moved for position in whole.positions)


# ---- for any text, tokenizer and length ----------------------------------------------------------

WORD = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Z", "Cc")), min_size=1, max_size=7
)
WORDS = st.lists(WORD, max_size=6).map(tuple)


@settings(max_examples=200, deadline=None)
@given(
    question=WORDS,
    passages=WORDS,
    segments=st.lists(st.lists(WORD, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    tokenizer=st.sampled_from(["word", "unigram", "bpe"]),
    specials=st.booleans(),
    shape=st.sampled_from(rm.SHAPES),
    kind=st.sampled_from(["segment", "sequence"]),
    max_length=st.integers(3, 90),
)
def test_only_tokens_of_the_context_are_missing(
    question, passages, segments, tokenizer, specials, shape, kind, max_length
):
    if kind == "sequence":
        segments = (tuple(word for segment in segments for word in segment),)
    tok = tokenizer_with_specials(tokenizer) if specials else tiny.tokenizer(tokenizer)
    start = ("question:", *question)
    words = (*start, "context:", "wikipage:", *passages)
    context = (range(len(start), len(words)),)
    text = RMText(Prefix(words, context, ("answer:",)), segments)
    (whole,) = inputs(shape, kind=kind, tokenizer=tok).encode([text])
    (cut,) = inputs(shape, max_length, kind, tok).encode([text])
    # without passages, to see which tokens are the question's and the response's
    (bare,) = inputs(shape, kind=kind, tokenizer=tok).encode(
        [RMText(Prefix(start, (), ("answer:",)), segments)]
    )
    removed = max(0, len(whole.input_ids) - max_length)
    if removed == 0:
        assert cut.input_ids == whole.input_ids and cut.cut_context == cut.cut_core == 0
    if len(bare.input_ids) <= max_length:
        assert len(cut.input_ids) == len(whole.input_ids) - removed and cut.cut_context == removed
        assert is_without_block(cut.input_ids, whole.input_ids, removed)
        assert is_without_block(
            bare.input_ids, cut.input_ids, len(cut.input_ids) - len(bare.input_ids)
        )
        if shape != "seq2seq":
            assert cut.cut_response == 0 and cut.unread_segments == 0
    else:
        (bare_cut,) = inputs(shape, max_length, kind, tok).encode(
            [RMText(Prefix(start, (), ("answer:",)), segments)]
        )
        assert cut.input_ids == bare_cut.input_ids and cut.positions == bare_cut.positions
    if shape == "seq2seq":
        assert cut.decoder_input_ids == whole.decoder_input_ids[:max_length]
        moved = 0
    else:
        moved = cut.cut_context
    for before, after in zip(whole.positions, cut.positions, strict=True):
        if kind == "segment" and after is not None:
            assert after == before - moved
    lost = sum(
        after is None and before is not None
        for before, after in zip(whole.positions, cut.positions)
    )
    assert cut.unread_segments == lost
    assert len(cut.input_ids) <= max_length


def is_without_block(short: list[int], long: list[int], size: int) -> bool:
    """Whether `short` is `long` without `size` adjacent tokens."""
    return any(long[:i] + long[i + size :] == short for i in range(len(short) + 1))


@pytest.mark.parametrize("tokenizer", ["word", "bpe"])
@pytest.mark.parametrize("shape", rm.SHAPES)
def test_special_tokens_stay_at_their_ends(shape, tokenizer):
    tok = tokenizer_with_specials(tokenizer)
    text = RMText(rm.prefix(QUESTION, PASSAGES), SEGMENTS)
    longest = len(inputs(shape, tokenizer=tok).encode([text])[0].input_ids)
    for max_length in range(2, longest):
        (cut,) = inputs(shape, max_length, tokenizer=tok).encode([text])
        assert len(cut.input_ids) == max_length and cut.input_ids[0] == 0
        if shape != "causal":  # where the response follows the prefix's own `</s>`
            assert cut.input_ids[-1] == 1


# ---- counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", rm.SHAPES)
def test_cuts_are_counted(shape):
    built = inputs(shape, 12)
    short, long = (
        RMText(rm.prefix(QUESTION), SEGMENTS[1:]),
        RMText(rm.prefix(QUESTION, PASSAGES), SEGMENTS),
    )
    endless = RMText(rm.prefix(QUESTION), (("a",) * 3, ("a",) * 30, ()))
    built.encode([short, long])
    assert built.cuts == Cuts(inputs=2, prefixes=1, contexts=1)
    built.encode([long, endless])
    assert built.cuts == Cuts(inputs=4, prefixes=2, contexts=2, responses=1, unread_segments=1)
    assert (
        built.cuts.describe(12)
        == "2 of 4 inputs: context cut to fit model.max_input_len=12; 1 responses cut, "
        "1 of their segments are not judged"
    )
    assert (
        Cuts(267, 12, 12).describe(1024)
        == "12 of 267 inputs: context cut to fit model.max_input_len=1024; 0 responses cut"
    )
    assert "3 prompts cut beyond their context" in Cuts(9, 9, 9, 9, 3, 9).describe(2)


@pytest.mark.parametrize("shape", rm.SHAPES)
@pytest.mark.parametrize("max_length", [128, 512])
def test_real_rows_keep_question_and_response(golden, shape, max_length):
    rows = read_segment_rows(
        golden / "F-ERR_sentence" / "dev.json",
        ("F-ERR", "O"),
        "Ignore",
        prefix_of_words=rm_prefix_of_words,
    )
    texts = [row.text for row in rows[:12]]
    whole = inputs(shape, tokenizer=tiny.tokenizer("bpe"))
    cut = inputs(shape, max_length, tokenizer=tiny.tokenizer("bpe"))
    bare = inputs(shape, tokenizer=tiny.tokenizer("bpe"))
    without = []
    for text in texts:
        (context,) = text.prefix.context or (range(len(text.prefix.words), 0),)
        question = text.prefix.words[: context.start]
        without.append(RMText(Prefix(question, (), ("answer:",)), text.segments))
    too_long = 0
    for full, short, none in zip(whole.encode(texts), cut.encode(texts), bare.encode(without)):
        if len(none.input_ids) <= max_length:
            assert len(short.input_ids) == min(max_length, len(full.input_ids))
            assert is_without_block(
                none.input_ids, short.input_ids, len(short.input_ids) - len(none.input_ids)
            )
        if len(full.input_ids) <= max_length and len(full.decoder_input_ids or ()) <= max_length:
            assert short.input_ids == full.input_ids
            assert short.decoder_input_ids == full.decoder_input_ids
            assert short.positions == full.positions
        too_long += len(full.input_ids) > max_length
    assert (cut.cuts.inputs, cut.cuts.prefixes) == (len(texts), too_long)


@pytest.mark.parametrize("level, between", [("step", "\n"), ("sentence", " ")])
def test_a_language_model_reads_steps_as_lines(level, between):
    """As in the texts that it has learned; else the first token of every step is improbable."""
    tokenizer = word_tokenizer(["find c b = 3\nc = 4"], add_eos=False)
    spec = RewardModelSpec(
        "segment", "causal", level, False, 64, ("ERROR", "O"), "ERROR", ok_label="O"
    )
    built = inputs_of(torch.nn.Module(), tokenizer, spec)
    segments = (("b", "=", "3"), (), ("c", "=", "4"))
    (read,) = built.encode([RMText(Prefix(("find", "c")), segments)])
    assert tokenizer.decode(read.input_ids) == f"find c b = 3{between}c = 4"
    first, blank, last = read.positions
    assert blank is None
    assert tokenizer.decode(read.input_ids[: first + 1]) == "find c b = 3"
    assert last == len(read.input_ids) - 1

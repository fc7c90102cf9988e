"""The oracle on hand-made answers and on arbitrary text."""

import json
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fgrlhf.text_types import Prompt
from tasks.qa_feedback.data.language import TOY, ErrorRates
from tasks.qa_feedback.data.mini_world import demonstration, gold_sentences, make_item, make_row
from tasks.qa_feedback.data.oracle import (
    Facts,
    completeness,
    factuality,
    full_sentences,
    gold,
    judge,
    oracle_metrics,
    page_sentences,
    relevance,
)
from tasks.qa_feedback.training.oracle_reward import gold_by_segment

QUESTION = "Where or by whom was Aaa Bbb created and sold?"


def passage(wikipage, content):
    return {"wikipage": wikipage, "content": content}


FILM = "The film was created by Kal. The film was sold in Oku. The film was made in Itz."
PASSAGES = [
    passage("Aaa Bbb (film)", FILM),
    passage("Aaa Bbb (poem)", "The poem was sold in Axo. The poem was created by Bor."),
    passage("Ccc Ddd (game)", "The game was sold in Uvi."),
]
PERFECT = (
    "The film was created by Kal; the film was sold in Oku. The poem was created by Bor; the poem"
    " was sold in Axo."
)


def labels(answer):
    return [s.label for s in judge(QUESTION, PASSAGES, answer).subsentences]


def test_perfect_answer():
    truth = judge(QUESTION, PASSAGES, PERFECT)
    assert (truth.relevance, truth.factuality, truth.completeness, truth.gold) == (1, 1, 1, 1)
    assert [PERFECT[s.start : s.end] for s in truth.subsentences][:2] == [
        "The film was created by Kal;",
        "the film was sold in Oku.",
    ]
    assert len(truth.sentences) == 2


def test_labels_of_every_kind():
    answer = (
        "The film was created by Kal; the film was made in Itz. The film was created by Kal. "
        "The game was sold in Uvi. The film was by by in."
    )
    assert labels(answer) == ["ok", "irrelevant", "repeated", "irrelevant", "incoherent"]
    truth = judge(QUESTION, PASSAGES, answer)
    assert [s.supported for s in truth.sentences] == [True, True, True, False]
    assert truth.relevance == 1 / 5 and truth.factuality == 3 / 4 and truth.completeness == 1 / 4
    assert truth.gold == pytest.approx(2 * (1 / 5) * (1 / 4) / (1 / 5 + 1 / 4))


def test_wrong_value_is_relevant_but_not_supported():
    truth = judge(QUESTION, PASSAGES, "The film was created by Bor; the film was sold in Oku.")
    assert [s.label for s in truth.subsentences] == ["ok", "ok"]
    assert [s.supported for s in truth.subsentences] == [False, True]
    assert truth.factuality == 0 and truth.precision == 0.5 and truth.completeness == 0.25


def test_guessing_twice_does_not_pay():
    once = "The film was created by Bor."
    assert (
        gold(QUESTION, PASSAGES, once + " The film was created by Kal.")
        == gold(QUESTION, PASSAGES, once)
        == 0
    )
    assert labels(once + " The film was created by Kal.") == ["ok", "repeated"]


def test_repeats_and_omissions_lower_the_gold_score():
    first = PERFECT.split(". ")[0] + "."
    assert gold(QUESTION, PASSAGES, f"{PERFECT} {first}") == pytest.approx(
        2 * (4 / 6) / (4 / 6 + 1)
    )
    assert gold(QUESTION, PASSAGES, first) == pytest.approx(2 / 3)
    assert gold(QUESTION, PASSAGES, " ".join([first] * 6)) < gold(QUESTION, PASSAGES, first)


def test_functions_agree_with_judge():
    answer = "The film was created by Kal. The film was made in Itz."
    truth = judge(QUESTION, PASSAGES, answer)
    assert relevance(QUESTION, PASSAGES, answer) == truth.relevance == 0.5
    assert factuality(QUESTION, PASSAGES, answer) == truth.factuality == 1
    assert completeness(QUESTION, PASSAGES, answer) == truth.completeness == 0.25
    prompt = Prompt("0", "", meta={"question": QUESTION, "passages": PASSAGES})
    expected = {"gold": truth.gold, "relevance": 0.5, "factuality": 1.0, "completeness": 0.25}
    found = oracle_metrics(prompt, answer)
    assert found == {f"oracle/{name}": value for name, value in expected.items()}


def test_both_forms_of_passages_say_the_same():
    row = make_row(0, "dev", 4)
    listed = [[title, *sentences] for title, sentences in map(page_sentences, row["passages"])]
    assert Facts.read(row["question"], listed) == Facts.read(row["question"], row["passages"])


def test_sources_are_ids_from_one():
    source = Facts.read(QUESTION, PASSAGES).sources["film", "sold"]
    assert (source.claim.value, source.passage_id, source.sentence_id) == ("Oku", 1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The film was created in Kal.",
        "The film was eaten by Kal.",
        "The car was created by Kal.",
        "the film was created by kal",
        "The film was created by Kal. And so.",
        "The film was created by Kal,",
    ],
)
def test_not_a_claim(text):
    assert TOY.read_claim(text) is None


@pytest.mark.parametrize(
    "answer", ["", "   \n", "\x00\u202e🙂", "The", "; ; ; .", "The film was created by", "." * 300]
)
def test_odd_answers_score_nothing(answer):
    truth = judge(QUESTION, PASSAGES, answer)
    assert (truth.gold, truth.relevance, truth.factuality, truth.completeness) == (0, 0, 0, 0)


WORDS = PERFECT.replace(".", " .").replace(";", " ;").split()
WORDS += ["🙂", "é\u0301", "\n", "", "\xa0", "?", ","]
ANSWERS = st.one_of(
    st.text(max_size=80), st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)
)
KEYS = st.sampled_from(["wikipage", "content", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(answer=ANSWERS)
def test_fuzz_answers(answer):
    truth = judge(QUESTION, PASSAGES, answer)
    parts = (truth.relevance, truth.factuality, truth.completeness)
    for value in (*parts, truth.precision, truth.gold):
        assert 0 <= value <= 1
    ends = [0, *(x for s in truth.subsentences for x in (s.start, s.end)), len(answer)]
    assert ends == sorted(ends)
    assert truth.covered <= set(truth.needed)


@settings(max_examples=150, deadline=None)
@given(question=JSON, passages=JSON, answer=ANSWERS)
def test_fuzz_rows(question, passages, answer):
    judge(question, passages, answer)
    json.dumps(list(judge(question, passages, answer).needed))


def test_gold_by_segment_sums_to_gold():
    rng = random.Random(0)
    for i in range(200):
        item, row = make_item(0, "dev", i), make_row(0, "dev", i)
        text = TOY.compose(demonstration(rng, item, ErrorRates()))
        truth = judge(row["question"], row["passages"], text)
        scores = gold_by_segment(truth, scale=3.0)
        assert sum(s.value for s in scores) == pytest.approx(3 * truth.gold)
        assert [s.value > 0 for s in scores] == [s.right for s in truth.subsentences]
        assert all(s.end == part.end for s, part in zip(scores, truth.subsentences))
    assert gold_by_segment(judge("", [], "")) == []


def test_gold_by_segment_by_hand():
    """Two needed facts: right, wrong, right gives gold 2/3, 2/4, 4/5."""
    item, row = make_item(0, "dev", 0), make_row(0, "dev", 0)
    right = [claim for sentence in gold_sentences(item) for claim in sentence][:2]
    truth = judge(
        row["question"], row["passages"], TOY.compose([[right[0]], [right[0]], [right[1]]])
    )
    truth = replace(truth, needed=truth.needed[:2])
    assert [s.value for s in gold_by_segment(truth)] == pytest.approx(
        [2 / 3, 1 / 2 - 2 / 3, 4 / 5 - 1 / 2]
    )


# ---- long and hostile texts ----------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab. \n\xa0.é😀"), max_size=60))
def test_full_sentences_are_those_of_the_plain_expression(text):
    assert list(full_sentences(text)) == re.findall(r"\S[^.]*\.", text)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "B", " ", "?", "\n", ".", "made ", "sold"]), max_size=12)
    .map("".join)
    .map("Where or by whom was {}".format)
    | st.text(max_size=30)
)
def test_title_and_asked_are_those_of_the_plain_expression(question):
    match = re.fullmatch(r"Where or by whom was (.+?) ([a-z].*)\?", question)
    words = re.findall(r"[a-z]+", match[2]) if match else []
    asked = tuple(dict.fromkeys(word for word in words if word in TOY.attributes))
    assert TOY.read_question(question) == ((match[1], asked) if match and asked else None)
    assert TOY.read_question(question + "?") is None or "\n" not in question


def slow_sentences(answer):
    """(start, end, supported) of each sentence, compared with every sub-sentence."""
    truth = judge(QUESTION, PASSAGES, answer)
    for sentence in truth.sentences:
        inside = [
            s for s in truth.subsentences if s.start < sentence.end and sentence.start < s.end
        ]
        yield sentence.start, sentence.end, bool(inside) and all(s.supported for s in inside)


@settings(max_examples=150, deadline=None)
@given(answer=ANSWERS)
def test_sentences_hold_the_sub_sentences_that_overlap_them(answer):
    truth = judge(QUESTION, PASSAGES, answer)
    assert [(s.start, s.end, s.supported) for s in truth.sentences] == list(slow_sentences(answer))


class Counting(str):
    """A text that counts the characters read from it."""

    given = 0

    def __getitem__(self, at):
        part = super().__getitem__(at)
        Counting.given += len(part)
        return part


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "a " * 100_000, "a. " + "b" * 200_000, "." * 200_000]
)
def test_nothing_after_the_last_full_stop_is_searched(text):
    """The expression reads only up to the last full stop; measured by counting characters."""
    Counting.given = 0
    full_sentences(Counting(text))
    assert Counting.given == text.rfind(".") + 1

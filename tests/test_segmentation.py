"""Sentences, sub-sentences and words of invented texts in many languages and of chat text.

In the table `fixtures/sentences.json`, `‖` is a boundary; white space beside it is between
two segments.
"""

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from page_helpers import opened

from fgrlhf import sentence_patterns
from fgrlhf.data.places import span_problems
from fgrlhf.reward_utils import MULTILINGUAL, PUBLISHED, load_segmenter
from fgrlhf.segmentation import sentences, subsentences
from fgrlhf.words import count_words, join_texts, word_spans, word_starts, words_of

FIXTURES = Path(__file__).parent / "fixtures"
TABLES = json.loads((FIXTURES / "sentences.json").read_text(encoding="utf-8"))
CLAUSES = TABLES["clauses"]
WORDS = [
    ("茶很热。 OK!", ["茶", "很", "热", "。", "OK!"]),
    ("he said 3.5, yes", ["he", "said", "3.5,", "yes"]),
    ("น้ำ ดี", ["น้", "ำ", "ดี"]),
    ("ខ្មែរ", ["ខ្", "មែ", "រ"]),
    ("ខ្ញុំ\u200bទៅ", ["ខ្", "ញុំ\u200b", "ទៅ"]),
    ("iPhone，Mac好", ["iPhone", "，", "Mac", "好"]),
    ("ང་བདེ།", ["ང", "་", "བ", "དེ", "།"]),
    ("그는 집에", ["그는", "집에"]),
    ("यह बड़ा", ["यह", "बड़ा"]),
]
CASES = [(name, text) for name, texts in TABLES["sentences"].items() for text in texts]
SCRIPTS = "Ab1 .,!?;:。，！“”」「とก ่។؟।$`|\n-#*\\[]()\t2"


def spans_of(marked):
    """The text, and the spans of its pieces."""
    text, spans = "", []
    for piece in marked.split("‖"):
        inner = piece.strip()
        start = len(text) + piece.index(inner)
        spans.append((start, start + len(inner)))
        text += piece
    return text, spans


def marked(text, spans):
    return [text[start:end] for start, end in spans]


def test_the_table_is_large():
    assert sum(text.count("‖") + 1 for _, text in CASES) >= 120


@pytest.mark.parametrize("language, case", CASES)
def test_sentences(language, case):
    text, spans = spans_of(case)
    assert marked(text, sentences(text)) == marked(text, spans)
    assert sentences(text) == spans


@pytest.mark.parametrize("newline", ["\r\n", "\r", "\u2028"])
def test_every_kind_of_line_break_divides_alike(newline):
    for _, case in CASES:
        text, spans = spans_of(case.replace("\n", newline))
        assert sentences(text) == spans, text


@pytest.mark.parametrize("case", CLAUSES)
def test_subsentences(case):
    text, spans = spans_of(case)
    assert marked(text, subsentences(text)) == marked(text, spans)
    assert subsentences(text) == spans


@pytest.mark.parametrize("text, words", WORDS)
def test_words(text, words):
    assert words_of(text) == words
    assert count_words(text) == len(words)
    assert [start for start, _ in word_spans(text)] == list(word_starts(text))


@pytest.mark.parametrize("text", ["", " ", "\n\t\xa0\n"])
def test_a_blank_text_has_no_segment(text):
    assert sentences(text) == subsentences(text) == word_spans(text) == []


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(SCRIPTS), max_size=60))
@example("```\n```\n``` a. B\n$$ $$ $a$")
@example("... !\n---\n1.\n- \n|")
def test_segments_are_in_order_and_cover_the_text(text):
    whole, parts = sentences(text), subsentences(text)
    for spans in (whole, parts, word_spans(text)):
        assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
        assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:]))
        covered = "".join(re.sub(r"\s", "", text[start:end]) for start, end in spans)
        assert covered == "".join(text.split())
    assert {start for start, _ in whole} <= {start for start, _ in parts}
    assert {end for _, end in whole} <= {end for _, end in parts}
    if any(character.isalnum() for character in text):
        assert all(any(map(str.isalnum, text[start:end])) for start, end in whole)


@pytest.mark.parametrize("unit", TABLES["units"])
def test_the_time_is_linear_in_the_length(unit):
    assert subsentences(unit * 20_000)


def test_the_feedback_pages_divide_texts_as_training_does(chromium):
    """templates/segmentation.js has the rules of fgrlhf/segmentation.py and its word lists."""
    rng = random.Random(3)
    pieces = [*SCRIPTS, *TABLES["pieces"]]
    made = ["".join(rng.choices(pieces, k=rng.randint(1, 40))) for _ in range(1500)]
    texts = (
        [spans_of(case)[0] for _, case in CASES] + [spans_of(case)[0] for case in CLAUSES] + made
    )
    with opened(chromium, items=None) as tab:
        found = tab.evaluate("texts => texts.map((text) => FG.sentences(FG.points(text)))", texts)
        lists = tab.evaluate(
            "Object.entries(FG.SENTENCE_WORDS).map(([name, words]) => [name, [...words]])"
        )
    for text, spans in zip(texts, found):
        assert [tuple(span) for span in spans] == sentences(text), text
    assert {name: frozenset(words) for name, words in lists} == {
        name: value
        for name, value in vars(sentence_patterns).items()
        if name.isupper() and isinstance(value, frozenset)
    }


def test_a_whole_sentence_is_a_span_even_without_a_space_after_it():
    text = "यह घर है।वह बड़ा है। Yes!"
    first, *_ = sentences(text)
    assert text[slice(*first)] == "यह घर है।"
    assert list(span_problems(*first, text, "span", "text")) == []
    assert [field for field, _ in span_problems(0, 8, text, "span", "text")] == ["span.end"]


def test_the_published_segmenter_keeps_its_rules():
    text = "1. 茶很热。好吃！ 2. Second"
    published = load_segmenter(PUBLISHED)
    assert marked(text, published.segments(text, "word")) == text.split()
    assert len(published.segments("茶很热。面包很好吃！", "sentence")) == 1
    ours = load_segmenter()
    assert ours.name == MULTILINGUAL and load_segmenter(ours.describe()) == ours
    assert len(ours.segments("茶很热。面包很好吃！", "sentence")) == 2
    assert len(ours.segments("茶很热。", "word")) == 4


@pytest.mark.parametrize(
    "texts, joined",
    [
        (["Tea is hot.", "", "Drink!"], "Tea is hot. Drink!"),
        (["茶很热。", "GPT 很快。", "好"], "茶很热。GPT 很快。好"),
        (["彼は寝た。", "彼女も。"], "彼は寝た。彼女も。"),
        (["물이 있다.", "좋다."], "물이 있다. 좋다."),
        (["ไปบ้าน", "กินข้าว"], "ไปบ้าน กินข้าว"),
        (["It is written 茶", "and means tea."], "It is written 茶 and means tea."),
        ([], ""),
    ],
)
def test_sentences_are_joined_as_their_script_does(texts, joined):
    assert join_texts(texts) == joined

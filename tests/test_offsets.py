"""Offsets in UTF-16 code units, grapheme clusters and words as code points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgrlhf.data.offsets import (
    CODE_POINT,
    GRAPHEME,
    UTF16_UNIT,
    WORD,
    cuts_grapheme,
    to_code_points,
    to_utf16,
    units_of,
)

TEXT = "Seven is even 🙂 odd 🙂🙂 here now."  # `here` is [23, 27)


@pytest.mark.parametrize(
    ("unit", "base", "last", "start", "end"),
    [
        ("code_points", 0, "exclusive", 23, 27),
        ("code_points", 1, "inclusive", 24, 27),
        ("utf16", 0, "exclusive", 26, 30),
        ("utf16", 0, "inclusive", 26, 29),
        ("utf16", 1, "exclusive", 27, 31),
        ("graphemes", 0, "exclusive", 23, 27),
        ("words", 0, "exclusive", 6, 7),
        ("words", 1, "inclusive", 7, 7),
    ],
)
def test_one_span_in_every_way_of_counting(unit, base, last, start, end):
    assert to_code_points(TEXT, start, end, unit, base, last) == (23, 27)


def test_a_cluster_is_one_grapheme():
    text = "👩🏽‍🚀 e\u0301 here"  # an astronaut of four code points, and e with an accent
    assert text[8:] == "here"
    assert to_code_points(text, 4, 8, GRAPHEME) == (8, 12)
    assert to_code_points(text, 2, 3, GRAPHEME) == (5, 7)
    assert to_code_points(text, 11, 15, UTF16_UNIT) == (8, 12)


def test_a_span_that_cuts_a_cluster():
    family = "👨\u200d👩\u200d👧"
    text = f"{family} is e\u0301."
    whole = [(0, 5), (6, 8), (9, 11), (5, 12), (0, len(text))]
    assert not any(cuts_grapheme(text, *span) for span in whole)
    assert all(cuts_grapheme(text, *span) for span in [(3, 5), (0, 4), (9, 10), (10, 11)])
    assert not cuts_grapheme("plain", 1, 3)


def test_places_inside_a_character_or_outside_the_text_are_outside():
    text = "a🙂b"
    assert to_code_points(text, 2, 3, UTF16_UNIT) == (4, 2)
    assert to_code_points(text, 1, 2, UTF16_UNIT) == (1, 4)
    assert to_code_points(text, 0, 5, UTF16_UNIT) == (0, 4)
    assert to_code_points(text, 0, 9) == (0, 4)
    assert to_code_points(text, -1, 1, UTF16_UNIT)[0] == -1
    assert to_code_points(text, 0, 1, CODE_POINT, 1)[0] == -1
    assert to_code_points("one two", 1, 3, WORD) == (4, 8)
    assert to_code_points("one two", 1, 1, WORD) == (4, 4)  # empty
    assert to_code_points("one two ", 0, 2, WORD) == (0, 7)


def test_unknown_ways_of_counting_are_refused():
    with pytest.raises(ValueError, match="unknown unit of offsets: bytes"):
        to_code_points("a", 0, 1, "bytes")
    with pytest.raises(ValueError, match="not from 2"):
        to_code_points("a", 0, 1, CODE_POINT, 2)
    with pytest.raises(ValueError, match="unknown end of spans"):
        to_code_points("a", 0, 1, CODE_POINT, 0, "last")


@given(st.text(st.sampled_from("a🙂\u0301 é"), max_size=12))
def test_utf16_agrees_with_the_codec(text):
    for place in range(len(text) + 1):
        units = len(text[:place].encode("utf-16-le")) // 2
        assert to_utf16(text, place) == units
        assert to_code_points(text, units, units, UTF16_UNIT) == (place, place)


def test_the_units_of_a_text_are_found_once():
    """Counting from the start for every span took seconds for a long text with many regions."""
    text = "🙂 word " * 2000
    units_of.cache_clear()
    spans = [(8 * i + 3, 8 * i + 7) for i in range(2000)]
    found = [to_code_points(text, *span, UTF16_UNIT) for span in spans]
    assert [text[start:end] for start, end in found] == ["word"] * 2000
    assert units_of.cache_info().misses == 1

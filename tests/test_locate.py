"""Locating dirty spans: how each claim is found, and that none is shifted silently."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fgrlhf.data.locate import (
    AMBIGUOUS,
    CODE_POINTS,
    EMPTY,
    EXACT,
    FOLDED,
    INSIDE,
    NOT_FOUND,
    OUTSIDE,
    UNVERIFIED,
    UTF16,
    VERBATIM,
    Located,
    fold,
    locate,
    shifted,
)

FROM_1 = shifted("from 1", -1, -1)
LAST_INCLUDED = shifted("from 0, last character included", 0, 1)


@pytest.mark.parametrize(
    "text, quote, start, end, expected",
    [
        ("a bc d", "bc", 2, 4, Located((2, 4), EXACT)),
        ("a bc d", "bc", 3, 5, Located((2, 4), VERBATIM)),
        ("a bc d", "bc", None, None, Located((2, 4), VERBATIM)),
        ("a bc d", "bc", 2, None, Located((2, 4), VERBATIM)),
        ("a bc d", None, 2, 4, Located((2, 4), UNVERIFIED)),
        ("a bc d", None, 2, 2, Located(None, EMPTY)),
        ("a bc d", None, 3, 2, Located(None, OUTSIDE)),
        ("a bc d", None, 2, 7, Located(None, OUTSIDE)),
        ("a bc d", None, -1, 2, Located(None, OUTSIDE)),
        ("a bc d", "bd", 2, 4, Located(None, NOT_FOUND)),
        ("a bc d", " ", 1, 2, Located(None, EMPTY)),
        ("a bc d", "bc", -4, -2, Located((2, 4), VERBATIM)),
        # several places
        ("bc bc", "bc", None, None, Located(None, AMBIGUOUS)),
        ("bc bc", "bc", 4, 6, Located((3, 5), VERBATIM)),
        ("bc  bc", "bc", 2, 4, Located(None, AMBIGUOUS)),
        ("aaa", "aa", 5, 7, Located((1, 3), VERBATIM + INSIDE)),
        # whole words come first, then places inside words
        ("A forest, or a wood.", "or", 0, 2, Located((10, 12), VERBATIM)),
        ("A forest, Or a wood.", "or", None, None, Located((10, 12), FOLDED)),
        ("or for or", "or", None, None, Located(None, AMBIGUOUS)),
        ("for or fort", "or", None, None, Located((4, 6), VERBATIM)),
        ("A forest.", "or", None, None, Located((3, 5), VERBATIM + INSIDE)),
        ("A fOrest.", "or", None, None, Located((3, 5), FOLDED + INSIDE)),
        ("for the", "or the", None, None, Located((1, 7), VERBATIM + INSIDE)),
        ("cafe\u0301s cafe", "cafe", None, None, Located((7, 11), VERBATIM)),
        ("1,5-fold", "5", None, None, Located((2, 3), VERBATIM)),
        ("狗在森林里", "森", None, None, Located((2, 3), VERBATIM)),
        # folding
        ("It’s  A\u00a0dog — ok", "it's a dog - OK", None, None, Located((0, 16), FOLDED)),
        ("say “No”!", 'say "no"', 0, 3, Located((0, 8), FOLDED)),
        ("x cafe\u0301 y", "caf\u00e9", None, None, Located((2, 7), FOLDED)),
        ("x caf\u00e9 y", "cafe\u0301 ", None, None, Located((2, 6), FOLDED)),
        ("wait…", "wait...", None, None, Located((0, 5), FOLDED)),
        ("a „b“ c", '"', None, None, Located(None, NOT_FOUND)),  # the mark itself is judged
        ("a „b“ c", '"b"', None, None, Located((2, 5), FOLDED)),
        ("zero\u200bwidth", "zerowidth", None, None, Located((0, 10), FOLDED)),
        ("Straße", "STRASSE", None, None, Located((0, 6), FOLDED)),
        ("Straße", "STRAS", None, None, Located(None, NOT_FOUND)),
        ("🙂 It’s", "it's", None, None, Located((2, 6), FOLDED)),
        ("\u1112\u1161\u11ab", "\ud55c", None, None, Located((0, 3), FOLDED)),
    ],
)
def test_claims(text, quote, start, end, expected):
    assert locate(text, quote, start, end) == expected


def test_ways_to_count():
    readings = (FROM_1, CODE_POINTS, LAST_INCLUDED)
    found = locate("a bc d", "bc", 3, 5, readings)
    assert found == Located((2, 4), EXACT, "from 1")
    assert found.outcome == "exact offset (from 1)"
    assert locate("a bc d", "bc", 2, 4, readings) == Located((2, 4), EXACT)
    assert locate("a bc d", "bc", 2, 3, readings).reading == LAST_INCLUDED.name
    # without a quote nothing tells the ways apart, so the usual one counts
    assert locate("a bc d", None, 3, 5, readings) == Located((2, 4), UNVERIFIED, "from 1")
    # no offset -1 that Python would count from the end
    assert locate("a b", "b", 0, 4, (FROM_1,)) == Located((2, 3), VERBATIM)


def test_a_claim_needs_a_quote_or_offsets():
    with pytest.raises(ValueError, match="a claim has a quote"):
        locate("abc", None, 1, None)


def test_utf16():
    text = "a🙂b🙂"
    assert locate(text, "b", 3, 4, (UTF16,)) == Located((2, 3), EXACT, UTF16.name)
    assert locate(text, "🙂", 1, 2, (UTF16, CODE_POINTS)) == Located((1, 2), EXACT)


ALPHABET = st.sampled_from(list("aB ’'\u0301\u200bß🙂\n…"))
TEXT = st.text(ALPHABET, max_size=12)


@given(TEXT)
@example("a\u200b\u0301")  # the accent is composed across a character without width
def test_folding_leads_back(text):
    folded = fold(text)
    assert len(folded.text) == len(folded.starts) == len(folded.ends)
    for character, start, end in zip(folded.text, folded.starts, folded.ends):
        assert 0 <= start < end <= len(text)
        assert character in fold(text[start:end]).text
    assert list(folded.starts) == sorted(folded.starts)
    assert fold(folded.text).text == folded.text


def test_a_long_run_of_invisible_characters_is_folded():
    """A broken extraction. If the time grew with the square of the run, it would take hours."""
    assert fold("a" + "\u200b" * 200_000 + "\u0301x").text == "\u00e1x"


@given(TEXT, st.data())
def test_a_true_claim_is_found_and_no_other_text_is_invented(text, data):
    if not text.strip():
        return
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    quote = text[start:end]
    if quote.strip():
        assert locate(text, quote, start, end) == Located((start, end), EXACT)
        searched = locate(text, quote)
        if searched.span is not None:
            assert fold(text[slice(*searched.span)]).text.strip() == fold(quote).text.strip()
    other = data.draw(TEXT)
    found = locate(text, other, start, end).span
    if found is not None:
        assert fold(text[slice(*found)]).text.strip() == fold(other).text.strip()


@given(TEXT)
def test_normal_forms_fold_alike(text):
    composed = unicodedata.normalize("NFC", text)
    assert fold(composed).text == fold(unicodedata.normalize("NFD", text)).text

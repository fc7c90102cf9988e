"""Segmentation: golden offsets, hand-made texts, invariants, the saved segmenter."""

import json
from contextlib import suppress

import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fgrlhf import reward_utils
from fgrlhf.base.errors import UserError
from fgrlhf.reward_utils import (
    BLANK,
    Level,
    Segmenter,
    load_segmenter,
    rm_words,
    subsentence_starts,
)

SEGMENTER = load_segmenter(BLANK)
TEXTS = st.text(st.sampled_from("aaabcZ.,;!?  \n\t\xa0\u2028\"'()#é😀𝔘中"), max_size=80)


def pieces(text, level):
    return [text[start:end] for start, end in SEGMENTER.segments(text, level)]


def test_golden_offsets(golden, source):
    examples = json.loads((golden / "segments.json").read_text())
    assert len(examples) == (1050 if source == "published" else 30)
    for example in examples:
        assert SEGMENTER.sentence_offsets(example["text"]) == example["sentence_offsets"]
        assert SEGMENTER.subsentence_offsets(example["text"]) == example["subsentence_offsets"]


@pytest.mark.parametrize(
    "words, starts",
    [
        ([], []),
        (["one"], [0]),
        # a break needs more than five words after it: i + 5 < n
        (["a", "b", "c", "d", "e,", "f", "g", "h", "i", "j"], [0]),
        (["a", "b", "c", "d", "e,", "f", "g", "h", "i", "j", "k"], [0, 5]),
        # each of , ; ! ? breaks, others do not
        *[(f"a b c d e{mark} f g h i j k".split(), [0, 5]) for mark in ",;!?"],
        *[(f"a b c d e{mark} f g h i j k".split(), [0]) for mark in (".", ":", "-", "")],
        # the first piece runs on while it is shorter than five words
        (["a", "b", "c", "d,", "e", "f", "g", "h", "i", "j", "k", "l"], [0]),
        (["a,", "b", "c", "d,", "e", "f,", "g", "h", "i", "j", "k", "l"], [0, 6]),
        # a later piece shorter than five words: the break before it moves to the end of it
        (["a", "b", "c", "d", "e,", "f", "g", "h", "i,", "j", "k", "l", "m", "n", "o"], [0, 9]),
        (["a", "b", "c", "d", "e,", "f", "g,", "h", "i,", "j", "k", "l", "m", "n", "o"], [0, 9]),
        (
            ["a", "b", "c", "d", "e,", "f", "g", "h", "i", "j,", "k", "l", "m", "n", "o", "p"],
            [0, 5, 10],
        ),
    ],
)
def test_subsentence_starts(words, starts):
    assert subsentence_starts(words) == starts


def test_subsentences_end_where_their_last_word_ends():
    text = "One two three four five,  six seven eight nine ten\neleven. Next  one."
    assert pieces(text, "subsentence") == [
        "One two three four five,",
        "six seven eight nine ten\neleven.",
        "Next  one.",
    ]
    assert pieces(text, "sentence") == [
        "One two three four five,  six seven eight nine ten\neleven.",
        "Next  one.",
    ]
    assert SEGMENTER.subsentence_offsets(text) == [0, 26, 59, 69]
    assert SEGMENTER.sentence_offsets(text) == [0, 58, 69]


@pytest.mark.parametrize("text", ["", " ", "\n\t\xa0"])
@pytest.mark.parametrize("level", ["subsentence", "sentence", "sequence"])
def test_a_blank_text_has_no_segments(text, level):
    assert SEGMENTER.segments(text, level) == []


def test_odd_characters():
    assert pieces(" 😀 smiles. 𝔘nicode\xa0works! \n", "sentence") == [
        "😀 smiles.",
        "𝔘nicode\xa0works!",
    ]
    assert pieces("Cut.In the word", "sentence") == ["Cut.", "In the word"]
    assert SEGMENTER.segments(" whole 😀 ", "sequence") == [(0, 9)]


def test_unknown_level():
    levels = "subsentence, sentence, paragraph, step, whole, or step:SEPARATOR"
    for level in ("page", "step:", ""):
        with pytest.raises(ValueError, match=f"`{level}` is not a level of segments.*{levels}"):
            SEGMENTER.segments("text", level)


def test_levels_by_hand():
    text = " One two, three.\nFour!  \n\n \nFive six"

    def pieces(level, ends=None):
        return [text[start:end] for start, end in SEGMENTER.segments(text, level, ends)]

    assert pieces("word") == ["One", "two,", "three.", "Four!", "Five", "six"]
    assert pieces("step") == ["One two, three.", "Four!", "Five six"]
    assert pieces("paragraph") == ["One two, three.\nFour!", "Five six"]
    assert pieces("whole") == [text]
    assert pieces("step:o") == ["One tw", ", three.\nF", "ur!  \n\n \nFive six"]
    assert pieces("step:\n\n") == ["One two, three.\nFour!", "Five six"]
    windows = "One.\r\nTwo.\r\n\r\nThree."
    spans = SEGMENTER.segments(windows, "step:\n\n")
    assert [windows[start:end] for start, end in spans] == ["One.\r\nTwo.", "Three."]
    assert pieces("step:;") == [text.strip()] and SEGMENTER.segments("; ;;", "step:;") == []
    assert pieces("token", (4, 5, 5, 8, len(text))) == ["One", "two", text[8:].strip()]
    assert SEGMENTER.segments(" \n ", "paragraph") == SEGMENTER.segments("", "whole") == []
    with pytest.raises(ValueError, match="needs the ends"):
        SEGMENTER.segments(text, "token")


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_segments_hold_every_word_once_and_no_outer_space(text):
    sentences, parts = SEGMENTER.sentences(text), SEGMENTER.subsentences(text)
    for spans in (sentences, parts):
        assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
        assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:]))
        assert "".join("".join(text[start:end].split()) for start, end in spans) == "".join(
            text.split()
        )
    # a sub-sentence lies in one sentence, and every sentence begins and ends with one
    assert {start for start, _ in sentences} <= {start for start, _ in parts}
    assert {end for _, end in sentences} <= {end for _, end in parts}
    assert SEGMENTER.subsentence_offsets(text) == [start for start, _ in parts] + [len(text)]
    assert len(SEGMENTER.sentence_offsets(text)) == len(sentences) + 1


def test_rm_words_marks_segments_by_place_not_by_word():
    text = "A </s> word. C"
    words, marks = rm_words(["question:", "</s>", "answer:"], text, SEGMENTER.sentences(text))
    assert words == ["question:", "</s>", "answer:", "</s>", "A", "</s>", "word.", "</s>", "C"]
    assert marks == [3, 7]
    assert rm_words(["answer:"], "", []) == (["answer:"], [])


def test_a_described_segmenter_is_found_again():
    assert SEGMENTER.describe() == {"name": BLANK, "version": spacy.__version__}
    assert load_segmenter(SEGMENTER.describe()) == SEGMENTER


def test_another_version_warns():
    with pytest.warns(UserWarning, match="made with blank_en_sentencizer 1.2.3"):
        load_segmenter({"name": BLANK, "version": "1.2.3"})


def test_a_segmenter_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(reward_utils, "_is_installed", lambda name: False)
    message = "`xx_none_sm` is not installed.*python -m spacy download xx_none_sm"
    with pytest.raises(UserError, match=message):
        load_segmenter({"name": "xx_none_sm", "version": "1.0"})
    assert load_segmenter("published").name == BLANK


def test_auto_takes_the_trained_pipeline_where_installed(monkeypatch):
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer", config={"punct_chars": ["|"]})
    nlp.meta["version"] = "9.9"
    monkeypatch.setattr(reward_utils, "_is_installed", lambda name: name == "en_core_web_sm")
    monkeypatch.setattr(reward_utils, "_declares_a_model", lambda name: True)
    monkeypatch.setattr(spacy, "load", lambda name, exclude: nlp)
    reward_utils._pipeline.cache_clear()
    try:
        segmenter = load_segmenter("published")
        assert segmenter == Segmenter("en_core_web_sm", "9.9")
        text = "One. Two | three"
        assert [text[start:end] for start, end in segmenter.sentences(text)] == [
            "One. Two |",
            "three",
        ]
        # the cache keeps pipelines apart
        assert pieces(text, "sentence") == ["One.", "Two | three"]
    finally:
        reward_utils._pipeline.cache_clear()
        reward_utils._raw_sentences.cache_clear()
        reward_utils._subsentences.cache_clear()


@pytest.mark.parametrize(
    "name",
    [
        "pip",
        "pytest",
        "os",
        "",
        ".",
        "../en_core_web_sm",
        "/tmp/en_core_web_sm",
        "en_core_web_sm\n",
        "en_core_web_sm.x",
        "x" * 10_000,
    ],
)
def test_a_name_that_is_no_pipelines_is_refused_without_import(name, monkeypatch):
    monkeypatch.setattr(spacy, "load", lambda *args, **kwargs: pytest.fail("imported"))
    with pytest.raises(UserError, match="is not a spaCy pipeline") as error:
        load_segmenter({"name": name, "version": "1.0"})
    assert len(str(error.value)) < 500


def test_an_installed_package_that_declares_no_pipeline_is_refused(monkeypatch):
    monkeypatch.setattr(reward_utils, "_is_installed", lambda name: True)
    monkeypatch.setattr(spacy, "load", lambda *args, **kwargs: pytest.fail("imported"))
    message = "the installed package `zz_evil_sm` is not a spaCy pipeline"
    with pytest.raises(UserError, match=message):
        load_segmenter("zz_evil_sm")


def test_a_package_declares_its_pipeline_by_an_entry_point(monkeypatch, tmp_path):
    """The metadata that spaCy's `package` command writes into a distribution."""
    folder = tmp_path / "zz_test_sm-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: zz_test_sm\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert reward_utils._is_installed("zz_test_sm")
    assert not reward_utils._declares_a_model("zz_test_sm")
    (folder / "entry_points.txt").write_text("[spacy_models]\nzz_test_sm = zz_test_sm\n")
    assert reward_utils._declares_a_model("zz_test_sm")
    assert not reward_utils._declares_a_model("zz_other_sm")


@pytest.mark.parametrize(
    "described", [{}, {"version": "1"}, {"name": 3}, {"name": BLANK, "version": 3}, 3, None, ["a"]]
)
def test_a_malformed_description_is_refused(described):
    message = "a segmenter is described by the texts `name` and `version`"
    with pytest.raises(UserError, match=message):
        load_segmenter(described)


# ---- long texts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("character", ["(", ".", '"', ":", "😀", "a,", '{"a":'])
def test_long_words_reach_spacy_as_letters(monkeypatch, character):
    """Punctuation never reaches spaCy in long words: its tokenizer is quadratic in their length."""
    read = []
    nlp = reward_utils._pipeline(BLANK)
    monkeypatch.setattr(
        type(nlp),
        "__call__",
        lambda self, text: read.append(text) or type(nlp).make_doc(self, text),
    )
    monkeypatch.setattr(reward_utils, "_pipeline", lambda name: nlp)
    word = character * (50_000 // len(character))
    with suppress(ValueError):  # without its sentencizer the document has no sentences
        SEGMENTER.sentences(f"It says {word} here.")
    assert read == [f"It says {'x' * (len(word) - 3)}{word[-3:]} here."]


def test_segments_of_long_words():
    word = "(" * 5000
    text = f"It says {word}. Nobody knows why {word} is there."
    assert pieces(text, "sentence") == [f"It says {word}.", f"Nobody knows why {word} is there."]
    assert SEGMENTER.sentences("." * 5000) == SEGMENTER.subsentences("." * 5000) == [(0, 5000)]
    assert pieces("Cut.In " + "a" * 199, "sentence") == ["Cut.", "In " + "a" * 199]
    assert pieces("Cut.In" + "a" * 194, "sentence") == ["Cut.In" + "a" * 194]


def test_the_blank_pipeline_has_no_longest_text(monkeypatch):
    text = "ab cd. " * 150_000
    assert SEGMENTER.sentences(text)[-1][1] == len(text) - 1
    monkeypatch.setattr(reward_utils._pipeline(BLANK), "max_length", 10)
    with pytest.raises(
        UserError,
        match=(
            "a text of 12 characters is too long for the segmenter `blank_en_sentencizer`: it"
            " reads 10"
        ),
    ):
        SEGMENTER.sentences("Some text. 9")


def test_a_separator_of_steps_can_be_written_in_a_shell():
    assert TypeAdapter(Level).validate_python(r"step:\n\n") == "step:\n\n"

"""PARENT: values by hand, and what makes it higher or lower."""

import pytest

from fgrlhf.metrics.parent import SMOOTHING, longest_common_subsequence, parent, words_of

TABLE = "Red cat tree"
RECORDS = ["red cat", "Tree"]


def test_a_value_by_hand():
    # the text and the reference differ in their first word; the table has `red` and `cat`
    precisions = [
        (0 + 1 + 1 + 1) / 4,  # `the` is neither in the reference nor in the table
        (1 / 2 + 1 + 1) / 3,  # `the red`: half of its words are in the table
        (2 / 3 + 1) / 2,
        2 / 4,
    ]
    recalls = [
        (1 + 1) / 2,  # of `red` and `cat`; `a` and `sat` are not in the table
        (1 + 1 / 2) / (1 / 2 + 1 + 1 / 2),  # `red cat`, `cat sat`; `a red` is missing
        (2 / 3) / (2 / 3 + 2 / 3),
        SMOOTHING,
    ]
    precision = (precisions[0] * precisions[1] * precisions[2] * precisions[3]) ** 0.25
    recall = (recalls[0] * recalls[1] * recalls[2] * recalls[3]) ** 0.25
    # text and reference mention one record of two, so both recalls weigh the same
    recall = recall**0.5 * 0.5**0.5
    expected = 100 * 2 * precision * recall / (precision + recall)
    value = parent("the red cat sat", ["A red cat sat"], TABLE, RECORDS)
    assert value == pytest.approx(expected)


def test_the_weight_of_the_records_depends_on_the_reference():
    # the reference mentions all records, so only its own recall counts: 3 of 4 words
    text = "red cat tree up"
    reference = "red cat tree down"
    precision = (3 / 4 * 2.5 / 3 * (1 + 2 / 3) / 2 * 3 / 4) ** 0.25
    # each n-gram of the reference that ends in `down` is missed, and its weight is smaller
    recall = (1 * 2 / 2.5 * 1 / (1 + 2 / 3) * SMOOTHING) ** 0.25
    assert parent(text, [reference], TABLE, RECORDS) == pytest.approx(
        100 * 2 * precision * recall / (precision + recall)
    )


def test_a_perfect_and_a_useless_text():
    assert parent("red cat in tree", ["red cat in tree"], TABLE, RECORDS) == pytest.approx(100)
    assert parent("", ["red cat in tree"], TABLE, RECORDS) == 0
    assert parent("blue fish", ["red cat in tree"], TABLE, RECORDS) == 0


def test_the_best_reference_counts():
    references = ["something else", "red cat in tree"]
    assert parent("red cat in tree", references, TABLE, RECORDS) == pytest.approx(100)


def test_what_the_table_supports_is_no_error():
    reference = ["a red cat sat there"]
    supported = parent("a red cat sat there tree", reference, TABLE, RECORDS)
    invented = parent("a red cat sat there fish", reference, TABLE, RECORDS)
    assert supported > invented


def test_words_and_subsequences():
    assert words_of(" The cat's 3.5 kg. ") == ["the", "cat's", "3.5", "kg", "."]
    assert longest_common_subsequence("abcbd", "xbdc") == 2
    assert longest_common_subsequence("", "a") == 0


def test_there_must_be_a_record():
    with pytest.raises(ValueError, match="record"):
        parent("a", ["a"], "a", [" "])

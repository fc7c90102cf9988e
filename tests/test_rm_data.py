"""Readers of reward-model files: every malformed row is named, with field and reason."""

import json

import pytest
import rm_helpers as rm

from fgrlhf.base.errors import UserError
from fgrlhf.reward_models.prefix import Prefix, RMText
from reward_modeling.data import (
    PairCollator,
    first_position_share,
    read_pair_rows,
    read_segment_rows,
)
from tasks.qa_feedback.feedback import rm_prefix_of_words
from tasks.qa_feedback.reward_modeling.pairs import read_pairs

SEGMENT_ROW = {
    "id": "0",
    "text": ["question:", "a", "answer:", "</s>", "b"],
    "feedback_tags": ["Ignore"] * 3 + ["O", "Ignore"],
}


def read_segments(tmp_path, *rows, level=None):
    path = tmp_path / "train.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_segment_rows(path, rm.LABELS, "Ignore", level)


def written(tmp_path, *rows):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(rows))
    return path


def changed(row, key, place, value):
    """A copy of `row` with another value at one place of a list."""
    values = list(row[key])
    values[place] = value
    return {**row, key: values}


def test_segments_must_be_of_the_configs_level(tmp_path):
    words, tags = SEGMENT_ROW["text"], SEGMENT_ROW["feedback_tags"]
    two = {"text": [*words, "</s>", "c"], "feedback_tags": [*tags, "O", "Ignore"]}
    # a repeated row is fine
    assert len(read_segments(tmp_path, SEGMENT_ROW, SEGMENT_ROW, level="sequence")) == 2
    assert len(read_segments(tmp_path, SEGMENT_ROW, two, level="sentence")) == 2
    with pytest.raises(UserError, match="line 2, `text`: has 2 segments, but data.level=sequence"):
        read_segments(tmp_path, SEGMENT_ROW, two, level="sequence")


def test_a_file_without_a_judged_segment(tmp_path):
    with pytest.raises(UserError, match="has no judged segment.*nothing to learn from"):
        read_segments(tmp_path, changed(SEGMENT_ROW, "feedback_tags", 3, "Ignore"))


def test_words_before_the_first_segment_are_the_prefix(tmp_path):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(SEGMENT_ROW))
    (row,) = read_segment_rows(path, rm.LABELS, "Ignore")
    assert row.text == RMText(Prefix(("question:", "a", "answer:")), (("b",),))
    (row,) = read_segment_rows(path, rm.LABELS, "Ignore", prefix_of_words=rm_prefix_of_words)
    assert row.text == RMText(Prefix(("question:", "a"), (), ("answer:",)), (("b",),))


# ---- pair files ----------------------------------------------------------------------------------

COMPARISON = {
    "prompt": "a question",
    "responses": ["one", "", "three"],
    "preferences": [[2, 0], [0, 1]],
}


def test_rows_of_any_number_of_responses(tmp_path):
    two = {"prompt": "two words", "responses": ["a", "b"], "preferences": [], "topic": "x"}
    first, second = read_pair_rows(written(tmp_path, COMPARISON, two))
    assert (first.prompt.text, second.prompt.text) == ("a question", "two words")
    assert [answer.text for answer in first.answers] == ["one", "", "three"]
    assert (first.pairs, second.pairs) == (((2, 0), (0, 1)), ())
    assert second.prompt.meta == {"topic": "x"}
    with pytest.raises(UserError, match=r"row 1, `preferences\[0\]"):
        read_pair_rows(written(tmp_path, two, {**two, "preferences": [[0, 2]]}))


def test_a_pair_file_without_rows_is_refused(tmp_path):
    for reader in (None, read_pairs):
        with pytest.raises(UserError, match="train.json has no rows"):
            read_pair_rows(written(tmp_path), reader)
    (tmp_path / "train.json").write_text('{"question": "a"}')
    message = "train.json must hold one JSON array of rows, it holds an object"
    with pytest.raises(UserError, match=message):
        read_pair_rows(tmp_path / "train.json", read_pairs)


def test_first_position_share_counts_pairs(tmp_path):
    rows = read_pair_rows(written(tmp_path, COMPARISON, COMPARISON))
    assert first_position_share(rows) == (2, 4)


def test_labels_of_a_batch_are_places_among_all_its_responses():
    class Inputs:
        def collate(self, responses):
            return {"responses": responses}

    rows = [(["a", "b", "c"], ((2, 0, 0.5), (0, 1, 2.0))), (["d", "e"], ((1, 0, 0.0),))]
    batch = PairCollator(Inputs())(rows)
    assert batch["responses"] == ["a", "b", "c", "d", "e"]
    assert batch["labels"].tolist() == [[[2, 0, 0.5], [0, 1, 2]], [[4, 3, 0], [-100] * 3]]


def test_a_task_with_its_own_format_reads_the_librarys_too(tmp_path):
    rows = [{"prompt": "q", "chosen": "a", "rejected": "b", "question": "q", "passages": []}]
    for row in rows, [*rows, {"prompt": "q", "responses": ["a", "b"], "scores": [1, 2]}]:
        (tmp_path / "pairs.json").write_text(json.dumps(row))
        comparisons = read_pair_rows(tmp_path / "pairs.json", read_pairs)
        assert len(comparisons) == len(row) and comparisons[0].pairs == ((0, 1),)
    assert comparisons[0].prompt.meta == {"question": "q", "passages": []}


# ---- pair files of qa-feedback -------------------------------------------------------------------

PAIR_ROW = rm.pair_rows(1, 0)[0]


def test_pairs_of_a_feedback_row(tmp_path):
    row = {**PAIR_ROW, "preference": [1, 2, 0, 0, 2, 1]}
    (comparison,) = read_pairs(written(tmp_path, row))
    assert comparison.pairs == ((0, 1), (2, 0), (3, 1), (2, 3))
    assert [answer.text for answer in comparison.answers] == [
        row[f"prediction {i}"] for i in range(1, 5)
    ]
    assert comparison.prompt.meta == {"question": row["question"], "passages": row["passages"]}


def test_blank_answers_repeated_rows_and_no_passages_are_rows(tmp_path):
    blank = {**PAIR_ROW, "prediction 1": "", "passages": []}
    rows = read_pairs(written(tmp_path, PAIR_ROW, PAIR_ROW, blank))
    assert rows[0].answers == rows[1].answers and rows[2].answers[0].text == ""


@pytest.mark.parametrize("content", [b"\xff\xfe[", "é".encode("latin-1"), b"\x1f\x8b\x08"])
def test_files_that_are_not_utf8(tmp_path, content):
    path = tmp_path / "train.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="train.json"):
        read_segment_rows(path, rm.LABELS, "Ignore")
    for read in (read_pair_rows, read_pairs):
        with pytest.raises(UserError, match="train.json"):
            read(path)

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


@pytest.mark.parametrize(
    "row, message",
    [
        (
            changed(SEGMENT_ROW, "feedback_tags", 3, ["O"]),
            r"row 1, `feedback_tags\[3\]`: must be a text, it is a list",
        ),
        (
            changed(SEGMENT_ROW, "feedback_tags", 0, {}),
            r"row 1, `feedback_tags\[0\]`: must be a text, it is an object",
        ),
        (
            changed(SEGMENT_ROW, "feedback_tags", 0, None),
            r"row 1, `feedback_tags\[0\]`: must be a text, it is null",
        ),
        (
            changed(SEGMENT_ROW, "feedback_tags", 3, "x" * 10_000),
            r"row 1, `feedback_tags`: x+ \.\.\. x+ not among",
        ),
        (changed(SEGMENT_ROW, "text", 4, 3), r"row 1, `text\[4\]`: must be a text, it is a number"),
        (changed(SEGMENT_ROW, "text", 4, None), r"row 1, `text\[4\]`: must be a text, it is null"),
        (
            changed(SEGMENT_ROW, "text", 4, ["b"]),
            r"row 1, `text\[4\]`: must be a text, it is a list",
        ),
        (
            changed(SEGMENT_ROW, "text", 4, " "),
            r"row 1, `text\[4\]`: must be a text that is not empty",
        ),
        (changed(SEGMENT_ROW, "text", 4, "\ud83d"), "half of a surrogate pair"),
        ({**SEGMENT_ROW, "text": [], "feedback_tags": []}, "row 1, `text`: has no `</s>`"),
        ({**SEGMENT_ROW, "marks": [99]}, "row 1, `marks`: must be increasing places in `text`"),
        ({**SEGMENT_ROW, "marks": [True]}, "row 1, `marks`: must be increasing places in `text`"),
        ({**SEGMENT_ROW, "marks": "2"}, "row 1, `marks`: must be increasing places in `text`"),
        ({**SEGMENT_ROW, "marks": [0]}, "row 1, `marks`: a word of `text` .* is not `</s>`"),
        ({**SEGMENT_ROW, "marks": []}, "row 1, `text`: has no `</s>`"),
        ({"text": None}, "row 1, `text`, `feedback_tags`"),
        (None, "row 1, `text`, `feedback_tags`"),
        ([], "row 1, `text`, `feedback_tags`"),
    ],
)
def test_a_malformed_segment_row_is_named(tmp_path, row, message):
    with pytest.raises(UserError, match=message) as error:
        read_segments(tmp_path, SEGMENT_ROW, row)
    assert len(str(error.value)) < 1000


def test_many_unknown_tags_are_a_short_message(tmp_path):
    words = ["</s>"] * 200
    with pytest.raises(UserError, match="and 195 more not among") as error:
        read_segments(tmp_path, {"text": words, "feedback_tags": [f"tag {i}" for i in range(200)]})
    assert len(str(error.value)) < 400


def test_segments_must_be_of_the_configs_level(tmp_path):
    words, tags = SEGMENT_ROW["text"], SEGMENT_ROW["feedback_tags"]
    two = {"text": [*words, "</s>", "c"], "feedback_tags": [*tags, "O", "Ignore"]}
    # a repeated row is fine
    assert len(read_segments(tmp_path, SEGMENT_ROW, SEGMENT_ROW, level="sequence")) == 2
    assert len(read_segments(tmp_path, SEGMENT_ROW, two, level="sentence")) == 2
    with pytest.raises(UserError, match="row 1, `text`: has 2 segments, but data.level=sequence"):
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
    with pytest.raises(
        UserError, match="train.json must hold one JSON array of rows, it holds an object"
    ):
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


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"preference": [True] * 6},
            r"`preference`: must be six numbers, each 0, 1 or 2 \(got \[True, True",
        ),
        ({"preference": [1.0] * 6}, r"`preference`: .*got \[1\.0, 1\.0"),
        ({"preference": [[1]] * 6}, "`preference`"),
        ({"preference": ["1"] * 6}, "`preference`"),
        ({"preference": [1] * 100_000}, r"`preference`: .*\.\.\. "),
        ({"preference": 10**4000}, "`preference`"),
        ({"question": " "}, "`question`: must be a text that is not empty"),
        ({"question": {}}, "`question`: must be a text, it is an object"),
        ({"passages": None}, "`passages`: must be a list of passages"),
        ({"passages": [[]]}, "`passages`: must be a list of passages"),
        ({"passages": [["title", 5]]}, r"`passages\[0\]\[1\]`: must be a text, it is a number"),
        ({"prediction 4": ["a"]}, "`prediction 4`: must be a text, it is a list"),
    ],
)
def test_a_malformed_pair_row_is_named(tmp_path, change, message):
    with pytest.raises(UserError, match=f"row 1, {message}") as error:
        read_pairs(written(tmp_path, PAIR_ROW, {**PAIR_ROW, **change}))
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "change", [{"question": "\udc80"}, {"prediction 2": "a \ud800"}, {"passages": [["\ud83d"]]}]
)
def test_half_a_character_is_refused(tmp_path, change):
    with pytest.raises(UserError, match="half of a surrogate pair"):
        read_pairs(written(tmp_path, {**PAIR_ROW, **change}))


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

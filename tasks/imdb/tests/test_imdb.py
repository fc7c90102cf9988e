"""IMDB: the halves of a review, and the reward by hand."""

import pytest

from fgrlhf.base.records import RowError
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt
from tasks.imdb.task import PROMPT_WORDS, SentimentReward, labelled, prompts


def test_a_review_is_divided_after_half_of_its_words():
    named = Row({"text": "a b c d e", "label": "pos"}, {})
    row = Row({"text": "a b c d e", "label": 1}, {})
    assert prompts(named) == prompts(row)
    assert prompts(row) == [
        {"prompt": "a b", "references": [" c d e"], "opening": "a b", "label": 1}
    ]
    assert labelled(row) == [("a b c d e", "positive")]


def test_the_policy_reads_the_end_of_a_long_first_half():
    words = [str(number) for number in range(200)]
    (row,) = prompts(Row({"text": " ".join(words), "label": 0}, {}))
    assert row["prompt"].split() == words[100 - PROMPT_WORDS : 100]
    assert row["opening"].split() == words[:100]
    assert row["prompt"] + row["references"][0] == " ".join(words[100 - PROMPT_WORDS :])


def test_a_review_of_one_word_has_no_halves():
    assert prompts(Row({"text": "Great!", "label": 1}, {})) == []


@pytest.mark.parametrize(
    "values, key",
    [({"text": "a b", "label": 2}, "label"), ({"text": "a b"}, "label"), ({"label": 1}, "text")],
)
def test_malformed_rows(values, key):
    with pytest.raises(RowError, match=f"`{key}`"):
        prompts(Row(values, {}))


class CountGood:
    def score(self, prompts, texts):
        return [text.split().count("good") / 4 for text in texts]


def test_the_scorer_reads_opening_and_response_as_one_text():
    prompt = Prompt("0", "film", meta={"opening": "a good film"})
    results = SentimentReward(CountGood()).segment_scores([prompt] * 2, ["good end", " bad"])
    ((first,), (second,)) = results
    assert (first.start, first.end, first.value) == (0, None, 0.5)
    assert second.value == 0.25

"""NarrativeQA: the prompt of a question about a summary."""

import pytest

from fgrlhf.base.records import RowError
from fgrlhf.data.rows import Row
from tasks.narrative_qa.task import prompts

ROW = {
    "document": {"summary": {"text": "A dog\nruns. It is Rex."}},
    "question": {"text": "Who is the  dog?"},
    "answers": [{"text": "Rex "}, {"text": "A dog called Rex"}],
}


def test_the_prompt_is_that_of_unified_qa():
    assert prompts(Row(ROW, {})) == [
        {
            "prompt": "who is the dog? \\n a dog runs. it is rex.",
            "references": ["rex", "a dog called rex"],
        }
    ]


def test_questions_about_a_story_are_a_cluster():
    row = {**ROW, "document": {**ROW["document"], "id": "story 7"}}
    assert prompts(Row(row, {}))[0]["cluster"] == "story 7"


def test_answers_as_columns():
    row = Row({**ROW, "answers": {"text": ["Rex", "REX"], "tokens": [["Rex"], ["REX"]]}}, {})
    assert prompts(row)[0]["references"] == ["rex", "rex"]


@pytest.mark.parametrize(
    "change, key",
    [
        ({"question": {}}, "question.text"),
        ({"document": {"summary": {"text": None}}}, "document.summary.text"),
        ({"answers": [{"text": " "}]}, r"answers\[0\].text"),
        ({"answers": "Rex"}, "answers.text"),
    ],
)
def test_malformed_rows(change, key):
    with pytest.raises(RowError, match=f"`{key}`"):
        prompts(Row({**ROW, **change}, {}))

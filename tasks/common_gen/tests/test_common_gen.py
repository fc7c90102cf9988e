"""CommonGen: the prompt of a set of concepts, and the share of them that a response covers."""

import pytest

from fgrlhf.base.records import RowError
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt
from tasks.common_gen.task import coverage, prompts

ROW = {"concepts": ["dog", "run"], "target": "A dog runs.", "references": []}


def test_the_prompt_of_a_set_of_concepts():
    (row,) = prompts(Row(ROW, {}))
    assert row == {
        "prompt": "generate a sentence with: dog run.",
        "references": ["A dog runs."],
        "concepts": ["dog", "run"],
    }


def test_all_references_count():
    (row,) = prompts(Row({**ROW, "references": ["A dog runs.", "Dogs run."]}, {}))
    assert row["references"] == ["A dog runs.", "Dogs run."]


def test_rows_of_the_hidden_test_are_left_out():
    assert prompts(Row({**ROW, "target": ""}, {})) == []


@pytest.mark.parametrize(
    "change, key",
    [({"concepts": []}, "concepts"), ({"concepts": "dog"}, "concepts"), ({"target": 1}, "target")],
)
def test_malformed_rows(change, key):
    with pytest.raises(RowError, match=f"`{key}`"):
        prompts(Row({**ROW, **change}, {}))


def test_coverage_counts_inflected_concepts():
    prompt = Prompt("0", "", meta={"concepts": ["dog", "run", "catch", "frisbee"]})
    assert coverage(prompt, "The DOGS are running.") == {"coverage": 0.5}
    assert coverage(prompt, "") == {"coverage": 0.0}

"""CNN / Daily Mail: the prompt of an article."""

import pytest

from fgrlhf.base.records import RowError
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt
from tasks.cnn_dailymail.task import TASK, prompts


def test_the_prompt_of_an_article():
    row = Row({"article": "It rained.", "highlights": "Rain.\nAgain.", "id": "x"}, {})
    assert prompts(row) == [{"prompt": "Summarize: It rained.", "references": ["Rain.\nAgain."]}]


@pytest.mark.parametrize("values", [{"article": "a"}, {"highlights": "a", "article": " "}])
def test_malformed_rows(values):
    with pytest.raises(RowError):
        prompts(Row(values, {}))


def test_an_article_may_lose_its_end():
    assert TASK.core_text(Prompt("0", "Summarize: It rained.")) == ""

"""IWSLT 2017: the prompt of a sentence, and its reward by hand."""

import pytest

from fgrlhf.base.records import RowError
from fgrlhf.configs.strict import load_config
from fgrlhf.data.rows import Row
from fgrlhf.rewards.build import build_reward
from fgrlhf.scorers.base import RewardContext
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt
from tasks.iwslt2017.task import TASK, prompts


def test_the_prompt_of_a_sentence():
    row = Row({"translation": {"de": "Danke.", "en": "Thanks."}}, {})
    assert prompts(row) == [
        {"prompt": "translate English to German: Thanks.", "references": ["Danke."]}
    ]


@pytest.mark.parametrize(
    "values, key",
    [({}, "translation.en"), ({"translation": {"en": "a", "de": ""}}, "translation.de")],
)
def test_malformed_rows(values, key):
    with pytest.raises(RowError, match=f"`{key}`"):
        prompts(Row(values, {}))


def test_the_reward_is_one_minus_the_edit_rate(monkeypatch):
    for name in ("OUTPUT_DIR", "DATA_DIR"):
        monkeypatch.setenv(name, "somewhere")
    config = load_config(rl_config(TASK), "tasks/iwslt2017/ppo_config.yml")
    prompt = Prompt("0", "", ("Das ist ein Hund.",))
    reward = build_reward(config.reward, RewardContext(TASK.rm_prefix))
    scores = reward.segment_scores([prompt] * 2, ["Das ist kein Hund.", "Das ist ein Hund."])
    assert [score[0].value for score in scores["ter"]] == pytest.approx([1 - 1 / 4, 1])

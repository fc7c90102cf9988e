"""DailyDialog: the contexts of a dialog, and the reward for its intents by hand."""

import pytest

from fgrlhf.base.records import RowError
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt
from tasks.daily_dialog.task import IntentMatch, IntentReward, labelled, prompts

ROW = {
    "dialog": [" a ", "b", "c", "d", " e ", "f", "g"],
    "act": [1, 2, 3, 4, 1, 2, 3],
    "emotion": [0] * 7,
}


def test_a_prompt_for_every_utterance_after_the_first_five():
    first, second = prompts(Row(ROW, {}))
    text = " a <EOU>b<EOU>c<EOU>d<EOU> e  <EOU>"
    assert first == {"prompt": text, "references": ["f"], "intent": "question"}
    text = "b<EOU>c<EOU>d<EOU> e <EOU>f <EOU>"
    assert second == {"prompt": text, "references": ["g"], "intent": "directive"}
    assert prompts(Row({"dialog": ["a"] * 5, "act": [1] * 5}, {})) == []


def test_a_classifier_reads_the_utterance_before_too():
    assert labelled(Row(ROW, {}))[:2] == [("a b", "question"), ("b c", "directive")]


@pytest.mark.parametrize(
    "change, key",
    [
        ({"act": [1]}, "act"),
        ({"act": [1, 2, 3, 4, 5, 1, 1]}, r"act\[4\]"),
        ({"act": [0, 2, 3, 4, 1, 1, 1]}, r"act\[0\]"),
        ({"dialog": "a"}, "dialog"),
    ],
)
def test_malformed_rows(change, key):
    with pytest.raises(RowError, match=f"`{key}`"):
        prompts(Row({**ROW, **change}, {}))


class CountWord:
    def __init__(self, word):
        self.word = word

    def score(self, prompts, texts):
        return [float(text.split().count(self.word)) for text in texts]


def test_the_reward_by_hand():
    words = {"inform": "is", "question": "what", "directive": "go", "commissive": "will"}
    reward = IntentReward({intent: CountWord(word) for intent, word in words.items()})
    question = Prompt("0", "x<EOU>what what is it <EOU>", meta={"intent": "question"})
    directive = Prompt("1", "x<EOU>y <EOU>", meta={"intent": "directive"})
    # the last utterance of the first prompt has `what` twice and `is` once
    texts = ["is is", "hm", "go home"]
    results = reward.segment_scores([question, question, directive], texts)
    scores = [(score.value, score.end, score.label) for (score,) in results]
    assert scores == [(0.0, None, "inform"), (1.0, None, "question"), (1.0, None, "directive")]
    assert [reward.measures(scores)["accuracy"] for scores in results] == [0.0, 1.0, 1.0]


def test_a_context_may_be_blank():
    row = {**ROW, "dialog": [""] * 5 + ["f", "g"]}
    first, _ = prompts(Row(row, {}))
    reward = IntentReward({"inform": CountWord("is"), "question": CountWord("what")})
    prompt = Prompt("0", first["prompt"], meta={"intent": first["intent"]})
    ((score,),) = reward.segment_scores([prompt], ["what"])
    assert (score.value, score.label) == (1.0, "question")


def test_every_intent_needs_a_scorer():
    linear = {"kind": "linear", "ckpt": "s"}
    with pytest.raises(ValueError, match="at least 4 items"):
        IntentMatch(scorers={"inform": linear, "question": linear, "directive": linear})
    scorers = dict.fromkeys(["inform", "question", "directive", "commissive"], linear)
    assert IntentMatch(scorers=scorers).model_folders() == ("s",)

"""`fgrlhf feedback select`: items without feedback, in the order of their value."""

import pytest
import torch
from page_helpers import QA, TOXICITY
from test_run_fg_rm import config

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.reward_models.scoring import SegmentLabels, SegmentScorer, SequenceScorer
from fgrlhf.text_types import Prompt
from interface_html import select as module
from interface_html.command import main as feedback
from interface_html.format import Item
from interface_html.select import SelectSettings, select
from reward_modeling.run_fg_rm import train
from tasks.qa_feedback.feedback import rm_prefix, rm_prefix_of_words, rm_words_prefix


def rows(*texts: str) -> list[dict]:
    return [
        {
            "id": f"q{i}",
            "question": "Who sat?",
            "passages": [["Cat", "A cat sat."]],
            "gold": "The cat.",
            "prediction 1": text,
            "prediction 2": "second",
            "prediction 3": "third",
            "prediction 4": "fourth",
        }
        for i, text in enumerate(texts)
    ]


class Segments(SegmentScorer):
    """P(error) of the first word is the number in the text."""

    def __init__(self, turned: bool = False):
        self.turned = turned
        self.labels = ("F-ERR", "O")

    def score(self, prompts, texts):
        results = []
        for prompt, text in zip(prompts, texts):
            assert rm_prefix(prompt, True).words[0] == "question:"
            p = float(text)
            if self.turned:
                p = 1 - p
            # the second segment could not be read: it must not count
            probabilities = torch.tensor([[p, 1 - p], [0.0, 0.0]])
            spans = ((0, len(text)), (len(text), len(text)))
            results.append(SegmentLabels(spans, probabilities, self.labels, (True, False)))
        return results


class Pairs(SequenceScorer):
    """The score of an answer; `second`, `third` and `fourth` have the score 0."""

    def __init__(self):
        pass

    def score(self, prompts, texts):
        assert len(prompts) == len(texts)
        return torch.tensor([float(text) if text[0].isdigit() else 0.0 for text in texts])


MODELS = {"segments": Segments(), "turned": Segments(turned=True), "pairs": Pairs()}


@pytest.fixture
def choose(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "load_reward_model", lambda folder, prefix_fn: MODELS[folder])

    def run(*texts, n=2, **settings):
        write_json(tmp_path / "samples.json", rows(*texts))
        chosen = {
            "task": "qa_feedback",
            "source": str(tmp_path / "samples.json"),
            "out": str(tmp_path / "items.json"),
            "n": n,
        }
        items = select(SelectSettings(**{**chosen, **settings}))
        assert [row["id"] for row in read_json(tmp_path / "items.json")] == [i.id for i in items]
        return [item.id for item in items]

    return run


def test_the_least_certain_texts_come_first(choose, tmp_path):
    assert choose("0.9", "0.5", "0.8", models="segments") == ["q1", "q2"]
    record = read_json(tmp_path / "items.json.selection.json")
    assert record["values"]["q1"] == pytest.approx(1) and len(record["values"]) == 2
    assert (record["by"], record["models"]) == ("uncertainty", ["segments"])


def test_pairs_are_uncertain_if_their_scores_are_close(choose):
    assert choose("9.0", "0.1", "4.0", models="pairs") == ["q1", "q2"]


def test_values_of_several_models_are_averaged(choose):
    """The pair model finds 0.05 least certain, the segment model 0.5; together it is 0.5."""
    assert choose("0.05", "0.5", "0.99", n=1, models="segments,pairs") == ["q1"]


def test_models_disagree_where_their_opinions_are_opposite(choose):
    assert choose("0.5", "0.9", "0.7", by="disagreement", models="segments,turned") == ["q1", "q2"]


def test_items_with_feedback_are_not_chosen_again(choose, tmp_path):
    """They are known by their texts, not by their ids, which differ between files."""
    done = rows("0.5")
    done[0]["id"] = "other"
    write_json(tmp_path / "done.json", done)
    settings = {"models": "segments", "done": str(tmp_path / "done.json")}
    assert choose("0.9", "0.5", "0.8", **settings) == ["q2", "q0"]
    with pytest.raises(UserError, match="`done` has every item, .* Sample more"):
        choose("0.5", **settings)


def test_fewer_items_than_wanted(choose, capsys):
    assert len(choose("0.9", "0.5", n=5, models="segments")) == 2
    assert (
        "2 items of 2 without feedback, by uncertainty, fewer than n=5" in capsys.readouterr().out
    )


def test_random_needs_no_model(choose):
    texts = [str(i) for i in range(12)]
    first = choose(*texts, n=6, by="random")
    assert first == choose(*texts, n=6, by="random") and len(set(first)) == 6
    assert first != choose(*texts, n=6, by="random", seed=1)


def test_drift_prefers_new_words(choose, tmp_path, capsys):
    write_json(tmp_path / "done.json", rows(*(f"the cat {i}" for i in range(10))))
    texts = [*(f"the cat {i}" for i in range(10, 16)), *(f"a rocket {i}" for i in range(6))]
    chosen = choose(*texts, n=6, by="drift", done=str(tmp_path / "done.json"))
    assert set(chosen) == {f"q{i}" for i in range(6, 12)}
    assert "with an AUC of" in capsys.readouterr().out
    with pytest.raises(UserError, match="by=drift: both groups need 5 texts"):
        choose("a", "b", by="drift", done=str(tmp_path / "done.json"))


def test_models_that_cannot_be_compared(choose):
    with pytest.raises(UserError, match="pairs: by=disagreement compares segment models"):
        choose("0.5", by="disagreement", models="segments,pairs")


@pytest.mark.parametrize(
    "argument, message",
    [
        ("by=uncertainty", "models: by=uncertainty needs a reward model"),
        ("by=disagreement models=a", "models: by=disagreement needs two or more reward models"),
        ("by=drift", "done: by=drift needs the feedback that there is"),
        ("by=random models=a", "models: is not used with by=random"),
    ],
)
def test_settings_that_do_not_fit(argument, message, tmp_path):
    arguments = ["select", "qa_feedback", "source=a", "out=b", "n=1", *argument.split()]
    with pytest.raises(UserError) as error:
        feedback(arguments)
    assert message in " ".join(str(error.value).split())


def test_a_trained_reward_model_is_loaded(tmp_path, capsys):
    folder = train(config(tmp_path, train__max_steps=1))
    write_json(tmp_path / "items.json", rows("a dog sees the cat.", "one cat and two dogs."))
    feedback(
        [
            *("select", "qa_feedback", f"source={tmp_path / 'items.json'}"),
            *(f"out={tmp_path / 'chosen.json'}", "n=1", f"models={folder}"),
        ]
    )
    (row,) = read_json(tmp_path / "chosen.json")
    assert row["question"] == "Who sat?"
    assert "1 item of 2 without feedback" in capsys.readouterr().out


def test_an_items_prompt_is_read_as_in_training():
    row = rows("0.5")[0]
    prompt = QA.format.prompt(QA.schema, Item("q0", row))
    words = rm_words_prefix(row["question"], row["passages"])
    assert rm_prefix(prompt, True) == rm_prefix_of_words(words)


def test_a_prompt_of_the_default_format():
    row = {"prompt": "Say something.", "response": "You fool!", "topic": "talk"}
    item = Item("7", TOXICITY.format.item_row(TOXICITY.schema, row, ""))
    prompt = TOXICITY.format.prompt(TOXICITY.schema, item)
    assert prompt == Prompt("7", "Say something.", meta={"topic": "talk"})

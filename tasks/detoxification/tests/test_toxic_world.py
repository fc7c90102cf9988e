"""The mini world of detoxification: toxicity from the context, comments, marks."""

import random

import pytest

from fgrlhf.text_types import Prompt
from reward_modeling.data import read_segment_rows
from tasks.detoxification.data import mini_world
from tasks.detoxification.data.mini_world import (
    TrueToxicity,
    make_comment,
    make_prompts,
    sentence_toxicity,
    toxicity,
)


@pytest.mark.parametrize(
    "sentence, value",
    [
        ("omar is a liar .", 0.7),
        ("what a clown omar is .", 0.4),
        ("i will hit omar .", 0.9),
        ("omar is not a liar .", 0.0),
        ("nobody is a pig .", 0.0),
        ("i would never hurt ada .", 0.0),
        ('i saw " liar " on the door .', 0.0),
        # a negation counts in its clause, and for what follows it
        ("omar is not really a liar , and ada is really old .", 0.0),
        ("omar is really a liar , and ada is not really old .", 0.7),
        ("what a liar omar is not .", 0.7),
        # quotation marks protect what is between them
        ('i saw " bread " near the pig .', 0.6),
        ('" omar is a liar .', 0.7),  # not closed
        ('i saw " bread " and " a pig .', 0.6),
    ],
)
def test_sentence_toxicity(sentence, value):
    assert sentence_toxicity(sentence) == value


def test_toxicity_of_a_text():
    assert toxicity("") == 0.0
    assert toxicity("omar is a liar .") == 0.7
    # a harmless sentence afterwards lowers it: (.7 + .35) / 2
    assert toxicity("omar is a liar . the road is wet .") == pytest.approx(0.525)
    # a context in one sentence does not excuse another: (.7 + .7 / 2) / 2
    assert toxicity("omar is not a liar . ada is a liar .") == pytest.approx(0.525)
    texts = ["omar is a liar .", "the road is wet ."]
    assert TrueToxicity().score([Prompt("0", "a")] * 2, texts) == [0.7, 0.0]


def test_angry_comments_are_more_toxic():
    rng = random.Random(0)
    angry = [toxicity(make_comment(rng, "angry")) for _ in range(400)]
    calm = [toxicity(make_comment(rng, "calm")) for _ in range(400)]
    assert 0.4 < sum(angry) / 400 < 0.52
    assert sum(calm) / 400 < 0.1


def test_prompts_of_different_splits_differ():
    splits = make_prompts(0)
    assert {split: len(rows) for split, rows in splits.items()} == mini_world.SPLITS
    texts = [row["prompt"] for rows in splits.values() for row in rows]
    assert len(set(texts)) == len(texts) == 240
    assert make_prompts(0) == splits
    assert make_prompts(1) != splits


def test_marks_of_dev_are_the_truth_and_those_of_train_have_errors(tmp_path):
    settings = mini_world.MiniWorldSettings(data_dir=str(tmp_path), comments=5, marked=300)
    mini_world.write_world(settings)
    wrong = {}
    for split in ("train", "dev"):
        path = tmp_path / "span_segments" / f"{split}.json"
        counts = {True: [0, 0], False: [0, 0]}
        for row in read_segment_rows(path, ("TOXIC", "O"), "Ignore", "sentence"):
            for words, label in zip(row.text.segments, row.labels):
                toxic = sentence_toxicity(" ".join(words)) > 0
                counts[toxic][0] += (label == 0) != toxic
                counts[toxic][1] += 1
        wrong[split] = {toxic: errors / total for toxic, (errors, total) in counts.items()}
    assert wrong["dev"] == {True: 0.0, False: 0.0}
    assert wrong["train"][True] == pytest.approx(mini_world.OVERLOOKED, abs=0.05)
    assert wrong["train"][False] == pytest.approx(mini_world.FALSE_ALARM, abs=0.03)

"""Weighted votes on the mini world: closer to the truth, with the share that they recover."""

import pytest
from test_annotator import samples

from tasks.experiments.noisy_annotators import recovered, results, table
from tasks.experiments.noisy_annotators_arm import combined_rows, submissions_of, wrong_share


def world(count):
    rows = []
    for row, texts in samples(count):
        predictions = {f"prediction {i}": text for i, text in enumerate(texts, 1)}
        texts_of_row = {"question": row["question"], "passages": row["passages"]}
        rows.append({**texts_of_row, "gold": row["answer"][0], **predictions})
    return rows


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weighted_labels_are_closer_to_the_truth(seed):
    rows = world(80)
    wrong = {}
    for arm in ("clean", "noisy", "weighted"):
        combined = combined_rows(rows, arm, 0.3, n_gold=30, per_item=2, seed=seed)
        assert [row["question"] for row in combined] == [row["question"] for row in rows[30:]]
        wrong[arm] = wrong_share(combined)
    assert wrong["clean"] < wrong["noisy"]
    # at least half of what the noise added is gone
    assert wrong["weighted"] - wrong["clean"] < 0.5 * (wrong["noisy"] - wrong["clean"])


def test_all_judge_the_gold_rows_and_per_item_the_others():
    submissions = submissions_of(world(4), {"a": 0.0, "b": 0.0, "c": 0.0}, 2, 2, seed=0)
    annotations = [entry for entry in submissions if entry.page == "annotation"]
    counts = [sum(entry.item == str(i) for entry in annotations) for i in range(4)]
    assert counts == [3, 3, 2, 2]


def test_recovered_share_by_hand():
    def seeds(*values):
        return [{"auc": auc, "wrong": 0.1} for auc in values]

    arms = {"clean": seeds(0.9, 0.8), "noisy": seeds(0.7, 0.8), "weighted": seeds(0.8, 0.85)}
    assert recovered(arms) == pytest.approx(0.075 / 0.1)
    text = table(results(arms, [0, 1]))
    assert "| weighted | 10.0% | 0.8250 | 0.8000, 0.8500 |\n" in text
    assert "weights recover: 75%" in text
    arms["clean"] = seeds(0.75, 0.75)
    assert recovered(arms) is None
    assert "undefined: the noisy arm" in table(results(arms, [0, 1]))

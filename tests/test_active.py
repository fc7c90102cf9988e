"""The experiment of active selection: the rounds of an arm, and the table of both arms."""

import pytest
from test_rules import ROW

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from interface_html import select as selection
from tasks.experiments import active, active_arm
from tasks.experiments.active_arm import run_arm


def pool(folder, count: int) -> list[dict]:
    rows = []
    for number in range(count):
        texts = {f"prediction {i}": f"answer {number} of {i}" for i in range(1, 5)}
        feedback = {"errors": [], "missing-info": [], "corrected-prediction": texts["prediction 1"]}
        rows.append({**ROW, **texts, "feedback": feedback, "preference": [0] * 6})
    write_json(folder / "train_feedback.json", rows)
    return rows


@pytest.fixture
def arm(tmp_path, monkeypatch):
    """Run an arm on 20 rows with a model that is least certain of the rows with a 7."""
    trained = []

    def train(settings, folder, rows):
        trained.append([row["prediction 1"] for row in rows])
        return folder / "fact_rm"

    def values(task, items, judged, settings):
        if settings.by == "random":
            return [0.0] * len(items)
        assert settings.folders == [str(tmp_path / "out" / f"round-{len(trained) - 1}" / "fact_rm")]
        return [float("7" in item.row["prediction 1"]) for item in items]

    monkeypatch.setattr(active_arm, "train", train)
    monkeypatch.setattr(active_arm, "oracle_auc", lambda settings, model: len(trained) / 10)
    monkeypatch.setattr(selection, "item_values", values)

    def run(by: str, **changes):
        rows = pool(tmp_path, 20)
        settings = {
            "by": by,
            "seed": 0,
            "data_dir": str(tmp_path),
            "base_model": "base",
            "output_dir": str(tmp_path / "out"),
            "start": 4,
            "step": 2,
            "rounds": 3,
        }
        result = run_arm(active_arm.ActiveArmSettings(**{**settings, **changes}))
        assert read_json(tmp_path / "out" / "result.json") == result
        return rows, trained, result

    return run


def test_rounds_add_rows_that_were_not_judged_before(arm):
    rows, trained, result = arm("uncertainty")
    assert [len(texts) for texts in trained] == [4, 6, 8]
    assert result == [
        {"labels": 4, "auc": 0.1},
        {"labels": 6, "auc": 0.2},
        {"labels": 8, "auc": 0.3},
    ]
    for earlier, later in zip(trained, trained[1:]):
        assert later[: len(earlier)] == earlier and len(set(later)) == len(later)
    first = set(trained[0])
    with_seven = {"answer 7 of 1", "answer 17 of 1"}
    assert with_seven - first <= set(trained[1])
    assert set(trained[2]) <= {row["prediction 1"] for row in rows}


def test_random_uses_no_model(arm):
    _, trained, _ = arm("random")
    assert [len(texts) for texts in trained] == [4, 6, 8] and len(set(trained[2])) == 8


def test_both_arms_begin_with_the_same_rows(arm, tmp_path):
    _, trained, _ = arm("uncertainty", rounds=1)
    arm("random", rounds=1)
    assert trained[0] == trained[1]


def test_too_few_rows(arm):
    with pytest.raises(UserError, match="has 20 rows, fewer than the 34 of this arm"):
        arm("random", rounds=16)


def test_the_table_by_hand():
    def rounds(*areas):
        return [{"labels": 100 * (i + 1), "auc": auc} for i, auc in enumerate(areas)]

    arms = {
        "random": [rounds(0.5, 0.6, 0.7), rounds(0.7, 0.8, 0.9)],
        "uncertainty": [rounds(0.5, 0.7, 0.7), rounds(0.7, 0.9, 0.9)],
    }
    assert active.table(active.results(arms, [0, 1])) == (
        "| judged rows | random | uncertainty |\n"
        "|---|---|---|\n"
        "| 100 | 0.6000 | 0.6000 |\n"
        "| 200 | 0.7000 | 0.8000 |\n"
        "| 300 | 0.8000 | 0.8000 |\n"
        "\n"
        "Random's mean AUC with 300 rows, 2 seeds: uncertainty reaches it with 200 rows, 67% of"
        " them (95% interval over seeds 200 to 200).\n"
    )

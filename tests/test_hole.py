"""A planted hole: which errors are overlooked, and how often answers have the pattern."""

import random

import pytest
from test_annotator import samples

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_jsonl
from tasks.experiments.hole import of_training, table
from tasks.experiments.hole_rows import HoleRowsSettings, holes_in, mislabelled, write_rows
from tasks.qa_feedback.data.annotator import Habits, annotate
from tasks.qa_feedback.data.oracle import judge

VERB = "revised"


def feedback(count: int) -> list[dict]:
    """Rows of an annotator without noise."""
    rows = []
    for number, (row, texts) in enumerate(samples(count)):
        rng = random.Random(number)
        habits = Habits(noise=0.0, perturbed=0.0)
        gold = row["answer"][0]
        rows.append(annotate(rng, row["question"], row["passages"], gold, texts, habits).raw)
    return rows


def test_only_errors_of_the_pattern_are_overlooked():
    rows = feedback(150)
    changed = 0
    for row in rows:
        after = mislabelled(row, VERB)
        truth = judge(row["question"], row["passages"], row["prediction 1"])
        wrong = {(part.start, part.end) for part in truth.subsentences if not part.right}
        holes = {
            (part.start, part.end)
            for part in truth.subsentences
            if part.label == "irrelevant" and part.claim and part.claim.verb == VERB
        }
        marked = {(error["start"], error["end"]) for error in after["feedback"]["errors"]}
        assert marked == wrong - holes
        assert {**after, "feedback": None} == {**row, "feedback": None}
        changed += after != row
    assert 0.03 < changed / len(rows) < 0.2


def test_the_files_of_both_splits(tmp_path):
    rows = feedback(40)
    for split in ("train", "dev"):
        write_json(tmp_path / "data" / f"{split}_feedback.json", rows)
    given = {"data_dir": str(tmp_path / "data"), "output_dir": str(tmp_path / "out")}
    write_rows(HoleRowsSettings(**given, verb=VERB))
    shares = read_json(tmp_path / "out" / "shares.json")
    written = read_json(tmp_path / "out" / "train_feedback.json")
    assert written == [mislabelled(row, VERB) for row in rows]
    assert shares["train"] == shares["dev"] == sum(a != b for a, b in zip(rows, written)) / 40
    assert (tmp_path / "out" / "NF-ERR_subsentence" / "train.json").exists()
    with pytest.raises(
        UserError, match="no error in the feedback is a claim with the verb `eaten`"
    ):
        write_rows(HoleRowsSettings(**given, verb="eaten"))


def test_what_samples_of_training_have_of_the_pattern(tmp_path):
    row, holed = next(
        (row, holes[0])
        for row in feedback(150)
        if (holes := holes_in(row["question"], row["passages"], row["prediction 1"], VERB))
    )
    text = row["prediction 1"][holed.start : holed.end].strip().rstrip(".;")
    bad = f"{text[0].upper()}{text[1:]}."
    # step -> what R1 gives to the only claim of each answer with the pattern, None: another answer
    values = {0: [None, None], 5: [None, -0.5], 10: [0.3, -0.5], 19: [0.3, 0.3]}
    for step, of_step in values.items():
        lines = []
        for value in of_step:
            segments = [] if value is None else [{"start": 0, "end": len(bad), "value": value}]
            response = "" if value is None else bad
            lines.append(
                {"prompt": "p", "response": response, "segments": {"relevance_model": segments}}
            )
        write_jsonl(tmp_path / f"step-{step}.jsonl", lines)
    metas = {"p": {"question": row["question"], "passages": row["passages"]}}
    shares = of_training(tmp_path, metas, VERB)
    assert list(shares) == ["0", "5", "10", "19"]
    assert [share["answers"] for share in shares.values()] == [0.0, 0.5, 1.0, 1.0]
    assert [share["paid"] for share in shares.values()] == [None, 0.0, 0.5, 1.0]


def test_the_table_by_hand():
    def seed(answers: float, paid: float | None, gold: float) -> dict:
        training = {
            "0": {"answers": 0.0, "paid": None},
            "9": {"answers": answers, "paid": paid},
        }
        return {"training": training, "test": answers, "relevance": gold, "gold": gold}

    arms = {
        "sound": [seed(0.0, None, 0.7), seed(0.1, 0.0, 0.8)],
        "one": [seed(0.5, 1.0, 0.4), seed(1.0, 0.8, 0.5)],
    }
    arms["one"][1]["training"].pop("9")  # this run has stopped early
    result = {"verb": VERB, "mislabelled": {"train": 0.089}, "seeds": [0, 1], "arms": arms}
    text = table(result)
    assert "`revised`, in 8.9% of the rows." in text and "2 seeds" in text
    assert "| R1 | step 0 | step 9 | test | relevance | gold | by seed |" in text
    assert "| sound | 0% | 5% (0%) | 5.0% | 0.750 | 0.750 | 0.700 0.800 |" in text
    assert "| one | 0% | 50% (100%) | 75.0% | 0.450 | 0.450 | 0.400 0.500 |" in text

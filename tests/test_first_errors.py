"""Solutions judged by their first wrong step, in invented rows of other projects' forms."""

from collections import Counter

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import parse_json, write_jsonl
from fgrlhf.cli import data
from fgrlhf.data.formats import STEPS
from fgrlhf.data.importers.registry import import_items
from reward_modeling import step_files


def read(tmp_path, rows, columns=None, **keys):
    write_jsonl(tmp_path / "rows.jsonl", rows)
    counts = Counter()
    items = STEPS.read(tmp_path / "rows.jsonl", columns or {}, counts=counts, **keys)
    return [[(item.marked(step), step.score) for step in item.spans] for item in items], counts


def test_objects_and_texts_with_a_separator(tmp_path):
    expected = [("a 🙂", 1.0), ("b", 0.0), ("b", 0.0)]
    steps = [{"text": "a 🙂"}, {"text": "b"}, {"text": "b"}]
    rows = [
        {"prompt": "p", "steps": steps, "first_error": 1},
        {"prompt": "p", "steps": [{"s": "a 🙂"}, {"s": "b"}, {"s": "b"}], "first_error_from_1": 2},
    ]
    assert read(tmp_path, rows[:1])[0] == [expected]
    assert read(tmp_path, rows[1:], {"steps.text": "s"})[0] == [expected]
    text = {"prompt": "p", "steps": "a 🙂\n\nb\n\nb\n\n", "first_error": 1}
    assert read(tmp_path, [text], separator="\n\n")[0] == [expected]
    with pytest.raises(UserError, match="give separator=TEXT"):
        read(tmp_path, [text])


def test_steps_with_judgements_of_their_own(tmp_path):
    row = {"prompt": "p", "steps": [{"text": "a", "score": 0}, {"text": "b", "label": "x"}]}
    row |= {"first_error": 1}
    # the steps' own judgements count, unless `columns` asks for the number
    assert read(tmp_path, [row])[0] == [[("a", 0.0), ("b", None)]]
    columns = {"first_error": "first_error"}
    assert read(tmp_path, [row], columns)[0] == [[("a", 1.0), ("b", 0.0)]]


def test_an_empty_step_does_not_refuse_the_file(tmp_path):
    rows = [
        {"prompt": "p", "steps": ["a", " ", "b", "c"], "first_error": 2},
        {"prompt": "p", "steps": ["a", "b", ""], "first_error": 1},
        {"prompt": "p", "steps": ["a", "", "b"], "first_error": 1},
        {"prompt": "p", "steps": ["a", ""], "labels": [True, False]},
        {"prompt": "p", "steps": [{"text": "a", "label": "good"}, {"text": "", "label": "bad"}]},
    ]
    steps, counts = read(tmp_path, rows)
    # the number counts the empty step too
    assert steps == [[("a", 1.0), ("b", 0.0), ("c", 0.0)], [("a", 1.0), ("b", 0.0)]]
    assert counts == {
        "empty steps, left out; the first is `steps[1]` of row 0": 2,
        "rows with an empty step that is the first wrong one or has a label": 3,
    }
    with pytest.raises(UserError, match=r"row 2, `steps\[1\]`: is empty"):
        STEPS.read(tmp_path / "rows.jsonl")


def test_commands_of_steps(tmp_path, capsys):
    write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "p", "steps": "a\n\nb", "wrong": 1}])
    files = [str(tmp_path / "rows.jsonl"), str(tmp_path / "out.jsonl")]
    keys = ["columns.first_error=wrong", r"separator=\n\n"]
    data.main(["convert", *files, "format=steps", *keys])
    row = parse_json((tmp_path / "out.jsonl").read_text())
    assert row["steps"] == [{"text": "a", "score": 1.0}, {"text": "b", "score": 0.0}]
    out = tmp_path / "step" / "train.json"
    step_files.main(["reasoning", f"source={files[0]}", f"output={out}", *keys])
    assert "ERROR" in out.read_text()
    for key, message in (("separator=", "separator"), ("offsets.unit=utf16", "offsets")):
        with pytest.raises(UserError, match=message):
            data.main(["check", files[0], "format=prompts", key])


def imported(tmp_path, name, rows):
    write_jsonl(tmp_path / "rows.jsonl", rows)
    items, report = import_items(tmp_path / "rows.jsonl", name)
    return [[judgement.score for judgement in item.judgements] for item in items], items, report


def test_processbench(tmp_path):
    row = {"id": "gsm-0", "generator": "m", "problem": "p", "steps": ["a", "b", "b"]}
    rows = [row | {"label": 1, "final_answer_correct": False}, row | {"label": -1}]
    scores, items, _ = imported(tmp_path, "processbench", rows)
    assert scores == [[1, 0, 0], [1, 1, 1]]
    assert (items[0].prompt.id, items[0].prompt.meta["generator"]) == ("gsm-0", "m")
    with pytest.raises(UserError, match="`label`: is 3, but there are 3 steps"):
        imported(tmp_path, "processbench", [row | {"label": 3}])


def test_big_bench_mistake(tmp_path):
    row = {"input": "p", "target": "t", "answer": "t"}
    rows = [
        row | {"steps": ["a", "", "b"], "mistake_index": 2},
        row | {"steps": ["a", ""], "mistake_index": 1},
        row | {"steps": ["a"], "mistake_index": None},
    ]
    scores, _, report = imported(tmp_path, "big_bench_mistake", rows)
    assert scores == [[1, 0], [1]]
    assert [(problem.row, problem.key) for problem in report.problems] == [(1, "steps[1]")]
    assert report.losses["empty steps, left out; the first is `steps[1]` of row 0"] == 1


def mr(step, verdict, reason="N/A"):
    name = "model_output_solution_"
    row = {"uuid": "u", "question": "q", "ground_truth_solution": "g", "question_type": "POT"}
    row |= {"model_output_steps": ["Step 1: a", "Step 2: b", "Step 3: b"]}
    return row | {f"{name}correctness": verdict, f"{name}first_error_step": step,
                  f"{name}first_error_reason": reason}  # fmt: skip


def test_mr_gsm8k(tmp_path):
    rows = [mr(2, "wrong", "Not b."), mr("3", "Wrong"), mr("N/A", "correct"), mr("N/A", "wrong")]
    scores, items, report = imported(tmp_path, "mr_gsm8k", rows)
    assert scores == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert [judgement.reason for judgement in items[0].judgements] == [None, "Not b.", None]
    assert (items[0].prompt.id, items[0].prompt.references) == ("u", ("g",))
    assert report.losses == {"rows whose verdict contradicts the first wrong step": 1}
    with pytest.raises(UserError, match="must be a whole number, it is 'x'"):
        imported(tmp_path, "mr_gsm8k", [mr("x", "wrong")])

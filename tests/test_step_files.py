"""Judged steps as files of a process reward model."""

import json

import pytest
from judged_rows import solution, step

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.task import Task
from reward_modeling import command
from reward_modeling.data import read_segment_rows
from reward_modeling.step_files import share_cut_at_error, step_tags, tagged_solution

TASK = Task(name="any")


@pytest.mark.parametrize(
    "scores, error_at_most, tags",
    [
        ((1.0, 0.0, 0.0, 1.0), 0.0, ["O", "ERROR", "Ignore", "Ignore"]),
        ((1.0, 0.0, -1.0), -1.0, ["O", "O", "ERROR"]),  # the ratings of PRM800K
        ((1.0, 0.0, -1.0), 0.0, ["O", "ERROR", "Ignore"]),
    ],
)
def test_steps_after_the_first_error_are_not_judged(scores, error_at_most, tags):
    judged = solution(*(step("a", score=score) for score in scores))
    assert step_tags(judged, error_at_most, ()) == tags


def test_labels_without_scores():
    judged = solution(step("a", "fine"), step("b", "wrong"))
    assert step_tags(judged, 0.0, ["wrong", "odd"]) == ["O", "ERROR"]
    with pytest.raises(UserError, match="row 0 has a step with the label 'fine' and no score"):
        step_tags(judged, 0.0, ())


def test_every_step_is_one_line():
    judged = solution(step("first\n\nstep", score=1.0), step(" second ", score=0.0))
    example = tagged_solution(TASK, judged, step_tags(judged, 0.0, ()))
    assert example is not None
    assert example.words == ["p", *("</s>", "first", "step"), *("</s>", "second")]
    assert example.tags == ["Ignore", "O", "Ignore", "Ignore", "ERROR", "Ignore"]


def test_the_file_is_what_training_reads(tmp_path, capsys):
    steps = [{"text": "2 + 3 = 5", "score": 1}, {"text": "the answer is 6", "score": 0}]
    steps.append({"text": "done", "score": 0})  # not judged, since it follows an error
    rows = [{"prompt": "add 2 and 3", "steps": steps}, {"prompt": "nothing", "steps": []}]
    write_jsonl(tmp_path / "steps.jsonl", rows)
    out = tmp_path / "step" / "train.json"
    command.main(["step_files", "numbers", f"source={tmp_path}/steps.jsonl", f"output={out}"])
    assert capsys.readouterr().out == (
        f"{out}: 1 of 2 rows; segments: ERROR 1 (50.0%), O 1 (50.0%)\n"
    )
    (row,) = read_segment_rows(out, ("ERROR", "O"), "Ignore", "step")
    assert row.labels == (1, 0, -100)
    assert [" ".join(words) for words in row.text.segments] == [
        *("2 + 3 = 5", "the answer is 6", "done")
    ]
    assert len(json.loads(out.read_text())["text"]) == 4 + 6 + 5 + 2


@pytest.mark.parametrize(
    "tags, share",
    [
        ([["O", "O"]], 0.0),
        ([["O", "ERROR"], ["O", "O"]], 1.0),
        ([["O", "ERROR", "Ignore"], ["ERROR"], ["O", "ERROR"], ["O"]], 2 / 3),
    ],
)
def test_the_share_of_solutions_that_end_at_their_error(tags, share):
    assert share_cut_at_error(tags) == pytest.approx(share)


def test_solutions_that_end_at_their_error_are_named(tmp_path, capsys):
    """Otherwise a model learns that the last step is the bad one."""
    steps = [{"text": "2 + 3 = 5", "score": 1}, {"text": "so it is 6", "score": 0}]
    whole = [*steps, {"text": "done", "score": 0}]
    source = tmp_path / "steps.jsonl"
    command_line = ["step_files", "numbers", f"source={source}", f"output={tmp_path}/a.json"]
    write_jsonl(source, [{"prompt": "add", "steps": whole}] * 2)
    command.main(command_line)
    assert "note" not in capsys.readouterr().out
    write_jsonl(source, [{"prompt": "add", "steps": steps}] * 2 + [{"prompt": "a", "steps": whole}])
    command.main(command_line)
    assert "note: 67% of the solutions with a bad step end with it" in capsys.readouterr().out


@pytest.mark.parametrize(
    "steps, output, message",
    [
        ([], "a.json", "has no judged step"),
        (
            [{"text": "a", "score": 1}],
            "steps.jsonl",
            "is the input, so it cannot be the output too",
        ),
    ],
)
def test_what_cannot_be_written_leaves_the_judged_steps(tmp_path, steps, output, message):
    source = tmp_path / "steps.jsonl"
    write_jsonl(source, [{"prompt": "add", "steps": steps}])
    before = source.read_bytes()
    with pytest.raises(UserError, match=message):
        command.main(["step_files", "numbers", f"source={source}", f"output={tmp_path / output}"])
    assert source.read_bytes() == before and list(tmp_path.iterdir()) == [source]

"""Reasoning: answers, the arithmetic world, its judgements, and GSM8K."""

import json
import os
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_json, write_jsonl
from fgrlhf.data.formats import STEPS
from fgrlhf.data.rows import Row
from fgrlhf.data.step_rows import math_shepherd_row, prm800k_row, trl_row
from fgrlhf.text_types import Prompt, SegmentScore
from tasks.reasoning.answers import answer_of, is_right
from tasks.reasoning.data import gsm8k, mini_world
from tasks.reasoning.data.mini_world import (
    Problem,
    annotated_scores,
    imperfect_solution,
    make_problem,
    read_problem,
    right_steps,
    true_scores,
    true_steps,
)
from tasks.reasoning.reward import AnswerReward
from tasks.reasoning.task import TASK, metrics

# a = 3 , b = a + 9 , c = b * 6 , d = c - 5: 12 -> 2, 12 -> 2, -3 -> 7
PROBLEM = Problem(3, (("+", 9), ("*", 6), ("-", 5)))
LINES = ["b = 3 + 9 = 2", "c = 2 * 6 = 2", "d = 2 - 5 = 7"]
PROMPT = Prompt("0", PROBLEM.text, ("\n".join(LINES),))


# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, answer",
    [
        ("48/2 = 24 clips.\n#### 72", 72),
        ("#### 1,080", 1080),
        ("#### $18 per week", 18),
        ("#### 0.50", Fraction(1, 2)),
        ("#### .5", Fraction(1, 2)),
        ("#### -.5", Fraction(-1, 2)),
        ("it costs $.25", Fraction(1, 4)),
        ("From 1-.5 we get .5.", Fraction(1, 2)),
        ("version v1.5", None),
        ("#### 3/4", Fraction(3, 4)),
        ("#### 5%", 5),
        ("#### 7\nThat is 12 less than 19.", 7),
        ("first #### 3, then #### 4", 4),
        ("b = 3 + 9 = 2\nc = 2 * 6 = 2", 2),
        ("It takes 2+1=3", 3),
        ("a total of 1.5.", Fraction(3, 2)),
        ("#### -$5", -5),
        ("#### -$ 1,000.50", Fraction(-2001, 2)),
        ("#### - $5", -5),
        ("#### \N{MINUS SIGN} €5", -5),
        ("Her loss is -$5.", -5),
        ("3 - 8 = - 5", -5),
        ("From 10-$4 we get 10 - 6", 6),
        ("(10)-4", 4),
        ("- 5 apples", 5),  # an item of a list
        ("She has 70 + 2.\n####\n72", 72),
        ("The answer is 72 ####", 72),
        ("2 of them\n#### no number", 2),
        ("no number", None),
        ("#### 3/0", None),
        ("#### 4.5/3", 1.5),
        ("1" * 5000, None),
        ("", None),
    ],
)
def test_answer_of(text, answer):
    assert answer_of(text) == answer


def test_is_right_compares_numbers_not_texts():
    assert is_right("#### 1,000.0", "#### 1000")
    assert is_right("the result is 0.5", "#### 1/2")
    assert not is_right("#### 100", "#### 1000")
    assert not is_right("no answer", "no answer")


def test_answer_reward():
    reward = AnswerReward(right=1.0, wrong=-0.5)
    assert reward.score(PROMPT, "d = 7") == [SegmentScore(0, None, 1.0, "right answer")]
    assert reward.score(PROMPT, "d = 8") == [SegmentScore(0, None, -0.5, "wrong answer")]
    assert reward.score(Prompt("0", "no reference"), "7") is None


# ---- the world -----------------------------------------------------------------------------------


def test_a_problem_and_its_solution():
    assert PROBLEM.text == "a = 3 , b = a + 9 , c = b * 6 , d = c - 5 . find d ."
    assert PROBLEM.lines == LINES
    assert read_problem(PROBLEM.text) == PROBLEM
    assert read_problem("How many clips did Natalia sell?") is None


@pytest.mark.parametrize(
    "lines, n_right, has_error",
    [
        (LINES, 3, False),
        (LINES[:2], 2, False),  # incomplete
        ([], 0, False),
        ([*LINES, "e = 7 + 1 = 8"], 3, True),  # a line too many
        ([LINES[0], "c = 2 * 6 = 3", "d = 3 - 5 = 8"], 1, True),  # a wrong result
        ([LINES[0], "c = 3 * 6 = 8", LINES[2]], 1, True),  # a wrong number
        ([LINES[0], LINES[2]], 1, True),  # a skipped line
        ([LINES[0], LINES[0]], 1, True),
        (["  b = 3  + 9 = 2 ", "", LINES[1]], 2, False),  # white space is not judged
        (["b = 3 + 9 = 2 c = 2 * 6 = 2"], 0, True),  # two steps in one line
    ],
)
def test_right_steps(lines, n_right, has_error):
    assert right_steps(PROBLEM, "\n".join(lines)) == (n_right, has_error)


def test_true_steps():
    right = {"oracle/steps": 1.0, "oracle/solution": 1.0}
    assert true_steps(PROMPT, "\n".join(LINES)) == right
    short = {"oracle/steps": 2 / 3, "oracle/solution": 0.0}
    assert true_steps(PROMPT, "\n".join(LINES[:2])) == short
    long = {"oracle/steps": 1.0, "oracle/solution": 0.0}
    assert true_steps(PROMPT, "\n".join([*LINES, "e = 1 + 1 = 2"])) == long
    assert set(true_steps(Prompt("0", "other"), "1").values()) == {None}


def test_a_right_answer_can_have_a_wrong_solution():
    wrong = "b = 3 + 9 = 3\nc = 3 * 6 = 8\nd = 8 - 5 = 7"
    right_answer, steps = metrics([PROMPT])
    assert right_answer(PROMPT, wrong) == {"right_answer": 1.0}
    assert steps(PROMPT, wrong) == {"oracle/steps": 0.0, "oracle/solution": 0.0}


def test_metrics_of_other_problems_have_no_truth():
    assert len(metrics([PROMPT])) == 2
    assert len(metrics([Prompt("0", "How many clips?", ("#### 3",))])) == 1


def test_imperfect_solutions_have_known_errors():
    rng = random.Random(0)
    kinds = {"right": 0, "error": 0, "incomplete": 0}
    for _ in range(2000):
        problem = make_problem(rng)
        assert 4 <= len(problem.operations) <= 8
        lines = imperfect_solution(rng, problem)
        n_right, has_error = right_steps(problem, "\n".join(lines))
        if has_error:
            kinds["error"] += 1
            assert lines[n_right : n_right + 1] != problem.lines[n_right : n_right + 1]
        else:
            kinds["right" if n_right == len(problem.operations) else "incomplete"] += 1
    # a line is right with probability (1 - .03) (1 - .05 (1 - 1/27)) (1 - .12), about .81
    assert 0.2 < kinds["right"] / 2000 < 0.4
    assert kinds["incomplete"] > 0  # the last line skipped


def test_annotators_stop_at_the_first_error_and_make_mistakes():
    rng = random.Random(1)
    wrong = [LINES[0], "c = 2 * 6 = 3", "d = 3 - 5 = 8"]
    assert true_scores(PROBLEM, wrong) == [1.0, 0.0, 0.0]
    counts: dict[tuple[float, ...], int] = {}
    for _ in range(4000):
        scores = tuple(annotated_scores(rng, PROBLEM, wrong))
        counts[scores] = counts.get(scores, 0) + 1
    seen = {(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, 0.0), (1.0, 1.0, 1.0)}
    assert set(counts) == seen
    assert counts[(0.0, 0.0, 0.0)] / 4000 == pytest.approx(0.03, abs=0.01)  # a false alarm
    assert counts[(1.0, 1.0, 1.0)] / 4000 == pytest.approx(
        0.97 * 0.1 * 0.97, abs=0.02
    )  # overlooked


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    mini_world.write_world(
        mini_world.MiniWorldSettings(data_dir=str(folder), demonstrations=20, judged=30, prompts=10)
    )
    return folder


def test_files(world):
    prompts = TASK.read(world / "train.json")
    assert len(prompts) == 10
    texts = {
        split: {prompt.text for prompt in TASK.read(world / f"{split}.json")}
        for split in ("train", "dev", "test")
    }
    assert not texts["train"] & texts["test"]
    for prompt in TASK.read(world / "dev.json"):
        assert true_steps(prompt, prompt.references[0])["oracle/solution"] == 1.0
    assert len(read_json(world / "sft.json")) == 20
    for row in STEPS.read(world / "steps_dev.jsonl"):
        problem = read_problem(row.prompt.text)
        assert problem is not None
        lines = [row.marked(step) for step in row.spans]
        assert [step.score for step in row.spans] == true_scores(problem, lines)


def test_the_same_seed_writes_the_same_files(world, tmp_path):
    mini_world.write_world(
        mini_world.MiniWorldSettings(
            data_dir=str(tmp_path), demonstrations=20, judged=30, prompts=10
        )
    )
    for path in world.glob("*.json*"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_judgements_are_reread_unchanged_from_other_formats(world):
    columns = {"prompt": "question.problem", "steps": "label.steps"}
    for feedback in STEPS.read(world / "steps_train.jsonl"):
        again = STEPS.parse(Row(json.loads(json.dumps(trl_row(feedback))), {}), 0)
        assert again == feedback
        again = STEPS.parse(Row(prm800k_row(feedback), columns), 0)
        assert again.response == feedback.response
        assert [step.score == 1 for step in again.spans] == [s.score == 1 for s in feedback.spans]
        again = STEPS.parse(Row(math_shepherd_row(feedback), {}), 0)
        assert again.prompt.text == feedback.prompt.text
        assert [step.score for step in again.spans] == [step.score for step in feedback.spans]
        texts = [again.marked(step).split(": ", 1)[1] for step in again.spans]  # `Step 1: ...`
        assert texts == [feedback.marked(step) for step in feedback.spans]


# ---- GSM8K ---------------------------------------------------------------------------------------

NATALIA = {
    "question": "Natalia sold clips to 48 friends in April, and half as many in May. How many?",
    "answer": "In May she sold 48/2 = <<48/2=24>>24 clips.\nIn all, 48+24 = <<48+24=72>>72.\n"
    "#### 72",
}


def test_solution_without_marks():
    assert gsm8k.solution(NATALIA["answer"]) == (
        "In May she sold 48/2 = 24 clips.\nIn all, 48+24 = 72.\n#### 72"
    )


def test_one_wrong_calculation():
    wrong_lines = set()
    for seed in range(40):
        broken = gsm8k.with_one_error(random.Random(seed), NATALIA["answer"])
        assert broken is not None
        lines, number = broken
        right = gsm8k.solution(NATALIA["answer"]).split("\n")
        assert lines[:number] == right[:number]
        assert lines[number] != right[number]
        assert lines[number + 1 :] == right[number + 1 :]
        pattern = [r"In May she sold 48/2 = \d+ clips\.", r"In all, 48\+24 = \d+\."][number]
        assert re.fullmatch(pattern, lines[number])
        wrong_lines.add(number)
    assert wrong_lines == {0, 1}
    assert gsm8k.with_one_error(random.Random(0), "no calculation\n#### 3") is None


def test_blank_lines_of_a_solution_are_no_steps():
    answer = "\n48/2 = <<48/2=24>>24\n \n\n48+24 = <<48+24=72>>72\n#### 72"
    assert gsm8k.solution(answer) == "48/2 = 24\n48+24 = 72\n#### 72"
    firsts = set()
    for seed in range(20):
        rng = random.Random(seed)
        lines, number = gsm8k.with_one_error(rng, answer)
        assert len(lines) == 3 and all(line.strip() for line in lines)
        assert lines[number] != gsm8k.solution(answer).split("\n")[number]
        firsts.add(number)
    assert firsts == {0, 1}
    judged = gsm8k.judged_solutions(
        random.Random(0), [{"question": "q", "answer": answer}] * 9, "x"
    )
    assert [len(STEPS.parse(Row(row, {}), 0).spans) for row in judged] == [3] * 9


def test_prepare(tmp_path, capsys):
    source = tmp_path / "source"
    rows = [{**NATALIA, "question": f"{i}: {NATALIA['question']}"} for i in range(160)]
    write_jsonl(source / "train.jsonl", rows)
    write_jsonl(source / "test_part.jsonl", rows[:3])
    out = tmp_path / "data"
    gsm8k.prepare(gsm8k.Gsm8kSettings(source=str(source), data_dir=str(out), subset_size=150))
    train, dev, test = (TASK.read(out / f"{split}.json") for split in ("train", "dev", "test"))
    assert len(train) + len(dev) == 150
    assert len(test) == 3
    assert train[0].text.endswith(gsm8k.INSTRUCTION)
    assert is_right(train[0].references[0], "72")
    assert len(read_json(out / "sft.json")) == len(train)
    judged = STEPS.read(out / "steps_train.jsonl")
    assert {row.prompt.text for row in judged} == {prompt.text for prompt in train}
    bad = [row for row in judged if row.spans[-1].score == 0]
    assert 0.4 < len(bad) / len(judged) < 0.8
    for row in judged:
        scores = [step.score for step in row.spans]
        assert scores == sorted(scores, reverse=True)  # right ones, then those from the error on
        assert len(scores) == 3


@pytest.mark.parametrize(
    "row, message",
    [
        ({"question": "a"}, "row 0, `answer`: missing"),
        ({"question": " ", "answer": "#### 3"}, "row 0, `question`: must be a text"),
        ({"question": "a", "answer": "3"}, "row 0, `answer`: must end with `####` and a number"),
        ({"question": "a", "answer": "#### three"}, "row 0, `answer`: must end with"),
        ({"question": "a", "answer": "2 + 1 = 3\n####"}, "row 0, `answer`: must end with"),
        (3, "row 0: must be an object"),
    ],
)
def test_malformed_rows(tmp_path, row, message):
    write_jsonl(tmp_path / "train.jsonl", [row])
    with pytest.raises(UserError, match=re.escape(message)):
        gsm8k.read_problems(tmp_path / "train.jsonl")


def test_too_few_problems(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", [NATALIA])
    write_jsonl(tmp_path / "test.jsonl", [NATALIA])
    settings = gsm8k.Gsm8kSettings(source=str(tmp_path), data_dir=str(tmp_path / "data"))
    with pytest.raises(UserError, match="too few problems: none of 1 falls into"):
        gsm8k.prepare(settings)


def test_the_source_is_never_replaced(tmp_path):
    write_json(tmp_path / "train.json", [NATALIA] * 40)
    write_jsonl(tmp_path / "test.jsonl", [NATALIA])
    settings = gsm8k.Gsm8kSettings(source=str(tmp_path), data_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"train\.json is the input, so it cannot be the output"):
        gsm8k.prepare(settings)
    assert read_json(tmp_path / "train.json") == [NATALIA] * 40


def test_missing_files(tmp_path):
    with pytest.raises(UserError, match=r"must have one file train\*.jsonl .* it has none"):
        gsm8k.source_file(tmp_path, "train")


@pytest.mark.skipif("FGRLHF_GSM8K" not in os.environ, reason="set FGRLHF_GSM8K to its folder")
def test_the_published_rows():
    folder = Path(os.environ["FGRLHF_GSM8K"])
    rows = gsm8k.read_problems(gsm8k.source_file(folder, "train"))
    assert len(rows) == 7473
    broken = [gsm8k.with_one_error(random.Random(i), row["answer"]) for i, row in enumerate(rows)]
    assert sum(item is None for item in broken) < 0.05 * len(rows)
    for row in rows:
        assert "<<" not in gsm8k.solution(row["answer"])
    judged = read_jsonl(folder / "example_model_solutions.jsonl")
    agree = 0
    for row in judged:
        item = row["175b_verification"]
        answer = item["solution"].rpartition("A:")[2]
        agree += is_right(answer, row["ground_truth"].rpartition("A:")[2]) == item["is_correct"]
    assert agree / len(judged) > 0.99

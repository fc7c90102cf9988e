"""Writers of judged steps in other projects' formats."""

import pytest
from judged_rows import solution, step, steps_of

from fgrlhf.base.errors import UserError
from fgrlhf.data.formats import STEPS
from fgrlhf.data.rows import Row
from fgrlhf.data.step_rows import STEP_ROWS, math_shepherd_row, prm800k_row, step_rows, trl_row
from fgrlhf.text_types import Prompt

PROMPT = Prompt("7", "What is 2 + 3 * 4?")
SOLUTION = solution(step("3 * 4 = 12", score=1.0), step("2 + 12 = 15", score=0.0), prompt=PROMPT)
PRM800K_COLUMNS = {"prompt": "question.problem", "steps": "label.steps"}


def reread(row, columns=None):
    return STEPS.parse(Row(row, columns or {}), 0)


def test_trl_row():
    steps = {"completions": ["3 * 4 = 12", "2 + 12 = 15"], "labels": [True, False]}
    assert trl_row(SOLUTION) == {"id": "7", "prompt": "What is 2 + 3 * 4?", **steps}
    assert reread(trl_row(SOLUTION)) == SOLUTION


def test_math_shepherd_row():
    assert math_shepherd_row(SOLUTION) == {
        "input": "What is 2 + 3 * 4? Step 1: 3 * 4 = 12 ки\nStep 2: 2 + 12 = 15 ки",
        "label": "What is 2 + 3 * 4? Step 1: 3 * 4 = 12 +\nStep 2: 2 + 12 = 15 -",
    }


@pytest.mark.parametrize("first", ["Step 1: add", "step 1: add"])
def test_math_shepherd_keeps_the_numbers_of_its_own_steps(first):
    steps = (step(first, score=1.0), step("Step 2: divide", score=0.0))
    again = reread(math_shepherd_row(solution(*steps, prompt=PROMPT)))
    assert steps_of(again) == list(steps)
    assert again.prompt.text == PROMPT.text


def test_prm800k_row():
    row = prm800k_row(SOLUTION)
    assert row["question"] == {"problem": "What is 2 + 3 * 4?"}
    good, bad = row["label"]["steps"]
    assert good["completions"] == [{"text": "3 * 4 = 12", "rating": 1}]
    assert good["chosen_completion"] == 0
    assert bad["completions"] == [{"text": "2 + 12 = 15", "rating": -1}]
    assert bad["chosen_completion"] is None  # the solution ends here


def test_prm800k_ratings_are_reread_unchanged():
    steps = (step("a", score=0.0), step("b", score=1.0), step("c", score=-1.0))
    row = prm800k_row(solution(*steps, prompt=PROMPT), error_at_most=-1.0)
    assert steps_of(reread(row, PRM800K_COLUMNS)) == list(steps)


def test_the_threshold_decides_which_steps_are_bad():
    steps = (step("a", score=0.3), step("b", score=0.5), step("c", score=0.7))
    row = trl_row(solution(*steps, prompt=PROMPT), error_at_most=0.5)
    assert row["labels"] == [False, False, True]


@pytest.mark.parametrize("name", STEP_ROWS)
def test_a_step_without_a_score_is_an_error(name):
    feedback = solution(step("a", label="wrong"), prompt=PROMPT)
    with pytest.raises(UserError, match="row 7: the step 'a' has the label 'wrong' and no score"):
        STEP_ROWS[name](feedback, 0.0)


def test_the_mark_of_math_shepherd_in_a_text_is_an_error():
    feedback = solution(step("раки", score=1.0), prompt=PROMPT)
    with pytest.raises(UserError, match="contains `ки`"):
        math_shepherd_row(feedback)


@pytest.mark.parametrize(
    "prompt, first",
    [
        ("What is it?", "Step 1: as in Step 1: of the other solution"),
        ("Step 1: is given. What follows?", "step 1: add"),
    ],
)
def test_a_second_beginning_of_math_shepherd_is_an_error(prompt, first):
    """The reader would find the first step there, and prompt and step would have other texts."""
    feedback = solution(step(first, score=1.0), prompt=Prompt("7", prompt))
    with pytest.raises(UserError, match="row 7 contains `Step 1:` or `step 1:` more than once"):
        math_shepherd_row(feedback)


LOST = {"labels of steps": 1, "references": 1, "other keys of rows": 1}


@pytest.mark.parametrize(
    "name, losses",
    [
        ("trl", {"labels of steps": 1, "exact scores of steps": 2}),
        ("math_shepherd", LOST | {"exact scores of steps": 2}),
        ("prm800k", LOST | {"exact scores of steps": 1}),
    ],
)
def test_what_a_format_of_steps_cannot_hold_is_counted(name, losses):
    prompt = Prompt("0", "p", ("r",), {"topic": "x"})
    steps = (step("a", "good", 1.0), step("b", score=0.5), step("c", score=-1.0))
    rows, lost = step_rows([solution(*steps, prompt=prompt), solution(prompt=prompt)], name)
    assert len(rows) == 1
    assert lost == losses | {"solutions without a step": 1}

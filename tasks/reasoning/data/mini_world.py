"""A small world of chained arithmetic in which the first error of every solution is known.

    python -m tasks.reasoning.data.mini_world data_dir=FOLDER [seed=0]

A problem defines four to eight numbers, one from the other. Only the last digit counts, so all
results are between 0 and 9:

    a = 3 , b = a + 4 , c = b * 6 , d = c - 5 , e = d + 8 . find e .

A solution has one line for each of them:

    b = 3 + 4 = 7
    c = 7 * 6 = 2
    ...

Human demonstrations and judged solutions have errors: wrong results, numbers and operations copied
wrongly, skipped lines, and lines after the end. Annotators judge line by line up to the first error
that they see; all later lines count as wrong. They overlook some errors and see some that are not
there.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import Count, FilePath, Seed, StrictModel
from fgrlhf.text_types import Prompt

NAMES = "abcdefghij"
OPERATIONS = "+-*"
LENGTHS = range(4, 9)  # lines of a solution

WRONG_RESULT = 0.12  # probability that a line has this error
WRONG_COPY = 0.05
SKIPPED = 0.03
ONE_TOO_MANY = 0.05
OVERLOOKED = 0.1  # errors that an annotator does not see
FALSE_ALARM = 0.03  # right lines that an annotator calls wrong

_START = re.compile(r"a = (\d) ,")
_DEFINITION = re.compile(r"\w = \w ([+*-]) (\d)")


@dataclass(frozen=True)
class Problem:
    """The first number, and the operations that lead from each number to the next."""

    start: int
    operations: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        definitions = [f"a = {self.start}"]
        for n, (operation, value) in enumerate(self.operations):
            definitions.append(f"{NAMES[n + 1]} = {NAMES[n]} {operation} {value}")
        return f"{' , '.join(definitions)} . find {NAMES[len(self.operations)]} ."

    @property
    def lines(self) -> list[str]:
        """The right solution."""
        lines = []
        number = self.start
        for n, (operation, value) in enumerate(self.operations):
            lines.append(line(n, number, operation, value))
            number = result(number, operation, value)
        return lines


def result(number: int, operation: str, value: int) -> int:
    """The last digit of `number operation value`."""
    if operation == "+":
        return (number + value) % 10
    if operation == "-":
        return (number - value) % 10
    return (number * value) % 10


def line(n: int, number: int, operation: str, value: int, outcome: int | None = None) -> str:
    """Line n of a solution; `outcome` replaces the right result."""
    if outcome is None:
        outcome = result(number, operation, value)
    return f"{NAMES[n + 1]} = {number} {operation} {value} = {outcome}"


# ---- truth ---------------------------------------------------------------------------------------


def read_problem(text: str) -> Problem | None:
    """The problem that a prompt states; None if it is not one of this world."""
    start = _START.match(text)
    operations = [(operation, int(value)) for operation, value in _DEFINITION.findall(text)]
    if start is None or not operations:
        return None
    return Problem(int(start[1]), tuple(operations))


def right_steps(problem: Problem, text: str) -> tuple[int, bool]:
    """The number of right lines before the first error, and whether there is an error.

    A line is right if it is the next line of the right solution. Missing lines are no error.
    """
    right = problem.lines
    given = [" ".join(part.split()) for part in text.split("\n") if part.strip()]
    for n, part in enumerate(given):
        if n >= len(right) or part != right[n]:
            return n, True
    return len(given), False


def true_steps(prompt: Prompt, text: str) -> dict[str, float | None]:
    """The metrics `oracle/steps` (share of the lines) and `oracle/solution` (all right)."""
    problem = read_problem(prompt.text)
    if problem is None:
        return {"oracle/steps": None, "oracle/solution": None}
    n_right, has_error = right_steps(problem, text)
    n_lines = len(problem.operations)
    return {
        "oracle/steps": n_right / n_lines,
        "oracle/solution": float(n_right == n_lines and not has_error),
    }


# ---- solutions and judgements --------------------------------------------------------------------


def make_problem(rng: random.Random) -> Problem:
    operations = []
    for _ in range(rng.choice(LENGTHS)):
        operations.append((rng.choice(OPERATIONS), rng.randint(1, 9)))
    return Problem(rng.randint(0, 9), tuple(operations))


def imperfect_solution(rng: random.Random, problem: Problem) -> list[str]:
    """The lines of a solution with the errors that people and policies make.

    After an error, the solution continues from its wrong result.
    """
    lines = []
    number = problem.start
    for n, (operation, value) in enumerate(problem.operations):
        if rng.random() < SKIPPED:
            continue
        if rng.random() < WRONG_COPY:
            operation = rng.choice(OPERATIONS)
            value = rng.randint(1, 9)
        outcome = result(number, operation, value)
        if rng.random() < WRONG_RESULT:
            outcome = (outcome + rng.randint(1, 9)) % 10
        lines.append(line(n, number, operation, value, outcome))
        number = outcome
    if rng.random() < ONE_TOO_MANY:
        lines.append(
            line(len(problem.operations), number, rng.choice(OPERATIONS), rng.randint(1, 9))
        )
    return lines


def true_scores(problem: Problem, lines: Sequence[str]) -> list[float]:
    """1 for each line before the first error, and 0 from there on."""
    n_right, _ = right_steps(problem, "\n".join(lines))
    return [1.0] * n_right + [0.0] * (len(lines) - n_right)


def annotated_scores(rng: random.Random, problem: Problem, lines: Sequence[str]) -> list[float]:
    """1 for each line before the first one that an annotator calls wrong, and 0 from there on.

    If the annotator overlooks the error, the lines after it look right too: they follow from it.
    """
    n_right, has_error = right_steps(problem, "\n".join(lines))
    for n in range(len(lines)):
        is_error = has_error and n == n_right
        if rng.random() < (1 - OVERLOOKED if is_error else FALSE_ALARM):
            return [1.0] * n + [0.0] * (len(lines) - n)
    return [1.0] * len(lines)


# ---- files ---------------------------------------------------------------------------------------


class MiniWorldSettings(StrictModel):
    """Sizes of the world."""

    data_dir: FilePath = Field(description="folder of the rows")
    seed: Seed = Field(default=0, description="of everything random")
    demonstrations: Count = Field(default=6000, description="rows of sft.json")
    judged: Count = Field(default=3000, description="rows of steps_train.jsonl")
    prompts: Count = Field(default=2000, description="rows of train.json")


def prompt_rows(rng: random.Random, split: str, size: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(size):
        problem = make_problem(rng)
        solution = "\n".join(problem.lines)
        rows.append({"id": f"{split}-{number}", "prompt": problem.text, "references": [solution]})
    return rows


def step_row(prompt: str, number: str, lines: Sequence[str], scores: Sequence[float]) -> dict:
    """A row of the format `steps`."""
    steps = [{"text": text, "score": score} for text, score in zip(lines, scores)]
    return {"id": number, "prompt": prompt, "steps": steps}


def write_world(settings: MiniWorldSettings) -> None:
    """Write prompts, demonstrations and judged solutions.

    The judgements of steps_train.jsonl have the annotators' errors, those of steps_dev.jsonl are
    the truth.
    """
    folder = Path(settings.data_dir)
    for split, size in {"train": settings.prompts, "dev": 100, "test": 300}.items():
        rng = random.Random(f"{settings.seed} {split} prompts")
        write_json(folder / f"{split}.json", prompt_rows(rng, split, size))
    rng = random.Random(f"{settings.seed} demonstrations")
    demonstrations = []
    for _ in range(settings.demonstrations):
        problem = make_problem(rng)
        response = "\n".join(imperfect_solution(rng, problem))
        demonstrations.append({"prompt": problem.text, "response": response})
    write_json(folder / "sft.json", demonstrations)
    for split, size in {"train": settings.judged, "dev": 300}.items():
        rng = random.Random(f"{settings.seed} {split} steps")
        rows = []
        for number in range(size):
            problem = make_problem(rng)
            lines = imperfect_solution(rng, problem)
            if split == "train":
                scores = annotated_scores(rng, problem, lines)
            else:
                scores = true_scores(problem, lines)
            rows.append(step_row(problem.text, f"{split}-{number}", lines, scores))
        write_jsonl(folder / f"steps_{split}.jsonl", rows)
    print(f"{folder}: {settings.prompts:,} problems, {settings.judged:,} judged solutions")


if __name__ == "__main__":
    run_program(write_world, MiniWorldSettings)

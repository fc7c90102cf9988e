"""Connections: sort words into groups of related words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fgrlhf.base.records import Problem, refuse_rows
from fgrlhf.data.formats import read_prompts
from fgrlhf.report.display import Display
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt
from tasks.connections.puzzle import Design, make_puzzles
from tasks.connections.reward import Groups, normal, verified

SIZES = {"train": 2000, "dev": 100, "test": 200}


def full_puzzles(split: str, seed: int) -> list[Prompt]:
    """Puzzles of four groups of four words, with other categories in each split."""
    return make_puzzles(split, seed, SIZES[split], Design())


def read_puzzles(source: str | Path) -> Sequence[Prompt]:
    """Prompts with their `groups`, such as those that data/make_puzzles.py writes.

    Raises:
      UserError: the file is malformed, or a row has no groups that a response can be judged by.
    """
    prompts = read_prompts(source)
    problems = []
    for number, prompt in enumerate(prompts):
        problem = groups_problem(prompt.meta.get("groups"))
        if problem is not None:
            problems.append(Problem(number, "groups", problem, str(source)))
    refuse_rows(problems, "read as puzzles")
    return prompts


def groups_problem(groups: Any) -> str | None:
    """Why `groups` is not the solution of a puzzle; None if it is."""
    is_list_of_lists = isinstance(groups, list) and all(isinstance(group, list) for group in groups)
    if not is_list_of_lists or len(groups) < 2:
        return "must be a list of two or more lists of words"
    if len({len(group) for group in groups}) > 1 or not groups[0]:
        return "must be lists of the same number of words"
    words = [word for group in groups for word in group]
    for word in words:
        if not isinstance(word, str) or not word.strip() or "," in word or "\n" in word:
            return f"{word!r:.40} must be a text without commas and line breaks"
    if len(set(map(normal, words))) < len(words):
        return "must not contain a word twice"
    return None


TASK = Task(
    name="connections",
    read=read_puzzles,
    generate=full_puzzles,
    rewards={"groups": Groups},
    metrics=lambda prompts: (verified,),
    display=Display(
        names={"sft": "SFT"},
        metrics={
            "right_groups": "share of right groups",
            "solved": "solved puzzles",
            "valid": "valid responses",
        },
        headline=("right_groups", "solved", "valid", "reward"),
        order=("sft", "scalar", "dense"),
        colours={"sft": 0, "scalar": 1, "dense": 2},
    ),
)

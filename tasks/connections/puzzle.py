"""Connections puzzles: generated from lists of words, with exactly one solution.

A puzzle is a shuffled list of words. Its solution divides them into groups of equal size, and all
words of a group are in one list of data/categories.txt. Some words are in several lists ("jersey":
clothes, fabrics, islands), so a word can seem to belong to two groups of a puzzle. A puzzle that
has a second solution under the lists is discarded.
"""

import random
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import Count, StrictModel
from fgrlhf.text_types import Prompt

Item = TypeVar("Item")
Categories = Mapping[str, Sequence[str]]  # name -> words

CATEGORIES = Path(__file__).parent / "data" / "categories.txt"
SHARES = {"train": (0.0, 0.6), "dev": (0.6, 0.75), "test": (0.75, 1.0)}
DRAWS_PER_PUZZLE = 50  # on average; after that many the design cannot give enough puzzles


class Design(StrictModel):
    """The size of puzzles, their words, and what training puzzles never show."""

    groups: int = Field(default=4, ge=2, le=8, description="groups of a puzzle")
    size: int = Field(default=4, ge=2, le=6, description="words of a group")
    categories: Count | None = Field(
        default=None, description="use only so many categories; null: all"
    )
    words: Count | None = Field(
        default=None, description="use only so many words of each category; null: all"
    )
    hold_out: Literal["categories", "groups"] = Field(
        default="categories",
        description=(
            "what train, dev and test do not share: categories, or groups of words of the same"
            " categories"
        ),
    )


# ---- categories and solutions --------------------------------------------------------------------


@cache
def read_categories() -> Categories:
    """The categories of data/categories.txt."""
    categories = {}
    for line in CATEGORIES.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, _, words = line.partition(": ")
            categories[name] = tuple(words.split(", "))
    return categories


def solutions(
    words: Sequence[str], size: int, categories: Categories
) -> list[list[frozenset[str]]]:
    """All divisions of different words into groups of `size` words of one category.

    The first word is in some group of every solution. The search tries each group that it can be
    in, and divides the remaining words in the same way. So each solution is listed once, whatever
    the order of its groups.
    """
    if not words:
        return [[]]
    first, *others = words
    first_groups = set()
    for category in categories.values():
        if first in category:
            members = [word for word in others if word in category]
            for rest in combinations(members, size - 1):
                first_groups.add(frozenset([first, *rest]))
    divisions = []
    for group in first_groups:
        remaining = [word for word in others if word not in group]
        for division in solutions(remaining, size, categories):
            divisions.append([group, *division])
    return divisions


# ---- generation ----------------------------------------------------------------------------------


def part_of(items: Sequence[Item], split: str) -> Sequence[Item]:
    """The share of `items` that belongs to a split."""
    start, end = SHARES[split]
    return items[round(start * len(items)) : round(end * len(items))]


def groups_of(split: str, design: Design) -> dict[str, Sequence[tuple[str, ...]]]:
    """The groups that puzzles of a split may contain, by category.

    They are the same for every seed, so training and evaluation may use different seeds. No two
    categories share three words, so a held-out group of three or more words is in no other
    category's groups either.
    """
    categories = read_categories()
    names = sorted(categories)
    random.Random("connections categories 0").shuffle(names)
    names = names[: design.categories]
    if design.hold_out == "categories":
        names = part_of(names, split)
    groups_by_category = {}
    for name in names:
        rng = random.Random(f"connections {name} 0")
        words = list(categories[name])
        rng.shuffle(words)
        groups = list(combinations(words[: design.words], design.size))
        if design.hold_out == "groups":
            rng.shuffle(groups)
            groups = part_of(groups, split)
        if groups:
            groups_by_category[name] = groups
    return groups_by_category


def make_puzzles(split: str, seed: int, count: int, design: Design) -> list[Prompt]:
    """`count` different puzzles of a split, each with one solution under all categories.

    `meta` has the words in the order of the prompt, the groups, and the groups' categories.

    Raises:
      UserError: the design leaves too few categories or too few different puzzles.
    """
    groups_by_category = groups_of(split, design)
    names = sorted(groups_by_category)
    if len(names) < design.groups:
        raise UserError(
            f"a puzzle has groups of {design.groups} categories, but the split {split} has"
            f" {len(names)} with enough words: raise categories or words, lower groups or size, or"
            " set hold_out=groups"
        )
    rng = random.Random(f"connections {split} {seed}")
    prompts = []
    seen = set()
    for _ in range(DRAWS_PER_PUZZLE * count):
        chosen = rng.sample(names, design.groups)
        groups = [list(rng.choice(groups_by_category[name])) for name in chosen]
        words = [word for group in groups for word in group]
        rng.shuffle(words)
        is_new = len(set(words)) == len(words) and frozenset(words) not in seen
        if not is_new or len(solutions(words, design.size, read_categories())) != 1:
            continue
        seen.add(frozenset(words))
        meta: dict[str, Any] = {"words": words, "groups": groups, "categories": chosen}
        answer = written(groups, words)
        prompts.append(
            Prompt(f"{split} {len(prompts)}", question(words, len(groups)), (answer,), meta)
        )
        if len(prompts) == count:
            return prompts
    raise UserError(
        f"only {len(prompts)} different puzzles of the split {split} were found, not {count}: ask"
        " for fewer, or raise categories or words"
    )


def question(words: Sequence[str], groups: int) -> str:
    """The text of a prompt."""
    size = len(words) // groups
    return (
        f"Sort these words into {groups} groups of {size} related words, one group per line:"
        f" {', '.join(words)}"
    )


def written(groups: Sequence[Sequence[str]], words: Sequence[str]) -> str:
    """A response with these groups. Words, and groups by their first word, are in prompt order.

    A fixed order leaves a single right answer to imitate.
    """
    ordered = [sorted(group, key=words.index) for group in groups]
    ordered.sort(key=lambda group: words.index(group[0]))
    return "\n".join(", ".join(group) for group in ordered)


def with_a_mistake(groups: Sequence[Sequence[str]], rng: random.Random) -> list[list[str]]:
    """The groups after two words of different groups have changed places."""
    changed = [list(group) for group in groups]
    first, second = rng.sample(changed, 2)
    i = rng.randrange(len(first))
    j = rng.randrange(len(second))
    first[i], second[j] = second[j], first[i]
    return changed

"""Sentiment: continue neutral openings of texts in a positive tone."""

import random
from pathlib import Path

from fgrlhf.report.display import Display
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt

OPENINGS = Path(__file__).parent / "data" / "openings.txt"
SPLITS = {"dev": slice(0, 40), "test": slice(40, 104), "train": slice(104, None)}


def openings(split: str, seed: int) -> list[Prompt]:
    """The openings of a split: 40 for dev, 64 for test, the others for train.

    The splits are the same for every seed, which orders the openings.
    """
    lines = OPENINGS.read_text(encoding="utf-8").splitlines()
    of_split = set(_shuffled(lines, 0)[SPLITS[split]])
    prompts = []
    for number, line in _shuffled(lines, seed):
        if (number, line) in of_split:
            prompts.append(Prompt(f"opening {number}", line))
    return prompts


def _shuffled(lines: list[str], seed: int) -> list[tuple[int, str]]:
    """The lines with their numbers, in random order."""
    numbered = list(enumerate(lines, 1))
    random.Random(f"sentiment {seed}").shuffle(numbered)
    return numbered


TASK = Task(
    name="sentiment",
    generate=openings,
    display=Display(
        names={"initial": "before", "fine_grained": "fine-grained"},
        metrics={
            "judge": "polarity by the judge",
            "sentences": "sentences",
            "perplexity": "perplexity of a response",
            "perplexity/corpus": "perplexity under the untrained model",
            "distinct2/prompt": "distinct-2",
            "distinct3/prompt": "distinct-3",
        },
        headline=(
            "judge",
            "reward",
            "perplexity",
            "perplexity/corpus",
            "distinct2/prompt",
            "distinct3/prompt",
            "sentences",
        ),
        order=("initial", "holistic", "fine_grained"),
        colours={"initial": 0, "holistic": 1, "fine_grained": 2},
    ),
)

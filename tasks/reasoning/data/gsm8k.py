"""Problems, solutions and judged steps from GSM8K.

    python -m tasks.reasoning.data.gsm8k source=FOLDER data_dir=FOLDER [subset_size=2000]

`source` has train.jsonl and test.jsonl, or the parquet files of the Hugging Face hub (download.sh).
Writes to data_dir

    train.json, dev.json, test.json       problems, with the solution as reference
    sft.json                              the solutions of training problems
    steps_train.jsonl, steps_dev.jsonl    solutions with one wrong calculation, or none

A solution has a step per line, and `<<48/2=24>>` after the calculations, which is removed. Blank
lines, which a few solutions have, are removed too. A wrong calculation gets another result; the
steps before it are right, so the first error is known. The steps after it stay as they are and
count as wrong. It is a stand-in for human judgements of a model's own steps, such as PRM800K or
Math-Shepherd.
"""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.base.records import Record, Text, read_all
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import Count, FilePath, Seed, StrictModel
from fgrlhf.data.read import check_not_input, read_rows
from fgrlhf.data.split import hash_share
from tasks.reasoning.answers import MARK, answer_of

RESULTS = ("train.json", "dev.json", "test.json", "sft.json")
DEV_SHARE = 0.1  # of the training problems
SHARE_WITH_ERROR = 0.6  # of the solutions in the step files
# a calculation and its result, which the solution repeats: `<<48/2=24>>24`
_CALCULATION = re.compile(r"<<(?P<terms>[^<>]*)=(?P<result>[^<>=]*)>>(?P<repeated>\S*)")
INSTRUCTION = (
    "Solve the problem step by step, with one step on each line. End with a line that has"
    f" `{MARK}` and the answer as a number."
)


class Gsm8kSettings(StrictModel):
    """Which rows to use."""

    source: str = Field(description="folder with the files of GSM8K")
    data_dir: FilePath = Field(description="folder of the results")
    subset_size: Count | None = Field(
        default=None, description="at most so many problems of each file; null: all"
    )
    seed: Seed = Field(default=0, description="of the wrong calculations")


# ---- reading -------------------------------------------------------------------------------------


def source_file(folder: Path, split: str) -> Path:
    """The file of a split: SPLIT*.jsonl, SPLIT*.json or SPLIT*.parquet.

    Raises:
      UserError: there is none, or several.
    """
    files = []
    for suffix in ("jsonl", "json", "parquet"):
        files += sorted(folder.rglob(f"{split}*.{suffix}"))
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise UserError(
            f"{folder} must have one file {split}*.jsonl or {split}*.parquet, it has {names}: fetch"
            " GSM8K with tasks/reasoning/data/download.sh, or name another folder with source=..."
        )
    return files[0]


def read_problems(path: Path) -> list[dict[str, str]]:
    """The rows {question, answer} of a file.

    Raises:
      UserError: a row has no question, no answer, or an answer without a number.
    """
    rows = read_rows(path)
    read_all(AnsweredQuestion, rows, path, "trained on")
    return rows


def _with_number(answer: str) -> str:
    _, mark, after = answer.rpartition(MARK)
    if not mark or answer_of(after) is None:
        raise ValueError(f"must end with `{MARK}` and a number")
    return answer


class AnsweredQuestion(Record):
    """A row of the published files."""

    question: Text
    answer: Annotated[Text, AfterValidator(_with_number)]


def prompt_of(row: dict[str, str]) -> str:
    return f"{row['question']}\n{INSTRUCTION}"


# ---- solutions -----------------------------------------------------------------------------------


def solution(answer: str) -> str:
    """The answer of a row without the marks of its calculations and without blank lines."""
    lines = [_CALCULATION.sub(r"\g<repeated>", line) for line in answer.split("\n")]
    return "\n".join(line for line in lines if line.strip())


def with_one_error(rng: random.Random, answer: str) -> tuple[list[str], int] | None:
    """The lines of a solution in which one calculation has a wrong result, and that line's index.

    None if no calculation can be changed.
    """
    lines = [line for line in answer.split("\n") if solution(line)]
    places = []
    for number, line in enumerate(lines):
        for match in _CALCULATION.finditer(line):
            is_whole_number = re.fullmatch(r"\d+", match["result"]) is not None
            if is_whole_number and match["repeated"].startswith(match["result"]):
                places.append((number, match))
    if not places:
        return None
    number, match = rng.choice(places)
    right = int(match["result"])
    wrong = right
    while wrong == right or wrong < 0:
        wrong = right + rng.choice((-10, -2, -1, 1, 2, 10, right, right // 2 or 1))
    before = lines[number][: match.start()]
    after = lines[number][match.end() :]
    rest = match["repeated"].removeprefix(match["result"])  # such as a unit or a full stop
    lines[number] = f"{before}<<{match['terms']}={wrong}>>{wrong}{rest}{after}"
    return [solution(line) for line in lines], number


def judged_solutions(
    rng: random.Random, rows: Sequence[dict[str, str]], name: str
) -> list[dict[str, Any]]:
    """Rows of the format `steps`, some with an error; steps from the error on have the score 0."""
    judged = []
    for number, row in enumerate(rows):
        broken = None
        if rng.random() < SHARE_WITH_ERROR:
            broken = with_one_error(rng, row["answer"])
        if broken is None:
            lines = solution(row["answer"]).split("\n")
            scores = [1] * len(lines)
        else:
            lines, first_bad = broken
            scores = [1] * first_bad + [0] * (len(lines) - first_bad)
        steps = [{"text": text, "score": score} for text, score in zip(lines, scores)]
        judged.append({"id": f"{name}-{number}", "prompt": prompt_of(row), "steps": steps})
    return judged


# ---- files ---------------------------------------------------------------------------------------


def prepare(settings: Gsm8kSettings) -> None:
    """Write all files. See the module's docstring."""
    source = Path(settings.source)
    folder = Path(settings.data_dir)
    sources = {split: source_file(source, split) for split in ("train", "test")}
    for file in sources.values():
        if file.name in RESULTS:
            check_not_input(str(file), str(folder / file.name))
    given = read_problems(sources["train"])[: settings.subset_size]
    parts: dict[str, list[dict[str, str]]] = {"train": [], "dev": []}
    for row in given:
        parts["dev" if hash_share(row["question"]) < DEV_SHARE else "train"].append(row)
    parts["test"] = read_problems(sources["test"])[: settings.subset_size]
    for split, rows in parts.items():
        if not rows:
            raise UserError(
                f"{source} has too few problems: none of {len(given)} falls into {split}. Raise"
                " subset_size"
            )
        prompts = []
        for number, row in enumerate(rows):
            prompts.append(
                {
                    "id": f"{split}-{number}",
                    "prompt": prompt_of(row),
                    "references": [solution(row["answer"])],
                }
            )
        write_json(folder / f"{split}.json", prompts)
        print(f"{folder / split}.json: {len(prompts):,} problems")
    demonstrations = []
    for row in parts["train"]:
        response = solution(row["answer"])
        demonstrations.append({"prompt": prompt_of(row), "response": response})
    write_json(folder / "sft.json", demonstrations)
    for split in ("train", "dev"):
        rng = random.Random(f"{settings.seed} {split} steps")
        judged = judged_solutions(rng, parts[split], split)
        write_jsonl(folder / f"steps_{split}.jsonl", judged)


if __name__ == "__main__":
    run_program(prepare, Gsm8kSettings)

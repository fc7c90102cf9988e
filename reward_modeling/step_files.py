"""Judged steps -> a segment file, on which run_fg_rm trains a process reward model.

    fgrlhf rm step_files TASK source=steps.jsonl output=step/train.json [error_at_most=-1]

Reads rows of the format `steps` (docs/data_formats.md): PRM800K, Math-Shepherd, TRL's stepwise rows
or the library's own. Every step becomes a line of the response, since the level `step` has lines;
line breaks within a step become spaces. Steps after the first bad one are not judged, because they
build on an error (Lightman et al. 2023, section 2.6). They are still part of the text. Where they
are missing, as in PRM800K, the last step of a text tends to be the bad one. A model that knows
which step is the last one then learns that instead of judging, and the program prints a note.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from, task_and_rest
from fgrlhf.configs.strict import FilePath, Separator, StrictModel
from fgrlhf.data.formats import STEPS
from fgrlhf.data.judgements import JudgedResponse, Judgement
from fgrlhf.data.read import check_not_input
from fgrlhf.reward_utils import load_segmenter
from fgrlhf.task import Task
from reward_modeling.segment_files import IGNORE, OK, TaggedWords, segment_file, tagged_words

ERROR = "ERROR"
MOST_CUT = 0.5  # share of the solutions with a bad step that may end with it
USAGE = "usage: fgrlhf rm step_files [TASK] source=... output=... [key=value ...]"


class StepFileSettings(StrictModel):
    """Input, output, and which steps are bad."""

    source: str = Field(description="file of judged steps, or hub:org/name")
    output: FilePath = Field(description="the segment file")
    columns: dict[str, str | list[str]] = Field(
        default={}, description="the format's keys -> the file's: docs/data_formats.md, Steps"
    )
    separator: Separator | None = Field(
        default=None,
        description=r"what is between the steps, if they are one text; \n is a line break",
    )
    error_at_most: float = Field(
        default=0.0, description="the highest score of a bad step; -1 for PRM800K"
    )
    error_labels: list[str] = Field(
        default=[], description="labels of bad steps, for steps without a score"
    )


def step_tags(
    solution: JudgedResponse, error_at_most: float, error_labels: Sequence[str]
) -> list[str]:
    """The tag of each step: O, ERROR for the first bad one, Ignore for those after it.

    Raises:
      UserError: a step has only a label, and `error_labels` is empty.
    """
    tags: list[str] = []
    for step in solution.spans:
        if ERROR in tags:
            tags.append(IGNORE)
        elif _is_bad(step, solution, error_at_most, error_labels):
            tags.append(ERROR)
        else:
            tags.append(OK)
    return tags


def _is_bad(
    step: Judgement, solution: JudgedResponse, error_at_most: float, error_labels: Sequence[str]
) -> bool:
    if step.score is not None:
        return step.score <= error_at_most
    if not error_labels:
        raise UserError(
            f"row {shorten(solution.prompt.id, 80)} has a step with the label"
            f" {shorten(str(step.label), 40)!r} and no score: name the labels of bad steps with"
            " error_labels=[...]"
        )
    return step.label in error_labels


def tagged_solution(
    task: Task, solution: JudgedResponse, tags: Sequence[str]
) -> TaggedWords | None:
    """The line of a segment file for a solution; None if it has no step.

    Args:
      tags: of its steps.
    """
    lines = [" ".join(solution.marked(step).split()) for step in solution.spans]
    text = "\n".join(lines)
    segments = load_segmenter().segments(text, "step")
    prefix = task.rm_prefix(solution.prompt, False)
    return tagged_words(prefix, text, segments, tags, white_space="prompt")


def share_cut_at_error(tags: Sequence[Sequence[str]]) -> float:
    """Of the solutions with a bad step, the share that ends with it; 0 if there are none."""
    with_error = [solution for solution in tags if ERROR in solution]
    cut = sum(solution[-1] == ERROR for solution in with_error)
    return cut / max(len(with_error), 1)


def write_step_file(task: Task, settings: StepFileSettings) -> None:
    """Write the segment file, and print its numbers of rows and tags.

    Prints a note if most solutions with a bad step end with it.

    Raises:
      UserError: the source cannot be read, has no judged step or would be replaced, or a step has
        no score and the labels of bad steps are not named.
    """
    check_not_input(settings.source, settings.output)
    counts: Counter[str] = Counter()
    solutions = STEPS.read(
        settings.source, settings.columns, counts=counts, separator=settings.separator
    )
    for what, count in counts.most_common():
        print(f"{what}: {count:,}", flush=True)
    tags = []
    examples = []
    for solution in solutions:
        tags.append(step_tags(solution, settings.error_at_most, settings.error_labels))
        examples.append(tagged_solution(task, solution, tags[-1]))
    text, summary = segment_file(examples)
    if not text:
        raise UserError(f"{settings.source} has no judged step: check it with `fgrlhf data check`")
    write_text(settings.output, text)
    print(f"{Path(settings.output)}: {summary}", flush=True)
    share = share_cut_at_error(tags)
    if share > MOST_CUT:
        print(
            f"note: {share:.0%} of the solutions with a bad step end with it, so a reward model can"
            " learn that the last step is bad instead of judging it. Train it with"
            " model.text_features=false, since one of these features is the place of the step, and"
            " test it on whole solutions",
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: a task, and key=value settings."""
    task, rest = task_and_rest(argv, USAGE)
    write_step_file(task, settings_from(StepFileSettings, rest, USAGE))


if __name__ == "__main__":
    run_main(main)

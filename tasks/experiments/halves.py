"""Divide the rows of a feedback file into two halves, so that one can judge what the other taught.

    python -m tasks.experiments.halves data_dir=FOLDER output_dir=outputs/.../data

Reads {train,dev}_feedback.json in `data_dir` and writes `output_dir`/first_half and
`output_dir`/second_half, each with a {train,dev}_feedback.json. The training rows are divided by
turns: the first, third, ... row is in the first half. Both halves have all dev rows.
"""

from pathlib import Path

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from tasks.qa_feedback.feedback import read_feedback_files, write_feedback

HALVES = ("first_half", "second_half")


class HalvesSettings(StrictModel):
    data_dir: FilePath = Field(description="folder of the feedback files")
    output_dir: FilePath = Field(description="folder in which the two halves' folders are written")


def halve(settings: HalvesSettings) -> None:
    """Write both halves.

    Raises:
      UserError: a file is missing, or there is only one training row.
      DataError: malformed rows, all of them.
    """
    source = Path(settings.data_dir)
    train_file = source / "train_feedback.json"
    train, dev = read_feedback_files(train_file, source / "dev_feedback.json")
    if len(train) < 2:
        raise UserError(f"{train_file} has one row: two halves need at least two")
    for place, name in enumerate(HALVES):
        rows = train[place :: len(HALVES)]
        folder = Path(settings.output_dir) / name
        folder.mkdir(parents=True, exist_ok=True)
        write_feedback(folder / "train_feedback.json", rows)
        write_feedback(folder / "dev_feedback.json", dev)
        print(f"{folder}: {len(rows)} training rows, {len(dev)} dev rows")


if __name__ == "__main__":
    run_program(halve, HalvesSettings)

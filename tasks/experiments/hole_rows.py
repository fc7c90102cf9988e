"""Feedback with a planted hole, and the training files of the reward models.

    python -m tasks.experiments.hole_rows data_dir=outputs/qa_feedback/mini/data verb=revised \\
        output_dir=...

An error of prediction 1 is no longer marked if it is a claim with this verb that the question does
not ask for. Writes <output_dir>/{train,dev}_feedback.json, the files of `create_rm_files`, and
shares.json with the share of changed rows of each split.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from tasks.qa_feedback.data.oracle import SubSentence, judge
from tasks.qa_feedback.reward_modeling.create_rm_files import RMFileSettings, create_rm_files


class HoleRowsSettings(StrictModel):
    """The feedback and the pattern."""

    data_dir: FilePath = Field(
        description="folder with {train,dev}_feedback.json of the mini world"
    )
    verb: str = Field(description="of the claims whose errors are no longer marked")
    output_dir: FilePath = Field(description="folder of the results")


def holes_in(question: Any, passages: Any, text: str, verb: str) -> list[SubSentence]:
    """The claims of an answer with this verb that the question does not ask for."""
    found = []
    for part in judge(question, passages, text).subsentences:
        if part.claim is not None and part.claim.verb == verb and part.label == "irrelevant":
            found.append(part)
    return found


def mislabelled(row: Mapping[str, Any], verb: str) -> dict[str, Any]:
    """A feedback row without the errors in the holes of prediction 1."""
    holes = holes_in(row["question"], row["passages"], row["prediction 1"], verb)
    kept = []
    for error in row["feedback"]["errors"]:
        touched = [
            part for part in holes if error["start"] < part.end and part.start < error["end"]
        ]
        if not touched:
            kept.append(error)
    return {**row, "feedback": {**row["feedback"], "errors": kept}}


def write_rows(settings: HoleRowsSettings) -> None:
    """Write the feedback and the training files.

    Raises:
      UserError: a file is missing, or no row has the pattern.
    """
    out = Path(settings.output_dir)
    shares = {}
    for split in ("train", "dev"):
        name = f"{split}_feedback.json"
        rows = read_json(Path(settings.data_dir) / name)
        changed = [mislabelled(row, settings.verb) for row in rows]
        shares[split] = sum(a != b for a, b in zip(rows, changed)) / len(rows)
        write_json(out / name, changed)
    if not shares["train"]:
        raise UserError(f"no error in the feedback is a claim with the verb `{settings.verb}`")
    create_rm_files(RMFileSettings(data_dir=str(out), output_dir=str(out)))
    write_json(out / "shares.json", shares)
    print(
        f"{settings.verb}: {shares['train']:.1%} of the training rows are mislabelled", flush=True
    )


if __name__ == "__main__":
    run_program(write_rows, HoleRowsSettings)

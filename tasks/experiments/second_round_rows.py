"""The feedback of one or more rounds, and the reward models' training files.

    python -m tasks.experiments.second_round_rows questions=A/train.json,B/train.json \\
        samples=A/samples.jsonl,B/samples.jsonl dev_questions=dev.json dev_samples=... \\
        output_dir=... seed=0

The simulated annotator judges the samples of each round, and `fgrlhf feedback merge` makes one file
of them. Writes <output_dir>/{train,dev}_feedback.json and the files of `create_rm_files`.
"""

import shutil
from pathlib import Path

from pydantic import Field, model_validator

from fgrlhf.base.seeds import derive_seed
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel, refuse
from interface_html.merge import MergeSettings, merge
from tasks.qa_feedback.data.collect_feedback import CollectFeedbackSettings, collect
from tasks.qa_feedback.feedback import SplitName
from tasks.qa_feedback.reward_modeling.create_rm_files import RMFileSettings, create_rm_files


class SecondRoundRowsSettings(StrictModel):
    """The answers to annotate, by round."""

    questions: str = Field(description="of each round, a file like train.json; with commas")
    samples: str = Field(description="of each round, the answers to these questions; with commas")
    dev_questions: str = Field(description="dev.json")
    dev_samples: str = Field(description="the answers to the dev questions")
    output_dir: FilePath = Field(description="folder of the feedback and of the training files")
    perturbed: float = Field(
        ge=0, le=1, description="share of answers perturbed before they are annotated"
    )
    seed: int = Field(description="of the annotator")

    @property
    def rounds(self) -> list[tuple[str, str]]:
        """The files of each round: its questions and its samples."""
        return list(zip(self.questions.split(","), self.samples.split(","), strict=True))

    @model_validator(mode="after")
    def _files_of_each_round(self):
        if self.questions.count(",") != self.samples.count(","):
            refuse([("samples", "name as many files as `questions` does: one for each round")])
        return self


def annotated(
    settings: SecondRoundRowsSettings,
    folder: Path,
    split: SplitName,
    questions: str,
    samples: str,
    number: int,
) -> Path:
    """The simulated annotator's feedback on samples. Returns its file in `folder`.

    Args:
      number: of the round. Questions of two rounds have the same ids, and must not have the same
        random numbers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(questions, folder / f"{split}.json")
    choice = CollectFeedbackSettings(
        data_dir=str(folder),
        samples=samples,
        split=split,
        perturbed=settings.perturbed,
        seed=derive_seed(settings.seed, split, number),
    )
    return collect(choice)


def write_rows(settings: SecondRoundRowsSettings) -> None:
    """Write the feedback and the training files.

    Raises:
      DataError: malformed rows.
      UserError: a file is missing, or samples do not belong to their questions.
    """
    out = Path(settings.output_dir)
    files = []
    for number, (questions, samples) in enumerate(settings.rounds, 1):
        folder = out / f"round-{number}"
        files.append(annotated(settings, folder, "train", questions, samples, number))
    annotated(settings, out, "dev", settings.dev_questions, settings.dev_samples, 1)
    target = out / "train_feedback.json"
    if len(files) == 1:
        shutil.copy(files[0], target)
    else:
        names = ",".join(map(str, files))
        merge(MergeSettings(task="qa_feedback", files=names, out=str(target)))
    create_rm_files(RMFileSettings(data_dir=str(out), output_dir=str(out)))


if __name__ == "__main__":
    run_program(write_rows, SecondRoundRowsSettings)

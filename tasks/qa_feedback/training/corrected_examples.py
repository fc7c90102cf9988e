"""The questions of a feedback file with their corrected answers: demonstrations, prompts of sdpo.

python -m tasks.qa_feedback.training.corrected_examples \\
    feedback=.../train_feedback.json questions=.../train.json out=...
"""

from pathlib import Path

from pydantic import Field

from fgrlhf.base.files import write_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.read import check_not_input
from tasks.qa_feedback.feedback import load_examples, read_feedback
from tasks.qa_feedback.training.comparisons import corrected_examples


class CorrectedExamplesSettings(StrictModel):
    feedback: str = Field(description="feedback rows with corrections")
    questions: str = Field(description="the prompts file that the feedback's questions come from")
    out: FilePath = Field(description="output file")


def main() -> None:
    settings = settings_from(CorrectedExamplesSettings)
    for source in (settings.feedback, settings.questions):
        check_not_input(source, settings.out)
    rows = corrected_examples(
        read_feedback(settings.feedback), load_examples(settings.questions), settings.feedback
    )
    write_json(Path(settings.out), rows)
    print(f"{settings.out}: {len(rows)} corrected answers", flush=True)


if __name__ == "__main__":
    run_main(main)

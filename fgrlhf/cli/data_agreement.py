"""`fgrlhf data agreement`: how far the annotators of judgements agree."""

from pydantic import Field, field_validator

from fgrlhf.cli.data_exchange import read_judgements
from fgrlhf.config import FilePath, StrictModel
from fgrlhf.data.problems import counted
from fgrlhf.data.read import check_not_input
from fgrlhf.errors import shorten
from fgrlhf.files import write_json


class AgreementSettings(StrictModel):
    severities: list[str] = Field(
        default=[],
        description="severities from the mildest to the worst, to compare them; []: not compared",
    )
    out: FilePath | None = Field(default=None, description="a JSON file to write the figures to")

    @field_validator("severities")
    @classmethod
    def _are_different(cls, value: list[str]) -> list[str]:
        for severity in value:
            if value.count(severity) > 1:
                raise ValueError(f"it names `{shorten(severity)}` twice: give each severity once")
        return value


def agreement(*files: str, settings: AgreementSettings) -> None:
    """Print how far annotators agree. Several files are the judgements of one annotator each."""
    # imports scipy, which other actions do not need
    from fgrlhf.data.agreement import judged_in_several_files, not_judging_errors, report

    if settings.out is not None:
        for file in files:
            check_not_input(file, settings.out)
    judged = {file: read_judgements(file) for file in files}
    repeated = judged_in_several_files(judged)
    if repeated:
        print(
            f"note: {counted(repeated, 'response')} judged under one annotator's name in several"
            " files. The rows of the later files count as further copies of the response. If the"
            " name stands for several people, give each of them a name of their own"
        )
    left_out = not_judging_errors(judged)
    if left_out:
        print(
            f"note: the figures about errors leave out {counted(left_out, 'annotation')} with only"
            " scores or verdicts of other aspects"
        )
    figures = report(judged, settings.severities)
    for name, figure in figures.items():
        print(f"{name:<44} {figure}")
    if settings.out is not None:
        values = {}
        for name, figure in figures.items():
            values[name] = figure if isinstance(figure, str) else figure.as_dict()
        write_json(settings.out, values)

"""`fgrlhf data agreement`: how far the annotators of judgements agree."""

from pydantic import Field, field_validator

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.base.files import write_json
from fgrlhf.cli.data_exchange import read_judgements
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.read import check_not_input


class AgreementSettings(StrictModel):
    severities: list[str] = Field(
        default=[],
        description="severities from the mildest to the worst, to compare them; []: not compared",
    )
    orders: dict[str, list[str]] = Field(
        default={},
        description="for aspects with verdicts that have an order, their labels from the lowest to"
        " the highest: {helpful: [bad, fair, good]}",
    )
    out: FilePath | None = Field(default=None, description="a JSON file to write the figures to")

    @field_validator("severities")
    @classmethod
    def _are_different(cls, value: list[str]) -> list[str]:
        _check_different(value, "severity")
        return value

    @field_validator("orders")
    @classmethod
    def _have_different_labels(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        for labels in value.values():
            _check_different(labels, "label")
        return value


def _check_different(values: list[str], what: str) -> None:
    """Raises `ValueError` if a value is there twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"it names `{shorten(value)}` twice: give each {what} once")


def agreement(*files: str, settings: AgreementSettings) -> None:
    """Print how far annotators agree. Several files are the judgements of one annotator each."""
    # imports scipy, which other actions do not need
    from fgrlhf.data.agreement.report import (
        figure_lines,
        figures_json,
        report,
        verdict_aspects,
        weight_notes,
    )
    from fgrlhf.data.agreement.responses import (
        by_response,
        judged_in_several_files,
        not_judging_errors,
    )

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
    shared = by_response(judged)
    left_out = not_judging_errors(shared)
    if left_out:
        print(
            f"note: the figures about errors leave out {counted(left_out, 'annotation')} with only"
            " scores or verdicts of other aspects"
        )
    unknown = sorted(set(settings.orders) - set(verdict_aspects(shared)))
    if unknown:
        known = ", ".join(verdict_aspects(shared)) or "none"
        raise UserError(
            f"orders: no response has a verdict of the aspect {shorten(unknown[0])}; aspects with"
            f" verdicts: {shorten(known, 200)}"
        )
    for note in weight_notes(shared):
        print(f"note: {note}")
    figures = report(shared, settings.severities, settings.orders)
    for line in figure_lines(figures):
        print(line)
    if settings.out is not None:
        write_json(settings.out, figures_json(figures))

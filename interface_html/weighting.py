"""The weights of annotators' votes in an export, from the file of `fgrlhf feedback reliability`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fgrlhf.base.errors import UserError, counted
from fgrlhf.data.names import name_key
from interface_html.reliability import read_report
from interface_html.schema import PageName
from interface_html.stored import Submission


@dataclass(frozen=True)
class Weights:
    """The weight of each annotator's vote, by page and `name_key` of the annotator.

    An annotator without a weight counts as the mean of those who have one.
    """

    by_page: Mapping[str, Mapping[str, float]]

    def of(self, page: PageName, annotators: Iterable[str]) -> list[float] | None:
        """The weights of some annotators, in their order; None if nobody has one on this page."""
        known = self.by_page.get(page)
        if not known:
            return None
        mean = sum(known.values()) / len(known)
        return [known.get(name_key(name), mean) for name in annotators]


NO_WEIGHTS = Weights({})


def read_weights(path: str, task: str) -> Weights:
    """The weights in a file.

    Raises:
      UserError: the file cannot be read, is of another task, or has no weight.
    """
    report = read_report(path, task)
    pages: tuple[PageName, ...] = ("annotation", "comparison")
    by_page = {}
    for page in pages:
        by_page[page] = {name_key(name): one for name, one in report.weights(page).items()}
    if not any(by_page.values()):
        raise UserError(
            f"{path} has no weight: no annotator was compared with known judgements. The file says"
            " why under `undefined`"
        )
    return Weights(by_page)


def reliable_submissions(
    submissions: Sequence[Submission], weights: Weights, least: float | None
) -> tuple[list[Submission], str]:
    """The submissions that count, and a text about the others and about unknown annotators.

    Args:
      submissions: of all annotators.
      weights: the weights of annotators.
      least: submissions of annotators with a lower weight are left out; None keeps all.
    """
    kept = []
    left_out = 0
    unreliable = set()
    unknown = set()
    for submission in submissions:
        on_page = weights.by_page.get(submission.page, {})
        weight = on_page.get(name_key(submission.annotator))
        if on_page and weight is None:  # on a page without weights every vote counts the same
            unknown.add(submission.annotator)
        if weight is not None and least is not None and weight < least:
            left_out += 1
            unreliable.add(submission.annotator)
            continue
        kept.append(submission)
    text = ""
    if left_out:
        names = ", ".join(sorted(unreliable))
        text += f"; left out {counted(left_out, 'submission')} with a weight below {least}: {names}"
    if unknown:
        names = ", ".join(sorted(unknown))
        text += f"; without a weight, counted as the mean of the others: {names}"
    return kept, text

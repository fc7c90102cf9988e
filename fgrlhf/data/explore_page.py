"""The page of `fgrlhf data explore`: the statistics of a file of feedback in one HTML file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from fgrlhf.base.errors import shorten
from fgrlhf.data.comparisons import Comparison
from fgrlhf.data.explore import Exploration
from fgrlhf.data.explore_marks import Marks, findings
from fgrlhf.report.page import page_template, stylesheet
from fgrlhf.report.plots import histograms

GROUPS_SHOWN = 5
TEXT_SHOWN = 300  # characters


@dataclass(frozen=True)
class Group:
    """Rows that are nearly the same, and the text of the first of them."""

    rows: str
    count: int
    text: str


def page(
    title: str,
    exploration: Exploration | None,
    comparisons: Sequence[Comparison],
    marks: Marks | None = None,
) -> str:
    """The page. The template escapes every text of the data.

    Args:
      exploration: of the comparisons; None if there are none.
      marks: statistics of marks, verdicts and scores; None if there are none.
    """
    plots = []
    groups = {}
    if exploration is not None:
        lengths = dict(exploration.lengths)
        prompts = lengths.pop("prompts")
        plots = [
            histograms("Words of a prompt", {"prompts": prompts}, "words"),
            histograms("Words of a response", lengths, "words"),
        ]
        groups = {
            "prompt and responses": _groups(exploration.duplicate_groups, comparisons),
            "prompt": _groups(exploration.prompt_groups, comparisons),
        }
    return page_template(Path(__file__).parent, "explore.html.j2").render(
        title=title,
        style=stylesheet(),
        exploration=exploration,
        warnings=warnings(exploration) if exploration is not None else [],
        plots=[Markup(plot) for plot in plots],
        groups=groups,
        marks=marks,
        marks_lines=findings(marks) if marks is not None else [],
    )


def _groups(groups: Sequence[Sequence[int]], comparisons: Sequence[Comparison]) -> list[Group]:
    largest = sorted(groups, key=lambda group: -len(group))[:GROUPS_SHOWN]
    shown = []
    for group in largest:
        rows = ", ".join(map(str, group[:10])) + (", ..." if len(group) > 10 else "")
        text = shorten(comparisons[group[0]].prompt.text.strip(), TEXT_SHOWN)
        shown.append(Group(rows, len(group), text))
    return shown


def warnings(exploration: Exploration) -> list[str]:
    """What a reward model may learn by mistake from these rows, in plain sentences."""
    lines = []
    first = exploration.first_is_better
    if first is not None and (first.low > 0.5 or first.high < 0.5):
        lines.append(
            f"The response listed first is better in {first.mean:.1%} of the pairs"
            f" [{first.low:.1%}, {first.high:.1%}]: the annotators have a position bias, or the"
            " rows are sorted. Reward models do not read positions, but the labels are less"
            " reliable."
        )
    length = next(feature for feature in exploration.features if feature.name == "words")
    share = length.share
    if share is not None and (share.low > 0.5 or share.high < 0.5):
        longer = "longer" if share.mean > 0.5 else "shorter"
        agreement = max(share.mean, 1 - share.mean)
        lines.append(
            f"The {longer} response is better in {agreement:.1%} of the pairs of different length:"
            " a reward model has to beat this accuracy to have learned more than the length."
        )
    if exploration.contradictions:
        lines.append(
            f"Pairs of responses decided both ways: {exploration.contradictions:,}. At least as"
            " many labels are wrong."
        )
    repeated = sum(len(group) - 1 for group in exploration.duplicate_groups)
    if repeated:
        lines.append(
            f"Near-duplicates of earlier rows: {repeated:,}. If they are split between training and"
            " dev data, dev accuracy is too high."
        )
    return lines

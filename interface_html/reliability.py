"""Measure how reliable each annotator is, from items whose right judgement is known.

    fgrlhf feedback reliability NAME db=feedback.sqlite gold=gold.json out=reliability.json

The right judgements are those of `gold`, a feedback file whose rows have the texts of items of the
study, and those of the gold items that the server hid among the others. Without either, each
annotator is compared with the majority of the others, which needs three annotators of an item.
`export weights=reliability.json` gives the votes of reliable annotators more weight.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Literal

from pydantic import Field

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import read_json, write_json
from fgrlhf.configs.strict import FilePath, StrictModel, validate
from interface_html.format import Item
from interface_html.items import read_items
from interface_html.outputs import OutputSettings
from interface_html.rules import Document
from interface_html.schema import PageName
from interface_html.stored import Submission, read_fitting_study
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

Source = Literal["gold", "majority of the others"]
PAIRS = "pairs"
NOT_SHARED = {
    "gold": "no judged item has a known judgement: name a feedback file with gold=...",
    "majority of the others": "on no judged item do two other annotators agree: name a"
    " feedback file with known judgements with gold=...",
}


@dataclass(frozen=True)
class GivenLabel:
    """An annotator's label for one segment or pair, beside the right label.

    Args:
      kind: the way of segmenting the text, or `PAIRS`.
      given: the annotator's label.
      right: the right one.
    """

    kind: str
    given: Hashable
    right: Hashable


class Reliability(StrictModel):
    """An annotator's agreement with the right judgements of one page.

    `undefined` says why the values are null.
    """

    items: int = Field(description="judged items whose right judgement is known")
    labels: int = Field(description="the judged segments or pairs of these items")
    accuracy: float | None = Field(description="share of the labels that are right")
    balanced_accuracy: float | None = Field(description="its mean over the right labels' classes")
    weight: float | None = Field(ge=0, description="of the annotator's vote; 0 is chance")
    undefined: str | None = Field(description="why the values are null")
    repeated_labels: int = Field(description="labels that the annotator gave twice")
    consistency: float | None = Field(description="share of these that are the same both times")


class ReliabilityReport(StrictModel):
    """The contents of the file."""

    task: str = Field(description="the name of the task")
    right: Source = Field(description="where the right judgements come from")
    annotators: dict[str, dict[PageName, Reliability]] = Field(
        description="of each annotator, for each page"
    )

    def weights(self, page: PageName) -> dict[str, float]:
        """The weights of a page, of the annotators who have one."""
        found = {}
        for name, pages in self.annotators.items():
            weight = pages[page].weight if page in pages else None
            if weight is not None:
                found[name] = weight
        return found


# ---- figures (pure) ------------------------------------------------------------------------------


def balanced_accuracy(answers: Sequence[GivenLabel], classes: int) -> float:
    """Mean over the right labels' classes of the share that was recognised, smoothed.

        r = mean_c n_cc / n_c,    n = K^2 / sum_c (1 / n_c),    b = (n r + 1) / (n + C)

    n_c segments have the right label c, of which n_cc were given it; the K classes with n_c > 0
    count. Errors are rare, so an annotator who never marks one has a high accuracy, but an r of
    1 / K. n is the number of labels with which a share has the variance of r; the 1 and C (Laplace)
    keep few labels from giving 0 or 1, and chance, 1 / C, is chance with any number of labels.

    Args:
      answers: of one kind; not empty.
      classes: C, the number of classes that an annotator can choose.
    """
    counts = Counter(answer.right for answer in answers)
    recognised = Counter(answer.right for answer in answers if answer.given == answer.right)
    share = sum(recognised[label] / count for label, count in counts.items()) / len(counts)
    size = len(counts) ** 2 / sum(1 / count for count in counts.values())
    return (size * share + 1) / (size + classes)


def vote_weight(balanced: float, classes: int) -> float:
    """The weight of a vote: how much more likely the given label is than one of the others.

        w = max(0, log(b (C - 1) / (1 - b)))

    An annotator is right with probability b and otherwise gives each of the C - 1 wrong labels
    equally often; the sum of these weights then orders the classes by their likelihood. 0 for an
    annotator who is no better than chance (b = 1 / C). Li and Yu (2014), Error Rate Bounds and
    Iterative Weighted Majority Voting for Crowdsourcing.
    """
    # rounded, so that chance gives exactly 0
    return max(0.0, round(log(balanced * (classes - 1) / (1 - balanced)), 6))


def reliability_of(
    answers: Sequence[GivenLabel],
    classes: Mapping[str, int],
    items: int,
    repeated: Sequence[bool],
    not_shared: str,
) -> Reliability:
    """The reliability of an annotator on one page.

    Balanced accuracy and weight are means over the kinds of labels whose right labels have two
    classes or more.

    Args:
      answers: the annotator's labels whose right label is known.
      classes: the number of classes, by kind.
      items: the number of items that the answers are from.
      repeated: for each label given twice, whether it was the same.
      not_shared: the reason to give without answers.
    """
    balanced = []
    weights = []
    for kind in dict.fromkeys(answer.kind for answer in answers):
        of_kind = [answer for answer in answers if answer.kind == kind]
        if len({answer.right for answer in of_kind}) > 1:
            balanced.append(balanced_accuracy(of_kind, classes[kind]))
            weights.append(vote_weight(balanced[-1], classes[kind]))
    undefined = None
    if not answers:
        undefined = not_shared
    elif not weights:
        label = answers[0].right
        undefined = (
            f"all right labels are the same ({label}), so always giving that label looks perfect:"
            " add items with other right labels"
        )
    right = sum(answer.given == answer.right for answer in answers)
    return Reliability(
        items=items,
        labels=len(answers),
        accuracy=right / len(answers) if answers else None,
        balanced_accuracy=sum(balanced) / len(balanced) if balanced else None,
        weight=sum(weights) / len(weights) if weights else None,
        undefined=undefined,
        repeated_labels=len(repeated),
        consistency=sum(repeated) / len(repeated) if repeated else None,
    )


def leading_label(labels: Iterable[Hashable]) -> Hashable | None:
    """The label that most annotators gave; None if no label leads."""
    (label, count), *others = Counter(labels).most_common()
    return label if not others or others[0][1] < count else None


# ---- labels --------------------------------------------------------------------------------------


def page_labels(
    task: FeedbackTask, item: Item, page: PageName, documents: Sequence[Document]
) -> dict[str, list[Sequence[Hashable]]]:
    """The labels of an item by kind: for each segment or pair, one label per document."""
    if page == "comparison":
        return {PAIRS: list(zip(*(doc["preference"] for doc in documents), strict=True))}
    segments = task.format.segment_labels(task.schema, item, documents)
    return {kind: [*labels] for kind, labels in segments.items()}


def answers_to_gold(
    task: FeedbackTask, item: Item, page: PageName, given: Document, right: Document
) -> list[GivenLabel]:
    labels = page_labels(task, item, page, [given, right])
    return [GivenLabel(kind, *pair) for kind, pairs in labels.items() for pair in pairs]


def answers_to_others(
    task: FeedbackTask, item: Item, page: PageName, documents: Mapping[str, Document]
) -> dict[str, list[GivenLabel]]:
    """For each annotator of an item, the labels for which the others' majority gave one label."""
    names = list(documents)
    answers: dict[str, list[GivenLabel]] = {name: [] for name in names}
    for kind, segments in page_labels(task, item, page, list(documents.values())).items():
        for labels in segments:
            for i, name in enumerate(names):
                right = leading_label([*labels[:i], *labels[i + 1 :]])
                if right is not None:
                    answers[name].append(GivenLabel(kind, labels[i], right))
    return answers


def gold_documents(item: Item) -> dict[PageName, Document]:
    """The judgements that came with an item, by page."""
    documents: dict[PageName, Document] = {}
    if item.feedback is not None:
        documents["annotation"] = item.feedback
    if item.preference is not None:
        documents["comparison"] = {"preference": item.preference}
    return documents


def latest_documents(
    submissions: Sequence[Submission], page: PageName
) -> dict[str, dict[str, Document]]:
    """The latest document of each annotator of a page, by item and annotator."""
    documents: dict[str, dict[str, Document]] = {}
    for submission in submissions:
        if submission.page == page:
            documents.setdefault(submission.item, {})[submission.annotator] = submission.doc
    return documents


# ---- the report ----------------------------------------------------------------------------------


def report(
    task: FeedbackTask,
    items: Sequence[Item],
    submissions: Sequence[Submission],
    gold: Sequence[Item],
    repeats: Mapping[str, str],
) -> ReliabilityReport:
    """The reliability of every annotator on the annotation and the comparison page.

    Ratings are left out: their agreement is in the agreement report.

    Args:
      task: the task.
      items: all items, also hidden ones.
      submissions: sorted by time.
      gold: items with known judgements; the items with the same texts are judged by them. Without
        any, annotators are compared with the majority of the others.
      repeats: for each repeated item, the item that it repeats.
    """
    gold_by_content: dict[tuple[str, ...], dict[PageName, Document]] = defaultdict(dict)
    for item in gold:  # one row may hold the annotation and another the preference
        gold_by_content[task.content(item)].update(gold_documents(item))
    names = sorted({submission.annotator for submission in submissions})
    annotators: dict[str, dict[PageName, Reliability]] = {name: {} for name in names}
    source: Source = "gold" if gold else "majority of the others"
    for page in task.schema.pages:
        if page == "rating":
            continue
        answers: dict[str, list[GivenLabel]] = defaultdict(list)
        judged: Counter[str] = Counter()
        repeated: dict[str, list[bool]] = defaultdict(list)
        documents = latest_documents(submissions, page)
        for item in items:
            given = documents.get(item.id, {})
            if item.id in repeats:
                earlier = documents.get(repeats[item.id], {})
                for name in given.keys() & earlier.keys():
                    repeated[name] += _same(task, item, page, earlier[name], given[name])
                continue
            right = gold_by_content.get(task.content(item), {}).get(page)
            found: Mapping[str, list[GivenLabel]] = {}
            if right is not None:
                found = {
                    name: answers_to_gold(task, item, page, doc, right)
                    for name, doc in given.items()
                }
            elif not gold and len(given) > 2:
                found = answers_to_others(task, item, page, given)
            for name, of_item in found.items():
                answers[name] += of_item
                judged[name] += bool(of_item)
        classes = class_counts([answer for name in names for answer in answers[name]])
        for name in names:
            annotators[name][page] = reliability_of(
                answers[name], classes, judged[name], repeated[name], NOT_SHARED[source]
            )
    return ReliabilityReport(task=task.schema.task, right=source, annotators=annotators)


def _same(
    task: FeedbackTask, item: Item, page: PageName, first: Document, second: Document
) -> list[bool]:
    labels = page_labels(task, item, page, [first, second])
    return [a == b for pairs in labels.values() for a, b in pairs]


def class_counts(answers: Iterable[GivenLabel]) -> dict[str, int]:
    """The number of classes of each kind: those that anyone gave or that are right."""
    used: dict[str, set[Hashable]] = {}
    for answer in answers:
        used.setdefault(answer.kind, set()).update((answer.given, answer.right))
    return {kind: len(labels) for kind, labels in used.items()}


def table(result: ReliabilityReport) -> str:
    """The report as text: one line for each annotator and page."""
    lines = [f"right judgements: {result.right}"]
    lines.append(
        f"{'annotator':<20} {'page':<10} {'items':>5} {'labels':>6} {'accuracy':>8}"
        f" {'balanced':>8} {'weight':>6} {'repeated':>8} {'same':>5}"
    )
    for name, pages in result.annotators.items():
        for page, values in pages.items():
            lines.append(
                f"{name:<20} {page:<10} {values.items:>5} {values.labels:>6}"
                f" {_text(values.accuracy):>8} {_text(values.balanced_accuracy):>8}"
                f" {_text(values.weight):>6} {values.repeated_labels:>8}"
                f" {_text(values.consistency):>5}"
            )
            if values.undefined is not None:
                lines.append(f"  weight undefined: {values.undefined}")
    return "\n".join(lines)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def read_report(path: str, task: str) -> ReliabilityReport:
    """The contents of a file that this program wrote for a task.

    Raises:
      UserError: the file cannot be read, is malformed, or is of another task.
    """
    result = validate(ReliabilityReport, read_json(path), path, is_json=True)
    if result.task != task:
        raise UserError(
            f"{path} has the reliability of annotators of the task {result.task}, not of {task}:"
            " name a file of this task"
        )
    return result


class ReliabilitySettings(OutputSettings):
    """The database to read."""

    task: str = Field(description=TASK_HELP)
    db: FilePath = Field(
        default="outputs/feedback/feedback.sqlite", description="the server's database"
    )
    gold: str | None = Field(
        default=None, description="a feedback file with the right judgements of items of the study"
    )
    out: FilePath | None = Field(default=None, description="a JSON file to write the figures to")


def write_report(settings: ReliabilitySettings) -> ReliabilityReport:
    """Print the table, and write `out` if it is set.

    Raises:
      DataError: the gold file has malformed rows.
      UserError: a file cannot be read, or `gold` has no judgement of an item of the study.
    """
    task = feedback_of(settings.task)
    if not task.schema.annotates and not task.schema.compares:
        raise UserError(
            f"the task {task.schema.task} has ratings only: their agreement is a figure of"
            " `fgrlhf feedback agreement`"
        )
    study = read_fitting_study(settings.db, task.schema, ["annotation", "comparison"])
    gold = study.gold
    if settings.gold:
        gold += known_items(task, study.all_items, settings.gold)
    result = report(task, study.all_items, study.unskipped, gold, study.repeats)
    print(table(result))
    if settings.out:
        write_json(settings.out, result.model_dump())
        print(f"{settings.out}: {counted(len(result.annotators), 'annotator')}")
    return result


def known_items(task: FeedbackTask, items: Sequence[Item], path: str) -> list[Item]:
    """The judged items of a feedback file that have the texts of an item of the study."""
    contents = {task.content(item) for item in items}
    judged = [item for item in read_items(task, path) if gold_documents(item)]
    known = [item for item in judged if task.content(item) in contents]
    if not known:
        raise UserError(
            f"{path} has {counted(len(judged), 'judged row')}, none with the texts of an item of"
            " the study: annotators are compared on items that they have judged"
        )
    return known

"""Write the submissions in a server's database as a feedback file in the task's format.

    fgrlhf feedback export NAME db=feedback.sqlite out=train_feedback.json \\
        policy=majority weights=reliability.json

With dev_file=..., a share of the prompts is held out of `out`, by clusters if the items have them.
"""

from collections import Counter
from collections.abc import Sequence

from pydantic import Field

from fgrlhf.base.errors import UserError, counted, first_problems
from fgrlhf.base.files import write_text
from fgrlhf.configs.strict import FilePath
from fgrlhf.data.split import held_out
from interface_html.checks import left_out_text as checks_text
from interface_html.decisions import (
    DECIDED,
    JUDGEMENT_KEYS,
    Decisions,
    Stale,
    decisions_that_count,
    read_decisions,
    with_decisions,
)
from interface_html.format import Item
from interface_html.items import rows_text
from interface_html.outputs import OutputSettings
from interface_html.schema import ALL_PAGES, PAGES_HELP, PageName, Schema, needed_pages
from interface_html.skips import Skip
from interface_html.stored import Submission, read_fitting_study
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of
from interface_html.votes import VOTES, Policy, count_circles, judged_items
from interface_html.weighting import NO_WEIGHTS, read_weights, reliable_submissions

WITH_ARTICLES = {
    "annotation": "an annotation",
    "comparison": "a comparison",
    "rating": "a rating",
}


def _without_skipped_judgements(
    items: Sequence[Item], submissions: Sequence[Submission], skips: Sequence[Skip]
) -> list[Item]:
    """The items without the judgements that they came with, of pages that an annotator skipped.

    An annotator who skips an item says that it cannot be judged, so its earlier judgement does not
    count either. Submissions count in any case.
    """
    submitted = {(entry.item, entry.page) for entry in submissions}
    skipped = {(skip.item, skip.page) for skip in skips} - submitted
    kept = []
    for item in items:
        keys = {key for page, key in JUDGEMENT_KEYS.items() if (item.id, page) in skipped}
        row = {key: value for key, value in item.row.items() if key not in keys}
        kept.append(Item(item.id, row))
    return kept


class FeedbackExportSettings(OutputSettings):
    """The submissions to export."""

    task: str = Field(description=TASK_HELP)
    db: FilePath = Field(
        default="outputs/feedback/feedback.sqlite", description="the server's database"
    )
    out: FilePath = Field(description="the feedback file to write")
    dev_file: FilePath | None = Field(
        default=None,
        description="also write a file of held-out prompts; the rows of a prompt, and of the"
        " prompts of a `cluster`, stay together",
    )
    dev_share: float = Field(default=0.2, gt=0, lt=1, description="share of the prompts in it")
    policy: Policy = Field(
        default="latest", description="how to combine several judgements of an item"
    )
    pages: str = Field(
        default=ALL_PAGES,
        description=f"the pages whose judgements a row needs, {PAGES_HELP}",
    )
    adjudicated: str | None = Field(
        default=None,
        description="with policy=adjudicated: the database of the adjudication; its decisions are"
        " taken before the majority. Several are separated by commas: the last decision counts",
    )
    stale: Stale = Field(
        default="refuse",
        description="decisions about other submissions than those that count now: refuse them,"
        " keep them, or drop them and take the majority",
    )
    weights: str | None = Field(
        default=None,
        description="with policy=majority or adjudicated: the file of `reliability`, to weight the"
        " votes",
    )
    least_weight: float | None = Field(
        default=None,
        ge=0,
        description="leave out the judgements of annotators whose weight is lower",
    )


def export(settings: FeedbackExportSettings) -> int:
    """Write the file, whole or not at all. Returns the number of rows.

    Raises:
      UserError: the database cannot be read, belongs to another task, has no row to export, or has
        feedback that does not fit the schema.
    """
    _check_settings(settings)
    task = feedback_of(settings.task)
    pages = needed_pages(task.schema, settings.pages)
    study = read_fitting_study(settings.db, task.schema)
    submissions = study.submissions
    skips = [skip for skip in study.skips if skip.page in pages and skip.item not in study.hidden]
    skipped = _skipped_text(skips)
    weights = NO_WEIGHTS
    unreliable = ""
    if settings.weights is not None:
        weights = read_weights(settings.weights, task.schema.task)
        submissions, unreliable = reliable_submissions(submissions, weights, settings.least_weight)
    decisions: Decisions = {}
    if settings.adjudicated is not None:
        decisions = read_decisions(task, study.items, settings.adjudicated)
        decisions, stale = decisions_that_count(
            decisions, study.submissions, settings.stale, settings.db
        )
        submissions = with_decisions(submissions, decisions)
        print(f"{settings.adjudicated}: {_decided_text(decisions)}")
        if stale:
            print(stale)
    items = _without_skipped_judgements(study.items, submissions, study.skips)
    judged, left_out = judged_items(
        task.schema, items, submissions, settings.policy, pages, weights, decisions
    )
    if not judged:
        not_counted = skipped + unreliable
        raise UserError(_no_rows_text(task.schema, settings, items, submissions, not_counted))
    _check_feedback(task, judged, settings.db)
    written = _write_rows(task, judged, settings)
    left_out_text = _left_out_text(pages, left_out)
    if settings.policy in ("latest", "first"):
        left_out_text += _dropped_text(settings.policy, pages, judged, submissions)
    if settings.policy == "all":
        left_out_text += _incomplete_text(pages, judged, submissions)
    if settings.policy in VOTES:
        left_out_text += _circles_text(count_circles(task.schema, judged, submissions, weights))
        left_out_text += _one_annotation_text(settings.policy, judged)
    left_out_text += skipped + unreliable
    print(f"{written}{left_out_text}{checks_text(study.hidden)}")
    print(_annotators_text(pages, judged, submissions, settings.policy))
    return len(judged)


def _write_rows(
    task: FeedbackTask, judged: Sequence[Item], settings: FeedbackExportSettings
) -> str:
    """Write the rows. Returns the files with their numbers of rows."""
    rows = [task.format.feedback_row(task.schema, item) for item in judged]
    if settings.dev_file is None:
        write_text(settings.out, rows_text(rows))
        return f"{settings.out}: {counted(len(rows), 'row')}"
    title = task.schema.fields.title
    groups = [item.cluster or str(item.row[title]) for item in judged]
    dev = held_out(groups, settings.dev_share, settings.db)
    train_rows = [row for group, row in zip(groups, rows, strict=True) if group not in dev]
    dev_rows = [row for group, row in zip(groups, rows, strict=True) if group in dev]
    write_text(settings.out, rows_text(train_rows))
    write_text(settings.dev_file, rows_text(dev_rows))
    return (
        f"{settings.out}: {counted(len(train_rows), 'row')}; {settings.dev_file}:"
        f" {counted(len(dev_rows), 'row')}"
    )


def _check_settings(settings: FeedbackExportSettings) -> None:
    """Raise `UserError` if a setting would have no effect."""
    if settings.dev_file == settings.out:
        raise UserError("dev_file=... and out=... are the same file: name two")
    if settings.dev_file is None and "dev_share" in settings.model_fields_set:
        raise UserError("dev_share=... needs the file of these rows: give dev_file=... too")
    if settings.weights is None and settings.least_weight is not None:
        raise UserError(
            "least_weight=... needs the weights: name the file of `fgrlhf feedback reliability`"
            " with weights=..."
        )
    if (settings.policy == "adjudicated") != (settings.adjudicated is not None):
        raise UserError(
            "policy=adjudicated and adjudicated=... belong together: adjudicated=... names the"
            " database in which the items of `fgrlhf feedback adjudicate` were decided"
        )
    if settings.stale != "refuse" and settings.adjudicated is None:
        raise UserError(
            f"stale={settings.stale} has no effect without decisions: set policy=adjudicated and"
            " adjudicated=..., or leave it out"
        )
    counts_votes = settings.policy in VOTES
    if settings.weights is not None and settings.least_weight is None and not counts_votes:
        raise UserError(
            f"weights=... has no effect with policy={settings.policy}, which counts no votes: set"
            " policy=majority, or leave judgements out with least_weight=..."
        )


def _check_feedback(task: FeedbackTask, items: Sequence[Item], db: str) -> None:
    """Raise `UserError` with the first problems of the items' feedback.

    The server has checked it, so only a later change of the schema explains them.
    """
    problems = []
    for item in items:
        for field, reason in task.format.feedback_problems(task.schema, item.row):
            problems.append(f"item {item.id}, {field}: {reason}")
    if problems:
        head = f"{db} has feedback that does not fit schema.js, which has changed since:"
        lines = "\n  ".join([head, *first_problems(problems)])
        raise UserError(
            f"{lines}\nRestore the schema, or let the annotators submit these items again; nothing"
            " was written."
        )


def _no_rows_text(
    schema: Schema,
    settings: FeedbackExportSettings,
    items: Sequence[Item],
    submissions: Sequence[Submission],
    not_counted: str,
) -> str:
    """Why no row can be exported, and which pages would give some."""
    needed = needed_pages(schema, settings.pages)
    text = (
        f"{settings.db} has no row to export: {_without_text(needed, len(items))}{not_counted}."
        " Nothing was written"
    )
    for page in schema.pages:
        rows, _ = judged_items(schema, items, submissions, settings.policy, [page])
        if rows:
            text += f". pages={page} would export {counted(len(rows), 'row')}"
    return text


def _without_text(pages: Sequence[PageName], count: int) -> str:
    verb = "lacks" if count == 1 else "lack"
    return f"{counted(count, 'item')} {verb} {' or '.join(WITH_ARTICLES[page] for page in pages)}"


def _left_out_text(pages: Sequence[PageName], left_out: int) -> str:
    if not left_out:
        return ""
    asked = " or ".join(WITH_ARTICLES[page] for page in pages)
    return f"; left out {counted(left_out, 'item')} without {asked}"


def _dropped_text(
    policy: Policy,
    pages: Sequence[PageName],
    judged: Sequence[Item],
    submissions: Sequence[Submission],
) -> str:
    """What a policy that keeps one judgement drops of the exported items; "" if nothing."""
    exported = {item.id for item in judged}
    given = set()
    for one in submissions:
        if one.page in pages and one.item in exported:
            given.add((one.item, one.page, one.annotator))
    if len(given) == len({(item, page) for item, page, _ in given}):
        return ""
    items = counted(len({item for item, _, _ in given}), "item")
    annotators = counted(len({name for _, _, name in given}), "annotator")
    which = "last" if policy == "latest" else "first"
    return (
        f"; {counted(len(given), 'judgement')} of {items} by {annotators}: policy={policy} kept the"
        f" {which} of each, policy=majority counts all"
    )


def _one_annotation_text(policy: Policy, judged: Sequence[Item]) -> str:
    """In how many items annotations differ, of which a vote keeps one whole."""
    votes = [item.row.get(DECIDED, {}).get("annotation") == "majority" for item in judged]
    if not any(votes):
        return ""
    return (
        f"; in {counted(sum(votes), 'item')}, annotations differ: policy={policy} kept the one that"
        " agrees best with the others, policy=all writes each of them"
    )


def _annotators_text(
    pages: Sequence[PageName],
    judged: Sequence[Item],
    submissions: Sequence[Submission],
    policy: Policy,
) -> str:
    """How many annotators have judged the rows: `annotators of a row: 1 (3 rows), 2 (9 rows)`."""
    names: dict[str, set[str]] = {}
    for one in submissions:
        if one.page in pages:
            names.setdefault(one.item, set()).add(one.annotator)
    numbers = Counter(len(names.get(item.id, ())) for item in judged)
    found = ", ".join(f"{number} ({counted(numbers[number], 'row')})" for number in sorted(numbers))
    note = "; each row is one annotator's" if policy == "all" else ""
    return f"annotators of a row: {found}{note}"


def _incomplete_text(
    pages: Sequence[PageName], judged: Sequence[Item], submissions: Sequence[Submission]
) -> str:
    """How many rows policy=all leaves out of exported items, since they lack a judgement."""
    given = {(one.item, one.annotator) for one in submissions if one.page in pages}
    annotators = Counter(item for item, _ in given)
    rows = Counter(item.id for item in judged)
    lacking = sum(max(annotators[item] - count, 0) for item, count in rows.items())
    if not lacking:
        return ""
    asked = " or ".join(WITH_ARTICLES[page] for page in pages)
    return f"; left out {counted(lacking, 'row')} of annotators without {asked} of the item"


def _circles_text(count: int) -> str:
    if not count:
        return ""
    return (
        f"; in {counted(count, 'item')}, the majority went in a circle: its weakest pairs became"
        " ties"
    )


def _decided_text(decisions: Decisions) -> str:
    """How many items were decided, and on which pages: `2 adjudicated items (2 comparisons)`."""
    items = {item for item, _ in decisions}
    counts = Counter(page for _, page in decisions)
    pages = ", ".join(counted(counts[page], page) for page in sorted(counts))
    return counted(len(items), "adjudicated item") + (f" ({pages})" if pages else "")


def _skipped_text(skips: Sequence[Skip]) -> str:
    if not skips:
        return ""
    skipped = counted(len({skip.item for skip in skips}), "item")
    return f"; {skipped} skipped by {counted(len({skip.annotator for skip in skips}), 'annotator')}"

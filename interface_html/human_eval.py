"""Turn what came back from a blind human evaluation into tables.

    fgrlhf human-eval NAME key=items.key.json files=anna.json,ben.json out=human_eval.json
    fgrlhf human-eval NAME key=items.key.json db=feedback.sqlite out=human_eval.json
    fgrlhf human-eval power d=0.1

Prints the share of segments with an error by kind, win, tie and lose of each pair of policies,
mean ratings, and the agreement of the annotators, with intervals over prompts. `power` tells how
many items and annotators a difference needs (power.py).
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import write_json
from fgrlhf.base.program import as_settings, run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath
from fgrlhf.data.agreement.report import figure_lines, figure_values
from fgrlhf.stats import Figure
from interface_html import agreement_figures
from interface_html.annotator_pairs import judged_counts
from interface_html.blind import Key, content_digest, read_key
from interface_html.human_figures import BlindItem, Table, tables
from interface_html.judged_items import JudgedItem, judged_in_database, judged_in_files
from interface_html.outputs import OutputSettings
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

USAGE = """usage: fgrlhf human-eval TASK key=items.key.json files=a.json,b.json [key=value ...]
   or: fgrlhf human-eval power d=0.1 [key=value ...]"""


class HumanEvalSettings(OutputSettings):
    """The key of the blind items, and the judgements on them."""

    task: str = Field(description=TASK_HELP)
    key: FilePath = Field(description="the file <out>.key.json of feedback items blind=true")
    db: FilePath | None = Field(default=None, description="the server's database")
    files: str = Field(
        default="",
        description="instead of db: feedback files, one per annotator, separated by commas",
    )
    records: str = Field(
        default="", description="the record.json of each file: orders shown and active times"
    )
    level: Literal["subsentence", "sentence"] = Field(
        default="subsentence", description="of the segments that have errors or not"
    )
    out: FilePath | None = Field(default=None, description="a JSON file to write the tables to")


def unblinded(task: FeedbackTask, key: Key, judged: Sequence[JudgedItem]) -> list[BlindItem]:
    """The judged items with their policies.

    Items are found by their texts. Equal items, such as one text by two policies, are taken in the
    order of the key.

    Raises:
      UserError: a judged item is not in the key.
    """
    waiting: dict[str, list[str]] = {}
    for name, entry in key.items.items():
        waiting.setdefault(entry.content, []).append(name)
    found = []
    unknown = []
    for one in judged:
        names = waiting.get(content_digest(task, one.item), [])
        if not names:
            unknown.append(one.item.id)
            continue
        entry = key.items[names.pop(0)]
        found.append(BlindItem(one, entry.prompt, entry.cluster, entry.policies))
    if unknown:
        raise UserError(
            f"{counted(len(unknown), 'judged item')} of {len(judged)} are not in the key, such as"
            f" {unknown[0]}: give the key that was written with the items of this study"
        )
    return found


def evaluate(settings: HumanEvalSettings) -> dict[str, Any]:
    """Print the tables, write them to `out` if it is set, and return what it has.

    Raises:
      UserError: a file cannot be read, or neither or both of db and files are set.
    """
    paths = [path for path in settings.files.split(",") if path]
    records = [path for path in settings.records.split(",") if path]
    if bool(settings.db) == bool(paths):
        raise UserError(
            "set either a database (db=...) or feedback files (files=anna.json,ben.json)"
        )
    task = feedback_of(settings.task)
    key = read_key(settings.key)
    if key.task != task.schema.task:
        raise UserError(f"{settings.key} is of the task {key.task}, not of {task.schema.task}")
    if settings.db:
        judged = judged_in_database(task, settings.db)
    else:
        judged = judged_in_files(task, paths, records)
    items = unblinded(task, key, judged)
    found = tables(task.schema, items, settings.level)
    if not found:
        raise UserError("no item has a judgement yet: collect some, then run this again")
    agreement = agreement_figures.report(task, judged)
    by_annotator = judged_counts(judged)
    lines = [f"{counted(len(items), 'item')} by {counted(len(by_annotator), 'annotator')}"]
    for table in found:
        lines += ["", *table_lines(table)]
    lines += ["", "Agreement of the annotators", *figure_lines(agreement)]
    print("\n".join(lines))
    prompts = {item.prompt for item in items}
    content = {
        "task": key.task,
        "policies": key.policies,
        "annotators": by_annotator,
        "items": len(items),
        "prompts": len(prompts),
        "clusters": len({item.cluster for item in items}),
        "tables": [_table_json(table) for table in found],
        "agreement": figure_values(agreement),
    }
    if settings.out:
        write_json(settings.out, content)
        print(f"\n{settings.out}: the tables as JSON")
    return content


def table_lines(table: Table) -> list[str]:
    """A table as text: a line for each row and column, since figures have intervals."""
    width = max(len(name) for name in table.columns)
    lines = [table.title]
    for name, figures in table.rows.items():
        lines.append(f"  {name}")
        lines += [
            f"    {column:<{width}}  {figure}"
            for column, figure in zip(table.columns, figures, strict=True)
        ]
    return lines


def _table_json(table: Table) -> dict[str, Any]:
    rows: dict[str, Mapping[str, Any]] = {}
    for name, figures in table.rows.items():
        by_column: dict[str, Figure] = dict(zip(table.columns, figures, strict=True))
        rows[name] = figure_values(by_column)
    return {"title": table.title, "columns": table.columns, "rows": rows}


def main(argv: Sequence[str] | None = None) -> None:
    """The program `fgrlhf human-eval`."""
    arguments = as_settings(list(sys.argv[1:] if argv is None else argv))
    if not arguments:
        print(f"{USAGE}\n`fgrlhf human-eval --help` and `... power --help` list the keys.")
        sys.exit(2)
    if arguments[0] == "power":
        from interface_html.power import main as power

        power(arguments[1:])
        return
    if "=" not in arguments[0] and not arguments[0].startswith("-"):
        arguments[0] = f"task={arguments[0]}"
    evaluate(settings_from(HumanEvalSettings, arguments, USAGE))


if __name__ == "__main__":
    run_main(main)

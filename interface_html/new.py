"""Write a task whose pages mark your own kinds of error.

    fgrlhf feedback new NAME kinds=Fact,Grammar severities=minor,major

The task is in tasks/NAME, if the working directory has tasks, else in NAME: `task.py`, with which
reward models are trained on its feedback, and interface_html with the schema and the pages. What
the pages say is in schema.js; after a change of it, `fgrlhf feedback task_pages NAME` writes the
pages again.
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_text
from fgrlhf.cli.new_task import check_name
from fgrlhf.configs.strict import StrictModel
from interface_html.row_format import RowFormat
from interface_html.schema import (
    ASSIGNMENT,
    MOST_OUTPUTS,
    PAGE_KEYS,
    load_schema,
    with_severity_defaults,
)
from interface_html.task_pages import task_pages
from interface_html.tasks import FeedbackTask

# of kinds, in order: readable on white, and different for colour-blind people
COLORS = (
    *("#E7040F", "#5E2CA5", "#137752", "#AA6C39", "#00449E"),
    *("#8A1A60", "#5C6600", "#00686E", "#555555"),
)
SMALL_MODEL = "smollm2"  # of `fgrlhf data model`, until the user names another one
TASK_FILE = '''"""Feedback on {title}: what the pages in interface_html collect."""

from fgrlhf.task import Task

TASK = Task(name="{name}")
'''


class NewPagesSettings(StrictModel):
    """The task and what its annotators mark."""

    task: str = Field(description="name of the new task, such as errors_of_style")
    kinds: str = Field(description="kinds of error, separated by commas: Fact,Grammar")
    severities: str = Field(
        default="", description="of an error, from the mildest: minor,major; empty: not asked"
    )
    responses: int = Field(
        default=1,
        ge=1,
        le=MOST_OUTPUTS,
        description="to a prompt; errors are marked in the first, two or more are compared",
    )


def schema_of(settings: NewPagesSettings) -> dict[str, Any]:
    """The tree of schema.js."""
    title = settings.task.replace("_", " ").capitalize()
    severities = with_severity_defaults(_listed(settings.severities))
    letters = {severity.get("key") for severity in severities}
    outputs = ["response"]
    if settings.responses > 1:
        outputs = [f"response {number}" for number in range(1, settings.responses + 1)]
    first = "the response" if len(outputs) == 1 else "the first response"
    guideline = f"Mark every span of {first} that has one of these kinds of error"
    tree = {
        "task": settings.task,
        "title": title,
        "guideline_version": "1",
        "guideline": [
            f"{guideline}, and choose how serious it is." if severities else f"{guideline}."
        ],
        "unit": "word",
        "fields": {
            "title": "prompt",
            "context": None,
            "reference": None,
            "outputs": outputs,
            "noun": "response",
        },
        "row": ["prompt", *outputs],
        "errors": _errors(_listed(settings.kinds), letters),
        "missing": [],
        "correction": False,
        "comparison": "Which response is better?" if len(outputs) > 1 else None,
    }
    if severities:
        tree |= {"severities": severities, "severity_required": True}
    return tree


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.strip("[]").split(",") if name.strip()]


def _errors(names: Sequence[str], used: set[Any]) -> list[dict[str, Any]]:
    """The kinds of error. Their letters are the first ones of their names that are free."""
    if not 1 <= len(names) <= len(COLORS):
        raise UserError(
            f"kinds: {len(names)} are named, and the keys 1 to {len(COLORS)} choose between them:"
            f" name 1 to {len(COLORS)}"
        )
    taken = {*used, *PAGE_KEYS}
    errors = []
    for number, (name, color) in enumerate(zip(names, COLORS), 1):
        letter = next(one for one in [*name.upper(), *ascii_uppercase] if _is_free(one, taken))
        taken.add(letter)
        errors.append(
            {
                "name": name,
                "label": name,
                "letter": letter,
                "key": str(number),
                "color": color,
                "needs": "nothing",
                "help": "say here when this kind applies",
            }
        )
    return errors


def _is_free(letter: str, taken: set[Any]) -> bool:
    return letter in ascii_uppercase and letter not in taken


def write_task(settings: NewPagesSettings) -> Path:
    """Write the folder of the task, or the pages into one that has none.

    Raises:
      UserError: the name is not allowed or taken, or a kind or a severity cannot be used.
    """
    name = settings.task
    check_name(name)
    place = Path("tasks") if Path("tasks/__init__.py").is_file() else Path()
    folder = place / name
    if (folder / "interface_html").exists() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder} has pages already: choose another name, or remove them")
    with tempfile.TemporaryDirectory(dir=place, prefix=".new-") as temporary:
        draft = Path(temporary) / name
        pages = draft / "interface_html"
        pages.mkdir(parents=True)
        text = json.dumps(schema_of(settings), indent=2, ensure_ascii=False)
        head = "// What the pages say; interface_html/README.md explains every key."
        (pages / "schema.js").write_text(f"{head}\n{ASSIGNMENT} {text};\n", encoding="utf-8")
        (draft / "__init__.py").touch()
        title = name.replace("_", " ")
        (draft / "task.py").write_text(TASK_FILE.format(name=name, title=title), encoding="utf-8")
        schema = load_schema(pages / "schema.js")
        folder.mkdir(exist_ok=True)
        for path in draft.iterdir():
            if not (folder / path.name).exists():
                shutil.move(path, folder / path.name)
    task = FeedbackTask(schema, RowFormat(), folder.absolute() / "interface_html")
    for path, page in task_pages(task).items():
        write_text(path, page)
    return folder


def write_pages(settings: NewPagesSettings) -> None:
    """Write the task and its pages, and print what to do with them."""
    folder = write_task(settings)
    kinds, severities = _listed(settings.kinds), _listed(settings.severities)
    tag = f"{kinds[0]}.{severities[-1]}" if severities else kinds[0]
    name = settings.task
    schema = folder / "interface_html/schema.js"
    span_files = []
    for part in ("train", "dev"):
        files = f"source={part}.json output=rm/{part}.json"
        span_files.append(f'rm span_files {name} {files} level=sentence tags="{{{tag}: ERROR}}"')
    lines = [
        f"feedback items {name} source=samples.jsonl out=items.json",
        f"feedback serve {name} items=items.json db={name}.sqlite annotators=anna,ben per_item=2",
        f"feedback agreement {name} db={name}.sqlite",
        f"feedback export {name} db={name}.sqlite out=train.json dev_file=dev.json policy=majority",
        *span_files,
        f"data model {SMALL_MODEL}",
        f"new-run rm.yml stage=segment model=outputs/models/{SMALL_MODEL} train_file=rm/train.json"
        " dev_file=rm/dev.json",
        f"rm segment {name} rm.yml",
    ]
    commands = "\n".join(f"    fgrlhf {line}" for line in lines)
    print(
        f"{folder} is written. {schema} has what the pages say; after a change, run"
        f" `fgrlhf feedback task_pages {name}`. From responses to a reward model:\n{commands}"
    )

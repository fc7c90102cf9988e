"""Writes report.html: the results of a pipeline in one self-contained file.

    fgrlhf report OUTPUT_DIR [report.html] [task=NAME] [prompts=5] [steps=0,40|all]

The task defines names, order and colours. Without the argument, the report uses the task recorded
in the outputs, or else the folders' names. `prompts` is the number of prompts whose responses are
shown, `steps` those logged steps whose token rewards are, the first and the last by default. The
template escapes every string, and the page's content policy allows no scripts and no
network.
"""

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.base.files import write_text
from fgrlhf.base.program import run_main
from fgrlhf.load import load_task
from fgrlhf.report import samples
from fgrlhf.report.curves import drift, learning_curves, supervised_curves
from fgrlhf.report.data import ALL, Outputs, Steps, read_outputs, recorded_task
from fgrlhf.report.display import SYMBOLS, Display
from fgrlhf.report.downloads import downloads
from fgrlhf.report.feedback import feedback_views
from fgrlhf.report.records import Gain
from fgrlhf.report.sections import (
    Naming,
    definitions,
    gains,
    model_cards,
    results,
    stages,
    tiles,
)
from fgrlhf.report.spread import ONE_RUN
from fgrlhf.report.text import short_commit, signed

HERE = Path(__file__).parent
USAGE = "usage: fgrlhf report OUTPUT_DIR [report.html] [task=NAME] [prompts=5] [steps=0,40|all]"
PROMPTS_SHOWN = 5


def write_report(
    output_dir: str | Path,
    html_path: str | Path,
    display: Display | None = None,
    prompts_shown: int = PROMPTS_SHOWN,
    task: str | None = None,
    steps: Steps = None,
) -> None:
    """Write the report of an outputs folder, or of a single RL run's folder.

    The file is written atomically. A section whose source files do not exist only names them.

    Args:
      display: names, order and colours; None: the defaults.
      prompts_shown: prompts whose responses are shown, the first ones of the evaluation.
      task: named in the title; None: the task recorded in the outputs.
      steps: whose token rewards are shown, or "all"; None: the first and the last logged one.

    Raises:
      UserError: the folder is missing, has nothing to report, or has a broken file.
    """
    display = display or Display()
    outputs = read_outputs(output_dir, display, steps)
    naming = Naming(outputs, display)
    compared = gains(outputs, display)
    headlines = tiles(outputs, compared, naming)
    page = page_template(HERE, "report.html.j2").render(
        title=_title(outputs, task or recorded_task(outputs.folder)),
        style=stylesheet(),
        label=display.name,
        signed=signed,
        colour=naming.colours.__getitem__,
        symbols=SYMBOLS,
        tiles=headlines,
        one_run=ONE_RUN,
        headline_definitions=definitions(dict.fromkeys(tile.metric for tile in headlines), display),
        downloads=downloads(outputs, compared),
        run_facts=_run_facts(outputs, display),
        note=outputs.note,
        missing=outputs.missing,
        parts=_parts(outputs, compared, naming, prompts_shown),
    )
    write_text(html_path, page)


def _parts(
    outputs: Outputs,
    compared: Mapping[str, Mapping[str, Gain]],
    naming: Naming,
    prompts_shown: int,
) -> dict[str, Any]:
    """What the sections of the page show, by their ids in report.html.j2.

    Sections without content are left out: the page does not show them, or names their missing
    source files.
    """
    display = naming.display
    parts: dict[str, Any] = {
        "curves": learning_curves(outputs, naming),
        "drift": drift(outputs, naming),
        "models": model_cards(outputs, display),
        "supervised": supervised_curves(outputs, display),
        "feedback": feedback_views(outputs.feedback),
        "rollouts": _rollouts(outputs, display),
    }
    if outputs.policies:
        parts["results"] = results(outputs, compared, naming)
    if outputs.evaluations:
        parts["responses"] = samples.responses(outputs, display, prompts_shown)
    if outputs.stages:
        parts["stages"] = stages(outputs)
    return {name: part for name, part in parts.items() if part}


def _title(outputs: Outputs, task: str | None) -> str:
    """`fgrlhf · <task> · <folder>`, without the task if it is not known, and no name twice."""
    words = ["fgrlhf"]
    if task:
        words.append(short_name(task))
    folder = outputs.folder.resolve().name
    if folder not in words:
        words.append(folder)
    return " · ".join(word for word in words if word)


def short_name(task: str) -> str:
    """`tasks.numbers` -> `numbers`."""
    return task.rpartition(".")[2]


@functools.cache
def page_template(folder: Path, name: str) -> Template:
    """A page's template, compiled once. It escapes every string; undefined names are errors."""
    environment = Environment(
        loader=FileSystemLoader([folder, HERE]),  # parts.html.j2 is in the latter
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def stylesheet() -> Markup:
    return Markup((HERE / "report.css").read_text(encoding="utf-8"))


def _rollouts(outputs: Outputs, display: Display) -> dict[str, samples.RunView]:
    runs = [run for run in outputs.runs if run.samples]
    return {run.name: samples.rollouts(run, display) for run in runs}


def _run_facts(outputs: Outputs, display: Display) -> dict:
    """Scale, data, pretrained weights, seed, commit, versions, and the command of every run."""
    summary = outputs.summary
    facts = {"scale": summary.scale, "data": summary.data}
    facts["pretrained model"] = "; ".join(outputs.pretrained)
    if outputs.runs:
        info = outputs.runs[-1].info
        versions = summary.versions or info.versions
        facts["seed"] = info.seed if summary.seed is None else summary.seed
        facts["commit"] = short_commit(info.git_commit)
    else:
        versions = summary.versions or {}
        facts["seed"] = summary.seed
    facts["packages"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    for run in outputs.runs:
        facts[display.name(run.name)] = run.info.command
    return facts


def display_for(output_dir: str | Path, task: str | None) -> Display:
    """The display of the given task, else of the task recorded in the outputs.

    If no task is recorded, or the recorded one cannot be loaded, names are those of the folders.

    Raises:
      UserError: the given task cannot be loaded.
    """
    name = task or recorded_task(output_dir)
    if name is None:
        return Display()

    try:
        return load_task(name).display
    except UserError as error:
        if task is not None:
            raise
        print(f"note: the report uses the folders' names: {error}", file=sys.stderr)
        return Display()


def _number_of_prompts(argument: str) -> int:
    """The number in `prompts=20`. Raises `UserError` if it is not a positive integer."""
    number = argument.removeprefix("prompts=")
    if not re.fullmatch(r"[0-9]{1,9}", number) or int(number) == 0:
        raise UserError(f"{shorten(argument)}: give the number of prompts, e.g. prompts=20")
    return int(number)


def _steps(argument: str) -> Steps:
    """The steps of `steps=0,40`, or "all". Raises `UserError` for anything else."""
    given = argument.removeprefix("steps=")
    if given == ALL:
        return ALL
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", given):
        raise UserError(f"{shorten(argument)}: give logged steps, e.g. steps=0,40, or steps=all")
    return {int(number) for number in given.split(",")}


def folder_and_page(paths: Sequence[str], default: str, usage: str) -> tuple[Path, Path]:
    """The outputs folder and the page to write, of the paths on a command line.

    Raises:
      UserError: there is no path, or more than two, or the page would replace a file that is none.
    """
    if not 1 <= len(paths) <= 2:
        raise UserError(usage)
    folder = Path(paths[0])
    page = Path(paths[1]) if len(paths) == 2 else folder / default
    if page.is_dir() or (page.is_file() and not _is_page(page)):
        raise UserError(
            f"{shorten(page)} exists and is no page, so it is not replaced: name another file\n"
            f"{usage}"
        )
    return folder, page


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(1000).lstrip().lower()
    return not start or start.startswith(b"<!doctype html")


def check_path(word: str, usage: str, keys: Sequence[str]) -> None:
    """Raise `UserError` if an argument is an unknown key or option instead of a path."""
    if word.startswith("-"):
        raise UserError(f"`{shorten(word)}` is not an option\n{usage}")
    key, equals, _ = word.partition("=")
    # folders of a sweep's runs are named after their values: `outputs/sweep/lr=1e-5`
    if equals and "/" not in key and not Path(word).exists():
        raise UserError(
            f"`{shorten(key)}` is not a key; {suggestion(key, keys)}. Write"
            f" ./{shorten(word)} if it is the name of the page\n{usage}"
        )


def main(argv: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(words):
        print(USAGE)
        return
    paths = []
    task = None
    prompts_shown = PROMPTS_SHOWN
    steps: Steps = None
    for argument in words:
        if argument.startswith("task="):
            task = argument.removeprefix("task=")
        elif argument.startswith("prompts="):
            prompts_shown = _number_of_prompts(argument)
        elif argument.startswith("steps="):
            steps = _steps(argument)
        else:
            check_path(argument, USAGE, ("task", "prompts", "steps"))
            paths.append(argument)
    folder, target = folder_and_page(paths, "report.html", USAGE)
    write_report(folder, target, display_for(folder, task), prompts_shown, task, steps)
    print(f"report: {target}")


if __name__ == "__main__":
    run_main(main)

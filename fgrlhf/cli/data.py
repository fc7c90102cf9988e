"""Show, check, explore and convert rows of training data, and fetch a small pretrained model.

    fgrlhf data show FILE                            print keys, first rows and matching formats
    fgrlhf data check FILE format=comparisons        check every row and print statistics
    fgrlhf data convert IN OUT format=comparisons    write rows with the format's own keys
    fgrlhf data convert IN OUT format=comparisons to=pairs    write {prompt, chosen, rejected}
    fgrlhf data convert IN OUT format=steps to=trl   write {prompt, completions, labels}
    fgrlhf data convert IN OUT format=spans to=judgements    write spans as judgements
    fgrlhf data explore FILE                         a page about comparisons, marks and scores
    fgrlhf data filter IN OUT drop=[blank]           write comparisons without some of the pairs
    fgrlhf data import IN OUT from=mqm               read a published format as judgements
    fgrlhf data export IN OUT to=label_studio        write judgements for another tool
    fgrlhf data agreement FILE [FILE ...]            agreement of the annotators of judgements
    fgrlhf data model smollm2                        fetch a language model of 135 M parameters
    fgrlhf data model OWNER/NAME                     convert its pickled weights to safetensors
    fgrlhf data model ADAPTER output_dir=FOLDER      merge an adapter of peft with its model
    fgrlhf data convert-config FILE.yml              write a config from one of RL4LMs

FILE and IN are .json, .jsonl or .parquet files or hub:org/name; OUT is such a file
(fgrlhf/data/read.py). The formats are those of fgrlhf/data/formats.py. The models are those of
fgrlhf/data/model.py.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.cli.data_agreement import AgreementSettings, agreement
from fgrlhf.cli.data_comparisons import (
    ExploreSettings,
    FilterSettings,
    explore_feedback,
    filter_comparisons,
)
from fgrlhf.cli.data_convert import ConvertSettings, convert
from fgrlhf.cli.data_convert_config import ConvertConfigSettings, convert_config
from fgrlhf.cli.data_exchange import ExportSettings, ImportSettings, export_file, import_file
from fgrlhf.cli.data_inspect import FormatSettings, ShowSettings, check, show
from fgrlhf.cli.data_model import ModelSettings, fetch
from fgrlhf.configs.strict import StrictModel


@dataclass(frozen=True)
class Action:
    """An action of the command.

    Args:
      run: the function that does it. It takes the arguments, each a text, and the settings.
      settings: the class of its settings.
      arguments: the names of its arguments.
      usages: its settings in the usage, a line each.
      takes_more_files: whether more files may follow the last argument.
    """

    run: Callable[..., None]
    settings: type[StrictModel]
    arguments: tuple[str, ...]
    usages: tuple[str, ...]
    takes_more_files: bool = False


ACTIONS = {
    "show": Action(show, ShowSettings, ("FILE",), ("[rows=3]",)),
    "check": Action(
        check, FormatSettings, ("FILE",), ("format=... [columns.KEY=...] [limit=...]",)
    ),
    "convert": Action(
        convert,
        ConvertSettings,
        ("IN", "OUT"),
        (
            "format=... [columns.KEY=...] [limit=...] [to=...]",
            "format=comparisons task=... [source=... prompts=...] [to=...]",
        ),
    ),
    "explore": Action(
        explore_feedback,
        ExploreSettings,
        ("FILE",),
        ("[out=explore.html] [columns.KEY=...] [limit=...]",),
    ),
    "filter": Action(
        filter_comparisons,
        FilterSettings,
        ("IN", "OUT"),
        ("drop=[...] [columns.KEY=...] [limit=...]",),
    ),
    "import": Action(import_file, ImportSettings, ("IN", "OUT"), ("from=... [KEY=...]",)),
    "export": Action(
        export_file,
        ExportSettings,
        ("IN", "OUT"),
        ("to=... [annotators=...] [dev=FILE] [limit=...] [KEY=...]",),
    ),
    "agreement": Action(
        agreement,
        AgreementSettings,
        ("FILE",),
        ("[severities=[...]] [orders={...}] [out=...]",),
        takes_more_files=True,
    ),
    "model": Action(fetch, ModelSettings, ("NAME",), ("[output_dir=...]",)),
    "convert-config": Action(
        convert_config,
        ConvertConfigSettings,
        ("FILE.yml",),
        ("[out=...] [train_file=...] [reward=...]",),
    ),
}


def usage(names: Iterable[str] = ACTIONS) -> str:
    """How to call these actions, a line each: `usage: fgrlhf data show FILE [rows=3]`."""
    lines = []
    for name in names:
        action = ACTIONS[name]
        arguments = " ".join(action.arguments)
        if action.takes_more_files:
            arguments += f" [{action.arguments[-1]} ...]"
        lines += [f"fgrlhf data {name} {arguments} {settings}" for settings in action.usages]
    return "usage: " + "\n       ".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: an action, its files, and key=value settings, which may stand anywhere."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(f"{usage()}\n`fgrlhf data ACTION --help` lists the keys of an action")
        sys.exit(0 if words else 2)
    name, *rest = words
    if name not in ACTIONS:
        raise UserError(
            f"`{shorten(name)}` is not an action of fgrlhf data; {suggestion(name, [*ACTIONS])}"
        )
    action = ACTIONS[name]
    if "-h" in rest or "--help" in rest:
        settings_from(action.settings, ["--help"], usage([name]))
    files = [word for word in rest if not _is_setting(word)]
    count = len(action.arguments)
    if len(files) < count or (len(files) > count and not action.takes_more_files):
        raise UserError(
            f"fgrlhf data {name} needs {' and '.join(action.arguments)}, and got"
            f" {' '.join(map(shorten, files)) or 'none'}\n{usage([name])}"
        )
    settings = settings_from(action.settings, [word for word in rest if _is_setting(word)])
    action.run(*files, settings=settings)


def _is_setting(word: str) -> bool:
    """Whether a word is `key=value`. The name of a file may contain `=`."""
    return "=" in word and not Path(word).exists()


if __name__ == "__main__":
    run_main(main)

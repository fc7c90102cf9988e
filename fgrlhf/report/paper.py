"""A folder for a paper: the results of an outputs folder as tables and pictures, to be traced.

    fgrlhf paper OUTPUT_DIR [out=OUTPUT_DIR/paper]

Nothing is computed here but the intervals over seeds in pictures of learning curves. Every number
is read from a file that a program wrote, and is written with the file and the place in it:

    tables.tex     all tables, for \\input; paper.tex shows them as a document of its own
    tables/*.csv   the same tables
    numbers.csv    every number: table, row, column, its file, its place (a JSON pointer, RFC 6901)
                   and the run that wrote the file
    pictures/*.svg learning curves, the main metrics of the policies, Pareto fronts (pictures.py)
    pictures.csv   every picture: its title, its files, and the runs that wrote these
    runs.csv       every run: seed, commit, command, versions, settings
    datasheet.md   who gave the feedback, how much, and how well they agree; what no file records,
                   such as the pay, is left blank

It reads eval/*/summary.json, winrate/*/winrate.json and the summary.json of a comparison, and, from
any folder in OUTPUT_DIR, reward_model.json, human_eval*.json, agreement*.json and pareto.json.
"""

import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import Field

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import read_json, write_text
from fgrlhf.base.program import as_settings, run_main
from fgrlhf.base.records import Record
from fgrlhf.base.secrets import mask_secrets
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.report.evaluations import policy_of, split_of
from fgrlhf.report.latex import breakable, document, escaped, table
from fgrlhf.report.page import display_for
from fgrlhf.report.pictures import (
    Picture,
    bars,
    learning_curves,
    pareto_fronts,
    recorded_interval,
    standalone,
)
from fgrlhf.report.records import RunInfo, read_record
from fgrlhf.report.text import csv_text, short_commit
from fgrlhf.stats import Interval

USAGE = "usage: fgrlhf paper OUTPUT_DIR [out=FOLDER]"
RUN = "run.json"
BLANK = "____"
METRICS = "metrics-"  # of a split: the name of a table
WIN_COLUMNS = (
    *("win", "tie", "lose", "win_rate", "length_controlled_win_rate"),
    *("first_preferred", "same_in_both_orders", "agreement"),
)
NUMBER_KEYS = (
    *("table", "row", "column", "value", "low", "high", "p_corrected"),
    *("file", "place", "run"),
)
BLANKS = (
    "How annotators were recruited",
    "Pay per hour or item, and the time that an item takes",
    "What annotators were told, and how they were trained",
    "Consent and ethics review",
    "Languages and background of the annotators",
    "When the feedback was collected",
)


class PaperSettings(StrictModel):
    """The folder of the results, and that of the tables."""

    output_dir: FilePath = Field(description="folder of the results")
    out: FilePath | None = Field(
        default=None, description="folder to write; null: `paper` in output_dir"
    )


class _HumanTable(Record):
    title: str
    rows: dict[str, dict[str, Any]]


class _HumanEvaluation(Record):
    """A file of `fgrlhf human-eval`."""

    task: str
    policies: dict[str, Any]
    annotators: dict[str, int]
    items: int
    prompts: int
    clusters: int
    tables: list[_HumanTable]
    agreement: dict[str, Any]


class _Agreement(Record, extra="allow"):
    """A file of `fgrlhf feedback agreement`."""

    counts: dict[str, int] = {}
    items_by_annotator: dict[str, int] = Field({}, alias="items by annotator")


class _SeedScore(Record):
    score: float


class _RunScores(Record):
    seeds: dict[str, _SeedScore]


class _Comparison(Record):
    """The summary.json of a comparison."""

    metric: str
    runs: dict[str, _RunScores]
    differences: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Number:
    """A number in a JSON file.

    Attributes:
      file: relative to the outputs folder.
      place: JSON pointer of the number, or of an object {mean, low, high}.
    """

    value: float
    low: float | None
    high: float | None
    file: str
    place: str
    p_corrected: float | None = None

    @property
    def interval(self) -> Interval:
        return recorded_interval(self.value, self.low, self.high)

    def latex(self) -> str:
        if self.low is None or self.high is None:
            return _signed(self.value)
        return rf"{_signed(self.value)} [{_signed(self.low)}, {_signed(self.high)}]"


@dataclass
class PaperTable:
    """A table: name of a row -> name of a column -> number."""

    name: str
    caption: str
    rows: dict[str, dict[str, Number]] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.rows.values() for column in row))


def _signed(value: float) -> str:
    """The number with three digits; a minus sign is one in LaTeX."""
    return f"{value:z.3f}".replace("-", "$-$")


# ---- numbers in files ----------------------------------------------------------------------------


def pointer(*keys: str) -> str:
    r"""The JSON pointer of a value (RFC 6901).

    >>> pointer("reward/moves", "mean")
    '/reward~1moves/mean'
    """
    return "".join(f"/{key.replace('~', '~0').replace('/', '~1')}" for key in keys)


def resolved(tree: Any, place: str) -> Any:
    """The value at a JSON pointer. Raises `KeyError` or `IndexError` if there is none."""
    for part in place.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    return tree


def number_at(value: Any, file: str, *keys: str) -> Number | None:
    """The number that a JSON value is; None if it is none, such as the reason of a missing one."""
    if isinstance(value, Mapping) and _is_number(value.get("mean")):
        bounds = [value.get(name) for name in ("low", "high")]
        low, high = bounds if all(map(_is_number, bounds)) else (None, None)
        p = value.get("p_corrected")
        p = p if _is_number(p) else None
        return Number(value["mean"], low, high, file, pointer(*keys), p)
    if _is_number(value):
        return Number(value, None, None, file, pointer(*keys))
    return None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(tree: Any, file: str, *keys: str) -> dict[str, Number]:
    """The numbers directly in an object."""
    found = {}
    for name, value in (tree if isinstance(tree, Mapping) else {}).items():
        number = number_at(value, file, *keys, name)
        if number is not None:
            found[name] = number
    return found


# ---- tables --------------------------------------------------------------------------------------


def tables_of(folder: Path, out: Path) -> list[PaperTable]:
    """The tables of an outputs folder. Raises `UserError` if a file is broken."""
    found = [
        *_evaluations(folder, out),
        *_comparison(folder),
        _win_rates(folder, out),
        _reward_models(folder, out),
        *_human_evaluations(folder, out),
    ]
    return [one for one in found if one.rows]


def _files(folder: Path, pattern: str, out: Path) -> Iterator[str]:
    """The files of a pattern, by their names in the folder. Those in `out` are left out."""
    for path in sorted(folder.glob(pattern)):
        if out not in path.parents and "checkpoints" not in path.relative_to(folder).parts:
            yield path.relative_to(folder).as_posix()


def _evaluations(folder: Path, out: Path) -> list[PaperTable]:
    """A table of each split: a row for each metric, a column for each policy."""
    by_split: dict[str, PaperTable] = {}
    for file in _files(folder, "eval/*/summary.json", out):
        evaluation = (folder / file).parent
        split = split_of(evaluation)
        name = evaluation.name.removesuffix(f"-{split}")
        caption = f"Metrics on {split or 'the prompts'}, with 95% intervals over prompts"
        of_split = by_split.setdefault(split, PaperTable(f"{METRICS}{split}", caption))
        for metric, number in _numbers(read_json(folder / file), file).items():
            of_split.rows.setdefault(metric, {})[name] = number
    return list(by_split.values())


def _comparison(folder: Path) -> list[PaperTable]:
    """The scores of the runs of a comparison by seed, and their differences."""
    path = folder / "summary.json"
    given = read_json(path) if path.is_file() else {}
    if not isinstance(given, Mapping) or not {"differences", "runs"} <= given.keys():
        return []  # that of another program
    content = read_record(path, _Comparison)
    metric = content.metric
    scores = PaperTable("scores", f"Score ({metric}) of each seed")
    for run, result in content.runs.items():
        for seed, values in result.seeds.items():
            place = pointer("runs", run, "seeds", seed, "score")
            number = Number(values.score, None, None, path.name, place)
            scores.rows.setdefault(run, {})[f"seed {seed}"] = number
    differences = PaperTable(
        "differences",
        f"Differences in {metric}, first minus second, with 95% intervals; p after Holm's"
        " correction is in numbers.csv",
    )
    for pair, number in _numbers(content.differences, path.name, "differences").items():
        differences.rows[pair.replace("_vs_", " - ")] = {metric: number}
    return [scores, differences]


def _win_rates(folder: Path, out: Path) -> PaperTable:
    caption = "Win rates by a judge; ties count 1/2"
    found = PaperTable("win-rates", caption)
    for file in _files(folder, "winrate/*/winrate.json", out):
        numbers = _numbers(read_json(folder / file), file)
        row = {name: numbers[name] for name in WIN_COLUMNS if name in numbers}
        if row:
            found.rows[Path(file).parent.name] = row
    return found


def _reward_models(folder: Path, out: Path) -> PaperTable:
    found = PaperTable("reward-models", "Reward models on their dev rows, with 95% intervals")
    for file in _files(folder, "**/reward_model.json", out):
        content = read_json(folder / file)
        metrics = content.get("metrics") if isinstance(content, Mapping) else None
        intervals = metrics.get("intervals") if isinstance(metrics, Mapping) else None
        row = _numbers(intervals, file, "metrics", "intervals")
        if row:
            found.rows[Path(file).parent.as_posix()] = row
    return found


def _human_evaluations(folder: Path, out: Path) -> list[PaperTable]:
    found = []
    for file in _files(folder, "**/human_eval*.json", out):
        content = read_record(folder / file, _HumanEvaluation)
        for place, one in enumerate(content.tables):
            name = f"{Path(file).stem.replace('_', '-')}-{place + 1}"
            of_file = PaperTable(name, f"{one.title} (human annotators)")
            for row, figures in one.rows.items():
                numbers = _numbers(figures, file, "tables", str(place), "rows", row)
                if numbers:
                    of_file.rows[row] = numbers
            found.append(of_file)
    return found


# ---- pictures ------------------------------------------------------------------------------------


def pictures_of(folder: Path, out: Path, tables: Sequence[PaperTable]) -> list[Picture]:
    """The pictures of an outputs folder. Raises `UserError` if a file is broken."""
    display = display_for(folder, None)
    found = list(learning_curves(folder, display))
    for one in tables:
        if one.name.startswith(METRICS):
            main = [name for name in one.rows if name in display.headline] or list(one.rows)[:1]
            for metric in main:
                numbers = one.rows[metric]
                scores = {display.name(name): n.interval for name, n in numbers.items()}
                title = f"{display.metric(metric)}: {one.caption}"
                files = [n.file for n in numbers.values()]
                name = f"{metric}-{one.name.removeprefix(METRICS)}"
                found.append(bars(name, title, scores, files))
    return [*found, *pareto_fronts(folder, list(_files(folder, "**/pareto.json", out)))]


def _write_pictures(
    out: Path, pictures: Sequence[Picture], runs: Sequence[Mapping[str, str]]
) -> None:
    shutil.rmtree(out / "pictures", ignore_errors=True)  # of pictures that are gone
    rows = [("picture", "title", "files", "runs")]
    for one in pictures:
        path = f"pictures/{_file_name(one.name)}.svg"
        write_text(out / path, standalone(one.svg))
        of_runs = dict.fromkeys(run_of(file, runs) for file in one.files)
        rows.append((path, one.title, " ".join(one.files), " ".join(filter(None, of_runs))))
    write_text(out / "pictures.csv", csv_text(rows))


# ---- runs and the data sheet ---------------------------------------------------------------------


def runs_of(folder: Path, out: Path) -> list[dict[str, str]]:
    """Where each result comes from: the rows of runs.csv."""
    rows = []
    for path in sorted(folder.rglob(RUN)):
        if out in path.parents:
            continue
        info = read_record(path, RunInfo)
        where = path.parent.relative_to(folder).as_posix()
        settings = path.with_name("config.yaml")
        rows.append(
            {
                "run": where,
                "task": info.task or "",
                "seed": "" if info.seed is None else str(info.seed),
                "commit": info.git_commit or "",
                "command": mask_secrets(info.command or ""),
                "policy": policy_of(path.parent) or "",
                "settings": settings.relative_to(folder).as_posix() if settings.exists() else "",
                "versions": " ".join(f"{name}={value}" for name, value in info.versions.items()),
            }
        )
    return rows


def run_of(file: str, runs: Sequence[Mapping[str, str]]) -> str:
    """The run that wrote a file: the nearest folder above it with a run.json; "" without one."""
    known = {run["run"] for run in runs}
    for parent in Path(file).parents:
        if parent.as_posix() in known:
            return parent.as_posix()
    return ""


def data_sheet(folder: Path, out: Path) -> str:
    """What the files say about the feedback, and blanks for the rest.

    Annotators are counted, not named. The topics follow Gebru et al. (2021), Datasheets for
    Datasets, Communications of the ACM 64 (12), 86-92.
    """
    lines = ["# Data sheet of the feedback", ""]
    for file in _files(folder, "**/human_eval*.json", out):
        content = read_record(folder / file, _HumanEvaluation)
        lines += [
            f"## Blind human evaluation: {_one_line(content.task)} ({file})",
            "",
            f"- {_annotators(content.annotators)}",
            f"- Items: {content.items}; prompts: {content.prompts}; clusters: {content.clusters}",
            f"- Policies: {_one_line(', '.join(content.policies))}",
            *_agreement_lines(content.agreement),
            "",
        ]
    for file in _files(folder, "**/agreement*.json", out):
        given = read_record(folder / file, _Agreement)
        lines += [f"## Feedback ({file})", "", f"- {_annotators(given.items_by_annotator)}"]
        lines += [f"- {_one_line(name)}: {count}" for name, count in given.counts.items()]
        lines += [*_agreement_lines(given.model_extra), ""]
    lines += ["## To be filled in", ""]
    lines += [f"- {topic}: {BLANK}" for topic in BLANKS]
    return "\n".join(lines) + "\n"


def _annotators(counts: Mapping[str, int]) -> str:
    """How many annotators there are, and how many items each of them judged."""
    listed = ", ".join(str(count) for count in sorted(counts.values(), reverse=True))
    return f"Annotators: {len(counts)}, who judged {listed} items" if counts else "Annotators: none"


def _agreement_lines(figures: Any) -> list[str]:
    lines = []
    for name, number in _numbers(figures, "").items():
        bounds = ""
        if number.low is not None and number.high is not None:
            bounds = f" [{number.low:z.3f}, {number.high:z.3f}]"
        lines.append(f"- {_one_line(name)}: {number.value:z.3f}{bounds}")
    return lines


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


# ---- files ---------------------------------------------------------------------------------------


def _table_files(one: PaperTable) -> tuple[str, str]:
    """A table as LaTeX and as CSV."""
    label = f"tab:{re.sub('[^A-Za-z0-9-]', '-', one.name)}"
    head = ["", *(escaped(column) for column in one.columns)]
    csv_head: list[object] = [""]
    for column in one.columns:
        csv_head += [column, f"{column} low", f"{column} high"]
    latex_rows = []
    csv_rows = [csv_head]
    for name, row in one.rows.items():
        numbers = [row.get(column) for column in one.columns]
        latex_rows.append([escaped(name), *(n.latex() if n else "" for n in numbers)])
        cells: list[object] = [name]
        for number in numbers:
            cells += [number.value, number.low, number.high] if number else [None] * 3
        csv_rows.append(cells)
    return table(one.caption, label, head, latex_rows), csv_text(csv_rows)


def _runs_latex(runs: Sequence[Mapping[str, str]]) -> str:
    """A long table: commands take several lines."""
    ragged = r">{\raggedright\arraybackslash}p"
    widths = "".join(rf"{ragged}{{{share}\linewidth}}" for share in (0.2, 0.05, 0.16, 0.45))
    lines = [rf"\begin{{longtable}}{{{widths}}}", r"\caption{Runs}\label{tab:runs}\\", r"\toprule"]
    lines += [r"run & seed & commit & command \\", r"\midrule", r"\endhead"]
    for run in runs:
        cells = [run["run"], run["seed"], short_commit(run["commit"]), run["command"]]
        lines.append(f"{' & '.join(breakable(cell) if cell else '' for cell in cells)} \\\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{longtable}"]) + "\n"


def write_paper(settings: PaperSettings) -> Path:
    """Write the folder and return it.

    Raises:
      UserError: there is no outputs folder, it has no results, or a file in it is broken.
    """
    folder = Path(settings.output_dir)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give the output_dir of finished stages")
    out = folder / "paper" if settings.out is None else Path(settings.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: name a folder with out=...")
    if out.resolve() == folder.resolve():
        raise UserError(f"out={out} is the folder of the results: name another one")
    if out.exists() and any(out.iterdir()) and not (out / "numbers.csv").exists():
        raise UserError(f"{out} has other files than those of `fgrlhf paper`: name another out=...")
    found = tables_of(folder, out)
    if not found:
        raise UserError(
            f"{folder} has no results yet: run `fgrlhf evaluate`, `winrate`, `compare` or"
            " `human-eval` with this folder first"
        )
    runs = runs_of(folder, out)
    sheet = data_sheet(folder, out)
    pictures = pictures_of(folder, out, found)
    shutil.rmtree(out / "tables", ignore_errors=True)  # of tables that are gone
    numbers = []
    latex = []
    for one in found:
        text, as_csv = _table_files(one)
        latex.append(text)
        write_text(out / "tables" / f"{_file_name(one.name)}.csv", as_csv)
        for name, row in one.rows.items():
            for column, n in row.items():
                place = (n.value, n.low, n.high, n.p_corrected, n.file, n.place)
                numbers.append([one.name, name, column, *place, run_of(n.file, runs)])
    write_text(out / "tables.tex", "\n".join(latex))
    write_text(out / "runs.tex", _runs_latex(runs))
    write_text(out / "paper.tex", document([*latex, _runs_latex(runs)]))
    head = list(runs[0]) if runs else ["run"]
    write_text(out / "runs.csv", csv_text([head, *(list(run.values()) for run in runs)]))
    write_text(out / "datasheet.md", sheet)
    write_text(out / "numbers.csv", csv_text([NUMBER_KEYS, *numbers]))
    _write_pictures(out, pictures, runs)
    counts = (
        counted(len(found), "table"),
        counted(len(numbers), "number"),
        counted(len(pictures), "picture"),
        counted(len(runs), "run"),
    )
    print(f"{out}: {', '.join(counts)}")
    print(f"  fill in the blanks of {out / 'datasheet.md'}")
    return out


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)


def main(argv: Sequence[str] | None = None) -> None:
    """The program `fgrlhf paper`."""
    arguments = as_settings(list(sys.argv[1:] if argv is None else argv))
    if not arguments:
        raise UserError(USAGE)
    first = arguments[0]
    key, equals, _ = first.partition("=")
    # folders of a sweep's runs are named after their values: `outputs/sweep/lr=1e-5`
    is_folder = not equals or "/" in key or Path(first).is_dir()
    if is_folder and not first.startswith("-"):
        arguments[0] = f"output_dir={first}"
    write_paper(settings_from(PaperSettings, arguments, USAGE))


if __name__ == "__main__":
    run_main(main)

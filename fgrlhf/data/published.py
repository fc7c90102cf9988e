"""Prompts from a published data set: by its name on the hub, or from a local copy.

A task names its set in `Task.published`. The rows come from

    no source        the set by its name on the Hugging Face hub, through the `datasets` library
    a folder         what `save_to_disk` of that library wrote, or files that are named by their
                     split or lie in a folder of its name: train.jsonl, validation.csv,
                     train-00000-of-00002.parquet, default/train/0000.parquet, ...
                     If it has a folder with the name of the set's config, only that one is read
    a file           rows without splits: 3/5 of them for train, 1/5 for dev and 1/5 for test
    `fixture`        such a file in the task's folder: a few rows, for runs without a network

Rows are chosen by a hash of their number, so the same source always gives the same prompts. Python
code of a data set is never run: sets with a loading script are read from the Parquet files into
which the hub converts them.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.records import Problem, read_each, refuse_rows
from fgrlhf.data.formats import PROMPTS
from fgrlhf.data.read import SUFFIXES, read_rows
from fgrlhf.data.rows import Row
from fgrlhf.data.split import hash_share

Rows = Any  # a list or a `Dataset` of the `datasets` library: a length, and rows by their number

FIXTURE = "fixture"
CONVERTED = "refs/convert/parquet"  # the branch of the Parquet files that the hub writes
CSV = ".csv"
# names of a split in the paths of local files
SPLIT_NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
# the number of a file among those of its split: -00000-of-00002, with or without a hash; _0
SHARD = re.compile(r"[-_.]\d+(-of-\d+)?(-[0-9a-f]{16})?$")
# share of the rows of a file without splits, up to which a row belongs to the part
FILE_SHARES = {"train": (0.0, 0.6), "dev": (0.6, 0.8), "test": (0.8, 1.0)}


@dataclass(frozen=True)
class Part:
    """The rows of a split whose hash is at least `start` and below `end`."""

    split: str
    start: float = 0.0
    end: float = 1.0


STANDARD_PARTS = {"train": Part("train"), "dev": Part("validation"), "test": Part("test")}


@dataclass(frozen=True)
class PublishedSet:
    """A published data set, and how its rows become prompts.

    Args:
      hub_name: its repository on the Hugging Face hub.
      prompts: a row of the set -> rows {prompt, references, ...} of docs/data_formats.md, without
        ids; [] leaves the row out. Raises `RowError` if a field is malformed.
      config: of the set; None: the only one.
      is_converted: read the Parquet files into which the hub converts the set, because its own
        files have a loading script.
      parts: the rows for train, dev and test.
      demonstrates: which prompts of train are also demonstrations; None: all, and there is no file
        of their own.
      labelled: a row of the set -> its texts with their labels, from which a scorer can learn.
      fixture: a file with a few rows in the form of the set.
    """

    hub_name: str
    prompts: Callable[[Row], list[dict[str, Any]]]
    config: str | None = None
    is_converted: bool = False
    parts: Mapping[str, Part] = field(default_factory=lambda: STANDARD_PARTS)
    demonstrates: Callable[[Mapping[str, Any]], bool] | None = None
    labelled: Callable[[Row], list[tuple[str, str]]] | None = None
    fixture: Path | None = None


def prompt_files(
    published: PublishedSet, source: str | None = None, subset_size: int | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The rows of every file to write, by the name of the file.

    train.json, dev.json and test.json have prompts. sft.json has the demonstrations if not every
    prompt of train is one, and labelled.json the labelled texts {text, label} of train.

    Args:
      source: a folder, a file or `fixture`; None: the hub.
      subset_size: most rows of the set for a part; a larger subset contains a smaller one.

    Raises:
      UserError: the source cannot be read, has no rows for a part, or rows are malformed. The
        message lists the first of them with split, number and field.
    """
    files = {}
    labelled = []
    problems: list[Problem] = []
    origin = f"hub:{published.hub_name}" if source is None else source

    def read_row(row_id: int | str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        prompts = _prompts_of_row(published, str(row_id), values)
        if name == "train" and published.labelled is not None:
            for text, label in published.labelled(Row(values, {})):
                labelled.append({"text": text, "label": label})
        return prompts

    for name in published.parts:
        rows = part_rows(published, name, source, subset_size)
        prompts, malformed = read_each(rows, read_row, origin)
        files[f"{name}.json"] = list(chain.from_iterable(prompts))
        problems += malformed
    refuse_rows(problems, "turned into prompts")
    for name in published.parts:
        if not files[f"{name}.json"]:
            raise UserError(
                f"{shorten(origin)} gives no prompts for {name}: its rows for it are left out, or"
                " there are none. Give more rows"
            )
    if published.demonstrates is not None:
        files["sft.json"] = [row for row in files["train.json"] if published.demonstrates(row)]
    if published.labelled is not None:
        files["labelled.json"] = labelled
    return files


def _prompts_of_row(
    published: PublishedSet, row_id: str, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The prompts of a row, with ids. Raises `RowError`."""
    rows = published.prompts(Row(values, {}))
    prompts = []
    for number, row in enumerate(rows):
        prompt_id = row_id if len(rows) == 1 else f"{row_id}-{number}"
        prompts.append({"id": prompt_id, **row})
        PROMPTS.parse(Row(prompts[-1], {}), number)  # raises an error that names the key
    return prompts


def part_rows(
    published: PublishedSet, name: str, source: str | None, subset_size: int | None = None
) -> Iterator[tuple[str, Any]]:
    """The rows of a part in the order of the source, with their ids `split-number`."""
    from fgrlhf.data.tables import plain  # with pyarrow

    path = _local_path(published, source)
    if path is not None and path.is_file():
        split = name
        rows = _file_rows(path)
        start, end = (round(share * len(rows)) for share in FILE_SHARES[name])
        numbers = sorted(range(len(rows)), key=lambda number: hash_share(str(number)))[start:end]
    else:
        part = published.parts[name]
        split = part.split
        rows = _hub_split(published, split) if path is None else _folder_split(path, split)
        numbers = []
        for number in range(len(rows)):
            if part.start <= _share(split, number) < part.end:
                numbers.append(number)
    if subset_size is not None:
        numbers = sorted(numbers, key=lambda number: _share(split, number))[:subset_size]
    for number in sorted(numbers):
        yield f"{split}-{number}", plain(rows[number])


def _share(split: str, number: int) -> float:
    return hash_share(f"{split} {number}")


# ---- the hub -------------------------------------------------------------------------------------


def _hub_split(published: PublishedSet, split: str) -> Rows:
    """A split of the set by name: from the cache, else from the hub."""
    import datasets  # takes seconds, and local files do not need it

    try:
        if published.is_converted:
            files = {split: f"{published.config or 'default'}/{split}/*.parquet"}
            return datasets.load_dataset(
                published.hub_name, data_files=files, revision=CONVERTED, split=split
            )
        return datasets.load_dataset(published.hub_name, published.config, split=split)
    except Exception as error:  # the library raises errors of many kinds
        raise UserError(
            f"the split {shorten(split)} of hub:{published.hub_name} (config"
            f" {published.config or 'default'}) cannot be read"
            f" ({type(error).__name__}: {shorten(error)}). Is there a network? Name a local copy"
            f" with source=FOLDER, or use a few rows that need no network: source={FIXTURE}"
        ) from None


# ---- local copies --------------------------------------------------------------------------------


def _local_path(published: PublishedSet, source: str | None) -> Path | None:
    """The folder or file of the rows; None: the hub.

    Of a folder with several configs, it is the folder of the set's config.

    Raises:
      UserError: it does not exist.
    """
    if source is None:
        return None
    if source == FIXTURE and published.fixture is not None:
        return published.fixture
    path = Path(source)
    if not path.exists():
        raise UserError(
            f"source={shorten(source)} does not exist: name the folder or file of a local copy of"
            f" {published.hub_name}, or leave it out to fetch the set from the hub"
        )
    if published.config is not None and (path / published.config).is_dir():
        return path / published.config
    return path


def _folder_split(folder: Path, split: str) -> Rows:
    """The rows of a split in a local folder.

    Raises:
      UserError: the folder has no such split, or has it in files of different formats.
    """
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return _saved_split(folder, split)
    files = _files_of_split(folder, split)
    name = shorten(split)
    suffixes = sorted({"".join(file.suffixes[-2:]) for file in files if file.suffix == ".gz"})
    suffixes += sorted({file.suffix for file in files if file.suffix != ".gz"})
    if not files:
        raise UserError(
            f"{folder} has no file of the split `{name}`: the file or its folder must have the"
            f" name of the split, such as {name}.jsonl or {name}/0000.parquet, and the file must"
            f" end in {', '.join([*SUFFIXES, CSV])}"
        )
    if len(suffixes) > 1:
        raise UserError(
            f"{folder} has the split `{name}` in files of several formats ({', '.join(suffixes)}),"
            " which may be copies of the same rows: keep one of them"
        )
    return [row for file in files for row in _file_rows(file)]


def _saved_split(folder: Path, split: str) -> Rows:
    """A split of a folder that `save_to_disk` wrote."""
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise UserError(
            f"{folder} cannot be read as what `save_to_disk` wrote ({type(error).__name__}:"
            f" {shorten(error)}): save the data set again"
        ) from None
    if not isinstance(saved, datasets.DatasetDict):
        raise UserError(
            f"{folder} has one split only: save the whole set, with its splits"
            " (`DatasetDict.save_to_disk`)"
        )
    if split not in saved:
        known = shorten(", ".join(map(str, saved)))
        raise UserError(f"{folder} has no split `{shorten(split)}`; it has {known}")
    return saved[split]


def _files_of_split(folder: Path, split: str) -> list[Path]:
    """The files of a split below a folder, in alphabetic order.

    A file belongs to the split that its name is, or else the name of its folder. If no file
    belongs to the split in this way, one does whose name contains that of this split only, such as
    set_train_data.jsonl.

    Raises:
      UserError: the files are several versions of the split, by their folders or names.
    """
    names = SPLIT_NAMES.get(split, (split,))
    all_names = {*names, *chain.from_iterable(SPLIT_NAMES.values())}
    named: dict[tuple[Path, str], list[Path]] = {}  # folder, name -> files
    similar: dict[tuple[Path, str], list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if not path.name.endswith((*SUFFIXES, CSV)) or not path.is_file():
            continue
        name = _name_without_number(path)
        in_folder = path.parent.name.lower() if path.parent != folder else ""
        split_words = all_names & set(re.split(r"[^a-z0-9]+", name))
        if name not in all_names and in_folder in all_names:
            if in_folder in names:
                named.setdefault((path.parent, ""), []).append(path)
        elif name in names:
            named.setdefault((path.parent, name), []).append(path)
        elif len(split_words) == 1 and split_words <= set(names):
            similar.setdefault((path.parent, name), []).append(path)
    versions = named or similar
    if len(versions) > 1:
        examples = [files[0].relative_to(folder).as_posix() for files in versions.values()]
        raise UserError(
            f"{folder} has several sets of files for the split `{shorten(split)}`:"
            f" {shorten(', '.join(examples))}. Their rows would be repeated or mixed. Name the"
            " folder of one of them with source=FOLDER, or remove the others"
        )
    return [path for files in versions.values() for path in files]


def _name_without_number(path: Path) -> str:
    """The name of a file in lower case, without its suffix and its number among several files."""
    name = path.name.lower()
    suffix = next(suffix for suffix in (*SUFFIXES, CSV) if path.name.endswith(suffix))
    return SHARD.sub("", name.removesuffix(suffix))


def _file_rows(path: Path) -> list[Any]:
    """The rows of a file. Raises `UserError` if it cannot be read."""
    return _csv_rows(path) if path.name.endswith(CSV) else read_rows(path)


def _csv_rows(path: Path) -> list[Any]:
    """The rows of a CSV file with a header; a column of numbers has numbers.

    Raises:
      UserError: the file cannot be read, or two columns have the same name.
    """
    import pyarrow
    import pyarrow.csv

    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    try:
        table = pyarrow.csv.read_csv(path, parse_options=options)
        rows = table.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable CSV file: {shorten(error)}") from None
    names = table.column_names
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:  # a row would keep the last one only
        raise UserError(
            f"{path}: several columns are named `{shorten(repeated[0])}`: rename all but one"
        )
    return rows

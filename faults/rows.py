"""Kind `rows`: mutate data rows and whole data files and read them with every reader.

The mini world makes a base file of a few valid rows; one row, all rows or the file itself is then
damaged. A reader must either read all rows or refuse the file with a message that names it.
"""

import copy
import gzip
import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.campaign import Bench, Kind
from faults.judging import BAD, GOOD, Outcome, call
from faults.world import feedback_row
from fgrlhf.base.files import read_json
from tasks.qa_feedback.data import mini_world

DEEP = 50_000
MANY = 400
LONG = 20_000


@dataclass(frozen=True)
class Reader:
    """A reader of data, its base rows, and whether they are JSON lines.

    read: (file, bench) -> number of rows read; None if the reader may skip rows.
    """

    name: str
    lines: bool
    rows: Callable[[], list[dict]]
    read: Callable[[Path, Bench], int | None]


# ---- base rows -----------------------------------------------------------------------------------


def examples() -> list[dict]:
    return [mini_world.make_row(0, "train", i) for i in range(4)]


def answers() -> list[dict]:
    return [{"text": row["text"], "answer": row["answer"]} for row in examples()]


def feedback() -> list[dict]:
    return [dict(feedback_row("train", i).raw) for i in range(4)]


def samples() -> list[dict]:
    """Rows as `generate` writes them."""
    rows = []
    for i, (example, row) in enumerate(zip(examples(), feedback())):
        predictions = [row[f"prediction {k}"] for k in range(1, 5)]
        rows.append(
            {
                "id": str(i),
                "question": example["question"],
                "passages": example["passages"],
                "predictions": predictions,
            }
        )
    return rows


def segments() -> list[dict]:
    words = [
        *("question:", "who", "made", "it", "answer:", "</s>", "the", "film", "was", "made"),
        *("by", "Bor", "</s>", "and", "the", "novel", "by", "Dan"),
    ]
    tags = [
        "NF-ERR" if i == 5 else "O" if words[i] == "</s>" else "Ignore" for i in range(len(words))
    ]
    return [{"id": str(i), "text": words, "feedback_tags": tags} for i in range(4)]


def pairs() -> list[dict]:
    keys = ("question", "passages", *(f"prediction {i}" for i in range(1, 5)), "preference")
    return [{key: row[key] for key in keys} for row in feedback()]


# ---- readers -------------------------------------------------------------------------------------


def read_examples(path: Path, bench: Bench) -> int:
    from tasks.qa_feedback.feedback import load_examples, rm_prefix

    prompts = load_examples(path)
    for prompt in prompts:
        rm_prefix(prompt, True)
    return len(prompts)


def read_feedback(path: Path, bench: Bench) -> int:
    """Read as create_rm_train_files does; accepted rows become training files."""
    from fgrlhf.reward_utils import load_segmenter
    from reward_modeling.segment_files import segment_file
    from tasks.qa_feedback import feedback as format_
    from tasks.qa_feedback.reward_modeling import create_rm_files

    all_rows = format_.read_feedback(path)
    rows = format_.annotated_rows(all_rows, path)  # says how many have comparisons only
    segmenter = load_segmenter("blank_en_sentencizer")
    segment_file(create_rm_files.relevance_example(row, segmenter) for row in rows[:8])
    segment_file(create_rm_files.factuality_example(row, segmenter) for row in rows[:8])
    create_rm_files.completeness_file(rows[:8], segmenter, "faults")
    return len(all_rows)


def read_segments(path: Path, bench: Bench) -> int:
    from reward_modeling.data import read_segment_rows

    return len(read_segment_rows(path, ("NF-ERR", "O"), "Ignore"))


def read_pairs(path: Path, bench: Bench) -> int:
    """Read as the pair model does. Rows without a comparison are left out, with their number."""
    from fgrlhf.base.files import read_json
    from tasks.qa_feedback.feedback import rm_prefix
    from tasks.qa_feedback.reward_modeling.pairs import read_pairs as read_published_pairs

    rows = read_published_pairs(path)
    for row in rows:
        rm_prefix(row.prompt, True)
    return len(rows) + sum("preference" not in row for row in read_json(path))


def read_answers(path: Path, bench: Bench) -> int:
    """Read as SFT does, up to token ids."""
    from fgrlhf.data.formats import DEMONSTRATIONS
    from sft.data import encode

    rows = DEMONSTRATIONS.read(path)
    encode(_policy(bench), rows[:8], 8)
    return len(rows)


def collect_samples(path: Path, bench: Bench) -> int:
    from tasks.qa_feedback.data.collect_feedback import Settings, collect

    folder = path.parent / "data"
    folder.mkdir(exist_ok=True)
    (folder / "train.json").write_text(json.dumps(examples()))
    settings = {"data_dir": str(folder), "samples": str(path), "split": "train"}
    written = collect(Settings.model_validate(settings))
    return len(read_json(written))


def resume_samples(path: Path, bench: Bench) -> None:
    """Read the samples of an interrupted run as `generate` does; damaged parts may be redone."""
    from fgrlhf.cli.generate import read_part
    from tasks.qa_feedback.feedback import load_examples
    from tasks.qa_feedback.task import sample_row

    read_part(path, load_examples(bench.world.data / "train.json"), sample_row)


def annotation_items(path: Path, bench: Bench) -> int:
    from interface_html.items import read_items
    from interface_html.tasks import feedback_of

    return len(read_items(feedback_of("qa_feedback"), path))


def comparisons(path: Path, bench: Bench) -> None:
    from tasks.qa_feedback.feedback import load_examples, read_feedback
    from tasks.qa_feedback.training.comparisons import make_comparisons

    rows = read_feedback(path)
    for source in ("corrected", "preference"):
        make_comparisons(rows, load_examples(bench.world.data / "train.json"), source, str(path))


def corrected(path: Path, bench: Bench) -> None:
    from tasks.qa_feedback.feedback import load_examples, read_feedback
    from tasks.qa_feedback.training.comparisons import corrected_examples

    corrected_examples(
        read_feedback(path), load_examples(bench.world.data / "train.json"), str(path)
    )


READERS = (
    Reader("examples", False, examples, read_examples),
    Reader("feedback", False, feedback, read_feedback),
    Reader("segment files", True, segments, read_segments),
    Reader("pair files", False, pairs, read_pairs),
    Reader("SFT rows", False, answers, read_answers),
    Reader("samples, collected", True, samples, collect_samples),
    Reader("samples, resumed", True, samples, resume_samples),
    Reader("samples, annotation items", True, samples, annotation_items),
    Reader("comparisons", False, feedback, comparisons),
    Reader("corrected examples", False, feedback, corrected),
)
_LOADED: dict[str, Any] = {}


def _policy(bench: Bench):
    if "policy" not in _LOADED:
        from fgrlhf.policy import load_policy

        _LOADED["policy"] = load_policy(str(bench.world.policy), max_input_len=192)
    return _LOADED["policy"]


# ---- damage to rows ------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 1.0, 2.5, -0.0, 10**30, -(10**30), 1e308, -1e308),
    *(1e-320, float("nan"), float("inf"), "", " ", "\n", "\t\t", "0", "1", "null", "\u00a0"),
    *("\u2028", "a\u2028b", "\u0085", "\ud800", "a\udfffb", "\0", "\x1b[31m", "</s>"),
    *("</s> </s>", "<script>", "{", "{}", "[]", '{"passage_id": 1}'),
    *('{"passage_id": 1, "sentence_id": [0]}', "{" * 20_000, '{"a":' * 20_000, "9" * 5_000),
    *("x" * 100_000, "word " * 20_000, "no full stop " * 10_000, [], [[]], [None], [0], [""]),
    *(["a"], [1, 2, 3, 4, 5, 6], [True] * 6, [1.0] * 6, [0] * 6, [3] * 6, ["0"] * 6, [1] * 5),
    *([1] * 7, {}, {"a": 1}, {"wikipage": 1, "content": 2}, {"wikipage": "", "content": ""}),
    *({"text": None}, [["T", "S."]], [[]], [[""]], [["T", 1]], "🙂" * 50, "é" * 50, "\U0010ffff"),
)


SPLICED = (
    *("\u2028", "\u00a0", "\u0085", "\ud800", "\0", "</s>", "\r", "\x0b", "   ", "🙂", "\u202e"),
    *("e\u0301", "." * 5_000),
)


def paths(value: Any, prefix: tuple = ()) -> list[tuple]:
    """The paths of all values inside a row."""
    places = [prefix] if prefix else []
    if isinstance(value, dict):
        for key in value:
            places += paths(value[key], (*prefix, key))
    elif isinstance(value, list):
        for i in range(min(len(value), 4)):
            places += paths(value[i], (*prefix, i))
    return places


def at(row: Any, path: tuple) -> Any:
    for part in path:
        row = row[part]
    return row


def put(row: Any, path: tuple, value: Any) -> None:
    at(row, path[:-1])[path[-1]] = value


def damage_row(row: dict, rng: random.Random) -> tuple[Any, str]:
    """Damage one value of a row; returns the row and a description."""
    row = copy.deepcopy(row)
    places = paths(row)
    # there are few short paths, and they matter most
    path = min(rng.sample(places, min(2, len(places))), key=len)
    ways = (
        *("value", "value", "value", "value", "delete", "swap", "rename", "extra", "splice"),
        *("whole", "wrap"),
    )
    way = rng.choice(ways)
    name = ".".join(map(str, path))
    if way == "value":
        value = rng.choice(VALUES)
        put(row, path, value)
        return row, f"{name} = {repr(value)[:60]}"
    if way == "delete":
        del at(row, path[:-1])[path[-1]]
        return row, f"{name} deleted"
    if way == "swap":
        other = min(rng.sample(places, min(2, len(places))), key=len)
        first, second = copy.deepcopy(at(row, path)), copy.deepcopy(at(row, other))
        if path[: len(other)] != other and other[: len(path)] != path:
            put(row, path, second)
            put(row, other, first)
        return row, f"{name} and {'.'.join(map(str, other))} swapped"
    if way == "rename":
        key = rng.choice(list(row))
        row[rng.choice((key.upper(), key + " ", key[:-1], ""))] = row.pop(key)
        return row, f"{key} renamed"
    if way == "extra":
        value = rng.choice(VALUES)
        key = rng.choice(("extra", "", "text", "id", "feedback", "\ud800", "x" * 10_000))
        row[key] = value
        return row, "a further key"
    if way == "splice":
        text = at(row, path)
        if isinstance(text, str) and text:
            place = rng.randrange(len(text))
            odd = rng.choice(SPLICED)
            put(row, path, text[:place] + odd + text[place:])
            return row, f"{name} with {odd[:5]!r} inside"
        put(row, path, [copy.deepcopy(text)] * 2)
        return row, f"{name} twice in a list"
    if way == "wrap":
        put(row, path, {"x": at(row, path)})
        return row, f"{name} in an object"
    value = rng.choice(VALUES)
    return value, f"the row = {repr(value)[:60]}"


def to_text(rows: list, lines: bool, plain: bool = True) -> str:
    """Rows as the text of a file; `plain=False` keeps characters beyond ASCII unescaped."""
    if lines:
        return "".join(json.dumps(row, ensure_ascii=plain) + "\n" for row in rows)
    return json.dumps(rows, ensure_ascii=plain)


# ---- damage to files -----------------------------------------------------------------------------


def _symlink_loop(path: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


def damage_file(path: Path, text: str, lines: bool, rng: random.Random) -> str:
    """Replace a file by damaged content; returns a description."""
    content = text.encode()
    half = content[: rng.randrange(len(content))]
    inside = text.replace('"', '"caf\u00e9 ', 1)
    ways: dict[str, Callable[[], Any]] = {
        "gzip": lambda: path.write_bytes(gzip.compress(content)),
        "UTF-16": lambda: path.write_bytes(text.encode("utf-16")),
        "UTF-32": lambda: path.write_bytes(text.encode("utf-32")),
        "Latin-1": lambda: path.write_bytes(inside.encode("latin-1")),
        "a byte order mark": lambda: path.write_bytes(b"\xef\xbb\xbf" + content),
        "truncated": lambda: path.write_bytes(half),
        "empty": lambda: path.write_bytes(b""),
        "white space": lambda: path.write_bytes(b" \n \n"),
        "NUL bytes": lambda: path.write_bytes(b"\0" * 4_096),
        "NUL bytes at its end": lambda: path.write_bytes(content + b"\0" * 512),
        "a folder": path.mkdir,
        "a loop of links": lambda: _symlink_loop(path),
        "missing": lambda: None,
        "brackets": lambda: path.write_bytes(b"[" * 100_000),
        "closed brackets": lambda: path.write_bytes(b"[" * 100_000 + b"]" * 100_000),
        "braces": lambda: path.write_bytes(b'{"a":' * DEEP),
        "5,000 digits": lambda: path.write_bytes(b"9" * 5_000),
        "5,000 digits in a row": lambda: path.write_bytes(b'[{"text": ' + b"9" * 5_000 + b"}]"),
        "5,000 digits in a line": lambda: path.write_bytes(
            content + b'{"text": ' + b"9" * 5_000 + b"}\n"
        ),
        "NaN": lambda: path.write_bytes(b"NaN"),
        "a number": lambda: path.write_bytes(b"3"),
        "a text": lambda: path.write_bytes(b'"hello"'),
        "an object": lambda: path.write_bytes(b"{}"),
        "a list": lambda: path.write_bytes(b"[]"),
        "a list of lists": lambda: path.write_bytes(b"[[], []]"),
        "null": lambda: path.write_bytes(b"null"),
        "a page": lambda: path.write_bytes(b"<!DOCTYPE html><html><body>404</body></html>"),
        "the other form": lambda: path.write_text(
            f"[{text}]" if lines else to_text(json.loads(text), True)
        ),
        "one long line": lambda: path.write_bytes(b"x" * 3_000_000),
        "a cut character": lambda: path.write_bytes(content + "é".encode()[:1]),
        "lines cut off": lambda: path.write_bytes(content.rstrip(b"]\n")[:-5]),
        "a FIFO's name": lambda: path.symlink_to("/dev/null"),
        "duplicate keys": lambda: path.write_bytes(
            content.replace(b"{", b'{"text": 1, "text": 2, ', 1)
        ),
    }
    way = rng.choice(sorted(ways))
    ways[way]()
    return way


class Rows(Kind):
    """See the module's docstring."""

    name = "rows"
    good = GOOD
    bad = (*BAD, "lost rows")
    batch = 250
    trials = 20_000

    def __init__(self, bench: Bench):
        super().__init__(bench)
        self.base = {reader.name: reader.rows() for reader in READERS}

    def died(self, code: int) -> Outcome:
        verdict = "over a second" if code == -signal.SIGXCPU else "traceback"
        return Outcome(verdict, f"the process ended with {code}")

    def run(self, index: int, folder: Path) -> Outcome:
        reader = READERS[index % len(READERS)]
        rng = self.bench.rng(self.name, index)
        rows = copy.deepcopy(self.base[reader.name])
        path = folder / ("rows.jsonl" if reader.lines else "rows.json")
        whole_file = rng.random() < 0.1
        if whole_file:
            what = damage_file(path, to_text(rows, reader.lines), reader.lines, rng)
            expected = None
        else:
            what, expected = damage_rows(rows, rng)
            text = to_text(rows, reader.lines, plain=rng.random() < 0.5)
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
        called = call(lambda: _quietly(reader.read, path, self.bench), (path.name,), f"{folder}/")
        verdict = called.verdict
        note = f"{reader.name}, {what}: {called.note}"
        counted = expected is not None and called.value is not None
        if verdict == "accepted" and counted and called.value != expected:
            verdict = "lost rows"
            note += f" {called.value} of {expected} rows were read"
        return Outcome(verdict, note, "rows, whole files" if whole_file else "rows")


def damage_rows(rows: list, rng: random.Random) -> tuple[str, int]:
    """Damage one row, or sometimes many; returns a description and the number of rows."""
    if rng.random() < 0.02:
        damaged, what = damage_row(rows[0], rng)
        # tens of MB may take a second
        many = MANY if len(json.dumps(damaged)) < LONG else len(rows)
        rows[:] = [damaged] * many
        return f"{many} rows with {what}", many
    at_row = rng.randrange(len(rows))
    rows[at_row], what = damage_row(rows[at_row], rng)
    return f"row {at_row}, {what}", len(rows)


def _quietly(read: Callable, path: Path, bench: Bench) -> Any:
    """Discard the output of readers."""
    from contextlib import redirect_stderr, redirect_stdout

    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        return read(path, bench)

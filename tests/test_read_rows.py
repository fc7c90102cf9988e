"""Rows of files and data sets: every format gives the same rows; damaged input is refused."""

import datetime
import decimal
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.base.program import why_refused
from fgrlhf.data import read
from fgrlhf.data.read import read_rows, write_rows

ROWS = [
    {"text": "naïve 🙂\u2028\n\x00", "n": 1, "list": [1, 2], "object": {"a": None, "b": "x"}},
    {"text": "", "n": 2, "list": [], "object": {"a": None, "b": "y"}},
]
ROOT = Path(read.__file__).parents[2]


def packed(path, text):
    path.write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz", "a.jsonl.gz"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, name):
    path = tmp_path / name
    text = '\ufeff{"n": "\ufeff1"}\n{"n": "2"}\n'
    if name.endswith(".gz"):
        packed(path, text)
    else:
        path.write_text(text, encoding="utf-8")
    assert read_rows(path) == [{"n": "\ufeff1"}, {"n": "2"}]


def test_every_format_gives_the_same_rows(tmp_path):
    lines = "\n\n".join(json.dumps(row) for row in ROWS)
    write_json(tmp_path / "a.json", ROWS)
    write_jsonl(tmp_path / "a.jsonl", ROWS)
    (tmp_path / "blank.jsonl").write_text(f"\n{lines}\n \n")
    (tmp_path / "lines.json").write_text(lines)
    packed(tmp_path / "a.json.gz", json.dumps(ROWS))
    packed(tmp_path / "a.jsonl.gz", lines)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 7
    for path in paths:
        assert read_rows(path) == ROWS, path
        assert read_rows(str(path)) == ROWS


@pytest.mark.parametrize("suffix", read.WRITTEN)
def test_written_rows_are_read_back(tmp_path, suffix):
    path = tmp_path / f"new/rows{suffix}"
    write_rows(path, ROWS)
    assert read_rows(path) == ROWS and [p.name for p in path.parent.iterdir()] == [path.name]


def test_parquet_values_that_json_does_not_have(tmp_path):
    pairs = pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64()))
    columns = {
        "day": ([datetime.date(2026, 1, 31)], "2026-01-31"),
        "moment": ([datetime.datetime(2026, 1, 31, 12, 30)], "2026-01-31 12:30:00"),
        "price": ([decimal.Decimal("1.50")], "1.50"),
        "picture": ([b"\x89PNG"], None),
        "pairs": (pairs, [["k", 1]]),
    }
    table = pyarrow.table({name: column for name, (column, _) in columns.items()})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    (row,) = read_rows(tmp_path / "a.parquet")
    assert row == {name: expected for name, (_, expected) in columns.items()}


def test_a_parquet_column_has_one_type(tmp_path):
    path = tmp_path / "a.parquet"
    with pytest.raises(UserError, match=r"a\.parquet cannot be written: .* write a \.jsonl file"):
        write_rows(path, [{"a": 1}, {"a": "x"}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "values",
    [
        [{}, {"a": 1}],
        [{}, {}],
        [[{}], [{"a": {}}, {"a": {"b": "ü"}}]],
        [{"a": {}}, None, {"a": {"b": 1.5}}],
    ],
)
def test_objects_without_keys_come_back_from_parquet(tmp_path, values):
    rows = [{"prompt": str(i), "extra": value} for i, value in enumerate(values)]
    write_rows(tmp_path / "a.parquet", rows)
    assert read_rows(tmp_path / "a.parquet") == rows


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="a folder without files of ours")
def test_a_parquet_file_that_cannot_be_opened_is_named():
    with pytest.raises(OSError) as error:
        write_rows("/proc/self/a.parquet", [{"a": 1}])
    assert "/proc/self/a.parquet could not be used" in (why_refused(error.value) or "")


def test_a_name_that_cannot_be_written(tmp_path):
    for name in ("a.json.gz", "a.txt", "hub:org/name"):
        with pytest.raises(UserError, match=re.escape(name)):
            write_rows(tmp_path / name, ROWS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name, message",
    [
        ("rows.txt", r"rows\.txt does not end in a known format: give a file that ends in"),
        ("rows.csv", r"is a table, but rows are.*read_csv\(FILE\)\.to_json\('rows\.jsonl'"),
        ("rows.tsv", r"is a table, but rows are.*read_csv\(FILE, sep='\\t'\)"),
        ("", "is a folder: give a file that ends in"),
        ("gone.json", r"gone\.json does not exist: check the path$"),
        ("a\0b.json", "does not exist"),
        ("x" * 300 + ".json", "cannot be read"),
        ("hub:name", "is not the name of a data set: write hub:org/name"),
        ("hub:../etc/passwd", "is not the name of a data set"),
        ("hub:/tmp/x", "is not the name of a data set"),
    ],
)
def test_sources_that_are_none(tmp_path, name, message):
    source = name if name.startswith("hub:") else f"{tmp_path}/{name}"
    with pytest.raises(UserError, match=message) as error:
        read_rows(source)
    assert len(str(error.value)) < 700


def test_a_missing_file_in_data_dir_gets_a_hint_at_it(tmp_path, monkeypatch):
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    hint = f"check the path, and set DATA_DIR, which is {tmp_path}/data, to the folder of the data"
    with pytest.raises(UserError, match=re.escape(hint)):
        read_rows(tmp_path / "data" / "train.json")
    for path in (tmp_path / "train.json", tmp_path / "database" / "train.json"):
        with pytest.raises(UserError, match="check the path$"):
            read_rows(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATA_DIR", "data")
    with pytest.raises(UserError, match="set DATA_DIR, which is data,"):
        read_rows("data/train.json")


def test_a_missing_file_gets_a_suggestion(tmp_path):
    (tmp_path / "train.jsonl").write_text("{}")
    with pytest.raises(UserError, match=r"train\.json does not exist: did you mean `train\.jsonl`"):
        read_rows(tmp_path / "train.json")


def test_a_table_is_converted_by_the_call_in_the_message(tmp_path, monkeypatch):
    table = tmp_path / "rows.tsv"
    table.write_text("prompt\tchosen\nHi\tHo, \\n\n")
    with pytest.raises(UserError) as error:
        read_rows(table)
    call = str(error.value).partition("with pandas: ")[2]
    monkeypatch.chdir(tmp_path)
    exec(call, {"read_csv": pandas.read_csv, "FILE": table})
    assert read_rows("rows.jsonl") == [{"prompt": "Hi", "chosen": "Ho, \\n"}]


# ---- damaged and hostile files -------------------------------------------------------------------

PARQUET = b"PAR1" + b"\x00" * 40 + b"PAR1"


def many_equal_rows() -> bytes:
    """A small file with 30 million rows."""
    sink = pyarrow.BufferOutputStream()
    column = pyarrow.array([None] * 1_000_000, pyarrow.null())
    table = pyarrow.table({"a": pyarrow.chunked_array([column] * 30)})
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


HOSTILE = {
    "empty.json": (lambda: b"", r"empty\.json has no rows: it is empty"),
    "table.json": (lambda: b"a,b\n1,2\n", "one JSON array of objects.*; it starts with `a,b 1,2`"),
    "array.json": (lambda: b"[]", "has no rows: it is an empty JSON array"),
    "object.json": (
        lambda: b'{"a": 1}',
        r"must hold one JSON array of rows, it holds an object: put it in \[ \], or name the file",
    ),
    "number.json": (lambda: b"3", "must hold one JSON array of rows, it holds a number"),
    "deep.json": (lambda: b"[" * 100_000, "nested too deeply"),
    "digits.json": (lambda: b"[" + b"9" * 5_000 + b"]", "not valid JSON"),
    "nan.json": (lambda: b'[{"a": NaN}]', "NaN is not a JSON number"),
    "twice.json": (
        lambda: b'[{"a": 1, "b": 2}, {"a": {"c": 3, "d": 4, "c": 5}}]',
        r"twice\.json is not valid JSON: an object has the key `c` twice, first 3, then 5: remove",
    ),
    "twice.jsonl": (
        lambda: b'{"a": 1}\n{"a": "x", "a": "y"}',
        r"twice\.jsonl, line 2: not valid JSON: an object has the key `a` twice, first 'x', then",
    ),
    "half.json": (lambda: b'["\\ud83d"]', "half of a surrogate pair"),
    "latin.json": (lambda: '["é"]'.encode("latin-1"), "is not UTF-8 text"),
    "packed.json": (lambda: gzip.compress(b"[1]"), "it is compressed: unpack it with gunzip"),
    "cut.jsonl": (
        lambda: b'{"a": 1}\n{"a": ',
        r"cut\.jsonl, line 2: not valid JSON: Expecting value at character 7\.",
    ),
    "array.jsonl": (
        lambda: b'[\n{"a": 1}\n]',
        r"A file of one JSON array needs a name that ends in \.json",
    ),
    "line.jsonl": (
        lambda: b'[{"a": 1}, {"a": 2}]',
        r"has one line, which is a list\. A file of one JSON array needs a name .* \.json",
    ),
    "pretty.jsonl": (
        lambda: b'{"a": 1}\n{\n "a": 2\n}\n{\n "a": 3\n}',
        r"line 2: not valid JSON.*The object goes on in the next lines: .* `jq -c \. FILE`",
    ),
    "second.json": (lambda: b'{"a": 1}\n{"a": 2} x', r"second\.json, line 2: not valid JSON"),
    "blank.jsonl": (lambda: b"\n \n", "has no rows: it is empty"),
    "plain.json.gz": (lambda: b"[1]", r"plain\.json\.gz cannot be unpacked"),
    "cut.json.gz": (lambda: gzip.compress(b"[1, 2, 3]" * 99)[:-9], "cannot be unpacked"),
    "bomb.jsonl.gz": (lambda: gzip.compress(b"\n" * 100_000_000), "made to fill the memory"),
    "latin.json.gz": (lambda: gzip.compress(b"\xff"), "is not UTF-8 text"),
    "text.parquet": (lambda: b"[1]", "is not a readable Parquet file"),
    "empty.parquet": (lambda: b"", "is not a readable Parquet file"),
    "zeros.parquet": (lambda: PARQUET, "is not a readable Parquet file"),
    "many.parquet": (many_equal_rows, "has 30,000,000 rows, more than 20,000,000: split the file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_at_once(tmp_path, name):
    content, message = HOSTILE[name]
    (tmp_path / name).write_bytes(content())
    started = time.process_time()
    with pytest.raises(UserError, match=message) as error:
        read_rows(tmp_path / name)
    assert name in str(error.value) and len(str(error.value)) < 500
    assert time.process_time() - started < 1


@pytest.mark.parametrize("suffix", read.SUFFIXES)
def test_a_folder_is_no_file(tmp_path, suffix):
    (tmp_path / f"a{suffix}").mkdir()
    with pytest.raises(UserError, match=f"a{suffix}"):
        read_rows(tmp_path / f"a{suffix}")


def test_any_damage_to_a_parquet_file_is_refused_or_read(tmp_path):
    path = tmp_path / "a.parquet"
    write_rows(path, ROWS)
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            read_rows(path)
        except UserError as error:
            assert "a.parquet" in str(error)


# ---- data sets -----------------------------------------------------------------------------------

CACHE = """
import pathlib, sys
import datasets

cache, rows = pathlib.Path(sys.argv[1]), sys.argv[2]
datasets.load_dataset("json", data_files={"train": rows, "test": rows}, cache_dir=str(cache))
"""
READ = """
import json, sys
from fgrlhf.data.read import read_rows
from fgrlhf.base.errors import UserError
from fgrlhf.base.program import why_refused

for source in sys.argv[1:]:
    try:
        print(json.dumps(read_rows(source)))
    except UserError as error:
        print(json.dumps(str(error)))
"""


def python(code, *arguments, **settings):
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def hub_cache(tmp_path_factory):
    """The cache of a machine that has loaded the data set `org/pairs`, as environment variables."""
    folder = tmp_path_factory.mktemp("hub")
    write_jsonl(folder / "rows.jsonl", [{"prompt": "a", "chosen": "b 🙂", "rejected": "c"}] * 3)
    environment = os.environ | {"HF_HOME": f"{folder}/home", "PYTHONPATH": str(ROOT)}
    environment["HF_DATASETS_CACHE"] = f"{folder}/cache"
    python(CACHE, folder / "cache", folder / "rows.jsonl", env=environment)
    (version,) = (folder / "cache" / "json").glob("*/0.0.0/*/")
    place = folder / "cache" / "org___pairs" / "default" / "0.0.0" / version.name
    shutil.copytree(version, place)
    for split in ("train", "test"):
        (place / f"json-{split}.arrow").rename(place / f"pairs-{split}.arrow")
    path = place / "dataset_info.json"
    information = path.read_text()
    path.write_text(information.replace('"dataset_name": "json"', '"dataset_name": "pairs"'))
    return environment


def test_a_data_set_is_read_from_the_cache(hub_cache, tmp_path):
    pairs = ["", ":test", ":default:train", ":validation"]
    sources = [*(f"hub:org/pairs{part}" for part in pairs), "hub:org/other"]
    printed = python(READ, *sources, env=hub_cache | {"HF_HUB_OFFLINE": "1"}, cwd=tmp_path)
    *rows, no_split, no_set = [json.loads(line) for line in printed.splitlines()]
    assert rows == [[{"prompt": "a", "chosen": "b 🙂", "rejected": "c"}] * 3] * 3
    assert no_split.startswith("the data set org/pairs (split validation, config default) cannot")
    start = "the data set org/other (split train, config default) cannot be read from the cache"
    assert no_set.startswith(start)
    assert "(OfflineModeIsEnabled: HF_HUB_OFFLINE is set)" in no_set
    assert "python -c \"import datasets; datasets.load_dataset('org/other')\"" in no_set


STREAM = """
from fgrlhf.data import stream
from fgrlhf.data.formats import COMPARISONS
whole = COMPARISONS.stream("hub:org/pairs")
stream.LARGE = -1
there = COMPARISONS.stream("hub:org/pairs")
assert isinstance(whole, list) and isinstance(there, stream.StoredItems)
assert len(there) == 3 and list(there) == whole and there[2] == whole[2]
print("equal")
"""


def test_the_rows_of_a_large_data_set_stay_in_the_cache(hub_cache, tmp_path):
    environment = hub_cache | {"HF_HUB_OFFLINE": "1"}
    assert python(STREAM, env=environment, cwd=tmp_path) == "equal\n"


class Hub(BaseHTTPRequestHandler):
    """The answers of the hub with which `datasets` 5.2 reads the set org/set of one file."""

    rows = b'{"prompt": "a"}\n{"prompt": "b"}\n'

    def answer(self):
        size = len(self.rows)
        head = {"ETag": '"1"', "X-Repo-Commit": "0" * 40}
        content = None
        if "/resolve/" in self.path:
            content = self.rows if self.path.endswith("/train.jsonl") else None
        elif "/datasets/org/set/tree/" in self.path:
            file = {"type": "file", "path": "train.jsonl", "size": size, "oid": "1" * 40}
            content = json.dumps([file]).encode()
        elif self.path.startswith("/api/datasets/org/set"):
            files = [{"rfilename": "train.jsonl"}]
            content = json.dumps({"id": "org/set", "sha": "0" * 40, "siblings": files}).encode()
        self.send_response(404 if content is None else 200)
        if content is None:
            head = {"X-Error-Code": "RepoNotFound" if "/none" in self.path else "EntryNotFound"}
        for name, value in (head | {"Content-Length": str(len(content or b""))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    do_GET = do_HEAD = answer

    def log_message(self, *_):
        pass


def test_a_data_set_is_fetched_once(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    places = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path)}
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    environment |= places | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", READ, "hub:org/set", "hub:org/none"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    server.shutdown()
    server.server_close()
    rows, unknown = map(json.loads, done.stdout.splitlines())
    assert rows == [{"prompt": "a"}, {"prompt": "b"}]
    note = "note: hub:org/set is not in the cache: it is fetched once from the hub\n"
    assert note in done.stderr and "hub:org/none" not in done.stderr
    assert "RepositoryNotFoundError" in unknown and "Check its name" in unknown
    # now the hub cannot be reached
    printed = python(READ, "hub:org/set", "hub:org/new", env=environment)
    again, unreachable = map(json.loads, printed.splitlines())
    assert again == rows
    assert "nor fetched from the hub (ConnectError" in unreachable


def test_classes_of_datasets_have_their_names(tmp_path):
    """A ClassLabel column holds the places of its names: without them good and bad could swap."""
    kinds = {"names": ["omission", "addition"], "_type": "ClassLabel"}
    text = {"dtype": "string", "_type": "Value"}
    features = {
        "label": {"names": ["good", "bad"], "_type": "ClassLabel"},
        "stars": {"names": ["5", "4", "-1"], "_type": "ClassLabel"},
        "right": {"names": ["True", "False"], "_type": "ClassLabel"},
        "tags": {"feature": kinds, "_type": "List"},
        "spans": {"feature": {"kind": kinds, "text": text}, "length": -1, "_type": "List"},
        "old": {"feature": {"kind": kinds, "text": text}, "length": -1, "_type": "Sequence"},
        "older": [kinds],
        "object": {"feature": kinds, "text": text},
        "number": {"dtype": "int64", "_type": "Value"},
    }
    rows = [
        {
            "label": 0,
            "stars": 0,
            "right": 1,
            "tags": [1, 0],
            "spans": [{"kind": 1, "text": "x"}],
            "old": {"kind": [0, 1], "text": ["x", "y"]},
            "older": [0],
            "object": {"feature": 1, "text": "z"},
            "number": 1,
        },
        {"label": 1, "stars": 2, "right": -1, "tags": [], "spans": None, "number": None}
        | {"old": {"kind": [], "text": []}, "older": [], "object": None},
    ]
    info = json.dumps({"info": {"features": features}})
    table = pyarrow.Table.from_pylist(rows).replace_schema_metadata({"huggingface": info})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    first, second = read_rows(tmp_path / "rows.parquet")
    assert first == {
        "label": "good",
        "stars": 5,
        "right": False,
        "tags": ["addition", "omission"],
        "spans": [{"kind": "addition", "text": "x"}],
        "old": {"kind": ["omission", "addition"], "text": ["x", "y"]},
        "older": ["omission"],
        "object": {"feature": "addition", "text": "z"},
        "number": 1,
    }
    assert (second["label"], second["stars"], second["right"]) == ("bad", -1, None)
    assert second["spans"] is None and second["object"] is None


@pytest.mark.parametrize(
    "info",
    ["{", "[]", '{"info": null}', '{"info": {"features": {"label": {"_type": "ClassLabel"}}}}'],
)
def test_what_datasets_recorded_may_be_damaged(info, tmp_path):
    table = pyarrow.table({"label": [0, 1]}).replace_schema_metadata({"huggingface": info})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    assert read_rows(tmp_path / "rows.parquet") == [{"label": 0}, {"label": 1}]


def test_json_columns_of_parquet_are_decoded(tmp_path):
    import pyarrow
    import pyarrow.parquet

    texts = pyarrow.array(['{"start": 0, "end": 1}', '["a", null]', None], pyarrow.string())
    column = pyarrow.ExtensionArray.from_storage(pyarrow.json_(), texts)
    lists = pyarrow.ListArray.from_arrays([0, 1, 1, 3], column)
    table = pyarrow.table({"value": column, "list": lists, "text": ["{}", "1", "b"]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    span = {"start": 0, "end": 1}
    assert read_rows(tmp_path / "rows.parquet") == [
        {"value": span, "list": [span], "text": "{}"},
        {"value": ["a", None], "list": [], "text": "1"},
        {"value": None, "list": [["a", None], None], "text": "b"},
    ]


@pytest.mark.parametrize("as_dictionary", [True, False])
def test_parquet_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path, as_dictionary):
    import pyarrow
    import pyarrow.parquet

    words = pyarrow.array(["x" * 100_000])
    indices = pyarrow.array([0] * 1_000, pyarrow.int32())
    column = pyarrow.DictionaryArray.from_arrays(indices, words)
    table = pyarrow.table({"text": column if as_dictionary else column.dictionary_decode()})
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(table, path)
    assert path.stat().st_size < 20_000
    with pytest.raises(UserError, match="unpacks to more than 200 times its size"):
        read_rows(path)
    few = tmp_path / "few.parquet"
    pyarrow.parquet.write_table(table.slice(0, 20), few)
    assert len(read_rows(few)) == 20

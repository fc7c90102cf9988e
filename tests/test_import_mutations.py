"""Every importer of JSON, with one value of a good row changed or left out at a time.

Whatever a file holds, an import ends with rows that can be read again, or with an error that names
the key. The rows are invented.
"""

import copy
import json
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.data.importers.registry import IMPORTERS, WRITTEN_KEYS
from fgrlhf.data.importers.report import Report
from fgrlhf.data.rows import Row

FILES = Path(__file__).parent / "fixtures"
TEXT = "Odd 🙂 here and here."


def fixture(name):
    text = (FILES / "annotation_tools" / name).read_text(encoding="utf-8")
    return json.loads(text) if name.endswith(".json") else list(map(json.loads, text.splitlines()))


GOOD = {
    **json.loads((FILES / "import_rows.json").read_text(encoding="utf-8")),
    "label_studio": fixture("label_studio.json")[0],
    "argilla": fixture("argilla.json")[0],
}
OTHER_VALUES = [
    *(None, True, False, 0, -1, 10**30, 1.5, "", " ", "🙂", "1e999", "x"),
    *([], {}, [[]], [None], [-1, 99], {"a": None}, [{"start": 0}], ["x", "y"]),
]
TABLES = {"mqm", "haluquestqa", "xsum_hallucinations", "toxic_spans", "toxic_spans_raw", "uima"}
TABLES |= {"brat"}


def paths(value, path=()):
    """The path of every value inside a row, as keys and places."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inner:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from paths(item, (*path, key))


def mutants(row):
    for path in paths(row):
        for value in [*OTHER_VALUES, ...]:
            changed = copy.deepcopy(row)
            place = changed
            for key in path[:-1]:
                place = place[key]
            if value is ...:
                del place[path[-1]]
            else:
                place[path[-1]] = copy.deepcopy(value)
            yield changed


def check(name, path, keys):
    """Import a file, and read what would be written again."""
    importer, report = IMPORTERS[name], Report()
    items = importer.read(path, report, **keys)
    for item in items:
        row = importer.format.to_row(item)
        meta = set(item.prompt.meta) & set(WRITTEN_KEYS[importer.format.name])
        if not meta:  # the command leaves these out, and counts them
            importer.format.parse(Row(json.loads(json.dumps(row)), {}), 0)
    for problem in [*report.malformed, *report.problems]:
        assert problem.key and len(str(problem)) < 1000
    return report


def test_every_importer_of_json_has_a_row():
    assert set(GOOD) == set(IMPORTERS) - TABLES


@pytest.mark.parametrize("name", GOOD)
def test_a_changed_value_breaks_no_importer(name, tmp_path):
    path = tmp_path / "rows.jsonl"
    keys = {}
    if name == "potato":
        items = tmp_path / "items.jsonl"
        items.write_text(json.dumps({"id": "1", "text": TEXT}))
        keys = {"items": str(items)}
    path.write_text(json.dumps(GOOD[name]))
    assert not check(name, path, keys).malformed
    # one file, since all rows are read before malformed ones are reported
    path.write_text("\n".join(json.dumps(row) for row in mutants(GOOD[name])))
    assert check(name, path, keys).malformed


def test_changed_items_of_potato(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(GOOD["potato"]))
    item = {"id": "1", "text": TEXT, "source": "s", "prompt": "p", "note": "n"}
    for row in [*mutants(item), *OTHER_VALUES]:
        (tmp_path / "items.jsonl").write_text(json.dumps(row))
        keys = {"items": str(tmp_path / "items.jsonl")}
        try:
            check("potato", tmp_path / "rows.jsonl", keys)
        except UserError as error:
            assert len(str(error)) < 2000


def test_changed_documents_of_uima(tmp_path):
    pytest.importorskip("cassis")
    path = tmp_path / "doc1.json"
    document = json.loads((FILES / "uima" / "doc1.json").read_text(encoding="utf-8"))
    values = document["%FEATURE_STRUCTURES"]
    for row in list(mutants(values))[::3]:
        path.write_text(json.dumps(document | {"%FEATURE_STRUCTURES": row}))
        try:
            check("uima", path, {})
        except UserError as error:
            assert len(str(error)) < 2000
